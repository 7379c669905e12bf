"""The command line: answers for people and for scripts, exit codes, and where each byte goes."""

from __future__ import annotations

import json
import os
import pty
import re
import resource
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import scipy.io
import scipy.sparse
import zarr
from commands import ENVIRONMENT, invoke, invoke_json, start

import mgspmv.api
import mgspmv.partition
from mgspmv.cli import _list_workers
from mgspmv.errors import CapacityError, OptionError, ProgressError, SourceError, StoreError, StoreExistsError
from mgspmv.results import load_solution

EDGES = [(1, 2), (2, 3), (3, 1), (1, 3), (3, 5)]
MATRIX_MARKET = "%%MatrixMarket matrix coordinate real general\n2 3 3\n1 1 1.5\n2 3 -2\n1 2 4\n"
TINY_RMAT = ["generate", "rmat", "r.zarr", "--scale", "6", "--edge-factor", "4"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "150")
    (tmp_path / "edges.txt").write_text("# arcs\n" + "".join(f"{i} {j}\n" for i, j in EDGES))
    (tmp_path / "a.mtx").write_text(MATRIX_MARKET)
    return tmp_path


# --- starting --------------------------------------------------------------------------------------------------------


def test_help_does_not_wait_for_heavy_libraries():
    heavy = ["numba", "zarr", "scipy", "pyarrow", "dask", "distributed", "numpy", "pydantic", "fsspec", "networkx"]
    code = f"import sys, mgspmv.cli; print([name for name in {heavy} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


def test_help_is_quick():
    """Processor seconds: those on the wall when nothing else runs, and the same when something does."""
    seconds = []
    for _ in range(5):
        before = count_child_seconds()
        with start("--help", stdout=subprocess.PIPE) as process:
            stdout, _ = process.communicate()
        seconds.append(count_child_seconds() - before)
    assert process.returncode == 0
    assert "pagerank" in stdout
    assert min(seconds) < 0.5


def count_child_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_says_the_exit_codes():
    stdout, _ = invoke("--help")
    text = " ".join(stdout.split())
    assert "Exit codes: 0 done, 1 unexpected error, 2 wrong usage, 3 malformed source, 4 unusable" in text
    commands = "ingest generate update versions reorder subgraph export info plan spmv pagerank pagerank-batch top"
    commands += " verify run"
    for command in commands.split():
        assert command in stdout
        assert "--json" in invoke(command, "--help")[0]


def test_version():
    assert invoke("--version")[0] == "mgspmv 0.1.0\n"


# --- commands --------------------------------------------------------------------------------------------------------


def test_ingest_and_info():
    answer = invoke_json("ingest", "edges.txt", "g.zarr", "--transpose")
    assert answer["store"]["shape"] == [4, 4]
    assert answer["seconds"] > 0
    described = invoke_json("info", "g.zarr")
    assert described == answer["store"]
    assert (described["kind"], described["nnz"], described["has_transpose"]) == ("graph", 5, True)
    stdout, stderr = invoke("info", "g.zarr")
    assert f"digest              {described['digest']}" in stdout
    assert stderr == ""


def test_update_and_versions(folder):
    invoke("ingest", "edges.txt", "g.zarr", "--transpose")
    (folder / "more.txt").write_text("5 1\n7 2\n")
    (folder / "less.txt").write_text("1 3 0.5\n1 9 0.5\n")
    answer = invoke_json("update", "g.zarr", "--insert", "more.txt", "--delete", "less.txt")
    assert (answer["store"]["nnz"], answer["store"]["shape"]) == (6, [5, 5])
    assert answer["store"]["provenance"]["updates"][0]["missing"] == 1
    options = "--memory", "64GiB", "--threads", "1", "--keep", "3"
    stdout, stderr = invoke("update", "g.zarr", "--delete", "less.txt", *options)
    lines = stdout.splitlines()
    assert lines[0].startswith("g.zarr: graph, 5 x 5, 6 entries, a pattern, made in ")
    assert lines[1:] == ["0 entries inserted, 0 deleted, 2 were not there"]
    assert stderr == ""
    listed = invoke_json("versions", "g.zarr")
    assert listed["dropped"] == []
    assert [(v["number"], v["nnz"], v["shape"], v["current"]) for v in listed["versions"]] == [
        (1, 5, [4, 4], False),
        (2, 6, [5, 5], False),
        (3, 6, [5, 5], True),
    ]
    assert listed["versions"][1]["digest"] == answer["store"]["digest"]
    table = invoke("versions", "g.zarr")[0].rstrip().splitlines()
    assert table[-1].split()[:2] == ["3", listed["versions"][2]["version"]]
    assert table[-1].endswith("current")
    assert "current" not in table[-2]
    kept = invoke_json("versions", "g.zarr", "--keep", "1")
    assert kept["dropped"] == [v["version"] for v in listed["versions"][:2]]
    assert kept["versions"] == listed["versions"][2:]
    assert invoke("verify", "g.zarr")[0] == "g.zarr is whole\n"


def test_options_of_update_are_given_on(folder, monkeypatch):
    given = {}

    def record(store, **options):
        given.update(options)
        raise CapacityError("enough")

    monkeypatch.setattr(mgspmv.api, "update", record)
    words = (
        "--insert i --delete d --missing error --self-loops drop --symmetrize --ignore-weights --keep 2 --memory 2GiB "
    )
    words += "--format parquet --n-vertices 9 --vertices v --delimiter ; --no-weights --ids int --extra-columns ignore "
    words += "--columns a,b --n-cols 5 --threads 3 --scratch ."
    invoke("update", "g.zarr", *words.split(), code=6)
    given.pop("on_progress")
    assert given == {
        "insert": "i", "delete": "d", "missing": "error", "self_loops": "drop", "symmetrize": True,
        "ignore_weights": True, "keep": 2, "memory": "2GiB", "format": "parquet", "n_vertices": 9, "vertices": "v",
        "delimiter": ";", "weights": False, "ids": "int", "extra_columns": "ignore", "columns": ["a", "b"], "n_cols": 5,
        "threads": 3, "scratch": ".",
    }  # fmt: skip


