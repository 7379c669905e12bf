"""`--detach`: a command that starts itself again as a process of its own, and what that process does differently."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from mgspmv.cli.mode import ARGS, OWN, Mode, say
from mgspmv.cli.outputs import STDOUT
from mgspmv.cli.program import Answer
from mgspmv.detached import (
    EXIT_INTERRUPTED,
    LOG,
    SAID,
    Asked,
    DetachedRun,
    End,
    begin_run,
    end_run,
    find_own_place,
    read_run,
    write,
)
from mgspmv.errors import CheckpointError, OptionError, RunLostError, escape_controls, hide_secrets
from mgspmv.processes import Process
from mgspmv.version import __version__

ELSEWHERE = (
    *("tls", "cluster", "workers", "threads", "hosts", "remote_python", "nodes", "job", "scheduler", "timeout"),
    *("backend", "kernel", "drive", "transport"),
    *("device_memory", "host_memory", "memory", "scratch", "checkpoint_every", "resume", "overwrite"),
    *("recover", "elastic", "top", "summary"),
)
"""Options that say of where something is computed, or of how it is kept and shown: what else is the same is the same
run."""

SETTLE_S = 1.0
"""Seconds that a run goes on before it is left: options that do not fit are found at once, or soon."""
INTERRUPT_S = 10.0
"""Seconds that a run has to end whose starting is interrupted."""

_PROGRAM = "from mgspmv.cli.detaching import run_detached; run_detached()"
_LOOK_S = 0.05
"""Seconds between two looks at whether a run took over."""


# --- here ------------------------------------------------------------------------------------------------------------


def detach(command: Callable[..., Answer], given: dict[str, Any]) -> Answer:
    """Let a process of its own run the command, and say how to come back to it; in that process, run it.

    Parameters
    ----------
    given : the options of the command

    Raises
    ------
    OptionError : it writes to standard output
    RunBusyError : the same goes on already
    StoreError : the run's folder cannot be written
    RunLostError : the process ended without a word
    """
    own = OWN.get()
    if own is not None:
        return own.compute(command, given)
    for name, option in (("output", "-o"), ("hubs", "--hubs")):
        if isinstance(given.get(name), list) and STDOUT in given[name]:
            raise OptionError(
                f"{option} - writes ranks to standard output, which a detached run does not have; name a file"
            )
    folder = begin_run(_describe(command.__name__.replace("_", "-"), given))
    try:
        child = _start(folder)
        answer = _answer(run := _await_taken(child, folder))
        if run.state == "failed":  # at once, and who asked has been told
            child.wait()
            shutil.rmtree(folder)
        return answer
    except KeyboardInterrupt:
        end_run(_read(folder), INTERRUPT_S)
        raise


def _describe(command: str, given: Mapping[str, Any]) -> Asked:
    key = name_key(command, given)
    has_own_place = _keeps(given)
    place = str(find_own_place(key)) if has_own_place else given.get("checkpoint")
    return Asked(
        run=secrets.token_hex(4),
        command=command,
        args=tuple(map(hide_secrets, ARGS.get())),
        cwd=os.getcwd(),
        host=platform.node(),
        began=time.time(),
        version=__version__,
        key=key,
        checkpoint=None if place is None else hide_secrets(place),
        has_own_place=has_own_place,
    )


def name_key(command: str, given: Mapping[str, Any]) -> str:
    """What commands have in common that compute the same: a digest of the options that count, and of the folder that
    paths start from."""
    counted = {name: value for name, value in given.items() if name not in ELSEWHERE}
    return hashlib.sha256(json.dumps([command, os.getcwd(), counted], sort_keys=True).encode()).hexdigest()[:32]


def _keeps(given: Mapping[str, Any]) -> bool:
    """Whether a run has checkpoints that nobody asked for: where it can have them; see `check_checkpoint`."""
    if "checkpoint" not in given or given["checkpoint"] is not None:
        return False
    return given["stop"] == "change" and given["method"] == "power" and not given["follow_changes"]


def _start(folder: Path) -> subprocess.Popen[bytes]:
    """In a session of its own, which no terminal and no end of this process reaches."""
    command = [sys.executable, "-P", "-c", _PROGRAM, str(folder), *ARGS.get()]
    with open(folder / SAID, "wb") as said:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True)


def _await_taken(child: subprocess.Popen[bytes], folder: Path) -> DetachedRun:
    """The run as it is once it goes on for `SETTLE_S`, or has ended."""
    settled_s = math.inf
    while True:
        is_gone = child.poll() is not None
        run = _read(folder)
        if run.end is not None or (run.is_live and time.monotonic() > settled_s):
            return run
        if is_gone:
            raise _fail(run)
        if run.progress.is_on:
            settled_s = min(settled_s, time.monotonic() + SETTLE_S)
        time.sleep(_LOOK_S)


def _read(folder: Path) -> DetachedRun:
    run = read_run(folder)
    assert run is not None
    return run


def _fail(run: DetachedRun) -> RunLostError:
    """Say that a process is gone that did not say how it ended."""
    error = RunLostError(f"the process of run {run.asked.run} ended without an answer: {read_said(run)}")
    described = {"error": {"type": type(error).__name__, "message": str(error)}}
    write(run.folder, End(error.exit_code, time.time(), "", described))
    return error


def read_said(run: DetachedRun) -> str:
    """What a run wrote to stdout and stderr."""
    try:
        return (run.folder / SAID).read_text(errors="replace").strip()
    except OSError:
        return ""


def _answer(run: DetachedRun) -> Answer:
    """How to come back to a run; of one that failed at once, why."""
    if run.end is not None and run.state != "ended":
        print(escape_controls(read_said(run)), file=sys.stderr)
        return answer_end(run.end)
    name, pid = run.asked.run, None if run.process is None else run.process.pid
    payload = {"run": name, "state": run.state, "host": run.asked.host, "pid": pid, "folder": str(run.folder)}
    lines = [
        f"run {name} {'goes on' if run.is_live else 'has ended'} by itself, as process {pid} of {run.asked.host}",
        f"  mgspmv status {name}   says how far it is",
        f"  mgspmv attach {name}   shows it, and gives its answer",
        f"  mgspmv cancel {name}   ends it",
    ]
    return Answer(payload, ["\n".join(lines)])


def answer_end(end: End) -> Answer:
    """What a run answered, with its exit code."""
    return Answer(end.payload, [end.text.rstrip("\n")] if end.text else [], exit_code=end.exit_code)


# --- there -----------------------------------------------------------------------------------------------------------


class OwnRun:
    """The detached run that this process is; a context manager.

    Parameters
    ----------
    folder : of the run
    """

    def __init__(self, folder: Path) -> None:
        from mgspmv.monitor.recording import Recording

        self._folder, self._asked = folder, _read(folder).asked
        self._text, self._payload = "", dict[str, Any]()
        self.recording = Recording(folder)

    def __enter__(self) -> Self:
        self.recording.__enter__()
        write(self._folder, Process.find(os.getpid()))
        return self

    def __exit__(self, *exception: object) -> None:
        self.recording.__exit__(*exception)

    def adapt(self, mode: Mode) -> Mode:
        """How the command speaks: whoever asks for its answer says in which way; and it has a log."""
        return replace(mode, is_quiet=False, as_json=False, log=mode.log or str(self._folder / LOG))

    def compute(self, command: Callable[..., Answer], given: dict[str, Any]) -> Answer:
        """Run the command. A run without a place for checkpoints has its own, from which the next one that is the same
        goes on, and which goes when it has ended."""
        if not self._asked.has_own_place:
            return command(**given)
        place = find_own_place(self._asked.key)
        kept = given | {"checkpoint": str(place), "resume": place.exists()}
        try:
            answer = command(**kept)
        except CheckpointError as error:
            if not kept["resume"]:
                raise
            say(f"begins with the first iteration: {error}")
            answer = command(**kept | {"resume": False})
        shutil.rmtree(place, ignore_errors=True)
        return answer

    def keep_answer(self, payload: dict[str, Any], text: str) -> None:
        """Keep the answer, for people and as JSON, until the run ends."""
        self._payload, self._text = payload, text

    def end(self, exit_code: int) -> None:
        """Tell how the run ended, as the last thing it does."""
        self.recording.__exit__()
        write(self._folder, End(exit_code, time.time(), self._text, self._payload))


def run_detached() -> None:
    """Be the run whose folder is the first argument of this process, and the others are its command line."""
    interrupts = (signal.SIGINT, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, interrupts)  # until it can tell that it was interrupted
    for number in interrupts:  # who starts may have ignored them, which children inherit
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    from mgspmv.cli import app
    from mgspmv.cli.signals import catch_interrupts

    catch_interrupts()

    with OwnRun(Path(sys.argv[1])) as own:
        OWN.set(own)
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, interrupts)
            app(sys.argv[2:], prog_name="mgspmv")
        except KeyboardInterrupt:
            own.end(EXIT_INTERRUPTED)
            raise
