"""How soon PageRank ends on stored graphs: plain, extrapolated, and when the k highest vertices are proven.

All ranks are checked beside a power iteration in float64 that uses no kernel of the project, before there are times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
import scipy.sparse

from benchmarks.spmv_tables import format_setting
from mgspmv import api
from mgspmv.api import Matrix
from mgspmv.kernels.highest import select_highest
from mgspmv.results import Solution

TOL, MAX_ITER = 1e-10, 400
ALPHA = 0.85
RUNS: Mapping[str, Mapping[str, Any]] = {
    "power": {},
    "extrapolation": {"method": "extrapolation"},
    **{f"topk:{k}": {"stop": f"topk:{k}"} for k in (10, 100, 1000)},
}
PHASES = ("product", "exchange", "look")
LEGEND = (
    f"Iterations until the change in L1 is below {TOL:g}, or until the k highest vertices are proven; in brackets ms "
    "of iterating and looking, the least of the rounds. A dash: places k and k + 1 are tied, and the change ends it."
)


@dataclass(frozen=True)
class Record:
    """What a run did on a graph."""

    graph: str
    run: str
    """Key of `RUNS`."""
    iterations: int
    elapsed_s: float
    """Least of the rounds."""
    is_tied: bool
    """Whether the k highest were to be proven and were not."""
    is_right: bool


def run_methods(
    stores: Sequence[str], rounds: int, threads: int | None = None, say: Callable[[str], None] = lambda line: None
) -> list[Record]:
    """Check and time all runs on each store, in turn in each round."""
    records = []
    for store in stores:
        name = PurePath(store).stem
        with api.open_matrix(store) as A:
            wanted = rank_plainly(A)
            runs = {run: asked for run, asked in RUNS.items() if A.shape[0] > 1000 or "stop" not in asked}
            made: dict[str, list[Solution]] = {run: [] for run in runs}
            for _ in range(rounds):
                for run, asked in runs.items():
                    given: dict[str, Any] = {"tol": TOL, "max_iter": MAX_ITER, "backend": "cpu", "threads": threads}
                    made[run].append(api.pagerank(A, **given, **asked))
            for run, solutions in made.items():
                records.append(_record(name, run, solutions, wanted))
                say(f"{name}, {run}: {records[-1].iterations} iterations, {1e3 * records[-1].elapsed_s:.3g} ms")
    return records


def _record(graph: str, run: str, solutions: Sequence[Solution], wanted: np.ndarray) -> Record:
    solution, found = solutions[0], solutions[0].stability
    elapsed_s = min(sum(s.seconds.get(phase, 0.0) for phase in PHASES) for s in solutions)
    is_tied = found is not None and not found.is_proven
    return Record(graph, run, solution.iterations, elapsed_s, is_tied, is_right(solution, wanted))


def is_right(solution: Solution, wanted: np.ndarray) -> bool:
    """Whether ranks are as far off as is said at most, and the highest are the highest."""
    distance, found = float(np.abs(solution.values - wanted).sum()), solution.stability
    if distance > solution.error_bound_l1 + 1e-13:
        return False
    if found is None or not found.is_proven:
        return True
    is_high = np.zeros(len(wanted), np.bool_)
    is_high[select_highest(solution.values, found.k)] = True
    return bool(wanted[is_high].min() > wanted[~is_high].max())


def rank_plainly(A: Matrix) -> np.ndarray:
    """(n,) float64: ranks by SciPy's products, after so many iterations that no more change them."""
    arcs = A.to_scipy()
    n, total = arcs.shape[0], np.asarray(arcs.sum(axis=0), np.float64).ravel()
    share = np.divide(1.0, total, out=np.zeros(n), where=total > 0)
    follow, is_dangling = scipy.sparse.csr_array(arcs @ scipy.sparse.diags_array(share)), total == 0
    x = np.full(n, 1 / n)
    for _ in range(MAX_ITER):
        x, before = ALPHA * (follow @ x + x[is_dangling].sum() / n) + (1 - ALPHA) / n, x
        if np.abs(x - before).sum() < 1e-15:
            break
    return x


def format_report(setting: Mapping[str, str], records: Sequence[Record]) -> str:
    """A table, below what it was measured on."""
    runs = list(dict.fromkeys(r.run for r in records))
    rows = {graph: {r.run: r for r in records if r.graph == graph} for graph in dict.fromkeys(r.graph for r in records)}
    lines = [*format_setting(setting), "", f"| graph | {' | '.join(runs)} |", "|---" * (len(runs) + 1) + "|"]
    for graph, of_runs in rows.items():
        lines.append(f"| {graph} | {' | '.join(_format_cell(of_runs.get(run)) for run in runs)} |")
    return "\n".join([*lines, "", LEGEND, ""])


def _format_cell(record: Record | None) -> str:
    if record is None:
        return ""
    if not record.is_right:
        return "wrong"
    return "–" if record.is_tied else f"{record.iterations} ({1e3 * record.elapsed_s:.3g})"


def to_json(setting: Mapping[str, str], records: Sequence[Record]) -> dict[str, Any]:
    """All that was found, as JSON values."""
    return {"setting": dict(setting), "records": [asdict(r) for r in records]}
