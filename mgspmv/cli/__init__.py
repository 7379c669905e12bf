"""The command line: each command calls `mgspmv.api` and answers with tables for people or one JSON object for scripts.

Answers go to stdout, progress and errors to stderr. Heavy libraries are imported inside the commands, so that
`mgspmv --help` does not wait for them.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from mgspmv.cli import clusters
from mgspmv.cli.centrality import eigenvector, hits, katz, stationary
from mgspmv.cli.doctor import doctor
from mgspmv.cli.make_stores import generate, ingest, update
from mgspmv.cli.pipelines import run
from mgspmv.cli.products import plan, spmv
from mgspmv.cli.program import add_command, app
from mgspmv.cli.ranking import pagerank, pagerank_batch
from mgspmv.cli.results import report, summary, top
from mgspmv.cli.runs import cancel, status
from mgspmv.cli.signals import catch_interrupts
from mgspmv.cli.stores import export, info, reorder, subgraph, transpose, verify, versions

__all__ = ["app", "main"]

PANELS = {
    "Matrices": (ingest, generate, update, versions, reorder, transpose, subgraph, export, info, verify),
    "Products and ranks": (plan, spmv, pagerank, pagerank_batch, hits, katz, eigenvector, stationary),
    "Results": (top, summary, report),
    "Pipelines and measurements": (run, doctor),
    "Clusters": (status, cancel),
}
"""All commands, in the order in which help lists them."""

for panel, commands in PANELS.items():
    for command in commands:
        add_command(app, command, rich_help_panel=panel)
app.add_typer(clusters.app, name="cluster", rich_help_panel="Clusters")


def main(args: list[str] | None = None, name: str = "mgspmv") -> None:
    """Run the program: the entry point `mgspmv`."""
    catch_interrupts()
    # sys.stdout is None if closed, and the next file would get its number. Opened for reading, writes to it fail.
    number = os.open(os.devnull, os.O_RDONLY) if sys.stdout is None else sys.stdout.fileno()
    looks: dict[str, Any] = {name: getattr(sys.stdout, name, None) for name in ("encoding", "errors")}
    # With PYTHONUNBUFFERED, Python's own stdout ignores partial writes.
    sys.stdout = open(number, "w", closefd=False, **looks)  # noqa: SIM115
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    app(args, prog_name=name)