def test_what_update_refuses(folder):
    invoke("ingest", "edges.txt", "g.zarr")
    (folder / "names.txt").write_text("a b\n")
    (folder / "none.txt").write_text("1 5\n")
    for args, code, said in (
        (["g.zarr"], 2, "pass insert (--insert), delete (--delete) or both"),
        (["g.zarr", "--insert", "edges.txt", "--keep", "0"], 2, "keep must be at least 1"),
        (["g.zarr", "--insert", "names.txt"], 3, "names.txt: the ids are names, and those of the store are integers"),
        (
            ["g.zarr", "--delete", "none.txt", "--missing", "error"],
            3,
            "the entry (1, 5) is to be deleted and",
        ),
        (["n.zarr", "--insert", "edges.txt"], 4, "there is no matrix store at n.zarr"),
    ):
        assert said in invoke("update", *args, code=code)[1]
    assert len(invoke_json("versions", "g.zarr")["versions"]) == 1


def test_ingest_for_people():
    stdout, stderr = invoke("ingest", "a.mtx", "a.zarr")
    assert stdout.startswith("a.zarr: matrix, 2 x 3, 3 entries, float64, made in ")
    assert stderr == ""


def test_reorder(folder):
    source = scipy.sparse.coo_array(([1.0, 2, 3, 4], ([0, 5, 2, 3], [5, 2, 3, 1])), shape=(6, 6))
    scipy.io.mmwrite("path.mtx", source)
    before = invoke_json("ingest", "path.mtx", "p.zarr")["store"]
    answer = invoke_json("reorder", "p.zarr", "q.zarr", "--memory", "4GiB", "--threads", "2", "--scratch", ".")
    assert answer["seconds"] > 0
    assert (answer["store"]["order"], before["order"]) == ("rcm", None)
    made = answer["store"]["provenance"]["reordering"]
    assert (made["bandwidth_before"], made["bandwidth_after"]) == (5, 1)
    assert "order               rcm, bandwidth 1, was 5\n" in invoke("info", "q.zarr")[0]
    assert "order               that of the source\n" in invoke("info", "p.zarr")[0]
    assert invoke("verify", "q.zarr")[0] == "q.zarr is whole\n"
    np.save("x.npy", np.arange(6.0))
    invoke("spmv", "q.zarr", "x.npy", "-o", "y.npy")
    assert np.load("y.npy").tolist() == (source @ np.arange(6.0)).tolist()


def test_ingest_in_an_order():
    stdout, stderr = invoke("ingest", "edges.txt", "g.zarr", "--order", "rcm")
    lines = stdout.splitlines()
    assert lines[0].startswith("g.zarr: graph, 4 x 4, 5 entries, a pattern, made in ")
    assert lines[1:] == ["order: rcm, bandwidth 2, was 2"]
    assert stderr == ""
    invoke("ingest", "edges.txt", "h.zarr")
    assert (
        invoke_json("info", "g.zarr")["digest"]
        == invoke_json("reorder", "h.zarr", "--method", "rcm")["store"]["digest"]
    )
    answer = invoke_json("generate", "rmat", "r.zarr", "--scale", "5", "--order", "degree")["store"]
    assert (answer["order"], answer["provenance"]["options"]["order"]) == ("degree", "degree")
    for args, said in (
        (["ingest", "a.mtx", "w.zarr", "--order", "dealt"], "must be square; a.mtx has 2 rows and 3 columns"),
        (["generate", "rmat", "w.zarr", "--scale", "5", "--order", "amd"], "order must be one of 'rcm', 'degree'"),
    ):
        stdout, stderr = invoke(*args, code=2)
        assert said in stderr
        assert stdout == ""


def test_subgraph():
    invoke("ingest", "edges.txt", "g.zarr", "--transpose")
    Path("ids.txt").write_text("3\n1\n2\n")
    answer = invoke_json("subgraph", "g.zarr", "h.zarr", "--vertices", "ids.txt", "--memory", "4GiB", "--threads", "2")
    part = nx.DiGraph(EDGES).subgraph([1, 2, 3])
    assert (answer["store"]["shape"], answer["store"]["nnz"]) == ([3, 3], part.number_of_edges())
    assert answer["store"]["provenance"]["subgraphs"][-1]["n_vertices"] == 3
    ranks = {entry["id"]: entry["rank"] for entry in invoke_json("pagerank", "h.zarr", "--tol", "1e-14")["top"]}
    assert ranks == pytest.approx(nx.pagerank(part, tol=1e-15, max_iter=200), abs=1e-13)
    np.save("mask.npy", np.array([True, True, True, False]))
    _, stderr = invoke("subgraph", "g.zarr", "h.zarr", "--vertices", "mask.npy", code=4)
    assert "h.zarr holds a matrix" in stderr
    stdout, _ = invoke("subgraph", "g.zarr", "h.zarr", "--vertices", "mask.npy", "--overwrite")
    assert f"3 of 4 rows, {part.number_of_edges()} of {len(EDGES)} entries\n" in stdout
    assert invoke_json("info", "h.zarr")["digest"] == answer["store"]["digest"]
    _, stderr = invoke("subgraph", "g.zarr", "i.zarr", "--min-weight", "2", code=2)
    assert "g.zarr is a pattern, which has no weights; leave min_weight out" in stderr
    Path("ids.txt").write_text("3\n8\n")
    _, stderr = invoke("subgraph", "g.zarr", "i.zarr", "--vertices", "ids.txt", code=2)
    assert "vertices has the id 8, which no vertex has; near: 5" in stderr


