"""Instructions that workers execute are counted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from benchmarks import counting
from benchmarks.counting import CannotCountError, Perf, Seconds, choose_counter
from mgspmv.distribute import drives


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


async def find_heartbeats(dask_worker: Any) -> float:
    """Milliseconds between those of a worker, which its scheduler tells it with each."""
    await dask_worker.heartbeat()
    period: float = dask_worker.periodic_callbacks["heartbeat"].callback_time
    return period


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


def test_programs_that_are_not_there_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert isinstance(choose_counter("auto"), Seconds)
    with pytest.raises(CannotCountError, match=r"perf cannot be started .*; install it, or count callgrind"):
        choose_counter("perf")
    with pytest.raises(CannotCountError, match="no valgrind and no callgrind_control on the PATH; install valgrind"):
        choose_counter("callgrind")


@pytest.mark.slow
def test_emulated_workers_are_counted_one_by_one(programs: Path) -> None:
    """The programs are played: an emulated worker takes minutes to start."""
    out = programs / "out"
    write_program(
        programs / "valgrind",
        f'while [ "${{1#-}}" != "$1" ]; do case $1 in --callgrind-out-file=*) '
        f'dirname ${{1#*=}} > {out}-$$;; esac; shift; done\nexec "$@"',
    )
    write_program(
        programs / "callgrind_control",
        f'echo $1 >> {out}\n[ $1 = --dump ] && echo "totals: 1500000" > $(cat {out}-$2)/$2.1\nexit 0',
    )
    counter, length_s = choose_counter("callgrind"), drives.SUPERSTEP_S
    with counter.start_workers(2, 1) as cluster, Client(cluster, set_as_default=False) as client:
        assert length_s * counting.SLOWER == drives.SUPERSTEP_S
        assert set(client.run(find_heartbeats).values()) == {1e3 * counting.HEARTBEAT_S * counting.SLOWER}
        counter.begin(client)
        for _ in range(2):
            with counter.count(client) as counted:
                pass
            assert counted == [3_000_000]
    assert length_s == drives.SUPERSTEP_S
    assert out.read_text().split() == [*["--instr=on"] * 2, *(["--zero"] * 2 + ["--dump"] * 2) * 2]
