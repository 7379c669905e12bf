"""Counting what worker processes execute: by the processor, by a program that emulates one, or by their seconds.

    perf        instructions in user mode that the processor counts, where it does, and lets us ask
    callgrind   instructions that valgrind emulates, on any machine, a hundred times slower
    seconds     what the workers' processors were busy for; anything else that runs on the machine shows in it

Under valgrind what happens by the clock would happen a hundred times as often in a run. So all such periods of Dask's
and the length of our supersteps are stretched by `SLOWER` there: heartbeats, samples of the profiler, ticks of
event loops and Python's turns of threads come about as often per iteration as without valgrind.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import dask
from distributed import Client, LocalCluster

from mgspmv.cluster import executors
from mgspmv.cluster.connect import start_local

SETTLE_S = 0.2
"""Seconds for `perf` to begin to count."""
SLOWER = 100.0
"""How many times as slow workers are taken to be under valgrind."""
PATIENCE_S = 3600.0
"""Seconds that anything may take there."""
HEARTBEAT_S, SWITCH_S = 0.5, 0.005
"""Dask's period of heartbeats on small clusters, and Python's of turns of threads."""
STRETCHED = {
    "distributed.admin.tick.interval": "20ms",
    "distributed.admin.tick.cycle": "1s",
    "distributed.admin.system-monitor.interval": "500ms",
    "distributed.worker.profile.interval": "10ms",
    "distributed.worker.profile.cycle": "1000ms",
}
"""What Dask does on workers by the clock, and its defaults, which an emulated worker has `SLOWER` times as long."""

PERIODS = ((executors, "SUPERSTEP_S"),)
"""Likewise of ours: the length of supersteps."""


class CannotCountError(Exception):
    """What cannot be counted here, why, and what can."""


class Counter(ABC):
    """Counts what workers execute, all of them together."""

    unit: str
    scale = 1.0
    """What is counted in one of the unit."""
    is_timed = True
    """Whether workers run as fast as they do otherwise."""
    patience_s = 30.0
    """Seconds that a worker may be silent."""

    @contextmanager
    def start_workers(self, n_workers: int, threads: int) -> Iterator[Any]:
        """A cluster of worker processes on this machine that can be counted."""
        with start_local(n_workers, threads) as started:
            yield started

    def begin(self, client: Client) -> None:  # noqa: B027 (most have nothing to do)
        """What was compiled and loaded so far is not to be counted."""

    @abstractmethod
    def count(self, client: Client) -> Any:
        """A context of which the list that it gives has what was counted, at its end."""


class Seconds(Counter):
    """Seconds of processors."""

    unit = "processor seconds"

    @contextmanager
    def count(self, client: Client) -> Iterator[list[float]]:
        counted: list[float] = []
        before = sum(client.run(time.process_time).values())
        yield counted
        counted.append(sum(client.run(time.process_time).values()) - before)


class Perf(Counter):
    """Instructions in user mode that the processor counts.

    Raises
    ------
    CannotCountError : there is no `perf`, or it does not count them here
    """

    unit, scale = "million instructions, by perf", 1e6

    def __init__(self) -> None:
        try:
            with count_instructions([os.getpid()]):
                pass
        except OSError as error:
            raise CannotCountError(f"perf cannot be started ({error}); install it, or count callgrind") from error
        except ValueError as error:
            raise CannotCountError(f"perf counts no instructions here ({error}); count callgrind") from error

    @contextmanager
    def count(self, client: Client) -> Iterator[list[float]]:
        with count_instructions([*client.run(os.getpid).values()]) as counted:
            yield counted


@contextmanager
def count_instructions(pids: Sequence[int]) -> Iterator[list[float]]:
    """Instructions that processes execute in user mode within the context, at its end.

    Raises
    ------
    OSError : there is no `perf`
    ValueError : it does not count them
    """
    command = ["perf", "stat", "-e", "instructions:u", "-x", ",", "-p", ",".join(map(str, pids))]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    counted: list[float] = []
    try:
        time.sleep(SETTLE_S)
        yield counted
    finally:
        process.send_signal(signal.SIGINT)
        said = process.communicate()[1]
    line = next((line for line in said.splitlines() if "instructions" in line), said)
    counted.append(int(line.split(",")[0]))


class Callgrind(Counter):
    """Instructions in user mode of workers that valgrind emulates.

    Raises
    ------
    CannotCountError : valgrind is not there
    """

    unit, scale, is_timed, patience_s = "million instructions, by callgrind", 1e6, False, PATIENCE_S

    def __init__(self) -> None:
        missing = [program for program in ("valgrind", "callgrind_control") if which(program) is None]
        if missing:
            raise CannotCountError(f"there is no {' and no '.join(missing)} on the PATH; install valgrind")

    @contextmanager
    def start_workers(self, n_workers: int, threads: int) -> Iterator[Any]:
        with ExitStack() as stack:
            self._folder = Path(stack.enter_context(TemporaryDirectory()))
            waits = {f"distributed.comm.timeouts.{name}": f"{PATIENCE_S:g}s" for name in ("connect", "tcp")}
            stack.enter_context(dask.config.set({"distributed.scheduler.worker-ttl": None, **waits}))
            heartbeats = mock.Mock(return_value=HEARTBEAT_S * SLOWER)
            stack.enter_context(mock.patch("distributed.scheduler.heartbeat_interval", heartbeats))
            for module, name in PERIODS:
                stack.enter_context(mock.patch.object(module, name, getattr(module, name) * SLOWER))
            address = {"dashboard_address": "127.0.0.1:0"}
            started = stack.enter_context(LocalCluster(n_workers=0, silence_logs=50, **address))
            for _ in range(n_workers):
                worker = self._start_worker(started.scheduler_address, threads, waits)
                stack.callback(worker.wait)
                stack.callback(worker.kill)
            with Client(started, set_as_default=False) as client:
                client.wait_for_workers(n_workers, timeout=PATIENCE_S)
                client.run(sys.setswitchinterval, SWITCH_S * SLOWER)
            yield started

    def begin(self, client: Client) -> None:
        for pid in client.run(os.getpid).values():
            self._control(pid, "--instr=on")

    @contextmanager
    def count(self, client: Client) -> Iterator[list[float]]:
        counted: list[float] = []
        pids = [*client.run(os.getpid).values()]
        for pid in pids:
            self._control(pid, "--zero")
        yield counted
        for pid in pids:
            self._control(pid, "--dump")
        counted.append(sum(map(self._take_total, pids)))

    def _start_worker(self, address: str, threads: int, waits: dict[str, str]) -> subprocess.Popen[bytes]:
        stretched = {name: f"{_to_ms(period) * SLOWER:g}ms" for name, period in STRETCHED.items()}
        environment = os.environ | {_name_variable(name): value for name, value in (waits | stretched).items()}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        emulated = ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no"]
        emulated += [f"--callgrind-out-file={self._folder}/%p"]
        asked = ["--nthreads", str(threads), "--no-nanny", "--no-dashboard", "--memory-limit", "0"]
        command = [*emulated, sys.executable, "-m", "distributed.cli.dask_worker", address, *asked]
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _control(self, pid: int, order: str) -> None:
        done = subprocess.run(["callgrind_control", order, str(pid)], capture_output=True, text=True)
        if done.returncode or "Error" in done.stdout + done.stderr:
            raise CannotCountError(f"callgrind_control {order} {pid} failed: {(done.stdout + done.stderr).strip()}")

    def _take_total(self, pid: int) -> int:
        """What the last file says that callgrind wrote of a process, and none of those any more."""
        files = sorted(self._folder.glob(f"{pid}.*"), key=lambda file: int(file.suffix[1:]))
        total = re.search(r"^totals: (\d+)$", files[-1].read_text(), re.MULTILINE)
        assert total is not None
        for file in files:
            file.unlink()
        return int(total[1])


COUNTERS: dict[str, type[Counter]] = {"perf": Perf, "callgrind": Callgrind, "seconds": Seconds}
"""By the names that people ask for."""


def choose_counter(asked: str) -> Counter:
    """The one that was asked for; of `auto`, `perf` where it counts, and else seconds.

    Raises
    ------
    CannotCountError : it cannot be counted so here
    """
    if asked != "auto":
        return COUNTERS[asked]()
    try:
        return Perf()
    except CannotCountError:
        return Seconds()


def _to_ms(period: str) -> float:
    return float(period.removesuffix("ms")) if period.endswith("ms") else 1e3 * float(period.removesuffix("s"))


def _name_variable(name: str) -> str:
    """The variable of the environment by which a process is given a value of Dask's configuration."""
    return f"DASK_{name.replace('.', '__').replace('-', '_').upper()}"
