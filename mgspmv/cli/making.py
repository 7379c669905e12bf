"""Commands that make stores: `ingest`, `update` and `generate`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any

import typer

from mgspmv.cli.mode import note_kept, open_progress
from mgspmv.cli.options import (
    Backend,
    ClusterKind,
    Columns,
    Delimiter,
    Dtype,
    Duplicates,
    ExtraColumns,
    Format,
    HasWeights,
    Ids,
    IgnoreWeights,
    Keep,
    Kind,
    Memory,
    Missing,
    NCols,
    NVertices,
    Order,
    Overwrite,
    Resume,
    Scheduler,
    Scratch,
    SelfLoops,
    StorePath,
    Symmetrize,
    Threads,
    Timeout,
    Transpose,
    Vertices,
    Workers,
    given,
)
from mgspmv.cli.place import Place, open_client
from mgspmv.cli.program import Answer
from mgspmv.cli.stored import answer_stored
from mgspmv.errors import OptionError, ProgressError, SourceError, StoreExistsError

GO_ON = "what is read is kept; run the same command again to go on where it was"


def ingest(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="Matrix Market, edge list, Parquet, .npz, or a Zarr group of anndata, binsparse or CSR; path or URL. "
            "Edge lists and Parquet: also several, a folder, or a pattern such as 'edges/*.csv.gz'.",
        ),
    ],
    store: StorePath,
    kind: Kind = None,
    duplicates: Duplicates = None,
    self_loops: SelfLoops = "keep",
    symmetrize: Symmetrize = False,
    ignore_weights: IgnoreWeights = False,
    transpose: Transpose = False,
    dtype: Dtype = None,
    order: Order = "none",
    overwrite: Overwrite = False,
    format: Format = None,
    n_vertices: NVertices = None,
    vertices: Vertices = None,
    delimiter: Delimiter = None,
    weights: HasWeights = None,
    ids: Ids = None,
    extra_columns: ExtraColumns = None,
    columns: Columns = None,
    n_cols: NCols = None,
    memory: Memory = None,
    threads: Threads = None,
    scratch: Scratch = None,
    resume: Resume = False,
    cluster: ClusterKind = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    timeout: Timeout = 30.0,
) -> Answer:
    """Read a matrix or graph, of one file or several, into a store."""
    from mgspmv import api

    options: dict[str, Any] = {"kind": kind, "duplicates": duplicates, "self_loops": self_loops, "dtype": dtype}
    options |= {"symmetrize": symmetrize, "ignore_weights": ignore_weights, "transpose": transpose}
    options |= {"order": order, "overwrite": overwrite, "format": format}
    options |= {"memory": memory, "threads": threads, "scratch": scratch}
    edge_list: dict[str, Any] = {
        "n_vertices": n_vertices,
        "vertices": vertices,
        "delimiter": delimiter,
        "weights": weights,
    }
    edge_list |= {"ids": ids, "extra_columns": extra_columns, "columns": columns.split(",") if columns else None}
    edge_list |= {"n_cols": n_cols}
    place = Place(cluster, workers, threads, scheduler, timeout)
    began = time.perf_counter()
    note_kept(GO_ON if resume else f"{store} is as it was; with --resume the next ingest would go on from here")
    with _explain_resuming(resume), open_progress() as progress, open_client(place, progress) as client:
        info = api.ingest(
            source[0] if len(source) == 1 else source,
            store,
            **options,
            resume=resume,
            client=client,
            timeout=timeout,
            on_progress=progress.on_progress,
            **given(edge_list),
        )
    return answer_stored(info, time.perf_counter() - began)


@contextmanager
def _explain_resuming(resume: bool) -> Iterator[None]:
    """Say how to go on with an ingest that keeps its progress, where it is not the source or the command that fails."""
    try:
        yield
    except (OptionError, ProgressError, SourceError, StoreExistsError):
        raise
    except Exception:
        if resume:
            print(GO_ON, file=sys.stderr)
        raise


def update(
    store: StorePath,
    insert: Annotated[str | None, typer.Option(metavar="FILE", help="Entries to insert, after the deletions.")] = None,
    delete: Annotated[str | None, typer.Option(metavar="FILE", help="Entries to delete; weights do not count.")] = None,
    missing: Missing = "ignore",
    self_loops: SelfLoops = "keep",
    symmetrize: Symmetrize = False,
    ignore_weights: IgnoreWeights = False,
    keep: Keep = None,
    format: Format = None,
    n_vertices: NVertices = None,
    vertices: Vertices = None,
    delimiter: Delimiter = None,
    weights: HasWeights = None,
    ids: Ids = None,
    extra_columns: ExtraColumns = None,
    columns: Columns = None,
    n_cols: NCols = None,
    memory: Memory = None,
    threads: Threads = None,
    scratch: Scratch = None,
) -> Answer:
    """Make a new version of a store, without some entries and with others; who reads the old one goes on."""
    from mgspmv import api

    options: dict[str, Any] = {"missing": missing, "self_loops": self_loops, "symmetrize": symmetrize}
    options |= {"ignore_weights": ignore_weights, "keep": keep, "format": format}
    options |= {"memory": memory, "threads": threads, "scratch": scratch}
    edge_list: dict[str, Any] = {"n_vertices": n_vertices, "vertices": vertices, "delimiter": delimiter}
    edge_list |= {
        "weights": weights,
        "ids": ids,
        "extra_columns": extra_columns,
        "columns": columns.split(",") if columns else None,
        "n_cols": n_cols,
    }
    began = time.perf_counter()
    note_kept(f"{store} is as it was")
    with open_progress() as progress:
        info = api.update(
            store, insert=insert, delete=delete, **options, on_progress=progress.on_progress, **given(edge_list)
        )
    answer = answer_stored(info, time.perf_counter() - began)
    made = info.provenance["updates"][-1]
    changes = f"{made['inserted']:,} entries inserted, {made['deleted']:,} deleted, {made['missing']:,} were not there"
    return replace(answer, parts=[*answer.parts, changes])


def generate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="rmat, uniform, stencil2d, stencil3d or banded.")],
    store: StorePath,
    scale: Annotated[int | None, typer.Option(help="rmat: log2 of the vertices.")] = None,
    edge_factor: Annotated[int | None, typer.Option(help="rmat: edges a vertex, default 16.")] = None,
    a: Annotated[float | None, typer.Option("--a", help="rmat: upper left, default 0.57.")] = None,
    b: Annotated[float | None, typer.Option("--b", help="rmat: upper right, default 0.19.")] = None,
    c: Annotated[float | None, typer.Option("--c", help="rmat: lower left, default 0.19.")] = None,
    scramble: Annotated[
        bool | None, typer.Option("--scramble/--no-scramble", help="rmat: spread vertices of high degree.")
    ] = None,
    n_vertices: Annotated[int | None, typer.Option(metavar="N", help="uniform: vertices.")] = None,
    n_edges: Annotated[int | None, typer.Option(metavar="N", help="uniform: edges.")] = None,
    weights: Annotated[
        bool | None, typer.Option("--weights/--no-weights", help="rmat, uniform: values in (0, 1].")
    ] = None,
    nx: Annotated[int | None, typer.Option("--nx", help="stencils: cells along x.")] = None,
    ny: Annotated[int | None, typer.Option("--ny", help="stencils: cells along y.")] = None,
    nz: Annotated[int | None, typer.Option("--nz", help="stencil3d: cells along z.")] = None,
    points: Annotated[int | None, typer.Option(help="stencils: 5 or 9; 7 or 27.")] = None,
    n: Annotated[int | None, typer.Option("--n", help="banded: rows.")] = None,
    bandwidth: Annotated[int | None, typer.Option(help="banded: entries on each side of the diagonal.")] = None,
    pattern: Annotated[
        bool | None, typer.Option("--pattern/--no-pattern", help="stencils, banded: without values.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="rmat, uniform, banded: default 1.")] = None,
    kind: Kind = None,
    duplicates: Duplicates = None,
    self_loops: SelfLoops = "keep",
    symmetrize: Symmetrize = False,
    ignore_weights: IgnoreWeights = False,
    transpose: Transpose = False,
    dtype: Dtype = None,
    order: Order = "none",
    cluster: ClusterKind = None,
    workers: Workers = None,
    threads: Threads = None,
    scheduler: Scheduler = None,
    backend: Backend = "auto",
    memory: Memory = None,
    scratch: Scratch = None,
    timeout: Timeout = 30.0,
    overwrite: Overwrite = False,
) -> Answer:
    """Make a matrix or graph by rule and store it."""
    from mgspmv import api

    options: dict[str, Any] = {"kind": kind, "duplicates": duplicates, "self_loops": self_loops, "dtype": dtype}
    options |= {
        "symmetrize": symmetrize,
        "ignore_weights": ignore_weights,
        "transpose": transpose,
        "order": order,
        "overwrite": overwrite,
    }
    parameters = {"scale": scale, "edge_factor": edge_factor, "a": a, "b": b, "c": c, "scramble": scramble}
    parameters |= {"n_vertices": n_vertices, "n_edges": n_edges, "weights": weights, "nx": nx, "ny": ny, "nz": nz}
    parameters |= {"points": points, "n": n, "bandwidth": bandwidth, "pattern": pattern, "seed": seed}
    place = Place(cluster, workers, threads, scheduler, timeout)
    options |= {"backend": place.choose_backend(backend), "threads": threads, "timeout": timeout}
    options |= {"memory": memory, "scratch": scratch}
    began = time.perf_counter()
    note_kept(f"{store} is as it was")
    with open_progress() as progress, open_client(place, progress) as client:
        info = api.generate(
            model,
            store,
            **options,
            client=client,
            on_progress=progress.on_progress,
            **given(parameters),
        )
    return answer_stored(info, time.perf_counter() - began)
