"""Checks of GPUs: real ones, none, and processes that break down."""

from __future__ import annotations

import pytest

from mgspmv.doctor import machine
from mgspmv.doctor.findings import run_check
from tests.support.waiting import HANG_S


@pytest.mark.parametrize(("gpus", "status"), [(0, "skipped"), (2, "warning")])
def test_without_cupy(gpus, status, monkeypatch):
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    monkeypatch.setattr(machine, "_count_gpus", lambda: gpus)
    [found] = run_check("gpus", lambda: machine.check_gpus_apart(HANG_S), HANG_S)
    assert found.status == status


def run(program: str, monkeypatch, limit_s: float = HANG_S):
    monkeypatch.setattr(machine, "find_spec", lambda name: object())
    monkeypatch.setattr(machine, "_PROGRAM", program)
    [found] = machine.check_gpus_apart(limit_s)
    return found


BEGIN = "from mgspmv.doctor import machine\nfrom mgspmv.doctor.findings import ok\n"


@pytest.mark.slow
def test_what_a_process_finds(monkeypatch):
    check = "print('libraries print what they like') or [ok('well', n=1)]"
    found = run(f"{BEGIN}machine.check_gpus = lambda: {check}\nmachine.print_gpus()", monkeypatch)
    assert (found.status, found.found, found.values) == ("ok", "well", {"n": 1})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "how"),
    [
        ("import os, sys; print('the last words', file=sys.stderr, flush=True); os.kill(os.getpid(), 11)", "SIGSEGV"),
        ("import os; os._exit(3)", "exit code 3"),
    ],
)
def test_a_process_that_breaks_down(program, how, monkeypatch):
    found = run(program, monkeypatch)
    assert found.status == "wrong"
    assert found.found.startswith(f"the process of the check ended with {how}: ")
    assert ("the last words" in found.found) == (how == "SIGSEGV")


@pytest.mark.slow
def test_a_process_that_hangs(monkeypatch):
    assert run("import time; time.sleep(600)", monkeypatch, 0.5).found == "the check did not finish within 0.5 s"


@pytest.mark.gpu
def test_the_gpus_of_this_machine_are_well():
    found, apart = list(machine.check_gpus()), machine.check_gpus_apart(HANG_S)
    assert {finding.status for finding in (*found, *apart)} <= {"ok", "warning"}, (found, apart)
    assert [finding.values["gpu"] for finding in apart] == [finding.values["gpu"] for finding in found]


@pytest.mark.gpu
def test_a_product_that_is_wrong_is_found(monkeypatch):
    from mgspmv.kernels.cuda import CudaBlock

    assert machine.find_kernel_problem() is None
    monkeypatch.setattr(CudaBlock, "multiply", lambda self, x, y: None)
    assert machine.find_kernel_problem() == "1000 of 1000 entries of a product are wrong"
