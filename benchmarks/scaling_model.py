"""The tables of docs/measured/scaling-model.md: a model of iterations on 8 to 2,048 GPUs, fitted to runs on 1, 2 and 4.

`python -m benchmarks.scaling_model` puts them into the page, each below its line `<!-- table NAME -->`.

seconds of a product    =  fixed  +  edges / GPUs * (a + g * sectors of z an edge)
seconds of an exchange  =  fixed  +  bytes over NVLink / its rate  +  bytes from other hosts / their rate  +  hops

It is no part of mgspmv, which plans for machines that can be measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import comb, inf, log2, sqrt
from typing import Any, Literal

import numpy as np

from benchmarks.sizing_model import (
    DOCS,
    EvenRows,
    describe,
    make_table,
    put_tables,
    read_cell,
    read_measured,
    show_seconds,
)
from mgspmv.exchange.ipc import MOST_DEVICES
from mgspmv.model import Precision
from mgspmv.partition import LAID_RATIO, choose_piece, plan_rows

PAGE = DOCS / "measured" / "scaling-model.md"
SCALING = "measured/h200-scaling.md"
PRECISIONS: tuple[Precision, ...] = ("float32", "exact")

GPUS = tuple(1 << k for k in range(3, 12))
SCALES = (26, 27, 28)
"""Of the R-MAT graphs that were measured, 16 edges a vertex."""

# --- what is assumed -------------------------------------------------------------------------------------------------

BITS = (0.57 + 0.19, 0.19 + 0.05)
"""Of R-MAT: how likely a bit of an edge's row is 0, and 1, and of its column. The two are taken as independent."""
BLOCK_ROWS = 14_592
"""Of a row block, whose sums fill shared memory."""
SECTOR_BYTES = 32
"""What a GPU reads of its memory at the least."""
SUM_BYTES = 8
"""Of a partial sum of a row, in both precisions: an integer of 64 bits."""
ROOM = 139e9
"""Bytes of a GPU, without what CUDA and NCCL take."""
DOMAIN = MOST_DEVICES
"""GPUs of a host, all on NVLink; a network adapter for each."""
NVLINK_GBS, NETWORK_GBS = 450, 50
"""By data sheet, of a GPU and in one direction: NVLink 4, InfiniBand NDR."""
HOP_S = 14e-6
"""A message from host to host."""


# --- graphs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Graph:
    """An R-MAT graph whose repeated edges are kept, ids scrambled."""

    scale: int
    per_vertex: int = 16
    """Edges."""

    @property
    def n_vertices(self) -> int:
        return 1 << self.scale

    @property
    def n_edges(self) -> int:
        return self.per_vertex << self.scale

    @property
    def share(self) -> float:
        """Of the vertices, those with out-edges: only they have a place in z. As many have in-edges."""
        counts, likely = list_classes(self.scale)
        return float(counts @ -np.expm1(-self.n_edges * likely)) / self.n_vertices

    def count_sectors(self, itemsize: int) -> float:
        """Sectors of z that row blocks read, an edge: entries of a block are in order of columns, so that each sector
        comes once. Rows and columns are in order of their degrees; rows of a block have the same, about."""
        sector = SECTOR_BYTES // itemsize
        counts, likely = list_classes(self.scale)
        entries = np.outer(self.n_edges * likely * BLOCK_ROWS, sector * likely)  # of a block in a sector
        read = -np.expm1(-entries) @ (counts / sector)  # sectors of a block
        return float(counts / BLOCK_ROWS @ read) / self.n_edges


@cache
def list_classes(scale: int) -> tuple[np.ndarray, np.ndarray]:
    """How many vertices have so many bits that are 1, and how likely an edge is at one of them."""
    ones, (zero, one) = np.arange(scale + 1), BITS
    return np.array([float(comb(scale, int(k))) for k in ones]), zero ** (scale - ones) * one**ones


# --- constants that are measured -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rates:
    """Of an H200, its links, and the network between hosts."""

    edge_s: dict[Precision, tuple[float, float]]
    """Of an edge: in any case, and for each sector of z that it reads."""
    fixed_s: float
    """Of a product."""
    exchange_s: float
    """Of an exchange by NCCL, whatever goes."""
    nvlink: float
    """Bytes a second into a GPU, by NCCL."""
    written_s: float
    """By which a product gets longer, for each byte that comes into a GPU while it multiplies."""
    meet_s: float
    """Of the end of a step where slices are written directly."""
    copy: float
    """Bytes a second, read and written, of a GPU's memory."""
    network: float
    """Bytes a second into a GPU from other hosts; not measured."""