def test_subgraph_by_weight():
    Path("w.txt").write_text("a b 0.5\nb c 1.5\nc a 2.5\n")
    invoke("ingest", "w.txt", "w.zarr")
    answer = invoke_json("subgraph", "w.zarr", "v.zarr", "--min-weight", "1", "--max-weight", "2")["store"]
    assert (answer["shape"], answer["nnz"], answer["min_weight"]) == ([3, 3], 1, 1.5)


def test_subgraph_of_edges():
    invoke("ingest", "edges.txt", "g.zarr")
    graph = nx.DiGraph(EDGES)
    chosen = sorted(graph.edges)[:2]
    Path("some.txt").write_text("".join(f"{i} {j}\n" for i, j in chosen))
    answer = invoke_json("subgraph", "g.zarr", "h.zarr", "--edges", "some.txt")["store"]
    assert (answer["shape"], answer["nnz"]) == ([4, 4], 2)
    assert answer["provenance"]["subgraphs"][-1]["edges"] == 2
    answer = invoke_json("subgraph", "g.zarr", "i.zarr", "--without-edges", "some.txt")["store"]
    graph.remove_edges_from(chosen)
    assert answer["digest"] == mgspmv.api.ingest(graph, "w.zarr").digest
    mask = nx.to_scipy_sparse_array(nx.DiGraph(EDGES), nodelist=sorted(graph), format="coo")
    scipy.sparse.save_npz("mask.npz", mask)
    answer = invoke_json("subgraph", "g.zarr", "j.zarr", "--edges", "mask.npz")["store"]
    assert answer["digest"] == invoke_json("info", "g.zarr")["digest"]
    Path("some.txt").write_text("1 2\n1 9\n")
    _, stderr = invoke("subgraph", "g.zarr", "k.zarr", "--edges", "some.txt", code=2)
    assert "edges has the id 9, which no vertex has; near: 5" in stderr
    Path("some.txt").write_text("5 3\n")
    _, stderr = invoke("subgraph", "g.zarr", "k.zarr", "--edges", "some.txt", "--symmetrize", code=2)
    assert ", which is not there; near: (" in stderr
    _, stderr = invoke("subgraph", "g.zarr", "k.zarr", "--edges", "some.txt", "--without-edges", "some.txt", code=2)
    assert "pass one of them" in stderr


def test_reorder_in_place_and_back():
    source = invoke_json("ingest", "edges.txt", "g.zarr")["store"]
    invoke("pagerank", "g.zarr", "-o", "a.csv")
    stdout, stderr = invoke("reorder", "g.zarr", "--method", "rcm")
    lines = stdout.splitlines()
    assert lines[0].startswith("g.zarr: graph, 4 x 4, 5 entries, a pattern, made in ")
    assert lines[1:] == ["order: rcm, bandwidth 2, was 2"]
    assert stderr == ""
    invoke("pagerank", "g.zarr", "-o", "b.csv")
    assert Path("a.csv").read_bytes() == Path("b.csv").read_bytes()
    answer = invoke_json("reorder", "g.zarr", "--method", "none", "--overwrite")["store"]
    assert (answer["digest"], answer["order"]) == (source["digest"], None)


def test_what_reorder_refuses():
    for source, store in (("a.mtx", "wide.zarr"), ("edges.txt", "g.zarr"), ("edges.txt", "h.zarr")):
        invoke("ingest", source, store)
    for args, code, said in (
        (["g.zarr", "h.zarr"], 4, "h.zarr holds a matrix; pass overwrite=True (--overwrite) or choose another place"),
        (["wide.zarr"], 2, "must be square; wide.zarr has 2 rows and 3 columns"),
        (["g.zarr", "--method", "amd"], 2, "method must be one of 'rcm', 'degree', 'dealt', 'none', not 'amd'"),
        (["none.zarr"], 4, "there is no matrix store at none.zarr"),
        (["g.zarr", "--memory", "1MB"], 2, "memory must be at least 1GiB"),
        (["g.zarr", "--scratch", "none"], 2, "scratch must be a folder that is there, and 'none' is none"),
    ):
        stdout, stderr = invoke("reorder", *args, code=code)
        assert stderr.startswith("error: ")
        assert said in stderr
        assert stdout == ""
    assert invoke_json("reorder", "g.zarr", "h.zarr", "--overwrite")["store"]["order"] == "rcm"


def test_options_of_ingest_are_given_on():
    with open("w.csv", "w") as file:
        file.write("ann;bob;2;x\nann;bob;3;x\nbob;bob;1;x\n")
    options = [
        "--format",
        "edge-list",
        "--delimiter",
        ";",
        "--extra-columns",
        "ignore",
        "--ids",
        "string",
        "--duplicates",
        "keep",
    ]
    answer = invoke_json("ingest", "w.csv", "w.zarr", *options, "--self-loops", "drop", "--dtype", "float32")["store"]
    assert (answer["nnz"], answer["dtype"], answer["vertex_ids"], answer["duplicates"]) == (
        2, "float32", "string", "keep",
    )  # fmt: skip
    answer = invoke_json("ingest", "edges.txt", "e.zarr", "--n-vertices", "9", "--symmetrize", "--kind", "matrix")
    assert (answer["store"]["shape"], answer["store"]["kind"], answer["store"]["nnz"]) == ([9, 9], "matrix", 8)
    Path("v.txt").write_text("1\n2\n3\n4\n5\n")
    answer = invoke_json("ingest", "edges.txt", "v.zarr", "--vertices", "v.txt", "--format", "edge-list")
    assert answer["store"]["shape"] == [5, 5]
    answer = invoke_json("ingest", "a.mtx", "p.zarr", "--ignore-weights")
    assert answer["store"]["dtype"] is None
    group = zarr.open_group("plain", mode="w")
    group.create_array("indptr", data=np.array([0, 1, 2]))
    group.create_array("indices", data=np.array([1, 0]))
    answer = invoke_json("ingest", "plain", "c.zarr", "--n-cols", "5", "--format", "csr")
    assert (answer["store"]["shape"], answer["store"]["kind"]) == ([2, 5], "matrix")


