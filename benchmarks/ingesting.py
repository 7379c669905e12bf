"""Check, then time a Matrix Market file on its way to a store: by `mgspmv ingest`, and by what others parse and sort.

    python -m benchmarks.ingesting --scale 22 --entries 60000000
    python -m benchmarks.ingesting --names --scale 20 --entries 8000000
    python -m benchmarks.ingesting --graph --scale 23 --entries 100000000
    python -m benchmarks.ingesting --workers 8

The file has the entries of an R-MAT graph in any order, none of them twice. SciPy, polars and DuckDB parse it and
make the arrays of CSR, which are written as `ingest` writes them; all stores must have the digest of ours, or the
exit code is 1. The same entries are ingested from a Parquet table too. With `--names` it is a list of edges between
names of 8 to 20 letters, and programs number these in their order too. With `--graph` the entries are edges whose ids
are numbered, from text, a Parquet table and arrays of NumPy, by mgspmv alone; on the processors if no GPU is visible.
With `--workers` as many processes of a Dask cluster on this machine ingest the table too. All run in turn, in this
process but for these, and use all processors where they can.
"""

from __future__ import annotations

import argparse
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

import mgspmv as mg
from benchmarks.measure import Rounds, say, take_turns
from benchmarks.program import add_file_options, make_parser, run_program
from benchmarks.tables import Setting, Table, format_text, judge, write_files
from mgspmv.ingest.generate import make_generator
from mgspmv.ingest.numbering import find_id_type
from mgspmv.model import default_threads
from mgspmv.store.held import describe_unstored
from mgspmv.store.write import begin_version

OURS, OURS_PARQUET, OURS_NAMES_PARQUET = "mgspmv", "mgspmv, Parquet", "mgspmv, Parquet of names"
OURS_ARRAYS = "mgspmv, arrays"
PARQUET_RATES = {OURS_PARQUET: 15e6, OURS_NAMES_PARQUET: 3e6}
"""Entries a second that are wanted from Parquet."""
FLOORS = {"scipy": 2.0, "pandas": 1.3, "polars": 1.3, "duckdb": 1.3}
"""How many times as fast ours is to be; of others than SciPy beside the fastest."""
LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz0123456789-.", np.uint8)
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
    setting = Setting.observe("benchmarks.ingesting", arguments)
    with tempfile.TemporaryDirectory(dir=options.cache) as folder:
        path = Path(folder) / ("entries.txt" if options.names or options.graph else "entries.mtx")
        say(f"writing {options.entries:,} entries to a file")
        write = write_names if options.names else write_entries
        n_entries = write(path, options.scale, options.entries)
        programs = graph_programs(path) if options.graph else NAME_PROGRAMS if options.names else PROGRAMS
        with add_workers(programs, options.workers) as all_programs:
            rows = compare(path, n_entries, options.repeats, all_programs)
    tables = tabulate(rows, path.name)
    write_files(options, rows, tables, setting, LEGEND)
    print("\n".join([*setting.lines(), "", format_text(tables), "", *LEGEND]))
    return int(any(row.is_wrong for row in rows))


def write_entries(path: Path, scale: int, n_wanted: int) -> int:
    """Write about so many entries, in any order, to Matrix Market or an edge list, and to Parquet; say how many."""
    n, keys = 1 << scale, make_keys(scale, n_wanted)
    first = int(path.suffix == ".mtx")
    with path.open("wb") as file:
        if first:
            file.write(f"%%MatrixMarket matrix coordinate pattern general\n{n} {n} {len(keys)}\n".encode())
        for k in range(0, len(keys), 1 << 22):
            own = keys[k : k + (1 << 22)]
            table = pa.table({"row": (own >> scale) + first, "col": (own & (n - 1)) + first})
            pyarrow.csv.write_csv(table, file, pyarrow.csv.WriteOptions(include_header=False, delimiter=" "))
    table = pa.table({"row": (keys >> scale).astype(np.int32), "col": (keys & (n - 1)).astype(np.int32)})
    pyarrow.parquet.write_table(table, path.with_suffix(".parquet"))
    return len(keys)


