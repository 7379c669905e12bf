"""A Dask cluster of processes on hosts of their own, and runs of `mgspmv pagerank` on it."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tests.support.chaos.programs import Launch, Program
from tests.support.hosts import Network
from tests.support.waiting import HANG_S, wait_for

N_WORKERS = 4


class StartError(Exception):
    """A cluster did not start, which says nothing of mgspmv."""


@dataclass(frozen=True)
class Shape:
    """What a cluster is made of."""

    n_workers: int = N_WORKERS
    has_nannies: bool = False
    """Whether a worker that dies is started again."""


class Fleet(AbstractContextManager["Fleet"]):
    """A scheduler and workers, each on a host of its own, and room for more; all end with the context.

    Parameters
    ----------
    folder : where all write what they say
    """

    def __init__(self, network: Network, folder: Path, shape: Shape) -> None:
        self._network, self._folder, self._shape = network, folder, shape
        self._file = folder / "scheduler.json"
        self.programs: dict[str, Program] = {}

    def __enter__(self) -> Fleet:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._network.__enter__()
        try:
            self._start_scheduler()
            names = [f"w{k}" for k in range(self._shape.n_workers)]
            for name in names:
                self.add_worker(name)
            self._await_workers(names)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End everything."""
        for program in self.programs.values():
            program.end()
        self._network.__exit__(None, None, None)

    @property
    def address(self) -> str:
        """Of the scheduler."""
        return str(json.loads(self._file.read_text())["address"])

    @property
    def workers(self) -> list[Program]:
        return [program for name, program in self.programs.items() if program.launch.program == "worker"]

    def add_worker(self, name: str) -> None:
        """Start one more; it joins when it is there."""
        has_nanny = "--nanny" if self._shape.has_nannies else "--no-nanny"
        given = [has_nanny, "--name", name, "--nthreads", "1", "--memory-limit", "0", "--no-dashboard"]
        given += ["--local-directory", str(self._folder / name)]
        self._start("worker", name, self.address, *given)

    def start_mgspmv(self, name: str, *arguments: str) -> Program:
        """Start the program on a host of its own."""
        return self._start("mgspmv", name, *arguments)

    def _start_scheduler(self) -> None:
        self._start("scheduler", "scheduler", "--port", "0", "--scheduler-file", str(self._file), "--no-dashboard")
        if not wait_for(self._is_written, HANG_S):
            raise StartError(f"no scheduler came: {self.programs['scheduler'].read('err')}")

    def _is_written(self) -> bool:
        try:
            return bool(self.address)
        except (FileNotFoundError, json.JSONDecodeError):
            return False

    def _start(self, program: str, name: str, *arguments: str) -> Program:
        host = self._network.add_host("s" if program == "scheduler" else name)
        given = () if program == "mgspmv" else ("--host", host.address)
        launch = Launch(program, (*arguments, *given), host, self._folder, name)
        self.programs[name] = Program.start(launch)
        return self.programs[name]

    def _await_workers(self, names: list[str]) -> None:
        def all_joined() -> bool:
            return all("Registered to:" in self.programs[name].read("err") for name in names)

        if not wait_for(all_joined, HANG_S):
            said = "\n".join(self.programs[name].read("err") for name in names)
            raise StartError(f"not all workers came: {said}")
