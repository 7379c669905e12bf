"""The model of many GPUs is near what was measured on few, its formulas hold, and the page says what it says."""

from __future__ import annotations

import re
from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

import mgspmv as mg
from tests.support import scaling_tables
from tests.support.scaling_tables import (
    FORMS,
    GPUS,
    PAGE,
    PRECISIONS,
    ROOM,
    TRILLION,
    Graph,
    choose_grid,
    count_one_column,
    count_z,
    find_balance,
    find_published,
    find_store_pace,
    fit_rates,
    iterate,
    iterate_grid,
    iterate_sent,
    iterate_written,
    list_classes,
    list_grids,
    make_tables,
    multiply,
    read_rows,
)
from tests.support.sizing_tables import describe, put_tables

ROWS = read_rows()
RATES = fit_rates(ROWS)


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text()


def find_numbers(page, pattern):
    found = re.search(pattern, page)
    assert found, f"the page does not say {pattern!r}"
    return [float(number.replace(",", "")) for number in found.groups()]


# --- the tables ------------------------------------------------------------------------------------------------------


def test_tables_are_those_of_the_model(page):
    assert put_tables(page, make_tables()) == page, "run python -m tests.support.scaling_tables, and read what changed"


ASSUMED = ["BLOCK_ROWS", "SECTOR_BYTES", "SUM_BYTES", "NVLINK_GBS", "NETWORK_GBS", "HOP_S", "ROOM"]


@pytest.mark.parametrize("name", ASSUMED)
def test_another_constant_makes_another_page(page, monkeypatch, name):
    value = getattr(scaling_tables, name)
    monkeypatch.setattr(scaling_tables, name, 2 * value if isinstance(value, int) else 1.2 * value)
    assert put_tables(page, make_tables()) != page


def test_other_probabilities_make_another_page(page, monkeypatch):
    monkeypatch.setattr(scaling_tables, "BITS", (0.75, 0.25))
    list_classes.cache_clear()
    try:
        assert put_tables(page, make_tables()) != page
    finally:
        list_classes.cache_clear()


@pytest.mark.parametrize("name", ["fixed_s", "exchange_s", "nvlink", "written_s", "meet_s", "copy", "network"])
def test_another_rate_makes_another_page(page, name):
    other = replace(RATES, **{name: 1.1 * getattr(RATES, name)})
    assert put_tables(page, make_tables(RATES)) == page
    assert put_tables(page, make_tables(other)) != page


# --- beside what was measured ----------------------------------------------------------------------------------------


def test_the_model_is_near_all_that_was_measured(page):
    [most] = find_numbers(page, r"All are within (\d+) %")
    errors = []
    for row in ROWS:
        written = iterate_written(row.graph, row.precision, row.n_gpus, RATES).seconds
        errors.append(abs(written / row.bench_s - 1))
        if row.nccl_s is not None:
            sent = iterate_sent(row.graph, row.precision, row.n_gpus, RATES).seconds
            assert sent == pytest.approx(sum(row.nccl_s), rel=0.01)
    assert len(errors) == 10
    assert most - 1 < 100 * max(errors) <= most


def test_the_model_predicts_a_graph_that_it_was_not_fitted_to(page):
    [most] = find_numbers(page, r"Fitted without R-MAT 28, the model predicts its four rows to (\d+) %")
    early = fit_rates([row for row in ROWS if row.graph.scale < 28])
    for row in ROWS:
        if row.graph.scale == 28:
            written = iterate_written(row.graph, row.precision, row.n_gpus, early).seconds
            sent = iterate_sent(row.graph, row.precision, row.n_gpus, early).seconds
            assert written == pytest.approx(row.bench_s, rel=most / 100)
            assert sent == pytest.approx(sum(row.nccl_s), rel=most / 100)


def test_bytes_are_those_that_were_received(page):
    [most] = find_numbers(page, r"It gives the bytes that were received\s+to ([\d.]+) %")
    for row in ROWS:
        if row.n_gpus > 1:
            assert count_z(row.graph, row.precision) * (1 - 1 / row.n_gpus) == pytest.approx(
                row.received, rel=most / 100
            )


def test_a_product_never_reads_faster_than_the_memory():
    for graph in (*{row.graph for row in ROWS}, *TRILLION, Graph(38)):
        for precision, itemsize in zip(PRECISIONS, (4, 8), strict=True):
            read = graph.n_edges * (4 + 32 * graph.count_sectors(itemsize))
            assert read / multiply(graph, precision, 1, RATES) < RATES.copy