@dataclass(frozen=True)
class Row:
    """What was measured of an R-MAT graph: an iteration by NCCL, and with slices written directly."""

    graph: Graph
    precision: Precision
    n_gpus: int
    nccl_s: tuple[float, float] | None
    """Product and exchange; None on one GPU."""
    written_s: tuple[float, float] | None
    bench_s: float
    """An iteration, of another run, slices written directly."""
    received: float
    """Bytes, by each GPU at most, of the same run."""


def read_rows() -> list[Row]:
    """All that was measured of several H200, and the one beside them."""
    table, rows = ("Slices by NCCL",), []
    for scale, precision, n_gpus in product(SCALES, PRECISIONS, (1, 2, 4)):
        if scale > 26 and n_gpus < 4:
            continue
        bench = (SCALING, (f"R-MAT, scale {scale}", precision), (str(n_gpus),))
        nccl = written = None
        if n_gpus > 1:
            cells = (read_cell(SCALING, table, (f"R-MAT {scale}", precision, str(n_gpus)), "product + exchange", at)
                     for at in range(2))  # fmt: skip
            nccl, written = (tuple(float(ms) / 1e3 for ms in cell.split("+")) for cell in cells)
        seconds, received = read_measured(*bench, "iteration ms") / 1e3, 1e6 * read_measured(*bench, "received MB")
        rows.append(Row(Graph(scale), precision, n_gpus, nccl, written, seconds, received))
    return rows


def fit_rates(rows: list[Row]) -> Rates:
    """Least squares of relative errors: of products, then of exchanges, then of what writing adds to products."""
    products = []
    for row in rows:
        edges, at = row.graph.n_edges / row.n_gpus, 2 * PRECISIONS.index(row.precision)
        terms = np.zeros(2 * len(PRECISIONS) + 1)
        terms[at : at + 2] = edges, edges * row.graph.count_sectors(find_itemsize(row.precision))
        terms[-1] = 1
        products.append((terms, row.bench_s if row.nccl_s is None else row.nccl_s[0]))
    *edge_s, fixed_s = solve(products)
    exchange_s, byte_s = solve([(np.array([1.0, row.received]), row.nccl_s[1]) for row in rows if row.nccl_s])
    both = [(row, row.nccl_s, row.written_s) for row in rows if row.nccl_s and row.written_s]
    received = np.array([row.received for row, _, _ in both])
    longer = np.array([written_s[0] - nccl_s[0] for _, nccl_s, written_s in both])
    found = re.search(r"bandwidth of a copy, ([\d,]+) GB/s", (DOCS / "measured/h200-pagerank.md").read_text())
    assert found is not None
    return Rates(
        edge_s={p: (edge_s[2 * k], edge_s[2 * k + 1]) for k, p in enumerate(PRECISIONS)},
        fixed_s=fixed_s,
        exchange_s=exchange_s,
        nvlink=1 / byte_s,
        written_s=float(received @ longer / (received @ received)),
        meet_s=float(np.mean([written_s[1] for _, _, written_s in both])),
        copy=1e9 * float(found[1].replace(",", "")),
        network=NETWORK_GBS / NVLINK_GBS / byte_s,  # as near to its data sheet as NVLink
    )


def solve(rows: list[tuple[np.ndarray, float]]) -> list[float]:
    """What terms are to be multiplied with, so that their sums are nearest to what was measured, relative to it."""
    terms = np.array([own / took for own, took in rows])
    sizes = np.abs(terms).max(axis=0)  # seconds of an edge and of a step are ten powers of ten apart
    found, *_ = np.linalg.lstsq(terms / sizes, np.ones(len(rows)), rcond=None)
    return [float(x) for x in found / sizes]


def find_itemsize(precision: Precision) -> int:
    """Of an element of z."""
    return 4 if precision == "float32" else 8


# --- the model -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grid:
    """GPUs as rows and columns: GPU (r, c) has the edges from the vertices of c to those of r.

    1-D, by rows, is one column. Of each host `host_rows` x `host_columns` GPUs are neighbours in the grid.
    """

    rows: int
    columns: int
    host_rows: int
    host_columns: int

    @property
    def n_gpus(self) -> int:
        return self.rows * self.columns


@dataclass(frozen=True)
class Iteration:
    """Seconds of one."""

    product_s: float
    exchange_s: float
    grid: Grid | None = None

    @property
    def seconds(self) -> float:
        return self.product_s + self.exchange_s