def write_names(path: Path, scale: int, n_wanted: int) -> int:
    """Write about so many edges between names, in any order, to a text and a Parquet table; how many there are."""
    n, keys = 1 << scale, make_keys(scale, n_wanted)
    rng = np.random.default_rng(2)
    ends = np.append(0, np.cumsum(rng.integers(8, 21, n))).astype(np.int32)
    letters = LETTERS[rng.integers(0, len(LETTERS), int(ends[-1]))]
    names = pa.StringArray.from_buffers(n, pa.py_buffer(ends), pa.py_buffer(letters))
    table = pa.table({"source": names.take(pa.array(keys >> scale)), "target": names.take(pa.array(keys & (n - 1)))})
    options = pyarrow.csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    pyarrow.csv.write_csv(table, path, options)
    pyarrow.parquet.write_table(table, path.with_suffix(".parquet"))
    return len(keys)


def make_keys(scale: int, n_wanted: int) -> np.ndarray:
    """About so many different entries of an R-MAT graph, in any order: the row before the last `scale` bits."""
    batches = make_generator("rmat", scale=scale, edge_factor=-(-n_wanted >> scale), seed=1).batches()
    keys = np.sort(np.concatenate([b.rows.astype(np.int64) << scale | b.cols for b in batches]))
    keys = keys[np.append(True, keys[1:] > keys[:-1])]  # many times as fast as np.unique
    np.random.default_rng(1).shuffle(keys)
    return keys


def compare(path: Path, n_entries: int, repeats: int, programs: Programs) -> list[Row]:
    """Check every program, then time those that were right, in turn."""
    rows, wanted = [], ""
    for program, ingest in programs.items():
        say(f"checking {program}")
        row = Row(n_entries, program, default_threads())
        try:
            digest = _run(ingest, path).digest
        except ImportError as error:
            rows.append(replace(row, remark=f"left out: {error}"))
            continue
        wanted = wanted or digest
        rows.append(row if digest == wanted else replace(row, remark="WRONG: another matrix", is_wrong=True))
    able = {row.program: partial(_run, programs[row.program], path) for row in rows if not row.remark}
    say(f"timing {', '.join(able)} in turn")
    runs = take_turns(able, Rounds(repeats, least_s=0.0, most_s=math.inf))
    return add_runs(rows, {name: tuple(own) for name, own in runs.items()})


def add_runs(rows: Sequence[Row], runs: dict[str, tuple[Run, ...]]) -> list[Row]:
    """The rows with their runs and ratios."""
    timed = [replace(row, runs=runs.get(row.program, ())) for row in rows]
    ours = next(row for row in timed if row.program == OURS)
    others = set(FLOORS) - {"scipy"}
    fastest = min((row.median_s for row in timed if row.runs and row.program in others), default=None)
    return [_add_ratio(row, ours, fastest) for row in timed]


def tabulate(rows: Sequence[Row], name: str) -> list[Table]:
    """All rows in one table."""
    return [(f"{name}: {rows[0].n_entries:,} entries of a pattern", [HEADER, *map(_cells, rows)])]


# --- programs --------------------------------------------------------------------------------------------------------


def ingest_ours(path: Path, store: Path, begin: Clock) -> None:
    """By `mgspmv.ingest`."""
    phases = {"read": "parse", "sort and write": "sort"}
    mg.ingest(path, store, progress=lambda phase: begin(phases[phase.name]))


def ingest_parquet(path: Path, store: Path, begin: Clock) -> None:
    """By `mgspmv.ingest`, from the table."""
    phases = {"read": "parse", "sort and write": "sort"}
    given = {"n_vertices": _read_size(path), "kind": "matrix"}
    mg.ingest(path.with_suffix(".parquet"), store, **given, progress=lambda phase: begin(phases[phase.name]))


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


