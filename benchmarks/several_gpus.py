"""Time whole ways on the GPUs of one machine: generating a graph, and ranks from a store and from Parquet.

    python -m benchmarks.several_gpus --scale 26 --workers 2 --cache /dev/shm/graphs
    python -m benchmarks.several_gpus --scale 26 --workers 2 --cache /dev/shm/graphs --part process --part warm
    python -m benchmarks.several_gpus --scale 16 --workers 2 --backend cpu

Parts, in this order; each can be run alone (`--part`), and what is in `--cache` is used again:

    generate    `mgspmv generate rmat STORE`, as a process
    process     `mgspmv pagerank STORE --cluster cuda -o RANKS`, as processes
    warm        load, rank and write, on the workers of a cluster that has done it before
    parquet     edges in Parquet to written ranks, without a store, on the workers of a cluster that has done it before

Ranks are compared with those of one process on one device, which makes them first: all must have its digest, or the
exit code is 1. Files are in /dev/shm where there is such a folder, so that they are read from memory.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import mgspmv as mg
from benchmarks.machines import choose_machine
from benchmarks.measure import say
from benchmarks.program import (
    PRECISIONS,
    add_backend_option,
    add_file_options,
    choose_backend,
    make_parser,
    parse_count,
    run_program,
)
from benchmarks.ranked_edges import Laps, Run
from benchmarks.stores import start_workers
from benchmarks.tables import Setting, Table, format_text, write_files
from mgspmv.kernels.catalogue import Backend
from mgspmv.model import default_threads

PARTS = ("generate", "process", "warm", "parquet")
SCALE, WORKERS = 26, 2
"""Of the graph and the machine that `MOST_S` is for."""
MOST_S = {"generate": 8.0, "process": 9.0, "warm": 1.5, "parquet": 4.0}
"""Seconds that a part is to take at most on two H100."""
GROUP_EDGES = 1 << 22
"""Edges of a row group."""
HEADER = ("part", "median s", "least s", "at most s", "runs", "stages", "")
LEGEND = (
    "one device: `mgspmv pagerank STORE` in a process without workers, whose digest all others must have.",
    "stages: medians in seconds, in their order. Those of processes are of one more run, in which a thread looks at "
    "the stack of the main thread; workers end while ranks are written.",
    "warm, parquet: the first run, which does not count, starts what workers need once.",
)


@dataclass(frozen=True)
class Row:
    """What was found of a part."""

    part: str
    runs: tuple[Run, ...] = ()
    remark: str = ""
    """What is wrong; empty where nothing is."""

    @property
    def seconds(self) -> list[float]:
        return [run.elapsed_s for run in self.runs]


@dataclass(frozen=True)
class Bench:
    """What is asked for, and where."""

    folder: Path
    scale: int
    workers: int
    backend: Backend
    precision: str
    repeats: int

    @property
    def store(self) -> Path:
        return self.folder / f"rmat{self.scale}.zarr"

    @property
    def parquet(self) -> Path:
        return self.folder / f"rmat{self.scale}.parquet"

    @property
    def cluster(self) -> list[str]:
        kind = "cuda" if self.backend == "cuda" else "local"
        return ["--cluster", kind, "--workers", str(self.workers)]

    # --- parts

    def generate(self) -> Row:
        """Time generating the graph; each run makes it again."""
        words = ["generate", "rmat", str(self.store), "--scale", str(self.scale), "--overwrite", "--json"]
        try:
            done = [self._call(words) for _ in range(self.repeats)]
            return Row("generate", (*(run for run, _ in done),))
        except subprocess.CalledProcessError as error:
            return Row("generate", remark=f"ended with code {error.returncode}")

    def rank_alone(self) -> tuple[Row, str]:
        """Time a process on one device; also give the digest of its ranks."""
        with self._make_target() as target:
            run, answer = self._call([*self._rank(target), "--backend", self.backend], {"CUDA_VISIBLE_DEVICES": "0"})
        return Row("one device", (run,)), str(answer["digest"])

    def process(self, digest: str) -> Row:
        """Time processes that start workers; a last one says where the time went."""
        runs, found = list[Run](), set[str]()
        try:
            for _ in range(self.repeats):
                with self._make_target() as target:
                    run, answer = self._call([*self._rank(target), *self.cluster])
                    found |= {answer["digest"], mg.load_solution(target).digest()}
                runs.append(run)
            with self._make_target() as target, tempfile.NamedTemporaryFile(suffix=".json") as file:
                self._call([*self._rank(target), *self.cluster], stages=file.name)
                stages = json.loads(Path(file.name).read_text())
        except subprocess.CalledProcessError as error:
            return Row("process", remark=f"ended with code {error.returncode}")
        return Row("process", (*(Run(run.elapsed_s, stages) for run in runs),), self._compare(found, digest))

    def warm(self, digest: str) -> Row:
        """Time what workers do with a store once they have done it."""
        with mg.open(self.store) as A:

            def load(client: Any, laps: Laps) -> mg.DistributedMatrix:
                D = A.distribute(client, backend=self.backend)
                laps.end("load")
                return D

            return self._rank_warm("warm", load, digest)

    def from_parquet(self, digest: str) -> Row:
        """Time ranks of edges in Parquet, which have the same digest, as each vertex has an edge or a number."""
        if not self.parquet.exists():
            say(f"writing {self.parquet.name}")
            write_edges(self.parquet, self.scale)

        def read(client: Any, laps: Laps) -> mg.DistributedMatrix:
            begun: list[str] = []

            def hear(phase: Any) -> None:
                name = f"read: {phase.name}"
                if begun and begun[-1] != name:
                    laps.end(begun[-1])
                begun.append(name)

            D = mg.read_edges(self.parquet, client, n_vertices=1 << self.scale, backend=self.backend, progress=hear)
            laps.end(begun[-1])
            return D

        return self._rank_warm("parquet", read, digest)

    def _rank_warm(self, part: str, distribute: Callable[[Any, Laps], mg.DistributedMatrix], digest: str) -> Row:
        """Time distributing a matrix, ranking and writing on workers that have done it before."""
        from distributed import Client

        runs, found, machine = list[Run](), set[str](), choose_machine("cpu")
        with start_workers(self.workers, self.backend) as cluster, Client(cluster) as client:
            for _ in range(self.repeats + 1):
                with self._make_target() as target:
                    laps = Laps(machine)
                    with distribute(client, laps) as D:
                        solution = mg.pagerank(D, precision=self._precision)
                        laps.end("rank")
                        solution.save(target)
                        laps.end("write")
                    laps.end("close")
                    found.add(solution.digest())
                runs.append(laps.stop(rank=_split(solution.seconds)))
                del solution  # to free its memory is no part of the next run
                say(f"  {runs[-1].elapsed_s:.2f} s")
        return Row(part, (*runs[1:],), self._compare(found, digest))

    # --- processes

    @property
    def _precision(self) -> Any:
        return self.precision

    def _rank(self, target: Path) -> list[str]:
        return ["pagerank", str(self.store), "-o", str(target), "--precision", self.precision, "--json"]

    def _call(
        self, words: Sequence[str], environment: dict[str, str] | None = None, stages: str | None = None
    ) -> tuple[Run, dict[str, Any]]:
        """Run the program; give its time, and its answer."""
        program = ["-c", "import sys; from mgspmv.cli import main; sys.argv[0] = 'mgspmv'; main()"]
        begin = [sys.executable, *(program if stages is None else ["-m", "benchmarks.stages", stages])]
        own = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        began = time.perf_counter()
        done = subprocess.run([*begin, *words], env=own | (environment or {}), stdout=subprocess.PIPE, check=True)
        elapsed_s = time.perf_counter() - began
        say(f"  {words[0]}: {elapsed_s:.2f} s")
        answer: dict[str, Any] = json.loads(done.stdout)
        seconds = answer.get("seconds")
        return Run(elapsed_s, dict(seconds) if isinstance(seconds, dict) else {}), answer

    @contextmanager
    def _make_target(self) -> Iterator[Path]:
        """A place for ranks, which are removed afterwards."""
        with tempfile.TemporaryDirectory(prefix="mgspmv-ranks-", dir=self.folder) as name:
            yield Path(name) / "ranks.zarr"

    def _compare(self, found: set[str], digest: str) -> str:
        return "" if self.precision != "exact" or found == {digest} else "OTHER DIGEST"


def _split(seconds: dict[str, float]) -> dict[str, float]:
    """Seconds of a run, without those that are counted by the caller."""
    return {name: own for name, own in seconds.items() if name != "load"}


def write_edges(path: Path, scale: int) -> None:
    """Write the edges of the graph to Parquet, int32, in the order in which they are generated."""
    import numpy as np
    import pyarrow as pa

    from mgspmv.ingest.generate import make_generator
    from mgspmv.row_groups import write_row_groups

    source = make_generator("rmat", scale=scale)
    source.batch_entries = GROUP_EDGES
    schema = pa.schema([("source", pa.int32()), ("target", pa.int32())])
    tables = (
        pa.table([batch.rows.astype(np.int32), batch.cols.astype(np.int32)], schema=schema)
        for batch in source.batches()
    )
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        write_row_groups(file, schema, tables, default_threads(), use_dictionary=False, compression="none")
    part.replace(path)


# --- the command line ------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Time what was asked for; 1 if ranks were wrong."""
    options = _parse(arguments)
    backend = choose_backend(options.backend)
    setting = Setting.observe("benchmarks.several_gpus", arguments, choose_machine(backend))
    asked = options.part or list(PARTS)
    rows: list[Row] = []
    with _open_folder(options.cache) as folder:
        bench = Bench(folder, options.scale, options.workers, backend, options.precision, options.repeats)
        if "generate" in asked or not bench.store.exists():
            say("generate")
            rows.append(bench.generate())
        if rows and rows[-1].remark:
            asked = []
        setting = setting.note(graph=_describe(bench))
        if {*asked} & {*PARTS[1:]}:
            say("one device")
            alone, digest = bench.rank_alone()
            rows.append(alone)
            parts: dict[str, Callable[[str], Row]] = {
                "process": bench.process,
                "warm": bench.warm,
                "parquet": bench.from_parquet,
            }
            for name, run in parts.items():
                if name in asked:
                    say(name)
                    rows.append(run(digest))
                    print(format_text([_tabulate(rows[-1:], is_judged=False)]), flush=True)
    is_judged = (backend, options.scale, options.workers) == ("cuda", SCALE, WORKERS)
    tables = [_tabulate(rows, is_judged=is_judged)]
    write_files(options, rows, tables, setting, LEGEND)
    print("\n".join([*setting.lines(), "", format_text(tables), "", *LEGEND]))
    return int(any(row.remark for row in rows))


