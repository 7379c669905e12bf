"""Commands about stores that are there."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import scipy.io
import scipy.sparse

import mgspmv
import mgspmv.partition
from tests.support.commands import EDGES, TINY_RMAT, invoke, invoke_json


def test_reorder(folder):
    source = scipy.sparse.coo_array(([1.0, 2, 3, 4], ([0, 5, 2, 3], [5, 2, 3, 1])), shape=(6, 6))
    scipy.io.mmwrite("path.mtx", source)
    before = invoke_json("ingest", "path.mtx", "p.zarr")["store"]
    answer = invoke_json("reorder", "p.zarr", "q.zarr", "--memory", "4GiB", "--threads", "2", "--scratch", ".")
    assert answer["seconds"] > 0
    assert (answer["store"]["order"], before["order"]) == ("rcm", None)
    made = answer["store"]["provenance"]["reordering"]
    assert (made["bandwidth_before"], made["bandwidth_after"]) == (5, 1)
    assert "order           rcm, bandwidth 1, was 5\n" in invoke("info", "q.zarr")[0]
    assert "order           that of the source\n" in invoke("info", "p.zarr")[0]
    assert invoke("verify", "q.zarr")[0] == "q.zarr is valid\n"
    np.save("x.npy", np.arange(6.0))
    invoke("spmv", "q.zarr", "x.npy", "-o", "y.npy")
    assert np.load("y.npy").tolist() == (source @ np.arange(6.0)).tolist()


def test_transpose():
    before = invoke_json("ingest", "edges.txt", "t.zarr")["store"]
    assert "add it with `mgspmv transpose`" in invoke("hits", "t.zarr", code=2)[1]
    answer = invoke_json("transpose", "t.zarr")
    assert (answer["changed"], answer["store"]["has_transpose"]) == (True, True)
    assert answer["store"]["digest"] == before["digest"]
    invoke("hits", "t.zarr", "--max-iter", "1000")
    again = invoke_json("transpose", "t.zarr", "--memory", "64GiB", "--threads", "1", "--scratch", ".")
    assert (again["changed"], again["store"]) == (False, answer["store"])
    said = f"t.zarr: the transpose is stored already; version {answer['store']['version']} stays\n"
    assert invoke("transpose", "t.zarr", "--keep", "1") == (said, "")
    assert len(invoke_json("versions", "t.zarr")["versions"]) == 1
    invoke("ingest", "edges.txt", "u.zarr")
    assert invoke("transpose", "u.zarr")[0].startswith("u.zarr: graph, ")
    assert invoke("transpose", "none.zarr", code=4)[1].startswith("error: there is no matrix store at ")


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
    assert "g.zarr is a pattern, which has no weights; leave --min-weight out" in stderr
    Path("ids.txt").write_text("3\n8\n")
    _, stderr = invoke("subgraph", "g.zarr", "i.zarr", "--vertices", "ids.txt", code=2)
    assert "vertices has the id 8, which no vertex has; near: 5" in stderr


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
    assert answer["digest"] == mgspmv.ingest(graph, "w.zarr").info.digest
    mask = nx.to_scipy_sparse_array(nx.DiGraph(EDGES), nodelist=sorted(graph), format="coo")
    scipy.sparse.save_npz("mask.npz", mask)
    answer = invoke_json("subgraph", "g.zarr", "j.zarr", "--edges", "mask.npz")["store"]
    assert answer["digest"] == invoke_json("info", "g.zarr")["digest"]
    Path("some.txt").write_text("1 2\n1 9\n")
    _, stderr = invoke("subgraph", "g.zarr", "k.zarr", "--edges", "some.txt", code=2)
    assert "edges has the id 9, which no vertex has; near: 5" in stderr
    Path("some.txt").write_text("5 3\n")
    _, stderr = invoke("subgraph", "g.zarr", "k.zarr", "--edges", "some.txt", "--symmetrize", code=2)
    assert ", which is missing from the store; remove it from --edges" in stderr
    _, stderr = invoke("subgraph", "g.zarr", "k.zarr", "--edges", "some.txt", "--without-edges", "some.txt", code=2)
    assert "pass --edges (the edges to keep) or --without-edges (the edges to remove), not both" in stderr


def test_what_reorder_refuses():
    for source, store in (("a.mtx", "wide.zarr"), ("edges.txt", "g.zarr"), ("edges.txt", "h.zarr")):
        invoke("ingest", source, store)
    for args, code, said in (
        (["g.zarr", "h.zarr"], 4, "h.zarr holds a matrix; pass --overwrite or choose another place"),
        (["wide.zarr"], 2, "must be square; wide.zarr has 2 rows and 3 columns"),
        (["g.zarr", "--method", "amd"], 2, "method must be one of 'rcm', 'degree', 'dealt', 'none', not 'amd'"),
        (["none.zarr"], 4, "there is no matrix store at none.zarr"),
        (["g.zarr", "--memory", "1MB"], 2, "memory must be at least 1GiB"),
        (["g.zarr", "--scratch", "none"], 2, "scratch must be an existing folder, not 'none'"),
    ):
        stdout, stderr = invoke("reorder", *args, code=code)
        assert stderr.startswith("error: ")
        assert said in stderr
        assert stdout == ""
    assert invoke_json("reorder", "g.zarr", "h.zarr", "--overwrite")["store"]["order"] == "rcm"


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


def test_options_of_export_are_given_on(monkeypatch):
    invoke("ingest", "a.mtx", "a.zarr")
    info, given = mgspmv.open("a.zarr").info, {}
    monkeypatch.setattr(mgspmv, "export", lambda *args, **options: given.update(options, args=args) or info)
    words = "--format npz --vertices v --memory 2GiB --threads 3 --scratch s --overwrite"
    invoke("export", "a.zarr", "b.npz", *words.split())
    wanted = {"format": "npz", "vertices": "v", "memory": "2GiB", "threads": 3, "scratch": "s", "overwrite": True}
    assert given == wanted | {"args": ("a.zarr", "b.npz")}


def test_verify(folder):
    invoke(*TINY_RMAT)
    assert invoke_json("verify", "r.zarr") == {"store": "r.zarr", "ok": True, "problems": []}
    assert invoke("verify", "r.zarr")[0] == "r.zarr is valid\n"
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
