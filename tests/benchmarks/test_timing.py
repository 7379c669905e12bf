"""Clocks of the host, and of a device where there is one."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import timing
from benchmarks.timing import time_on_device
from mgspmv.kernels.select import bind_kernel
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


@pytest.mark.gpu
def test_a_run_on_a_device():
    block = make_random(np.full(20_000, 50), 20_000)
    bound = bind_kernel(block, "float64", kernel="csr-vector", backend="cuda")
    x, y = (bound.zeros(20_000, np.float64) for _ in range(2))
    bound.multiply(x, y)
    assert 1e-6 < time_on_device(lambda: bound.multiply(x, y)) < 1e-2
    assert time_on_device(lambda: None) < 1e-4
