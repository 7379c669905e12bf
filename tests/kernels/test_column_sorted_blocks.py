"""Row blocks: what they hold, where it is, and how they are cut."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from itertools import pairwise, product

import numpy as np
import pytest

from mgspmv.kernels import bins, column_sorted_blocks
from mgspmv.kernels.bins import ROW_BITS, TILE, cut_windows
from mgspmv.kernels.column_sorted_blocks import CHUNK, HEIGHT_UNIT, build_column_sorted_blocks, choose_height
from mgspmv.kernels.formats import to_host
from tests.support import played_build
from tests.support.blocks import cut_rows, make_block, make_random, read_pieces, read_to_device
from tests.support.emulated import ON_BOTH, use
from tests.support.matrices import HARD, naming
from tests.support.pairwise import cover_pairs

SQUARE = [name for name, hard in HARD.items() if hard.shape[0] == hard.shape[1]]
ORDERS = ["none", "degree"]
DTYPES = {"float32": np.float32, "float64": np.float64, "pattern": None}
DATA = pytest.mark.parametrize("data", DTYPES.values(), ids=DTYPES)
SKEWED = np.random.default_rng(4).zipf(1.6, 3000).clip(1, 2500) - 1
"""Lengths of rows: many empty ones, and some that are longer than several chunks."""


@dataclass(frozen=True)
class Read:
    """The entries of row blocks in the order of their chunks; `rows` and `columns` are places."""

    chunks: np.ndarray
    cells: np.ndarray
    """The first chunk of each entry's cell."""
    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    is_padding: np.ndarray