@pytest.mark.parametrize(
    ("args", "shape", "nnz"),
    [
        (["rmat", "--scale", "5", "--edge-factor", "3", "--duplicates", "keep", "--seed", "7"], [32, 32], 96),
        (["rmat", "--scale", "5", "--edge-factor", "3", "--duplicates", "keep", "--a", "0.25", "--b", "0.25", "--c",
          "0.25", "--no-scramble", "--weights"], [32, 32], 96),
        (["uniform", "--n-vertices", "10", "--n-edges", "20", "--duplicates", "keep"], [10, 10], 20),
        (["stencil2d", "--nx", "3", "--ny", "4", "--points", "9"], [12, 12], 70),
        (["stencil3d", "--nx", "2", "--ny", "2", "--nz", "2", "--pattern"], [8, 8], 24),
        (["banded", "--n", "5", "--bandwidth", "1"], [5, 5], 13),
    ],
)  # fmt: skip
def test_generate(args, shape, nnz):
    answer = invoke_json("generate", args[0], "m.zarr", *args[1:])["store"]
    assert (answer["shape"], answer["nnz"]) == (shape, nnz)


def test_export(folder):
    invoke("ingest", "a.mtx", "a.zarr")
    stored = invoke_json("info", "a.zarr")
    answer = invoke_json("export", "a.zarr", "b.mtx.gz")
    assert answer["target"] == "b.mtx.gz"
    assert answer["store"] == stored
    assert answer["seconds"] > 0
    assert (scipy.io.mmread("b.mtx.gz") != scipy.io.mmread("a.mtx")).nnz == 0
    stdout, _ = invoke("export", "a.zarr", "b.mtx.gz", "--overwrite")
    assert stdout.startswith("b.mtx.gz: matrix, 2 x 3, 3 entries, float64, written in ")
    invoke("ingest", "b.mtx.gz", "b.zarr")
    assert invoke_json("info", "b.zarr")["digest"] == stored["digest"]


def test_export_with_a_list_of_vertices(folder):
    (folder / "list").write_text("1\n2\n3\n5\n8\n")
    invoke("ingest", "edges.txt", "a.zarr", "--vertices", "list")
    assert invoke_json("export", "a.zarr", "e.parquet", "--vertices", "ids")["vertices"] == "ids"
    assert (folder / "ids").read_text() == (folder / "list").read_text()
    invoke("ingest", "e.parquet", "b.zarr", "--vertices", "ids")
    assert invoke_json("info", "b.zarr")["digest"] == invoke_json("info", "a.zarr")["digest"]


def test_options_of_export_are_given_on(monkeypatch):
    invoke("ingest", "a.mtx", "a.zarr")
    info, given = mgspmv.api.open_matrix("a.zarr").info, {}
    monkeypatch.setattr(mgspmv.api, "export", lambda *args, **options: given.update(options, args=args) or info)
    args = ["--format", "npz", "--vertices", "v", "--memory", "2GiB", "--threads", "3", "--scratch", "s", "--overwrite"]
    invoke("export", "a.zarr", "b.npz", *args)
    del given["on_progress"]
    assert given == {
        "args": ("a.zarr", "b.npz"),
        "format": "npz",
        "vertices": "v",
        "memory": "2GiB",
        "threads": 3,
        "scratch": "s",
        "overwrite": True,
    }


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
    assert (worker["seconds"], answer["seconds_per_iteration"]) == (None, None)
    stdout, _ = invoke(*command, few)
    lines = [line.split() for line in stdout.splitlines()]
    assert " ".join(lines[1]) == (
        "worker rows entries held on device memory host memory comes by per iteration received per iteration"
    )
    cells = [f"{worker['device_bytes'] / 1e3:.3g} kB", f"{worker['host_bytes'] / 1e3:.3g} kB", "7.6 kB", "0 B"]
    assert " ".join(lines[3]) == " ".join(["0 0 .. 500 4,000 host", *cells])
    assert "memory of a worker" not in stdout  # of one that computes on its host
    assert "predicted time" not in stdout
    [from_store] = invoke_json(*command, few, "--host-memory", str(worker["host_bytes"] - 1))["workers"]
    assert (from_store["held"], from_store["streaming"]["held"]) == ("store", "store")
    stdout, _ = invoke(*command, "1GB")
    assert " ".join(stdout.splitlines()[3].split()).startswith("0 0 .. 500 4,000 device ")


def test_a_plan_of_hosts_beside_devices_tells_what_each_takes():
    hosts = mgspmv.partition.WorkerPlan(0, 10, 30, 1000, 2000, 500, 0, 100)
    on_device = replace(hosts, start=10, stop=20, held="device")
    plan = mgspmv.partition.Plan("m.zarr", "pagerank", "exact", (hosts, on_device), None)
    _, rows = _list_workers(plan)
    assert rows == [
        (0, "0 .. 10", "30", "host", "", "3 kB", "0 B", "100 B"),
        (1, "10 .. 20", "30", "device", "3 kB", "500 B", "0 B", "100 B"),
    ]


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


