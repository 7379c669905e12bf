"""`mgspmv bench scaling`: workers of this machine, timed and compared."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import mgspmv as mg
from mgspmv.bench import scaling
from mgspmv.bench.cugraph_workers import CugraphRun
from mgspmv.bench.scaling import LEGEND, SKIPPED, Record, format_report, run_scaling, to_json
from mgspmv.errors import BackendError, MgspmvError, OptionError
from mgspmv.model import Event
from tests.support.commands import invoke
from tests.support.waiting import wait_for

RECORD = Record(
    n_workers=1, precision="exact", hardware="1 workers of 2 threads", transport="peer", load_s=1.5, few_s=0.25,
    write_s=0.125, peak_bytes=None, permitted_bytes=None, predicted_s=None, iteration_s=0.008, product_s=0.0075,
    exchange_s=0.0005, edges=16_000_000, received_bytes=0, memory_bytes=2_000_000_000, digest="aa", difference=None,
    is_right=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("graph") / "rmat.zarr"
    mg.generate("rmat", path, scale=10)
    return str(path)


def test_a_run_on_one_worker_and_on_two(graph):
    said = []
    records = run_scaling(graph, [1, 2], "cpu", ["float32", "exact"], SKIPPED + 3, said.append)
    assert [(r.n_workers, r.precision) for r in records] == [(1, "exact"), (1, "float32"), (2, "exact"), (2, "float32")]
    assert [line.split(":")[0] for line in said] == [
        "1 workers",
        "  exact",
        "  float32",
        "2 workers",
        "  exact",
        "  float32",
    ]
    one, one_single, two, two_single = records
    assert one.digest == two.digest
    assert one.difference is two.difference is None
    for single in (one_single, two_single):
        assert 0 < single.difference < 1e-5
    for r in records:
        assert r.is_right
        assert r.edges == mg.open_matrix(graph).nnz
        assert min(r.load_s, r.few_s, r.write_s, r.iteration_s, r.product_s) > 0
        assert r.product_s <= r.iteration_s
        assert (r.received_bytes > 0) == (r.n_workers > 1)
        assert r.peak_bytes is None
        assert "workers of" in r.hardware


def test_wrong_ranks_are_seen(graph, monkeypatch):
    values = iter([np.full(4, 0.25), np.full(4, 0.25), np.full(4, 0.25) + 1e-16, np.array([0.25, 0.25, 0.25, 0.2501])])
    pagerank = scaling.api.pagerank

    def lie(matrix, *, max_iter, **options):
        solution = pagerank(matrix, max_iter=max_iter, **options)
        return solution if max_iter == scaling.FEW else replace(solution, values=next(values))

    monkeypatch.setattr(scaling.api, "pagerank", lie)
    records = run_scaling(graph, [1, 2], "cpu", ["exact", "float32"], 7, lambda _: None)
    assert [r.is_right for r in records] == [True, True, False, False]
    assert records[3].difference == pytest.approx(4e-4, rel=1e-6)


@pytest.mark.weekly
def test_single_ranks_alone_are_compared_with_the_first_ones(graph, monkeypatch):
    values = iter([np.full(4, 0.25), np.full(4, 0.25) * (1 + 1e-6), np.array([0.25, 0.25, 0.25, np.nan])])
    pagerank = scaling.api.pagerank

    def lie(matrix, *, max_iter, **options):
        solution = pagerank(matrix, max_iter=max_iter, **options)
        return solution if max_iter == scaling.FEW else replace(solution, values=next(values))

    monkeypatch.setattr(scaling.api, "pagerank", lie)
    first, near, wrong = run_scaling(graph, [1, 2, 3], "cpu", ["float32"], 7, lambda _: None)
    assert (first.difference, near.difference) == (None, pytest.approx(1e-6, rel=1e-3))
    assert [r.is_right for r in (first, near, wrong)] == [True, True, False]
    rows = [line for line in format_report({}, [first, near]).splitlines() if line.startswith("| ")]
    assert [row.split("|")[-2].strip() for row in rows[1:]] == ["-", "1e-06"]


class Cluster:
    """Nobody's workers."""

    def __enter__(self) -> str:
        return "tcp://10.0.0.1:8786"

    def __exit__(self, *_) -> None:
        pass


@pytest.mark.parametrize(
    ("factor", "problem"),
    [(1 + 9e-5, None), (1 + 2e-4, "its ranks differ by 0.0002"), (np.nan, "its ranks differ by nan")],
)
def test_cugraphs_ranks_must_be_those(graph, monkeypatch, factor, problem):
    ranks = np.full(4, 0.25)
    monkeypatch.setattr(scaling, "start_workers", lambda *_: Cluster())
    monkeypatch.setattr("distributed.Client", lambda _: Cluster())
    found = CugraphRun(0.012, ranks * factor)
    monkeypatch.setattr(scaling, "run_cugraph", lambda client, n, stored, k: found)
    single = replace(RECORD, precision="float32")
    record = scaling._add_peer(single, graph, ranks, lambda _: None)
    assert (record.peer_s, record.peer_problem) == ((0.012, None) if problem is None else (None, problem))
    report = format_report({}, [record, replace(single, n_workers=2, peer_s=0.016, difference=0.0)])
    assert "| cuGraph ms | cuGraph / ours |" in report
    assert report.count("| 12 | 1.5 |") == (problem is None)
    assert "| 16 | 2 |" in report
    assert ("cuGraph on 1 workers: its ranks differ by" in report) == (problem is not None)


