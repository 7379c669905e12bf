"""The program as a command of `dask`: `dask mgspmv pagerank web.zarr` is `mgspmv pagerank web.zarr`."""

from __future__ import annotations

import click


@click.command("mgspmv", context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(args: tuple[str, ...]) -> None:
    """Sparse matrix-vector products and PageRank."""
    from mgspmv.cli import main

    main(list(args), "dask mgspmv")
