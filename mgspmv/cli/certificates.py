"""The command `certificates`."""

from __future__ import annotations

from typing import Annotated

import typer

from mgspmv.cli.program import Answer


def certificates(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Where ca.pem, cert.pem, key.pem and dask.yaml go.")],
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Name or address of a machine, for browsers; repeatable. This one is in it."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="How long they are valid.")] = 365,
) -> Answer:
    """Make certificates for the parts of a cluster, which --tls takes. Who has the folder gets in, and nobody else."""
    from mgspmv.distribute.tls import make_certificates

    made = make_certificates(folder, host or [], days)
    files = [str(path) for path in (made.ca, made.cert, made.key)]
    lines = [f"made {', '.join(files)}, valid for {days} days", "Copy the folder to each machine; key.pem is secret."]
    return Answer({"files": files, "days": days}, lines)
