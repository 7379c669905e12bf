"""Personalized runs start where jumps lead: what no path leads to has rank 0, and is in no list of the highest."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pyarrow.parquet as pq
import pytest
from zarr.storage import MemoryStore

import mgspmv as mg

PRECISIONS = ["exact", "float64", "float32"]
REACHED = ["a", "b", "c"]
"""A cycle with a sink; everything else is a ring that leads into it and that it never leads to."""


def make_edges(n_strangers=400):
    ring = [(f"s{k}", f"s{(k + 1) % n_strangers}") for k in range(n_strangers)]
    return [("a", "b"), ("b", "a"), ("b", "c"), ("s0", "a"), *ring]


@pytest.fixture(scope="module", params=["none", "degree"])
def graph(request, tmp_path_factory):
    """The graph by names, stored in its own order and in another one."""
    folder = tmp_path_factory.mktemp("graph")
    lines = "".join(f"{a} {b}\n" for a, b in make_edges())
    (folder / "g.txt").write_text(lines, encoding="utf-8")
    return mg.ingest(folder / "g.txt", folder / "g.zarr", order=request.param)


def check_reached(solution):
    assert {name for name, _ in solution.top(100)} == set(REACHED)
    strangers = ~np.isin(solution.ids.astype(str), REACHED)
    assert not solution.values[strangers].any()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dangling", [None, "drop"])
def test_strangers_have_rank_0(graph, precision, dangling):
    solution = mg.pagerank(graph, personalization={"a": 1}, precision=precision, dangling=dangling)
    check_reached(solution)
    given = mg.pagerank(graph, personalization={"a": 1}, nstart={"a": 1}, precision=precision)
    assert dangling == "drop" or given.digest() == solution.digest()


def test_ranks_are_those_of_networkx(graph):
    solution = mg.pagerank(graph, personalization={"a": 1, "c": 3}, tol=1e-12, max_iter=1000)
    wanted = nx.pagerank(nx.DiGraph(make_edges()), personalization={"a": 1, "c": 3}, tol=1e-16, max_iter=1000)
    found = dict(zip(solution.ids.tolist(), solution.values.tolist(), strict=True))
    assert found == pytest.approx(wanted, abs=1e-11)


def test_a_given_start_and_a_uniform_rule_reach_strangers(graph):
    assert mg.pagerank(graph, personalization={"a": 1}, nstart=np.ones(graph.shape[0])).values.all()
    assert len(mg.pagerank(graph, personalization={"a": 1}, dangling="uniform").top(500)) == graph.shape[0]
    assert len(mg.pagerank(graph).top(500)) == graph.shape[0]


SEEDS = {"near": ["a"], "in": {"c": 1.0}, "all": None}


def test_lists_of_a_batch_end_with_rank_0(graph, tmp_path, in_process):
    batch = mg.pagerank_batch(graph, SEEDS, keep_top=8)
    assert {label: len(own) for label, own in batch.top().items()} == {"near": 3, "in": 1, "all": 8}
    assert batch.top_ids.shape == batch.top_ranks.shape == (3, 8)
    assert batch.top_ids[0, 3:].tolist() == [""] * 5
    assert batch.top_ranks[0, 3:].tolist() == [0.0] * 5
    for suffix in ("zarr", "parquet"):
        batch.save(tmp_path / f"b.{suffix}")
        assert mg.load_batch(tmp_path / f"b.{suffix}").digest() == batch.digest()
    assert pq.read_table(tmp_path / "b.parquet").num_rows == 3 + 1 + 8
    assert mg.pagerank_batch(graph.on(in_process(3)), SEEDS, keep_top=8).digest() == batch.digest()


DIGESTS = {
    (None, None): "4ac2dc34c7d4",
    (None, "uniform"): "4ac2dc34c7d4",
    (None, "drop"): "3e65aecc99ee",
    ("some", None): "35ae14f35d77",
    ("some", "uniform"): "4f587245c069",
    ("some", "drop"): "1b21508e8602",
}


@pytest.mark.parametrize(("jumps", "dangling"), DIGESTS)
def test_digests_stay(jumps, dangling):
    ends = np.random.default_rng(5).integers(0, 500, (2, 3000))
    mg.ingest((ends[0], ends[1]), place := MemoryStore())
    personalization = None if jumps is None else {3: 1, 7: 2}
    solution = mg.pagerank(mg.open_matrix(place), personalization=personalization, dangling=dangling)
    assert solution.digest().startswith(DIGESTS[jumps, dangling])
