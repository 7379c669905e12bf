"""Tables of docs/sizing.md and docs/measured/sizing-tables.md: plans of graphs that do not exist, with measured rates.

`python -m benchmarks.sizing_model` puts them into the pages, each below its line `<!-- table NAME -->`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from mgspmv.exchange.exchange import LocalExchange
from mgspmv.kernels.operands import WIDTHS
from mgspmv.model import MatrixInfo, Precision
from mgspmv.partition import Planner
from mgspmv.plan import Plan, WorkerPlan
from mgspmv.solvers.batch import count_bytes

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "sizing.md"
APPENDIX = DOCS / "measured" / "sizing-tables.md"
TABLES = {PAGE: ("bytes", "gpus", "hosts", "stores"), APPENDIX: ("streaming", "batches")}
"""Names of the tables on each page."""

GIGA = 1_000_000_000
EDGES = (GIGA // 10, GIGA, 4 * GIGA, 16 * GIGA, 64 * GIGA)
PER_VERTEX = {64 * GIGA: 32}
"""Edges of a vertex, where they are not 16: columns of 32 bits are fewer than 2^31."""

GPUS_GB = (80, 141)
OWN_GB = 2
"""Of each GPU, for what CUDA and NCCL take beside a plan."""

SCRATCH_BYTES = 8
"""Of an entry of a pattern in files."""


# --- measured rates --------------------------------------------------------------------------------------------------


def read_cell(page: str, headings: tuple[str, ...], row: tuple[str, ...], column: str, at: int = 0) -> str:
    """A cell of a table in a page of measurements.

    Parameters
    ----------
    headings : begins of headings, one below the other, the last one that above the table
    row : its first cells
    column : its name; `at` counts columns of the same name
    """
    text = (DOCS / page).read_text()
    for heading in headings:
        _, _, text = re.split(rf"^(#+ {re.escape(heading)}.*)$", text, maxsplit=1, flags=re.M)
    lines = [line for line in text.split("\n#")[0].splitlines() if line.startswith("|")]
    names, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    place = [k for k, name in enumerate(names) if name == column][at]
    [found] = [cells[place] for cells in rows if tuple(cells[: len(row)]) == row]
    return found


def read_measured(page: str, headings: tuple[str, ...], row: tuple[str, ...], column: str, at: int = 0) -> float:
    """A number of it."""
    return float(read_cell(page, headings, row, column, at).replace(",", ""))


def read_speeds() -> dict[Precision, dict[int, float]]:
    """Edges a second of an H200 in an iteration over an R-MAT graph, by its vertices."""
    each = "G edges/s a worker"
    graphs = ("Twelve made graphs", "Iterations")
    speeds: dict[Precision, dict[int, float]] = {"float32": {}, "exact": {}}
    for at, precision in enumerate(speeds):
        one = read_measured("measured/h200-scaling.md", ("R-MAT, scale 26", precision), ("1",), each)
        four = read_measured("measured/h200-scaling.md", ("R-MAT, scale 28", precision), ("4",), each)
        small = read_measured("measured/h200-pagerank.md", graphs, ("rmat24",), "G edges/s", at)
        speeds[precision] = {1 << 24: 1e9 * small, 1 << 26: 1e9 * one, 1 << 28: 1e9 * four}
    return speeds


@dataclass(frozen=True)
class Rates:
    """What an H200 was measured to do in a second."""

    copy_bytes: float
    edges: float
    upload_bytes: float
    """From pinned memory."""
    store_bytes: float
    """Of CSR, from the store to the device."""

    def predict_seconds(self, worker: WorkerPlan) -> float:
        """Predict an iteration, without the exchange: what takes longest of reading in order, edges and streaming."""
        in_order_s, edges_s = (worker.block_bytes + worker.vector_bytes) / self.copy_bytes, worker.nnz / self.edges
        if worker.streaming is None:
            return max(in_order_s, edges_s)
        pace = self.upload_bytes if worker.streaming.held == "host" else self.store_bytes
        return max(in_order_s, edges_s, worker.streaming.streamed_bytes / pace)


def predict_seconds(made: Plan, n_edges: int) -> float:
    """Seconds of an iteration on the slowest worker, without the exchange."""
    rates = find_rates(count_vertices(n_edges), made.precision)
    return max(map(rates.predict_seconds, made.workers))


def find_rates(n_vertices: int, precision: Precision) -> Rates:
    """Those of the smallest measured graph that is as large, or of the largest."""
    speeds = read_speeds()[precision]
    measured = min((n for n in speeds if n >= n_vertices), default=max(speeds))
    first_run = ("First run", "exact")
    link = read_measured("measured/h200-streaming.md", first_run, ("host, some",), "link GB/s")
    store = read_measured("measured/h200-streaming.md", first_run, ("store",), "store GB/s")
    copy = re.search(r"bandwidth of a copy, ([\d,]+) GB/s", (DOCS / "measured/h200-pagerank.md").read_text())
    assert copy is not None
    return Rates(1e9 * float(copy[1].replace(",", "")), speeds[measured], 1e9 * link, 1e9 * store)


def is_measured(n_vertices: int) -> bool:
    """Whether a graph as large was."""
    return n_vertices <= max(read_speeds()["exact"])


# --- plans of graphs that are not there ------------------------------------------------------------------------------


class EvenRows:
    """Row pointers of a matrix whose rows have as many entries each."""

    def __init__(self, n_rows: int, nnz: int) -> None:
        self._n_rows, self._nnz = n_rows, nnz

    def __len__(self) -> int:
        return self._n_rows + 1

    def __getitem__(self, row: Any) -> Any:
        at = np.asarray(row) % (self._n_rows + 1)
        return at * (self._nnz // self._n_rows)


def count_vertices(n_edges: int) -> int:
    return n_edges // PER_VERTEX.get(n_edges, 16)


def describe(n_vertices: int, n_edges: int, dtype: str | None) -> MatrixInfo:
    """What a store of such a graph says of itself."""
    index = 4 if n_vertices < 1 << 31 else 8
    value = 0 if dtype is None else np.dtype(dtype).itemsize
    degrees = 8 if dtype is None else 16
    return MatrixInfo(
        url="graph.zarr",
        kind="graph",
        shape=(n_vertices, n_vertices),
        nnz=n_edges,
        dtype=dtype,
        index_dtype=f"int{8 * index}",
        duplicates="keep",
        vertex_ids=None,
        min_weight=None if dtype is None else 1.0,
        has_transpose=False,
        version="v000001-00000000",
        format_version=1,
        digest="",
        nbytes=(index + value) * n_edges + 8 * (n_vertices + 1) + degrees * n_vertices,
    )


def plan(
    n_edges: int,
    n_workers: int,
    precision: Precision,
    dtype: str | None = None,
    *,
    gpu_gb: float | None = None,
    n_vertices: int | None = None,
    **limits: int,
) -> Plan:
    """What `mgspmv plan` says of such a graph: on GPUs of so much memory, or else on hosts."""
    n = n_vertices or count_vertices(n_edges)
    info = describe(n, n_edges, dtype)
    lays_out = gpu_gb is not None and precision != "float64" and info.index_dtype == "int32"
    device = None if gpu_gb is None else int(1e9 * (gpu_gb - OWN_GB))
    rows: Any = EvenRows(n, n_edges)
    planner = Planner(info, rows, precision, threads=16, lays_out=lays_out, streams=lays_out)
    return planner.plan_rows(n_workers, device_memory=device, **limits)


def find_fewest(n_edges: int, precision: Precision, dtype: str | None, gpu_gb: int) -> Plan:
    """The plan for the fewest GPUs that hold all rows."""
    for n_workers in count(1):
        made = plan(n_edges, n_workers, precision, dtype, gpu_gb=gpu_gb)
        if not any(w.streams for w in made.workers):
            return made
    raise AssertionError


# --- tables ----------------------------------------------------------------------------------------------------------


def make_table(header: tuple[str, ...], rows: Iterator[tuple[str, ...]], words: tuple[int, ...] = (0,)) -> str:
    """In Markdown, with numbers to the right, and columns of words to the left."""
    line = "| " + " | ".join(header) + " |"
    rule = "|" + "|".join("---" if k in words else "---:" for k in range(len(header))) + "|"
    return "\n".join([line, rule, *("| " + " | ".join(row) + " |" for row in rows)])


def show_bytes(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:,.3g}" if n_bytes < 1e12 else f"{n_bytes / 1e9:,.0f}"


def show_edges(n_edges: int) -> str:
    return f"{n_edges / GIGA:g} G"


def show_seconds(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds >= 100:
        return f"{seconds / 60:.2g} min"
    return f"{1e3 * seconds:.2g} ms" if seconds < 0.1 else f"{seconds:.2g} s"


def list_of_bytes() -> Iterator[tuple[str, ...]]:
    """Bytes of an edge and of a vertex: by how much a plan grows with them."""
    cases: list[tuple[str, Precision, bool, bool]] = [
        ("host, `exact` or `float64`", "exact", False, False),
        ("host, `float32`", "float32", False, False),
        ("GPU, `exact`", "exact", True, False),
        ("GPU, `float32`", "float32", True, False),
        ("host, `exact` or `float64`, from 2^31 vertices on", "exact", False, True),
        ("GPU, `exact`, from 2^31 vertices on", "exact", True, True),
    ]
    for name, precision, on_gpu, is_wide in cases:
        n = 1 << (32 if is_wide else 30)

        def count_all(n: int, per_vertex: int, dtype: str | None, on_gpu=on_gpu, precision=precision) -> int:
            options: dict[str, Any] = {"n_vertices": n, "gpu_gb": 10**6 if on_gpu else None}
            own: WorkerPlan = plan(per_vertex * n, 1, precision, dtype, **options).workers[0]
            return own.device_bytes if on_gpu else own.block_bytes + own.vector_bytes

        value = "float32" if precision == "float32" else "float64"
        with_more = [count_all(n, 64, dtype) - count_all(n, 32, dtype) for dtype in (None, value)]
        vertices = count_all(n, 32, None) - count_all(n // 2, 64, None)
        yield (name, *(f"{each / (32 * n):.3g}" for each in with_more), f"{vertices / (n // 2):.3g}")


def list_of_gpus() -> Iterator[tuple[str, ...]]:
    """How many GPUs hold a graph, and how long an iteration takes on those that were measured."""
    cases: list[tuple[str, Precision, str | None]] = [
        ("`float32`", "float32", None),
        ("`exact`", "exact", None),
        ("`exact`, weights", "exact", "float64"),
    ]
    for n_edges in EDGES[1:]:
        for name, precision, dtype in cases:
            small, large = (find_fewest(n_edges, precision, dtype, gpu_gb) for gpu_gb in GPUS_GB)
            cells = [show_held(small), show_held(large)]
            seconds = show_seconds(predict_seconds(large, n_edges))
            cells += ["–" if dtype else seconds if is_measured(count_vertices(n_edges)) else f"({seconds})"]
            received = max(w.exchange_bytes for w in large.workers)
            yield (show_edges(n_edges), show_vertices(n_edges), name, *cells, show_bytes(received))


def show_held(made: Plan) -> str:
    return f"{len(made.workers)} x {show_bytes(max(w.device_bytes for w in made.workers))}"


def show_vertices(n_edges: int) -> str:
    return f"{count_vertices(n_edges) / GIGA:.3g} G"


def list_of_streaming() -> Iterator[tuple[str, ...]]:
    """Rows that are streamed because the GPUs do not hold the graph."""
    small, large = GPUS_GB
    for n_edges, n_workers, gpu_gb in (
        (16 * GIGA, 1, small),
        (64 * GIGA, 8, small),
        (64 * GIGA, 4, small),
        (64 * GIGA, 3, large),
        (64 * GIGA, 2, large),
        (64 * GIGA, 1, large),
    ):
        made = plan(n_edges, n_workers, "float32", gpu_gb=gpu_gb)
        own = max(made.workers, key=lambda w: 0 if w.streaming is None else w.streaming.streamed_bytes)
        assert own.streaming is not None
        little = plan(n_edges, n_workers, "float32", gpu_gb=gpu_gb, host_memory=own.load_bytes)
        yield (
            show_edges(n_edges),
            f"{n_workers} x {gpu_gb} GB",
            show_bytes(own.streaming.kept_bytes),
            show_bytes(own.streaming.streamed_bytes),
            show_bytes(own.host_bytes),
            show_seconds(predict_seconds(made, n_edges)),
            show_seconds(predict_seconds(little, n_edges)),
        )


def list_of_hosts() -> Iterator[tuple[str, ...]]:
    """Memory of each worker on a host, what it receives, and the time of an iteration on one of two processors."""
    took = read_measured("measured/benchmarks.md", ("Whole PageRank",), ("22", "mgspmv", "2"), "ms / iter.")
    edges = re.search(r"22 has ([\d.]+)\s*million", (DOCS / "measured" / "benchmarks.md").read_text())
    assert edges is not None
    for n_edges in EDGES:
        cells = []
        for n_workers in (1, 4, 16):
            made = plan(n_edges, n_workers, "exact")
            cells += [show_bytes(made.memory_bytes)]
            cells += [show_bytes(max(w.exchange_bytes for w in made.workers))] if n_workers > 1 else []
        seconds = n_edges / (1e6 * float(edges[1])) * took / 1e3
        yield (show_edges(n_edges), *cells, show_seconds(seconds))


def list_of_batches() -> Iterator[tuple[str, ...]]:
    """Vectors of a pass over a graph of 1 G edges, in one process or on one GPU."""
    n = count_vertices(GIGA)
    panels = LocalExchange(n)
    for width in WIDTHS:
        exact, float32 = count_bytes(panels, n, "exact", 8, width), count_bytes(panels, n, "float32", 4, width)
        yield (str(width), show_bytes(exact), show_bytes(float32))


def list_of_stores() -> Iterator[tuple[str, ...]]:
    """What a store of a pattern has, and what ingesting it takes."""
    row = ("61,244,649", "mgspmv")
    pace = 1e6 * read_measured("measured/benchmarks.md", ("Sixteen processors",), row, "M entries / s")
    for n_edges in EDGES:
        nbytes = describe(count_vertices(n_edges), n_edges, None).nbytes
        scratch = show_bytes(SCRATCH_BYTES * n_edges)
        yield (show_edges(n_edges), show_bytes(nbytes), scratch, show_seconds(n_edges / pace))


def make_tables() -> dict[str, str]:
    """All of them by name."""
    gpus = (*(f"GPUs of {gb} GB, with GB on each" for gb in GPUS_GB), "an iteration", "GB received by each, at most")
    hosts = ("GB on 1", "on each of 4", "received by each", "on each of 16", "received by each", "an iteration")
    stores = ("edges", "GB of arrays", "GB of scratch, at most", "time on 16 processors")
    streaming = ("edges", "GPUs", "GB kept on each", "GB streamed", "GB on its host", "from pinned memory")
    return {
        "bytes": make_table(("where", "an edge", "an edge with a weight", "a vertex"), list_of_bytes()),
        "gpus": make_table(("edges", "vertices", "precision", *gpus), list_of_gpus()),
        "streaming": make_table((*streaming, "from the store"), list_of_streaming()),
        "hosts": make_table(("edges", *hosts), list_of_hosts()),
        "batches": make_table(("vectors in a pass", "GB in `exact`", "GB in `float32`"), list_of_batches()),
        "stores": make_table(stores, list_of_stores()),
    }


def put_tables(page: str, tables: dict[str, str]) -> str:
    """The page with these tables in place of those below their lines."""
    for name, table in tables.items():
        page, n = re.subn(rf"(<!-- table {name} -->\n\n)(?:\|.*\n)*", lambda m, t=table: m[1] + t + "\n", page)
        if n != 1:
            raise AssertionError(f"the page has {n} lines for the table {name!r}, and needs one")
    return page


def make_pages() -> dict[Path, str]:
    """The text of each page with its tables made again."""
    tables = make_tables()
    return {
        page: put_tables(page.read_text(), {name: tables[name] for name in names}) for page, names in TABLES.items()
    }


if __name__ == "__main__":
    for page, text in make_pages().items():
        page.write_text(text)
