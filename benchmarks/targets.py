"""What iterations of PageRank are to reach, and whether they do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.rank_records import Record

LARGE = 50_000_000
"""Edges of the graphs that count for the mean."""
LEAST_RATIOS = {"float32": (2.0, 3.3), "exact": (1.5, 2.4)}
"""By precision: how many times as fast as cuGraph on each graph, and in geometric mean of the large ones."""
MOST_PREPARATION = 25.0
"""Iterations that preparation may take."""
LITTLE_PREPARATION_S = 0.5e-3
"""Seconds that it may take on any graph."""
GREATEST, BESIDE, LEAST_SHARE = "rmat27", "rmat24", 0.6
"""A graph, another, and the share of the other's edges per second that it is to reach at least."""


@dataclass(frozen=True)
class Target:
    """One of them."""

    name: str
    wanted: str
    found: str
    is_met: bool


def mean_ratio(records: Sequence[Record], precision: str) -> float | None:
    """Geometric mean of the ratios on the large graphs; None where there are none."""
    own = [r for r in records if r.contender == precision and r.n_edges >= LARGE]
    ratios = [r.ratio for r in own if r.ratio is not None]
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def judge_targets(records: Sequence[Record]) -> Iterator[Target]:
    """Every target that the records say anything about. One that was not timed meets none."""
    for precision in LEAST_RATIOS:
        own = [r for r in records if r.contender == precision]
        if not own:
            continue
        yield from _judge_ratios(own, precision)
        yield _judge_preparation(own, precision)
        yield from _judge_greatest(own, precision)


def _judge_ratios(own: Sequence[Record], precision: str) -> Iterator[Target]:
    compared = {r.graph: r.ratio for r in own if r.ratio is not None}
    if not compared:
        return
    least, least_mean = LEAST_RATIOS[precision]
    graph = min(compared, key=lambda name: compared[name])
    missing = [r.graph for r in own if r.problem is not None]
    found = f"{compared[graph]:.2f} ({graph}){_name_missing(missing)}"
    is_met = compared[graph] >= least and not missing
    yield Target(f"{precision}, each graph beside cuGraph", f"at least {least}", found, is_met)
    mean = mean_ratio(own, precision)
    if mean is not None:
        large = [r for r in own if r.n_edges >= LARGE]
        missing = [r.graph for r in large if r.problem is not None]
        found = f"{mean:.2f}, of {sum(r.ratio is not None for r in large)}{_name_missing(missing)}"
        is_met = mean >= least_mean and not missing
        yield Target(f"{precision}, geometric mean of the large", f"at least {least_mean}", found, is_met)


def _judge_preparation(own: Sequence[Record], precision: str) -> Target:
    counts = {
        r.graph: r.prepare_iterations
        for r in own
        if r.prepare_iterations is not None and (r.prepare_s or math.inf) > LITTLE_PREPARATION_S
    }
    missing = [r.graph for r in own if r.problem is not None]
    graph = max(counts, key=lambda name: counts[name], default=None)
    found = "" if graph is None else f"{counts[graph]:.1f} ({graph})"
    is_met = (graph is None or counts[graph] <= MOST_PREPARATION) and not missing
    wanted = f"at most {MOST_PREPARATION:.0f}, or {LITTLE_PREPARATION_S * 1e3} ms"
    return Target(f"{precision}, preparation in iterations", wanted, found + _name_missing(missing), is_met)


def _judge_greatest(own: Sequence[Record], precision: str) -> Iterator[Target]:
    rates = {r.graph: r.edges_per_s for r in own}
    greatest, beside = rates.get(GREATEST), rates.get(BESIDE)
    if greatest is not None and beside is not None:
        share = greatest / beside
        name = f"{precision}, edges per second of {GREATEST} beside {BESIDE}"
        yield Target(name, f"at least {LEAST_SHARE:.0%}", f"{share:.0%}", share >= LEAST_SHARE)


def _name_missing(graphs: Sequence[str]) -> str:
    return f"; not timed: {', '.join(graphs)}" if graphs else ""
