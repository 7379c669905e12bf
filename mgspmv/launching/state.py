"""Clusters of this machine that go on by themselves: a folder for each, by its name.

    STATE/clusters/HOST/NAME/
      cluster.json     `Launched`, by the process of the cluster; before that by who starts it
      scheduler.json   as `--scheduler` and Dask's `--scheduler-file` take it, once all workers have joined
      said             what the process wrote to stderr, where it was started to go on by itself
      certificates/    where they were made for the cluster

STATE as of `mgspmv.processes`. The folder goes when the cluster ends; only one that was killed leaves it.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from mgspmv.errors import ClusterError, OptionError, StoreError
from mgspmv.files import write_beside
from mgspmv.os_errors import describe_os_error
from mgspmv.processes import STATE_VARIABLE, Process, find_state_folder, lock, wait_for

State = Literal["starting", "running", "lost"]
"""`lost`: its process is gone, and did not take its folder along."""

SAID = "said"
"""File of what a cluster says."""
KILLED_S = 30.0
"""Seconds for processes that were killed to be gone."""

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}", re.ASCII)


@dataclass(frozen=True)
class Launched:
    """What is known of a cluster that somebody started."""

    name: str
    host: str
    process: Process
    """That has the scheduler in it, and the workers below it."""
    began: float
    """Seconds since 1970."""
    version: str
    """Of the program."""
    backend: str = ""
    """`cpu` or `cuda`; empty until the workers have joined, as all that follows is unknown."""
    n_workers: int = 0
    threads: int = 0
    """Of each worker."""
    scheduler: str | None = None
    """Its address."""
    dashboard: str | None = None
    certificates: str | None = None
    """Folder of these, where connections are encrypted."""

    @property
    def state(self) -> State:
        if not self.process.is_there:
            return "lost"
        return "starting" if self.scheduler is None else "running"

    @property
    def folder(self) -> Path:
        return find_folder(self.name)

    @property
    def scheduler_file(self) -> Path:
        return self.folder / "scheduler.json"


def find_folder(name: str) -> Path:
    """Of the cluster of this name.

    Raises
    ------
    OptionError : it is no name
    """
    if not _NAME.fullmatch(name):
        raise OptionError(
            f"a cluster cannot be named {name!r}; take letters, digits, '.', '_' and '-', a letter or digit first"
        )
    return _find_all() / name


def _find_all() -> Path:
    return find_state_folder() / "clusters" / (platform.node() or "localhost")


# --- reading ---------------------------------------------------------------------------------------------------------


def read_cluster(name: str) -> Launched | None:
    """What is known of a cluster; None where there is none of this name."""
    path = find_folder(name) / "cluster.json"
    try:
        told: Launched = _make_reader().validate_json(path.read_bytes())
    except (OSError, ValueError):
        return None
    return told


def list_clusters() -> list[Launched]:
    """All that run, start or were lost on this machine, by name."""
    try:
        names = sorted(path.name for path in _find_all().iterdir() if _NAME.fullmatch(path.name))
    except OSError:
        return []
    return [*filter(None, map(read_cluster, names))]


def find_cluster(name: str) -> Launched:
    """
    Raises
    ------
    OptionError : there is none of this name
    """
    found = read_cluster(name)
    if found is None:
        known = ", ".join(cluster.name for cluster in list_clusters()) or "none"
        raise OptionError(
            f"there is no cluster {name!r} on this machine in {_find_all()}, which has {known}; `mgspmv cluster start` "
            "starts one"
        )
    return found


@cache
def _make_reader() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Launched)


# --- writing ---------------------------------------------------------------------------------------------------------


@contextmanager
def claim(launched: Launched) -> Iterator[None]:
    """Have the name of a cluster while the context lasts, and its folder with the name.

    Its process may take over from the one that started it, which then leaves the folder as it is.

    Raises
    ------
    ClusterError : a cluster of this name is there
    StoreError : nothing can be written there
    """
    folder = launched.folder
    try:
        for made in (find_state_folder(), folder.parent.parent, folder.parent):
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
        with lock(folder.parent):
            _take(launched)
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(
            f"clusters cannot be kept in {folder.parent}: {describe_os_error(error, folder)}; name another folder by "
            f"{STATE_VARIABLE}"
        ) from error
    try:
        yield
    finally:
        forget(launched)


def _take(launched: Launched) -> None:
    there = read_cluster(launched.name)
    is_ours = there is not None and there.process == Process.find(os.getppid())
    if there is not None and there.state != "lost" and not is_ours:
        where = "" if there.scheduler is None else f", at {there.scheduler}"
        raise ClusterError(
            f"a cluster {there.name!r} is {there.state} on this machine already{where}, as process "
            f"{there.process.pid}; `mgspmv cluster stop {there.name}` ends it, --name starts another",
            phase="start",
        )
    if not is_ours:
        shutil.rmtree(launched.folder, ignore_errors=True)
        launched.folder.mkdir(mode=0o700)
    tell(launched)


def tell(launched: Launched, scheduler: dict[str, Any] | None = None) -> None:
    """Write what is known of a cluster, in place of what was known before.

    Parameters
    ----------
    scheduler : what that says of itself
    """
    if scheduler is not None:
        with write_beside(launched.scheduler_file) as part:
            part.write_text(json.dumps(scheduler))
    with write_beside(launched.folder / "cluster.json") as part:
        part.write_text(json.dumps(asdict(launched)))


def forget(launched: Launched) -> None:
    """Remove the folder of a cluster, unless another process has the name by now."""
    with suppress(OSError), lock(launched.folder.parent):
        there = read_cluster(launched.name)
        if there is not None and there.process == launched.process:
            shutil.rmtree(launched.folder, ignore_errors=True)


# --- ending ----------------------------------------------------------------------------------------------------------


def end_processes(process: Process, patience_s: float) -> bool:
    """Tell the process of a cluster to end, and wait until it and all below it are gone; those that are not in time are
    killed.

    Parameters
    ----------
    patience_s : seconds that it has to end by itself

    Returns
    -------
    Whether it did.
    """
    processes = _list_processes(process)
    _send(processes[:1], signal.SIGTERM)
    if wait_for(lambda: not any(each.is_there for each in processes), patience_s):
        return True
    _send(processes, signal.SIGKILL)
    wait_for(lambda: not any(each.is_there for each in processes), KILLED_S)
    return False


def _send(processes: list[Process], number: signal.Signals) -> None:
    """To those that are there."""
    for process in processes:
        if process.is_there:
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)


def _list_processes(process: Process) -> list[Process]:
    """A process and all below it; none where it is gone."""
    import psutil

    if not process.is_there:
        return []
    try:
        below = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        below = []
    return [process, *map(Process.find, below)]
