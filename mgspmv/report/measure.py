"""Measurements of ranks and of graphs for records: a few hundred numbers, whatever the size of the input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from mgspmv.batch_results import BatchSolution
from mgspmv.results import Solution
from mgspmv.store.chunks import CHUNK_ELEMENTS
from mgspmv.store.metadata import MatrixProperties
from mgspmv.validation import to_json

POINTS = 256
"""Number of ranks of a distribution, in addition to the highest."""
HIGHEST = 32
"""Number of highest ranks listed one by one, as few vertices have them."""
EXACT_DEGREES = 16
"""Degree up to which each degree is listed; above it, eight per octave."""

Pairs = list[list[float]]


def measure_distribution(values: np.ndarray) -> Pairs:
    """Count the ranks at or above thresholds; O(n log n), with a sorted float64 copy.

    Parameters
    ----------
    values : (n,) float32 or float64; non-finite values are left out

    Returns
    -------
    [rank, number of ranks at least that high], ranks descending, counts ascending: of the highest `HIGHEST` and of up
    to `POINTS` in geometric progression between the least positive and the greatest; each count is exact and occurs
    once. The last pair is of the least rank, and so its count is the number of finite ranks.
    """
    found = np.sort(values[np.isfinite(values)].astype(np.float64))
    if not len(found):
        return []
    positive = found[np.searchsorted(found, 0.0, side="right") :]
    between = (
        np.geomspace(positive[0], positive[-1], POINTS) if len(positive) and positive[0] < positive[-1] else np.empty(0)
    )
    edges = np.unique([found[0], *found[-HIGHEST:], *between])[::-1]
    return _pair(edges, len(found) - np.searchsorted(found, edges, side="left"))


def measure_degrees(matrix: MatrixProperties) -> dict[str, Pairs]:
    """Count the vertices at or above degrees: `in` and `out` of a graph, `rows` of another matrix.

    Reads row pointers and out-degrees once, `CHUNK_ELEMENTS` at a time.

    Returns
    -------
    For each, [degree, number of vertices with at least it], degrees ascending: each up to `EXACT_DEGREES`, then eight
    to an octave, and the greatest; a degree with the same count as the next one is left out. Empty without rows.

    Raises
    ------
    StoreError : the store is damaged
    """
    stored, (n_rows, n_cols) = matrix.stored, matrix.shape
    entering = (np.diff(stored.read_pointers(*rows)) for rows in _cut(n_rows))
    if matrix.kind == "matrix":
        return {"rows": _count_degrees(entering)}
    leaving = (stored.read_out_degree(*columns) for columns in _cut(n_cols))
    return {"in": _count_degrees(entering), "out": _count_degrees(leaving)}


def describe_iterations(solution: Solution | BatchSolution) -> dict[str, Any]:
    """Return the fields of a `StepRecord` about the iterations: options, matrix, seconds, memory and result, as JSON
    values. Of many vectors, the changes of the slowest, the median and the fastest."""
    described = solution.to_dict()
    fields = {name: described.pop(name) for name in ("options", "matrix", "seconds", "memory")}
    if isinstance(solution, Solution):
        names = ("product_s", "exchange_s", "wait_s")
        events = [{name: list(getattr(event, name)) for name in names} for event in solution.events]
        return fields | {"result": described | {"events": events}}
    for k, pace in _choose_vectors(solution).items():
        described["vectors"][k] |= {"pace": pace, "changes": to_json(solution.changes[k])}
    return fields | {"result": described}


def _choose_vectors(batch: BatchSolution) -> dict[int, str]:
    """Return the numbers of the slowest vector (any that did not converge), of the median and of the fastest."""
    order = sorted(range(len(batch)), key=lambda k: (batch.statuses[k].is_success, -len(batch.changes[k])))
    return {order[len(order) // 2]: "median", order[-1]: "fastest", order[0]: "slowest"}


def describe_solution(solution: Solution, k: int = 10) -> dict[str, Any]:
    """Return the fields of a `StepRecord` about ranks: iterations, summary, distribution and top k, as JSON values."""
    return describe_iterations(solution) | {
        "summary": to_json(solution.summary().to_dict()),
        "distribution": measure_distribution(solution.values),
        "top": [[name, to_json(rank)] for name, rank in solution.top(k)],
    }


def _cut(n: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + CHUNK_ELEMENTS, n)) for start in range(0, n, CHUNK_ELEMENTS))


def _count_degrees(pieces: Iterable[np.ndarray]) -> Pairs:
    found: Counter[int] = Counter()
    for degrees in pieces:
        found.update(dict(zip(*(own.tolist() for own in np.unique(degrees, return_counts=True)), strict=True)))
    if not found:
        return []
    degrees, counts = np.array(sorted(found.items()), np.int64).T
    at_least = np.cumsum(counts[::-1])[::-1]
    octaves = np.round(EXACT_DEGREES * 2.0 ** (np.arange(1, 8 * 48) / 8)).astype(np.int64)
    edges = np.concatenate([np.arange(EXACT_DEGREES + 1), octaves])
    edges = np.append(edges[edges < degrees[-1]], degrees[-1])
    # Descending, so that of several degrees with the same count the highest is kept.
    return _pair(edges[::-1], at_least[np.searchsorted(degrees, edges)][::-1])[::-1]


def _pair(values: np.ndarray, counts: np.ndarray) -> Pairs:
    """Pair descending values with ascending counts; of values with the same count the first is kept."""
    is_new = np.diff(counts, prepend=0) > 0
    return [[value, count] for value, count in zip(values[is_new].tolist(), counts[is_new].tolist(), strict=True)]
