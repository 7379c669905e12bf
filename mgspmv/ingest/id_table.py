"""A hash table from 64-bit integers to small codes, for ids that are too far apart to be their own code.

Numba has no types that mypy could read, hence the ignored decorators.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

_PIECE = 2**16
"""Ids looked up between two chances to grow: bounds the room that is kept free for them."""


class IdTable:
    """Codes 0, 1, 2, ... for int64 ids, in order of first appearance.

    Open addressing with linear probing, at most half full; holds 8 bytes an id and 16 to 32 of slots.
    """

    def __init__(self) -> None:
        self._slots = np.full(4 * _PIECE, -1, np.int64)
        self._ids = np.empty(2 * _PIECE, np.int64)
        self._n_ids = 0

    @property
    def ids(self) -> np.ndarray:
        """The ids seen, by code."""
        return self._ids[: self._n_ids]

    def encode(self, ids: np.ndarray) -> np.ndarray:
        """Give the codes of int64 `ids`, new ones where an id is new."""
        codes = np.empty(len(ids), np.int64)
        for start in range(0, len(ids), _PIECE):
            piece = slice(start, start + _PIECE)
            if self._n_ids + _PIECE > len(self._ids):
                self._grow()
            self._n_ids = _encode(ids[piece], codes[piece], self._slots, self._ids, self._n_ids)
        return codes

    def _grow(self) -> None:
        known = self.ids
        self._slots = np.full(2 * len(self._slots), -1, np.int64)
        self._ids = np.empty(2 * len(self._ids), np.int64)
        _encode(known, np.empty(len(known), np.int64), self._slots, self._ids, 0)


@njit(cache=True)  # type: ignore[untyped-decorator]  # Numba has no types
def _mix(x: Any) -> Any:
    """Scatter 64 bits over 64 bits: the finalizer of SplitMix64 (Steele, Lea, Flood 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True)  # type: ignore[untyped-decorator]  # Numba has no types
def _encode(ids: Any, codes: Any, slots: Any, known: Any, n_known: int) -> int:
    """Fill `codes` and add what is new; give the number of ids known then. `len(slots)` is a power of two."""
    mask = np.uint64(len(slots) - 1)
    for k in range(len(ids)):
        slot = _mix(np.uint64(ids[k])) & mask
        while slots[slot] >= 0 and known[slots[slot]] != ids[k]:
            slot = (slot + np.uint64(1)) & mask
        if slots[slot] < 0:
            slots[slot] = n_known
            known[n_known] = ids[k]
            n_known += 1
        codes[k] = slots[slot]
    return n_known