def test_pagerank_is_that_of_networkx():
    invoke("ingest", "edges.txt", "g.zarr")
    answer = invoke_json("pagerank", "g.zarr", "--tol", "1e-14", "-o", "r.parquet", "-o", "r.csv", "--top", "3")
    expected = nx.pagerank(nx.DiGraph(EDGES), tol=1e-15, max_iter=200)
    assert {entry["id"]: entry["rank"] for entry in answer["top"]} == pytest.approx(
        {name: expected[name] for name in sorted(expected, key=expected.get)[-3:]}, abs=1e-13
    )
    assert answer["saved"] == ["r.parquet", "r.csv"]
    assert (answer["status"], len(answer["changes"])) == ("converged", answer["iterations"])
    assert dict(load_solution("r.parquet").top(4)) == pytest.approx(expected, abs=1e-13)
    assert Path("r.csv").read_text().startswith("id,rank\n1,")


def test_ranks_of_the_reversed_graph():
    invoke("ingest", "edges.txt", "g.zarr", "--transpose")
    answer = invoke_json("pagerank", "g.zarr", "--reverse", "--tol", "1e-14", "--top", "4")
    expected = nx.pagerank(nx.DiGraph(EDGES).reverse(), tol=1e-15, max_iter=200)
    assert {entry["id"]: entry["rank"] for entry in answer["top"]} == pytest.approx(expected, abs=1e-13)
    assert answer["matrix"]["reversed"] is True
    invoke("ingest", "edges.txt", "h.zarr")
    _, stderr = invoke("pagerank", "h.zarr", "--reverse", code=2)
    assert "h.zarr does not hold the transpose; ingest it with transpose=True (--transpose)" in stderr


def test_pagerank_for_people():
    invoke("ingest", "edges.txt", "g.zarr")
    stdout, stderr = invoke("pagerank", "g.zarr", "-o", "r.zarr")
    assert stderr == ""
    for shown in ("vertex", "converged", "iterations", "last change", "L1 error at most", "seconds", "product"):
        assert shown in stdout
    assert "edges per second" in stdout
    assert re.search(r"memory +host peak \S+ [MG]B, held \S+ .?B\n", stdout)
    assert "saved             r.zarr\n" in stdout


def test_options_of_pagerank_are_given_on():
    invoke("ingest", "edges.txt", "g.zarr")
    Path("p.txt").write_text("1 3\n2 1\n")
    Path("d.txt").write_text("5 1\n")
    np.save("s.npy", [1.0, 0, 0, 0])
    vectors = ["--personalization", "p.txt", "--dangling", "d.txt", "--nstart", "s.npy"]
    options = ["--alpha", "0.5", "--tol", "1e-12", "--tol-mode", "linf", "--max-iter", "300", "--precision", "float64"]
    answer = invoke_json("pagerank", "g.zarr", *vectors, *options, "--threads", "1", "--kernel", "csr-serial")
    expected = nx.pagerank(nx.DiGraph(EDGES), 0.5, {1: 3, 2: 1}, dangling={5: 1}, tol=1e-15, max_iter=200)
    assert {entry["id"]: entry["rank"] for entry in answer["top"]} == pytest.approx(expected, abs=1e-11)
    for name, value in {
        "alpha": 0.5,
        "tol": 1e-12,
        "tol_mode": "linf",
        "max_iter": 300,
        "precision": "float64",
    }.items():
        assert answer["options"][name] == value
    high = invoke_json("pagerank", "g.zarr", "--stop", "topk:1", "--max-iter", "300")
    assert "host memory of a worker for --stop topk:1  356 B" in invoke("plan", "g.zarr", "--stop", "topk:1")[0]
    assert invoke_json("plan", "g.zarr", "--stop", "topk:1")["workers"][0]["watch_bytes"] == 4 * 89
    assert (high["status"], high["stability"]["k"]) == ("stable", 1)
    assert "the 1 are proven, in this order" in invoke("pagerank", "g.zarr", "--stop", "topk:1")[0]
    found = invoke_json("pagerank", "g.zarr", "--method", "extrapolation")
    assert found["options"]["method"] == "extrapolation"
    fixed = invoke_json("pagerank", "g.zarr", "--tol-mode", "fixed", "--max-iter", "4")
    assert (fixed["status"], fixed["iterations"]) == ("completed", 4)
    invoke("pagerank", "g.zarr", "--tol-mode", "l1_per_node", "--dangling", "drop")


def test_out_weights_and_relative_changes():
    invoke("ingest", "edges.txt", "g.zarr")
    plain = invoke_json("pagerank", "g.zarr", "--tol-mode", "relative", "--tol", "1e-3")
    Path("w.txt").write_text("".join(f"{name} {9 if name == 1 else 2}\n" for name in (1, 2, 3, 5)))
    given = invoke_json("pagerank", "g.zarr", "--out-weight", "w.txt")
    assert (plain["options"]["tol_mode"], plain["options"]["out_weight"]) == ("relative", "store")
    assert given["options"]["out_weight"] == "vector"
    assert sum(entry["rank"] for entry in given["top"]) < 0.95
    Path("w.txt").write_text("1 0.5\n")
    _, stderr = invoke("pagerank", "g.zarr", "--out-weight", "w.txt", code=2)
    assert stderr.startswith("error: out_weight of vertex 1 is 0.5 and its stored out-edges weigh ")


def test_ignore_weights():
    Path("w.txt").write_text("1 2 9\n1 3 1\n2 1 1\n3 1 1\n")
    invoke("ingest", "w.txt", "w.zarr")
    weighed = invoke_json("pagerank", "w.zarr")["top"]
    plain = invoke_json("pagerank", "w.zarr", "--ignore-weights")["top"]
    assert weighed[1]["rank"] > 2 * weighed[2]["rank"]
    assert plain[1]["rank"] == plain[2]["rank"]


def test_string_ids_and_what_looks_like_markup():
    Path("n.txt").write_text("[red]a :smile:\n:smile: [red]a\n")
    invoke("ingest", "n.txt", "n.zarr", "--ids", "string")
    Path("p.txt").write_text("[red]a 1\n")
    stdout, _ = invoke("pagerank", "n.zarr", "--personalization", "p.txt", "-o", "n.parquet")
    assert "[red]a" in stdout
    assert ":smile:" in stdout
    assert [entry["id"] for entry in invoke_json("top", "n.parquet")["top"]] == ["[red]a", ":smile:"]


