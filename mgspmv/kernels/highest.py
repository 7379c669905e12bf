"""Selection of the highest ranks, on host or device, by one rule: highest first, ties by number, NaN last.

The functions at the end judge whether a bound on the error of the ranks certifies who is highest, and in which order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mgspmv.model import Stability

SAMPLED = 16
"""Sampling interval, in entries, for a lower bound on the k highest."""


def select_highest(values: np.ndarray, k: int) -> np.ndarray:
    """Return the positions of the k highest entries, highest first, ties by position, NaN last; O(n + k log k)."""
    (highest,), _ = select_each(values[None], k, None)
    return np.asarray(highest)


def select_each(
    vectors: Any, k: int, numbers: Any | None, xp: Any = np, get: Callable[[Any], np.ndarray] = np.asarray
) -> tuple[np.ndarray, np.ndarray]:
    """Select the k highest entries of each vector, highest first, ties by number, NaN last.

    Parameters
    ----------
    vectors : (j, n) float32 or float64, of `xp`
    numbers : (n,) distinct integers, of `xp`, one per entry; None for its position
    xp : NumPy or CuPy
    get : copies an array of `xp` to the host

    Returns
    -------
    Numbers, int64, and entries, both (j, min(k, n)) and on the host.
    """
    shape = len(vectors), min(k, vectors.shape[1])
    chosen, highest = np.empty(shape, np.int64), np.empty(shape, vectors.dtype)
    for own_numbers, own, vector in zip(chosen, highest, vectors, strict=True):
        places = find_highest(vector, k, numbers, xp)
        found, named = get(vector[places]), get(places if numbers is None else numbers[places])
        order = order_highest(found, named, k)
        own_numbers[:], own[:] = named[order], found[order]
    return chosen, highest


def order_highest(values: np.ndarray, numbers: np.ndarray, k: int) -> np.ndarray:
    """Return positions of the k highest entries, highest first, ties by number, NaN last; O(n log n), on the host."""
    keys = np.where(np.isnan(values), values.dtype.type(-np.inf), values)
    return np.lexsort((numbers, -keys))[:k]


def find_highest(values: Any, k: int, numbers: Any | None = None, xp: Any = np) -> Any:
    """Find the positions of the k highest entries, in any order; ties by number, NaN last.

    Parameters
    ----------
    values : (n,) float32 or float64, of `xp`
    numbers, xp : as for `select_each`
    """
    if k < len(values) // (4 * SAMPLED):
        # The k-th highest of a sample is a lower bound on the k-th highest of all.
        least = xp.partition(values[::SAMPLED], -k)[-k]
        places = xp.flatnonzero(values >= least)
        if len(places) >= k:  # fewer only if there are NaN
            return places[_find(values[places], k, None if numbers is None else numbers[places], xp)]
    return _find(values, k, numbers, xp)


def _find(values: Any, k: int, numbers: Any | None, xp: Any) -> Any:
    keys = xp.where(xp.isnan(values), values.dtype.type(-np.inf), values)
    k = min(k, len(keys))
    if k == 0:
        return xp.empty(0, np.int64)
    least = xp.partition(keys, len(keys) - k)[len(keys) - k]
    above, equal = xp.flatnonzero(keys > least), xp.flatnonzero(keys == least)
    n_wanted = k - len(above)
    if numbers is not None and n_wanted < len(equal):
        own = numbers[equal]
        equal = equal[own <= xp.partition(own, n_wanted - 1)[n_wanted - 1]]
    return xp.concatenate([above, equal[:n_wanted]])


def find_ties(is_cut: np.ndarray) -> tuple[tuple[int, int], ...]:
    """Find the first and last place, from 1, of each run of places without a cut.

    Parameters
    ----------
    is_cut : (n - 1,) whether places k + 1 and k + 2 are in a known order
    """
    ends = np.flatnonzero(np.append(is_cut, True)) + 1
    starts = np.append(1, ends[:-1] + 1)
    return tuple((int(a), int(b)) for a, b in zip(starts, ends, strict=True) if a < b)


def check_order(values: np.ndarray, k: int, bound: float) -> Stability:
    """Return the stability of the k highest ranks, given an error bound on the difference of any two.

    Parameters
    ----------
    values : (n,) ranks
    bound : on the L1 distance of the ranks to the solution, which also bounds the difference of any two
    """
    return check_places(values[select_highest(values, k + 1)], bound)


def check_places(places: np.ndarray, bound: float) -> Stability:
    """Return the stability of `check_order`, given the ranks at places 1 .. k + 1."""
    places = places.astype(np.float64)
    gaps = places[:-1] - places[1:]
    return Stability(len(gaps), bool(gaps[-1] > bound), float(gaps[-1]), float(bound), find_ties(gaps > bound))
