"""Check, then time a Matrix Market file on its way to a store: by `mgspmv ingest`, and by what others parse and sort.

    python tests/benchmarks/ingesting.py --scale 22 --entries 60000000

The file has the entries of an R-MAT graph in any order, none of them twice. SciPy, polars and DuckDB parse it and make
the arrays of CSR, which are written as `ingest` writes them; all stores must have the digest of ours, or the exit code
is 1. The same entries are ingested from a Parquet table too. All run in turn, in this process, and use all processors
where they can.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from measure import Rounds, say, take_turns
from tables import Setting, Table, add_file_options, format_text, judge, write_files

import mgspmv as mg
from mgspmv.ingest.generate import make_generator
from mgspmv.model import CsrArrays, default_threads
from mgspmv.store import write_store

OURS, OURS_PARQUET = "mgspmv", "mgspmv, Parquet"
PARQUET_RATE = 15e6
"""Entries a second that are wanted from Parquet."""
FLOORS = {"scipy": 2.0, "polars": 1.3, "duckdb": 1.3}
"""How many times as fast ours is to be; of polars and DuckDB beside the faster."""
HEADER = (
    "entries", "program", "threads", "median s", "least s", "runs", "parse", "sort", "write", "M entries / s", "ratio",
    "wanted",
)  # fmt: skip
LEGEND = (
    "parse, sort, write: shares of the time. mgspmv groups entries while it parses, and writes rows while it sorts the "
    "next ones, which is under sort.",
    "ratio: the row's median over that of mgspmv; 2 says that mgspmv takes half.",
)
Clock = Callable[[str], None]
"""Says which phase begins."""


@dataclass(frozen=True)
class Run:
    """What one way from the file to the store took."""

    seconds: dict[str, float]
    """By phase."""
    digest: str
    """Of the store."""

    @property
    def elapsed_s(self) -> float:
        return sum(self.seconds.values())


@dataclass(frozen=True)
class Row:
    """What was found of a program."""

    n_entries: int
    program: str
    threads: int
    remark: str = ""
    """What was wrong."""
    is_wrong: bool = False
    runs: tuple[Run, ...] = field(default=())
    ratio: float | None = None
    floor: float | None = None
    """What the ratio is to be at least."""

    @property
    def median_s(self) -> float:
        return median(run.elapsed_s for run in self.runs)

    def share(self, phase: str) -> float:
        """Of the seconds of all runs, those in a phase."""
        return sum(run.seconds.get(phase, 0.0) for run in self.runs) / sum(run.elapsed_s for run in self.runs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Time all programs; 1 when one made another store."""
    options = _parse(arguments)
    setting = Setting.observe("ingesting.py", arguments)
    with tempfile.TemporaryDirectory(dir=options.cache) as folder:
        path = Path(folder) / "entries.mtx"
        say(f"writing {options.entries:,} entries to a file")
        n_entries = write_entries(path, options.scale, options.entries)
        rows = compare(path, n_entries, options.repeats)
    tables = tabulate(rows, path.name)
    write_files(options, rows, tables, setting, LEGEND)
    print("\n".join([*setting.lines(), "", format_text(tables), "", *LEGEND]))
    return int(any(row.is_wrong for row in rows))


