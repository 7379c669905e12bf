"""Check, then time PageRank with the executors `tasks` and `supersteps`, in turn on the same workers.

    python -m benchmarks.executors --scale 20 --edge-factors 4 16

Worker processes on this machine load an R-MAT graph once; both executors and, for orientation, `embedded` then make the
same iterations, A B C A B C ... All ranks must be bit-identical, and equal SciPy's up to rounding; an executor with
other ranks is not timed, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

import mgspmv as mg
from benchmarks.measure import Rounds, say, take_turns
from benchmarks.program import add_file_options, make_parser, run_program
from benchmarks.stores import ALPHA, Graph, open_cache
from benchmarks.tables import Setting, Table, format_text, judge, write_files
from mgspmv.cluster.connect import start_local
from mgspmv.model import default_threads

EXECUTORS = ("tasks", "supersteps", "embedded")
BESIDE = "supersteps"
"""What the others are compared with."""
FLOORS = {"scheduler": 3.0}
"""How many times as fast supersteps are to be."""
PHASES = ("product", "exchange", "schedule")
"""Of a solution's seconds, all that iterating took."""
PERMITTED_L1 = {"exact": 1e-9, "float64": 1e-9, "float32": 1e-5}
"""L1 distance of ranks to SciPy's after as many iterations."""
Call = Callable[[str], mg.Solution]
"""PageRank with one executor, in a given precision."""

HEADER = (
    "arcs / vertex", "executor", "threads", "median ms", "least ms", "runs", "ms / iter.", "product", "exchange",
    "scheduling", "received MB", "ratio", "wanted",
)  # fmt: skip
LEGEND = (
    "threads: workers x threads of each; embedded has as many in one process.",
    "median ms, least ms: of all iterations of a run, without its start and its end.",
    "product: of the worker that is slowest in each iteration; exchange: moving slices, the mean of the workers, less "
    "what they wait for slower ones; scheduling: all other time, of scheduler also z's way from worker to worker.",
    "received MB: by a worker in an iteration, on average, in 10^6 bytes.",
    "ratio: the row's median over that of superstep; 2 says that supersteps take half.",
)


@dataclass(frozen=True)
class Run:
    """What one call of PageRank took."""

    seconds: dict[str, float]
    """By phase."""
    received_bytes: float
    """By a worker in an iteration, on average."""
    digest: str
    """Of the ranks."""

    @classmethod
    def observe(cls, solution: mg.Solution) -> Run:
        seconds = {phase: solution.seconds.get(phase, 0.0) for phase in PHASES}
        received = mean(mean(event.exchanged_bytes) for event in solution.events)
        return cls(seconds, received, solution.digest())

    @property
    def elapsed_s(self) -> float:
        return sum(self.seconds.values())


