"""Selection of the highest ranks, on host or device, by one rule: highest first, ties by number, NaN last.

The functions at the end judge whether a bound on the error of the ranks certifies who is highest, and in which order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mgspmv.model import Stability

LEAST_GROUP = 10
"""Least entries per group whose maxima are compared before entries are."""
MOST_TIES = 4
"""Most groups that are searched, as a multiple of the entries to select."""
SAMPLED = 16
"""Sampling interval, in entries, for a lower bound on the k highest where groups are not searched."""


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
    k = min(k, vectors.shape[1])
    is_found, found, places = _search_groups(vectors, k, xp, get)
    others = [(i, _find_sampled(vectors[i], k, numbers, xp)) for i in np.flatnonzero(~is_found).tolist()]
    which = np.concatenate([get(found), *(np.full(len(own), i) for i, own in others)])
    places = xp.concatenate([places, *(own for _, own in others)])
    values, named = get(vectors[xp.asarray(which), places]), get(places if numbers is None else numbers[places])
    chosen = np.empty((len(vectors), k), np.int64)
    for i, own in enumerate(chosen):
        candidates = np.flatnonzero(which == i)
        own[:] = candidates[order_highest(values[candidates], named[candidates], k)]
    return named[chosen].astype(np.int64), values[chosen]


def order_highest(values: np.ndarray, numbers: np.ndarray, k: int) -> np.ndarray:
    """Return positions of the k highest entries along the last axis, highest first, ties by number, NaN last;
    O(n log n), on the host."""
    keys = np.where(np.isnan(values), values.dtype.type(-np.inf), values)
    return np.lexsort((numbers, -keys))[..., :k]


def _search_groups(vectors: Any, k: int, xp: Any, get: Callable[[Any], np.ndarray]) -> tuple[np.ndarray, Any, Any]:
    """Find entries that include the k highest of each vector.

    Entries i, i + n_groups, i + 2 n_groups, ... are a group. The k-th highest of the maxima of groups is a lower bound
    on the k-th highest entry, so that only groups with a maximum of at least that are searched.

    Returns
    -------
    (n_vectors,) bool, on the host: whether they were found, which is not the case with NaN and many ties; and of those
    found, arrays of `xp`: the number of the vector, and the place in it.
    """
    n_vectors, n = vectors.shape
    size = math.isqrt(n // k) if k else 0
    if size < LEAST_GROUP:
        return np.zeros(n_vectors, np.bool_), xp.empty(0, np.int64), xp.empty(0, np.int64)
    n_groups, by_entry = n // size, vectors.T
    rest = size * n_groups
    maxima = by_entry[:rest].reshape(size, n_groups, n_vectors).max(axis=0)
    maxima[: n - rest] = xp.maximum(maxima[: n - rest], by_entry[rest:])
    maxima = np.ascontiguousarray(get(maxima).T)
    least = np.partition(maxima, n_groups - k, axis=1)[:, n_groups - k]  # NaN are highest
    is_searched = maxima >= least[:, None]
    is_found = ~np.isnan(maxima).any(axis=1) & (is_searched.sum(axis=1) <= MOST_TIES * k)
    numbers, groups = np.nonzero(is_searched & is_found[:, None])
    bounds, numbers = xp.asarray(least[numbers])[:, None], xp.asarray(numbers)
    places = xp.asarray(groups)[:, None] + n_groups * xp.arange(size + 1)
    is_high = (vectors[numbers[:, None], xp.minimum(places, n - 1)] >= bounds) & (places < n)
    rows, steps = xp.nonzero(is_high)
    return is_found, numbers[rows], places[rows, steps]


def _find_sampled(values: Any, k: int, numbers: Any | None, xp: Any) -> Any:
    """Find places as `_find` does, among those of entries that may be the k highest, as `partition` is slow on many."""
    if 0 < k < len(values) // (2 * SAMPLED):
        # The k-th highest of a sample is a lower bound on the k-th highest of all.
        places = xp.flatnonzero(values >= xp.partition(values[::SAMPLED], -k)[-k])
        if len(places) >= k:  # fewer only if there are NaN
            return places[_find(values[places], k, None if numbers is None else numbers[places], xp)]
    return _find(values, k, numbers, xp)


def _find(values: Any, k: int, numbers: Any | None, xp: Any) -> Any:
    """Find the places of the k highest entries, in any order; O(n log n) on a device, whose partition sorts."""
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
