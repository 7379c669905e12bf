"""PageRank at the command line, killed: it runs in children, each of which ends itself at one of its changes of files.

    python killed_ranking.py ARGUMENTS...

reads numbers, one a line. For each a child runs `mgspmv ARGUMENTS`, with a checkpoint of each iteration, which SIGKILL
ends when it is about to change files for the time of that number; and what became of it is the answer: `killed`, or
how many changes it made and the code that it ended with.
"""

from __future__ import annotations

import os
import signal
import sys

from tests.support.killed import count_changes


def keep_each() -> None:
    """Let runs wait for each checkpoint, so that there is one of each iteration."""
    from mgspmv.solvers.checkpointing import Checkpointer

    look = Checkpointer.look

    def look_and_wait(self, writers, changes) -> None:
        look(self, writers, changes)
        self._settle(writers, wait=True)

    Checkpointer.look = look_and_wait


def run_child(limit: int) -> int:
    from mgspmv.cli import app

    made = count_changes(limit)
    try:
        app(sys.argv[1:], prog_name="mgspmv")
    except SystemExit as ended:
        return made[0] * 1000 + int(ended.code or 0)
    raise AssertionError("the program did not end")


def main() -> None:
    import mgspmv.api
    import mgspmv.cli.ranking  # noqa: F401  # once for all children

    keep_each()
    answers = os.dup(1)
    os.dup2(2, 1)
    for line in sys.stdin:
        begin, end = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(end, str(run_child(int(line))).encode())
            os._exit(0)
        os.close(end)
        _, status = os.waitpid(child, 0)
        told = os.read(begin, 100).decode()
        os.close(begin)
        is_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        os.write(answers, (f"{'killed' if is_killed else told}\n").encode())


if __name__ == "__main__":
    main()