def test_top():
    invoke(*TINY_RMAT)
    ranks = invoke_json("pagerank", "r.zarr", "-o", "r.parquet", "-o", "ranks.zarr", "--top", "5")
    for path in ("r.parquet", "ranks.zarr"):
        answer = invoke_json("top", path, "-k", "5")
        assert answer["top"] == ranks["top"]
    stdout, _ = invoke("top", "r.parquet", "-k", "2")
    assert [line.split()[:2] for line in stdout.splitlines()[3:5]] == [
        [str(place), str(entry["id"])] for place, entry in enumerate(ranks["top"][:2], 1)
    ]


def test_scores_in_place_of_ranks():
    invoke(*TINY_RMAT)
    plain = invoke_json("pagerank", "r.zarr", "-o", "plain.zarr")
    scaled = invoke_json("pagerank", "r.zarr", "--scaler", "max", "-o", "r.zarr.parquet", "-o", "r.csv")
    most = plain["top"][0]["rank"]
    wanted = {entry["id"]: entry["rank"] / most for entry in plain["top"]}
    assert {entry["id"]: entry["rank"] for entry in scaled["top"]} == pytest.approx(wanted, rel=1e-15)
    assert scaled["options"]["scaler"] == load_solution("r.zarr.parquet").scaler == "max"
    assert "scaler" not in plain["options"]
    assert scaled["error_bound_l1"] == plain["error_bound_l1"]
    assert max(float(line.split(",")[1]) for line in Path("r.csv").read_text().splitlines()[1:]) == 1.0
    stdout, _ = invoke("pagerank", "r.zarr", "--scaler", "stdscore")
    assert "before scaling" in stdout
    assert "ranks scaled by stdscore" in stdout
    _, stderr = invoke("pagerank", "r.zarr", "--scaler", "maximum", code=2)
    assert stderr.startswith("error: --scaler must be one of 'none', 'minmax', ")


def test_a_summary_with_the_ranks_and_of_a_file():
    invoke(*TINY_RMAT)
    told = invoke_json("pagerank", "r.zarr", "--summary", "-o", "ranks.zarr")["summary"]
    ranks = load_solution("ranks.zarr").values
    assert (told["n"], told["n_non_finite"], told["max"]) == (64, 0, ranks.max())
    assert told["percentiles"]["99.9"] == pytest.approx(np.percentile(ranks, 99.9), rel=1e-15)
    answer = invoke_json("summary", "ranks.zarr")
    assert answer == {"status": "converged", "scaler": "none", "summary": told}
    few = invoke_json("summary", "ranks.zarr", "--bins", "3")["summary"]["histogram"]
    assert (len(few["counts"]), sum(few["counts"])) == (3, 64)
    stdout, _ = invoke("pagerank", "r.zarr", "--summary")
    assert "converged" in stdout
    shown, _ = invoke("summary", "ranks.zarr")
    assert shown.splitlines() == stdout.splitlines()[-len(shown.splitlines()) :]
    for title in ("vertices ", "mean ", "99.9% are at most ", "Gini coefficient   0.", "from "):
        assert title in shown
    assert "Gini coefficient   none" in invoke("pagerank", "r.zarr", "--summary", "--scaler", "log")[0]


def test_a_summary_of_ranks_that_are_not_finite():
    Path("tiny.txt").write_text("1 2 5e-324\n2 3 1\n3 1 1\n")
    invoke("ingest", "tiny.txt", "t.zarr")
    answer = invoke_json("pagerank", "t.zarr", "--summary", "--precision", "float64", "--scaler", "max", code=5)
    assert (answer["status"], answer["summary"]["n"]) == ("non_finite", 3)
    assert answer["summary"]["n_non_finite"] > 0


def test_ranks_on_standard_output():
    invoke("ingest", "edges.txt", "g.zarr")
    stdout, stderr = invoke("pagerank", "g.zarr", "-o", "-", "-o", "r.csv", "--summary")
    assert stdout == Path("r.csv").read_text()
    for shown in ("vertex", "converged", "saved             r.csv\n", "Gini coefficient"):
        assert shown in stderr
    stdout, stderr = invoke("pagerank", "g.zarr", "-o", "-", "--max-iter", "2", code=5)
    assert len(stdout.splitlines()) == 5
    assert stderr.splitlines()[-1].startswith("error: PageRank ended as max_iter")
    stdout, _ = invoke("pagerank", "g.zarr", "-o", "-", "--json", code=2)
    assert "-o - writes ranks to standard output, where --json answers" in stdout
    assert not Path("-").exists()