Program = Callable[[Path, Path, Clock], None]
Programs = dict[str, Program]
PROGRAMS: Programs = {
    OURS: ingest_ours,
    OURS_PARQUET: ingest_parquet,
    "scipy": ingest_by_scipy,
    "polars": ingest_by_polars,
    "duckdb": ingest_by_duckdb,
}


def graph_programs(path: Path) -> Programs:
    """From the text, the table and its columns as arrays, to the store of a graph whose ids are numbered."""
    table = pyarrow.parquet.read_table(path.with_suffix(".parquet"))
    arrays = table["row"].to_numpy(), table["col"].to_numpy()

    def ingest_from(source: Any, _path: Path, store: Path, begin: Clock) -> None:
        phases = {"read": "parse", "number": "sort", "sort and write": "sort"}
        mg.ingest(source, store, kind="graph", progress=lambda phase: begin(phases[phase.name]))

    sources = {OURS: path, OURS_PARQUET: path.with_suffix(".parquet"), OURS_ARRAYS: arrays}
    return {program: partial(ingest_from, source) for program, source in sources.items()}


def ingest_names(path: Path, store: Path, begin: Clock, **given: str) -> None:
    """By `mgspmv.ingest`, as a matrix, which needs no more arrays than the others make."""
    phases = {"read": "parse", "number": "sort", "sort and write": "sort"}
    mg.ingest(path, store, kind="matrix", **given, progress=lambda phase: begin(phases[phase.name]))


def ingest_names_of_parquet(path: Path, store: Path, begin: Clock) -> None:
    """By `mgspmv.ingest`, from the table."""
    ingest_names(path.with_suffix(".parquet"), store, begin)


def ingest_names_by_pandas(path: Path, store: Path, begin: Clock) -> None:
    """By pandas' parser, which is Arrow's, and `factorize`; sorted by SciPy, for which pandas' sort is no match."""
    import pandas
    from scipy.sparse import coo_array

    table = pandas.read_csv(path, sep="\t", header=None, engine="pyarrow", dtype_backend="pyarrow")
    codes, names = pandas.factorize(pandas.concat([table[0], table[1]]), sort=True)
    rows, cols = np.split(codes.astype(np.int32), 2)
    begin("sort")
    csr = coo_array((np.ones(len(rows), bool), (rows, cols)), shape=(len(names),) * 2).tocsr()
    csr.sort_indices()
    ids = names.to_numpy(dtype=object)
    begin("write")
    _write(store, len(ids), csr.indptr.astype(np.int64), csr.indices, ids)


def ingest_names_by_polars(path: Path, store: Path, begin: Clock) -> None:
    """By polars' parser, numbers of the names in a table, two joins and a sort; a cast to Enum takes longer."""
    import polars

    edges = polars.read_csv(path, has_header=False, separator="\t", new_columns=["source", "target"])
    names = polars.concat([edges["source"], edges["target"].alias("source")]).unique().sort()
    numbers = polars.DataFrame({"name": names, "number": np.arange(len(names), dtype=np.int32)})
    rows = edges.join(numbers, left_on="source", right_on="name").rename({"number": "row"})
    table = rows.join(numbers, left_on="target", right_on="name").select("row", col="number")
    begin("sort")
    table = table.sort("row", "col")
    begin("write")
    pointers = _find_pointers(table["row"].to_numpy(), len(names))
    _write(store, len(names), pointers, table["col"].to_numpy(), names.to_numpy())


def ingest_names_by_duckdb(path: Path, store: Path, begin: Clock) -> None:
    """By DuckDB's parser, numbers of the names in a table, two joins and a sort."""
    import duckdb

    columns = "{'source': 'VARCHAR', 'target': 'VARCHAR'}"
    with duckdb.connect() as connection:
        connection.execute(
            f"CREATE TABLE edges AS SELECT * FROM read_csv('{path}', delim='\t', header=false, columns={columns})"
        )
        connection.execute(
            "CREATE TABLE names AS SELECT name, (row_number() OVER (ORDER BY name) - 1)::INTEGER AS number "
            "FROM (SELECT source AS name FROM edges UNION SELECT target FROM edges)"
        )
        begin("sort")
        table = connection.execute(
            "SELECT a.number AS row, b.number AS col FROM edges JOIN names a ON source = a.name "
            "JOIN names b ON target = b.name ORDER BY ALL"
        ).fetchnumpy()
        ids = connection.execute("SELECT name FROM names ORDER BY number").fetchnumpy()["name"]
    begin("write")
    _write(store, len(ids), _find_pointers(table["row"], len(ids)), table["col"], np.asarray(ids, object))


