"""The commands that stand on power iteration: what they share, what is their own, and how they end."""

from __future__ import annotations

import json
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

import mgspmv as mg
from mgspmv.results import load_solution
from tests.support.commands import invoke, invoke_json

EDGES = [(1, 2), (2, 3), (3, 1), (1, 3), (3, 5), (5, 1), (1, 5)]
COMMANDS = ["hits", "katz", "eigenvector", "stationary"]
RANKINGS = ["pagerank", "pagerank-batch"]
SURE = ["--tol", "1e-12", "--max-iter", "1000"]


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    mg.ingest(nx.DiGraph(EDGES), folder / "g.zarr", transpose=True)
    steps = np.array([[0.5, 0.5, 0.0], [0.5, 0.0, 1.0], [0.0, 0.5, 0.0]])
    mg.ingest(steps, folder / "chain.zarr", kind="stochastic")
    mg.ingest(np.array([[0, 1.0], [1.0, 0]]), folder / "periodic.zarr", kind="stochastic")
    return folder


@pytest.fixture(autouse=True)
def folder(stores, monkeypatch):
    monkeypatch.chdir(stores)
    monkeypatch.setenv("COLUMNS", "150")
    return stores


def find_by_networkx(find, **options):
    ranks = find(nx.DiGraph(EDGES), **options)
    return [ranks[k] for k in (1, 2, 3, 5)]


def test_katz():
    answer = invoke_json("katz", "g.zarr", "-o", "k.parquet", "-o", "k.csv", "--alpha", "0.2", "--top", "2", *SURE)
    saved = load_solution("k.parquet")
    np.testing.assert_allclose(saved.values, find_by_networkx(nx.katz_centrality_numpy, alpha=0.2), rtol=1e-11)
    assert saved.ids.tolist() == [1, 2, 3, 5]
    assert (answer["status"], answer["saved"]) == ("converged", ["k.parquet", "k.csv"])
    assert answer["digest"] == saved.digest()
    assert len(answer["top"]) == 2
    assert answer["error_bound_l1"] == "Infinity"
    assert invoke_json("top", "k.parquet", "-k", "2")["top"] == answer["top"]


def test_katz_with_a_file_for_each_vertex(folder):
    (folder / "beta.txt").write_text("id,weight\n1,1.0\n3,4.0\n")
    answer = invoke_json("katz", "g.zarr", "--beta", "beta.txt", "--not-normalized", *SURE)
    with mg.open_matrix("g.zarr") as A:
        wanted = mg.katz(A, beta={1: 1.0, 3: 4.0}, normalized=False, tol=1e-12, max_iter=1000)
        assert answer["digest"] == wanted.digest()
        assert answer["options"] == json.loads(json.dumps(wanted.options))
        halved = invoke_json("katz", "g.zarr", "--beta", "0.5", "--not-normalized", *SURE)
        assert halved["digest"] == mg.katz(A, beta=0.5, normalized=False, tol=1e-12, max_iter=1000).digest()


def test_hits():
    answer = invoke_json("hits", "g.zarr", "-o", "a.parquet", "--hubs", "h.parquet", *SURE)
    for name, path, place in (("hubs", "h.parquet", 0), ("authorities", "a.parquet", 1)):
        wanted = find_by_networkx(lambda G, place=place: nx.hits(G, tol=0)[place])
        np.testing.assert_allclose(load_solution(path).values, wanted, rtol=1e-9, atol=1e-12)
        assert answer[name]["saved"] == [path]
    stdout, _ = invoke("hits", "g.zarr", *SURE)
    lines = stdout.splitlines()
    assert lines.index("hubs") < lines.index("authorities")
    assert "error" not in stdout


