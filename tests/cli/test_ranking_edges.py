"""Files of edges that are ranked without a store."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.commands import SOURCES, invoke, invoke_json

REPORT = "read: edges.txt, edge-list, 5 rows; source: column 1; target: column 2; weight: none"


@pytest.mark.parametrize("command", ["pagerank", "hits", "katz", "eigenvector", "pagerank-batch"])
def test_edges_are_ranked_as_their_store(command):
    invoke("ingest", "edges.txt", "g.zarr", "--transpose")
    stored = invoke(command, "g.zarr", "-o", "-")[0]
    ranks, stderr = invoke(command, "edges.txt", "-o", "-")
    assert ranks == stored
    assert stderr.startswith(REPORT)
    assert invoke(command, "edges.txt", "-q", "-o", "-") == (stored, "")
    assert sorted(str(path) for path in Path().iterdir()) == ["a.mtx", "edges.txt", "g.zarr"]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["pagerank", "katz", "eigenvector", "pagerank-batch"])
def test_workers_read_edges(command, cluster, client):
    """A cluster makes no store, and gives the ranks of one process."""
    on_cluster = ("--scheduler", cluster.scheduler_address)
    ranks, stderr = invoke(command, "edges.txt", *on_cluster, "-o", "-")
    assert "edges.txt, edge-list, 5 rows; source: column 1; target: column 2; weight: none" in stderr
    assert invoke(command, "edges.txt", "-q", "-o", "-")[0] == ranks
    if command == "pagerank":
        personal = ("--personalization", "id:2=1")
        assert invoke_json(command, "edges.txt", *on_cluster)["seconds"]["read"] > 0
        found, wanted = (invoke(command, "edges.txt", *place, *personal, "-o", "-")[0] for place in (on_cluster, ()))
        assert found == wanted != ranks
        _, stderr = invoke(command, "none.csv", *on_cluster, code=3)
        assert stderr.endswith("error: none.csv: there is no such file; check the path\n")
    assert sorted(str(path) for path in Path().iterdir()) == ["a.mtx", "edges.txt"]


def test_other_formats():
    pairs = [map(int, line.split()) for line in SOURCES["edges.txt"].splitlines()[1:]]
    source, target = zip(*pairs, strict=True)
    pq.write_table(pa.table({"src": source, "dst": target}), "edges.parquet")
    ranks = invoke("pagerank", "edges.txt", "-o", "-")[0]
    assert invoke("pagerank", "edges.parquet", "-o", "-")[0] == ranks
    Path("g.mtx").write_text("%%MatrixMarket matrix coordinate pattern general\n2 2 2\n1 2\n2 1\n")
    assert [entry["rank"] for entry in invoke_json("pagerank", "g.mtx")["top"]] == [0.5, 0.5]
    Path("chain.mtx").write_text("%%MatrixMarket matrix coordinate real general\n2 2 3\n1 1 0.5\n2 1 0.5\n1 2 1\n")
    assert invoke_json("stationary", "chain.mtx")["top"][0]["rank"] == pytest.approx(2 / 3, abs=1e-6)
    assert invoke("pagerank", "edges.txt", "--reverse", "-o", "-")[0] != ranks


def test_duplicates_and_warnings_are_shown():
    Path("twice.csv").write_text("source,target\na,b\na,b\nb,a\n")
    _, stderr = invoke("pagerank", "twice.csv")
    assert "header: 1 line" in stderr
    assert "1 duplicate merged (first)" in stderr


def test_what_is_refused():
    invoke("pagerank", "edges.txt", "-o", "r.parquet", "-o", "r.zarr")
    for args, code, said in (
        (["pagerank", "none.csv"], 3, "error: none.csv: there is no such file; check the path\n"),
        (["hits", "edges.txt", "--cluster", "local"], 2, "error: edges.txt has edges, of which workers make no transp"),
        (["pagerank", "edges.txt", "--cluster", "local", "--reverse"], 2, "error: edges.txt has edges, of which"),
        (
            ["pagerank", "edges.txt", "--cluster", "local", "--checkpoint", "c.zarr"],
            2,
            "error: edges.txt has edges, wh",
        ),
        (["pagerank", "r.zarr", "--cluster", "local"], 2, "error: r.zarr has saved ranks, not a graph; name its store"),
        (["pagerank", "r.parquet"], 2, "error: r.parquet has saved ranks, not a graph; name its store, or its file"),
        (["pagerank", "r.zarr"], 2, "error: r.zarr has saved ranks, not a graph; name its store, or its file of edges"),
        (["katz", "a.mtx"], 3, "error: "),
    ):
        _, stderr = invoke(*args, code=code)
        assert stderr.splitlines(keepends=True)[-1].startswith(said)
    Path("four.txt").write_text("1 2 3 4\n")
    note, error = invoke("pagerank", "four.txt", code=3)[1].splitlines()
    assert note == "note: `mgspmv ingest` has options on how edges are read, and its STORE can be ranked"
    assert error.startswith("error: four.txt, line 1: '1 2 3 4': expected columns of sources")
