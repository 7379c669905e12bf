"""Whole ways from edges to ranks in one process: of this program, and of a script around a stand-in of cuGraph."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import edges_to_ranks_gpu, ranked_edges
from benchmarks.edges_to_ranks import Reference
from benchmarks.edges_to_ranks_gpu import check_all, time_way
from benchmarks.machines import Host
from benchmarks.ranked_edges import CUGRAPH, CugraphScript, Edges
from mgspmv.kernels.device import has_device

SMALL = ("--edges", "20000", "--scale", "12", "--repeats", "1")


@pytest.fixture
def edges(tmp_path) -> Edges:
    return Edges(Host(), tmp_path, 8, 2000)


class StandIn:
    """What the script calls of pylibcugraph 26.10, with its signatures, on the host."""

    ResourceHandle = SimpleNamespace
    GraphProperties = SimpleNamespace

    @staticmethod
    def SGGraph(
        resource_handle, graph_properties, src, dst, weight_array=None, store_transposed=False, renumber=False,
        do_expensive_check=False, *, drop_multi_edges=False,
    ):  # fmt: skip
        assert weight_array is None
        assert store_transposed
        assert renumber
        assert drop_multi_edges
        assert src.dtype == dst.dtype == np.int32
        return np.unique(np.stack([src, dst]), axis=1)

    @staticmethod
    def pagerank(resource_handle, graph, out_vertices, out_sums, guess_vertices, guess_values, alpha, tol, most, check):
        assert (alpha, tol, most, check) == (0.85, 1e-6, 100, False)
        ids, numbers = np.unique(graph, return_inverse=True)
        ranks = Reference.compute(*numbers.reshape(2, -1)).ranks
        return ids[::-1], ranks[::-1].astype(np.float32)


@pytest.fixture
def script(monkeypatch) -> CugraphScript:
    monkeypatch.setattr(ranked_edges, "load_cugraph", lambda: StandIn)
    monkeypatch.setattr(ranked_edges, "MemoryPool", lambda: SimpleNamespace(close=lambda: None))
    return CugraphScript(Host())


def test_ranks_are_checked_and_timed(tmp_path, capsys):
    files = ("--json", "found.json", "--markdown", "table.md")
    assert edges_to_ranks_gpu.main([*SMALL, "--text", *files]) == 0
    told = capsys.readouterr()
    if not has_device():
        assert "cupy: left out" in told.err
        assert "cuGraph:  left out" in told.out
    rows = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert {row["way"] for row in rows} >= {"parquet", "store", "text", "numpy"}
    for row in rows:
        assert row["error_l1"] < ranked_edges.PERMITTED_L1
        [run] = row["runs"]
        assert run["elapsed_s"] == pytest.approx(sum(run["stages"].values()))
        assert ("save" in run["stages"]) == (row["way"] not in ("numpy", "cupy") and row["program"] != CUGRAPH)
    assert len({row["digest"] for row in rows if row["program"] == "exact"}) == 1
    assert "### Text to Parquet" in (tmp_path / "table.md").read_text()


def test_wrong_ranks_are_found_and_not_timed(monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.rank_checks.ALPHA", 0.84)
    assert edges_to_ranks_gpu.main([*SMALL, "--only", "numpy"]) == 1
    told = capsys.readouterr().out
    assert "WRONG RANKS" in told
    assert "product" not in told


def test_another_digest_is_found(edges, monkeypatch):
    ranks_of = edges_to_ranks_gpu.run_ours

    def run_ours(edges, way, precision):
        run, solution = ranks_of(edges, way, precision)
        return run, replace(solution, values=solution.values * (1 + 1e-15 * (way == "numpy")))

    monkeypatch.setattr(edges_to_ranks_gpu, "run_ours", run_ours)
    remarks = {(row.way, row.program): row.remark for row in check_all(edges, ["parquet", "numpy"], None)}
    assert remarks.pop(("numpy", "exact")) == "OTHER DIGEST"
    assert not any(remarks.values())


def test_cugraphs_script_goes_all_ways(edges, script):
    ways = ("parquet", "store", "text", "numpy")
    checked = check_all(edges, ways, script)
    assert not any(row.remark for row in checked)
    for way in ways:
        rows = time_way(edges, way, [row for row in checked if row.way == way], script, 1)
        ratios = {row.program: row.ratio for row in rows}
        assert ratios.keys() == {"float32", "exact", CUGRAPH}
        assert ratios.pop(CUGRAPH) is None
        assert min(ratios.values()) > 0
        stages = ["read", "upload", "build", "iterate", "download", "write", "other"]
        assert list(rows[-1].runs[0].stages) == [
            own for own in stages if way != "numpy" or own not in ("read", "write")
        ]
    script.close()


def test_ids_of_the_script_are_checked(edges, script):
    edges.find_source("parquet")
    _, ids, ranks = script.run(edges, "numpy")
    assert edges.check("numpy", CUGRAPH, ids + 1, ranks).remark == "WRONG IDS"
    assert edges.check("numpy", CUGRAPH, ids, ranks[::-1]).remark == "WRONG RANKS"


@pytest.mark.gpu
def test_on_a_device():
    assert edges_to_ranks_gpu.main([*SMALL, "--text"]) == 0
