"""Checks of GPUs: real ones and none."""

from __future__ import annotations

import pytest

from mgspmv.doctor import machine
from mgspmv.doctor.machine import run_check
from tests.support.waiting import HANG_S


@pytest.mark.parametrize(("gpus", "status"), [(0, "skipped"), (2, "warning")])
def test_without_cupy(gpus, status, monkeypatch):
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    monkeypatch.setattr(machine, "_count_gpus", lambda: gpus)
    [found] = run_check("gpus", machine.check_gpus, HANG_S)
    assert found.status == status


@pytest.mark.gpu
def test_the_gpus_of_this_machine_are_well():
    found = list(machine.check_gpus())
    assert {finding.status for finding in found} <= {"ok", "warning"}, found


@pytest.mark.gpu
def test_a_product_that_is_wrong_is_found(monkeypatch):
    from mgspmv.kernels.cuda import CudaBlock

    assert machine.find_kernel_problem() is None
    monkeypatch.setattr(CudaBlock, "multiply", lambda self, x, y: None)
    assert machine.find_kernel_problem() == "1000 of 1000 entries of a product are wrong"
