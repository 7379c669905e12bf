"""Check, then measure what being watched costs: PageRank in supersteps that publish all or nothing, in turn.

    python -m benchmarks.monitoring --scale 10 --iterations 1000
    python -m benchmarks.monitoring --count callgrind --repeats 6

Worker processes on this machine load a small R-MAT graph, and make the same short iterations on, off, off, on, on ...
With `on` everything is as it is by default, and somebody watches: workers publish what they do, tasks are in spans of
Dask's, logs ask whether anybody wants them, and the scheduler keeps the state of the runs and sends it to a page that
is open. With `off` nobody says anything. What the workers execute is counted in instructions or in seconds of
processors (`--count`, see `counting.py`). Ranks must have the same bits, `on` may take 2 % more of what is counted, and
no longer by the clock than can be told from `off`; or the exit code is 1.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any
from unittest import mock

from distributed import Client

import mgspmv as mg
from benchmarks.counting import COUNTERS, CannotCountError, Counter, choose_counter
from benchmarks.measure import Rounds, say, take_turns
from benchmarks.program import add_file_options, make_parser, run_program
from benchmarks.stores import ALPHA, Graph, open_cache
from benchmarks.tables import Setting, Table, format_text, write_files
from mgspmv.cluster.worker_metrics import TOPIC
from mgspmv.model import default_threads
from mgspmv.monitor.runs import PAGE

WAYS = ("on", "off")
MOST = 1.02
"""Of what is counted with `off`, at most with `on`."""
SETTLE_S = 1.0
"""Seconds before each run, in which the page shows the last things of the one before."""
READ = """
import asyncio, re, sys
from urllib.request import urlopen
from tornado.websocket import websocket_connect

async def read(url):
    token = re.search(r'"token":"([^"]+)"', urlopen(url).read().decode())[1]
    connection = await websocket_connect(url.replace("http", "ws", 1) + "/ws", subprotocols=["bokeh", token])
    print("open" if await connection.read_message() else "closed", flush=True)
    while await connection.read_message() is not None:
        pass

