"""Clocks of the host, and of a device where there is one."""

from __future__ import annotations

import numpy as np
import pytest

from mgspmv.kernels import timing
from mgspmv.kernels.select import bind_kernel
from mgspmv.kernels.timing import ROUNDS, time_on_device, time_on_host, time_product
from tests.support.blocks import make_random


class Clock:
    """A clock that goes only when it is told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def perf_counter(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(timing, "time", made)
    return made


def test_the_median_without_the_first_run_which_compiles(clock):
    made, seconds = [], iter([100.0, 5.0, 1.0, 9.0, 2.0, 3.0, 8.0, 7.0])

    class Kernel:
        block = make_random([2, 3], 4)

        def zeros(self, n, dtype):
            return np.zeros(n, dtype)

        def multiply(self, x, y):
            made.append((x.dtype, x.shape, y.dtype, y.shape))
            clock.now_s += next(seconds)

    assert time_product(Kernel(), "float32", "cpu") == 5.0
    assert made == [(np.float32, (4,), np.float32, (2,))] * (1 + ROUNDS)


def test_what_comes_before_is_not_timed(clock):
    order = []

    def take(name, seconds):
        order.append(name)
        clock.now_s += seconds

    assert time_on_host(lambda: take("run", 2.0), lambda: take("before", 50.0)) == 2.0
    assert order == ["before", "run"]


def test_a_product_on_the_host():
    block = make_random(np.full(2000, 50), 2000)
    assert time_product(bind_kernel(block, "float64"), "float64", "cpu") > 0


@pytest.mark.gpu
def test_a_product_on_a_device():
    block = make_random(np.full(20_000, 50), 20_000)
    seconds = time_product(bind_kernel(block, "float64", kernel="csr-vector", backend="cuda"), "float64", "cuda")
    assert 1e-6 < seconds < 1e-2
    assert time_on_device(lambda: None) < 1e-4
