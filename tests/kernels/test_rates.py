"""Measured rates: bytes and reads of a product over the seconds that a clock tells."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from types import SimpleNamespace

import pytest

from mgspmv.kernels import rates
from mgspmv.kernels.rates import measure_rates
from mgspmv.partition import Rates


@pytest.fixture(autouse=True)
def _measured_anew() -> Iterator[None]:
    measure_rates.cache_clear()
    yield
    measure_rates.cache_clear()


@pytest.mark.parametrize("threads", [1, None])
def test_rates_are_those_of_the_fastest_runs(threads, monkeypatch):
    """A product in order streams 12 bytes for each read of x, and a row pointer and a sum for each of 16 of them."""
    ticks = accumulate(gap for run_s in (3.0, 1.0, 2.0, 8.0, 4.0, 6.0) for gap in (0.5, run_s))
    monkeypatch.setattr(rates, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    n, n_rows = 1 << 22, 1 << 18
    assert measure_rates(threads) == Rates(12.0 * n + 8 * (n_rows + 1) + 8 * n_rows, n / 4.0)
    assert next(ticks, None) is None


def test_measured_once_in_a_process():
    first = measure_rates(1)
    assert 0 < first.gathers_per_s < float("inf")
    assert 0 < first.copy_bytes_per_s < float("inf")
    assert measure_rates(1) is first
