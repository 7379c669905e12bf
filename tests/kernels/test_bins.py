"""Bins of column-sorted blocks: what they hold and where, how filling is shared out, and when they pay."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

from mgspmv.kernels import bins, column_sorted_blocks
from mgspmv.kernels.bins import LEAST_COLUMNS, OCTET, CellRates, can_bin, cut_bin_windows, cut_windows
from mgspmv.kernels.column_sorted_blocks import build_column_sorted_blocks
from mgspmv.kernels.formats import to_host
from mgspmv.kernels.layout import LayoutBuilder
from mgspmv.kernels.rank_steps import RankRules, RankSteps, RankVectors
from tests.kernels.test_column_sorted_blocks import DTYPES, find_places, place_rows, read_back
from tests.support import played_build
from tests.support.blocks import make_random, read_pieces, read_to_device
from tests.support.emulated import ON_BOTH, needs_compiler, use
from tests.support.pairwise import cover_pairs
from tests.support.played import PlayedDevice

SKEWED = np.random.default_rng(4).zipf(1.6, 3000).clip(1, 700) - 1
ENOUGH = 1 << 40


def read_bins(made):
    """Row and column places and values of the binned entries, by the shapes that `Bins` names."""
    own = made.bins
    if own is None:
        return [np.zeros(0, np.int64)] * 2 + [np.zeros(0)]
    slots = own.places[:, None].astype(np.int64) * OCTET + np.arange(OCTET)
    blocks = np.searchsorted(own.starts, own.places, side="right") - 1
    windows = np.searchsorted(own.window_starts, np.arange(len(own.places)), side="right") - 1
    inside = own.rows[slots].astype(np.int64)
    columns = (windows[:, None] << bins.WINDOW_BITS) + own.columns.reshape(-1, OCTET)
    values = np.ones(inside.shape) if own.values is None else own.values[slots]
    held = inside < made.height
    assert (inside == made.height + slots // bins.NEIGHBORS % bins.PADDING_ROWS)[~held].all()
    assert (np.diff(held.astype(int), axis=1) <= 0).all()  # padding is at the end
    is_paired = not (own.starts % 2).any() and not (own.window_starts % 2).any()
    assert held[:: 1 + is_paired, 0].all()
    assert own.values is None or not values[~held].any()
    assert sorted(own.places.tolist()) == list(range(own.n_octets))
    return [array[held] for array in (blocks[:, None] * made.height + inside, columns, values)]


def check_holds(block, made, by_place) -> None:
    """Every entry once, in chunks if its cell has `LEAST_DENSE` of them, else in bins."""
    read = read_back(made)
    kept = ~read.is_padding
    parts = zip(read_bins(made), (read.rows[kept], read.columns[kept], read.values[kept]), strict=True)
    both = [np.concatenate(own) for own in parts]
    order = np.arange(block.n_rows) if by_place is None else by_place
    rows = np.repeat(np.arange(block.n_rows), np.diff(block.indptr))
    data = np.ones(block.nnz) if block.data is None else block.data
    got, wanted = (order[both[0]], order[both[1]], both[2]), (rows, block.indices, data)
    for own, other in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(own[np.lexsort(got)], other[np.lexsort(wanted)])
    block_nnz = np.bincount(both[0] // made.height, minlength=len(made.block_chunks) - 1)
    n_narrow, *_ = cut_bin_windows(cut_windows(block_nnz, block.n_cols), block.n_cols)
    may_bin = both[0] // made.height >= n_narrow
    cells = both[0] // made.height * (1 << 32) + (both[1] >> bins.WINDOW_BITS)
    _, own, counts = np.unique(cells, return_inverse=True, return_counts=True)
    is_binned = np.arange(len(cells)) < len(cells) - int(kept.sum())
    np.testing.assert_array_equal(is_binned, may_bin & (counts[own] < bins.LEAST_DENSE))


def play_bins(monkeypatch, least_dense: int, pays: bool = True) -> None:
    """Windows of 64 columns, and cells that are binned wherever that is possible, or not."""
    for module in (bins, column_sorted_blocks):
        monkeypatch.setattr(module, "WINDOW_BITS", 6)
        monkeypatch.setattr(module, "LEAST_DENSE", least_dense)
    for module in (bins, column_sorted_blocks, played_build):
        monkeypatch.setattr(module, "TILE", 256)
    for module in (bins, column_sorted_blocks):
        monkeypatch.setattr(module, "JOB_THREADS", 16)
    monkeypatch.setattr(bins, "LEAST_COLUMNS", 1)
    monkeypatch.setattr(CellRates, "pays", lambda *_: pays)
    played_build.play_build(monkeypatch)


def build(block, order, piece_entries=None, **options):
    by_place = place_rows(block, order)
    given = {"order": by_place, "columns": find_places(by_place)}
    given["value"] = None if block.data is None else block.data.dtype
    pieces = read_pieces(block, piece_entries=piece_entries)
    return build_column_sorted_blocks(block.indptr, block.n_cols, pieces, **given, bin_bytes=ENOUGH, **options)


@cover_pairs(
    least_dense=[1, 50, 1500, 10**6],
    piece_entries=[None, 2000],
    order=["none", "degree"],
    data=DTYPES,
    height=[61, 1000],
    is_exact=[True, False],
)
def test_binned_cells_of_played_kernels(least_dense, piece_entries, order, data, height, is_exact, monkeypatch):
    play_bins(monkeypatch, least_dense)
    block = make_random(SKEWED[:1500], 1500, data=data)
    made = build(block, order, height=height, piece_entries=piece_entries, is_exact=is_exact)
    check_holds(block, made, place_rows(block, order))
    if made.bins is not None and is_exact:
        assert (made.bins.starts % 2).sum() == (made.bins.window_starts % 2).sum() == 0
    assert least_dense > 1 or made.bins is None
    if least_dense == 10**6 and height == 61 and order == "none":  # no window is narrower, as those of hubs would be
        assert len(made.entries) == 0
    if made.bins is not None:
        own = [getattr(made.bins, name) for name in ("rows", "columns", "places", "values")]
        assert made.bins.nbytes == sum(a.nbytes for a in own if a is not None)
        rest = (made.entries, made.columns, made.values)
        assert made.nbytes == made.bins.nbytes + sum(a.nbytes for a in rest if a is not None)


@cover_pairs(order=["none", "degree"], data=DTYPES, height=[61, 1000])
def test_wide_cells_where_bins_do_not_pay(order, data, height, monkeypatch):
    """Counts of narrow cells are added to those of wide ones."""
    play_bins(monkeypatch, 5, pays=False)
    block = make_random(SKEWED[:1500], 1500, data=data)
    made = build(block, order, height=height)
    assert made.bins is None
    read = read_back(made)
    kept, by_place = ~read.is_padding, place_rows(block, order)
    places = np.arange(1500) if by_place is None else by_place
    got = np.unique(places[read.rows[kept]].astype(np.int64) * 1500 + places[read.columns[kept]], return_counts=True)
    rows = np.repeat(np.arange(1500), np.diff(block.indptr))
    wanted = np.unique(rows * 1500 + block.indices, return_counts=True)
    for own, other in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(own, other)


def test_no_bins_without_memory_or_columns(monkeypatch):
    monkeypatch.setattr(bins, "shared_block_bytes", lambda: 232_448)
    assert can_bin(1000, LEAST_COLUMNS, 5, ENOUGH)
    assert not can_bin(1000, LEAST_COLUMNS - 1, 5, ENOUGH)
    assert not can_bin(1000, bins.MOST_COLUMNS + 1, 5, ENOUGH)
    assert not can_bin(1000, LEAST_COLUMNS, 5, 0)
    need = 1000 * bins.ENTRY_BYTES + 5 * 64 * bins.PADDING_BYTES
    assert can_bin(1000, LEAST_COLUMNS, 5, need)
    assert not can_bin(1000, LEAST_COLUMNS, 5, need - 1)
    monkeypatch.setattr(bins, "shared_block_bytes", lambda: 65_536)
    assert not can_bin(1000, LEAST_COLUMNS, 5, ENOUGH)


@pytest.mark.parametrize(
    ("graph", "nnz", "n_cols", "n_passes", "rates", "pays"),
    [
        ("uniform", 268, 1 << 24, 9.4, CellRates(268, 1, 0, (0, 0), (255, 262)), True),
        ("communities", 99, 1 << 23, 4.4, CellRates(99, 0, 0, (0, 0), (92, 95)), True),
        ("heavy tails", 134, 1 << 23, 4.4, CellRates(102, 18, 1, (18, 23), (110, 120)), True),
        ("narrow cells read less", 134, 1 << 23, 4.4, CellRates(3, 4, 3, (44, 61), (63, 83)), True),
        ("web", 87, 1 << 23, 4.4, CellRates(10, 44, 1, (7, 10), (17, 34)), False),
        ("R-MAT", 65, 2_000_000, 2.4, CellRates(3, 30, 3, (5, 8), (9, 14)), False),
        ("nothing", 0, 1 << 23, 4.4, CellRates(0, 0, 0, (0, 0), (0, 0)), False),
    ],
)
def test_when_bins_pay(graph, nnz, n_cols, n_passes, rates, pays):
    """Counts, in millions, of graphs of the benchmark, where steps with bins were faster on an H100, or not."""
    counts = [10**6 * number for number in (rates.n_binned, rates.n_cells, rates.n_dense)]
    sectors = [tuple(10**6 * n for n in pair) for pair in (rates.dense_sectors, rates.wide_sectors)]
    assert CellRates(*counts, *sectors).pays(10**6 * nnz, n_cols, n_passes, 50 << 20) == pays


@pytest.fixture
def wide_block():
    """40,000 rows in three windows, with hubs, dense cells and sparse ones."""
    lengths = np.random.default_rng(9).zipf(1.9, 40_000).clip(1, 20_000) - 1
    lengths[7] = 39_000
    return make_random(lengths, 40_000, data=None)


def force(monkeypatch) -> None:
    monkeypatch.setattr(bins, "LEAST_COLUMNS", 1)
    monkeypatch.setattr(CellRates, "pays", lambda *_: True)


def fetch(made, names) -> dict:
    arrays = {name: getattr(made, name) for name in names}
    return {name: None if array is None else to_host(array) for name, array in arrays.items()}


@ON_BOTH
@cover_pairs(order=["none", "degree"], data=DTYPES, height=[1000, 256], piece_entries=[None, 20_000])
def test_binned_cells_of_a_device(order, data, height, piece_entries, device, wide_block, monkeypatch):
    use(device, monkeypatch)
    cupy = pytest.importorskip("cupy")
    force(monkeypatch)
    block = make_random(np.diff(wide_block.indptr), 40_000, data=data)
    by_place = place_rows(block, order)
    given = {"order": by_place, "columns": find_places(by_place)}
    there = {name: None if array is None else cupy.asarray(array) for name, array in given.items()}
    value = None if block.data is None else block.data.dtype
    options = {"height": height, "bin_bytes": ENOUGH, "value": value}
    pieces = read_pieces(block, read_to_device(block), piece_entries)
    made = build_column_sorted_blocks(block.indptr, block.n_cols, pieces, **there, **options)
    own = fetch(made.bins, ("rows", "columns", "places", "values"))
    arrays = fetch(made, ("entries", "columns", "values"))
    arrays = {
        name: None if (a := getattr(made, name)) is None else to_host(a) for name in ("entries", "columns", "values")
    }
    check_holds(block, replace(made, **arrays, bins=replace(made.bins, **own)), by_place)


@needs_compiler
@pytest.mark.slow
def test_blocks_of_more_slots_than_a_word_numbers(wide_block, monkeypatch):
    """As if a word held few: entries of cells with bins and without."""
    use("emulated", monkeypatch)
    force(monkeypatch)
    load, made = column_sorted_blocks.load_kernel, []
    for more in ({}, {"MOST_SLOTS": 1000}):
        monkeypatch.setattr(column_sorted_blocks, "load_kernel", partial(load, **more))
        made.append(build(wide_block, "degree", height=1000))
    for names, few, many in (
        (("entries", "columns"), *made),
        (("rows", "columns", "places"), *(own.bins for own in made)),
    ):
        for name in names:
            np.testing.assert_array_equal(getattr(few, name), getattr(many, name), err_msg=name)


@ON_BOTH
@pytest.mark.parametrize("precision", ["exact", "float32"])
def test_steps_with_bins_have_the_bits_of_those_without(precision, device, wide_block, monkeypatch):
    """Products of more than 48 bits too: many vertices have few arcs, and one rank is large."""
    use(device, monkeypatch)
    cupy = pytest.importorskip("cupy")
    force(monkeypatch)
    n = wide_block.n_rows
    weight = np.bincount(wide_block.indices, minlength=n).astype(np.float64)
    first = np.full(n, 0.5 / n)
    first[3] += 0.5
    x = first.astype(np.float64 if precision == "exact" else np.float32)
    found = []
    for bin_bytes in (0, ENOUGH):
        rows = LayoutBuilder(
            wide_block.indptr, read_to_device(wide_block), layout="column-sorted-blocks", bin_bytes=bin_bytes
        )
        places = rows.place(cupy.asarray(weight))
        steps = RankSteps(rows.build_layout(places, places.columns, places.n_sent, None), precision)
        one = np.array([1 / n])
        sums = [steps.start(RankVectors(x, weight, one, one), RankRules(0.85, -1.0, False)), *steps.advance(17)]
        found.append((sums, steps.ranks().tobytes(), steps.check_rows(), steps.residual(0.1)))
    assert found[0] == found[1]
    if precision == "exact":
        played = PlayedDevice(wide_block)
        wanted = [played.start(RankVectors(x, weight, one, one), RankRules(0.85, -1.0, False)), *played.advance(17)]
        assert (found[1][0], found[1][1]) == (wanted, played.ranks().tobytes())
        assert Fraction(2) ** 48 < Fraction(first[3] / max(1.0, weight[3])) * 2**62
