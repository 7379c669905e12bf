"""`mgspmv bench scaling`: workers of this machine, timed and compared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import mgspmv as mg
from benchmarks import scaling
from benchmarks.cugraph_workers import CugraphRun
from benchmarks.scaling import SKIPPED, Record, run_scaling
from mgspmv.errors import MgspmvError, OptionError
from tests.support.commands import invoke

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


@pytest.mark.slow
def test_a_run_on_one_worker_and_on_two(graph):
    records = run_scaling(graph, [1, 2], "cpu", ["float32", "exact"], SKIPPED + 3, lambda _: None)
    assert [(r.n_workers, r.precision) for r in records] == [(1, "exact"), (1, "float32"), (2, "exact"), (2, "float32")]
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


@pytest.mark.slow
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


class Cluster:
    """Nobody's workers."""

    def __enter__(self) -> str:
        return "tcp://10.0.0.1:8786"

    def __exit__(self, *_) -> None:
        pass


def test_ranks_of_cugraph_are_checked(graph, monkeypatch):
    for factor, problem in (
        (1 + 9e-5, None),
        (1 + 2e-4, "its ranks differ by 0.0002"),
        (np.nan, "its ranks differ by nan"),
    ):
        ranks = np.full(4, 0.25)
        monkeypatch.setattr(scaling, "start_workers", lambda *_: Cluster())
        monkeypatch.setattr("distributed.Client", lambda _: Cluster())
        found = CugraphRun(0.012, ranks * factor)
        monkeypatch.setattr(scaling, "run_cugraph", lambda *_, found=found: found)
        single = replace(RECORD, precision="float32")
        record = scaling._add_peer(single, graph, ranks, lambda _: None)
        assert (record.peer_s, record.peer_problem) == ((0.012, None) if problem is None else (None, problem))


def test_usage(graph):
    for options, message in (
        (["--workers", "0,1"], "--workers must be numbers of at least 1, such as 1,2,4, not '0,1'"),
        (["--workers", "two"], "--workers must be numbers of at least 1, such as 1,2,4, not 'two'"),
        (["--transport", "direct"], "--transport must be one of 'auto', 'nccl', 'peer', not 'direct'"),
        (["--precision", "float64"], "--precision must be one of 'float32', 'exact', 'both', not 'float64'"),
    ):
        stdout, stderr = invoke("bench", "scaling", "--backend", "cpu", *options, code=2)
        assert stdout == ""
        assert message in stderr
    with pytest.raises(OptionError, match="iterations must be more than 5, which do not count, not 5"):
        run_scaling(graph, [1], "cpu", ["exact"], 5, lambda _: None)


def test_the_command_fails_where_ranks_are_wrong(graph, monkeypatch):
    monkeypatch.setattr(scaling, "run_scaling", lambda *_, **__: [replace(RECORD, is_right=False)])
    _, stderr = invoke("bench", "scaling", "--store", graph, "--backend", "cpu", code=MgspmvError.exit_code)
    assert "wrong ranks: exact on 1 workers; see the tables" in stderr