def test_stationary():
    answer = invoke_json("stationary", "chain.zarr", *SURE)
    np.testing.assert_allclose([t["rank"] for t in answer["top"]], [0.4, 0.4, 0.2], rtol=1e-10)
    lazy = invoke_json("stationary", "periodic.zarr", "--lazy", "0.25", "--nstart", write_start(), *SURE)
    np.testing.assert_allclose([t["rank"] for t in lazy["top"]], [0.5, 0.5], rtol=1e-10)


def write_start():
    np.save("start.npy", np.array([1.0, 0.0]))
    return "start.npy"


def test_without_convergence_what_was_reached_is_written():
    options = ["--nstart", write_start(), "--max-iter", "7", "-o", "p.csv"]
    _, stderr = invoke("stationary", "periodic.zarr", *options, code=5)
    assert "stationary vector did not converge: L1 change 2 after 7 iterations" in stderr
    assert "pass --lazy 0.5" in stderr
    assert Path("p.csv").read_text() == "id,rank\n0,0\n1,1\n"
    invoke("hits", "g.zarr", "--max-iter", "1", "--hubs", "few.csv", code=5)
    assert Path("few.csv").read_text().startswith("id,rank\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_ranks_on_standard_output(command):
    store = "chain.zarr" if command == "stationary" else "g.zarr"
    stdout, stderr = invoke(command, store, "-o", "-", "-o", f"{command}.csv", *SURE)
    assert stdout == Path(f"{command}.csv").read_text()
    assert stdout.startswith("id,rank\n")
    assert f"saved             {command}.csv\n" in stderr


@pytest.mark.parametrize("command", [*COMMANDS, *RANKINGS])
def test_standard_output_is_for_one(command):
    error = invoke_json(command, "g.zarr", "-o", "-", code=2)["error"]
    assert error["message"] == "-o - and --json both write to standard output; leave one of them out"
    assert not Path("-").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_wrong_is_found_before_the_work(command, folder):
    (folder / "taken.csv").write_text("")
    for options, code, message in (
        (["-o", "ranks.txt"], 2, "the name must end in .zarr, .parquet, .csv"),
        (["-o", "taken.csv"], 4, "taken.csv exists already"),
        (["--cluster", "cloud"], 2, "--cluster must be one of local, cuda"),
        (["--tol", "-1"], 2, "tol must be a positive number"),
        (["--norm", "relative", "--tol", "1"], 2, "--tol 1 with --norm relative is met by any growing"),
        (["--precision", "exact"], 2, "precision must be one of 'float64', 'float32'"),
        (["--executor", "supersteps"], 2, "--executor supersteps needs a cluster; pass one as --cluster or"),
        (["--nstart", "none.txt"], 3, "no file 'none.txt' exists"),
    ):
        _, stderr = invoke(command, "chain.zarr" if command == "stationary" else "g.zarr", *options, code=code)
        assert message in stderr


@pytest.mark.parametrize(
    ("command", "executor"),
    [("hits", "auto"), ("hits", "tasks"), ("katz", "tasks"), ("eigenvector", "auto"), ("stationary", "auto")],
)
def test_on_a_running_cluster(command, executor, cluster, client):
    store = "chain.zarr" if command == "stationary" else "g.zarr"
    options = ["--tol", "1e-3"]
    wanted = invoke_json(command, store, *options)
    answer = invoke_json(command, store, *options, "--scheduler", cluster.scheduler_address, "--executor", executor)
    found = [(a["hubs"], a["authorities"]) if command == "hits" else (a,) for a in (wanted, answer)]
    for own, other in zip(*found, strict=True):
        if other["options"]["executor"] == "tasks":  # in supersteps the last bits depend on how many workers there are
            assert own["digest"] == other["digest"]
        ranks = [[top["rank"] for top in each["top"]] for each in (own, other)]
        np.testing.assert_allclose(*ranks, rtol=1e-12)
        assert other["options"]["executor"] == ("supersteps" if executor == "auto" else executor)
        assert len(other["memory"]["planned_bytes" if executor == "auto" else "held_bytes"]) == 4
