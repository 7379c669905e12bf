"""Commands that make stores: `ingest`, `update` and `generate`."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from mgspmv.cli.mode import note_kept, open_progress
from mgspmv.cli.options import (
    IgnoreWeights,
    Keep,
    Missing,
    Reading,
    Room,
    SelfLoops,
    StorePath,
    Storing,
    Symmetrize,
    Threads,
    given,
)
from mgspmv.cli.place import Place, open_client
from mgspmv.cli.program import Answer
from mgspmv.cli.stored import answer_changed, answer_ingested, list_report
from mgspmv.ingest_report import IngestReport


def ingest(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="Matrix Market, edge list, Parquet, .npz, or a Zarr group of anndata, binsparse or CSR; path, URL, or "
            "- for stdin. Edge lists and Parquet: also several, a folder, or a pattern such as 'edges/*.csv.gz'.",
        ),
    ],
    store: StorePath,
    *,
    storing: Storing,
    reading: Reading,
    room: Room,
    place: Place,
) -> Answer:
    """Read a matrix or graph from one or several files into a store."""
    from mgspmv import api

    options: dict[str, Any] = {**vars(storing), **reading.options, **vars(room)}
    options |= {"threads": place.threads, "timeout": place.timeout}
    began = time.perf_counter()
    note_kept(f"{store} is as it was")
    with open_progress() as progress, open_client(place, progress) as client:
        options |= {"client": client, "on_progress": progress.on_progress}
        info = api.ingest(source[0] if len(source) == 1 else source, store, **options)
    return answer_ingested(info, time.perf_counter() - began)


def update(
    store: StorePath,
    *,
    insert: Annotated[
        str | None, typer.Option(metavar="FILE", help="Entries to insert, after deletions; - for stdin.")
    ] = None,
    delete: Annotated[str | None, typer.Option(metavar="FILE", help="Entries to delete; weights are not read.")] = None,
    missing: Missing = "ignore",
    self_loops: SelfLoops = "keep",
    symmetrize: Symmetrize = False,
    ignore_weights: IgnoreWeights = False,
    keep: Keep = None,
    reading: Reading,
    room: Room,
    threads: Threads = None,
) -> Answer:
    """Create a version of a store with entries inserted and deleted; readers of older versions are not affected."""
    from mgspmv import api
    from mgspmv.store.read import open_store

    options: dict[str, Any] = {"missing": missing, "self_loops": self_loops, "symmetrize": symmetrize}
    options |= {"ignore_weights": ignore_weights, "keep": keep, "threads": threads, **vars(room), **reading.options}
    before, began = open_store(store).info, time.perf_counter()
    note_kept(f"{store} is as it was")
    with open_progress() as progress:
        info = api.update(store, insert=insert, delete=delete, **options, on_progress=progress.on_progress)
    answer = answer_changed(info, before, time.perf_counter() - began, "nothing to change")
    if info.version == before.version:
        return answer
    made = info.provenance["updates"][-1]
    changes = f"{made['inserted']:,} entries inserted, {made['deleted']:,} deleted, {made['missing']:,} were not there"
    return replace(answer, parts=[*answer.parts, changes, *_list_reports(made)])


def _list_reports(made: dict[str, Any]) -> list[str]:
    """What the sources of an update were taken for."""
    verbs = {"delete": "deleted", "insert": "inserted"}
    reports = ((verb, made["reports"][name]) for name, verb in verbs.items() if name in made["reports"])
    return [line for verb, report in reports for line in list_report(IngestReport.from_json(report), verb)]


@dataclass(frozen=True)
class Parameters:
    """Of generators, as arguments of `mgspmv.generate`; None for those that are not given."""

    scale: Annotated[int | None, typer.Option(help="rmat: log2 of the vertices.")] = None
    edge_factor: Annotated[int | None, typer.Option(help="rmat: edges a vertex, default 16.")] = None
    a: Annotated[float | None, typer.Option("--a", help="rmat: upper left, default 0.57.")] = None
    b: Annotated[float | None, typer.Option("--b", help="rmat: upper right, default 0.19.")] = None
    c: Annotated[float | None, typer.Option("--c", help="rmat: lower left, default 0.19.")] = None
    scramble: Annotated[
        bool | None, typer.Option("--scramble/--no-scramble", help="rmat: spread vertices of high degree.")
    ] = None
    n_vertices: Annotated[int | None, typer.Option(metavar="N", help="uniform: vertices.")] = None
    n_edges: Annotated[int | None, typer.Option(metavar="N", help="uniform: edges.")] = None
    weights: Annotated[bool | None, typer.Option("--weights/--no-weights", help="rmat, uniform: values in (0, 1].")] = (
        None
    )
    nx: Annotated[int | None, typer.Option("--nx", help="stencils: cells along x.")] = None
    ny: Annotated[int | None, typer.Option("--ny", help="stencils: cells along y.")] = None
    nz: Annotated[int | None, typer.Option("--nz", help="stencil3d: cells along z.")] = None
    points: Annotated[int | None, typer.Option(help="stencils: 5 or 9; 7 or 27.")] = None
    n: Annotated[int | None, typer.Option("--n", help="banded: rows.")] = None
    bandwidth: Annotated[int | None, typer.Option(help="banded: entries on each side of the diagonal.")] = None
    pattern: Annotated[
        bool | None, typer.Option("--pattern/--no-pattern", help="stencils, banded: without values.")
    ] = None
    seed: Annotated[int | None, typer.Option(help="rmat, uniform, banded: default 1.")] = None


def generate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="rmat, uniform, stencil2d, stencil3d or banded.")],
    store: StorePath,
    *,
    parameters: Parameters,
    storing: Storing,
    place: Place,
    room: Room,
) -> Answer:
    """Make a matrix or graph by rule and store it."""
    from mgspmv import api

    options: dict[str, Any] = {**vars(storing), **vars(room), **given(vars(parameters))}
    options |= {"threads": place.threads, "timeout": place.timeout}
    began = time.perf_counter()
    note_kept(f"{store} is as it was")
    with open_progress() as progress, open_client(place, progress) as client:
        info = api.generate(model, store, **options, client=client, on_progress=progress.on_progress)
    return answer_ingested(info, time.perf_counter() - began)