@dataclass(frozen=True)
class Row:
    """Results of an executor on a graph."""

    scale: int
    edge_factor: int
    n_arcs: int
    precision: str
    iterations: int
    executor: str
    threads: str
    remark: str = ""
    """What was wrong."""
    runs: tuple[Run, ...] = ()
    """Timed runs; empty if the ranks were wrong."""
    ratio: float | None = None
    """Median over that of supersteps."""
    floor: float | None = None
    """What the ratio is to be at least."""

    @property
    def median_s(self) -> float:
        return median(run.elapsed_s for run in self.runs)

    def share(self, phase: str) -> float:
        """Of the seconds of all runs, those in a phase."""
        return sum(run.seconds[phase] for run in self.runs) / sum(run.elapsed_s for run in self.runs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the executors on each graph; return 1 if ranks were wrong."""
    options = _parse(arguments)
    setting = Setting.observe("benchmarks.executors", arguments)
    with open_cache(options.cache) as folder, start_local(options.workers, _count_threads(options)) as cluster:
        rows = [row for factor in options.edge_factors for row in measure_graph(factor, folder, cluster, options)]
    tables = tabulate(rows)
    write_files(options, rows, tables, setting, LEGEND)
    print("\n".join([*setting.lines(), "", format_text(tables), "", *LEGEND]))
    return int(any(row.remark for row in rows))


def measure_graph(edge_factor: int, folder: Path, cluster: Any, options: argparse.Namespace) -> list[Row]:
    """Check the executors on a graph, then time those with correct ranks."""
    what, each = f"scale {options.scale}, {edge_factor} arcs a vertex", _count_threads(options)
    say(f"{what}: making the graph and distributing it")
    graph = Graph.make(options.scale, folder, edge_factor)
    with mg.open_matrix(graph.store) as A, A.distribute(cluster, precision=options.precision) as D:
        calls = {executor: partial(rank, D, executor, options.iterations) for executor in EXECUTORS}
        calls["embedded"] = partial(rank, A, "embedded", options.iterations, threads=options.workers * each)
        say(f"{what}: checking {', '.join(EXECUTORS)}")
        digest, remarks = check_executors(graph, calls, options.iterations, options.precision)
        able = {
            executor: partial(_run, call, options.precision)
            for executor, call in calls.items()
            if not remarks[executor]
        }
        say(f"{what}: timing {', '.join(able)} in turn")
        runs = take_turns(able, Rounds(options.repeats, least_s=0.0, most_s=math.inf))
        known = (options.scale, edge_factor, A.nnz, options.precision, options.iterations)
    threads = dict.fromkeys(EXECUTORS, f"{options.workers} x {each}") | {"embedded": f"{options.workers * each}"}
    return add_runs(
        [Row(*known, executor, threads[executor], remarks[executor]) for executor in EXECUTORS], runs, digest
    )


def rank(matrix: Any, executor: Any, iterations: int, precision: Any, *, threads: int | None = None) -> mg.Solution:
    """Make so many iterations."""
    asked: dict[str, Any] = {"alpha": ALPHA, "norm": "fixed", "max_iter": iterations, "precision": precision}
    return mg.pagerank(matrix.on(threads=threads, executor=executor), **asked)


def check_executors(
    graph: Graph, calls: Mapping[str, Call], iterations: int, precision: str
) -> tuple[str, dict[str, str]]:
    """Compare ranks in `exact` and in the precision that is timed.

    Returns
    -------
    Digest of the embedded ranks in that precision, and by executor the error of its ranks, empty if correct.
    """
    right, remarks = graph.iterate(iterations), dict.fromkeys(calls, "")
    for checked in dict.fromkeys(("exact", precision)):
        solutions = {executor: call(checked) for executor, call in calls.items()}
        digest = solutions["embedded"].digest()
        for executor, solution in solutions.items():
            error_l1 = float(np.abs(solution.values - right).sum())
            if error_l1 > PERMITTED_L1[checked]:
                remarks[executor] = f"WRONG: {checked} ranks are {error_l1:.2g} from SciPy's in L1"
            elif solution.digest() != digest:
                remarks[executor] = f"WRONG: {checked} ranks have other bits than embedded ones"
    return digest, remarks


def add_runs(rows: Sequence[Row], runs: Mapping[str, Sequence[Run]], digest: str) -> list[Row]:
    """The rows with their runs and ratios; a row loses all runs when one gave ranks of another digest."""
    timed = []
    for row in rows:
        taken = tuple(runs.get(row.executor, ()))
        is_same = all(run.digest == digest for run in taken)
        timed.append(replace(row, runs=taken) if is_same else replace(row, remark="WRONG: other ranks while timed"))
    beside = next(row for row in timed if row.executor == BESIDE)
    return [_add_ratio(row, beside) if row.runs and beside.runs else row for row in timed]


def tabulate(rows: Sequence[Row]) -> list[Table]:
    """All rows in one table."""
    first = rows[0]
    title = f"{first.iterations} iterations of PageRank, 2^{first.scale} vertices, precision {first.precision}"
    return [(title, [HEADER, *map(_cells, rows)])]


def _run(call: Call, precision: str) -> Run:
    return Run.observe(call(precision))


def _add_ratio(row: Row, beside: Row) -> Row:
    return row if row is beside else replace(row, ratio=row.median_s / beside.median_s, floor=FLOORS.get(row.executor))


def _cells(row: Row) -> Sequence[str]:
    if not row.runs:
        return str(row.edge_factor), row.executor, row.threads, row.remark, *[""] * (len(HEADER) - 4)
    return (
        str(row.edge_factor),
        row.executor,
        row.threads,
        f"{row.median_s * 1e3:.1f}",
        f"{min(run.elapsed_s for run in row.runs) * 1e3:.1f}",
        str(len(row.runs)),
        f"{row.median_s / row.iterations * 1e3:.1f}",
        *(f"{row.share(phase):.0%}" for phase in PHASES),
        f"{mean(run.received_bytes for run in row.runs) / 1e6:.2f}",
        "" if row.ratio is None else f"{row.ratio:.2f}",
        judge(row.ratio, row.floor),
    )


def _count_threads(options: argparse.Namespace) -> int:
    """Of each worker, so that together they have one for each processor."""
    return max(1, default_threads() // options.workers)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--scale", type=int, default=20, help="2^scale vertices (20)")
    parser.add_argument("--edge-factors", type=int, nargs="+", default=[4, 16], help="arcs a vertex (4 16)")
    parser.add_argument("--workers", type=int, default=4, help="worker processes (4)")
    parser.add_argument("--iterations", type=int, default=20, help="of each run (20)")
    parser.add_argument("--precision", choices=list(PERMITTED_L1), default="exact", help="that is timed (exact)")
    parser.add_argument("--repeats", type=int, default=9, help="runs of each executor (9)")
    add_file_options(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_program(main)
