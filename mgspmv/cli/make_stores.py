"""Commands that make stores: `ingest`, `update` and `generate`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from mgspmv.cli.options import MemoryOptions, ReadingOptions, SortingOptions, StoringOptions, given, option
from mgspmv.cli.placement import PlacementOptions, open_client
from mgspmv.cli.program import Answer
from mgspmv.cli.stores import answer_changed, answer_ingested, list_report, make_store
from mgspmv.ingest_report import IngestReport
from mgspmv.validation import check_fields


def ingest(
    source: list[str],
    store: str,
    *,
    storing: StoringOptions,
    reading: ReadingOptions,
    room: MemoryOptions,
    place: PlacementOptions,
) -> Answer:
    """Read a matrix or graph from one or several files into a store."""
    from mgspmv import api

    options: dict[str, Any] = {**vars(storing), **reading.options, **vars(room)}
    options |= {"threads": place.threads, "timeout": place.timeout}
    sources = source[0] if len(source) == 1 else source
    with open_client(place) as client:
        return answer_ingested(*make_store(store, api.ingest, sources, store, **options, client=client))


def update(
    store: str,
    *,
    insert: Annotated[str | None, option("Entries to insert, after deletions; - for stdin.", "FILE")] = None,
    delete: Annotated[str | None, option("Entries to delete; their weights are ignored.", "FILE")] = None,
    missing: Annotated[str, option("Action for missing entries to delete.", "ignore|error")] = "ignore",
    self_loops: str = "keep",
    symmetrize: bool = False,
    keep: int | None = None,
    reading: ReadingOptions,
    work: SortingOptions,
) -> Answer:
    """Create a version of a store with entries inserted and deleted; readers of older versions are not affected."""
    from mgspmv import api
    from mgspmv.store.read import open_store

    options: dict[str, Any] = {"missing": missing, "self_loops": self_loops, "symmetrize": symmetrize}
    options |= {"keep": keep, **vars(work), **reading.options}
    before = open_store(store).info
    info, elapsed_s = make_store(store, api.update, store, insert=insert, delete=delete, **options)
    answer = answer_changed(info, before, elapsed_s, "nothing to change")
    if info.version == before.version:
        return answer
    made = info.provenance["updates"][-1]
    changes = f"{made['inserted']:,} entries inserted, {made['deleted']:,} deleted, {made['missing']:,} missing"
    return replace(answer, parts=[*answer.parts, changes, *_list_reports(made)])


def _list_reports(made: dict[str, Any]) -> list[str]:
    """List the report lines of both sources of an update."""
    verbs = {"delete": "deleted", "insert": "inserted"}
    reports = ((verb, made["reports"][name]) for name, verb in verbs.items() if name in made["reports"])
    return [line for verb, report in reports for line in list_report(check_fields(IngestReport, report), verb)]


@dataclass(frozen=True)
class Parameters:
    """Parameters of generators, as arguments of `mgspmv.generate`; None where not given."""

    scale: Annotated[int | None, option("rmat: log2 of the number of vertices.")] = None
    edge_factor: Annotated[int | None, option("rmat: edges per vertex; default 16.")] = None
    a: Annotated[float | None, option("rmat: probability of the upper left; default 0.57.")] = None
    b: Annotated[float | None, option("rmat: probability of the upper right; default 0.19.")] = None
    c: Annotated[float | None, option("rmat: probability of the lower left; default 0.19.")] = None
    scramble: Annotated[bool | None, option("rmat: spread vertices of high degree over all ids.")] = None
    n_vertices: Annotated[int | None, option("uniform: number of vertices.", "N")] = None
    n_edges: Annotated[int | None, option("uniform: number of edges.", "N")] = None
    weights: Annotated[bool | None, option("Store values; of rmat and uniform in (0, 1], default none.")] = None
    nx: Annotated[int | None, option("stencil2d, stencil3d: cells along x.")] = None
    ny: Annotated[int | None, option("stencil2d, stencil3d: cells along y.")] = None
    nz: Annotated[int | None, option("stencil3d: cells along z.")] = None
    points: Annotated[int | None, option("Points of the stencil: 5 or 9 in 2D, 7 or 27 in 3D.")] = None
    n: Annotated[int | None, option("banded: number of rows.")] = None
    bandwidth: Annotated[int | None, option("banded: entries on each side of the diagonal.")] = None
    pattern: Annotated[bool | None, option("stencil2d, stencil3d: no values and no diagonal.")] = None
    seed: Annotated[int | None, option("rmat, uniform, banded: random seed; default 1.")] = None


def generate(
    model: str,
    store: str,
    *,
    parameters: Parameters,
    storing: StoringOptions,
    place: PlacementOptions,
    room: MemoryOptions,
) -> Answer:
    """Generate a matrix or graph and store it."""
    from mgspmv import api

    options: dict[str, Any] = {**vars(storing), **vars(room), **given(vars(parameters))}
    options |= {"threads": place.threads, "timeout": place.timeout}
    with open_client(place) as client:
        return answer_ingested(*make_store(store, api.generate, model, store, **options, client=client))
