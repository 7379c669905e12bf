"""How entries and rows of CSR are cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgspmv.errors import FormatError
from mgspmv.kernels import csr_cuts
from mgspmv.kernels.csr_cuts import BATCH, build_split, build_stream
from mgspmv.kernels.formats import ITEMS
from mgspmv.model import CsrBlock
from tests.support.blocks import make_random


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
