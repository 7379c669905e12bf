"""Checks in a process apart, which is ended when one hangs and may break down: what CUDA and NCCL do cannot be stopped
otherwise.

The process is given checks by module and function. It writes a line of JSON for each, when it is done with it. Of one
that hangs or breaks down there is none; it is known by its place, and the next process begins with the one after it.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from importlib import import_module
from threading import Thread
from typing import IO, Any

from mgspmv.doctor.findings import Check, Finding, hang, list_findings, shorten, wrong


def run_apart(checks: Sequence[Check], limit_s: float) -> Iterator[tuple[Check, list[Finding]]]:
    """What each of these checks finds, which are functions of modules, in their order.

    Parameters
    ----------
    limit_s : seconds for each; for the first one of a process with its start
    """
    left = list(checks)
    while left:
        for findings in _run_process(left, limit_s):
            check = left.pop(0)
            yield check, [check.label(finding) for finding in findings]


def _run_process(checks: list[Check], limit_s: float) -> Iterator[list[Finding]]:
    """What these find, as far as one process gets; its last findings are those of the check that ended it."""
    names = [f"{check.find.__module__}:{check.find.__name__}" for check in checks]
    paths = os.pathsep.join(path for path in sys.path if path)
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", "from mgspmv.doctor.apart import main; main()", *names],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=os.environ | {"PYTHONPATH": paths},
            start_new_session=True,  # Ctrl-C is for who waits, who ends it
        )
        assert process.stdout is not None
        lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
        try:
            for _ in checks:
                try:
                    line = lines.get(timeout=limit_s)
                except queue.Empty:
                    yield [hang(limit_s, "CUDA, its driver or NCCL does not come back")]
                    return
                if not line:
                    yield [_describe_end(process.wait(), errors)]
                    return
                yield [Finding(**told) for told in json.loads(line)]
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def _read(stream: IO[bytes], lines: queue.SimpleQueue[bytes]) -> None:
    """Pass on what is written; an empty line is the end."""
    try:
        for line in stream:
            lines.put(line)
    except (OSError, ValueError):  # closed meanwhile
        pass
    lines.put(b"")


def _describe_end(code: int, errors: IO[bytes]) -> Finding:
    errors.seek(0)
    said = errors.read()[-4000:].decode(errors="replace").strip().splitlines()
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    last = f"; its last line was: {shorten(said[-1])}" if said else ""
    return wrong(
        f"the process that checked it ended {how}{last}",
        "A run that needs the same would break down too.",
        "Install CuPy, NCCL and the driver afresh, of versions that belong together; where the system's log "
        "(`dmesg`) names the GPU, restart the machine.",
        exit_code=code,
    )


def _find_function(name: str) -> Callable[[], Any]:
    module, _, function = name.partition(":")
    found: Callable[[], Any] = getattr(import_module(module), function)
    return found


def main() -> None:
    """Run the checks that the process is given, and write what they find."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    for name in sys.argv[1:]:
        findings = list_findings(_find_function(name))
        answers.write(json.dumps([asdict(finding) for finding in findings]) + "\n")
        answers.flush()
    os._exit(0)  # what libraries do when a process ends may hang too
