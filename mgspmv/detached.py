"""Detached runs: a folder for each, in which anybody finds what was asked for, how far it is, and what came of it.

    STATE/runs/RUN/
      asked.json       `Asked`, by who started it
      process.json     `Process`, by the run, as soon as it can be interrupted
      progress.json    `Progress`, by the run, every second
      said             what it wrote to stdout and stderr
      log.jsonl        its log
      end.json         `End`, by the run; its last file
    STATE/checkpoints/KEY    of runs that were given no other place

STATE is the folder `$MGSPMV_STATE`, else `mgspmv` in `$XDG_STATE_HOME` or `~/.local/state`. Files of JSON have their
names once they are whole; what cannot be read is taken for what is not there.

What another host does, on a home that hosts share, is known by the progress that it writes.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from mgspmv.errors import ConvergenceError, OptionError, RunBusyError, StoreError
from mgspmv.files import write_beside
from mgspmv.os_errors import describe_os_error
from mgspmv.processes import STATE_VARIABLE, Process, find_state_folder, lock, wait_for

T = TypeVar("T")
State = Literal["starting", "running", "ended", "failed", "cancelled", "lost"]
"""`lost`: its process is gone, and did not say how it ended."""

LAST = "last"
"""Name of the newest run."""
SAID, LOG = "said", "log.jsonl"
"""Files of what a run says, and of its log."""
START_S = 60.0
"""Seconds that a process has to be there."""
SILENT_S = 60.0
"""Seconds after which a run on another host that writes no progress is lost."""
KEPT_S = 30 * 86400.0
"""Seconds that a run is kept after it was heard of last."""
EXIT_INTERRUPTED = 130

_LIVE = ("starting", "running")
_ENDS: dict[int, State] = {0: "ended", ConvergenceError.exit_code: "ended", EXIT_INTERRUPTED: "cancelled"}
"""States by exit code; of all others `failed`."""


@dataclass(frozen=True)
class Asked:
    """What a detached run is to do."""

    run: str
    """Its id."""
    command: str
    """Name of the command."""
    args: tuple[str, ...]
    """The command line after the name of the program, without secrets."""
    cwd: str
    """Folder that relative paths start from."""
    host: str
    began: float
    """Seconds since 1970, by the clock of the host, as all times here."""
    version: str
    """Of the program."""
    key: str
    """What commands have in common that compute the same."""
    checkpoint: str | None = None
    """Place of its checkpoints; None where it has none."""
    has_own_place: bool = False
    """Whether that place is the run's own, which goes when it has ended well."""


@dataclass(frozen=True)
class Stage:
    """How far a run is, or a step of one."""

    phase: str
    """What it does; `iterate` while it iterates."""
    done: int = 0
    total: int | None = None
    """Units of the phase; None where that is not known."""
    iteration: int = 0
    """The last one that was made."""
    change: float | None = None
    """Of that; None before the first one, and where it is no number."""
    kept: int = 0
    """The iteration that the last checkpoint is of; 0 where there is none."""
    tol: float | None = None
    """The change at which it stops; None where that is not known."""
    max_iter: int | None = None


@dataclass(frozen=True)
class Progress:
    """What a run tells while it goes on."""

    at: float = 0.0
    """When it was told."""
    is_on: bool = False
    """Whether what was asked for was found good, and is being done."""
    stages: dict[str, Stage] = field(default_factory=dict)
    """By the names of the steps of a pipeline that go on; of a single run under the empty name."""
    n_steps: int | None = None
    """Of a pipeline."""
    n_ended: int = 0
    """Steps that have ended."""


@dataclass(frozen=True)
class End:
    """How a run ended."""

    exit_code: int
    at: float
    text: str
    """The answer, for people."""
    payload: dict[str, Any]
    """The answer, or the error, as `--json` has it."""


@dataclass(frozen=True)
class DetachedRun:
    """What the folder of a run says now."""

    folder: Path
    asked: Asked
    process: Process | None
    """Its number is also that of its group, with all that it starts. None before it is there."""
    progress: Progress
    end: End | None
    state: State

    @property
    def is_live(self) -> bool:
        return self.state in _LIVE

    @property
    def is_here(self) -> bool:
        """Whether it is on this host."""
        return self.asked.host == platform.node()

    @property
    def is_there(self) -> bool:
        """Whether its process is."""
        return self.process is not None and self.process.is_there

    @property
    def stage(self) -> Stage:
        """Of a single run, or of the step of a pipeline that began last."""
        return [Stage("start"), *self.progress.stages.values()][-1]

    @property
    def heard(self) -> float:
        """When it was heard of last."""
        return max(self.asked.began, self.progress.at, 0.0 if self.end is None else self.end.at)

    def look_again(self) -> DetachedRun:
        """The same later; lost where its folder is gone."""
        return read_run(self.folder) or replace(self, state="lost")


def find_own_place(key: str) -> Path:
    """Where checkpoints go of what has this key, unless somebody says otherwise."""
    return find_state_folder() / "checkpoints" / key


# --- reading ---------------------------------------------------------------------------------------------------------


def read_run(folder: Path) -> DetachedRun | None:
    """What a folder says; None where it is not that of a run."""
    asked = _read(folder, Asked)
    if asked is None:
        return None
    process, progress = _read(folder, Process), _read(folder, Progress) or Progress()
    is_alive = _is_alive(asked, process, progress)
    end = _read(folder, End)  # after that: it is written before the process ends
    return DetachedRun(folder, asked, process, progress, end, _judge(is_alive, progress, end))


