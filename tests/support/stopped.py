"""A writer of stores that can be stopped: it works in children, each of which stops itself at one of its file changes.

    python stopped.py

reads lines of JSON: what `perform` takes, and the number of the change in the folder of the store before which the
child stops, or null. It answers `stopped` and goes on after a line, and says in the end what `perform` does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence

import numpy as np

import mgspmv as mg
from mgspmv.errors import StoreError

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "shutil.rmtree")
WRITES = os.O_WRONLY | os.O_RDWR


def stop_at(folder: str, limit: int) -> None:
    """Have this process stop before it changes files in a folder for the time of this number."""
    made = [0]

    def look(event: str, args: tuple) -> None:
        writes = event == "open" and isinstance(args[2], int) and args[2] & WRITES
        if (writes or event in CHANGES) and (folder in str(args[0]) or not str(args[0]).startswith("/")):
            made[0] += 1
            if made[0] == limit:
                os.kill(os.getpid(), signal.SIGSTOP)

    sys.addaudithook(look)


def pack(*edges: Sequence[int]) -> tuple[np.ndarray, ...]:
    return tuple(np.array(edges).T)


def perform(work: str, place: str, edge: Sequence[int]) -> str:
    """Write an edge into a store; `done`, or the error."""
    try:
        if work == "update":
            mg.update(place, insert=pack(edge))
        else:
            mg.ingest(pack(edge, (7, 7)), place, n_vertices=8, overwrite=work == "overwrite")
    except StoreError as error:
        return f"StoreError: {error}"
    return "done"


def work(name: str, place: str, edge: Sequence[int], limit: int | None, answers: int) -> None:
    if limit is not None:
        stop_at(place, limit)
    os.write(answers, perform(name, place, edge).encode())


def main() -> None:
    _ = mg.update, mg.ingest  # once for all children
    print("ready", flush=True)
    for line in sys.stdin:
        begin, end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                work(*json.loads(line), end)
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(end)
        if os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1]):
            print("stopped", flush=True)
            sys.stdin.readline()
            os.kill(child, signal.SIGCONT)
            os.waitpid(child, 0)
        print(os.read(begin, 1000).decode() or "failed", flush=True)
        os.close(begin)


if __name__ == "__main__":
    main()
