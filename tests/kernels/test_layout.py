"""Which layout suits a matrix."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from mgspmv.kernels import column_sorted_blocks
from mgspmv.kernels.band_slices import BAND
from mgspmv.kernels.bins import JOB_THREADS
from mgspmv.kernels.column_sorted_blocks import KEYS
from mgspmv.kernels.layout import (
    EVEN_ROWS,
    LEAST_FILL,
    REACH,
    SAMPLES,
    SHORT_ROW,
    LayoutBuilder,
    Survey,
    choose_layout,
    find_middle,
    survey_rows,
)
from mgspmv.model import CsrBlock
from tests.support.blocks import classify_length, make_block, make_random, read_to_device
from tests.support.emulated import ON_BOTH, use
from tests.support.matrices import HARD

GRID = Survey(longest=5, n_places=5000, near=1.0, in_band=0.6, n_filled=1000)
"""Of 1000 rows of about 5 entries."""


@pytest.mark.parametrize(
    ("nnz", "survey", "wanted"),
    [
        (4900, GRID, ("sell-slices", "none")),
        (4000, GRID, ("sell-slices", "none")),  # just full enough
        (3999, GRID, ("column-sorted-blocks", "none")),
        (4900, replace(GRID, near=0.51), ("sell-slices", "none")),
        (4900, replace(GRID, near=0.5), ("column-sorted-blocks", "none")),  # not near, but even
        (5000, replace(GRID, longest=20), ("sell-slices", "none")),  # just even
        (4999, replace(GRID, longest=20), ("column-sorted-blocks", "none")),  # not even, but near
        (4999, replace(GRID, longest=20, near=0.5), ("column-sorted-blocks", "degree")),
        (5000, replace(GRID, longest=20, near=0.5), ("column-sorted-blocks", "none")),
        (5000, replace(GRID, longest=900, near=0.0), ("column-sorted-blocks", "degree")),
        (0, Survey(0, 0, 0.0, 0.0, 0), ("column-sorted-blocks", "none")),
    ],
)
def test_layout(nnz, survey, wanted):
    assert (EVEN_ROWS, LEAST_FILL) == (4, 0.8)
    assert choose_layout(nnz, 1000, survey) == wanted


@pytest.mark.parametrize("n_entries", [1, 10, 100, 10**6])
def test_rows_that_are_surveyed_are_few_and_in_the_middle(n_entries):
    rng = np.random.default_rng(3)
    many = [rng.zipf(1.5, 300).clip(0, 900) - 1 for _ in range(20)]
    for lengths in (*many, [7], [0, 0, 5], [5, 0, 0], [0, 900], [900, 0]):
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        first, last = find_middle(indptr, n_entries)
        assert 0 <= first < last <= len(lengths)
        assert indptr[last] - indptr[first] <= n_entries or last == first + 1
        middle = np.searchsorted(indptr, indptr[-1] // 2)
        assert first - 1 <= middle <= last + 1
    assert find_middle(np.arange(0, 1001, 10), 100) == (45, 54)


def test_short_rows_are_even_where_cells_may_be_binned():
    short = Survey(SHORT_ROW, 10**6, 0.0, 0.0, 1000)
    longer = replace(short, longest=SHORT_ROW + 1)
    for survey, may_bin, wanted in ((short, True, "none"), (short, False, "degree"), (longer, True, "degree")):
        assert choose_layout(5000, 1000, survey, may_bin=may_bin) == ("column-sorted-blocks", wanted)


def survey_in_numpy(block, first_row, last_row) -> Survey:
    """Of all rows, and of the entries of some of them."""
    lengths = np.diff(block.indptr)
    padded = np.append(lengths, np.zeros(-len(lengths) % 32, int)).reshape(-1, 32)
    first, last = block.indptr[first_row], block.indptr[last_row]
    n_samples = min(int(last - first), SAMPLES)
    sampled = first + np.arange(n_samples) * int(last - first) // max(1, n_samples)
    distance = np.abs(np.repeat(np.arange(block.n_rows), lengths)[sampled] - block.indices[sampled].astype(int))
    near, in_band = ((distance < reach).mean() if n_samples else 0.0 for reach in (REACH, BAND))
    return Survey(
        int(lengths.max(initial=0)),
        32 * int(padded.max(axis=1).sum()) if len(lengths) else 0,
        float(near),
        float(in_band),
        int(np.flatnonzero(lengths).max(initial=-1)) + 1,
    )


@ON_BOTH
@pytest.mark.parametrize("name", ["hard", "no entries", "wide", "band"])
def test_survey(name, device, monkeypatch):
    use(device, monkeypatch)
    import cupy

    n = 70_001
    made = {
        "hard": lambda: make_block(HARD["empty rows"], data=None),
        "no entries": lambda: make_random([0] * 100, 100),
        "wide": lambda: make_random(np.random.default_rng(9).zipf(2.0, 50_000).clip(1, 20_000) - 1, 50_000),
        "band": lambda: CsrBlock(
            0, n, np.arange(n + 1), (np.arange(n) + np.where(np.arange(n) % 3, 5, 40_000)).astype(np.int32) % n, None
        ),
    }
    block = made[name]()
    indptr = cupy.asarray(block.indptr)
    for first, last in ((0, block.n_rows), (block.n_rows // 3, block.n_rows // 2), (block.n_rows // 4, block.n_rows)):
        got = survey_rows(indptr, read_to_device(block)(first, last), first, 0)
        wanted = survey_in_numpy(block, first, last)
        shares = {name: pytest.approx(getattr(wanted, name), abs=1e-12) for name in ("near", "in_band")}
        assert got == replace(wanted, **shares)


@ON_BOTH
@pytest.mark.parametrize("cuts", [None, (0, 400, 400, 7000)])
def test_rows_are_placed_by_length(cuts, device, monkeypatch):
    """In each piece, those that are columns first; equal lengths in their order."""
    use(device, monkeypatch)
    import cupy

    rng = np.random.default_rng(11)
    chosen = [40_000, 16_383, 16_384, 16_385, 71, 72, 63, 64]
    lengths = rng.permutation(np.r_[rng.zipf(1.6, 6500).clip(1, 2000) - 1, chosen, np.zeros(492, int)])
    degree = rng.integers(0, 3, 7000)
    block = make_random(lengths, 7000)
    builder = LayoutBuilder(block.indptr, read_to_device(block), layout="column-sorted-blocks", order="degree")
    places = builder.place(cupy.asarray(degree), cuts)
    by_place, columns, n_sent = places.by_place.get(), places.columns.get(), 0
    assert places.rows == (cuts or (0, 7000))
    for k, (first, last) in enumerate(pairwise(places.rows)):
        own = np.arange(first, last)
        keys = [(degree[row] == 0, -classify_length(lengths[row]), row) for row in own]
        wanted = [row for *_, row in sorted(keys)]
        assert by_place[first:last].tolist() == wanted
        sent = int(np.count_nonzero(degree[own]))
        assert columns[wanted[:sent]].tolist() == list(range(n_sent, n_sent + sent))
        n_sent += sent
        assert places.sent[k + 1] == n_sent
        assert places.filled[k] == np.flatnonzero(lengths[wanted]).max(initial=-1) + 1


@ON_BOTH
def test_keys_of_many_parts(device, monkeypatch):
    """More than a thread block has threads."""
    use(device, monkeypatch)
    import cupy

    n_parts, rng = 1030, np.random.default_rng(2)
    counts = rng.integers(0, 9, (KEYS, n_parts))
    found = np.zeros(2 * KEYS + 2, np.uint64)
    found[:KEYS], found[KEYS] = counts.sum(1), 77
    there, starts = cupy.asarray(found), cupy.asarray(counts.astype(np.uint32).ravel())
    scan = column_sorted_blocks._load("scan_keys", None)
    scan((KEYS,), (JOB_THREADS,), (np.int64(n_parts), there, starts, there[KEYS:]))
    assert starts.get().tolist() == (np.cumsum(counts) - counts.ravel()).tolist()
    assert int(there[2 * KEYS + 1]) == 77 + counts[: KEYS // 2].sum()


@ON_BOTH
@pytest.mark.parametrize(("reach", "longest", "n_resident"), [(50, 300, 2), (50, 4, 1), (None, 300, 1)])
def test_thread_blocks_of_near_and_uneven_rows_share_a_multiprocessor(reach, longest, n_resident, device, monkeypatch):
    """Rows that are near but even, or uneven but far, have one at a time."""
    use(device, monkeypatch)
    import cupy

    n, rng = 100_000, np.random.default_rng(5)
    lengths = np.where(np.arange(n) % 1000 == 7, longest, 4)
    rows = np.repeat(np.arange(n), lengths)
    columns = rng.integers(0, n, len(rows)) if reach is None else (rows + rng.integers(-reach, reach, len(rows))) % n
    order = np.lexsort((columns, rows))
    block = CsrBlock(0, n, np.append(0, np.cumsum(lengths)), columns[order].astype(np.int32), None)
    builder = LayoutBuilder(block.indptr, read_to_device(block), layout="column-sorted-blocks")
    places = builder.place(cupy.ones(n, np.int64))
    layout = builder.build_layout(places, places.columns, n, None)
    assert layout.feed.kept[0].n_resident == n_resident
