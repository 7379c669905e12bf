"""Schedulers, workers and the program `mgspmv` as processes on hosts, started within moments.

A server that has imported everything forks them, which saves the seconds that a start of Python with all its libraries
takes; they are processes like any others, in sessions of their own, and end with the server.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import forkserver, popen_forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import dask
import psutil
from distributed.cli import dask_scheduler, dask_worker

from mgspmv import cli
from mgspmv.model import Event, Phase
from mgspmv.monitor import progress
from tests.support.hosts import Host

PR_SET_PDEATHSIG = 1
LOOKED_AT = 4096
"""Bytes of what was told at which somebody looks who waits for a phase: the rest is iterations."""
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.support.chaos.warm"])
_STARTING = threading.Lock()

SETTINGS = {"DASK_DISTRIBUTED__SCHEDULER__LOCKS__LEASE_TIMEOUT": "5s"}
"""Of all processes: who comes after a client that was killed waits so long."""


class _Popen(popen_forkserver.Popen):
    """Of which several threads may ask how it ended: Python lets each read what comes once, and takes it of those that
    get nothing that the process ended with 255."""

    def __init__(self, process: ForkServerProcess) -> None:
        self._reading = threading.Lock()
        super().__init__(process)

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        with self._reading:
            return super().poll(flag)


class Process(ForkServerProcess):
    _Popen = staticmethod(_Popen)


@dataclass(frozen=True)
class Launch:
    """What a process is to be."""

    program: Literal["scheduler", "worker", "mgspmv"]
    arguments: tuple[str, ...]
    host: Host
    folder: Path
    """Where it writes what it says: NAME.out, NAME.err and, of `mgspmv`, NAME.told."""
    name: str

    def find_file(self, kind: str) -> Path:
        return self.folder / f"{self.name}.{kind}"


@dataclass(frozen=True, eq=False)
class Program:
    """A process that was started."""

    launch: Launch
    process: Any = field(repr=False)
    """As of multiprocessing."""

    @classmethod
    def start(cls, launch: Launch) -> Program:
        with _STARTING:
            _start_server()
        process = Process(target=_run, args=(launch,), daemon=False)
        process.start()
        return cls(launch, process)

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative where a signal ended it."""
        found: int | None = self.process.exitcode
        return found

    def find_computing(self) -> int:
        """Id of the process that computes: below a nanny, if it is one, and there is one below it.

        Raises
        ------
        ProcessLookupError : it is gone
        """
        try:
            children = psutil.Process(self.pid).children()
        except psutil.NoSuchProcess as error:
            raise ProcessLookupError(f"{self.launch.name} is gone") from error
        for child in children:
            with suppress(psutil.NoSuchProcess):  # this one is gone since
                if "spawn_main" in " ".join(child.cmdline()):
                    return child.pid
        return self.pid

    def send(self, sign: int) -> None:
        """Send a signal to what computes, and nothing to what is gone."""
        with suppress(ProcessLookupError):
            os.kill(self.find_computing(), sign)

    def read(self, kind: Literal["out", "err"]) -> str:
        path = self.launch.find_file(kind)
        return path.read_text(errors="replace") if path.exists() else ""

    def read_told(self) -> list[dict[str, Any]]:
        """What `mgspmv` told so far, one after the other: `phase`, and `done` of it."""
        path = self.launch.find_file("told")
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def has_told(self, phase: str) -> bool:
        """Whether it told of a phase, the last time or among the first times."""
        with suppress(FileNotFoundError), open(self.launch.find_file("told")) as file:
            first = file.read(LOOKED_AT)
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOOKED_AT))
            return f'"phase": "{phase}"' in first + file.read()
        return False

    def list_session(self) -> list[int]:
        """Ids of the processes that it started and did not end, and its own while it runs."""
        return list_session(self.pid)

    def end(self) -> None:
        """End it and what it started, at once."""
        for pid in self.list_session():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.join()


@cache
def _start_server() -> None:
    """Start the server that forks, once; it finds modules where this process does."""
    paths = os.pathsep.join(filter(None, sys.path))
    given = {"PYTHONPATH": paths, "PYTHONSAFEPATH": "1"}
    given["PYTHONWARNINGS"] = "ignore:resource_tracker"  # it misses what was in processes that were killed
    with patch.dict(os.environ, given):
        forkserver.ensure_running()


def list_session(leader: int) -> list[int]:
    """Ids of the processes of a session; `leader` is that of its first, which may have ended."""
    return [pid for pid in psutil.pids() if _find_session(pid) == leader]


def _find_session(pid: int) -> int:
    with suppress(ProcessLookupError, PermissionError):
        return os.getsid(pid)
    return -1


# --- in the process ---------------------------------------------------------------------------------------------------


def _run(launch: Launch) -> None:
    """Be what is asked for."""
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the server ignores it
    launch.host.enter()
    for kind, number in (("out", 1), ("err", 2)):
        file = os.open(launch.find_file(kind), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.dup2(file, number)
        os.close(file)
    os.environ |= SETTINGS
    os.chdir(launch.folder)
    dask.config.refresh()
    if launch.program == "mgspmv":
        _run_mgspmv(launch)
    else:
        main = dask_scheduler.main if launch.program == "scheduler" else dask_worker.main
        main(list(launch.arguments))


def _run_mgspmv(launch: Launch) -> None:
    """The program, of which what is else shown to people in a terminal goes to a file."""
    faulthandler.register(signal.SIGUSR1)

    class Teller(progress.ProgressLine):
        """Writes the phases and iterations of a run, one a line."""

        def __init__(self) -> None:
            super().__init__(is_shown=False)
            self._file = os.open(launch.find_file("told"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

        def hear(self, news: Phase | Event) -> None:
            told: dict[str, Any]
            if isinstance(news, Event):
                told = {"phase": "iterate", "done": news.iteration, "epoch": news.epoch}
            else:
                told = {"phase": news.name, "done": news.done}
            os.write(self._file, (json.dumps(told | {"time_s": time.time()}) + "\n").encode())

    cli.can_show = lambda: True
    progress.ProgressLine = lambda **_: Teller()  # type: ignore
    cli.app(list(launch.arguments), prog_name="mgspmv")
