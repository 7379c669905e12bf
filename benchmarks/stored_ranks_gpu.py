"""Time the way from a stored graph to ranks on one GPU, in a warm process and as whole processes of `mgspmv pagerank`.

    python -m benchmarks.stored_ranks_gpu --markdown table.md
    python -m benchmarks.stored_ranks_gpu --edges 20000 --scale 12

Files are in /dev/shm where there is such a folder, so that files are read from memory. Before anything is timed, ranks
are compared with an iteration in float64 that shares no code with them, and those of precision `exact` with ranks of
the same edges from Parquet: both must have one digest. The exit code is 1 where ranks are wrong. Caches of compiled
kernels and of bytecode are warm. Without a GPU, the same is timed on the host.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import mgspmv as mg
from benchmarks.edges_to_ranks_gpu import EDGES, SCALE
from benchmarks.machines import Machine, choose_machine
from benchmarks.measure import say
from benchmarks.program import PRECISIONS, add_file_options, choose_backend, make_parser, parse_count, run_program
from benchmarks.ranked_edges import Edges, Laps, Run
from benchmarks.ranked_edges import Row as Checked
from benchmarks.tables import Setting, Table, format_text, write_files
from mgspmv.model import default_threads
from mgspmv.store.read import open_store

MOST_BEYOND_S = 0.08
"""Seconds beyond iterations that a stored graph of `EDGES` edges is to take at most, in a warm process on an H100."""
MOST_WHOLE_S = {"STORE": 1.6, "EDGES": 2.0}
"""Seconds that whole processes are to take at most there."""
LEAST_RATE, LEAST_SHARE = 8.0, 0.6
"""GB/s of decoded bytes that are to be read at least, or this share of the rate from the host to the device."""
COPIED_BYTES = 1 << 26
COPIES = 16
COMMAND = "import sys; from mgspmv.cli import main; sys.argv[0] = 'mgspmv'; main()"
HEADER = ("program", "median s", "least s", "beyond s", "at most s", "runs", "L1 error", "stages", "")
WHOLE_HEADER = ("process", "median s", "least s", "most s", "at most s", "runs", "")
RATE_HEADER = ("program", "median s", "least s", "GB/s", "wanted GB/s", "runs", "")
LEGEND = (
    "beyond s: median without the iterations, which is to be at most the next number.",
    "L1 error: distance to ranks in float64. stages: medians of `Solution.seconds`; `other` is in no stage.",
    "GB/s: decoded bytes; wanted are 8, or 60 % of the rate of copies from pinned memory, if that is less.",
    "whole processes: from their start to their end, with ranks in Parquet; caches are warm.",
)


@dataclass(frozen=True)
class Row:
    """What was found of a program."""

    program: str
    remark: str
    """What is wrong; empty where nothing is."""
    runs: tuple[Run, ...] = ()
    error_l1: float = float("nan")

    @property
    def seconds(self) -> list[float]:
        return [run.elapsed_s for run in self.runs]

    @property
    def beyond_s(self) -> float:
        """Median of the seconds without iterations."""
        return median(run.elapsed_s - run.stages["product"] for run in self.runs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check ranks and time ways; 1 if ranks were wrong."""
    options = _parse(arguments)
    machine = choose_machine(choose_backend("auto"))
    setting = Setting.observe("benchmarks.stored_ranks_gpu", arguments, machine)
    folder = options.cache or ("/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    with tempfile.TemporaryDirectory(prefix="mgspmv-benchmark-", dir=folder) as name:
        say(f"making {options.edges:,} edges, and their ranks in float64")
        edges = Edges(machine, Path(name), options.scale, options.edges)
        store, source = Path(name) / "graph.zarr", edges.parquet
        setting = setting.note(**edges.describe())
        mg.ingest(source, store).close()
        digest = mg.pagerank(edges.parquet).digest()
        say("timing in this process")
        warm = [_time_warm(edges, store, precision, digest, options.repeats) for precision in PRECISIONS]
        reading = _time_reading(machine, store, options.repeats) if machine.backend == "cuda" else None
        machine.free()
        say("timing whole processes")
        whole = [_time_whole(edges, source, name, options.repeats) for name, source in _list_sources(edges, store)]
    is_judged = machine.backend == "cuda" and (options.scale, options.edges) == (SCALE, EDGES)
    tables = tabulate(warm, whole, reading, is_judged)
    write_files(options, [*warm, *whole], tables, setting, LEGEND)
    print("\n".join([*setting.lines(), "", format_text(tables), "", *LEGEND]))
    return int(any(row.remark for row in (*warm, *whole)))


def _list_sources(edges: Edges, store: Path) -> list[tuple[str, Path]]:
    return [("STORE", store), ("EDGES", edges.parquet)]


def _time_warm(edges: Edges, store: Path, precision: Any, digest: str, repeats: int) -> Row:
    """The first two runs, which fill buffers and pools, do not count."""
    runs: list[Run] = []
    for _ in range(repeats + 2):
        laps = Laps(edges.machine)
        solution = mg.pagerank(store, precision=precision)
        laps.end("rank")
        runs.append(laps.stop(rank=solution.seconds))
    checked = edges.check("numpy", precision, solution.ids, solution.values)
    is_other = precision == "exact" and solution.digest() != digest
    return Row(precision, "OTHER DIGEST" if is_other else checked.remark, tuple(runs[2:]), checked.error_l1)


def _time_whole(edges: Edges, source: Path, name: str, repeats: int) -> Row:
    """The first process, which fills caches, does not count; its ranks are checked as it wrote them."""
    words = [sys.executable, "-c", COMMAND, "pagerank", str(source), "--overwrite", "-o", str(edges.written)]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    runs: list[Run] = []
    checked: Checked | None = None
    for _ in range(repeats + 1):
        began = time.perf_counter()
        done = subprocess.run(words, env=environment, stdout=subprocess.DEVNULL)
        runs.append(Run(time.perf_counter() - began, {}))
        if done.returncode != 0:
            return Row(name, f"ended with code {done.returncode}")
        checked = checked or edges.check("parquet", name, edges.arrays[0], edges.arrays[1])
    assert checked is not None
    return Row(name, checked.remark, tuple(runs[1:]), checked.error_l1)


# --- how fast arrays are read ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """How fast the arrays of a store are read to a device."""

    runs: tuple[float, ...]
    n_bytes: int
    copying: float
    """GB/s of copies from pinned memory."""

    @property
    def rate(self) -> float:
        return self.n_bytes / median(self.runs) / 1e9

    @property
    def wanted(self) -> float:
        return min(LEAST_RATE, LEAST_SHARE * self.copying)


def _time_reading(machine: Machine, store: Path, repeats: int) -> Reading:
    """Read row pointers, columns and out-degrees to the device, and ids to the host, as for ranks."""
    from mgspmv.kernels.device import read_graph

    stored, threads, found = open_store(store), default_threads(), list[Any]()

    def read() -> None:
        found[:] = read_graph(stored, None, threads, reads_ids=stored.info.vertex_ids is not None)

    runs = [machine.clock(read) for _ in range(repeats + 2)][2:]
    indptr, block, degree, ids = found
    n_bytes = indptr.nbytes + block.indices.nbytes + degree.nbytes + (0 if ids is None else ids.nbytes)
    return Reading(tuple(runs), n_bytes, _measure_copies(machine))


def _measure_copies(machine: Machine) -> float:
    """GB/s of copies from pinned memory to the device."""
    import cupy

    pinned, there = cupy.cuda.alloc_pinned_memory(COPIED_BYTES), cupy.empty(COPIED_BYTES, "uint8")

    def copy() -> None:
        for _ in range(COPIES):
            stream, kind = cupy.cuda.get_current_stream(), cupy.cuda.runtime.memcpyHostToDevice
            cupy.cuda.runtime.memcpyAsync(there.data.ptr, pinned.ptr, COPIED_BYTES, kind, stream.ptr)

    return COPIES * COPIED_BYTES / min(machine.clock(copy) for _ in range(3)) / 1e9


# --- tables ----------------------------------------------------------------------------------------------------------


def tabulate(warm: Sequence[Row], whole: Sequence[Row], reading: Reading | None, is_judged: bool) -> list[Table]:
    """Tables of the ways in this process, of reading, and of whole processes."""
    tables: list[Table] = [
        ("From a stored graph to ranks on the host", [HEADER, *(_cells_warm(row, is_judged) for row in warm)])
    ]
    if reading is not None:
        seconds = list(reading.runs)
        wanted = f"{reading.wanted:.1f} {'met' if reading.rate >= reading.wanted else 'NOT MET'}" if is_judged else ""
        copying = ("copies from pinned memory", "", "", f"{reading.copying:.1f}", "", "1", "")
        line = ("arrays of the store", *_tell(seconds, 4), f"{reading.rate:.1f}", wanted, str(len(seconds)), "")
        tables.append(("Arrays of a stored graph to the GPU", [RATE_HEADER, line, copying]))
    lines = [_cells_whole(row, is_judged) for row in whole]
    return [*tables, ("Whole processes of mgspmv pagerank, with -o RANKS", [WHOLE_HEADER, *lines])]


def _cells_warm(row: Row, is_judged: bool) -> Sequence[str]:
    told = _judge(row.beyond_s, MOST_BEYOND_S) if is_judged and row.runs else ""
    stages = Checked("numpy", row.program, runs=row.runs).describe_stages()
    beyond = f"{row.beyond_s:.4f}" if row.runs else ""
    told_s, n_runs = _tell(row.seconds, 4), str(len(row.runs))
    return (row.program, *told_s, beyond, told, n_runs, f"{row.error_l1:.0e}", stages, row.remark)


def _cells_whole(row: Row, is_judged: bool) -> Sequence[str]:
    told = _judge(median(row.seconds), MOST_WHOLE_S[row.program]) if is_judged and row.runs else ""
    most = f"{max(row.seconds):.2f}" if row.runs else ""
    return (row.program, *_tell(row.seconds, 2), most, told, str(len(row.runs)), row.remark)


def _tell(seconds: Sequence[float], digits: int) -> list[str]:
    of: tuple[Callable[[Sequence[float]], float], ...] = (median, min)
    return [f"{find(seconds):.{digits}f}" if seconds else "" for find in of]


def _judge(found_s: float, most_s: float) -> str:
    return f"{most_s:.3g} {'met' if found_s <= most_s else 'NOT MET'}"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--scale", type=int, default=SCALE, help=f"2^scale vertices ({SCALE})")
    parser.add_argument("--edges", type=parse_count, default=EDGES, help=f"with those that come again ({EDGES:,})")
    parser.add_argument("--repeats", type=parse_count, default=5, help="timed runs of each program (5)")
    add_file_options(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_program(main)