def multiply(graph: Graph, precision: Precision, n_gpus: int, rates: Rates) -> float:
    """Seconds of a product on each of so many GPUs, whose columns are as dense in any grid as on one GPU."""
    fixed, sector = rates.edge_s[precision]
    each = fixed + sector * graph.count_sectors(find_itemsize(precision))
    return rates.fixed_s + graph.n_edges / n_gpus * each


def count_z(graph: Graph, precision: Precision) -> float:
    """Bytes of z at all vertices with out-edges."""
    return graph.share * graph.n_vertices * find_itemsize(precision)


def iterate_written(graph: Graph, precision: Precision, n_gpus: int, rates: Rates) -> Iteration:
    """1-D, each element written to all others as soon as it is made: mgspmv on the GPUs of one host."""
    received = count_z(graph, precision) * (1 - 1 / n_gpus)
    multiplied = multiply(graph, precision, n_gpus, rates)
    if n_gpus == 1:
        return Iteration(multiplied, 0.0)
    under_way = max(multiplied, received / rates.nvlink) + received * rates.written_s
    return Iteration(multiplied, under_way - multiplied + rates.meet_s)


def iterate_sent(graph: Graph, precision: Precision, n_gpus: int, rates: Rates, domain: int = DOMAIN) -> Iteration:
    """1-D, each slice sent to each of the others by NCCL: mgspmv on several hosts."""
    domain = min(domain, n_gpus)
    z, n_hosts = count_z(graph, precision), n_gpus // domain
    near, far = z * (domain - 1) / n_gpus / rates.nvlink, z * (1 - domain / n_gpus) / rates.network
    seconds = rates.exchange_s + max(near, far) + (n_hosts - 1) * HOP_S
    return Iteration(multiply(graph, precision, n_gpus, rates), seconds)


def iterate_grid(graph: Graph, precision: Precision, grid: Grid, rates: Rates) -> Iteration:
    """z gathered along columns, sums reduced along rows, each first or last inside of hosts; nothing of it is there."""
    z = count_z(graph, precision) / grid.columns
    sums = SUM_BYTES * graph.share * graph.n_vertices / grid.rows if grid.columns > 1 else 0.0
    near = z * (1 - 1 / grid.host_rows) + sums * (1 - 1 / grid.host_columns)
    far = z / grid.host_rows * (1 - grid.host_rows / grid.rows)
    far += sums / grid.host_columns * (1 - grid.host_columns / grid.columns)
    hops = log2(grid.rows / grid.host_rows) + log2(grid.columns / grid.host_columns)
    n_phases = (grid.rows > 1) + (grid.columns > 1)
    seconds = n_phases * rates.exchange_s + near / rates.nvlink + far / rates.network + hops * HOP_S
    # Sums are written, read where they are sent from, and added where they arrive.
    multiplied = multiply(graph, precision, grid.n_gpus, rates) + 3 * sums / rates.copy
    return Iteration(multiplied, seconds, grid)


