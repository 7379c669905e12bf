"""Comparison of ranks with the ranks that they replace: changes of the order, and the vertices that moved."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from mgspmv.batch_results import BatchSolution
from mgspmv.results import Solution
from mgspmv.validation import to_json

MOVED = 20
"""Most vertices, or vectors of a batch, that a comparison lists."""


def compare_ranks(before: Solution, now: Solution, k: int) -> dict[str, Any]:
    """Compare ranks `before` and `now`; the result is JSON values.

    Parameters
    ----------
    k : number of highest vertices to compare

    Returns
    -------
    `n_common`, `n_new`, `n_gone` : vertices of both, of `now` only, of `before` only
    `spearman` : rank correlation over the vertices of both, ties at their mean place; None if it is not defined
    `overlap` : share of the k highest that are the same
    `kendall_top` : Kendall's tau-b of the vertices that are in both graphs and among the k highest of either
    `l1` : sum of |now - before| over all vertices, with 0 for missing ones; None if they are scaled differently
    `moved` : [id, place before, place now, rank before, rank now] of the vertices of `kendall_top`, the furthest first.
        A place is 1 plus the number of higher ranks
    """
    from scipy.stats import kendalltau, spearmanr

    old, new = match_ids(before.ids, now.ids)
    was, is_now = before.values[old], now.values[new]
    high_before, high_now = before.select_highest(k), now.select_highest(k)
    was_high, is_high = np.isin(old, high_before), np.isin(new, high_now)
    either = was_high | is_high
    found: dict[str, Any] = to_json(
        {
            "n_common": len(old),
            "n_new": len(now.values) - len(new),
            "n_gone": len(before.values) - len(old),
            "spearman": _correlate(spearmanr, was, is_now),
            "overlap": int(np.count_nonzero(was_high & is_high)) / max(len(high_before), len(high_now), 1),
            "kendall_top": _correlate(kendalltau, was[either], is_now[either]),
            "l1": None if before.scaler != now.scaler else _measure_distance(before, now, old, new),
            "moved": _list_moved(now.ids, before, now, old[either], new[either]),
        }
    )
    return found


def match_ids(before: np.ndarray, now: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the common ids in either array, (n_common,) int64 each, in ascending order of the ids."""
    if (before.dtype == object) != (now.dtype == object):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    _, old, new = np.intersect1d(before, now, assume_unique=True, return_indices=True)
    return old, new


def _correlate(measure: Callable[..., Any], a: np.ndarray, b: np.ndarray) -> float | None:
    """Compute a statistic of SciPy; None if it is not defined, such as for fewer than two values."""
    if len(a) < 2:
        return None
    with warnings.catch_warnings(category=RuntimeWarning, action="ignore"):  # SciPy warns if all values are equal
        found = float(measure(a, b).statistic)
    return None if np.isnan(found) else found


def _measure_distance(before: Solution, now: Solution, old: np.ndarray, new: np.ndarray) -> float:
    common = now.values[new].astype(np.float64) - before.values[old]
    # A vertex of only one of the graphs has rank 0 in the other.
    alone = [np.delete(before.values, old), np.delete(now.values, new)]
    return sum(float(np.abs(own).sum(dtype=np.float64)) for own in (common, *alone))


def _list_moved(ids: np.ndarray, before: Solution, now: Solution, old: np.ndarray, new: np.ndarray) -> list[list[Any]]:
    from scipy.stats import rankdata

    place_before, place_now = (rankdata(-own.values, "min")[where] for own, where in ((before, old), (now, new)))
    # Stable, so that ties are listed in the order of ids.
    order = np.argsort(-np.abs(place_now - place_before), kind="stable")[:MOVED]
    order = order[place_now[order] != place_before[order]]
    columns = (ids[new], place_before, place_now, before.values[old], now.values[new])
    return [list(row) for row in zip(*(column[order].tolist() for column in columns), strict=True)]


def compare_batches(before: BatchSolution, now: BatchSolution, k: int) -> dict[str, Any]:
    """Compare the highest ranks of the vectors of `before` and `now`, by their labels; the result is JSON values.

    Parameters
    ----------
    k : number of highest vertices of each vector to compare, at most as many as both kept

    Returns
    -------
    `n_vectors`, `n_vectors_new`, `n_vectors_gone` : vectors of both, of `now` only, of `before` only
    `vectors` : up to `MOVED` common vectors, least overlap first: `label`; `overlap`, the share of the highest that
        are the same; `entered` and `left`, ids of vertices that joined and left the highest
    """
    k = min([k, *(int(batch.options["top"]) for batch in (before, now) if batch.values is None)])
    high_before, high_now = before.top(k), now.top(k)
    vectors = []
    for label in filter(high_before.__contains__, now.labels):
        were, are = ([name for name, _ in high[label]] for high in (high_before, high_now))
        overlap = len({*were} & {*are}) / max(len(were), len(are), 1)
        entered, left = [name for name in are if name not in were], [name for name in were if name not in are]
        vectors.append({"label": label, "overlap": overlap, "entered": entered, "left": left})
    found: dict[str, Any] = to_json(
        {
            "n_vectors": len(vectors),
            "n_vectors_new": len(now) - len(vectors),
            "n_vectors_gone": len(before) - len(vectors),
            "vectors": sorted(vectors, key=lambda vector: float(vector["overlap"]))[:MOVED],
        }
    )
    return found
