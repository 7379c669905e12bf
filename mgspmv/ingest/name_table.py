"""A hash table from names to small codes.

Numba has no types that mypy could read, hence the ignored decorators.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit

PIECE_NAMES = 1 << 16
"""Names looked up between two chances to grow: bounds the room that is kept free for them."""

_UNKNOWN = -1


class NameTable:
    """Codes first, first + 1, ... for names, in order of first appearance.

    Open addressing with linear probing, at most half full. Holds the names' bytes and, for each, 16 bytes and 8 to 16
    of slots; up to twice that, as it grows.

    Parameters
    ----------
    first : code of the first name
    """

    def __init__(self, first: int = 0) -> None:
        self._first, self._n_names = first, 0
        self._slots = np.full(1 << 10, _UNKNOWN, np.int32)
        self._hashes = np.empty(1 << 9, np.uint64)
        self._ends = np.zeros((1 << 9) + 1, np.int64)
        self._text = np.empty(1 << 12, np.uint8)

    def __len__(self) -> int:
        return self._n_names

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(array.nbytes for array in (self._slots, self._hashes, self._ends, self._text))

    @property
    def names(self) -> Any:
        """(n,) Arrow array of large strings: the names, by code."""
        ends = self._ends[: self._n_names + 1]
        text = self._text[: ends[-1]]
        return pa.LargeStringArray.from_buffers(self._n_names, pa.py_buffer(ends), pa.py_buffer(text))

    def encode(self, names: Any) -> np.ndarray:
        """Codes of names, new ones where a name is new.

        Parameters
        ----------
        names : Arrow array of strings

        Returns
        -------
        int64, as many
        """
        codes = np.empty(len(names), np.int64)
        for start in range(0, len(names), PIECE_NAMES):
            ends, text = _take_buffers(names.slice(start, PIECE_NAMES))
            self._make_room(len(ends) - 1, int(ends[-1] - ends[0]))
            arrays = (self._slots, self._hashes, self._ends, self._text)
            own = codes[start : start + len(ends) - 1]
            self._n_names = _encode(ends, text, *arrays, self._n_names, own)
        return codes + self._first

    def find(self, names: Any) -> np.ndarray:
        """Codes of names, -1 where one is not there; as of `encode`."""
        ends, text = _take_buffers(names)
        codes = np.empty(len(names), np.int64)
        _find(ends, text, self._slots, self._hashes, self._ends, self._text, codes)
        return np.where(codes < 0, _UNKNOWN, codes + self._first)

    def _make_room(self, n_names: int, n_bytes: int) -> None:
        n = self._n_names + n_names
        if n > len(self._hashes):
            self._hashes = _grow(self._hashes, n)
            self._ends = _grow(self._ends, n + 1)
        if self._ends[self._n_names] + n_bytes > len(self._text):
            self._text = _grow(self._text, int(self._ends[self._n_names]) + n_bytes)
        if 2 * n > len(self._slots):
            self._slots = np.full(1 << (2 * n - 1).bit_length(), _UNKNOWN, np.int32)
            _fill(self._slots, self._hashes[: self._n_names])


def _take_buffers(names: Any) -> tuple[np.ndarray, np.ndarray]:
    """Where names end, the begin of the first before, and their bytes."""
    if isinstance(names, pa.ChunkedArray):
        names = names.combine_chunks()
    _, ends, text = names.buffers()
    dtype = np.int64 if pa.types.is_large_string(names.type) else np.int32
    if ends is None or not len(names):
        return np.zeros(1, dtype), np.zeros(0, np.uint8)
    own = np.frombuffer(ends, dtype)[names.offset : names.offset + len(names) + 1]
    return own, np.frombuffer(text or b"", np.uint8)


def _grow(array: np.ndarray, n: int) -> np.ndarray:
    grown = np.empty(max(n, len(array) + len(array) // 2), array.dtype)
    grown[: len(array)] = array
    return grown


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _hash(text: Any, start: int, end: int) -> Any:
    """FNV-1a (Fowler, Noll, Vo), its bits mixed by the finalizer of SplitMix64 (Steele, Lea, Flood 2014)."""
    x = np.uint64(0xCBF29CE484222325)
    for k in range(start, end):
        x = (x ^ np.uint64(text[k])) * np.uint64(0x100000001B3)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _look_up(text: Any, start: int, end: int, key: Any, slots: Any, hashes: Any, ends: Any, known: Any) -> Any:
    """The slot of a name, or the empty one where it belongs."""
    mask = np.uint64(len(slots) - 1)
    slot = key & mask
    while slots[slot] >= 0:
        code = slots[slot]
        if hashes[code] == key and ends[code + 1] - ends[code] == end - start:
            k = 0
            while k < end - start and known[ends[code] + k] == text[start + k]:
                k += 1
            if k == end - start:
                return slot
        slot = (slot + np.uint64(1)) & mask
    return slot


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _encode(own_ends: Any, text: Any, slots: Any, hashes: Any, ends: Any, known: Any, n_names: int, codes: Any) -> int:
    """Fill codes and add what is new; how many names are known then."""
    for j in range(len(codes)):
        start, end = own_ends[j], own_ends[j + 1]
        key = _hash(text, start, end)
        slot = _look_up(text, start, end, key, slots, hashes, ends, known)
        if slots[slot] < 0:
            slots[slot] = n_names
            hashes[n_names] = key
            at = ends[n_names]
            for k in range(start, end):
                known[at + k - start] = text[k]
            ends[n_names + 1] = at + end - start
            n_names += 1
        codes[j] = slots[slot]
    return n_names


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _find(own_ends: Any, text: Any, slots: Any, hashes: Any, ends: Any, known: Any, codes: Any) -> None:
    for j in range(len(codes)):
        start, end = own_ends[j], own_ends[j + 1]
        codes[j] = slots[_look_up(text, start, end, _hash(text, start, end), slots, hashes, ends, known)]


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _fill(slots: Any, hashes: Any) -> None:
    """Put codes, which are different names', into empty slots."""
    mask = np.uint64(len(slots) - 1)
    for code in range(len(hashes)):
        slot = hashes[code] & mask
        while slots[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = code