def test_a_cugraph_that_fails_leaves_the_rest(graph, monkeypatch):
    def fail(*_):
        raise BackendError("cuGraph on 1 workers: no answer within 300 s")

    monkeypatch.setattr(scaling, "start_workers", lambda *_: Cluster())
    monkeypatch.setattr("distributed.Client", lambda _: Cluster())
    monkeypatch.setattr(scaling, "run_cugraph", fail)
    record = scaling._add_peer(RECORD, graph, np.full(4, 0.25), lambda _: None)
    assert record == replace(RECORD, peer_problem="cuGraph on 1 workers: no answer within 300 s")


def test_the_most_that_devices_had_taken_counts(monkeypatch):
    """Of each beyond what was taken before there were workers."""
    used, n_looks = [100, 2000], [0]

    def get_memory(handle):
        n_looks[0] += 1
        return SimpleNamespace(used=used[handle])

    played = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda k: k,
        nvmlDeviceGetMemoryInfo=get_memory,
    )
    monkeypatch.setitem(sys.modules, "pynvml", played)
    monkeypatch.setattr(scaling, "LOOK_S", 0.001)
    assert scaling.look_at_devices("cuda") == [100, 2000]
    with scaling.watch_memory("cuda", [50, 2000]) as watch:
        for used[:] in ([400, 2000], [100, 2900], [100, 2000]):
            seen = n_looks[0]
            assert wait_for(lambda seen=seen: n_looks[0] >= seen + 4)
        assert watch.stop() == 900
    with scaling.watch_memory("cpu") as watch:
        assert watch.stop() is None


def test_too_few_iterations_are_refused(graph):
    with pytest.raises(OptionError, match="iterations must be more than 5, which do not count, not 5"):
        run_scaling(graph, [1], "cpu", ["exact"], 5, lambda _: None)


def test_parts_of_an_iteration():
    event = Event("r", 0, 1, 0.1, (3.0, 4.0), (1.0, 1.0), (1.25, 0.0), (5, 6), (7, 8))
    assert scaling._split(event) == (5.25, 4.0, 1.25)


def test_report():
    two = replace(RECORD, n_workers=2, iteration_s=0.005, product_s=0.004, exchange_s=0.001, received_bytes=3_000_000)
    two = replace(two, peak_bytes=4_000_000_000, permitted_bytes=4_100_000_000, predicted_s=0.0045, is_right=False)
    single = replace(RECORD, precision="float32", difference=1.25e-7)
    lines = format_report({"command": "mgspmv bench scaling"}, [RECORD, two, single]).splitlines()
    assert lines[:3] == ["```", "command:  mgspmv bench scaling", "```"]
    rows = [line for line in lines if line.startswith("| ")]
    assert rows[0].startswith(
        "| workers | slices | iteration ms | product ms | exchange ms | predicted ms | G edges/s a "
    )
    assert rows[1] == "| 1 | - | 8 | 7.5 | 0.5 | - | 2 | 100% | 0 | 2 | - | - | 1.5 | 0.25 | 0.125 | 1.88 | yes |"
    assert rows[2] == "| 2 | peer | 5 | 4 | 1 | 4.5 | 1.6 | 80% | 3 | 2 | 4 | 4.1 | 1.5 | 0.25 | 0.125 | 1.88 | NO |"
    assert rows[4].endswith("| 1.2e-07 |")
    assert [line for line in lines if line.startswith("- ")] == [f"- {line}" for line in LEGEND]
    assert to_json({"a": "b"}, [single])["records"][0]["difference"] == 1.25e-7


@pytest.mark.slow
def test_the_command(graph, tmp_path):
    found = tmp_path / "found.json"
    options = ["--workers", "2,1,1", "--precision", "exact", "--iterations", "8", "--backend", "cpu"]
    stdout, _ = invoke("bench", "scaling", "--store", graph, *options, "--output", str(found))
    assert "### exact" in stdout
    assert "### float32" not in stdout
    assert [r["n_workers"] for r in json.loads(found.read_text())["records"]] == [1, 2]
    stdout, _ = invoke("bench", "scaling", "--scale", "8", "--edge-factor", "4", *options)
    assert "graph:    R-MAT, scale 8, 4 edges a vertex, those that come again kept; " in stdout
    assert "size:     256 vertices, 1,024 edges, digest " in stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workers", "0,1"], "--workers must be numbers of at least 1, such as 1,2,4, not '0,1'"),
        (["--workers", "two"], "--workers must be numbers of at least 1, such as 1,2,4, not 'two'"),
        (["--transport", "direct"], "--transport must be one of 'auto', 'nccl', 'peer', not 'direct'"),
        (["--precision", "float64"], "--precision must be one of 'float32', 'exact', 'both', not 'float64'"),
    ],
)
def test_usage(options, message):
    stdout, stderr = invoke("bench", "scaling", "--backend", "cpu", *options, code=2)
    assert stdout == ""
    assert message in stderr


def test_the_command_fails_where_ranks_are_wrong(graph, monkeypatch):
    monkeypatch.setattr(scaling, "run_scaling", lambda *_, **__: [replace(RECORD, is_right=False)])
    stdout, stderr = invoke("bench", "scaling", "--store", graph, "--backend", "cpu", code=MgspmvError.exit_code)
    assert "| NO |" in stdout
    assert "wrong ranks: exact on 1 workers; see the tables" in stderr