def write_entries(path: Path, scale: int, n_wanted: int) -> int:
    """Write about so many entries, in any order, to a Matrix Market file and a Parquet table; how many there are."""
    n = 1 << scale
    batches = make_generator("rmat", scale=scale, edge_factor=-(-n_wanted // n), seed=1).batches()
    keys = np.sort(np.concatenate([b.rows.astype(np.int64) << scale | b.cols for b in batches]))
    keys = keys[np.append(True, keys[1:] > keys[:-1])]  # many times as fast as np.unique
    np.random.default_rng(1).shuffle(keys)
    with path.open("wb") as file:
        file.write(f"%%MatrixMarket matrix coordinate pattern general\n{n} {n} {len(keys)}\n".encode())
        for k in range(0, len(keys), 1 << 22):
            own = keys[k : k + (1 << 22)]
            table = pa.table({"row": (own >> scale) + 1, "col": (own & (n - 1)) + 1})
            pyarrow.csv.write_csv(table, file, pyarrow.csv.WriteOptions(include_header=False, delimiter=" "))
    table = pa.table({"row": (keys >> scale).astype(np.int32), "col": (keys & (n - 1)).astype(np.int32)})
    pyarrow.parquet.write_table(table, path.with_suffix(".parquet"))
    return len(keys)


def compare(path: Path, n_entries: int, repeats: int) -> list[Row]:
    """Check every program, then time those that were right, in turn."""
    rows, wanted = [], ""
    for program, ingest in PROGRAMS.items():
        say(f"checking {program}")
        row = Row(n_entries, program, default_threads())
        try:
            digest = _run(ingest, path).digest
        except ImportError as error:
            rows.append(replace(row, remark=f"left out: {error}"))
            continue
        wanted = wanted or digest
        rows.append(row if digest == wanted else replace(row, remark="WRONG: another matrix", is_wrong=True))
    able = {row.program: partial(_run, PROGRAMS[row.program], path) for row in rows if not row.remark}
    say(f"timing {', '.join(able)} in turn")
    runs = take_turns(able, Rounds(repeats, least_s=0.0, most_s=math.inf))
    return add_runs(rows, {name: tuple(own) for name, own in runs.items()})


def add_runs(rows: Sequence[Row], runs: dict[str, tuple[Run, ...]]) -> list[Row]:
    """The rows with their runs and ratios."""
    timed = [replace(row, runs=runs.get(row.program, ())) for row in rows]
    ours = next(row for row in timed if row.program == OURS)
    fastest = min((row.median_s for row in timed if row.runs and row.program in ("polars", "duckdb")), default=None)
    return [_add_ratio(row, ours, fastest) for row in timed]


def tabulate(rows: Sequence[Row], name: str) -> list[Table]:
    """All rows in one table."""
    return [(f"{name}: {rows[0].n_entries:,} entries of a pattern", [HEADER, *map(_cells, rows)])]


# --- programs --------------------------------------------------------------------------------------------------------


def ingest_ours(path: Path, store: Path, begin: Clock) -> None:
    """By `mgspmv.ingest`."""
    phases = {"read": "parse", "sort and write": "sort"}
    mg.ingest(path, store, on_progress=lambda phase, done, total: begin(phases[phase]))


def ingest_parquet(path: Path, store: Path, begin: Clock) -> None:
    """By `mgspmv.ingest`, from the table."""
    phases = {"read": "parse", "sort and write": "sort"}
    given = {"n_vertices": _read_size(path), "kind": "matrix"}
    mg.ingest(path.with_suffix(".parquet"), store, **given, on_progress=lambda phase, *_: begin(phases[phase]))


def ingest_by_scipy(path: Path, store: Path, begin: Clock) -> None:
    """By SciPy's mmread, several threads, and tocsr, one."""
    from scipy.io import mmread

    matrix = mmread(path, spmatrix=False)
    begin("sort")
    csr = matrix.tocsr()
    csr.sort_indices()
    begin("write")
    _write(store, csr.shape[0], csr.indptr.astype(np.int64), csr.indices)


def ingest_by_polars(path: Path, store: Path, begin: Clock) -> None:
    """By polars' parser and sort."""
    import polars

    schema = {"row": polars.Int32, "col": polars.Int32}
    table = polars.read_csv(path, has_header=False, skip_rows=2, separator=" ", schema=schema)
    begin("sort")
    table = table.sort("row", "col")
    _write_sorted(path, store, table["row"].to_numpy(), table["col"].to_numpy(), begin)


def ingest_by_duckdb(path: Path, store: Path, begin: Clock) -> None:
    """By DuckDB's parser and sort, in one query."""
    import duckdb

    columns = "{'row': 'INTEGER', 'col': 'INTEGER'}"
    query = f"SELECT row, col FROM read_csv('{path}', delim=' ', header=false, skip=2, columns={columns})"
    with duckdb.connect() as connection:
        table = connection.execute(f"{query} ORDER BY row, col").fetchnumpy()
    begin("sort")
    _write_sorted(path, store, table["row"], table["col"], begin)


PROGRAMS: dict[str, Callable[[Path, Path, Clock], None]] = {
    OURS: ingest_ours,
    OURS_PARQUET: ingest_parquet,
    "scipy": ingest_by_scipy,
    "polars": ingest_by_polars,
    "duckdb": ingest_by_duckdb,
}


def _write_sorted(path: Path, store: Path, rows: np.ndarray, cols: np.ndarray, begin: Clock) -> None:
    """Rows and columns from 1 on, sorted, as CSR."""
    n = _read_size(path)
    indptr = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(rows - 1, minlength=n), out=indptr[1:])
    indices = cols - 1
    begin("write")
    _write(store, n, indptr, indices.astype(np.int32, copy=False))


def _read_size(path: Path) -> int:
    with path.open() as file:
        return int(file.read(200).splitlines()[1].split()[0])


def _write(store: Path, n: int, indptr: np.ndarray, indices: np.ndarray) -> None:
    write_store(store, CsrArrays("matrix", (n, n), indptr, indices, None, duplicates="first"))


def _run(ingest: Callable[[Path, Path, Clock], None], path: Path) -> Run:
    """Run a program, by its phases."""
    store, marks = path.with_suffix(".zarr"), [("parse", time.perf_counter())]

    def begin(phase: str) -> None:
        if marks[-1][0] != phase:
            marks.append((phase, time.perf_counter()))

    ingest(path, store, begin)
    ends = [*(at for _, at in marks[1:]), time.perf_counter()]
    seconds = {phase: end - at for (phase, at), end in zip(marks, ends, strict=True)}
    digest = mg.open_matrix(store).info.digest
    shutil.rmtree(store)
    return Run(seconds, digest)


def _add_ratio(row: Row, ours: Row, fastest: float | None) -> Row:
    if row is ours or not row.runs or not ours.runs:
        return row
    if row.program == OURS_PARQUET:
        return replace(row, ratio=row.median_s / ours.median_s)
    is_best = row.program == "scipy" or row.median_s == fastest
    return replace(row, ratio=row.median_s / ours.median_s, floor=FLOORS[row.program] if is_best else None)


def _cells(row: Row) -> Sequence[str]:
    size = f"{row.n_entries:,}"
    if not row.runs:
        return size, row.program, str(row.threads), row.remark, *[""] * (len(HEADER) - 4)
    return (
        size,
        row.program,
        str(row.threads),
        f"{row.median_s:.2f}",
        f"{min(run.elapsed_s for run in row.runs):.2f}",
        str(len(row.runs)),
        *(f"{row.share(phase):.0%}" for phase in ("parse", "sort", "write")),
        f"{row.n_entries / row.median_s / 1e6:.1f}",
        "" if row.ratio is None else f"{row.ratio:.2f}",
        judge(row.ratio, row.floor) if row.program != OURS_PARQUET else _judge_rate(row),
    )


def _judge_rate(row: Row) -> str:
    is_met = row.n_entries / row.median_s >= PARQUET_RATE
    return f"{PARQUET_RATE / 1e6:.0f} M / s {'met' if is_met else 'NOT MET'}"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=22, help="2^scale rows and columns (22)")
    parser.add_argument("--entries", type=int, default=60_000_000, help="about so many (60 million)")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each program (5)")
    add_file_options(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
