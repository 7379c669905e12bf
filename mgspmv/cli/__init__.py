"""The command line: each command calls `mgspmv` and answers with tables for people or one JSON object for scripts.

Answers go to stdout, progress and errors to stderr. Heavy libraries are imported inside the commands, so that
`mgspmv --help` does not wait for them.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Callable
from typing import Any

import typer

from mgspmv.cli.clusters import cancel, doctor, show, start, status, stop
from mgspmv.cli.products import plan, spmv
from mgspmv.cli.program import Group, add_command, app, catch_interrupts
from mgspmv.cli.ranking import eigenvector, hits, katz, pagerank, pagerank_batch, stationary
from mgspmv.cli.results import report, run, summary, top
from mgspmv.cli.stores import (
    export,
    generate,
    info,
    ingest,
    reorder,
    subgraph,
    transpose,
    update,
    verify,
    versions,
)

__all__ = ["app", "main"]

PANELS: dict[str, dict[Callable[..., Any], str]] = {
    "Matrices": {
        ingest: "ingest web.mtx.gz web.zarr --kind graph",
        generate: "generate rmat rmat.zarr --scale 20",
        update: "update web.zarr --insert new.csv --delete old.csv",
        versions: "versions web.zarr --keep 2",
        reorder: "reorder web.zarr --method rcm",
        transpose: "transpose web.zarr",
        subgraph: "subgraph web.zarr part.zarr --min-weight 0.5",
        export: "export web.zarr web.parquet",
        info: "info web.zarr",
        verify: "verify web.zarr",
    },
    "Products and ranks": {
        plan: "plan web.zarr --workers 4 --device-memory 80GB",
        spmv: "spmv matrix.zarr x.npy -o y.npy",
        pagerank: "pagerank web.zarr -o ranks.parquet",
        pagerank_batch: "pagerank-batch web.zarr --personalization seeds.csv -o ranks.zarr",
        hits: "hits web.zarr -o authorities.parquet --hubs hubs.parquet",
        katz: "katz web.zarr --alpha auto -o katz.parquet",
        eigenvector: "eigenvector web.zarr -o centrality.parquet",
        stationary: "stationary chain.zarr --lazy 0.5",
    },
    "Results": {top: "top ranks.parquet --top 20", summary: "summary ranks.parquet", report: "report ranks.zarr"},
    "Pipelines and measurements": {run: "run pipeline.toml --dry-run", doctor: "doctor web.zarr"},
    "Clusters": {status: "status", cancel: "cancel 1f2e"},
}
"""All commands with an example of each, in the order in which help lists them."""

for panel, commands in PANELS.items():
    for command, example in commands.items():
        add_command(app, command, rich_help_panel=panel, epilog=f"Example: mgspmv {example}")
group = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    help="Start, list and stop clusters on this machine.",
    epilog="Example: mgspmv cluster start",
)
for command, example in ((start, "start --backend cuda"), (show, "status"), (stop, "stop")):
    add_command(group, command, example.partition(" ")[0], epilog=f"Example: mgspmv cluster {example}")
app.add_typer(group, name="cluster", rich_help_panel="Clusters")


def main(args: list[str] | None = None, name: str = "mgspmv") -> None:
    """Run the program: the entry point `mgspmv`."""
    catch_interrupts()
    atexit.register(gc.freeze)  # else Python looks for cycles of all objects as it ends, for a tenth of a second
    # sys.stdout is None if closed, and the next file would get its number. Opened for reading, writes to it fail.
    number = os.open(os.devnull, os.O_RDONLY) if sys.stdout is None else sys.stdout.fileno()
    looks: dict[str, Any] = {name: getattr(sys.stdout, name, None) for name in ("encoding", "errors")}
    # With PYTHONUNBUFFERED, Python's own stdout ignores partial writes.
    sys.stdout = open(number, "w", closefd=False, **looks)  # noqa: SIM115
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    app(args, prog_name=name)