def test_nobody_reads_the_ranks():
    invoke("generate", "uniform", "u.zarr", "--n-vertices", "20000", "--n-edges", "40000")
    with start("pagerank", "u.zarr", "-o", "-", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == "id,rank\n"
        process.stdout.close()
        assert "converged" in process.stderr.read()
    assert process.returncode == 141


def test_verify(folder):
    invoke(*TINY_RMAT)
    assert invoke_json("verify", "r.zarr") == {"store": "r.zarr", "ok": True, "problems": []}
    assert invoke("verify", "r.zarr")[0] == "r.zarr is whole\n"
    chunk = next(folder.glob("r.zarr/versions/*/indices/c/0"))
    content = chunk.read_bytes()
    chunk.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    answer = invoke_json("verify", "r.zarr", code=4)
    assert not answer["ok"]
    assert "indices" in answer["problems"][0]
    assert answer["error"]["type"] == "StoreDamagedError"
    stdout, stderr = invoke("verify", "r.zarr", code=4)
    assert stdout.splitlines() == answer["problems"]
    assert f"{len(answer['problems'])} problem(s) found" in stderr


QUICKSTART = """
folder = "q"
[matrix.g]
generate = "rmat"
parameters = {scale = 16, seed = 1}
[run]
tol = 1e-6
top = 10
"""


def test_run():
    Path("q.toml").write_text(QUICKSTART)
    small = ["--set", "matrix.g.parameters.scale=7", "--set", "run.alpha=0.5"]
    stdout, stderr = invoke("run", "q.toml", *small, "--dry-run")
    assert "not made yet" in stdout
    assert "q in q: 0 of 2 steps are kept; at most " in stdout
    assert not Path("q").exists()
    stdout, stderr = invoke("run", "q.toml", *small)
    for shown in ("\n  10 ", "iterations", "128 x 128, ", "q/g.zarr", "q/g/pagerank", "q: 2 made, in "):
        assert shown in stdout
    assert stderr == ""
    answer = invoke_json("run", "q.toml", *small)
    assert [step["state"] for step in answer["steps"]] == ["kept", "kept"]
    assert answer["steps"][1]["record"]["options"]["alpha"] == 0.5
    answer = invoke_json("run", "q.toml", *small, "--set", "run.max_iter=1", "--dry-run")
    assert [step["state"] for step in answer["steps"]] == ["kept", "to make"]
    assert answer["steps"][1]["predicted_s"] > 0
    answer = invoke_json("run", "q.toml", *small, "--set", "run.max_iter=1", code=5)
    assert answer["error"]["type"] == "StepsFailedError"
    assert [step["state"] for step in answer["steps"]] == ["kept", "failed"]
    stdout, stderr = invoke("run", "q.toml", *small, "--set", "run.max_iter=1", code=5)
    assert "PageRank ended as max_iter" in stdout
    assert "error: 1 of 2 steps failed\ng/pagerank: PageRank ended as max_iter" in stderr
    assert "wanted KEY=VALUE" in invoke("run", "q.toml", "--set", "alpha", code=2)[1]


def test_run_that_is_interrupted(monkeypatch):
    from mgspmv.pipeline import execute

    def interrupt(run, *_):
        run.work.is_interrupted.set()

    monkeypatch.setattr(execute._Run, "run", interrupt)
    Path("q.toml").write_text(QUICKSTART)
    _, stderr = invoke("run", "q.toml", code=130)
    assert "interrupted; no step is done yet; run it again to go on" in stderr


# --- exit codes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "code", "type_name", "message"),
    [
        (["info", "g.zarr", "--wat"], 2, "UsageError", "No such option: --wat"),
        (["pagerank", "g.zarr", "--alpha", "x"], 2, "UsageError", "Invalid value for '--alpha'"),
        (["pagerank", "g.zarr", "--alpha", "1.5"], 2, "OptionError", "alpha must be at least 0 and less than 1"),
        (["pagerank", "g.zarr", "-o", "r.txt"], 2, "OptionError", "the name must end in .zarr, .parquet, .csv"),
        (["pagerank", "a.zarr"], 2, "KindError", "PageRank needs a square one"),
        (["ingest", "edges.txt", "h.zarr", "--kind", "grpah"], 2, "OptionError", "kind must be one of 'graph'"),
        (["generate", "rmta", "h.zarr"], 2, "OptionError", "did you mean 'rmat'"),
        (["generate", "rmat", "h.zarr", "--scale", "5", "--nx", "3"], 2, "OptionError", "rmat has no option 'nx'"),
        (["spmv", "a.zarr", "x2.npy", "-o", "y.npy"], 2, "ShapeError", "x has 2 entries but the matrix has 3 columns"),
        (["spmv", "a.zarr", "x2.npy", "-o", "y.txt"], 2, "OptionError", "must end in .npy"),
        (["run", "bad.toml"], 2, "PipelineError", "unknown key"),
        (["export", "a.zarr", "b.zarr"], 2, "OptionError", "may become anndata or binsparse; say which by"),
        (["export", "a.zarr", "b.mtx", "--format", "csv"], 2, "OptionError", "format must be one of 'matrix-market'"),
        (["export", "none.zarr", "b.mtx"], 4, "StoreNotFoundError", "there is no matrix store at none.zarr"),
        (["export", "a.zarr", "a.mtx"], 4, "StoreExistsError", "a.mtx exists already; pass overwrite=True"),
        (["ingest", "bad.txt", "h.zarr"], 3, "SourceError", "bad.txt, line 2"),
        (["ingest", "none.txt", "h.zarr"], 3, "SourceNotFoundError", "none.txt"),
        (["pagerank", "g.zarr", "--nstart", "bad.txt"], 3, "SourceError", "bad.txt, line 2"),
        (["pagerank", "g.zarr", "--dangling", "error"], 3, "DanglingError", "5"),
        (["info", "none.zarr"], 4, "StoreNotFoundError", "there is no matrix store at none.zarr"),
        (["ingest", "edges.txt", "g.zarr"], 4, "StoreExistsError", "--overwrite"),
        (["verify", "other.zarr"], 4, "StoreFormatError", "not a matrix store"),
        (["top", "none.zarr"], 4, "StoreNotFoundError", "there are no ranks at none.zarr"),
        (["pagerank", "g.zarr", "-o", "there.csv"], 4, "StoreExistsError", "there.csv exists already"),
        (["pagerank", "g.zarr", "--max-iter", "2"], 5, "ConvergenceError", "after 2 iterations"),
        (["plan", "g.zarr", "--host-memory", "10"], 6, "CapacityError", "needs"),
        (["plan", "g.zarr", "--device-memory", "12 parsecs"], 2, "OptionError", "a size is written like 141GB, 16GiB"),
        (["pagerank", "g.zarr", "--backend", "cpu", "--device-memory", "1GB"], 2, "OptionError",
         "device_memory and host_memory limit what a run on CUDA takes"),
        (["spmv", "a.zarr", "x3.npy", "-o", "y.npy", "--backend", "cpu", "--host-memory", "1GB"], 2, "OptionError",
         "device_memory and host_memory limit what a run on CUDA takes"),
    ],
)  # fmt: skip
def test_exit_codes(args, code, type_name, message):
    invoke("ingest", "edges.txt", "g.zarr")
    invoke("ingest", "a.mtx", "a.zarr")
    np.save("x2.npy", np.ones(2))
    np.save("x3.npy", np.ones(3))
    Path("bad.txt").write_text("1 2\n1 x\n")
    Path("bad.toml").write_text("[surce]\n")
    Path("there.csv").write_text("")
    zarr.open_group("other.zarr", attributes={"x": 1})
    stdout, stderr = invoke(*args, code=code)
    text = " ".join(stderr.split())
    assert message in text
    assert "Traceback" not in text
    if type_name != "ConvergenceError":
        assert stdout == ""
    error = invoke_json(*args, code=code)["error"]
    assert error["type"] == type_name
    assert message in error["message"]