NAME_PROGRAMS: Programs = {
    OURS: ingest_names,
    OURS_NAMES_PARQUET: ingest_names_of_parquet,
    "pandas": ingest_names_by_pandas,
    "polars": ingest_names_by_polars,
    "duckdb": ingest_names_by_duckdb,
}


@contextmanager
def add_workers(programs: Mapping[str, Program], n_workers: int | None) -> Iterator[dict[str, Program]]:
    """The programs, and as many workers as are wanted, which share the processors."""
    if n_workers is None:
        yield dict(programs)
        return
    from distributed import Client, LocalCluster

    threads = max(1, default_threads() // n_workers)
    with (
        LocalCluster(n_workers=n_workers, threads_per_worker=threads, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield {**programs, f"{OURS}, {n_workers} workers": partial(ingest_by_workers, client=client)}


def ingest_by_workers(path: Path, store: Path, begin: Clock, client: Any) -> None:
    """By `mgspmv.ingest` of the Parquet table on a cluster, whose workers read row groups of it."""
    phases = {"join": "parse", "begin": "parse", "read": "parse", "write": "write"}
    given: dict[str, Any] = {"n_vertices": _read_size(path), "kind": "matrix"} if path.suffix == ".mtx" else {}
    mg.ingest(
        path.with_suffix(".parquet"),
        store,
        **given,
        client=client,
        progress=lambda phase: begin(phases.get(phase.name, "sort")),
    )


def _write_sorted(path: Path, store: Path, rows: np.ndarray, cols: np.ndarray, begin: Clock) -> None:
    """Rows and columns from 1 on, sorted, as CSR."""
    n = _read_size(path)
    indptr, indices = _find_pointers(rows - 1, n), cols - 1
    begin("write")
    _write(store, n, indptr, indices.astype(np.int32, copy=False))


def _read_size(path: Path) -> int:
    with path.open() as file:
        return int(file.read(200).splitlines()[1].split()[0])


def _find_pointers(rows: np.ndarray, n: int) -> np.ndarray:
    """CSR's, of sorted rows."""
    indptr = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=n), out=indptr[1:])
    return indptr


def _write(store: Path, n: int, indptr: np.ndarray, indices: np.ndarray, ids: np.ndarray | None = None) -> None:
    arrays = {"indptr": indptr, "indices": indices} | ({} if ids is None else {"vertex_ids": ids})
    info = describe_unstored("matrix", (n, n), len(indices), None, "first", find_id_type(ids), None, {})
    with begin_version(store) as version:
        for name, array in arrays.items():
            version.write_array(name, array)
        version.commit(version.describe(info))


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
    if row.program not in FLOORS:
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
        judge(row.ratio, row.floor) if row.program not in PARQUET_RATES else _judge_rate(row),
    )


def _judge_rate(row: Row) -> str:
    wanted = PARQUET_RATES[row.program]
    return f"{wanted / 1e6:.0f} M / s {'met' if row.n_entries / row.median_s >= wanted else 'NOT MET'}"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--scale", type=int, default=22, help="2^scale rows and columns (22)")
    parser.add_argument("--entries", type=int, default=60_000_000, help="about so many (60 million)")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--names", action="store_true", help="a list of edges between names")
    kinds.add_argument("--graph", action="store_true", help="edges whose ids are numbered, by mgspmv alone")
    parser.add_argument("--workers", type=int, help="processes of a cluster that ingest it too; default none")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each program (5)")
    add_file_options(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_program(main)
