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
    chosen, highest = np.empty((len(vectors), k), np.int64), np.empty((len(vectors), k), vectors.dtype)
    found = _search_groups(vectors, k, xp, get)
    for own_numbers, own, vector, candidates in zip(chosen, highest, vectors, found, strict=True):
        if candidates is None:
            places = _find_sampled(vector, k, numbers, xp)
            values, named = get(vector[places]), get(places if numbers is None else numbers[places])
        else:
            named, values = candidates
            named = named if numbers is None else get(numbers[xp.asarray(named)])
        order = order_highest(values, named, k)
        own_numbers[:], own[:] = named[order], values[order]
    return chosen, highest


def order_highest(values: np.ndarray, numbers: np.ndarray, k: int) -> np.ndarray:
    """Return positions of the k highest entries along the last axis, highest first, ties by number, NaN last;
    O(n log n), on the host."""
    keys = np.where(np.isnan(values), values.dtype.type(-np.inf), values)
    return np.lexsort((numbers, -keys))[..., :k]


def _search_groups(
    vectors: Any, k: int, xp: Any, get: Callable[[Any], np.ndarray]
) -> list[tuple[np.ndarray, np.ndarray] | None]:
    """Find places and values of entries that include the k highest, on the host; None for a vector with NaN or ties.

    Entries i, i + n_groups, i + 2 n_groups, ... are a group. The k-th highest of the maxima of groups is a lower bound
    on the k-th highest entry, so that only groups with a maximum of at least that are searched.
    """
    n_vectors, n = vectors.shape
    size = math.isqrt(n // k) if k else 0
    if size < LEAST_GROUP:
        return [None] * n_vectors
    n_groups = n // size
    rest = size * n_groups  # entries from here on are in no group
    maxima = get(vectors.T[:rest].reshape(size, n_groups, n_vectors).max(axis=0)).T
    least = np.partition(maxima, n_groups - k, axis=1)[:, n_groups - k]  # NaN are highest
    searched = [np.flatnonzero(own >= bound) for own, bound in zip(maxima, least, strict=True)]
    n_searched = [len(own) if len(own) <= MOST_TIES * k else 0 for own in searched]
    if not any(n_searched):
        return [None] * n_vectors
    groups = np.zeros((n_vectors, max(n_searched)), np.int64)
    for padded, own, n_own in zip(groups, searched, n_searched, strict=True):
        padded[:n_own] = own[:n_own]
    places = groups[:, None] + n_groups * np.arange(size)[:, None]
    values, last = get(vectors[xp.arange(n_vectors)[:, None, None], xp.asarray(places)]), get(vectors[:, rest:])
    found = list[tuple[np.ndarray, np.ndarray] | None]()
    for i, (n_own, bound) in enumerate(zip(n_searched, least, strict=True)):
        own_places = np.append(places[i, :, :n_own], np.arange(rest, n))
        own = np.append(values[i, :, :n_own], last[i])
        is_high = own >= bound
        found.append((own_places[is_high], own[is_high]) if n_own and not np.isnan(maxima[i]).any() else None)
    return found


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
