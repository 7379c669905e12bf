"""PageRank steps of several devices, played by one: the bits that one device makes."""

from __future__ import annotations

from itertools import cycle, islice
from threading import Timer
from typing import Any

import numpy as np
import pytest

from mgspmv.kernels.rank_steps import KEPT_SUMS, RankRules
from mgspmv.partition import SLICE_SUMS, SLICE_UNIT, Slices
from mgspmv.plan import Streaming
from tests.kernels.test_rank_steps import (
    MANY,
    UNSTOPPED,
    VALUES,
    check_bits,
    check_close,
    make_graph,
    make_steps,
    make_vectors,
    run_beside,
)
from tests.support.blocks import read_to_device
from tests.support.matrices import naming
from tests.support.played import PlayedDevice
from tests.support.shares import Shares, cut_evenly

BLOCKS, ORDERED, SLICES = (
    {"layout": "column-sorted-blocks", "order": "degree"},
    {"layout": "column-sorted-blocks", "order": "none"},
    {"layout": "sell-slices"},
)
ENTRIES = {"layout": "coo"}
MIXTURES = {
    "blocks by degree": [BLOCKS],
    "blocks in order": [ORDERED],
    "slices": [SLICES],
    "coo": [ENTRIES],
    "all kinds": [BLOCKS, SLICES, ENTRIES, ORDERED],
    "in pieces": [{**kind, "piece_entries": 700} for kind in (BLOCKS, SLICES, ENTRIES)],
}
PIECE = 4000
COMES_BY = [{**kind, "piece_entries": PIECE} for kind in (BLOCKS, ORDERED, SLICES, ENTRIES)]
MIXTURES |= {
    "from the host": [{**kind, "streaming": Streaming("host", PIECE, 0, 0, 0)} for kind in COMES_BY],
    "from the store": [{**kind, "streaming": Streaming("store", PIECE, 0, 0, 0)} for kind in COMES_BY],
    "some of each": [
        BLOCKS,
        {**COMES_BY[0], "streaming": Streaming("host", PIECE, 30_000, 0, 0)},
        {**COMES_BY[1], "streaming": Streaming("store", PIECE, 30_000, 0, 0)},
    ],
}
BY_MIXTURE = pytest.mark.parametrize("mixture", MIXTURES)
DIRECTLY = pytest.mark.parametrize("mixture", ["blocks by degree", "coo", "all kinds", "in pieces"])
"""Shares of one device that wait for each other there must not wait for the host, as where pieces come by."""


def make_shares(block, n, mixture, precision, *, is_direct=False) -> Shares:
    options = list(islice(cycle(MIXTURES[mixture]), n))
    bounds, read = cut_evenly(block.n_rows, n), read_to_device(block)
    return Shares(block, bounds, read, precision, options, is_direct=is_direct)


@pytest.mark.parametrize(
    ("counts", "tails", "starts"),
    [
        ((8,), (8,), (0, 16)),
        ((0, 1, 4, 5), (4, 4, 4, 8), (0, 12, 24, 36, 52)),
    ],
)
def test_slices(counts, tails, starts):
    assert (SLICE_UNIT, SLICE_SUMS) == (4, 8)
    slices = Slices(counts)
    assert (slices.tails, slices.starts) == (tails, starts)


@pytest.mark.gpu
@VALUES
@BY_MIXTURE
def test_exact_steps_have_the_bits_of_the_cpu(mixture, is_pattern):
    for name in MANY:
        with naming(name):
            check_exact_steps(name, mixture, is_pattern)


def check_exact_steps(name, mixture, is_pattern) -> None:
    block, weight = make_graph(name, is_pattern=is_pattern)
    for n, kind in ((1, "uniform"), (2, "all"), (5, "dangling")):
        steps, played = make_shares(block, n, mixture, "exact"), PlayedDevice(block)
        vectors = make_vectors(block.n_rows, weight, kind=kind)
        check_bits(steps, played, run_beside(steps, played, vectors, UNSTOPPED))
        mass = 0.25
        assert steps.residual(mass) == pytest.approx(played.residual(mass), rel=1e-6, abs=1e-15)


@pytest.mark.gpu
@VALUES
def test_shares_with_bands_have_the_bits_of_the_cpu(is_pattern):
    """The places of their rows begin anywhere."""
    block, weight = make_graph("ring with shortcuts", is_pattern=is_pattern)
    vectors = make_vectors(block.n_rows, weight, kind="all")
    for n in (1, 3):
        steps, played = make_shares(block, n, "blocks in order", "exact"), PlayedDevice(block)
        check_bits(steps, played, run_beside(steps, played, vectors, UNSTOPPED))
        bands = [layout.feed.kept[0].band for layout in steps.layouts]
        assert [band.first_place for band in bands] == list(steps.slices.starts[:-1])
        assert sum(band.nnz for band in bands) > 0.8 * block.nnz


@pytest.mark.gpu
@VALUES
@DIRECTLY
def test_shares_that_write_into_the_memory_of_all(mixture, is_pattern):
    for name in MANY:
        with naming(name):
            check_direct_steps(name, mixture, is_pattern)


