"""The scaling model agrees with the measurements, and the page shows its tables."""

from __future__ import annotations

import re

import numpy as np
import pytest

import mgspmv as mg
from benchmarks import scaling_model
from benchmarks.scaling_model import (
    PAGE,
    Graph,
    count_z,
    fit_rates,
    iterate_sent,
    iterate_written,
    make_tables,
    read_rows,
)
from benchmarks.sizing_model import put_tables


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
    [most] = find_numbers(page, r"All are within (\d+) %")
    rows, errors = read_rows(), []
    rates = fit_rates(rows)
    for row in rows:
        written = iterate_written(row.graph, row.precision, row.n_gpus, rates).seconds
        errors.append(abs(written / row.bench_s - 1))
        if row.nccl_s is not None:
            sent = iterate_sent(row.graph, row.precision, row.n_gpus, rates).seconds
            assert sent == pytest.approx(sum(row.nccl_s), rel=0.01)
    assert len(errors) == 10
    assert most - 1 < 100 * max(errors) <= most


def test_the_model_predicts_a_graph_that_it_was_not_fitted_to(page):
    [most] = find_numbers(page, r"Fitted without R-MAT 28, the model predicts its four rows to (\d+) %")
    rows = read_rows()
    early = fit_rates([row for row in rows if row.graph.scale < 28])
    for row in rows:
        if row.graph.scale == 28:
            written = iterate_written(row.graph, row.precision, row.n_gpus, early).seconds
            sent = iterate_sent(row.graph, row.precision, row.n_gpus, early).seconds
            assert written == pytest.approx(row.bench_s, rel=most / 100)
            assert sent == pytest.approx(sum(row.nccl_s), rel=most / 100)


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
    monkeypatch.setattr(scaling_model, "BLOCK_ROWS", block_rows)
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