def test_not_converged_is_written():
    invoke("ingest", "edges.txt", "g.zarr")
    stdout, stderr = invoke("pagerank", "g.zarr", "--max-iter", "2", "-o", "r.zarr", code=5)
    assert "max_iter" in stdout
    assert stderr.startswith("error: PageRank ended as max_iter after 2 iterations")
    assert load_solution("r.zarr").iterations == 2


def test_taken_output_is_refused_before_the_work(monkeypatch):
    invoke("ingest", "edges.txt", "g.zarr")
    Path("r.csv").write_text("mine")
    monkeypatch.setattr(mgspmv.api, "pagerank", lambda *_, **__: pytest.fail("the work was begun"))
    invoke("pagerank", "g.zarr", "-o", "r.csv", code=4)
    assert Path("r.csv").read_text() == "mine"


def test_a_bug_shows_its_traceback(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("a bug")

    monkeypatch.setattr(mgspmv.api, "verify", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        invoke("verify", "g.zarr")


def test_capacity_while_running(monkeypatch):
    def fail(*_, **__):
        raise CapacityError("needs 3 GB")

    monkeypatch.setattr(mgspmv.api, "verify", fail)
    assert invoke("verify", "g.zarr", code=6)[1] == "error: needs 3 GB\n"


def test_interrupt(folder):
    os.mkfifo("pipe.txt")
    arguments = ("ingest", "pipe.txt", "p.zarr", "--format", "edge-list")
    process = start(*arguments, stdout=-1, stderr=-1)
    with open("pipe.txt", "w") as pipe:  # waits until it is read
        pipe.write("1 2\n")
        pipe.flush()
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr == "interrupted\n"
    assert stdout == ""
    assert not (folder / "p.zarr").exists()


AGAIN = "run the same command again to go on where it was\n"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, f"{AGAIN}interrupted\n"),
        (StoreError("the disk is full"), 4, f"{AGAIN}error: the disk is full\n"),
        (ProgressError("another process"), 4, "error: another process\n"),
        (StoreExistsError("it is there"), 4, "error: it is there\n"),
        (SourceError("a bad line"), 3, "error: a bad line\n"),
        (OptionError("no folder"), 2, "error: no folder\n"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_how_to_go_on(monkeypatch, error, code, said):
    given = {}

    def fail(*args, **options):
        given.update(options)
        raise error

    monkeypatch.setattr(mgspmv.api, "ingest", fail)
    stdout, stderr = invoke("ingest", "edges.txt", "g.zarr", "--resume", code=code)
    assert (stdout, stderr) == ("", said)
    assert given["resume"] is True
    assert AGAIN not in invoke("ingest", "edges.txt", "g.zarr", code=code)[1]
    assert given["resume"] is False


def test_going_on(folder, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["mgspmv.ingest.write"].VersionWriter, "write", interrupt)
        invoke("ingest", "edges.txt", "g.zarr", "--resume", code=130)
    assert (folder / ".g.zarr.ingest").is_dir()
    (folder / "edges.txt").open("a").write("7 8\n")
    _, stderr = invoke("ingest", "edges.txt", "g.zarr", "--resume", code=4)
    assert "edges.txt was changed since" in stderr
    invoke("ingest", "edges.txt", "g.zarr")
    assert invoke_json("info", "g.zarr")["nnz"] == len(EDGES) + 1
    assert not (folder / ".g.zarr.ingest").exists()


def test_nobody_reads_the_answer():
    invoke(*TINY_RMAT)
    read, write = os.pipe()
    os.close(read)
    with start("info", "r.zarr", stdout=write, stderr=-1) as process:
        os.close(write)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 141
    assert stderr == ""


def test_progress_is_on_stderr_where_that_is_a_terminal():
    invoke(*TINY_RMAT)
    terminal, stderr = pty.openpty()
    with start("pagerank", "r.zarr", "--json", stdout=subprocess.PIPE, stderr=stderr) as process:
        stdout, _ = process.communicate(timeout=60)
    os.close(stderr)
    shown = os.read(terminal, 100_000).decode()
    os.close(terminal)
    assert json.loads(stdout)["status"] == "converged"
    assert "iterate" in shown


def test_no_command_gives_help():
    with start(stdout=-1, stderr=-1) as process:
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode in (0, 2)  # as the version of Typer has it
    assert "Usage" in stdout + stderr


def test_a_plan_for_no_workers_is_refused(tmp_path):
    store = str(tmp_path / "g.zarr")
    mgspmv.api.generate("rmat", store, scale=6)
    _, stderr = invoke("plan", store, "--workers", "0", code=2)
    assert "workers must be at least 1, not 0" in stderr