def list_grids(n_gpus: int, domain: int = DOMAIN) -> Iterator[Grid]:
    """Of powers of two, with several columns."""
    domain = min(domain, n_gpus)
    columns = 2
    while columns <= n_gpus:
        rows, host_columns = n_gpus // columns, 1
        while host_columns <= min(columns, domain):
            if domain // host_columns <= rows:
                yield Grid(rows, columns, domain // host_columns, host_columns)
            host_columns *= 2
        columns *= 2


Form = Literal["1-D", "1-D by hosts", "2-D"]
FORMS: tuple[Form, ...] = ("1-D", "1-D by hosts", "2-D")


def iterate(
    form: Form, graph: Graph, precision: Precision, n_gpus: int, rates: Rates, domain: int = DOMAIN
) -> Iteration:
    """An iteration in one of the forms, in its best grid.

    Parameters
    ----------
    form : `1-D` is what mgspmv does; of the others it has none
    domain : GPUs that are connected by NVLink
    """
    if form == "1-D":
        if n_gpus <= domain:
            return iterate_written(graph, precision, n_gpus, rates)
        return iterate_sent(graph, precision, n_gpus, rates, domain)
    if form == "1-D by hosts":
        host = min(domain, n_gpus)
        return iterate_grid(graph, precision, Grid(n_gpus, 1, host, 1), rates)
    return choose_grid(graph, precision, n_gpus, rates, domain)[0]


def choose_grid(
    graph: Graph, precision: Precision, n_gpus: int, rates: Rates, domain: int = DOMAIN, most: float = inf
) -> list[Iteration]:
    """Iterations in grids whose GPUs hold what they must, in `most` bytes, the fastest first."""
    held = (grid for grid in list_grids(n_gpus, domain) if count_grid(graph, precision, grid) <= most)
    return sorted((iterate_grid(graph, precision, grid, rates) for grid in held), key=lambda made: made.seconds)


def find_balance(form: Form, graph: Graph, precision: Precision, rates: Rates, *, is_one_domain: bool = False) -> float:
    """GPUs on which the exchange takes as long as the product, by bytes alone and as for many hosts.

    With W / P of the product and X, or X / sqrt(P) in 2-D, of the exchange that is W / X, or its square.
    """
    fixed, sector = rates.edge_s[precision]
    itemsize = find_itemsize(precision)
    work = (fixed + sector * graph.count_sectors(itemsize)) * graph.per_vertex / graph.share  # of an element of z

    def pass_on(n_sharing: int) -> float:
        """Seconds of a byte that so many GPUs of a host want: a part for each comes from other hosts."""
        if is_one_domain:
            return 1 / rates.nvlink
        return 1 / n_sharing / rates.network + (1 - 1 / n_sharing) / rates.nvlink

    if form != "2-D":
        return work / (itemsize * pass_on(DOMAIN if form == "1-D by hosts" else 1))
    both = min(pass_on(k) * pass_on(DOMAIN // k) for k in (1, 2, 4, 8))
    return (work / (2 * sqrt(itemsize * SUM_BYTES * both))) ** 2


# --- memory ----------------------------------------------------------------------------------------------------------


def count_one_column(graph: Graph, precision: Precision, n_gpus: int) -> int:
    """Bytes on each GPU in 1-D, by the planner, which counts lists and slices as large as they can get."""
    info = describe(graph.n_vertices, graph.n_edges, None)
    rows: Any = EvenRows(graph.n_vertices, graph.n_edges)
    lays_out = info.index_dtype == "int32"
    made = plan_rows(info, rows, n_gpus, precision=precision, threads=16, device_memory=1 << 60, lays_out=lays_out)
    return max(w.device_bytes for w in made.workers)


def count_grid(graph: Graph, precision: Precision, grid: Grid) -> float:
    """Bytes on each GPU of a grid: edges, two z, sums made and arriving, and what own vertices take by the planner."""
    index, of_edge = (4, 4 * LAID_RATIO) if graph.n_vertices // grid.columns < 1 << 31 else (8, 8)
    edges = graph.n_edges // grid.n_gpus
    laid = of_edge * edges + 2 * index * min(edges, choose_piece(edges))
    z = 2 * count_z(graph, precision) / grid.columns
    sums = 2 * SUM_BYTES * graph.share * graph.n_vertices / grid.rows
    own = (32 if precision == "float32" else 36) * graph.n_vertices / grid.n_gpus
    return laid + z + sums + own


# --- tables ----------------------------------------------------------------------------------------------------------


def show_ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.3g}" if seconds < 1 else f"{1e3 * seconds:,.0f}"


def show_number(number: float) -> str:
    """Three digits, not written with a power of ten."""
    return f"{number:,.3g}" if number < 1000 else f"{number:,.0f}"


def show_error(found: float, measured: float) -> str:
    return f"{100 * (found / measured - 1):+.1f} %"


def list_of_fitted(rates: Rates) -> Iterator[tuple[str, ...]]:
    by_nccl, written = "products by NCCL and on 1 GPU", "products written and by NCCL"
    for precision in PRECISIONS:
        fixed, sector = rates.edge_s[precision]
        yield f"an edge, `{precision}`: a", f"{1e12 * fixed:.2f} ps", by_nccl
        yield f"a sector of z, `{precision}`: g", f"{1e12 * sector:.1f} ps", by_nccl
    yield "a product, fixed", f"{1e6 * rates.fixed_s:.0f} µs", by_nccl
    yield "an exchange by NCCL, fixed", f"{1e6 * rates.exchange_s:.0f} µs", "exchanges by NCCL"
    share = f"exchanges by NCCL; {rates.nvlink / 1e7 / NVLINK_GBS:.0f} % of the data sheet's {NVLINK_GBS}"
    yield "NVLink, into a GPU", f"{rates.nvlink / 1e9:.0f} GB/s", share
    yield "writing directly, for each GB received", f"{1e12 * rates.written_s:.2f} ms", written
    yield "the end of a step that writes directly", f"{1e6 * rates.meet_s:.0f} µs", "its exchange, mean"


def list_of_assumed() -> Iterator[tuple[str, ...]]:
    tuning = "NCCL's own model: `src/graph/tuning.cc` of its source, network, ring, `Simple`"
    yield "NVLink 4 of an H200, one direction", f"{NVLINK_GBS} GB/s", "NVIDIA H200 data sheet: 900 GB/s in both"
    host = "NVIDIA DGX H200: an adapter ConnectX-7 of 400 Gb/s for each GPU"
    yield "InfiniBand NDR, for each GPU, one direction", f"{NETWORK_GBS} GB/s", host
    yield "of that what NCCL makes", "as of NVLink", "assumed"
    yield "GPUs of a host, all on NVLink", str(DOMAIN), "NVIDIA DGX H200"
    yield "a message from host to host", f"{1e6 * HOP_S:.0f} µs", tuning
    yield "messages one after the other", "P / 8, or log2 P", "P / 8 as it is; log2 as Jeaugey, arXiv 2506.20252"
    yield "a read from a GPU's memory, at least", f"{SECTOR_BYTES} bytes", "NVIDIA, CUDA C++ Programming Guide"
    yield "rows of a block", f"{BLOCK_ROWS:,}", "[gpus.md](../gpus.md#pagerank-on-one-gpu)"
    yield (
        "a partial sum of a row, in 2-D",
        f"{SUM_BYTES} bytes",
        "assumed: an integer, so that the ranks keep their bits",
    )
    yield "of a GPU for the plan", f"{ROOM / 1e9:.0f} GB", "[sizing.md](../sizing.md#how-many-gpus-hold-all-rows)"


def list_of_checks(rates: Rates) -> Iterator[tuple[str, ...]]:
    for row in read_rows():
        written = iterate_written(row.graph, row.precision, row.n_gpus, rates).seconds
        cells = [show_ms(row.bench_s), show_ms(written), show_error(written, row.bench_s)]
        if row.nccl_s is None:
            cells += ["–"] * 3
        else:
            sent = iterate_sent(row.graph, row.precision, row.n_gpus, rates).seconds
            cells += [show_ms(sum(row.nccl_s)), show_ms(sent), show_error(sent, sum(row.nccl_s))]
        received = count_z(row.graph, row.precision) * (1 - 1 / row.n_gpus)
        cells += [show_error(received, row.received) if row.received else "–"]
        yield (f"R-MAT {row.graph.scale}, `{row.precision}`", str(row.n_gpus), *cells)


def list_of_strong(rates: Rates, graph: Graph, precision: Precision) -> Iterator[tuple[str, ...]]:
    """A graph that was measured on four GPUs, on more and more of them."""
    alone = iterate("1-D", graph, precision, 1, rates).seconds
    for n_gpus in (4, *GPUS):
        cells = [show_ms(multiply(graph, precision, n_gpus, rates))]
        for form in FORMS:
            took = iterate(form, graph, precision, n_gpus, rates).seconds
            cells += [f"{show_ms(took)} ({show_percent(alone / n_gpus / took)})"]
        for form in ("1-D", "2-D"):
            took = iterate(form, graph, precision, n_gpus, rates, domain=n_gpus).seconds
            cells += [f"{show_ms(took)} ({show_percent(alone / n_gpus / took)})"]
        yield (f"{n_gpus:,}", *cells)


def show_percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.1g} %"


def list_of_weak(rates: Rates, precision: Precision) -> Iterator[tuple[str, ...]]:
    """2^26 vertices and 1.07 G edges for each GPU."""
    alone = iterate("1-D", Graph(26), precision, 1, rates).seconds
    for n_gpus in GPUS:
        graph = Graph(26 + int(log2(n_gpus)))
        cells = [
            f"2^{graph.scale}",
            f"{graph.n_edges / 1e9:,.0f} G",
            show_ms(multiply(graph, precision, n_gpus, rates)),
        ]
        one, by_hosts, two = (iterate(form, graph, precision, n_gpus, rates).seconds for form in FORMS)
        cells += [show_ms(one) if graph.scale < 31 else f"({show_ms(one)})", show_ms(by_hosts), show_ms(two)]
        cells += [show_number(graph.n_edges / two / 1e9), show_percent(alone / two)]
        yield (f"{n_gpus:,}", *cells)


def list_of_balances(rates: Rates) -> Iterator[tuple[str, ...]]:
    """GPUs on which the exchange takes as long as the product."""
    forms = (("1-D", True), ("2-D", True), *((form, False) for form in FORMS))
    cases: tuple[tuple[Graph, Precision], ...] = (
        (Graph(28), "float32"),
        (Graph(28), "exact"),
        (Graph(28, 32), "float32"),
        (Graph(36), "float32"),
    )
    for graph, precision in cases:
        found = (find_balance(form, graph, precision, rates, is_one_domain=near) for form, near in forms)
        yield (f"R-MAT {graph.scale}, {graph.per_vertex} edges a vertex, `{precision}`", *map(show_number, found))


TRILLION = (Graph(36, 16), Graph(35, 32))


def list_of_trillion(rates: Rates) -> Iterator[tuple[str, ...]]:
    """What a graph of 1.1 T edges takes."""
    cases: tuple[tuple[Graph, Precision], ...] = (
        (TRILLION[0], "float32"),
        (TRILLION[0], "exact"),
        (TRILLION[1], "float32"),
    )
    for (graph, precision), n_gpus in product(cases, GPUS[4:]):
        planned = count_one_column(graph, precision, n_gpus) / 1e9
        cells = [show_number(planned)]
        if found := choose_grid(graph, precision, n_gpus, rates, most=ROOM):
            grid, seconds = found[0].grid, found[0].seconds
            assert grid is not None
            cells += [f"{grid.rows} x {grid.columns}", show_number(count_grid(graph, precision, grid) / 1e9)]
            near = choose_grid(graph, precision, n_gpus, rates, domain=n_gpus, most=ROOM)[0].seconds
            cells += [show_ms(found[0].product_s), show_ms(seconds), show_ms(near), show_seconds(50 * seconds)]
        else:
            cells += ["none holds it", "–", "–", "–", "–", "–"]
        yield (f"2^{graph.scale} x {graph.per_vertex}, `{precision}`", f"{n_gpus:,}", *cells)


def find_store_pace() -> float:
    """Bytes a second that a worker reads of a store, decompresses and lays out."""
    return 1e9 * read_measured("measured/h200-streaming.md", ("First run", "exact"), ("store",), "store GB/s")


def list_of_loads() -> Iterator[tuple[str, ...]]:
    """Reading the arrays of a graph of 1.1 T edges, once."""
    for graph in TRILLION:
        n_bytes = describe(graph.n_vertices, graph.n_edges, None).nbytes
        cells = [show_seconds(n_bytes / (1e9 * pace)) for pace in (10, 100, 1000)]
        for n_gpus in (256, 2048):
            cells += [show_seconds(n_bytes / n_gpus / find_store_pace())]
        yield (f"2^{graph.scale} x {graph.per_vertex}", f"{n_bytes / 1e12:.1f} TB", *cells)


def make_tables(rates: Rates | None = None) -> dict[str, str]:
    """All of them by name."""
    rates = fit_rates(read_rows()) if rates is None else rates
    forms = ("1-D, as it is", "1-D by hosts", "2-D")
    checks = ("written, ms", "model", "error", "by NCCL, ms", "model", "error", "bytes received, error")
    balances = ("1-D, all NVLink", "2-D, all NVLink", *forms)
    strong = ("GPUs", "product", *forms, "1-D, all NVLink", "2-D, all NVLink")
    held = (
        "1-D, GB on each",
        "2-D grid",
        "GB on each",
        "product, ms",
        "iteration, ms",
        "all NVLink, ms",
        "50 iterations",
    )
    loads = ("arrays", "at 10 GB/s", "100 GB/s", "1,000 GB/s", "by 256 GPUs", "by 2,048")
    return {
        "fitted": make_table(("constant", "value", "fitted to"), list_of_fitted(rates), words=(0, 2)),
        "assumed": make_table(("constant", "value", "source"), list_of_assumed(), words=(0, 2)),
        "checks": make_table(("graph", "GPUs", *checks), list_of_checks(rates)),
        "strong": make_table(strong, list_of_strong(rates, Graph(28), "float32")),
        "weak": make_table(
            ("GPUs", "vertices", "edges", "product, ms", *forms, "2-D, G edges/s", "of one GPU's"),
            list_of_weak(rates, "float32"),
        ),
        "balances": make_table(("graph", *balances), list_of_balances(rates)),
        "trillion": make_table(("graph", "GPUs", *held), list_of_trillion(rates)),
        "loads": make_table(("graph", *loads), list_of_loads()),
    }


if __name__ == "__main__":
    PAGE.write_text(put_tables(PAGE.read_text(), make_tables()))
