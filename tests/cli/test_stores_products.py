"""What is planned, and one product."""

from __future__ import annotations

import re

import numpy as np
import scipy.io
import scipy.sparse

from tests.support.commands import TINY_RMAT, invoke, invoke_json


def test_plan():
    invoke(*TINY_RMAT)
    answer = invoke_json("plan", "r.zarr", "--workers", "3", "--host-memory", "1GB")
    starts, stops = zip(*((worker["start"], worker["stop"]) for worker in answer["workers"]), strict=True)
    assert starts == (0, *stops[:2])
    assert stops[2] == 64
    stdout, _ = invoke("plan", "r.zarr", "--workers", "2", "--precision", "float32")
    assert "received per iteration" in stdout
    assert "float32" in stdout
    assert "memory of a worker" in stdout
    assert "held on" not in stdout


def test_plan_of_rows_that_come_by():
    invoke("generate", "uniform", "u.zarr", "--n-vertices", "500", "--n-edges", "4000", "--duplicates", "keep")
    command = ["plan", "u.zarr", "--backend", "cpu", "--device-memory"]
    [whole] = invoke_json(*command, "1GB")["workers"]
    assert (whole["held"], whole["streaming"]) == ("device", None)
    few = str(whole["vector_bytes"] + 15_000)
    answer = invoke_json(*command, few)
    [worker] = answer["workers"]
    assert (worker["held"], worker["device_bytes"]) == ("host", int(few))
    kept = 15_000 - 4 * (15_000 // 12)
    assert worker["streaming"] == {
        "held": "host",
        "piece_entries": 15_000 // 12 // 4,
        "kept_bytes": kept,
        "passing_bytes": 15_000 - kept,
        "streamed_bytes": 17_600 - kept,
    }
    stdout, _ = invoke(*command, few)
    lines = [line.split() for line in stdout.splitlines()]
    assert " ".join(lines[1]) == (
        "worker rows entries held on device memory host memory streamed per iteration received per iteration"
    )
    cells = [f"{worker['device_bytes'] / 1e3:.3g} kB", f"{worker['host_bytes'] / 1e3:.3g} kB", "7.6 kB", "0 B"]
    assert " ".join(lines[3]) == " ".join(["0 0 .. 500 4,000 host", *cells])
    assert "memory of a worker" not in stdout  # of one that computes on its host
    assert "predicted time" not in stdout
    [from_store] = invoke_json(*command, few, "--host-memory", f"{worker['host_bytes'] - 1}")["workers"]
    assert (from_store["held"], from_store["streaming"]["held"]) == ("store", "store")
    stdout, _ = invoke(*command, "1GB")
    assert " ".join(stdout.splitlines()[3].split()).startswith("0 0 .. 500 4,000 device ")


def test_spmv_is_that_of_scipy():
    invoke("ingest", "a.mtx", "a.zarr")
    matrix = scipy.sparse.csr_array([[1.5, 4.0, 0.0], [0.0, 0.0, -2.0]])
    x, y = np.array([1.0, -2.0, 0.5]), np.array([3.0, 4.0])
    np.save("x.npy", x)
    np.save("y.npy", y)
    answer = invoke_json("spmv", "a.zarr", "x.npy", "-o", "out/z.npy", "--alpha", "2", "--beta", "-1", "--y", "y.npy")
    expected = 2 * (matrix @ x) - y
    np.testing.assert_allclose(np.load("out/z.npy"), expected, rtol=1e-15)
    assert (answer["shape"], answer["dtype"], answer["output"]) == ([2], "float64", "out/z.npy")
    np.save("x.npy", np.stack([x, x], axis=1))
    stdout, _ = invoke("spmv", "a.zarr", "x.npy", "-o", "out/z.npy", "--overwrite", "--precision", "float32")
    assert stdout.startswith("out/z.npy: float32 of shape (2, 2) in ")
    np.testing.assert_allclose(np.load("out/z.npy")[:, 1], matrix @ x, rtol=1e-6)


def test_a_plan_that_does_not_fit():
    invoke("generate", "rmat", "g.zarr", "--scale", "10")
    words = ("plan", "g.zarr", "--workers", "2")
    stdout, stderr = invoke(*words, "--device-memory", "100B", code=6)
    assert re.search(r"^fits +no$", stdout, re.MULTILINE)
    assert re.search(r"^least device memory, with rows streamed +\S+ kB$", stdout, re.MULTILINE)
    assert stderr.startswith("error: pagerank of ")
    answer = invoke_json(*words, "--device-memory", "100B", code=6)
    assert answer["fits"] is False
    assert answer["error"]["type"] == "CapacityError"
    stdout, _ = invoke(*words, "--device-memory", "1GB")
    assert re.search(r"^fits +yes$", stdout, re.MULTILINE)
    assert "without rows" not in stdout
