"""Instructions that workers execute are counted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import counting
from benchmarks.counting import CannotCountError, Perf, Seconds, choose_counter


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose programs are found before all others."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def write_program(path: Path, lines: str) -> None:
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)


def write_perf(folder: Path, said: str) -> None:
    write_program(folder / "perf", f"trap 'echo \"{said}\" >&2; exit 0' INT\nsleep 5 > /dev/null 2>&1 & wait")


def test_instructions_are_counted_where_perf_can(programs: Path) -> None:
    write_perf(programs, "1234,,instructions:u,100,100.00,,")
    assert isinstance(choose_counter("auto"), Perf)
    with counting.count_instructions([1, 2]) as counted:
        pass
    assert counted == [1234]
    write_perf(programs, "<not supported>,,instructions:u,0")
    assert isinstance(choose_counter("auto"), Seconds)
    with pytest.raises(CannotCountError, match=r"perf counts no instructions here .*; count callgrind"):
        choose_counter("perf")
