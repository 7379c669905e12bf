"""Check, then measure what being watched costs: PageRank in supersteps that publish all or nothing, in turn.

    python tests/benchmarks/monitoring.py --scale 10 --iterations 1000

Worker processes on this machine load a small R-MAT graph, and make the same short iterations on, off, on, off ... With
`on` the workers publish what they do, and the scheduler keeps the state of the runs and serves the page; with `off`
nobody says anything. What is counted of the workers are instructions by `perf stat`, where the machine counts them, and
else the seconds of their processors. Ranks must have the same bits, and `on` may take 2 % more, or
the exit code is 1.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any
from unittest import mock

from distributed import Client
from graphs import ALPHA, Graph, open_cache
from measure import Rounds, say, take_turns
from tables import Setting, Table, add_file_options, format_text, write_files

import mgspmv as mg
from mgspmv.distribute.connect import start_local
from mgspmv.model import default_threads

WAYS = ("on", "off")
MOST = 1.02
"""Of what is counted with `off`, at most with `on`."""
UNITS = {"instructions": 1e6, "processor seconds": 1.0}
SETTLE_S = 0.2
"""Seconds for `perf` to begin to count."""

HEADER = (
    "iterations",
    "published",
    "workers",
    "median ms",
    "least ms",
    "runs",
    "counted",
    "ratio",
    "from",
    "to",
    "wanted",
)
LEGEND = (
    "median ms, least ms: of a whole run, as who calls sees it.",
    "counted: median of the runs, of all workers together: millions of instructions in user mode, or processor "
    "seconds.",
    "ratio: median of what was counted in a run with `on` over the run with `off` after it; from, to: where that "
    "median is with a probability of 95 %, by the order of these ratios alone.",
)


@dataclass(frozen=True)
class Run:
    """What one call took."""

    elapsed_s: float
    counted: float
    digest: str
    """Of the ranks."""


@dataclass(frozen=True)
class Row:
    """What was found of a way."""

    iterations: int
    way: str
    workers: int
    unit: str
    runs: tuple[Run, ...]
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    """Of 95 %."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure both ways; 1 when ranks differ, or `on` takes more than is wanted."""
    options = _parse(arguments)
    setting = Setting.observe("monitoring.py", arguments)
    each = max(1, default_threads() // options.workers)
    with open_cache(options.cache) as folder, start_local(options.workers, each) as cluster:
        rows = measure(Graph.make(options.scale, folder), cluster, options)
    title = f"{options.iterations} iterations of PageRank, 2^{options.scale} vertices, counted in {rows[0].unit}"
    tables: list[Table] = [(title, [HEADER, *map(_cells, rows)])]
    write_files(options, rows, tables, setting, LEGEND)
    print("\n".join([*setting.lines(), "", format_text(tables), "", *LEGEND]))
    if len({run.digest for row in rows for run in row.runs}) > 1:
        print("WRONG: the ranks differ")
        return 1
    return int((rows[0].ratio or 0.0) > MOST)


def measure(graph: Graph, cluster: Any, options: argparse.Namespace) -> list[Row]:
    """Both ways, on the same workers."""
    with Client(cluster, set_as_default=False) as client, mg.open_matrix(graph.store) as A, A.distribute(client) as D:
        unit = "instructions" if can_count(next(iter(client.run(os.getpid).values()))) else "processor seconds"
        say(f"scale {graph.scale}: counting {unit}")
        calls = {way: partial(_run, D, way, options.iterations, unit) for way in WAYS}
        for call in calls.values():
            call()  # compiles
        runs = take_turns(calls, Rounds(options.repeats, least_s=0.0, most_s=math.inf))
    ratios = sorted(on.counted / off.counted for on, off in zip(runs["on"], runs["off"], strict=True))
    found = {"on": (median(ratios), find_interval(ratios)), "off": (None, None)}
    return [Row(options.iterations, way, options.workers, unit, tuple(runs[way]), *found[way]) for way in WAYS]


@contextmanager
def silenced(client: Client) -> Iterator[None]:
    """Nothing is published, neither by workers nor by this process."""
    client.run(_silence)
    try:
        with (
            mock.patch("mgspmv.monitor.stream.News._tell", _ignore),
            mock.patch("mgspmv.monitor.stream.install_monitor", _ignore),
        ):
            yield
    finally:
        client.run(_restore)


def can_count(pid: int) -> bool:
    """Whether `perf` counts instructions of a process here."""
    try:
        with count_instructions([pid]):
            pass
    except (OSError, ValueError):
        return False
    return True


@contextmanager
def count_instructions(pids: Sequence[int]) -> Iterator[list[int]]:
    """Instructions that processes execute in user mode within the context, at its end.

    Raises
    ------
    OSError : there is no `perf`
    ValueError : it does not count them
    """
    command = ["perf", "stat", "-e", "instructions:u", "-x", ",", "-p", ",".join(map(str, pids))]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    counted: list[int] = []
    try:
        time.sleep(SETTLE_S)
        yield counted
    finally:
        process.send_signal(signal.SIGINT)
        said = process.communicate()[1]
    line = next((line for line in said.splitlines() if "instructions" in line), said)
    counted.append(int(line.split(",")[0]))


@contextmanager
def count_seconds(client: Client) -> Iterator[list[float]]:
    """Seconds of processors that all workers take within the context, at its end."""
    counted: list[float] = []
    before = sum(client.run(time.process_time).values())
    yield counted
    counted.append(sum(client.run(time.process_time).values()) - before)


def find_interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Where the median is with a probability of 95 % or more, of sorted values that are independent; the least and the
    greatest of fewer than six."""
    n, below, k = len(ratios), 0.0, 0
    while k < n // 2 and below + math.comb(n, k) / 2**n <= 0.025:
        below += math.comb(n, k) / 2**n
        k += 1
    return ratios[max(0, k - 1)], ratios[n - max(1, k)]


def _run(D: Any, way: str, iterations: int, unit: str) -> Run:
    if way == "off":
        with silenced(D.client):
            return _count(D, iterations, unit)
    return _count(D, iterations, unit)


def _count(D: Any, iterations: int, unit: str) -> Run:
    client = D.client
    is_by_perf = unit == "instructions"
    with count_instructions([*client.run(os.getpid).values()]) if is_by_perf else count_seconds(client) as counted:
        began = time.perf_counter()
        solution = mg.pagerank(D, alpha=ALPHA, tol_mode="fixed", max_iter=iterations)
        elapsed_s = time.perf_counter() - began
    return Run(elapsed_s, counted[0] / UNITS[unit], solution.digest())


def _silence() -> None:
    from mgspmv.distribute import agent

    agent.publish_iterations, agent._published = _ignore, agent.publish_iterations  # type: ignore[attr-defined]


def _restore() -> None:
    from mgspmv.distribute import agent

    agent.publish_iterations = agent._published  # type: ignore[attr-defined]


def _ignore(*args: Any, **options: Any) -> None:
    pass


def _cells(row: Row) -> Sequence[str]:
    low, high = ("", "") if row.interval is None else (f"{bound:.3f}" for bound in row.interval)
    elapsed_s = [run.elapsed_s for run in row.runs]
    return (
        str(row.iterations),
        row.way,
        str(row.workers),
        f"{median(elapsed_s) * 1e3:.1f}",
        f"{min(elapsed_s) * 1e3:.1f}",
        str(len(row.runs)),
        f"{median(run.counted for run in row.runs):.4g}",
        "" if row.ratio is None else f"{row.ratio:.3f}",
        low,
        high,
        "" if row.ratio is None else f"{MOST:.2f} {'met' if row.ratio <= MOST else 'NOT MET'}",
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=10, help="2^scale vertices (10)")
    parser.add_argument("--workers", type=int, default=2, help="worker processes (2)")
    parser.add_argument("--iterations", type=int, default=1000, help="of each run (1000)")
    parser.add_argument("--repeats", type=int, default=20, help="runs of each way (20)")
    add_file_options(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
