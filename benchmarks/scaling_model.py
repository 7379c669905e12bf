"""The tables of docs/measured/scaling-model.md: a model of iterations on 8 to 2,048 GPUs, fitted to runs on 1, 2 and 4.

`python -m benchmarks.scaling_model` puts them into the page, each below its line `<!-- table NAME -->`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import inf, log2

import numpy as np
from scipy.optimize import least_squares

from benchmarks.scaling_forms import (
    BLOCK_ROWS,
    DOMAIN,
    FORMS,
    HOP_S,
    NETWORK_GBS,
    NVLINK_GBS,
    ROOM,
    SECTOR_BYTES,
    SUM_BYTES,
    Graph,
    Rates,
    choose_grid,
    count_grid,
    count_one_column,
    count_z,
    find_balance,
    iterate,
    iterate_sent,
    iterate_written,
    multiply,
    write,
)
from benchmarks.sizing_model import DOCS, describe, make_table, put_tables, read_cell, read_measured, show_seconds
from mgspmv.model import Precision

PAGE = DOCS / "measured" / "scaling-model.md"
SCALING = "measured/h200-scaling.md"
PRECISIONS: tuple[Precision, ...] = ("float32", "exact")

GPUS = tuple(1 << k for k in range(3, 12))
RUNS = ((26, 1), (26, 2), (26, 4), (28, 4))
"""Scales of the R-MAT graphs that were measured, of 16 edges a vertex, and numbers of GPUs."""
SENT = ((26, 2), (26, 4), (27, 4), (28, 4))
"""Those that were measured by NCCL."""

# --- rates ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """What was measured of an R-MAT graph, with slices written directly."""

    graph: Graph
    precision: Precision
    n_gpus: int
    iteration_s: float
    product_s: float
    """With what others write into the GPU in the meantime."""
    exchange_s: float
    received: float
    """Bytes, by each GPU at most."""


@dataclass(frozen=True)
class SentRow:
    """What was measured of an exchange by NCCL, at an earlier version."""

    graph: Graph
    precision: Precision
    n_gpus: int
    exchange_s: float


def read_rows() -> list[Row]:
    """All that was measured of several H200, and the one beside them."""
    rows = []
    for (scale, n_gpus), precision in product(RUNS, PRECISIONS):
        bench = (SCALING, (f"R-MAT, scale {scale}", precision), (str(n_gpus),))
        iteration, multiplied, exchange = (
            read_measured(*bench, f"{part} ms") / 1e3 for part in ("iteration", "product", "exchange")
        )
        received = 1e6 * read_measured(*bench, "received MB")
        rows.append(Row(read_graph(scale), precision, n_gpus, iteration, multiplied, exchange, received))
    return rows


def read_graph(scale: int) -> Graph:
    """The one that was measured, by the edges that the head of its run counts."""
    _, _, page = (DOCS / SCALING).read_text().partition(f"\n## R-MAT, scale {scale}")
    found = re.search(r"vertices, ([\d,]+) edges", page)
    assert found is not None
    return Graph(scale, n_merged=Graph(scale).n_drawn - int(found[1].replace(",", "")))


def read_sent_rows() -> list[SentRow]:
    """All that was measured of NCCL."""
    rows = []
    for (scale, n_gpus), precision in product(SENT, PRECISIONS):
        row = (f"R-MAT {scale}", precision, str(n_gpus))
        _, exchange_ms = read_cell(SCALING, ("Slices by NCCL",), row, "product + exchange").split("+")
        rows.append(SentRow(Graph(scale), precision, n_gpus, float(exchange_ms) / 1e3))
    return rows


def fit_rates() -> Rates:
    """Least squares of relative errors: of exchanges by NCCL, and of products in which slices are written."""
    exchange_s, byte_s = fit_exchanges(read_sent_rows())
    found = re.search(r"bandwidth of a copy, ([\d,]+) GB/s", (DOCS / "measured/h200-pagerank.md").read_text())
    assert found is not None
    rows = read_rows()
    links = Rates(
        edge_s={},
        fixed_s=0.0,
        exchange_s=exchange_s,
        nvlink=1 / byte_s,
        written=inf,
        hidden_share=0.0,
        meet_s=float(np.mean([row.exchange_s for row in rows if row.n_gpus > 1])),
        copy=1e9 * float(found[1].replace(",", "")),
        network=NETWORK_GBS / NVLINK_GBS / byte_s,  # as near to its data sheet as NVLink
    )

    def make(x: np.ndarray) -> Rates:
        """Rates of picoseconds an edge, microseconds, GB/s and a share."""
        edge_s = {p: (1e-12 * float(x[2 * k]), 1e-12 * float(x[2 * k + 1])) for k, p in enumerate(PRECISIONS)}
        fixed_s, written, share = float(x[4]), float(x[5]), float(x[6])
        return replace(links, edge_s=edge_s, fixed_s=1e-6 * fixed_s, written=1e9 * written, hidden_share=share)

    def compare(x: np.ndarray) -> list[float]:
        rates = make(x)
        return [write(row.graph, row.precision, row.n_gpus, rates) / row.product_s - 1 for row in rows]

    exact = 1e-13
    found_x = least_squares(compare, (1, 8, 1, 8, 100, 400, 0.1), x_scale="jac", xtol=exact, ftol=exact, gtol=exact).x
    return make(found_x)


def fit_exchanges(rows: list[SentRow]) -> tuple[float, float]:
    """Seconds of an exchange by NCCL, whatever goes, and of a byte."""
    received = [count_z(row.graph, row.precision) * (1 - 1 / row.n_gpus) for row in rows]
    terms = np.array([[1.0, n / 1e9] for n in received]) / [[row.exchange_s] for row in rows]
    (fixed, giga), *_ = np.linalg.lstsq(terms, np.ones(len(rows)), rcond=None)
    return float(fixed), float(giga) / 1e9


# --- tables ----------------------------------------------------------------------------------------------------------


def show_ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.3g}" if seconds < 1 else f"{1e3 * seconds:,.0f}"


def show_number(number: float) -> str:
    """Three digits, not written with a power of ten."""
    return f"{number:,.3g}" if number < 1000 else f"{number:,.0f}"


def show_error(found: float, measured: float) -> str:
    return f"{100 * (found / measured - 1):+.1f} %"


def list_of_fitted(rates: Rates) -> Iterator[tuple[str, ...]]:
    for precision in PRECISIONS:
        fixed, sector = rates.edge_s[precision]
        yield f"an edge, `{precision}`: a", f"{1e12 * fixed:.2f} ps", "products"
        yield f"a sector of z, `{precision}`: g", f"{1e12 * sector:.2f} ps", "products"
    yield "a product, fixed", f"{1e6 * rates.fixed_s:.0f} µs", "products"
    share = f"{rates.written / 1e7 / NVLINK_GBS:.0f} % of the data sheet's {NVLINK_GBS}"
    yield "NVLink, written into a GPU", f"{rates.written / 1e9:.0f} GB/s", f"products; {share}"
    yield "of a product, what hides writing", f"{100 * rates.hidden_share:.0f} %", "products"
    yield "the end of a step that writes directly", f"{1e6 * rates.meet_s:.0f} µs", "its exchange, mean"
    yield "an exchange by NCCL, fixed", f"{1e6 * rates.exchange_s:.0f} µs", "exchanges by NCCL"
    share = f"exchanges by NCCL; {rates.nvlink / 1e7 / NVLINK_GBS:.0f} % of the data sheet's {NVLINK_GBS}"
    yield "NVLink, into a GPU by NCCL", f"{rates.nvlink / 1e9:.0f} GB/s", share


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
        found = iterate_written(row.graph, row.precision, row.n_gpus, rates).seconds
        received = count_z(row.graph, row.precision) * (1 - 1 / row.n_gpus)
        cells = [f"{1e3 * row.iteration_s:.4g}", f"{1e3 * found:.4g}", show_error(found, row.iteration_s)]
        cells += [show_error(received, row.received) if row.received else "–"]
        yield (f"R-MAT {row.graph.scale}, `{row.precision}`", str(row.n_gpus), *cells)


def list_of_exchanges(rates: Rates) -> Iterator[tuple[str, ...]]:
    for row in read_sent_rows():
        found = iterate_sent(row.graph, row.precision, row.n_gpus, rates).exchange_s
        cells = (show_ms(row.exchange_s), show_ms(found), show_error(found, row.exchange_s))
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
    rates = fit_rates() if rates is None else rates
    forms = ("1-D, as it is", "1-D by hosts", "2-D")
    checks = ("graph", "GPUs", "measured, ms", "model", "error")
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
        "checks": make_table((*checks, "bytes received, error"), list_of_checks(rates)),
        "exchanges": make_table(checks, list_of_exchanges(rates)),
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