def test_shares_and_sectors_are_those_of_a_graph(tmp_path, monkeypatch):
    """Of one that was made, by counting."""
    scale, block_rows = 15, 64
    monkeypatch.setattr(scaling_tables, "BLOCK_ROWS", block_rows)
    mg.generate("rmat", tmp_path / "a.zarr", scale=scale, seed=3, duplicates="keep")
    with mg.open_matrix(tmp_path / "a.zarr") as A:
        matrix = A.to_scipy()
    n, rows, columns = 1 << scale, np.repeat(np.arange(1 << scale), np.diff(matrix.indptr)), matrix.indices
    assert Graph(scale).share == pytest.approx(len(np.unique(columns)) / n, rel=0.01)
    place = np.empty(n, np.int64)
    order = np.argsort(-np.diff(matrix.indptr), kind="stable")
    place[order] = np.arange(n)
    by_columns = np.empty(n, np.int64)
    by_columns[np.argsort(-np.bincount(columns, minlength=n), kind="stable")] = np.arange(n)
    for itemsize in (4, 8):
        sectors = place[rows] // block_rows * n + by_columns[columns] // (32 // itemsize)
        assert Graph(scale).count_sectors(itemsize) == pytest.approx(len(np.unique(sectors)) / len(rows), rel=0.06)


# --- what follows from the formulas ----------------------------------------------------------------------------------

BARE = replace(RATES, fixed_s=0.0, exchange_s=0.0, meet_s=0.0, written_s=0.0, copy=1e30)
"""Of bytes alone."""


@pytest.fixture
def bare(monkeypatch):
    monkeypatch.setattr(scaling_tables, "HOP_S", 0.0)


def test_products_get_shorter_and_exchanges_in_one_column_do_not():
    for graph in (Graph(28), Graph(36)):
        found = {form: [iterate(form, graph, "float32", n, RATES) for n in GPUS[1:]] for form in FORMS}
        assert all((np.diff([own.product_s for own in each]) < 0).all() for each in found.values())
        assert (np.diff([own.exchange_s for own in found["1-D"]]) > 0).all()
        assert (np.diff([own.exchange_s for own in found["1-D by hosts"]]) > 0).all()
        assert (np.diff([own.exchange_s for own in found["2-D"]][1:]) < 0).all()
        assert (np.diff([own.seconds for own in found["2-D"]]) < 0).all()


def test_rows_alone_win_on_a_host_and_lose_between_hosts():
    for precision in PRECISIONS:
        one, by_hosts, two = ([iterate(f, Graph(28), precision, n, RATES).seconds for n in GPUS] for f in FORMS)
        assert one[0] < min(by_hosts[0], two[0])
        assert all(b < a for a, b in zip(one[1:], two[1:], strict=True))
        assert all(b < a for a, b in zip(by_hosts[1:], two[1:], strict=True))
        assert min(one) == one[0]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("form", FORMS)
def test_balances_are_where_the_exchange_is_as_long(bare, form, precision):
    n, graph = 2048, Graph(36)
    found = iterate(form, graph, precision, n, BARE)
    over = n / find_balance(form, graph, precision, BARE)
    assert found.exchange_s / found.product_s == pytest.approx(sqrt(over) if form == "2-D" else over, rel=0.07)


def test_doubling_saves_what_is_said(bare, page):
    [few] = find_numbers(page, r"\*\*less than 10 %\s+from (\d+) P\* on\*\*")
    assert 1 / (2 + 2 * few) == pytest.approx(0.1)
    graph, fast = Graph(36), replace(BARE, nvlink=20 * RATES.nvlink, network=20 * RATES.network)
    balance = find_balance("1-D by hosts", graph, "float32", fast)
    assert GPUS[5] < balance < GPUS[6]
    for n in GPUS[4:-1]:
        once, twice = (iterate("1-D by hosts", graph, "float32", k * n, fast).seconds for k in (1, 2))
        assert 1 - twice / once == pytest.approx(1 / (2 + 2 * n / balance), rel=0.05)
    [most] = find_numbers(page, r"doubling goes on saving up to (\d+) %")
    assert most == round(100 * (1 - 1 / sqrt(2)))


def test_one_column_by_hosts_is_a_grid_of_one_column():
    """A grid of one host for each column gathers nothing from other hosts; one of one row reduces all of it."""
    graph = Graph(30)
    for n in GPUS:
        for grid in list_grids(n):
            assert grid.n_gpus == n
            assert grid.host_rows * grid.host_columns == 8
            assert grid.rows % grid.host_rows == grid.columns % grid.host_columns == 0
            assert iterate_grid(graph, "float32", grid, RATES).product_s > multiply(graph, "float32", n, RATES)


# --- what the text says ----------------------------------------------------------------------------------------------


def iterate_ms(form, graph, n_gpus, precision="float32"):
    return 1e3 * iterate(form, graph, precision, n_gpus, RATES).seconds


