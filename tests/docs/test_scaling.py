"""The scaling model agrees with the measurements, and the page shows its tables."""

from __future__ import annotations

import re

import numpy as np
import pytest

import mgspmv as mg
from benchmarks import scaling_forms
from benchmarks.scaling_forms import Graph, count_z, iterate_sent, iterate_written, multiply
from benchmarks.scaling_model import (
    PAGE,
    PRECISIONS,
    SCALING,
    fit_rates,
    make_tables,
    read_graph,
    read_rows,
    read_sent_rows,
)
from benchmarks.sizing_model import DOCS, put_tables, read_cell, read_measured


@pytest.fixture(scope="module")
def page():
    return PAGE.read_text()


def find_numbers(page, pattern):
    found = re.search(pattern, page)
    assert found, f"the page does not say {pattern!r}"
    return [float(number.replace(",", "")) for number in found.groups()]


def test_tables_are_those_of_the_model(page):
    assert put_tables(page, make_tables()) == page, "run python -m benchmarks.scaling_model, and read what changed"


def test_the_model_is_near_all_that_was_measured(page):
    most, most_sent = find_numbers(page, r"(?s)- All are within (\d+) %.*\nAll are within (\d+) %")
    rates = fit_rates()
    found = [iterate_written(row.graph, row.precision, row.n_gpus, rates).seconds for row in read_rows()]
    errors = [abs(seconds / row.iteration_s - 1) for seconds, row in zip(found, read_rows(), strict=True)]
    sent = [iterate_sent(row.graph, row.precision, row.n_gpus, rates).exchange_s for row in read_sent_rows()]
    errors_sent = [abs(seconds / row.exchange_s - 1) for seconds, row in zip(sent, read_sent_rows(), strict=True)]
    assert len(errors) == len(errors_sent) == 8
    assert most - 1 < 100 * max(errors) <= most
    assert most_sent - 1 < 100 * max(errors_sent) <= most_sent


def test_the_model_predicts_a_run_that_it_was_not_fitted_to(page):
    """Of which only the sums of all products are known."""
    ratio, measured, said = find_numbers(page, r"took \[([\d.]+) times .* in `exact`, ([\d.]+) ms; .* says ([\d.]+)\.")
    one, four = (
        float(re.search(r"product ([\d.]+)", read_cell(SCALING, ("Scale 28",), (part,), "stages"))[1])
        for part in ("one device", "warm")
    )
    assert round(one / four, 2) == ratio
    product_ms = read_measured(SCALING, ("R-MAT, scale 28", "exact"), ("4",), "product ms")
    assert round(product_ms * one / four, 1) == measured
    assert round(1e3 * multiply(read_graph(28), "exact", 1, fit_rates()), 1) == said
    assert said == pytest.approx(measured, rel=0.01)


def test_weak_scaling_is_explained_by_the_model():
    """Shares of the edges per second of one GPU: of a larger graph, of four GPUs that write, and of eight."""
    text = (DOCS / SCALING).read_text()
    alone = find_numbers(text, r"On a single GPU that leaves (\d+) % in `float32` and (\d+) % in `exact`")
    writing = find_numbers(text, r"That leaves (\d+) % of the rest in `float32` and (\d+) % in `exact`")
    eight = find_numbers(text, r"For eight GPUs at scale 29 the model says (\d+) % and (\d+) %")
    kept = find_numbers(text, r"to (\d+) %, and from [\d.]+ to [\d.]+ in `exact`, to (\d+) %")
    rates, small, large = fit_rates(), read_graph(26), read_graph(28)
    for at, precision in enumerate(PRECISIONS):
        base_s = multiply(small, precision, 1, rates) / small.n_edges
        one_s = multiply(large, precision, 1, rates) / large.n_edges
        four_s = iterate_written(large, precision, 4, rates).seconds * 4 / large.n_edges
        eight_s = iterate_written(Graph(29), precision, 8, rates).seconds * 8 / Graph(29).n_edges
        found = [base_s / one_s, one_s / four_s, base_s / eight_s, base_s / four_s]
        assert [round(100 * share) for share in found] == [alone[at], writing[at], eight[at], kept[at]]


def test_bytes_are_those_that_were_received(page):
    [most] = find_numbers(page, r"It gives the bytes that were received\s+to ([\d.]+) %")
    for row in read_rows():
        if row.n_gpus > 1:
            assert count_z(row.graph, row.precision) * (1 - 1 / row.n_gpus) == pytest.approx(
                row.received, rel=most / 100
            )


def test_shares_and_sectors_are_those_of_a_graph(tmp_path, monkeypatch):
    """Of one that was made, by counting."""
    scale, block_rows = 15, 64
    monkeypatch.setattr(scaling_forms, "BLOCK_ROWS", block_rows)
    with mg.generate("rmat", tmp_path / "a.zarr", scale=scale, seed=3, duplicates="keep") as A:
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
