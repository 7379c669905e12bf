"""Checks of GPUs: real ones and none."""

from __future__ import annotations

import pytest

from mgspmv import doctor
from mgspmv.doctor import run_check
from tests.support.waiting import HANG_S


@pytest.mark.parametrize(("gpus", "status"), [(0, "skipped"), (2, "warning")])
def test_without_cupy(gpus, status, monkeypatch):
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    monkeypatch.setattr(doctor, "_count_gpus", lambda: gpus)
    [found] = run_check("gpus", doctor.check_gpus, HANG_S)
    assert found.status == status


@pytest.mark.gpu
def test_the_gpus_of_this_machine_are_well():
    found = list(doctor.check_gpus())
    assert {finding.status for finding in found} <= {"ok", "warning"}, found


@pytest.mark.gpu
def test_a_product_that_is_wrong_is_found(monkeypatch):
    from mgspmv.kernels.cuda import CudaBlock

    assert doctor.find_kernel_problem() is None
    monkeypatch.setattr(CudaBlock, "multiply", lambda self, x, y: None)
    assert doctor.find_kernel_problem() == "1000 of 1000 entries of a product are wrong"
