"""Measured rates: of the order of what a plain NumPy gather and copy do on the same machine."""

from __future__ import annotations

import time

import numpy as np
import pytest

from mgspmv.kernels.rates import measure_rates
from mgspmv.partition import Rates


def time_best(call, repeats: int = 5) -> float:
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


@pytest.mark.parametrize("threads", [1, None])
def test_rates_are_near_numpys(threads):
    n = 1 << 22
    x, out = np.ones(n), np.empty(n)
    order = np.random.default_rng(0).integers(0, n, n)
    rates = measure_rates(threads)
    assert isinstance(rates, Rates)
    gathers = n / time_best(lambda: np.take(x, order, out=out))
    copied = 2 * x.nbytes / time_best(lambda: np.copyto(out, x))
    assert gathers / 30 < rates.gathers_per_s < 300 * gathers
    assert copied / 30 < rates.copy_bytes_per_s < 300 * copied


def test_reading_in_order_is_faster_than_at_random():
    """A product in order streams 12 bytes for each read of x that one at random makes."""
    rates = measure_rates(1)
    assert rates.copy_bytes_per_s > 12 * rates.gathers_per_s


def test_measured_once_in_a_process(monkeypatch):
    first = measure_rates(1)
    monkeypatch.setattr("mgspmv.kernels.rates._time_product", None)  # it would fail
    assert measure_rates(1) is first