asyncio.run(read(sys.argv[1]))
"""
"""A program that has a page open, as a browser has."""

HEADER = (
    "iterations",
    "published",
    "workers",
    "median ms",
    "least ms",
    "runs",
    "messages",
    "counted",
    "ratio",
    "from",
    "to",
    "wanted",
    "by the clock",
    "from",
    "to",
    "wanted",
)
LEGEND = (
    "median ms, least ms: of a whole run, as who calls sees it.",
    "messages: median of those with iterations that all workers published in a run, one a superstep and worker.",
    "counted: median of the runs, of all workers together, in what the title says.",
    "ratio: median of what was counted in a run with `on` over the run with `off` beside it; by the clock: likewise, "
    "of the time of the whole run; from, to: where that median is with a probability of 95 %, by the order of these "
    "ratios alone.",
    "wanted: met or not where all between from and to is; else it is undecided. By the clock it is met where from is "
    "below 1.",
)


@dataclass(frozen=True)
class Run:
    """What one call took."""

    elapsed_s: float
    counted: float
    n_messages: int
    """With iterations, that were published."""
    digest: str
    """Of the ranks."""


@dataclass(frozen=True)
class Ratio:
    """Of `on` over `off`."""

    median: float
    low: float
    high: float
    """Between these it is with a probability of 95 %."""

    @classmethod
    def find(cls, on: Sequence[float], off: Sequence[float]) -> Ratio:
        """That of runs beside each other."""
        ratios = sorted(a / b for a, b in zip(on, off, strict=True))
        return cls(median(ratios), *find_interval(ratios))


@dataclass(frozen=True)
class Row:
    """What was found of a way."""

    iterations: int
    way: str
    workers: int
    unit: str
    runs: tuple[Run, ...]
    ratio: Ratio | None = None
    """Of what was counted."""
    clock: Ratio | None = None
    """Of the time of whole runs; None where workers are slower than they otherwise are."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure both ways; 1 when ranks differ, or `on` takes more than is wanted."""
    options = _parse(arguments)
    setting = Setting.observe("benchmarks.monitoring", arguments)
    each = max(1, default_threads() // options.workers)
    try:
        counter = choose_counter(options.count)
    except CannotCountError as error:
        print(f"error: --count {options.count}: {error}", file=sys.stderr)
        return 2
    with open_cache(options.cache) as folder, counter.start_workers(options.workers, each) as cluster:
        rows = measure(Graph.make(options.scale, folder), cluster, counter, options)
    title = f"{options.iterations} iterations of PageRank, 2^{options.scale} vertices, counted in {counter.unit}"
    tables: list[Table] = [(title, [HEADER, *map(_cells, rows)])]
    write_files(options, rows, tables, setting, LEGEND)
    print("\n".join([*setting.lines(), "", format_text(tables), "", *LEGEND]))
    if len({run.digest for row in rows for run in row.runs}) > 1:
        print("WRONG: the ranks differ")
        return 1
    return int(any("NOT MET" in cell for cell in _cells(rows[0])))


def measure(graph: Graph, cluster: Any, counter: Counter, options: argparse.Namespace) -> list[Row]:
    """Both ways, on the same workers."""
    with (
        Client(cluster, set_as_default=False) as client,
        mg.open_matrix(graph.store) as A,
        A.distribute(client, timeout=counter.patience_s) as D,
    ):
        say(f"scale {graph.scale}: compiling")
        calls = {way: partial(_run, D, way, options.iterations, counter) for way in WAYS}
        _rank(D, options.iterations)
        with watching(client, options.readers):
            counter.begin(client)
            for call in calls.values():
                call()
            say(f"scale {graph.scale}: counting {counter.unit}")
            rounds = Rounds(options.repeats, least_s=0.0, most_s=math.inf)
            runs = take_turns(calls, rounds, turns_back=True)
    counted, elapsed = (
        [[getattr(run, name) for run in runs[way]] for way in WAYS] for name in ("counted", "elapsed_s")
    )
    clock = Ratio.find(*elapsed) if counter.is_timed else None
    found: dict[str, Any] = {"on": (Ratio.find(*counted), clock), "off": ()}
    of_all = (options.iterations, options.workers, counter.unit)
    return [Row(of_all[0], way, *of_all[1:], tuple(runs[way]), *found[way]) for way in WAYS]


@contextmanager
def watching(client: Client, n_readers: int) -> Iterator[None]:
    """Have the page on runs open in so many processes of their own."""
    page = client.dashboard_link.replace("/status", f"/{PAGE}")
    readers = []
    try:
        for _ in range(n_readers):
            readers.append(subprocess.Popen([sys.executable, "-c", READ, page], stdout=subprocess.PIPE, text=True))
            if readers[-1].stdout.readline().strip() != "open":
                raise RuntimeError(f"the page at {page} cannot be opened")
        yield
        if any(reader.poll() is not None for reader in readers):
            raise RuntimeError(f"the page at {page} was closed while it was read")
    finally:
        for reader in readers:
            reader.kill()
            reader.communicate()


@contextmanager
def silenced(client: Client) -> Iterator[None]:
    """Nothing is published, logged or marked, neither by workers nor by this process."""
    client.run(_silence)
    try:
        with ExitStack() as stack:
            for ours in (
                "monitor.events.EventPublisher._notify",
                "monitor.events.install_monitor",
                "api.arguments.log_iteration",
            ):
                stack.enter_context(mock.patch(f"mgspmv.{ours}", _ignore))
            unmarked = mock.Mock(side_effect=lambda *_: nullcontext())
            for folder in ("dask_cluster", "scheduling"):
                stack.enter_context(mock.patch(f"mgspmv.cluster.{folder}.enter_span", unmarked))
            yield
    finally:
        client.run(_restore)


def find_interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Where the median is with a probability of 95 % or more, of sorted values that are independent; the least and the
    greatest of fewer than six."""
    n, below, k = len(ratios), 0.0, 0
    while k < n // 2 and below + math.comb(n, k) / 2**n <= 0.025:
        below += math.comb(n, k) / 2**n
        k += 1
    return ratios[max(0, k - 1)], ratios[n - max(1, k)]


def _run(D: Any, way: str, iterations: int, counter: Counter) -> Run:
    time.sleep(SETTLE_S)
    if way == "off":
        with silenced(D.client):
            return _count(D, iterations, counter)
    return _count(D, iterations, counter)


def _count(D: Any, iterations: int, counter: Counter) -> Run:
    before = _count_messages(D.client)
    with counter.count(D.client) as counted:
        began = time.perf_counter()
        solution = _rank(D, iterations)
        elapsed_s = time.perf_counter() - began
    n_messages = _count_messages(D.client) - before
    return Run(elapsed_s, counted[0] / counter.scale, n_messages, solution.digest())


def _rank(D: Any, iterations: int) -> mg.Solution:
    return mg.pagerank(D, alpha=ALPHA, norm="fixed", max_iter=iterations)


def _count_messages(client: Client) -> int:
    return sum(message["kind"] == "iterations" for _, message in client.get_events(TOPIC))


def _silence() -> None:
    from mgspmv.cluster import worker_run

    setattr(worker_run, _KEPT, worker_run.publish_iterations)
    worker_run.publish_iterations = _ignore


def _restore() -> None:
    from mgspmv.cluster import worker_run

    worker_run.publish_iterations = getattr(worker_run, _KEPT)


_KEPT = "_kept_publish_iterations"


def _ignore(*args: Any, **options: Any) -> None:
    pass


def _cells(row: Row) -> Sequence[str]:
    elapsed_s = [run.elapsed_s for run in row.runs]
    return (
        str(row.iterations),
        row.way,
        str(row.workers),
        f"{median(elapsed_s) * 1e3:.1f}",
        f"{min(elapsed_s) * 1e3:.1f}",
        str(len(row.runs)),
        f"{median(run.n_messages for run in row.runs):g}",
        f"{median(run.counted for run in row.runs):.5g}",
        *_tell_ratio(row.ratio, MOST),
        *_tell_ratio(row.clock, None),
    )


def _tell_ratio(ratio: Ratio | None, most: float | None) -> Sequence[str]:
    """It, its bounds, and whether it is at most so much; of None, whether it can be told from 1 or less."""
    if ratio is None:
        return [""] * 4
    if most is None:
        judged = "1 NOT MET" if ratio.low > 1 else "1 met"
    else:
        undecided = "undecided" if ratio.low <= most else "NOT MET"
        judged = f"{most:.2f} {'met' if ratio.high <= most else undecided}"
    return f"{ratio.median:.4f}", f"{ratio.low:.4f}", f"{ratio.high:.4f}", judged


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--scale", type=int, default=10, help="2^scale vertices (10)")
    parser.add_argument("--workers", type=int, default=2, help="worker processes (2)")
    parser.add_argument("--iterations", type=int, default=1000, help="of each run (1000)")
    parser.add_argument("--repeats", type=int, default=20, help="runs of each way (20)")
    parser.add_argument("--readers", type=int, default=1, help="processes that have the page open, here (1)")
    parser.add_argument(
        "--count",
        choices=["auto", *COUNTERS],
        default="auto",
        help="how what workers execute is counted (auto: perf where the machine counts instructions, else seconds)",
    )
    add_file_options(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_program(main)
