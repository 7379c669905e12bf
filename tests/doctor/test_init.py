"""All checks, one after the other."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext

import pytest

from mgspmv import doctor
from mgspmv.doctor import examine, ok
from mgspmv.errors import SchedulerNotFoundError


@pytest.fixture
def played(monkeypatch):
    monkeypatch.setitem(doctor.CHECKS, "gpus", lambda: ok("they are well"))


def test_all_checks_of_a_machine_are_made_in_order(played, tmp_path):
    told = []
    found = examine(stores=[str(tmp_path / "x.zarr")], on_check=told.append)
    assert told == ["packages", "limits", "folders", "gpus", "store"]
    assert list(dict.fromkeys(finding.name for finding in found)) == told


def test_a_cluster_is_checked_after_it(monkeypatch, in_process):
    monkeypatch.setattr(doctor, "CHECKS", {"gpus": lambda: ok("they are well")})
    found = examine(lambda: nullcontext(in_process(2)), timeout=60)
    names = ["gpus", "workers", "worker-gpus", "worker-links"]
    assert list(dict.fromkeys(finding.name for finding in found)) == names


def test_a_cluster_that_is_not_reached(monkeypatch):
    monkeypatch.setattr(doctor, "CHECKS", {})

    def reach():
        raise SchedulerNotFoundError("no scheduler answers")

    found = examine(reach)[-1]
    assert (found.name, found.status, found.found) == ("workers", "wrong", "no scheduler answers")


@pytest.mark.slow
def test_kernels_are_compiled_once(tmp_path):
    program = """
from mgspmv.doctor import compile_kernels
print(compile_kernels().values["is_new"])
"""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "n"), "MGSPMV_CACHE": str(tmp_path / "c")}
    for is_new in ("True", "False"):
        command = [sys.executable, "-c", program]
        assert (
            subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout == f"{is_new}\n"
        )


def test_kernels_are_compiled_on_request(played, monkeypatch):
    monkeypatch.setattr("mgspmv.doctor.compile_kernels", lambda: ok("compiled"))
    assert [finding.name for finding in examine(warm=True)][-1] == "kernels"