def _describe(bench: Bench) -> str:
    with suppress(mg.errors.MgspmvError), mg.open(bench.store) as A:
        return f"R-MAT, scale {bench.scale}, {A.shape[0]:,} vertices, {A.nnz:,} edges, digest {A.info.digest[:16]}"
    return "none"


@contextmanager
def _open_folder(cache: Path | None) -> Iterator[Path]:
    if cache is not None:
        cache.mkdir(parents=True, exist_ok=True)
        yield cache
        return
    folder = tempfile.mkdtemp(prefix="mgspmv-benchmark-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _tabulate(rows: Sequence[Row], *, is_judged: bool) -> Table:
    return "Whole ways", [HEADER, *(_cells(row, is_judged=is_judged) for row in rows)]


def _cells(row: Row, *, is_judged: bool) -> Sequence[str]:
    if not row.runs:
        return (row.part, "", "", "", "0", "", row.remark)
    found, most_s = median(row.seconds), MOST_S.get(row.part)
    verdict = "" if most_s is None or not is_judged else f"{most_s:g} {'met' if found <= most_s else 'NOT MET'}"
    names = dict.fromkeys(name for run in row.runs for name in run.stages)
    stages = {name: median(run.stages.get(name, 0.0) for run in row.runs) for name in names}
    said = ", ".join(f"{name} {own:.3f}" for name, own in stages.items() if own >= 5e-4)
    return (row.part, f"{found:.2f}", f"{min(row.seconds):.2f}", verdict, str(len(row.runs)), said, row.remark)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--scale", type=int, default=SCALE, help=f"2^scale vertices, 16 edges each ({SCALE})")
    parser.add_argument("--workers", type=parse_count, default=WORKERS, help=f"of the cluster ({WORKERS})")
    parser.add_argument("--part", action="append", choices=PARTS, help="repeatable (all)")
    parser.add_argument("--repeats", type=parse_count, default=2, help="timed runs of each part (2)")
    add_backend_option(parser)
    parser.add_argument("--precision", choices=PRECISIONS, default="exact", help="(exact)")
    add_file_options(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_program(main)
