"""Hash table from names to codes 0, 1, ... in the order in which names first occur.

Open addressing with linear probing, at most half full. A slot has 32 bits of a name's hash and the code, after which
the bytes of the name are compared. Numba has no types that mypy could read, hence the ignored decorators.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit

from mgspmv.errors import CapacityError

MOST_NAMES = (1 << 32) - 2
"""Greatest number of codes that slots can hold."""
_AT_ONCE = 128
"""Names per batch, whose cache misses overlap; the batch fits in the first-level cache."""


class NameTable:
    """Codes of names, which are stored contiguously as in an Arrow array."""

    def __init__(self) -> None:
        self._n_names = 0
        self._slots, self._ends = np.zeros(1 << 10, np.uint64), np.zeros(1, np.int64)
        self._text = np.zeros(1, np.uint8)

    def __len__(self) -> int:
        return self._n_names

    @property
    def nbytes(self) -> int:
        """Size in memory, in bytes."""
        return self._slots.nbytes + self._ends.nbytes + self._text.nbytes

    @property
    def names(self) -> Any:
        """Arrow array of large strings, by code."""
        return pa.LargeStringArray.from_buffers(len(self), pa.py_buffer(self._ends), pa.py_buffer(self._text))

    def encode(self, names: Any) -> np.ndarray:
        """Return the (n,) int64 codes of an Arrow array of strings, adding names that are new.

        Raises
        ------
        CapacityError : more names than codes
        """
        ends, text = _take_buffers(names)
        self._make_room(len(names), int(ends[-1] - ends[0]))
        codes = np.empty(len(names), np.int64)
        self._n_names = _encode(ends, text, self._slots, self._ends, self._text, self._n_names, codes)
        return codes

    def _make_room(self, n_new: int, n_bytes: int) -> None:
        n = self._n_names + n_new
        if n > MOST_NAMES:
            raise CapacityError(f"more than {MOST_NAMES:,} names; pass a smaller memory= to sort names on disk")
        self._ends = _grow(self._ends, n + 1)
        self._text = _grow(self._text, int(self._ends[self._n_names]) + n_bytes)
        if 2 * n > len(self._slots):
            slots = np.zeros(1 << (2 * n - 1).bit_length(), np.uint64)
            _refill(self._slots, slots)
            self._slots = slots


def _take_buffers(names: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the (n + 1,) offsets of names and their bytes."""
    _, ends, text = names.buffers()
    dtype = np.int64 if pa.types.is_large_string(names.type) else np.int32
    if ends is None or not len(names):
        return np.zeros(1, dtype), np.zeros(0, np.uint8)
    own = np.frombuffer(ends, dtype)[names.offset : names.offset + len(names) + 1]
    return own, np.frombuffer(text or b"", np.uint8)


def _grow(array: np.ndarray, n: int) -> np.ndarray:
    if n <= len(array):
        return array
    grown = np.empty(max(n, len(array) + len(array) // 2), array.dtype)
    grown[: len(array)] = array
    return grown


# Numba promotes uint64 with int64 to float64, so every number combined with a hash is a uint64.
_0, _1, _32 = map(np.uint64, (0, 1, 32))
_LOW = np.uint64(0xFFFFFFFF)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _hash(text: Any, begin: int, end: int) -> Any:
    """Hash four bytes at a time, mixed as by the finalizer of SplitMix64 (Steele, Lea, Flood 2014)."""
    x, at = np.uint64(end - begin) * _MIX_2, begin
    while at < end:
        word = _0
        for k in range(at, min(at + 4, end)):
            word = (word << np.uint64(8)) | np.uint64(text[k])
        x = (x ^ word) * _MIX_1
        x ^= x >> _32
        at += 4
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _look_up(hashed: Any, text: Any, begin: int, end: int, slots: Any, known_ends: Any, known_text: Any) -> Any:
    """Return the slot of a name, or the empty slot where it belongs."""
    mask = np.uint64(len(slots) - 1)
    slot = hashed & _LOW & mask
    while slots[slot] != _0:
        if (slots[slot] ^ hashed) & _LOW == _0:
            code = np.int64(slots[slot] >> _32) - 1
            own = known_ends[code]
            if known_ends[code + 1] - own == end - begin:
                k = 0
                while k < end - begin and known_text[own + k] == text[begin + k]:
                    k += 1
                if k == end - begin:
                    break
        slot = (slot + _1) & mask
    return slot


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _encode(ends: Any, text: Any, slots: Any, known_ends: Any, known_text: Any, n: int, codes: Any) -> int:
    """Write the codes of names, adding names that are new; return the number of names then known."""
    hashes = np.empty(_AT_ONCE, np.uint64)
    for first in range(0, len(codes), _AT_ONCE):
        last = min(first + _AT_ONCE, len(codes))
        _touch(ends[first : last + 1], text, slots, known_ends, known_text, hashes, codes[first:last])
        for j in range(first, last):
            begin, end, hashed = np.int64(ends[j]), np.int64(ends[j + 1]), hashes[j - first]
            slot = _look_up(hashed, text, begin, end, slots, known_ends, known_text)
            if slots[slot] == _0:
                for k in range(end - begin):  # a slice adds two seconds to Numba's compilation
                    known_text[known_ends[n] + k] = text[begin + k]
                known_ends[n + 1] = known_ends[n] + end - begin
                n += 1
                slots[slot] = (np.uint64(n) << _32) | (hashed & _LOW)
            codes[j] = np.int64(slots[slot] >> _32) - 1
    return n


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _touch(ends: Any, text: Any, slots: Any, known_ends: Any, known_text: Any, hashes: Any, codes: Any) -> None:
    """Hash names, and load the slots and names to compare with, so that the cache misses overlap."""
    mask = np.uint64(len(slots) - 1)
    for j in range(len(codes)):
        hashes[j] = _hash(text, np.int64(ends[j]), np.int64(ends[j + 1]))
        codes[j] = np.int64(slots[hashes[j] & _LOW & mask] >> _32)
    for j in range(len(codes)):
        codes[j] = known_ends[max(0, codes[j] - 1)]
    for j in range(len(codes)):
        codes[j] = known_text[min(codes[j], len(known_text) - 1)]


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _refill(old: Any, slots: Any) -> None:
    """Copy the entries of `old`, all of distinct names, into empty slots."""
    mask = np.uint64(len(slots) - 1)
    for entry in old:
        if entry != _0:
            slot = entry & _LOW & mask
            while slots[slot] != _0:
                slot = (slot + _1) & mask
            slots[slot] = entry
