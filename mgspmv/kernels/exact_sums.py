"""Sums of floats that are exact, so that neither the order nor the cuts of a vector change a bit.

    sum of |x|,   sum of x^2 (each square rounded once, and none overflows or vanishes),   sum of |x' - x|

A float is a mantissa of 53 bits times a power of two: a long integer of many words takes all of them. Sums of words are
kept apart until the end, for a word of 64 bits takes those of 2^31 floats before it is full.

Source: Kulisch, Computer Arithmetic and Validity (2008), chapter 8; differs from it in that carries wait.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import njit

from mgspmv.model import default_threads

UNIT_BITS = 2200
"""The unit of the sums is 2^-UNIT_BITS, less than the square of the least float."""
_WORDS = 136
"""Of 32 bits each; the square of the largest float ends in the 134th."""
_WORD = 32
_MASK = np.uint64(2**32 - 1)
_PIECE = 1 << 18
"""Elements that a thread adds up at a time."""


def sum_sizes(x: np.ndarray, threads: int | None = None) -> int | None:
    """Sum of |x|, in units; None where an element is not finite.

    Parameters
    ----------
    x : (n,) float32 or float64
    threads : at most; default: the processors this process may use
    """
    return _add_up(_add_sizes, (x,), threads)


def sum_squares(x: np.ndarray, threads: int | None = None) -> int | None:
    """Sum of x^2, each square rounded to 53 bits, whatever its size; as `sum_sizes`."""
    return _add_up(_add_squares, (x,), threads)


def sum_changes(new: np.ndarray, x: np.ndarray, threads: int | None = None) -> int | None:
    """Sum of |new - x|, each difference rounded to float64; as `sum_sizes`."""
    return _add_up(_add_changes, (new, x), threads)


def to_units(number: float, exponent: int = 0) -> int:
    """number * 2^exponent in units, for a number that is finite and not negative; exact unless that is below a unit."""
    fraction, own = math.frexp(number)
    mantissa, place = int(math.ldexp(fraction, 53)), own - 53 + exponent + UNIT_BITS
    return mantissa << place if place >= 0 else mantissa >> -place


def _add_up(kernel: Callable[..., int], vectors: tuple[np.ndarray, ...], threads: int | None) -> int | None:
    n = len(vectors[0])
    if n <= _PIECE:
        return _add_piece(kernel, vectors)
    with ThreadPoolExecutor(threads or default_threads()) as pool:
        pieces = [tuple(v[k : k + _PIECE] for v in vectors) for k in range(0, n, _PIECE)]
        sums = list(pool.map(lambda piece: _add_piece(kernel, piece), pieces))
    found = [s for s in sums if s is not None]
    return sum(found) if len(found) == len(sums) else None


def _add_piece(kernel: Callable[..., int], vectors: tuple[np.ndarray, ...]) -> int | None:
    words = np.zeros(_WORDS, np.uint64)
    if kernel(*vectors, words):
        return None
    return sum(word << (_WORD * k) for k, word in enumerate(words.tolist()) if word)


@njit(nogil=True, cache=True)
def _add_sizes(x, words):
    n_wrong = 0
    for k in range(len(x)):
        n_wrong += _add(abs(np.float64(x[k])), words)
    return n_wrong


@njit(nogil=True, cache=True)
def _add_changes(new, x, words):
    n_wrong = 0
    for k in range(len(x)):
        n_wrong += _add(abs(np.float64(new[k]) - np.float64(x[k])), words)
    return n_wrong


@njit(nogil=True, cache=True)
def _add_squares(x, words):
    n_wrong = 0
    for k in range(len(x)):
        size = abs(np.float64(x[k]))
        if size < np.inf:
            fraction, exponent = math.frexp(size)
            _place(fraction * fraction, 2 * exponent, words)
        else:
            n_wrong += 1
    return n_wrong


@njit(nogil=True, cache=True)
def _add(size, words):
    """Add a float that is not negative; 1 where it is not finite."""
    if size < np.inf:
        fraction, exponent = math.frexp(size)
        _place(fraction, exponent, words)
        return 0
    return 1


@njit(nogil=True, cache=True)
def _place(fraction, exponent, words):
    """Add fraction * 2^exponent; the fraction is 0, or at least a quarter and less than 1."""
    mantissa = np.uint64(fraction * 2.0**54)
    place = exponent - 54 + UNIT_BITS
    word, shift = place >> 5, np.uint64(place & (_WORD - 1))
    low, high = (mantissa & _MASK) << shift, (mantissa >> np.uint64(_WORD)) << shift
    words[word] += low & _MASK
    words[word + 1] += (low >> np.uint64(_WORD)) + (high & _MASK)
    words[word + 2] += high >> np.uint64(_WORD)
