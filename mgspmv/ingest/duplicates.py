"""Duplicate entries of sorted rows: found, or merged by the chosen rule; and entries on the diagonal, left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mgspmv.errors import SourceError
from mgspmv.ingest.radix_sort import SMALL
from mgspmv.kernels.later import compile_later
from mgspmv.model import CsrBlock, Duplicates
from mgspmv.order import list_rows

SUM_TOO_LARGE = "the sum of duplicate entries does not fit into int64; ingest with dtype='float64'"


def merge_duplicates(name: str, block: CsrBlock, rule: Duplicates) -> CsrBlock:
    """Merge duplicate entries of a block by a rule other than `error`, overwriting the block.

    A small block is merged without compiled functions, unless there are values to sum.

    Raises
    ------
    SourceError : a sum does not fit in int64; `name` is that of the source
    """
    indptr, indices, data = block.indptr, block.indices, block.data
    if rule not in ("sum", "first"):
        return block
    if not _compact.is_worth(len(indices)):
        is_first = _find_first(block)
        if is_first.all():
            return block
        if data is None or rule == "first":
            kept = np.append(0, np.cumsum(is_first))[indptr]
            return CsrBlock(
                block.row_offset, block.n_cols, kept, indices[is_first], None if data is None else data[is_first]
            )
    is_integer = data is not None and data.dtype.kind == "i"
    nnz = _compact(indptr, indices, data, rule == "sum", np.iinfo(np.int64).max if is_integer else np.inf)
    if nnz < 0:
        raise SourceError(SUM_TOO_LARGE, source=name)
    if nnz == len(indices):
        return block
    merged = indices[:nnz].copy(), None if data is None else data[:nnz].copy()
    return CsrBlock(block.row_offset, block.n_cols, indptr, *merged)


def drop_loops(block: CsrBlock) -> CsrBlock:
    """Return a block without the entries on the diagonal."""
    keep = list_rows(block) != block.indices
    if keep.all():
        return block
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(keep)])[block.indptr]
    data = None if block.data is None else block.data[keep]
    return replace(block, indptr=indptr, indices=block.indices[keep], data=data)


def find_duplicate(block: CsrBlock) -> tuple[int, int] | None:
    """Return row and column of a duplicated entry; None if there is none."""
    if not _find_duplicate.is_worth(block.nnz):
        repeated = np.flatnonzero(~_find_first(block))[:1]
        rows = np.searchsorted(block.indptr, repeated, side="right") - 1 + block.row_offset
        return next(iter(zip(rows.tolist(), block.indices[repeated].tolist(), strict=True)), None)
    row, col = _find_duplicate(block.indptr, block.indices)
    return None if row < 0 else (row + block.row_offset, col)


def _find_first(block: CsrBlock) -> np.ndarray:
    """Return which entries are the first at their places, (nnz,) bool."""
    is_first = np.append(True, block.indices[1:] != block.indices[:-1])[: block.nnz]
    starts = block.indptr[:-1]
    is_first[starts[starts < block.nnz]] = True
    return is_first


@compile_later(SMALL)
def _find_duplicate(indptr, indices):
    for i in range(len(indptr) - 1):
        for k in range(indptr[i] + 1, indptr[i + 1]):
            if indices[k] == indices[k - 1]:
                return i, np.int64(indices[k])
    return -1, np.int64(-1)


@compile_later(SMALL)
def _compact(indptr, indices, data, add, most):
    """Merge equal neighbors in each row in place; return the number of entries left, -1 if a sum is beyond `most`."""
    out = 0
    start = indptr[0]
    for i in range(len(indptr) - 1):
        stop = indptr[i + 1]
        row_start = out
        for k in range(start, stop):
            if out > row_start and indices[out - 1] == indices[k]:
                if data is not None and add:  # compared before adding, as a sum of int64 wraps around
                    room = most - data[k] if data[k] > 0 else -most - 1 - data[k]
                    if (data[k] > 0 and data[out - 1] > room) or (data[k] < 0 and data[out - 1] < room):
                        return -1
                    data[out - 1] += data[k]
            else:
                indices[out] = indices[k]
                if data is not None:
                    data[out] = data[k]
                out += 1
        start = stop
        indptr[i + 1] = out
    return out