def read_back(made) -> Read:
    """By the shapes that `ColumnSortedBlocks` names: entry k of a chunk is at place 4 (k % 32) + k // 32 of it."""
    n_chunks = len(made.columns)
    assert made.entries.shape == (n_chunks * CHUNK,)
    assert made.block_chunks[-1] == n_chunks
    place = [4 * (k % 32) + k // 32 for k in range(CHUNK)]
    entries = made.entries.reshape(n_chunks, CHUNK)[:, place].ravel()
    values = np.ones(len(entries))
    if made.values is not None:
        values = made.values.reshape(n_chunks, CHUNK)[:, place].ravel()
    chunks = np.repeat(np.arange(n_chunks), CHUNK)
    blocks = np.searchsorted(made.block_chunks, chunks, side="right") - 1
    inside = entries & ((1 << ROW_BITS) - 1)
    columns = made.columns[chunks].astype(np.int64) + (entries >> ROW_BITS)
    owners = np.stack([np.searchsorted(made.block_chunks, np.arange(n_chunks), side="right"), made.columns])
    is_first = np.append(True, np.diff(owners).any(axis=0))[:n_chunks]
    cells = np.maximum.accumulate(np.where(is_first, np.arange(n_chunks), 0)) if n_chunks else chunks
    return Read(chunks, cells[chunks], blocks * made.height + inside, columns, values, inside >= made.height)


def place_rows(block, order):
    """The row at each place, or None where places are rows: of degree the longest row first, equal ones in order."""
    lengths = np.diff(block.indptr)
    return None if order == "none" else np.argsort(-lengths, kind="stable").astype(np.int32)


def find_places(by_place):
    """The place of each row, and column."""
    return None if by_place is None else np.argsort(by_place).astype(np.int32)


def check_holds(block, made, by_place) -> Read:
    """Every entry once, in a cell of its block and its window; what else there is fills up the last chunk of a cell."""
    read, n = read_back(made), block.n_rows
    held = ~read.is_padding
    assert held.sum() == made.nnz == block.nnz
    order = np.arange(n) if by_place is None else by_place
    rows, columns = order[read.rows[held]], order[read.columns[held]]
    data = np.ones(block.nnz) if block.data is None else block.data
    wanted = np.repeat(np.arange(n), np.diff(block.indptr))
    for got, expected in zip(
        sort_entries(rows, columns, read.values[held]), sort_entries(wanted, block.indices, data), strict=True
    ):
        np.testing.assert_array_equal(got, expected)
    if made.values is not None:
        assert not read.values[read.is_padding].any()
    check_cells(made, read)
    return read


def sort_entries(*keys):
    order = np.lexsort(keys[::-1])
    return [key[order] for key in keys]


def check_cells(made, read) -> None:
    """Columns are of the cell's window; only the last chunk of a cell has padding, and that at its end."""
    lengths = np.zeros(made.shape[0], np.int64)
    np.add.at(lengths, read.rows[~read.is_padding], 1)
    n_blocks = len(made.block_chunks) - 1
    block_nnz = np.array([lengths[b * made.height : (b + 1) * made.height].sum() for b in range(n_blocks)], np.int64)
    assert lengths[n_blocks * made.height :].sum() == 0
    shifts = cut_windows(block_nnz, made.shape[1]).shifts
    shift = shifts[np.searchsorted(made.block_chunks, read.chunks, side="right") - 1]
    first = made.columns[read.chunks].astype(np.int64)
    assert (first == read.columns >> shift << shift).all()
    counts = np.bincount(read.cells[~read.is_padding], minlength=len(made.columns))
    starts = np.unique(read.cells)
    n_chunks = np.diff(np.append(starts, len(made.columns)))
    np.testing.assert_array_equal(n_chunks, -(-counts[starts] // CHUNK))
    k = np.arange(len(read.rows)) - read.cells * CHUNK
    np.testing.assert_array_equal(read.is_padding, k >= counts[read.cells])


def fetch(made):
    """The row blocks on the host."""
    arrays = {name: getattr(made, name) for name in ("entries", "columns", "values")}
    return replace(made, **{name: None if array is None else to_host(array) for name, array in arrays.items()})


def build_square(block, read, order, piece_entries=None, **options):
    """Row blocks of a square matrix on the device, whose columns are in the order of the rows."""
    import cupy

    by_place = place_rows(block, order)
    given = {"order": by_place, "columns": find_places(by_place)}
    given = {name: None if array is None else cupy.asarray(array) for name, array in given.items()}
    value = None if block.data is None else block.data.dtype
    pieces = read_pieces(block, read, piece_entries)
    return build_column_sorted_blocks(block.indptr, block.n_cols, pieces, value=value, **given, **options)


def check_built(block, made, order) -> None:
    """What it holds, in which order of rows, cells and tiles; and that only blocks that have entries are named."""
    got = fetch(made)
    assert got.shape == (block.n_rows, block.n_cols)
    assert (got.entries.dtype, got.columns.dtype) == (np.uint32, np.uint32)
    assert (got.values is None) == (block.data is None)
    assert got.values is None or got.values.dtype == block.data.dtype
    n_bytes = len(got.columns) * (CHUNK * (4 + (0 if got.values is None else got.values.itemsize)) + 4)
    assert got.nbytes == n_bytes
    lengths, by_place = np.diff(block.indptr), place_rows(block, order)
    filled = np.flatnonzero(lengths if by_place is None else lengths[by_place])
    assert len(got.block_chunks) - 1 == -(-(int(filled.max(initial=-1)) + 1) // got.height)
    read = check_holds(block, got, by_place)
    for first, last in pairwise(got.block_chunks):
        assert (np.diff(got.columns[first:last].astype(np.int64)) >= 0).all()
    check_tiles(got, read)


def check_tiles(made, read) -> None:
    n_blocks = len(made.block_chunks) - 1
    block_of = np.searchsorted(made.block_chunks, read.chunks, side="right") - 1
    block_nnz = np.bincount(block_of[~read.is_padding], minlength=n_blocks)
    shifts = cut_windows(block_nnz, made.shape[1]).shifts[block_of]
    parts = (read.columns - made.columns[read.chunks]) >> np.maximum(0, shifts - 11)
    tiles = (read.chunks - read.cells) * CHUNK // TILE
    same = (np.diff(read.cells) == 0) & (np.diff(tiles) == 0) & ~read.is_padding[1:]
    assert (np.diff(parts)[same] >= 0).all()


def make_wide(n=50_000, data=np.float32):
    """Rows of very different lengths over many windows, and one that is longer than a job and a tile."""
    lengths = np.random.default_rng(9).zipf(2.0, n).clip(1, 20_000) - 1
    lengths[n // 3] = 40_000
    lengths[-50:] = 0
    lengths[:1000] = 0
    return make_random(lengths, n, data=data)


@cover_pairs(piece_entries=[None, 2000, 1], order=ORDERS, data=DTYPES)
def test_what_the_host_does_to_build_column_sorted_blocks(piece_entries, order, data, monkeypatch):
    """With the kernels played: jobs, cells and tiles, whole or piece by piece; some rows are longer than a job."""
    for module in (bins, column_sorted_blocks):
        monkeypatch.setattr(module, "JOB_THREADS", 16)
    for module in (bins, column_sorted_blocks, played_build, sys.modules[__name__]):
        monkeypatch.setattr(module, "TILE", 256)
    lengths = SKEWED[: 200 if piece_entries == 1 else 3000].clip(0, 700)
    block = make_random(lengths, len(lengths), data=data)
    begun = played_build.play_build(monkeypatch)

    def read(start, stop):
        return cut_rows(block, start, stop)

    for height in (61, 1000):
        begun.clear()
        made = build_square(block, read, order, height=height, piece_entries=piece_entries)
        check_built(block, made, order)
        of_rows, of_entries = {"measure_rows", "start_rows"}, {"cut_jobs", "count_cells", "place_entries"}
        assert set(begun) == of_rows | of_entries | {"cut_cells", "sort_tiles"}
        assert (begun.count("count_cells") > 1) == (piece_entries is not None)


@pytest.mark.parametrize(
    ("planned", "most", "bin_bytes", "piece_entries", "is_kept"),
    [
        (10**6, 10**6, 0, None, True),
        (10**6, 10**6, 0, 2000, False),  # in pieces
        (100, 10**6, 10**6, None, True),  # where bins may have the memory
        (100, 10**6, 1000, None, False),
        (100, 200, 10**6, None, False),
    ],
)
def test_places_of_columns_are_kept_where_memory_is_planned_for_them(
    planned, most, bin_bytes, piece_entries, is_kept, monkeypatch
):
    found = set()
    played_build.play_build(monkeypatch)
    count = played_build.count_cells
    monkeypatch.setitem(
        played_build.KERNELS, "count_cells", lambda *given: found.add(given[4] is not None) or count(*given)
    )
    monkeypatch.setattr(column_sorted_blocks, "PLANNED_COLUMNS", planned)
    monkeypatch.setattr(column_sorted_blocks, "KEPT_COLUMNS", most)
    block = make_random(SKEWED[:3000].clip(0, 700), 3000)

    def read(start, stop):
        return cut_rows(block, start, stop)

    made = build_square(block, read, "degree", height=1000, piece_entries=piece_entries, bin_bytes=bin_bytes)
    check_built(block, made, "degree")
    assert found == {is_kept}


@cover_pairs(is_ordered={"ordered": True, "in order": False}, piece_entries=[None, 2000], data=DTYPES)
def test_rows_of_a_larger_matrix_are_built(is_ordered, piece_entries, data, monkeypatch):
    """Rows in an order that is given, and columns that have places of their own among more of them."""
    played_build.play_build(monkeypatch)
    block, rng = make_random(SKEWED[:900].clip(0, 300), 5000, data=data), np.random.default_rng(2)
    order = rng.permutation(900).astype(np.int32) if is_ordered else None
    columns, n_places = rng.permutation(7000)[:5000].astype(np.int32), 7000
    lengths = np.diff(block.indptr)
    options = {"order": order, "columns": columns, "height": 61}
    options["value"] = None if block.data is None else block.data.dtype
    pieces = read_pieces(block, piece_entries=piece_entries)
    made = build_column_sorted_blocks(block.indptr, n_places, pieces, **options)
    assert (made.shape, made.nnz) == ((900, n_places), block.nnz)
    read = read_back(made)
    held = ~read.is_padding
    by_place = order if is_ordered else np.arange(900)
    own = (by_place[read.rows[held]], read.columns[held], read.values[held])
    rows = np.repeat(np.arange(900), lengths)
    values = np.ones(block.nnz) if block.data is None else block.data
    wanted = (rows, columns[block.indices], values)
    got, expected = (np.array(entries)[:, np.lexsort(entries)] for entries in (own, wanted))
    np.testing.assert_array_equal(got, expected)


@ON_BOTH
@pytest.mark.parametrize("n", [0, 1, 4096, 9001])
@pytest.mark.parametrize("is_ordered", [False, True])
def test_starts_of_rows_of_many_parts(n, is_ordered, device, monkeypatch):
    use(device, monkeypatch)
    import cupy

    rng = np.random.default_rng(n)
    indptr = 5 + np.concatenate([[0], np.cumsum(rng.integers(0, 40, n))])
    indptr[n - n // 9 :] = indptr[-1]
    rows = rng.permutation(n).astype(np.int32) if is_ordered else np.arange(n)
    order = cupy.asarray(rows) if is_ordered else None
    starts, jumps, n_filled = column_sorted_blocks._measure_rows(cupy.asarray(indptr), order, jumps=is_ordered)
    lengths = np.diff(indptr)[rows]
    wanted = np.concatenate([[0], np.cumsum(lengths)])
    assert starts.get().tolist() == wanted.tolist()
    assert int(n_filled[0]) == np.flatnonzero(lengths).max(initial=-1) + 1
    assert (jumps is None) == (not is_ordered)
    if is_ordered:
        assert jumps.get().tolist() == (indptr[rows] - 5 - wanted[:-1]).tolist()


@ON_BOTH
@pytest.mark.parametrize("is_near", [False, True])
def test_places_of_entries_in_chunks(device, is_near, monkeypatch):
    """Neighbors in the order of columns are added at the same time, or at different times if rows are near."""
    use(device, monkeypatch)
    block = make_random(SKEWED[:900].clip(0, 300), 900)
    made = build_column_sorted_blocks(
        block.indptr, 900, read_pieces(block, read_to_device(block)), height=256, is_near=is_near
    )
    chunks = made.entries.get().reshape(-1, CHUNK)
    inside = chunks & ((1 << ROW_BITS) - 1)
    lanes = np.broadcast_to(np.arange(CHUNK) // 4, inside.shape)
    is_padding = inside >= made.height
    assert is_padding.any()
    assert (inside == made.height + lanes)[is_padding].all()  # another row for each lane
    if not is_near:
        chunks = chunks[:, [4 * (k % 32) + k // 32 for k in range(CHUNK)]]
    for chunk in chunks:
        held = chunk[(chunk & ((1 << ROW_BITS) - 1)) < made.height]
        assert (np.diff(held >> ROW_BITS) >= 0).all()
        assert len(held) >= 1
    assert sum(len(np.unique(chunk)) for chunk in chunks) > len(chunks)


def test_column_sorted_blocks_of_nothing_are_built(monkeypatch):
    played_build.play_build(monkeypatch)
    block = make_random([0] * 5, 5)
    made = build_column_sorted_blocks(block.indptr, 5, read_pieces(block))
    assert (made.nnz, len(made.entries), made.block_chunks.tolist()) == (0, 0, [0])


@pytest.mark.gpu
@DATA
def test_built_column_sorted_blocks_of_hard_matrices(data):
    names = [name for name in SQUARE if HARD[name].shape[0]]
    for name, order, height, piece_entries in product(names, ORDERS, (None, 2), (None, 1, 5)):
        block = make_block(HARD[name], data=data)
        options = {"height": height, "piece_entries": piece_entries}
        with naming(name, order, options):
            check_built(block, build_square(block, read_to_device(block), order, **options), order)


@pytest.mark.gpu
@cover_pairs(height=[None, 256, 32_512], order=ORDERS, data=DTYPES)
def test_built_column_sorted_blocks_of_skewed_matrices(height, order, data):
    block = make_wide(data=data)
    for offset, piece_entries in ((np.int64, None), (np.int32, None), (np.int64, block.nnz // 3), (np.int32, 20_000)):
        read = read_to_device(block, offset)
        made = build_square(block, read, order, height=height, piece_entries=piece_entries)
        assert height is None or made.height == height
        check_built(block, made, order)


@pytest.mark.gpu
@pytest.mark.parametrize("order", ORDERS)
def test_built_column_sorted_blocks_of_dense_cells(order, monkeypatch):
    """Cells of many tiles: a block has more entries than windows of the least width take."""
    block = make_random(np.full(600, 1500), 600, data=np.float64)
    made = build_square(block, read_to_device(block), order, height=512)
    assert len(np.unique(read_back(fetch(made)).cells)) < len(made.columns) * CHUNK / TILE
    check_built(block, made, order)
    monkeypatch.setattr(column_sorted_blocks, "KEPT_COLUMNS", 0)
    check_built(block, build_square(block, read_to_device(block), order, height=512), order)


@pytest.mark.gpu
def test_row_pointers_may_be_on_the_device():
    cupy = pytest.importorskip("cupy")
    block = make_wide(data=None)
    for offset, piece_entries in product((np.int32, np.int64), (None, 100_000)):
        indptr = cupy.asarray(block.indptr, offset)
        made = build_column_sorted_blocks(
            indptr, block.n_cols, read_pieces(block, read_to_device(block, offset), piece_entries)
        )
        check_built(block, made, "none")


@pytest.mark.parametrize(("n_filled", "share"), [(1 << 23, 0.5), (1 << 24, 0.8), (1 << 25, 0.98), (5_000_000, 0.5)])
def test_multiprocessors_have_as_many_blocks_each(n_filled, share):
    """As few of them as their sums permit, up to rows that are rounded up."""
    height = choose_height(n_filled, 132, 233_472, share)
    n_each = -(-n_filled // (132 * height))
    assert height <= min(share * 233_472 / 8, (1 << ROW_BITS) - bins.PADDING_ROWS)
    assert 8 * (height + bins.PADDING_ROWS) + 1200 <= 232_448  # with what the kernel has besides, all of a thread block
    assert 132 * n_each * (height - HEIGHT_UNIT) < n_filled
    assert (n_each - 1) * 132 * share * 233_472 / 8 < n_filled


def test_few_rows_are_in_two_blocks_each_multiprocessor():
    assert choose_height(1_000_000, 132, 233_472) == 3808
    assert choose_height(5, 132, 233_472) == 256
    assert choose_height(0, 132, 233_472) == 256


def test_blocks_are_taller_where_rows_are_even_and_cells_binned(monkeypatch):
    """Tallest where cells have few entries."""
    played_build.play_build(monkeypatch)
    monkeypatch.setattr(bins, "LEAST_COLUMNS", 1)
    heights = {}
    for name, n_cols, options in (
        ("uneven", 60_000, {}),
        ("even", 60_000, {"is_even": True}),
        ("few entries", 1 << 26, {"is_even": True}),
        ("without bins", 60_000, {"is_even": True, "bin_bytes": 0}),
    ):
        block = make_random(np.ones(100_000, np.int64), n_cols)
        given = {"bin_bytes": 1 << 32, **options}
        made = build_column_sorted_blocks(block.indptr, n_cols, read_pieces(block), **given)
        heights[name] = made.height
    assert heights["uneven"] == heights["without bins"] < heights["even"] < heights["few entries"]
