"""Time how soon a cluster of this machine iterates: from `mgspmv cluster start` to its first iteration of PageRank.

    python -m benchmarks.starting --workers 2
    python -m benchmarks.starting --backend cuda
    python -m benchmarks.starting --backend cuda --workers 4 --one-device

Each time, three commands are run one after the other as a user would, on a stored R-MAT graph: `mgspmv cluster start`,
`mgspmv pagerank`, whose log says when the first iteration was made, and `mgspmv cluster stop`. With `warm` kernels that
Numba compiled are in its cache, with `cold` that is empty, as once after mgspmv was installed. Ranks must have the
digest of one process; the exit code is 1 where they have not, or where the median of `warm` is later than is wanted.
With `--one-device` workers share one GPU as if each had its own, on a host of its own: NCCL connects them by sockets.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import mgspmv as mg
from benchmarks.measure import say
from benchmarks.program import add_file_options, make_parser, run_program
from benchmarks.stores import Graph, open_cache
from benchmarks.tables import Setting, Table, format_text, write_files

WANTED_S = {"cpu": 15.0, "cuda": 20.0}
"""By backend: seconds up to the first iteration, at most; of two CPU workers on 2 processors, and of four GPUs."""
PROGRAM = [sys.executable, "-c", "from mgspmv.cli import main; main()"]
OWN_DEVICE = Path(__file__).parents[1] / "tests" / "support" / "chaos" / "own_device.py"
CHANGES = ("--norm", "fixed", "--max-iter", "20")
HEADER = ("caches", "workers", "start s", "first iteration s", "least s", "most s", "runs", "wanted s", "")
LEGEND = (
    "start s: until `mgspmv cluster start` returned, with all workers; median.",
    "first iteration s: from the call of that command until the first iteration of PageRank was made; median.",
    "cold: without Numba's cache of compiled kernels, as the first time after mgspmv was installed.",
)


@dataclass(frozen=True)
class Run:
    """Seconds since `mgspmv cluster start` was called."""

    started_s: float
    iterated_s: float
    digest: str


@dataclass(frozen=True)
class Row:
    """What was found with caches that are warm or cold."""

    caches: str
    workers: str
    wanted_s: float | None
    runs: tuple[Run, ...]
    digest: str
    """That the ranks are to have."""

    @property
    def iterated_s(self) -> float:
        return median(run.iterated_s for run in self.runs)

    @property
    def remark(self) -> str:
        """What is wrong; empty where nothing is."""
        if any(run.digest != self.digest for run in self.runs):
            return "WRONG RANKS"
        return "NOT MET" if self.wanted_s is not None and self.iterated_s > self.wanted_s else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Time starts; 1 when ranks were wrong, or the first iteration too late."""
    options = _parse(arguments)
    setting = Setting.observe("benchmarks.starting", arguments)
    with open_cache(options.cache) as folder:
        graph = Graph.make(options.scale, folder)
        with mg.open_matrix(graph.store) as A:
            digest = mg.pagerank(A.on("cpu"), norm="fixed", max_iter=20, throw=False).digest()
        rows = [_measure(caches, graph, digest, options) for caches in ("warm", "cold")]
    tables = tabulate(rows)
    write_files(options, rows, tables, setting, LEGEND)
    print("\n".join([*setting.lines(), "", format_text(tables), "", *LEGEND]))
    return int(any(row.remark for row in rows))


def _measure(caches: str, graph: Graph, digest: str, options: argparse.Namespace) -> Row:
    """The first run with warm caches, which fills them, does not count."""
    is_warm, runs = caches == "warm", []
    with tempfile.TemporaryDirectory(prefix="mgspmv-benchmark-") as kept:
        for k in range(options.repeats + is_warm):
            say(f"{caches} caches: start {k + 1} of {options.repeats + is_warm}")
            runs.append(start_and_rank(graph, Path(kept) / ("all" if is_warm else f"{k}"), options))
    wanted_s = WANTED_S[options.backend] if is_warm else None
    workers = f"{options.workers or 'all'} {options.backend}" + ", one GPU" * options.one_device
    return Row(caches, workers, wanted_s, tuple(runs[is_warm:]), digest)


def start_and_rank(graph: Graph, kept: Path, options: argparse.Namespace) -> Run:
    """Start a cluster, rank the graph, and end it.

    Parameters
    ----------
    kept : folder for Numba's cache
    """
    with tempfile.TemporaryDirectory(prefix="mgspmv-benchmark-") as folder:
        environment = os.environ | {"MGSPMV_STATE": folder, "NUMBA_CACHE_DIR": str(kept)}
        workers = ["--backend", "cpu" if options.one_device else options.backend]
        workers += [] if options.workers is None else ["--workers", str(options.workers)]
        how: tuple[str, ...] = CHANGES
        if options.one_device:
            environment |= {"DASK_DISTRIBUTED__WORKER__PRELOAD": f"['{OWN_DEVICE}']", "NCCL_SOCKET_IFNAME": "lo"}
            how += ("--backend", "cuda")
        log = Path(folder) / "log.jsonl"
        began = time.time()
        cluster = _call(environment, "cluster", "start", *workers)
        started_s = time.time() - began
        try:
            place = ("--scheduler", cluster["scheduler"], "--log", str(log), "--debug")
            solution = _call(environment, "pagerank", str(graph.store), *how, *place)
        finally:
            _call(environment, "cluster", "stop")
        lines = map(json.loads, log.read_text().splitlines())
        iterated = min(datetime.fromisoformat(line["time"]) for line in lines if line.get("iteration") == 1)
    return Run(started_s, iterated.timestamp() - began, solution["digest"])


def _call(environment: dict[str, str], *words: str) -> dict[str, Any]:
    """What a command of ours answers."""
    done = subprocess.run([*PROGRAM, *words, "--json"], env=environment, stdout=subprocess.PIPE, text=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    if done.returncode != 0:
        raise SystemExit(f"mgspmv {' '.join(words)}: {answer}")
    return answer


def tabulate(rows: Sequence[Row]) -> list[Table]:
    """One table."""
    return [("From `mgspmv cluster start` to the first iteration", [HEADER, *map(_cells, rows)])]


def _cells(row: Row) -> Sequence[str]:
    seconds = [run.iterated_s for run in row.runs]
    return (
        row.caches,
        row.workers,
        f"{median(run.started_s for run in row.runs):.1f}",
        f"{row.iterated_s:.1f}",
        f"{min(seconds):.1f}",
        f"{max(seconds):.1f}",
        str(len(row.runs)),
        "" if row.wanted_s is None else f"{row.wanted_s:g}",
        row.remark,
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--scale", type=int, default=18, help="2^scale vertices (18)")
    parser.add_argument("--backend", choices=list(WANTED_S), default="cpu", help="of the workers (cpu)")
    parser.add_argument("--workers", type=int, help="processes (as the command chooses)")
    parser.add_argument("--one-device", action="store_true", help="workers of --backend cuda share one GPU")
    parser.add_argument("--repeats", type=int, default=5, help="starts with either caches (5)")
    add_file_options(parser)
    options = parser.parse_args(arguments)
    if options.one_device and options.backend != "cuda":
        parser.error("--one-device is for --backend cuda")
    return options


if __name__ == "__main__":
    run_program(main)
