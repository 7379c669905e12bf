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

from mgspmv.cli import clusters, ranking, results, stores
from mgspmv.cli.program import Group, add_command, app, catch_interrupts

__all__ = ["app", "main"]

PANELS: dict[str, dict[Callable[..., Any], str]] = {
    "Matrices": {
        stores.ingest: "ingest web.mtx.gz web.zarr --kind graph",
        stores.generate: "generate rmat rmat.zarr --scale 20",
        stores.update: "update web.zarr --insert new.csv --delete old.csv",
        stores.versions: "versions web.zarr --keep 2",
        stores.reorder: "reorder web.zarr --method rcm",
        stores.transpose: "transpose web.zarr",
        stores.subgraph: "subgraph web.zarr part.zarr --min-weight 0.5",
        stores.export: "export web.zarr web.parquet",
        stores.info: "info web.zarr",
        stores.verify: "verify web.zarr",
    },
    "Products and ranks": {
        stores.plan: "plan web.zarr --workers 4 --device-memory 80GB",
        stores.spmv: "spmv matrix.zarr x.npy -o y.npy",
        ranking.pagerank: "pagerank web.zarr -o ranks.parquet",
        ranking.pagerank_batch: "pagerank-batch web.zarr --personalization seeds.csv -o ranks.zarr",
        ranking.hits: "hits web.zarr -o authorities.parquet --hubs hubs.parquet",
        ranking.katz: "katz web.zarr --alpha auto -o katz.parquet",
        ranking.eigenvector: "eigenvector web.zarr -o centrality.parquet",
        ranking.stationary: "stationary chain.zarr --lazy 0.5",
    },
    "Results": {
        results.top: "top ranks.parquet --top 20",
        results.summary: "summary ranks.parquet",
        results.report: "report ranks.zarr",
    },
    "Pipelines and measurements": {results.run: "run pipeline.toml --dry-run", clusters.doctor: "doctor web.zarr"},
    "Clusters": {clusters.status: "status", clusters.cancel: "cancel 1f2e"},
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
for command, example in ((clusters.start, "start --backend cuda"), (clusters.show, "status"), (clusters.stop, "stop")):
    add_command(group, command, example.partition(" ")[0], epilog=f"Example: mgspmv cluster {example}")
app.add_typer(group, name="cluster", rich_help_panel="Clusters")


def main(args: list[str] | None = None) -> None:
    """Run the program: the entry point `mgspmv`."""
    catch_interrupts()
    atexit.register(gc.freeze)  # else Python looks for cycles of all objects as it ends, for a tenth of a second
    # sys.stdout is None if closed, and the next file would get its number. Opened for reading, writes to it fail.
    number = os.open(os.devnull, os.O_RDONLY) if sys.stdout is None else sys.stdout.fileno()
    looks: dict[str, Any] = {name: getattr(sys.stdout, name, None) for name in ("encoding", "errors")}
    # With PYTHONUNBUFFERED, Python's own stdout ignores partial writes.
    sys.stdout = open(number, "w", closefd=False, **looks)  # noqa: SIM115
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    app(args, prog_name="mgspmv")