def list_runs() -> list[DetachedRun]:
    """All that are kept, the newest first."""
    try:
        folders = [path for path in (find_state_folder() / "runs").iterdir() if path.is_dir()]
    except OSError:
        return []
    return sorted(filter(None, map(read_run, folders)), key=lambda run: run.asked.began, reverse=True)


def find_run(name: str) -> DetachedRun:
    """
    Parameters
    ----------
    name : id of a run, or a beginning that no other has; `last` is the newest

    Raises
    ------
    OptionError : there is none, or several
    """
    runs = list_runs()
    found = runs[:1] if name == LAST else [run for run in runs if name and run.asked.run.startswith(name)]
    if not found:
        raise OptionError(
            f"there is no detached run {name!r} in {find_state_folder()}; `mgspmv status` lists those that there are"
        )
    if len(found) > 1:
        several = ", ".join(run.asked.run for run in found)
        raise OptionError(f"several detached runs begin with {name!r}: {several}; write more of the id")
    return found[0]


def _is_alive(asked: Asked, process: Process | None, progress: Progress) -> bool:
    if asked.host != platform.node():
        return time.time() - max(asked.began, progress.at) < SILENT_S
    if process is None:
        return time.time() - asked.began < START_S
    return process.is_there


def _judge(is_alive: bool, progress: Progress, end: End | None) -> State:
    if end is not None:
        return _ENDS.get(end.exit_code, "failed")
    if not is_alive:
        return "lost"
    return "running" if progress.is_on else "starting"


def _read(folder: Path, kind: type[T]) -> T | None:
    try:
        told: T = _make_readers()[kind].validate_json((folder / _name(kind)).read_bytes())
    except (OSError, ValueError):
        return None
    return told


@cache
def _make_readers() -> dict[type[Any], Any]:
    from pydantic import TypeAdapter

    return {kind: TypeAdapter(kind) for kind in (Asked, Process, Progress, End)}


def _name(kind: type[Any]) -> str:
    return f"{kind.__name__.lower()}.json"


# --- writing ---------------------------------------------------------------------------------------------------------


def begin_run(asked: Asked) -> Path:
    """Make the folder of a run; those that were not heard of for long go.

    Raises
    ------
    RunBusyError : the same goes on already
    StoreError : nothing can be written there
    """
    state = find_state_folder()
    folder = state / "runs" / asked.run
    try:
        for made in (state, state / "runs"):
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
        with lock(state / "runs"):
            _refuse_twice(asked)
            folder.mkdir(mode=0o700)
            (folder / SAID).touch()
            write(folder, asked)
            forget_old()  # after that: it may go on from what an old one kept
    except OSError as error:
        raise StoreError(
            f"detached runs cannot be kept in {state}: {describe_os_error(error, state)}; name another folder by "
            f"{STATE_VARIABLE}"
        ) from error
    return folder


def write(folder: Path, told: Asked | Process | Progress | End) -> None:
    """Write what is known of a run into its folder, in place of what was known before.

    Raises
    ------
    StoreError : it cannot be written
    """
    with write_beside(folder / _name(type(told))) as part:
        part.write_text(json.dumps(asdict(told), allow_nan=False))


def forget_old() -> None:
    """Remove runs that ended long ago, and their own checkpoints where no other run has the same."""
    runs = list_runs()
    old = [run for run in runs if not run.is_live and time.time() - run.heard > KEPT_S]
    kept = {run.asked.key for run in runs if run not in old}
    for run in old:
        shutil.rmtree(run.folder, ignore_errors=True)
        if run.asked.has_own_place and run.asked.key not in kept:
            shutil.rmtree(find_own_place(run.asked.key), ignore_errors=True)


def _refuse_twice(asked: Asked) -> None:
    for run in list_runs():
        if run.is_live and run.asked.key == asked.key:
            raise RunBusyError(
                f"run {run.asked.run} on {run.asked.host} computes the same; `mgspmv attach {run.asked.run}` shows it, "
                f"`mgspmv cancel {run.asked.run}` ends it"
            )


# --- ending ----------------------------------------------------------------------------------------------------------


def end_run(run: DetachedRun, patience_s: float) -> DetachedRun:
    """Interrupt a run as Ctrl-C does, and wait until its process is gone; one that is not in time is killed.

    Parameters
    ----------
    patience_s : seconds that it has to leave things clean

    Raises
    ------
    OptionError : it is on another host
    """
    if run.is_live and not run.is_here:
        raise OptionError(f"run {run.asked.run} is on {run.asked.host}, where alone it can be cancelled; do so there")
    if not wait_for(lambda: run.look_again().process is not None or not run.look_again().is_live, START_S):
        return run.look_again()
    run = run.look_again()
    if run.is_there:
        _send(run, signal.SIGINT)
    if not wait_for(lambda: not run.is_there, patience_s):
        _send(run, signal.SIGKILL)
        wait_for(lambda: not run.is_there, START_S)
        said = f"it did not end within {patience_s:g} s of an interrupt, and was killed"
        if run.look_again().end is None:
            payload = {"error": {"type": "KeyboardInterrupt", "message": said}}
            write(run.folder, End(EXIT_INTERRUPTED, time.time(), "", payload))
    return run.look_again()


def _send(run: DetachedRun, number: signal.Signals) -> None:
    """To the process and all that it started, as a terminal does."""
    assert run.process is not None
    with suppress(ProcessLookupError):
        os.killpg(run.process.pid, number)
