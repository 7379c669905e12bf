"""A pipeline that is killed: it runs in children, each of which ends itself at one of its changes of files.

    python killed.py FILE.toml

reads numbers, one a line. For each a child runs the pipeline, which SIGKILL ends when it is about to change files for
the time of that number; and what became of it is the answer: `killed`, `failed`, or how many changes it made and
whether all steps are there.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import TextIO

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree")
WRITES = os.O_WRONLY | os.O_RDWR


def count_changes(limit: int) -> list[int]:
    """Count what changes files, before it does; end this process at the change of that number."""
    made = [0]

    def look(event: str, args: tuple) -> None:
        if event in CHANGES or (event == "open" and isinstance(args[2], int) and args[2] & WRITES):
            made[0] += 1
            if made[0] == limit:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)
    return made


def run_children(run: Callable[[int], str], answers: TextIO) -> None:
    """Run a child for each number that is read, and write what became of it."""
    for line in sys.stdin:
        begin, end = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.write(end, run(int(line)).encode())
                code = 0
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(end)
        _, status = os.waitpid(child, 0)
        answer = os.read(begin, 100).decode()
        os.close(begin)
        is_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        print("killed" if is_killed else answer or "failed", file=answers, flush=True)


def run_once(limit: int) -> str:
    from mgspmv.pipeline import run_pipeline

    made = count_changes(limit)
    record = run_pipeline(sys.argv[1])
    return f"{made[0]} {record.is_success}"


if __name__ == "__main__":
    import mgspmv.pipeline  # noqa: F401  # once for all children

    run_children(run_once, sys.stdout)
