"""Ids of vertices that are ascending 64-bit integers in a file: as many as there are, whatever the memory."""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from mgspmv.ingest.scratch import FileArray

PIECE_IDS = 1 << 17
"""Ids that are read or written at a time."""


class SortedIds(FileArray):
    """Different int64 ids, ascending; see `IdWriter`."""

    def find(self, id: int) -> int:
        """How many ids are less."""
        return bisect_left(self, id)

    def read_range(self, lowest: int, highest: int) -> tuple[int, np.ndarray]:
        """The number of the first id that is not less than `lowest`, and all from there to `highest`."""
        start = self.find(lowest)
        return start, self[start : self.find(highest + 1)]


class IdWriter:
    """Takes ids that ascend, and drops the second of equal ones.

    Parameters
    ----------
    folder : of the file; None for the one that the system has for such files
    """

    def __init__(self, folder: Path | None) -> None:
        self._ids = SortedIds(folder, np.dtype(np.int64))
        self.last: int | None = None

    @property
    def n_ids(self) -> int:
        """Those that are there."""
        return len(self._ids)

    def append(self, ids: np.ndarray) -> None:
        """Put int64 ids at the end, of which none is there twice and only the first may be the last that there is."""
        if len(ids) and ids[0] == self.last:
            ids = ids[1:]
        if len(ids):
            self.last = int(ids[-1])
            self._ids.append(ids)

    def finish(self) -> SortedIds:
        """What was written."""
        return self._ids


class UnionWriter:
    """Merges ids in a file with others that come ascending.

    Parameters
    ----------
    known : the ids in the file
    folder : of the file of all; None for the one that the system has for such files
    """

    def __init__(self, known: SortedIds, folder: Path | None) -> None:
        self._known, self._writer, self._n_read = known, IdWriter(folder), 0

    def add(self, ids: np.ndarray) -> np.ndarray:
        """The numbers of ids among all, where none that comes later is less than the last.

        Parameters
        ----------
        ids : int64, ascending and different; the first may be the last that came before

        Returns
        -------
        int64, as many
        """
        numbers, done = np.empty(len(ids), np.int64), 0
        if len(ids) and ids[0] == self._writer.last:
            numbers[0], done = self._writer.n_ids - 1, 1
        while done < len(ids):
            known = self._known[self._n_read : self._n_read + PIECE_IDS]
            end = int(np.searchsorted(ids, known[-1], side="right")) if len(known) == PIECE_IDS else len(ids)
            own = ids[done:end]
            if end == len(ids):  # of what is known, only what is not greater
                known = known[: np.searchsorted(known, ids[-1], side="right")]
            both = np.union1d(known, own)
            numbers[done:end] = self._writer.n_ids + np.searchsorted(both, own)
            self._writer.append(both)
            self._n_read += len(known)
            done = end
        return numbers

    def finish(self) -> SortedIds:
        """All of them."""
        for start in range(self._n_read, len(self._known), PIECE_IDS):
            self._writer.append(self._known[start : start + PIECE_IDS])
        return self._writer.finish()


def find_ids(ids: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Where ids are among ascending ones; all are there.

    Source: interpolation by a table of the leading bits of what is left beside the least id, then bisection.
    """
    found = np.empty(len(ids), np.int64)
    if not len(ids):
        return found
    span = int(known[-1]) - int(known[0])
    shift = max(0, span.bit_length() - len(known).bit_length() + 1)
    starts = np.zeros((span >> shift) + 2, np.int32)
    _fill_table(known, np.uint64(shift), starts)
    _find(ids, known, np.uint64(shift), starts, found)
    return found


# Numba has no types that mypy could read. Differences are of 64 bits without a sign, whatever the ids.


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _fill_table(known: Any, shift: Any, starts: Any) -> None:
    least = np.uint64(known[0])
    for id in known:
        starts[np.int64((np.uint64(id) - least) >> shift) + 1] += 1
    for k in range(1, len(starts)):
        starts[k] += starts[k - 1]


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _find(ids: Any, known: Any, shift: Any, starts: Any, found: Any) -> None:
    least = np.uint64(known[0])
    for k in range(len(ids)):
        id = np.int64(ids[k])
        digit = np.int64((np.uint64(id) - least) >> shift)
        low, high = starts[digit], starts[digit + 1] - 1
        while low < high:
            middle = (low + high) // 2
            if known[middle] < id:
                low = middle + 1
            else:
                high = middle
        found[k] = low
