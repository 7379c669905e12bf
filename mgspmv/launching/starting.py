"""Starting a cluster that goes on by itself: the same command as a process in a session of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

from mgspmv.errors import ClusterError
from mgspmv.launching.serving import Asked, describe
from mgspmv.launching.state import SAID, Launched, claim, end_processes, forget, read_cluster
from mgspmv.processes import Process

SAID_LINES = 20
"""Of a log, that an error shows."""
GIVE_UP_S = 10.0
"""Seconds that a cluster has to end whose starting is given up."""

_PROGRAM = "from mgspmv.cli import main; main()"
_LOOK_S = 0.05
"""Seconds between two looks at whether workers have joined."""


@dataclass(frozen=True)
class Failure:
    """Of a process that said why it ended."""

    exit_code: int
    payload: dict[str, Any]
    """The error, as `--json` has it."""
    said: str
    """The end of its log, whose last line is the error."""


def start_apart(asked: Asked, args: Sequence[str], timeout_s: float) -> Launched | Failure:
    """Let a process which no terminal and no end of this one reaches be the cluster; back when its workers have joined.

    Parameters
    ----------
    args : of the command line that asks for this, after the name of the program

    Raises
    ------
    ClusterError : one of the name is there, the workers have not joined in time, or the process ended without a word
    """
    own = describe(asked)
    with (
        claim(own),
        tempfile.TemporaryFile() as answer,
        open(own.folder / SAID, "w+b") as said,
    ):
        command = [sys.executable, "-P", "-c", _PROGRAM, *args, "--foreground", "--json"]
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=answer, stderr=said, start_new_session=True)
        launched = None
        try:
            launched = _await_joined(child, asked.name, timeout_s)
        finally:
            is_late = child.poll() is None
            if launched is None:
                _give_up(child, asked.name)
        return launched or _explain(child, f"within {timeout_s:g} s" if is_late else None, asked.name, answer, said)


def _await_joined(child: subprocess.Popen[bytes], name: str, timeout_s: float) -> Launched | None:
    """The cluster once all its workers have joined; None where its process ended or is late."""
    deadline = time.monotonic() + timeout_s
    while child.poll() is None and time.monotonic() < deadline:
        launched = read_cluster(name)
        if launched is not None and launched.process.pid == child.pid and launched.state == "running":
            return launched
        time.sleep(_LOOK_S)
    return None


def _give_up(child: subprocess.Popen[bytes], name: str) -> None:
    """End what was started, and leave nothing of it."""
    end_processes(Process.find(child.pid), GIVE_UP_S)
    child.wait()
    left = read_cluster(name)
    if left is not None and left.process.pid == child.pid:
        forget(left)


def _explain(
    child: subprocess.Popen[bytes], late: str | None, name: str, answer: IO[bytes], said: IO[bytes]
) -> Failure:
    """What a process said before it ended.

    Raises
    ------
    ClusterError : it said nothing, or was late
    """
    said.seek(0)
    answer.seek(0)
    log = "\n".join(said.read().decode(errors="replace").strip().splitlines()[-SAID_LINES:])
    try:
        payload = json.loads(answer.read())
    except ValueError:
        payload = {}
    if late is None and "error" in payload:
        return Failure(child.returncode, payload, log)
    what = f"its workers have not joined {late}, and it was ended" if late else f"it ended with {child.returncode}"
    ending = f"; its log ends with:\n{log}" if log else "; its log is empty"
    raise ClusterError(f"cluster {name!r} did not start: {what}{ending}", phase="start")
