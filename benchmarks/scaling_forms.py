"""A model of iterations on several GPUs, in the form that mgspmv has and in two others.

seconds of a product    =  fixed  +  edges / GPUs * (a + g * sectors of z an edge)
seconds of writing      =  bytes written into a GPU / their rate  -  a share of the product
seconds of an exchange  =  fixed  +  bytes over NVLink / its rate  +  bytes from other hosts / their rate  +  hops

It is no part of mgspmv, which plans for machines that can be measured. `benchmarks.scaling_model` fits and shows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import comb, inf, log2, sqrt
from typing import Any, Literal

import numpy as np

from benchmarks.sizing_model import EvenRows, describe
from mgspmv.exchange.ipc import MOST_DEVICES
from mgspmv.model import Precision
from mgspmv.partition import LAID_RATIO, MOST_PIECE_ENTRIES, Planner

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
    """An R-MAT graph, ids scrambled."""

    scale: int
    per_vertex: int = 16
    """Edges that are drawn."""
    n_merged: int = 0
    """Edges that were drawn again and dropped; by default they are kept."""

    @property
    def n_vertices(self) -> int:
        return 1 << self.scale

    @property
    def n_drawn(self) -> int:
        return self.per_vertex << self.scale

    @property
    def n_edges(self) -> int:
        return self.n_drawn - self.n_merged

    @property
    def share(self) -> float:
        """Of the vertices, those with out-edges: only they have a place in z. As many have in-edges."""
        counts, likely = list_classes(self.scale)
        return float(counts @ -np.expm1(-self.n_drawn * likely)) / self.n_vertices

    def count_sectors(self, itemsize: int) -> float:
        """Sectors of z that row blocks read, an edge: entries of a block are in order of columns, so that each sector
        comes once. Rows and columns are in order of their degrees; rows of a block have the same, about."""
        sector = SECTOR_BYTES // itemsize
        counts, likely = list_classes(self.scale)
        entries = np.outer(self.n_drawn * likely * BLOCK_ROWS, sector * likely)  # of a block in a sector
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
    written: float
    """Bytes a second into a GPU, written by the others while they multiply."""
    hidden_share: float
    """Of a product, in which the others write without making it longer."""
    meet_s: float
    """Of the end of a step where slices are written directly."""
    copy: float
    """Bytes a second, read and written, of a GPU's memory."""
    network: float
    """Bytes a second into a GPU from other hosts; not measured."""


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


def write(graph: Graph, precision: Precision, n_gpus: int, rates: Rates) -> float:
    """Seconds of a product whose elements are written to all other GPUs of the host as soon as they are made."""
    multiplied = multiply(graph, precision, n_gpus, rates)
    received = count_z(graph, precision) * (1 - 1 / n_gpus)
    return multiplied + max(0.0, received / rates.written - rates.hidden_share * multiplied)


def iterate_written(graph: Graph, precision: Precision, n_gpus: int, rates: Rates) -> Iteration:
    """1-D, each element written to all others as soon as it is made: mgspmv on the GPUs of one host."""
    multiplied = multiply(graph, precision, n_gpus, rates)
    longer = write(graph, precision, n_gpus, rates) - multiplied
    return Iteration(multiplied, longer + rates.meet_s if n_gpus > 1 else 0.0)


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
    made = Planner(info, rows, precision, threads=16, lays_out=lays_out).plan_rows(n_gpus, device_memory=1 << 60)
    return max(w.device_bytes for w in made.workers)


def count_grid(graph: Graph, precision: Precision, grid: Grid) -> float:
    """Bytes on each GPU of a grid: edges, two z, sums made and arriving, and what own vertices take by the planner."""
    index, of_edge = (4, 4 * LAID_RATIO) if graph.n_vertices // grid.columns < 1 << 31 else (8, 8)
    edges = graph.n_edges // grid.n_gpus
    laid = of_edge * edges + 2 * index * min(edges, MOST_PIECE_ENTRIES)
    z = 2 * count_z(graph, precision) / grid.columns
    sums = 2 * SUM_BYTES * graph.share * graph.n_vertices / grid.rows
    own = (32 if precision == "float32" else 36) * graph.n_vertices / grid.n_gpus
    return laid + z + sums + own
