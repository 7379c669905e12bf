"""How entries and rows of CSR are cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgspmv.errors import FormatError
from mgspmv.kernels import csr_cuts, cuda_products
from mgspmv.kernels.csr_cuts import BATCH, RUN, SLACK, STEP, build_compact, build_split, build_stream
from mgspmv.kernels.formats import ITEMS
from mgspmv.model import CsrBlock
from tests.support.blocks import make_random, to_scipy
from tests.support.emulated import emulate, needs_compiler


def walk_merge_path(block):
    """(rows ended, nonzeros taken) before each item, by the merge that the path is of."""
    i = k = 0
    path = [(0, 0)]
    while i < block.n_rows:
        if k < block.indptr[i + 1]:
            k += 1
        else:
            i += 1
        path.append((i, k))
    return path


def check_split(block):
    split, path = build_split(block), walk_merge_path(block)
    starts = [*path[::ITEMS], *([path[-1]] if (len(path) - 1) % ITEMS else [])]
    assert list(zip(split.row_starts, split.nonzero_starts, strict=True)) == starts


@given(st.lists(st.integers(0, 700) | st.sampled_from([0, ITEMS - 1, ITEMS, 3 * ITEMS + 5]), max_size=60))
def test_split_covers_rows_and_nonzeros(lengths):
    block = make_random(lengths, 9, data=None)
    split = build_split(block)
    rows, nonzeros = split.row_starts, split.nonzero_starts
    assert (rows[0], nonzeros[0]) == (0, 0)
    assert (rows[-1], nonzeros[-1]) == (block.n_rows, block.nnz)
    taken = np.diff(rows) + np.diff(nonzeros)
    assert (taken[:-1] == ITEMS).all()
    assert ((taken > 0) & (taken <= ITEMS)).all()
    check_split(block)


def walk_marks(made, nnz):
    """Whether each entry is the last of its row, and whether each lane knows how many rows end in lanes before."""
    bits = made.marks[:, :, None] >> np.arange(RUN, dtype=np.uint32) & np.uint32(1)
    counts = bits.sum(axis=2)
    before = np.cumsum(counts, axis=1) - counts
    return bits.reshape(-1)[:nnz].astype(bool), bool((before == made.marks >> np.uint32(16)).all())


def check_compact(block):
    made, lengths = build_compact(block), np.diff(block.indptr)
    filled = np.flatnonzero(lengths)
    last = block.indptr[filled + 1] - 1
    ends, are_counted = walk_marks(made, block.nnz)
    assert np.flatnonzero(ends).tolist() == last.tolist()
    assert are_counted
    assert made.steps[:, 0].tolist() == [np.count_nonzero(last < k * STEP) for k in range(len(made.marks) + 2)]
    if len(filled) == block.n_rows:
        assert (made.rows, made.empty) == (None, None)
    else:
        assert made.rows.tolist() == filled.tolist()
        assert made.empty.tolist() == np.flatnonzero(lengths == 0).tolist()
    check_blocks(block, made, filled)
    return made


def check_blocks(block, made, filled):
    """Blocks begin at the first row that begins in their steps, or within a long row."""
    assert made.cuts[-1].tolist() == [block.nnz, len(filled)]
    continues = []
    for b, (begin, n_ended) in enumerate(made.cuts[:-1].tolist()):
        nominal = b * made.block_steps * STEP
        starts = block.indptr[filled]
        after = min([*starts[starts >= nominal].tolist(), block.nnz])
        assert begin == (after if after - nominal <= SLACK else nominal)
        assert n_ended == np.count_nonzero(block.indptr[filled + 1] <= begin)
        continues.append(block.n_rows if begin in block.indptr else filled[n_ended])
    if (np.array(continues[1:]) < block.n_rows).any():
        assert made.carry_rows.tolist() == [*continues[1:], block.n_rows]
    else:
        assert made.carry_rows is None


COMPACT_LENGTHS = st.lists(
    st.integers(0, 700) | st.sampled_from([0, STEP - 1, STEP, SLACK, 9 * STEP + 5, 40_000]), max_size=60
)


@pytest.mark.parametrize("block_steps", [7, 31])
@given(COMPACT_LENGTHS)
def test_compact_marks_the_ends_of_rows(block_steps, lengths):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csr_cuts, "choose_block_steps", lambda *_: block_steps)
        made = check_compact(make_random(lengths, 9, data=None))
    assert made.block_steps == block_steps


@pytest.mark.parametrize(
    ("n_steps", "n_wide", "block_steps"),
    [(6284, 1118, 7), (6284, 393, 7), (6284, 392, 31), (1 << 14, 1 << 13, 7), ((1 << 14) + 1, 1 << 13, 63)],
)
def test_few_steps_of_which_many_are_wide_are_cut_into_short_blocks(n_steps, n_wide, block_steps):
    assert csr_cuts.choose_block_steps(n_steps, n_wide) == block_steps


@pytest.mark.parametrize(
    ("n_steps", "block_steps"), [(0, 7), (1, 7), (7 * 264, 7), (7 * 264 + 1, 15), (39_062, 151), (400_000, 255)]
)
def test_blocks_of_steps_fill_all_multiprocessors_in_few_turns(n_steps, block_steps):
    assert csr_cuts.choose_block_steps(n_steps, 0) == block_steps
    turns = n_steps / (block_steps * csr_cuts.RUNNING)
    assert n_steps < 7 * 264 or turns > 0.9 * np.ceil(turns) or turns < 1


def decode(made, indices):
    """Columns, from 16 bits where there are some."""
    base = np.repeat(made.steps[: len(made.marks), 1].astype(np.int64), STEP)[: len(indices)]
    return np.where(base < 0, indices, base + made.near), base < 0


@given(COMPACT_LENGTHS, st.sampled_from([9, 65_536, 65_537]))
def test_compact_columns_are_those_of_csr(lengths, n_cols):
    block = make_random(lengths, n_cols, data=None)
    try:
        made = build_compact(block)
    except FormatError:
        assert n_cols > 65_536
        return
    columns, is_wide = decode(made, block.indices)
    assert columns.tolist() == block.indices.tolist()
    assert not is_wide.any() or n_cols > 65_536


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_columns_far_apart_stay_in_csr(index):
    near, far = np.arange(3 * STEP) % 512, np.tile([0, 65_536], STEP)
    indices = np.concatenate([near, far, near + (1 << 20)]).astype(index)
    block = CsrBlock(0, 1 << 21, np.arange(0, len(indices) + 1, 2), np.sort(indices.reshape(-1, 2)).ravel(), None)
    made = build_compact(block)
    assert made.steps[:-2, 1].tolist() == [0, 0, 0, -1, -1, 1 << 20, 1 << 20, 1 << 20]
    assert decode(made, block.indices)[0].tolist() == block.indices.tolist()


def test_columns_mostly_far_apart_are_refused():
    indices = np.tile([0, 65_536], STEP).astype(np.int32)
    block = CsrBlock(0, 1 << 21, np.arange(0, len(indices) + 1, 2), indices, None)
    with pytest.raises(FormatError, match=r"^csr-compact numbers columns in 16 bits, .* 65,536 in 2 of 2 steps of 512"):
        build_compact(block)


def walk_stream(block, n_batches):
    """What `Stream` says, entry by entry: whether it ends its row, and what is in which piece."""
    piece, row_of = n_batches * BATCH, np.repeat(np.arange(block.n_rows), np.diff(block.indptr))
    ends = np.append(np.diff(row_of) > 0, True) if block.nnz else np.zeros(0, bool)
    pieces = {}
    for entry, row in enumerate(row_of.tolist()):
        pieces.setdefault(row, []).append(entry // piece)
    splits = [[row, own[0], own[-1]] for row, own in pieces.items() if own[0] != own[-1]]
    return ends, sorted(pieces), row_of[::piece], splits


def check_stream(block):
    stream = build_stream(block)
    ends, rows, begins, splits = walk_stream(block, stream.n_batches)
    assert np.unpackbits(stream.ends.view(np.uint8), bitorder="little")[: block.nnz].tolist() == ends.tolist()
    assert stream.rows.tolist() == [*rows, 0]
    assert stream.empty.tolist() == sorted(set(range(block.n_rows)) - set(rows))
    assert stream.rows[stream.piece_rows].tolist() == begins.tolist()
    assert stream.splits.tolist() == splits
    assert {part.dtype for part in (stream.rows, stream.empty, stream.piece_rows, stream.splits)} == {
        block.indices.dtype
    }
    return stream


def test_pieces_are_longer_where_there_are_many(monkeypatch):
    block = make_random([7, 0, 3, 300, 1] * 8, 9)
    sizes = []
    for few in (1 << 16, 30, 7, 1):
        monkeypatch.setattr(csr_cuts, "FEW_PIECES", few)
        sizes.append(check_stream(block).n_batches)
    assert sizes == [1, 2, 11, 32]


def test_stream_counts_rows_as_columns(monkeypatch):
    monkeypatch.setattr(csr_cuts, "INT32_LIMIT", 3)
    with pytest.raises(
        FormatError, match=r"^csr-many numbers rows in the dtype of columns, here int32, but the block has 4 rows;"
    ):
        build_stream(make_random([1, 2, 0, 1], 9))
    wide = make_random([1, 2, 0, 1], 9)
    wide = CsrBlock(0, 9, wide.indptr, wide.indices.astype(np.int64), None)
    assert build_stream(wide).rows.dtype == np.int64


EMULATED = {
    "uneven": np.random.default_rng(1).zipf(1.7, 3000).clip(1, 2500) - 1,
    "rows longer than a thread block": np.concatenate([np.zeros(100, int), [9000], np.full(900, 3), [20_000, 1, 1]]),
    "even": np.full(2000, 5),
}


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("name", EMULATED)
@pytest.mark.parametrize(("data", "dtype"), [(np.float32, np.float32), (np.float64, np.float64), (None, np.float64)])
def test_products_of_emulated_csr_compact(data, dtype, name, monkeypatch):
    emulate(monkeypatch)
    block, rng = make_random(EMULATED[name], 7000, data=data), np.random.default_rng(0)
    types = {
        "VALUE": np.dtype(data or dtype),
        "PATTERN": int(data is None),
        "X": np.dtype(dtype),
        "SUM": np.dtype(dtype),
    }
    run = cuda_products.csr_compact(block, build_compact(block), types)
    x, y = (rng.random(n).astype(dtype) for n in (block.n_cols, block.n_rows))
    wanted = 1.5 * (to_scipy(block).astype(np.float64) @ x.astype(np.float64)) + 0.5 * y
    run(x, y, 1.5, 0.5)
    tolerance = 1e-4 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(y, wanted, rtol=tolerance, atol=tolerance * np.abs(wanted).max())
