"""Conversion between ids and numbers of vertices, in a store whose ids need not fit into memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

import numpy as np

from mgspmv.errors import OptionError
from mgspmv.store.chunks import CHUNK_ELEMENTS
from mgspmv.store.read import StoredMatrix

CHUNKS_HELD = 4
"""Number of chunks of ids in memory, the most recently read ones."""
NEAR_NAMES = 1 << 14
"""Number of names before and after an unknown name that are searched for a similar one."""
UNKNOWN = -1
"""Result for an id that is not a vertex."""


class VertexLookup:
    """Lookup of vertices in a stored matrix, whose ids ascend: chunks of ids are read on demand.

    Parameters
    ----------
    stored : a matrix, not a transpose
    """

    def __init__(self, stored: StoredMatrix) -> None:
        self._stored, self._n = stored, stored.info.shape[0]
        self._read_chunk = lru_cache(CHUNKS_HELD)(self._read)

    def find(self, ids: Sequence[Any] | np.ndarray) -> np.ndarray:
        """Return the numbers of ids, `UNKNOWN` for ids that no vertex has.

        Parameters
        ----------
        ids : (k,) integers, or strings where the store's ids are strings

        Returns
        -------
        (k,) int64

        Raises
        ------
        OptionError : ids of another kind than the store's
        StoreError : as in `StoredMatrix.read_array`
        """
        wanted = self._check_ids(ids)
        if self._stored.info.vertex_ids is None:
            return np.where((wanted >= 0) & (wanted < self._n), wanted, UNKNOWN)
        found, order = np.empty(len(wanted), np.int64), np.argsort(wanted, kind="stable")
        found[order] = self._search(wanted[order], 0, -(-self._n // CHUNK_ELEMENTS))
        return found

    def has(self, label: Any) -> bool:
        """Return whether a vertex has this id."""
        return bool(self.find([label])[0] != UNKNOWN)

    def find_all(self, name: str, ids: Sequence[Any] | np.ndarray) -> np.ndarray:
        """Return the numbers of ids like `find`, and raise for ids that no vertex has.

        Parameters
        ----------
        name : name of the argument, for messages

        Raises
        ------
        OptionError : an id that no vertex has; the message names a near one
        """
        numbers = self.find(ids)
        if (unknown := numbers == UNKNOWN).any():
            label: Any = ids[int(np.argmax(unknown))]
            label = label.item() if isinstance(label, np.generic) else label
            near = self._find_near(label)
            hint = "" if near is None else f"; near: {near!r}"
            raise OptionError(f"{name} has the id {label!r}, which no vertex has{hint}")
        return numbers

    def read(self, numbers: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the ids of vertices.

        Parameters
        ----------
        numbers : (k,) integers from 0 below n

        Returns
        -------
        (k,) int64, or strings (object)

        Raises
        ------
        OptionError : a number that no vertex has
        StoreError : as in `StoredMatrix.read_array`
        """
        wanted = check_integers("numbers", numbers)
        if len(wanted) and not 0 <= wanted.min() <= wanted.max() < self._n:
            wrong = int(wanted.min()) if wanted.min() < 0 else int(wanted.max())
            raise OptionError(f"vertex numbers must be in 0..{self._n - 1}, not {wrong}")
        if self._stored.info.vertex_ids is None:
            return wanted
        found = np.empty(len(wanted), np.int64 if self._stored.info.vertex_ids == "int64" else object)
        chunks = wanted // CHUNK_ELEMENTS
        for chunk in sorted(set(chunks.tolist())):
            own = chunks == chunk
            found[own] = self._read_chunk(chunk)[wanted[own] - chunk * CHUNK_ELEMENTS]
        return found

    def _find_near(self, label: Any) -> Any:
        """Return a similar id, for a hint; None if there is none."""
        place = bisect_left(range(self._n), label, key=lambda number: self.read([number])[0])
        reach = NEAR_NAMES if isinstance(label, str) else 1
        ids = self.read(np.arange(max(0, place - reach), min(self._n, place + reach))).tolist()
        if isinstance(label, str):
            return next(iter(get_close_matches(label, ids, n=1)), None)
        return min(ids, key=lambda id: abs(id - label), default=None)

    def _search(self, ids: np.ndarray, first: int, last: int) -> np.ndarray:
        """Return the numbers of ascending ids in the chunks from `first` up to, but excluding, `last`, by bisection."""
        if not len(ids) or first == last:
            return np.full(len(ids), UNKNOWN, np.int64)
        middle = (first + last) // 2
        known = self._read_chunk(middle)
        low = int(np.searchsorted(ids, known[0], side="left"))
        high = int(np.searchsorted(ids, known[-1], side="right"))
        places = np.searchsorted(known, ids[low:high])
        found = np.where(known[places] == ids[low:high], middle * CHUNK_ELEMENTS + places, UNKNOWN)
        before, after = self._search(ids[:low], first, middle), self._search(ids[high:], middle + 1, last)
        return np.concatenate([before, found, after])

    def _read(self, chunk: int) -> np.ndarray:
        start = chunk * CHUNK_ELEMENTS
        return self._stored.read_array("vertex_ids", start, min(start + CHUNK_ELEMENTS, self._n), threads=1)

    def _check_ids(self, ids: Sequence[Any] | np.ndarray) -> np.ndarray:
        if self._stored.info.vertex_ids != "string":
            return check_integers("ids", ids)
        array = np.array(ids, object)
        if array.ndim != 1 or not all(isinstance(id, str) for id in array):
            raise OptionError(f"the ids of {self._stored.info.url} are strings; pass a list of strings")
        return array


def check_integers(name: str, values: Sequence[Any] | np.ndarray) -> np.ndarray:
    """Return the values as (k,) int64; raise OptionError unless they are a list of such integers."""
    array = np.asarray(values)
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu") or (array > np.uint64((1 << 63) - 1)).any():
        raise OptionError(f"{name} must be a list of 64-bit integers, not {array.dtype} of shape {array.shape}")
    return array.astype(np.int64)