def check_direct_steps(name, mixture, is_pattern) -> None:
    block, weight = make_graph(name, is_pattern=is_pattern)
    for n, kind in ((2, "all"), (3, "dangling")):
        steps, played = make_shares(block, n, mixture, "exact", is_direct=True), PlayedDevice(block)
        vectors = make_vectors(block.n_rows, weight, kind=kind)
        check_bits(steps, played, run_beside(steps, played, vectors, UNSTOPPED))
        assert all(s.writes_there for s in steps.steps)
        assert steps.residual(0.25) == pytest.approx(played.residual(0.25), rel=1e-6, abs=1e-15)


@pytest.mark.gpu
def test_shares_that_write_stop_together_and_run_again():
    block, weight = make_graph("skewed rows", is_pattern=True)
    vectors, rules = make_vectors(block.n_rows, weight), RankRules(0.85, 1e-9, False)
    steps, played = make_shares(block, 3, "all kinds", "exact", is_direct=True), PlayedDevice(block)
    for _ in range(2):
        sums = run_beside(steps, played, vectors, rules, 200)
        assert 5 < len(sums[0]) < 100
        check_bits(steps, played, sums)
        assert steps.advance(3) == []
    n = KEPT_SUMS + 61
    check_bits(steps, played, run_beside(steps, played, vectors, UNSTOPPED, n))
    assert all(len(s.seconds) == n for s in steps.steps)


@pytest.mark.gpu
def test_a_share_that_nobody_meets_ends_when_it_is_given_up():
    block, weight = make_graph("skewed rows", is_pattern=True)
    steps = make_shares(block, 2, "blocks by degree", "exact", is_direct=True)
    steps.start(make_vectors(block.n_rows, weight), UNSTOPPED)
    left = steps.steps[0]
    shared: Any = left._shared
    giving_up = Timer(0.5, lambda: shared.given_up.fill(1))
    giving_up.start()
    assert left.advance(4) == []
    giving_up.join()


@pytest.mark.gpu
@VALUES
@pytest.mark.parametrize("layout", ["blocks by degree", "slices", "coo"])
def test_float32_ranks_do_not_depend_on_the_number_of_devices(layout, is_pattern):
    for name in MANY:
        with naming(name):
            check_float32_ranks(name, layout, is_pattern)


def check_float32_ranks(name, layout, is_pattern) -> None:
    block, weight = make_graph(name, is_pattern=is_pattern, dtype=np.float32)
    vectors = make_vectors(block.n_rows, weight, kind="all", dtype=np.float32)
    one, played = make_steps(layout, block, "float32"), PlayedDevice(block, "float32")
    sums = run_beside(one, played, vectors, UNSTOPPED)
    check_close(one, played, sums)
    for n in (2, 3):
        steps = make_shares(block, n, layout, "float32")
        assert [steps.start(vectors, UNSTOPPED), *steps.advance(12)] == sums[0]
        assert steps.ranks().tobytes() == one.ranks().tobytes()


@pytest.mark.gpu
@BY_MIXTURE
def test_all_stop_at_the_same_step(mixture):
    block, weight = make_graph("skewed rows", is_pattern=True)
    vectors = make_vectors(block.n_rows, weight)
    steps, played = make_shares(block, 3, mixture, "exact"), PlayedDevice(block)
    for by_largest in (False, True):
        sums = run_beside(steps, played, vectors, RankRules(0.85, 1e-9, by_largest), 200)
        with naming(by_largest):
            assert 5 < len(sums[0]) < 100
            check_bits(steps, played, sums)
            assert steps.advance(3) == []
            assert all(len(s.seconds) == 0 for s in steps.steps)


@pytest.mark.gpu
@BY_MIXTURE
def test_portions_and_a_second_run(mixture):
    block, weight = make_graph("skewed rows", is_pattern=True)
    vectors = make_vectors(block.n_rows, weight)
    steps, played = make_shares(block, 2, mixture, "exact"), PlayedDevice(block)
    comes_by = any("streaming" in own for own in MIXTURES[mixture])
    n = 40 if comes_by else KEPT_SUMS + 61  # where pieces are made anew a step takes its time
    wanted = run_beside(steps, played, vectors, UNSTOPPED, n)
    check_bits(steps, played, wanted)
    assert all(len(s.seconds) == n and min(min(pair) for pair in s.seconds) > 0 for s in steps.steps)
    sums = [steps.start(vectors, UNSTOPPED)]
    for portion in (1, 2, 4, 0, n // 2, n - 7 - n // 2):
        sums += steps.advance(portion)
    assert sums == wanted[0]


@pytest.mark.gpu
@pytest.mark.parametrize(("begin", "wanted"), [(np.nan, 1), (np.inf, 1), (-1.0, 1), (3.0, 1)])
def test_ranks_that_are_not_finite_stop_all(begin, wanted):
    block, weight = make_graph("skewed rows", is_pattern=True)
    vectors = make_vectors(block.n_rows, weight, kind="all")
    vectors.x[5000] = begin
    steps = make_shares(block, 3, "all kinds", "exact")
    assert steps.start(vectors, UNSTOPPED).n_wrong == wanted
    assert len(steps.advance(10)) == 1
