"""Sums of floats that are exact, so that neither the order nor the cuts of a vector change a bit.

    sum of |x|,   sum of x^2 (each square rounded once, and none overflows or vanishes),   sum of |x' - x|

A sum is a long integer of many words, which takes any float. Some elements at a time are cut at the same binary places:

    1.5 * 2^m + x   has the bits of x from 2^(m - 52) on; what is left of x is exact, and is cut next, 52 places below

The cut parts are added as the integers that they are. Elements that are huge or tiny are added to the words one by one.
One thread takes 1.1 to 1.5 ns for an element, and NumPy 0.6 ns for a change that is summed in plain floats (AMD EPYC).

Source: cuts as in Rump, Ogita, Oishi, Accurate Floating-Point Summation (2008), until nothing is left; the long integer
as in Kulisch, Computer Arithmetic and Validity (2008), chapter 8, but with carries that wait.
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
_MASK = 2**_WORD - 1
_PIECE = 1 << 17
"""Elements that a thread adds up at a time."""
_BLOCK = 1024
"""Elements that are cut together: their parts of 52 bits are added in 64."""
_MANTISSA, _BIAS = 52, 1023
_LARGE, _SMALL = (_BIAS + 400) << _MANTISSA, (_BIAS - 400) << _MANTISSA
"""Bits of floats between which squares, and what is left of them, are neither too large nor too small."""


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


def _add_up(kernel: Callable[..., bool], vectors: tuple[np.ndarray, ...], threads: int | None) -> int | None:
    n = len(vectors[0])
    if n <= _PIECE:
        return _add_piece(kernel, vectors)
    with ThreadPoolExecutor(threads or default_threads()) as pool:
        pieces = [tuple(v[k : k + _PIECE] for v in vectors) for k in range(0, n, _PIECE)]
        sums = list(pool.map(lambda piece: _add_piece(kernel, piece), pieces))
    found = [s for s in sums if s is not None]
    return sum(found) if len(found) == len(sums) else None


def _add_piece(kernel: Callable[..., bool], vectors: tuple[np.ndarray, ...]) -> int | None:
    words = np.zeros(_WORDS, np.int64)
    if not kernel(*vectors, words):
        return None
    return sum(word << (_WORD * k) for k, word in enumerate(words.tolist()) if word)


# --- kernels ---------------------------------------------------------------------------------------------------------
# Each adds to words of 64 bits that count units of 2^(32 k) of them, and gives whether all elements are finite.


@njit(nogil=True, cache=True)
def _add_sizes(x, words):
    sizes, cut = np.empty(_BLOCK), np.empty(_BLOCK)
    for first in range(0, len(x), _BLOCK):
        n = min(_BLOCK, len(x) - first)
        for k in range(n):
            sizes[k] = abs(np.float64(x[first + k]))
        if not _add_block(sizes[:n], cut[:n], False, words):
            return False
    return True


@njit(nogil=True, cache=True)
def _add_squares(x, words):
    sizes, cut = np.empty(_BLOCK), np.empty(_BLOCK)
    for first in range(0, len(x), _BLOCK):
        n = min(_BLOCK, len(x) - first)
        for k in range(n):
            sizes[k] = abs(np.float64(x[first + k]))
        if not _add_block(sizes[:n], cut[:n], True, words):
            return False
    return True


@njit(nogil=True, cache=True)
def _add_changes(new, x, words):
    sizes, cut = np.empty(_BLOCK), np.empty(_BLOCK)
    for first in range(0, len(x), _BLOCK):
        n = min(_BLOCK, len(x) - first)
        for k in range(n):
            sizes[k] = abs(np.float64(new[first + k]) - np.float64(x[first + k]))
        if not _add_block(sizes[:n], cut[:n], False, words):
            return False
    return True


@njit(nogil=True, cache=True)
def _add_block(sizes, cut, squares, words):
    """Add floats that are not negative, or their squares; `sizes` and `cut` are overwritten."""
    bits, cut_bits = sizes.view(np.int64), cut.view(np.int64)
    most, least = _find_range(bits)
    if most >= _LARGE or least < _SMALL:
        return _add_each(sizes, squares, words)
    if squares:
        for k in range(len(sizes)):
            sizes[k] *= sizes[k]
        most = _find_range(bits)[0]
    top, is_left = (most >> _MANTISSA) - _BIAS + 2, most > 0
    while is_left:
        anchor = math.ldexp(1.5, top)
        cut[0] = anchor
        anchor_bits = cut_bits[0]
        for k in range(len(sizes)):
            cut[k] = sizes[k] + anchor
        for k in range(len(sizes)):
            sizes[k] -= cut[k] - anchor
        total, left = np.int64(0), np.int64(0)
        for k in range(len(sizes)):
            total += cut_bits[k] - anchor_bits  # each less than 2^51: no sum may wrap, as Numba takes it for granted
        for k in range(len(sizes)):
            left |= bits[k]
        _place(total, top - _MANTISSA, words)
        top, is_left = top - _MANTISSA, left << 1 != 0
    return True


@njit(nogil=True, cache=True)
def _find_range(bits):
    """The largest of the bits of floats that are not negative, and the least of those that are not 0."""
    most, least = np.int64(0), np.uint64(2**64 - 1)
    for k in range(len(bits)):
        most = max(most, bits[k])
    for k in range(len(bits)):
        least = min(least, np.uint64(bits[k] - 1))  # 0 is the largest of these
    return most, least


@njit(nogil=True, cache=True)
def _add_each(sizes, squares, words):
    """The same, one by one, for floats of any size."""
    for k in range(len(sizes)):
        if not sizes[k] < np.inf:
            return False
        fraction, exponent = math.frexp(sizes[k])
        if squares:
            fraction, exponent = fraction * fraction, 2 * exponent
        _place(np.int64(fraction * 2.0**54), exponent - 54, words)
    return True


@njit(nogil=True, cache=True)
def _place(number, exponent, words):
    """Add number * 2^exponent."""
    place = exponent + UNIT_BITS
    word, shift, sign = place >> 5, place & (_WORD - 1), 1 if number >= 0 else -1
    low, high = (abs(number) & _MASK) << shift, (abs(number) >> _WORD) << shift
    words[word] += sign * (low & _MASK)
    words[word + 1] += sign * ((low >> _WORD) + (high & _MASK))
    words[word + 2] += sign * (high >> _WORD)
