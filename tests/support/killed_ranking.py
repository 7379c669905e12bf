"""PageRank at the command line, killed: it runs in children, each of which ends itself at one of its changes of files.

    python killed_ranking.py ARGUMENTS...

reads numbers, one a line. For each a child runs `mgspmv ARGUMENTS`, with a checkpoint of each iteration, which SIGKILL
ends when it is about to change files for the time of that number; and what became of it is the answer: `killed`, or
how many changes it made and the code that it ended with.
"""

from __future__ import annotations

import os
import sys

from tests.support.killed import count_changes, run_children


def run_once(limit: int) -> str:
    from mgspmv.cli import app

    made = count_changes(limit)
    try:
        app(sys.argv[1:], prog_name="mgspmv")
    except SystemExit as ended:
        return str(made[0] * 1000 + int(ended.code or 0))
    raise AssertionError("the program did not end")


if __name__ == "__main__":
    import mgspmv.api.ranking
    import mgspmv.cli.ranking  # noqa: F401  # once for all children

    answers = os.dup(1)
    os.dup2(2, 1)
    run_children(run_once, os.fdopen(answers, "w"))
