"""Rows of a matrix, taken from the memory of a worker as far as it has them, and read from the store else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mgspmv.exchange.halo import Halo, pack
from mgspmv.model import CsrBlock
from mgspmv.store.read import StoredMatrix


@dataclass(frozen=True, eq=False)
class HeldRows:
    """Rows that a worker has in memory."""

    pattern: CsrBlock
    """Without values."""
    halo: Halo | None
    """The columns to which those of the pattern were renumbered; None where they were not."""
    values: dict[str, np.ndarray | None]
    """By dtype."""

    @property
    def start(self) -> int:
        """First row."""
        return self.pattern.row_offset

    @property
    def stop(self) -> int:
        """Row after the last."""
        return self.start + self.pattern.n_rows

    def take_pattern(self, start: int, stop: int, n_cols: int) -> CsrBlock:
        """Rows `start` .. `stop` without values, in columns of the matrix: a copy.

        Parameters
        ----------
        n_cols : of the matrix
        """
        entries, held = self._find_entries(start, stop), self.pattern.indices
        indptr = self.pattern.indptr[start - self.start : stop - self.start + 1] - entries.start
        if self.halo is None:
            return CsrBlock(start, n_cols, indptr, held[entries].copy(), None)
        indices = np.empty(entries.stop - entries.start, held.dtype)
        pack(self.halo.list_columns(held.dtype), held[entries], indices)
        return CsrBlock(start, n_cols, indptr, indices, None)

    def take_values(self, start: int, stop: int, dtype: str) -> np.ndarray:
        """The values of rows `start` .. `stop`, a view."""
        values = self.values[dtype]
        assert values is not None
        return values[self._find_entries(start, stop)]

    def _find_entries(self, start: int, stop: int) -> slice:
        indptr = self.pattern.indptr
        return slice(int(indptr[start - self.start]), int(indptr[stop - self.start]))


def read_pattern(stored: StoredMatrix, start: int, stop: int, threads: int, held: HeldRows | None) -> CsrBlock:
    """Rows `start` .. `stop` without values, of which those that are held are not read; as `StoredMatrix.read_block`.

    Returns
    -------
    A block that shares no memory with what is held.
    """
    if held is None:
        return stored.read_block(start, stop, None, threads)
    pieces = [
        held.take_pattern(a, b, stored.info.shape[1]) if is_held else stored.read_block(a, b, None, threads)
        for a, b, is_held in _cut_rows(start, stop, held)
    ]
    lengths = np.concatenate([np.diff(piece.indptr) for piece in pieces])
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return CsrBlock(start, stored.info.shape[1], indptr, np.concatenate([p.indices for p in pieces]), None)


def read_values(
    stored: StoredMatrix, start: int, stop: int, dtype: str, threads: int, held: HeldRows | None
) -> np.ndarray | None:
    """Values of rows `start` .. `stop`, likewise; as `StoredMatrix.read_values`."""
    if held is None or held.values.get(dtype) is None:
        return stored.read_values(start, stop, dtype, threads)  # type: ignore[no-any-return]
    pieces = [
        held.take_values(a, b, dtype) if is_held else stored.read_values(a, b, dtype, threads)
        for a, b, is_held in _cut_rows(start, stop, held)
    ]
    return np.concatenate(pieces)


def _cut_rows(start: int, stop: int, held: HeldRows) -> list[tuple[int, int, bool]]:
    """The rows `start` .. `stop` in pieces: first row, row after the last, and whether they are held."""
    low = min(max(start, held.start), stop)
    high = min(max(low, held.stop), stop)
    pieces = [(start, low, False), (low, high, True), (high, stop, False)]
    return [piece for piece in pieces if piece[0] < piece[1]] or [(start, stop, False)]
