"""Time how soon a new process has ranks: imports, and compilation where the caches of compiled kernels are empty.

    python -m benchmarks.first_ranks
    python -m benchmarks.first_ranks --backend cuda

Each time is of a whole process on a small R-MAT graph. With `cold` caches nothing is compiled yet, as once after
mgspmv was installed; with `warm` ones a process before compiled what it needs. Ranks must have the digest of this
process; the exit code is 1 where they have not.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import mgspmv as mg
from benchmarks.measure import say
from benchmarks.program import add_file_options, make_parser, run_program
from benchmarks.tables import Setting, Table, format_text, write_files

HEADER = ("process", "caches", "processor s", "elapsed s", "least s", "most s", "runs", "ratio", "")
LEGEND = (
    "processor s: of the process and its threads; medians.",
    "elapsed s: medians; least and most are of the elapsed seconds.",
    "ratio: of processor seconds to those of the imports alone.",
)
IMPORTS = "import numpy, zarr, numba, pyarrow.parquet, typer, rich"
COMMAND = "import sys; from mgspmv.cli import main; sys.argv[0] = 'mgspmv'; main()"
CALL = """
import sys
import mgspmv as mg
store, backend, precision = sys.argv[1:]
print(mg.pagerank(mg.open(store).on(backend), precision=precision).digest())
"""


@dataclass(frozen=True)
class Process:
    """What is run in a process of its own."""

    name: str
    words: tuple[str, ...]
    """Arguments of Python."""
    prints_digest: bool = False


@dataclass(frozen=True)
class Run:
    """What a process took."""

    processor_s: float
    elapsed_s: float
    is_right: bool


@dataclass(frozen=True)
class Row:
    """Runs of a process with caches that are warm or cold."""

    process: str
    caches: str
    runs: tuple[Run, ...]
    imports_s: float | None
    """Processor seconds of the imports alone; None where they were not run."""

    @property
    def processor_s(self) -> float:
        return median(run.processor_s for run in self.runs)

    @property
    def remark(self) -> str:
        """What is wrong; empty where nothing is."""
        return "" if all(run.is_right for run in self.runs) else "WRONG RANKS"


def main(arguments: Sequence[str] | None = None) -> int:
    """Time processes; 1 when ranks were wrong."""
    options = _parse(arguments)
    setting = Setting.observe("benchmarks.first_ranks", arguments)
    with tempfile.TemporaryDirectory(prefix="mgspmv-benchmark-") as name:
        folder = Path(name)
        store = folder / "graph.zarr"
        matrix = mg.generate("rmat", store, scale=options.scale, seed=7)
        digests = {p: mg.pagerank(matrix.on(options.backend), precision=p).digest() for p in ("exact", "float32")}
        rows: list[Row] = []
        for process in _list_processes(options, store, folder):
            for caches in ("warm", "cold"):
                say(f"{process.name}, {caches} caches")
                runs = tuple(_repeat(process, caches == "warm", options.repeats, folder, digests))
                imports_s = rows[0].processor_s if rows and rows[0].process == "imports" else None
                rows.append(Row(process.name, caches, runs, imports_s))
    tables = tabulate(rows)
    write_files(options, rows, tables, setting, LEGEND)
    print("\n".join([*setting.lines(), "", format_text(tables), "", *LEGEND]))
    return int(any(row.remark for row in rows))


def _list_processes(options: argparse.Namespace, store: Path, folder: Path) -> list[Process]:
    calls = [
        Process(f"mg.pagerank, {options.backend}, {p}", ("-c", CALL, str(store), options.backend, p), True)
        for p in ("exact", "float32")
    ]
    if options.backend == "cuda":
        return calls
    edges, ranks = folder / "edges.csv", folder / "ranks.parquet"
    mg.export(mg.open(store), edges)
    write = ("--overwrite", "-o", str(ranks))
    return [
        Process("imports", ("-c", IMPORTS)),
        Process("mgspmv --help", ("-c", COMMAND, "--help")),
        Process("mgspmv pagerank STORE -o", ("-c", COMMAND, "pagerank", str(store), *write)),
        Process("mgspmv ingest", ("-c", COMMAND, "ingest", str(edges), str(folder / "made.zarr"), "--overwrite")),
        *calls,
    ]


def _repeat(process: Process, is_warm: bool, repeats: int, folder: Path, digests: dict[str, str]) -> Sequence[Run]:
    """With warm caches, the first run fills them and does not count."""
    if not is_warm:
        return [_run(process, Path(tempfile.mkdtemp(dir=folder)), digests) for _ in range(repeats)]
    return [_run(process, folder / "warm", digests) for _ in range(repeats + 1)][1:]


def _run(process: Process, caches: Path, digests: dict[str, str]) -> Run:
    """Run a process; bytecode of modules is cached in any case, as by an installation."""
    names = {"MGSPMV_CACHE": "mgspmv", "CUPY_CACHE_DIR": "cupy", "NUMBA_CACHE_DIR": "numba"}
    environment = os.environ | {name: str(caches / own) for name, own in names.items()}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    began, before = time.perf_counter(), os.times()
    done = subprocess.run([sys.executable, *process.words], env=environment, stdout=subprocess.PIPE, text=True)
    after = os.times()
    if done.returncode != 0:
        raise SystemExit(f"{process.name} ended with code {done.returncode}")
    processor_s = after.children_user + after.children_system - before.children_user - before.children_system
    is_right = not process.prints_digest or done.stdout.strip() == digests[process.words[-1]]
    return Run(processor_s, time.perf_counter() - began, is_right)


def tabulate(rows: Sequence[Row]) -> list[Table]:
    """One table."""
    return [("From the start of a process to its end", [HEADER, *map(_cells, rows)])]


def _cells(row: Row) -> Sequence[str]:
    seconds = [run.elapsed_s for run in row.runs]
    return (
        row.process,
        row.caches,
        f"{row.processor_s:.2f}",
        f"{median(seconds):.2f}",
        f"{min(seconds):.2f}",
        f"{max(seconds):.2f}",
        str(len(seconds)),
        "" if row.imports_s is None else f"{row.processor_s / row.imports_s:.2f}",
        row.remark,
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--scale", type=int, default=10, help="2^scale vertices (10)")
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu", help="of the calls (cpu)")
    parser.add_argument("--repeats", type=int, default=5, help="processes with either caches (5)")
    add_file_options(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_program(main)
