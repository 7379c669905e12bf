"""Digests of vectors on the host, by which workers know that they hold what others sent.

    sum of mix(w_k + (k + 1) G) modulo 2^64,   w_k = the bits of element k

`mix` has no two numbers of 64 bits that it makes the same, so one element that differs always changes the sum, however
little; of more that do, one in 2^64 goes unseen. A sum has no order: threads and devices (kernels/digest.cu) make the
same one.

Source of `mix` and G: Steele, Lea, Flood, Fast Splittable Pseudorandom Number Generators (2014), in the variant 13 of
Stafford, Better Bit Mixing (2011).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
from numba import njit

from mgspmv.model import Digests, default_threads

_PIECE = 1 << 20
"""Elements that a thread takes at a time."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def digest_elements(vector: np.ndarray, rows: np.ndarray | None = None, threads: int | None = None) -> int:
    """The digest of a vector, or of some of its elements, in order; of many vectors, of the elements row by row.

    Parameters
    ----------
    vector : (n,) or (n, width) of 4 or 8 bytes each, contiguous
    rows : (k,) int32 or int64: which elements, or rows; None for all
    threads : at most; default: the processors this process may use
    """
    words = vector.reshape(-1).view(np.uint32 if vector.itemsize == 4 else np.uint64)
    width = 1 if vector.ndim == 1 else vector.shape[1]
    n, piece = (len(words), _PIECE) if rows is None else (len(rows), max(1, _PIECE // width))

    def add(first: int) -> int:
        last = min(first + piece, n)
        if rows is None:
            return int(_add_words(words[first:last], np.uint64(first)))
        return int(_add_chosen(words, rows[first:last], np.uint64(width), np.uint64(first)))

    if n <= piece:
        return add(0)
    with ThreadPoolExecutor(threads or default_threads()) as pool:
        return sum(pool.map(add, range(0, n, piece))) % 2**64


def digest_slices(vector: np.ndarray, bounds: Sequence[int]) -> tuple[int, ...]:
    """The digest of each slice of a vector, or of many.

    Parameters
    ----------
    bounds : where each slice begins, and where the last one ends
    """
    return tuple(digest_elements(vector[a:b]) for a, b in pairwise(bounds))


def find_difference(of_workers: Sequence[Digests]) -> tuple[int, int] | None:
    """Who sent something, and who holds something else, by rank; None where all hold what was sent."""
    for receiver, own in enumerate(of_workers):
        for sender, other in enumerate(of_workers):
            if own.held[sender] != other.sent[receiver]:
                return sender, receiver
    return None


@njit(nogil=True, cache=True)
def _mix(word: np.uint64) -> np.uint64:
    word = (word ^ (word >> np.uint64(30))) * _FIRST
    word = (word ^ (word >> np.uint64(27))) * _SECOND
    return word ^ (word >> np.uint64(31))


@njit(nogil=True, cache=True)
def _add_words(words: np.ndarray, first: np.uint64) -> np.uint64:
    total = np.uint64(0)
    for k in range(np.uint64(len(words))):
        total += _mix(np.uint64(words[k]) + (first + np.uint64(k) + np.uint64(1)) * _GOLDEN)
    return total


@njit(nogil=True, cache=True)
def _add_chosen(words: np.ndarray, rows: np.ndarray, width: np.uint64, first: np.uint64) -> np.uint64:
    total = np.uint64(0)
    for k in range(np.uint64(len(rows))):
        begin, before = np.uint64(rows[k]) * width, (first + np.uint64(k)) * width
        for column in range(width):
            word = np.uint64(words[begin + np.uint64(column)])
            total += _mix(word + (before + np.uint64(column) + np.uint64(1)) * _GOLDEN)
    return total
