"""Conversion between ids and numbers of vertices, with ids in memory or in a store."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import lru_cache
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

from mgspmv.errors import OptionError, UnknownIdError, shorten
from mgspmv.store.digests import CHUNK_ELEMENTS

if TYPE_CHECKING:
    from mgspmv.store.stored_matrix import StoredMatrix

CHUNKS_HELD = 4
"""Number of chunks of ids in memory while single ids are looked up."""
NEAR_NAMES = 1 << 9
"""Number of names before and after an unknown name that are searched for a similar one."""
UNKNOWN = -1
"""Result for an id that is not a vertex."""
_MOST = (1 << 63) - 1
"""Greatest int64."""


class VertexLookup:
    """Lookup of vertices in a stored matrix, whose ids ascend: chunks of ids are read on demand.

    It is sliced like an array of the ids, if the vertices have ids.

    Parameters
    ----------
    stored : a matrix, not a transpose
    chunks_held : number of chunks of ids in memory, the most recently read ones
    """

    def __init__(self, stored: StoredMatrix, chunks_held: int = CHUNKS_HELD) -> None:
        self._stored, self._n, self._kind = stored, stored.info.shape[0], stored.info.vertex_ids
        self._n_in_chunk = CHUNK_ELEMENTS
        self._read_chunk: Callable[[int], np.ndarray] = lru_cache(chunks_held)(self._read)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the ids: int64, or object for strings."""
        return np.dtype(object if self._kind == "string" else np.int64)

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, which: int | slice) -> Any:
        if not isinstance(which, slice):
            return self.read([range(self._n)[which]])[0]
        start, stop, _ = which.indices(self._n)
        size, parts = self._n_in_chunk, [np.zeros(0, self.dtype)]
        for chunk in range(start // size, -(-stop // size)):
            parts.append(self._read_chunk(chunk)[max(0, start - chunk * size) : max(0, stop - chunk * size)])
        return np.concatenate(parts)

    def find(self, ids: Sequence[Any] | np.ndarray, name: str = "ids") -> np.ndarray:
        """Return the numbers of ids, `UNKNOWN` for ids that no vertex has.

        Parameters
        ----------
        ids : (k,) integers, or strings where the ids of vertices are strings
        name : name of the argument, for messages

        Returns
        -------
        (k,) int64

        Raises
        ------
        UnknownIdError : ids of another kind than those of the vertices
        StoreError : as in `StoredMatrix.read_array`
        """
        wanted = _check_ids(name, ids, are_strings=self._kind == "string")
        if self._kind is None:
            return np.where((wanted >= 0) & (wanted < self._n), wanted, UNKNOWN)
        found, order = np.empty(len(wanted), np.int64), np.argsort(wanted, kind="stable")
        found[order] = self._search(wanted[order], 0, -(-self._n // self._n_in_chunk))
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
        UnknownIdError : an id that no vertex has, whose message names a near one; ids of another kind
        """
        numbers = self.find(ids, name)
        if (unknown := numbers == UNKNOWN).any():
            label = _plain(ids[int(np.argmax(unknown))])
            near = self._find_near(label)
            hint = "" if near is None else f"; near: {near!r}"
            raise UnknownIdError(f"{name} has the id {label!r}, which no vertex has{hint}")
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
        if self._kind is None:
            return wanted
        found = np.empty(len(wanted), np.int64 if self._kind == "int64" else object)
        chunks = wanted // self._n_in_chunk
        for chunk in sorted(set(chunks.tolist())):
            own = chunks == chunk
            found[own] = self._read_chunk(chunk)[wanted[own] - chunk * self._n_in_chunk]
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
        found = np.where(known[places] == ids[low:high], middle * self._n_in_chunk + places, UNKNOWN)
        before, after = self._search(ids[:low], first, middle), self._search(ids[high:], middle + 1, last)
        return np.concatenate([before, found, after])

    def _read(self, chunk: int) -> np.ndarray:
        start = chunk * CHUNK_ELEMENTS
        return self._stored.read_array("vertex_ids", start, min(start + CHUNK_ELEMENTS, self._n), threads=1)


def open_ids(stored: StoredMatrix) -> VertexLookup | None:
    """Return the ids of a stored matrix, of which one chunk is in memory at a time; None if they are 0..n-1."""
    return None if stored.info.vertex_ids is None else VertexLookup(stored, 1)


class ArrayLookup(VertexLookup):
    """Lookup of vertices whose ids are in memory.

    Parameters
    ----------
    n : number of vertices
    ids : (n,) ascending int64 or strings (object); None for 0..n-1
    """

    def __init__(self, n: int, ids: np.ndarray | None) -> None:
        self._n, self._n_in_chunk = n, max(n, 1)
        self._kind = None if ids is None else "string" if ids.dtype == object else "int64"
        if ids is not None:
            self._read_chunk = lambda chunk: ids


def _check_ids(name: str, ids: Sequence[Any] | np.ndarray, *, are_strings: bool) -> np.ndarray:
    """Return ids as (k,) strings (object) or int64; raise `UnknownIdError` for ids of another kind."""
    if isinstance(ids, str | bytes) or not hasattr(ids, "__len__") or getattr(ids, "ndim", 1) != 1:
        raise OptionError(f"{name} must be a list of ids, not {shorten(repr(ids))}")
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "iu" and not are_strings and (ids <= _MOST).all():
        return ids.astype(np.int64)
    kind = "strings" if are_strings else "64-bit integers"
    for label in ids:
        if not (isinstance(label, str) if are_strings else _is_integer(label)):
            raise UnknownIdError(f"{name} has the id {_plain(label)!r} but the ids of vertices are {kind}; pass {kind}")
    wanted = np.empty(len(ids), object if are_strings else np.int64)
    wanted[:] = ids
    return wanted


def _is_integer(label: Any) -> bool:
    if isinstance(label, bool | np.bool_) or not isinstance(label, Integral):
        return False
    return -_MOST - 1 <= int(label) <= _MOST


def _plain(label: Any) -> Any:
    return label.item() if isinstance(label, np.generic) else label


def check_integers(name: str, values: Sequence[Any] | np.ndarray) -> np.ndarray:
    """Return the values as (k,) int64; raise OptionError unless they are a list of such integers."""
    array = np.asarray(values)
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu") or (array > np.uint64((1 << 63) - 1)).any():
        raise OptionError(f"{name} must be a list of 64-bit integers, not {array.dtype} of shape {array.shape}")
    return array.astype(np.int64)