def test_what_is_said_in_short(page):
    graph = Graph(28)
    took, share = find_numbers(page, r"4.3 G edges would take ([\d.]+) ms, (\d+) % of eight times one GPU")
    assert took == round(iterate_ms("1-D", graph, 8), 1)
    assert share == round(100 * iterate_ms("1-D", graph, 1) / 8 / iterate_ms("1-D", graph, 8))
    took, slower = find_numbers(page, r"two hosts the same takes ([\d.]+) ms, ([\d.]+) times as long")
    assert took == round(iterate_ms("1-D", graph, 16), 1)
    assert slower == round(iterate_ms("1-D", graph, 16) / iterate_ms("1-D", graph, 8), 1)
    said = find_numbers(page, r"1-D by hosts would take ([\d.]+) ms there, and ([\d.]+) on 2,048")
    assert said == [round(iterate_ms("1-D by hosts", graph, n), 1) for n in (16, 2048)]
    took, faster = find_numbers(page, r"2,048 GPUs would take ([\d.]+) ms, ([\d.]+) times as fast as 8\.")
    assert took == round(iterate_ms("2-D", graph, 2048), 2)
    assert faster == round(iterate_ms("1-D", graph, 8) / iterate_ms("2-D", graph, 2048), 1)


def test_what_is_said_of_a_trillion_edges(page):
    graph = TRILLION[0]
    few, took, fifty, load = find_numbers(
        page, r"In 2-D (\d+) hold them; 2,048 would take (\d+) ms an iteration and ([\d.]+) s for 50, and .* (\d+) s\."
    )
    assert choose_grid(graph, "float32", int(few), RATES, most=ROOM)
    [too_few] = find_numbers(page, r"(\d+) GPUs hold none of them")
    assert too_few == few / 2
    assert not any(choose_grid(g, p, int(too_few), RATES, most=ROOM) for g in TRILLION for p in PRECISIONS)
    assert 4.4 * graph.n_edges / 4 > 8 * ROOM
    assert find_numbers(page, r"two z by themselves are (\d+) GB") == [round(2 * count_z(graph, "float32") / 1e9)]
    found = iterate_ms("2-D", graph, 2048)
    assert took == round(found)
    assert fifty == round(50 * found / 1e3, 1)
    assert load == round(describe(graph.n_vertices, graph.n_edges, None).nbytes / 100e9)
    shares = []
    for each in TRILLION:
        for n in GPUS[4:]:
            held = choose_grid(each, "float32", n, RATES, most=ROOM)[0]
            shares.append(held.product_s / held.seconds)
    assert "a tenth to two fifths" in page
    assert min(shares) > 0.1
    assert max(shares) < 0.4


def test_what_is_said_of_edges_that_are_dearer(page):
    said, instead = find_numbers(page, r"2,048 GPUs would take (\d+) ms for a trillion edges instead of (\d+)")
    dear = replace(RATES, edge_s={p: (2 * a, 2 * b) for p, (a, b) in RATES.edge_s.items()})
    assert said == round(1e3 * iterate("2-D", TRILLION[0], "float32", 2048, dear).seconds)
    assert instead == round(iterate_ms("2-D", TRILLION[0], 2048))
    few, more, most = find_numbers(page, r"([\d.]+) sectors an edge at 2\^26 vertices, ([\d.]+) at 2\^28, ([\d.]+) at")
    assert [few, more, most] == [round(Graph(scale).count_sectors(4), 2) for scale in (26, 28, 36)]
    assert find_numbers(page, r"(\d+) % of 2\^28 vertices, (\d+) % of 2\^36") == [
        round(100 * Graph(scale).share) for scale in (28, 36)
    ]
    [longer] = find_numbers(page, r"its product is only ([\d.]+) times as long")
    assert longer == round(multiply(Graph(28), "exact", 8, RATES) / multiply(Graph(28), "float32", 8, RATES), 1)


def test_what_is_said_of_memory(page):
    each, largest, none = find_numbers(page, r"up to (\d+) bytes of every .* 2\^(\d+) vertices, 69 G .* of 2\^(\d+)\.")
    for precision in PRECISIONS:
        assert count_one_column(Graph(int(largest)), precision, 2048) <= ROOM
        assert count_one_column(Graph(int(none)), precision, 2048) > ROOM
        planned = count_one_column(Graph(36), precision, 2048) - 8 * Graph(36).n_edges / 2048
        assert planned == pytest.approx(each * Graph(36).n_vertices, rel=0.01)
    assert round(Graph(int(largest)).n_edges / 1e9) == 69
    assert find_numbers(page, r"\[([\d.]+) GB/s\]\(measured/h200-streaming") == [round(find_store_pace() / 1e9, 1)]


def test_what_others_found_is_above_the_model(page):
    took, said = find_numbers(page, r"cuGraph took \[([\d.]+) s\].*\n.* the model says ([\d.]+) s for 2-D")
    assert said == round(find_published(RATES), 2)
    assert 3.5 < took / said < 4.5
