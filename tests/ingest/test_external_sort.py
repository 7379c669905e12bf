"""Entries in any order come out as NumPy's stable sort has them, whatever the memory."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgspmv.errors import CapacityError
from mgspmv.heartbeat import prefetch_map
from mgspmv.ingest import external_sort
from mgspmv.ingest.block_sorting import sort_parts
from mgspmv.ingest.build import RowPointers
from mgspmv.ingest.external_sort import EntrySorter
from mgspmv.model import CooBatch
from tests.support.later import serving
from tests.support.pairwise import cover_pairs
from tests.support.shrinking import shrink
from tests.support.waiting import HANG_S

PLENTY = 1 << 40
BYTES = 2 * 64 * 3
"""That sorting by two threads takes of the memory for an entry with a value of 8 bytes."""


@pytest.fixture
def small(monkeypatch):
    """Buckets, groups and blocks of which a few entries make many."""
    sorter = {"N_BUCKETS": 4, "GROUPED_ENTRIES": 20, "BLOCK_ENTRIES": 7, "WRITE_BYTES": 64}
    shrink(monkeypatch, ingest__external_sort=sorter)


class Collector:
    """An array in a list."""

    def __init__(self):
        self.parts = []

    def append(self, elements):
        self.parts.append(elements.copy())

    def finish(self):
        return np.concatenate(self.parts)


def has_spilled(sorter):
    return any(piece.file is not None for piece in sorter._pieces)


def sort(batches, shape, memory=PLENTY, *, threads=2, folder=None):
    """Row pointers, columns and values as the blocks have them, and the blocks."""
    pointers, indices, values = Collector(), [], []
    rows = RowPointers(pointers)
    with EntrySorter(memory, threads, folder) as sorter:
        for batch in batches:
            sorter.add(batch)
        blocks = list(sorter.blocks(shape))
        spilled = has_spilled(sorter)
    for block in blocks:
        assert block.n_cols == shape[1]
        rows.put(block)
        indices.append(block.indices)
        values.append(block.data)
    rows.end(shape[0])
    data = None if not blocks or values[0] is None else np.concatenate(values)
    return pointers.finish(), np.concatenate([np.zeros(0, np.int32), *indices]), data, blocks, spilled


def check(batches, shape, memory=PLENTY, **options):
    """The blocks, which have what the batches have, and the bytes that went to files."""
    indptr, indices, data, blocks, spilled = sort(batches, shape, memory, **options)
    rows, cols = (np.concatenate([np.zeros(0, np.int64), *(getattr(b, k) for b in batches)]) for k in ("rows", "cols"))
    order = np.lexsort((cols, rows))
    assert indptr.tolist() == [0, *np.cumsum(np.bincount(rows, minlength=shape[0])).tolist()]
    assert indices.tolist() == cols[order].tolist()
    if data is not None:
        assert data.tobytes() == np.concatenate([b.values for b in batches])[order].tobytes()
    return blocks, spilled


def make_batches(n, shape, *, size=50, values=np.float64, dtype=np.int32, seed=0, power=1.2):
    """Entries of which the first rows and columns have most."""
    rng = np.random.default_rng(seed)
    batches = []
    for k in range(0, n, size):
        m = min(size, n - k)
        ends = ((rng.random(m) ** power * extent).astype(dtype) for extent in shape)
        batches.append(CooBatch(*ends, None if values is None else rng.integers(0, 99, m).astype(values)))
    return batches


@cover_pairs(
    shape={f"{rows}x{cols}": (rows, cols) for rows, cols in [(1, 3000), (3000, 1), (30, 50), (300, 200), (40_000, 3)]},
    values=[None, np.float64, np.float32, np.int64],
    memory={"in memory": PLENTY, "by files": 20_000, "by many files": 8_000},
)
def test_sorting(small, shape, values, memory):
    batches = make_batches(1500, shape, values=values)
    _, spilled = check(batches, shape, memory)
    assert spilled == (memory < PLENTY)


@given(st.data())
def test_any_entries(data):
    shape = data.draw(st.tuples(st.integers(1, 300), st.integers(1, 300)))
    n = data.draw(st.integers(0, 400))
    values = data.draw(st.sampled_from([None, np.float64]))
    dtypes = data.draw(st.sampled_from([np.int32, np.int64]))
    batches = make_batches(n, shape, size=data.draw(st.integers(1, 90)), values=values, dtype=dtypes, seed=n, power=1.5)
    places = [place for b in batches for place in zip(b.rows.tolist(), b.cols.tolist(), strict=True)]
    least = BYTES * max(map(places.count, places), default=1)
    check(batches, shape, data.draw(st.sampled_from([PLENTY, least, 2 * least])))


def test_batches_of_several_dtypes():
    wide = CooBatch(np.array([2**31 + 3, 5]), np.array([1, 2**34]), np.array([1.0, 2.0]))
    narrow = CooBatch(np.array([5, 9], np.int32), np.array([7, 8], np.int32), np.array([3, 4], np.float32))
    for memory in (PLENTY, 600):
        with EntrySorter(memory, 1) as sorter:
            sorter.add(narrow)
            sorter.add(wide)
            blocks = list(sorter.blocks((2**31 + 4, 2**35)))
        assert np.concatenate([b.indices for b in blocks]).tolist() == [7, 2**34, 8, 1]
        assert np.concatenate([b.data for b in blocks]).tolist() == [3.0, 2.0, 4.0, 1.0]
        rows = [b.row_offset + r for b in blocks for r in np.flatnonzero(np.diff(b.indptr)).tolist()]
        assert rows == [5, 9, 2**31 + 3]


@pytest.mark.parametrize("values", [None, np.float64])
def test_rows_and_columns_that_do_not_fit_into_one_key(values):
    """More than 64 bits of them, in one bucket."""
    shape = (1 << 20, 1 << 62)
    rng = np.random.default_rng(3)
    rows, cols = rng.integers(0, 1 << 10, 300), rng.integers(0, 1 << 62, 300)
    data = None if values is None else rng.random(300)
    parts = [(rows[k : k + 100], cols[k : k + 100], None if data is None else data[k : k + 100]) for k in (0, 100, 200)]
    block = sort_parts(parts, 0, 1 << 20, shape[1])
    order = np.lexsort((cols, rows))
    assert block.indices.tolist() == cols[order].tolist()
    assert (block.data is None) == (data is None)
    assert data is None or block.data.tolist() == data[order].tolist()
    assert block.indptr[-1] == 300


@pytest.mark.parametrize("n_bits", [0, 1, 20, 55, 56, 64])
@pytest.mark.parametrize("dtype", [None, np.float32, np.int64])
def test_keys_of_any_length(n_bits, dtype):
    """With the numbers of 300 entries, 9 bits, those of up to 55 bits fit into 64."""
    rng, row_bits = np.random.default_rng(4), min(n_bits, 12)
    keys = rng.integers(0, 1 << n_bits, 300, np.uint64, endpoint=False) if n_bits else np.zeros(300, np.uint64)
    keys[100:200] = keys[:100]
    values = None if dtype is None else np.arange(300).astype(dtype)
    order = np.argsort(keys, kind="stable")
    rows, cols = (keys >> np.uint64(n_bits - row_bits)), keys & np.uint64((1 << (n_bits - row_bits)) - 1)
    rows, cols = rows.astype(np.int64), cols.astype(np.int64)
    for is_compiled in (False, True):
        with serving(is_compiled):
            block = sort_parts([(rows, cols, values)], 0, 1 << row_bits, 1 << (n_bits - row_bits))
        assert np.repeat(np.arange(1 << row_bits), np.diff(block.indptr)).tolist() == rows[order].tolist()
        assert block.indices.tolist() == cols[order].tolist()
        assert (block.data is None) if values is None else block.data.tolist() == values[order].tolist()


def test_no_entries():
    assert [a.tolist() for a in sort([], (3, 3))[:2]] == [[0, 0, 0, 0], []]
    assert check([CooBatch(np.zeros(0, np.int32), np.zeros(0, np.int32), None)], (2, 2)) == ([], 0)


def test_a_row_that_does_not_fit_is_sorted_by_its_columns(small):
    rng = np.random.default_rng(0)
    row = CooBatch(np.full(3000, 17, np.int32), rng.permutation(3000).astype(np.int32), rng.random(3000))
    others = CooBatch(np.arange(40, dtype=np.int32), np.arange(40, dtype=np.int32), np.ones(40))
    blocks, _ = check([others, row, others], (40, 3000), 5000)
    assert sum(b.row_offset == 17 and b.n_rows == 1 for b in blocks) > 5


def test_a_place_that_does_not_fit_is_an_error(small):
    same = CooBatch(np.full(3000, 2, np.int32), np.full(3000, 1, np.int32), None)
    with pytest.raises(
        CapacityError, match=r"the entries at row 2, column 1 do not fit in the memory .* raise memory="
    ):
        sort([same], (5, 5), 5000)


@pytest.mark.parametrize("shape", [(30, 500), (1, 3000), (3000, 2)])
def test_a_bucket_that_is_split_has_all_of_the_memory(small, shape, monkeypatch):
    """And all sorters together hold no more of it than one may."""
    made, memory = [], 6000
    begin = EntrySorter.__init__

    def note(self, *args, **options):
        begin(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(EntrySorter, "__init__", note)
    with EntrySorter(memory, 2) as sorter:
        for batch in make_batches(3000, shape):
            sorter.add(batch)
        for _ in sorter.blocks(shape):
            held = [piece.nbytes for each in made for piece in each._pieces if piece.file is None]
            assert sum(held) <= memory // 2
    assert len(made) > 1


def test_files_have_no_names_and_go(small, tmp_path):
    with EntrySorter(3000, 1, tmp_path) as sorter:
        for batch in make_batches(900, (50, 50)):
            sorter.add(batch)
        assert has_spilled(sorter)
        files = [piece.file for piece in sorter._pieces if piece.file is not None]
        assert files
        assert {os.stat(file.file.fileno()).st_dev for file in files} == {tmp_path.stat().st_dev}
        assert list(tmp_path.iterdir()) == []
    assert all(file.file.closed for file in files)


@pytest.mark.parametrize("memory", [PLENTY, 20_000, 3000])
def test_draining_keeps_the_order_at_each_place(small, memory):
    batches = make_batches(900, (12, 11), values=np.int64)
    with EntrySorter(memory, 2) as sorter:
        for batch in batches:
            sorter.add(batch)
        kept = list(sorter.read(70))
        drained = list(sorter.read(50, drains=True))
        assert list(sorter.blocks((12, 11))) == []
    read, drained, wanted = (
        [np.concatenate([getattr(b, k) for b in own]) for k in ("rows", "cols", "values")]
        for own in (kept, drained, batches)
    )
    for found in (read, drained, wanted):
        order = np.lexsort((found[1], found[0]))
        found[:] = [a[order].tolist() for a in found]
    assert read == drained == wanted


@pytest.mark.parametrize("memory", [PLENTY, 40 * BYTES])
def test_freed_memory_is_returned_where_it_is_short(small, memory, monkeypatch):
    """Not else, as it would have to be mapped again."""
    returned = []
    monkeypatch.setattr(external_sort, "return_freed_memory", lambda: returned.append(1))
    with EntrySorter(memory, 2) as sorter:
        for _ in range(30):
            sorter.add(CooBatch(np.arange(20, dtype=np.int32), np.zeros(20, np.int32), np.ones(20)))
        assert has_spilled(sorter) == bool(returned) == (memory < PLENTY)


@pytest.mark.parametrize("less", [0, 19_000])
def test_memory_that_is_wanted_elsewhere(small, less):
    batches = make_batches(300, (50, 50))
    with EntrySorter(20_000, 1) as sorter:
        for batch in batches:
            sorter.add(batch)
        assert not has_spilled(sorter)
        sorter.reserve(less)
        assert has_spilled(sorter) == (less > 0)
        assert sum(b.nnz for b in sorter.blocks((50, 50))) == 300


def test_an_error_comes_in_its_turn_and_ends_the_rest():
    started, goes_on = [], threading.Event()

    def work(k):
        started.append(k)
        if k == 2:
            raise ValueError("two")
        if k > 2:
            goes_on.wait(HANG_S)
        return k

    with ThreadPoolExecutor(1) as pool:
        results = prefetch_map(pool, work, range(100), 5)
        assert [next(results), next(results)] == [0, 1]
        with pytest.raises(ValueError, match="two"):
            next(results)
        goes_on.set()
    assert len(started) <= 4
