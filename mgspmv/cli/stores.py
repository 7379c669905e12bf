"""Commands that make stores, commands for existing ones, and commands for products with these: `plan` and `spmv`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from mgspmv.cli.clusters import ComputingOptions, PlacementOptions, open_client
from mgspmv.cli.options import (
    MemoryOptions,
    ReadingOptions,
    SortingOptions,
    StoringOptions,
    TextOptions,
    argument,
    given,
    option,
)
from mgspmv.cli.output import Answer, note_checkpoint, tabulate, tabulate_fields, translate_message
from mgspmv.display import format_bytes, format_seconds
from mgspmv.errors import CapacityError, OptionError, StoreDamagedError
from mgspmv.ingest_report import IngestReport
from mgspmv.kernels.catalogue import SPARSE_KERNELS
from mgspmv.validation import check_fields

if TYPE_CHECKING:
    from mgspmv.model import MatrixInfo


_KERNELS = ", ".join(kernel.name for kernel in SPARSE_KERNELS if kernel.backends)


# --- commands that make stores ----------------------------------------------------------------------------------------


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
    import mgspmv as mg

    options: dict[str, Any] = {**vars(storing), **reading.options, **vars(room)}
    options |= {"threads": place.threads, "timeout": place.timeout}
    sources = source[0] if len(source) == 1 else source
    with open_client(place) as client:
        info, elapsed_s = make_store(store, mg.ingest, sources, store, **options, client=client)
    return answer_stored(info, elapsed_s, list_report(info.ingest_report))


def update(
    store: str,
    *,
    insert: Annotated[str | None, option("Entries to insert, after deletions; - for stdin.", "FILE")] = None,
    delete: Annotated[str | None, option("Entries to delete; their weights are ignored.", "FILE")] = None,
    self_loops: str = "keep",
    symmetrize: bool = False,
    keep: int | None = None,
    reading: ReadingOptions,
    work: SortingOptions,
) -> Answer:
    """Create a version of a store with entries inserted and deleted; readers of older versions are not affected."""
    import mgspmv as mg
    from mgspmv.store.read import open_store

    options: dict[str, Any] = {"self_loops": self_loops, "symmetrize": symmetrize}
    options |= {"keep": keep, **vars(work), **reading.options}
    before = open_store(store).info
    info, elapsed_s = make_store(store, mg.update, store, insert=insert, delete=delete, **options)
    if info.version == before.version:
        return answer_unchanged(info, elapsed_s, "nothing to change")
    made = info.provenance["updates"][-1]
    lines = [f"{made['inserted']:,} entries inserted, {made['deleted']:,} deleted, {made['missing']:,} missing"]
    for name, verb in {"delete": "deleted", "insert": "inserted"}.items():
        if name in made["reports"]:
            lines += list_report(check_fields(IngestReport, made["reports"][name]), verb)
    return answer_stored(info, elapsed_s, lines, changed=True)


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
    import mgspmv as mg

    options: dict[str, Any] = {**vars(storing), **vars(room), **given(vars(parameters))}
    options |= {"threads": place.threads, "timeout": place.timeout}
    with open_client(place) as client:
        info, elapsed_s = make_store(store, mg.generate, model, store, **options, client=client)
    return answer_stored(info, elapsed_s, list_report(info.ingest_report))


# --- commands for existing stores ------------------------------------------------------------------------------------


def versions(store: str, keep: int | None = None) -> Answer:
    """List the versions of a store; with --keep, drop all but the newest."""
    import mgspmv as mg

    dropped = [] if keep is None else mg.drop_versions(store, keep=keep)
    there = mg.list_versions(store)
    fields = ("number", "version", "created", "nnz", "shape", "nbytes", "digest")
    listed = [{name: getattr(info, name) for name in fields} | {"current": info is there[-1]} for info in there]
    rows = []
    for info in there:
        named, sizes = (info.number, info.version, info.created or ""), f"{info.shape[0]:,} x {info.shape[1]:,}"
        rows.append((*named, sizes, f"{info.nnz:,}", format_bytes(info.nbytes), "current" * (info is there[-1])))
    table = tabulate(("", "version", "created", "rows x columns", "entries", "size", ""), rows)
    return Answer({"versions": listed, "dropped": dropped}, [table, *(f"dropped {name}" for name in dropped)])


def reorder(
    store: str,
    target: Annotated[str | None, argument("[TARGET]", "Store for the renumbered matrix; default in place.")] = None,
    *,
    method: str = "rcm",
    overwrite: bool = False,
    work: SortingOptions,
) -> Answer:
    """Renumber rows and columns for locality; results keep the numbering of the source."""
    import mgspmv as mg

    options: dict[str, Any] = {"method": method, "overwrite": overwrite, **vars(work)}
    return answer_stored(*make_store(target or store, mg.reorder, store, target, **options))


def transpose(store: str, *, keep: int | None = None, work: SortingOptions) -> Answer:
    """Add the transpose to a store, which `hits` and --reverse need; the matrix and its digest do not change."""
    import mgspmv as mg
    from mgspmv.store.read import open_store

    before = open_store(store).info
    info, elapsed_s = make_store(store, mg.transpose, store, keep=keep, **vars(work))
    if info.version == before.version:
        return answer_unchanged(info, elapsed_s, "the transpose is stored already")
    return answer_stored(info, elapsed_s, changed=True)


def subgraph(
    store: str,
    target: Annotated[str, argument("TARGET", "Store for the subgraph: local path or URL.")],
    *,
    vertices: str | None = None,
    min_weight: Annotated[float | None, option("Smallest weight to keep.", "W")] = None,
    max_weight: Annotated[float | None, option("Largest weight to keep.", "W")] = None,
    edges: str | None = None,
    without_edges: Annotated[str | None, option("Edges to drop, as --edges.", "FILE")] = None,
    symmetrize: Annotated[bool, option("Edges to keep or drop: (i, j) also selects (j, i).")] = False,
    lines: TextOptions,
    overwrite: bool = False,
    work: SortingOptions,
) -> Answer:
    """Write a subgraph as a new store: the edges between some vertices, or selected edges."""
    import mgspmv as mg
    from mgspmv.ingest.headers import StatedForm
    from mgspmv.ingest.subgraph import open_edges, read_selection
    from mgspmv.lookup import VertexLookup
    from mgspmv.store.read import open_store

    options: dict[str, Any] = {"min_weight": min_weight, "max_weight": max_weight, "overwrite": overwrite}
    options |= {"symmetrize": symmetrize, **vars(work)}
    stored = open_store(store)
    if vertices is not None:
        unused = [name for name in lines.options if name not in ("delimiter", "comment")]
        if unused and (edges or without_edges) is None:
            raise OptionError(
                f"{', '.join(f'{name}=' for name in unused)} applies to a file of edges; pass edges= or without_edges= "
                "with it, or leave it out"
            )
        are_names, reading = stored.info.vertex_ids == "string", StatedForm(lines.delimiter, comment=lines.comment)
        is_vertex = VertexLookup(stored).has if are_names else None
        options["vertices"] = read_selection(vertices, string_ids=are_names, reading=reading, is_vertex=is_vertex)
    for name, file in given({"edges": edges, "without_edges": without_edges}).items():
        options[name] = open_edges(stored, file, **lines.options)
    info, elapsed_s = make_store(target, mg.subgraph, store, target, **options)
    source = info.provenance["subgraphs"][-1]["source"]
    part = f"{info.shape[0]:,} of {source['shape'][0]:,} rows, {info.nnz:,} of {source['nnz']:,} entries"
    return answer_stored(info, elapsed_s, [part])


def export(
    store: str,
    target: Annotated[
        str, argument("TARGET", "Output: .csv, .mtx (also .gz, .zst), .parquet, .npz, .zarr; path or URL.")
    ],
    *,
    format: str | None = None,
    vertices: Annotated[str | None, option("File for ids, one per line, for `ingest --vertices`.", "FILE")] = None,
    work: SortingOptions,
    overwrite: bool = False,
) -> Answer:
    """Export a stored matrix for other programs, in the order of its source."""
    import mgspmv as mg

    options: dict[str, Any] = {"format": format, "vertices": vertices, "overwrite": overwrite, **vars(work)}
    began = time.perf_counter()
    note_checkpoint(f"{target} is unchanged")
    info = mg.export(store, target, **options)
    elapsed_s = time.perf_counter() - began
    payload = {"target": target, "vertices": vertices, "store": asdict(info), "seconds": elapsed_s}
    return Answer(payload, [f"{target}: {_describe_matrix(info)}, written in {format_seconds(elapsed_s)}"])


def info(store: str) -> Answer:
    """Show the metadata of a store, without loading the matrix."""
    import mgspmv as mg

    with mg.open(store) as matrix:
        info = matrix.info
    fields = {
        "store": info.url,
        "kind": info.kind,
        "rows x columns": f"{info.shape[0]:,} x {info.shape[1]:,}",
        "entries": f"{info.nnz:,}",
        "values": info.dtype or "none, a pattern",
        "indices": info.index_dtype,
        "ids": info.vertex_ids or "0..n-1",
        "order": _describe_order(info),
        "duplicates": info.duplicates,
        "least value": "none" if info.min_weight is None else f"{info.min_weight:g}",
        "transpose": "stored" if info.has_transpose else "not stored",
        "size": format_bytes(info.nbytes),
        "version": f"{info.version}, format {info.format_version}",
        "digest": info.digest,
    }
    made_from = {f"source {key}": _format_fact(value) for key, value in info.provenance.get("source", {}).items()}
    report = {"ingest": "\n".join(list_report(info.ingest_report))}
    return Answer(asdict(info), [tabulate_fields(fields | made_from | report)])


def verify(store: str) -> Answer:
    """Check the integrity of a store; exit code 4 if it is damaged."""
    import mgspmv as mg

    problems = mg.verify(store)
    payload = {"store": store, "ok": not problems, "problems": problems}
    if not problems:
        return Answer(payload, [f"{store} is valid"])
    error = StoreDamagedError(f"{store}: {len(problems)} problem(s) found; ingest again or restore a copy")
    return Answer(payload, problems, error)


def _format_fact(value: Any) -> str | None:
    """Format a fact about the source as text: nested ones in one line, or in one line per file."""
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_format_fact(own)}" for key, own in value.items() if own is not None) or None
    if isinstance(value, list):
        return ("\n" if any(isinstance(own, dict) for own in value) else ", ").join(
            f"{_format_fact(own)}" for own in value
        )
    return None if value is None else f"{value}"


# --- products ---------------------------------------------------------------------------------------------------------


def plan(
    store: str,
    *,
    workers: Annotated[int | None, option("Number of workers; default 1, or those of the cluster.")] = None,
    device_memory: str | None = None,
    host_memory: str | None = None,
    precision: str = "exact",
    stop: Annotated[str, option("Stop criterion of PageRank; topk takes memory.", "change|topk:K")] = "change",
    checkpoint: Annotated[bool, option("Include memory for checkpoints of PageRank.")] = False,
    backend: str = "auto",
    cluster: str | None = None,
    cluster_option: list[str] | None = None,
    scheduler: str | None = None,
    tls: str | None = None,
    timeout: float = 30.0,
) -> Answer:
    """Predict the memory and traffic of a run, without loading the matrix."""
    import mgspmv as mg

    place = PlacementOptions(cluster, workers if cluster else None, None, cluster_option, scheduler, tls, timeout)
    options: dict[str, Any] = {"device_memory": device_memory, "host_memory": host_memory, "precision": precision}
    options |= {"stop": stop, "checkpoint": checkpoint, "backend": place.choose_backend(backend), "timeout": timeout}
    with mg.open(store) as matrix, open_client(place) as client:
        plan = matrix.plan(1 if workers is None else workers, **options, client=client)
    has_device = any(w.has_device for w in plan.workers)
    columns = {
        "worker": [str(k) for k in range(len(plan.workers))],
        "rows": [f"{w.start:,} .. {w.stop:,}" for w in plan.workers],
        "entries": [f"{w.nnz:,}" for w in plan.workers],
    }
    if has_device:
        streamed = [0 if w.streaming is None else w.streaming.streamed_bytes for w in plan.workers]
        columns["held on"] = [w.held for w in plan.workers]
        columns["device memory"] = [format_bytes(w.device_bytes) if w.has_device else "" for w in plan.workers]
        columns["host memory"] = [format_bytes(w.host_bytes if w.has_device else w.memory_bytes) for w in plan.workers]
        columns["streamed per iteration"] = list(map(format_bytes, streamed))
    else:
        columns["memory"] = [format_bytes(w.memory_bytes) for w in plan.workers]
    columns["received per iteration"] = [format_bytes(w.exchange_bytes) for w in plan.workers]
    watch_bytes, copy_bytes = (max(getattr(w, name) for w in plan.workers) for name in ("watch_bytes", "copy_bytes"))
    totals = {
        "operation": plan.operation,
        "precision": plan.precision,
        "memory of a worker": None if has_device else format_bytes(plan.memory_bytes),
        f"host memory of a worker for --stop {stop}": format_bytes(watch_bytes) if watch_bytes else None,
        "host memory of a worker for --checkpoint": format_bytes(copy_bytes) if copy_bytes else None,
        "received in all, per iteration": format_bytes(plan.exchange_bytes),
        "workers without rows": f"{plan.n_idle:,}" if plan.n_idle else None,
    }
    if client or device_memory or host_memory or not plan.fits:
        least, enough = plan.least_device_memory, plan.enough_workers
        totals["fits"] = ("yes, with rows that are streamed" if plan.streams else "yes") if plan.fits else "no"
        totals["least device memory, with rows streamed"] = None if least is None else format_bytes(1.005 * least)
        totals["workers that hold all rows"] = None if enough is None else f"{enough:,}"
    error = None if plan.shortage is None else CapacityError(plan.shortage)
    table = tabulate(tuple(columns), list(zip(*columns.values(), strict=True)))
    return Answer(plan.to_dict(), [table, tabulate_fields(totals)], error)


def spmv(
    store: str,
    x: Annotated[str, argument("X.npy", "Array of shape (n_cols,) or (n_cols, k).")],
    *,
    output: Annotated[str, option("File for the product.", "Y.npy", "--output", "-o")],
    alpha: Annotated[float, option("Factor of A @ x.")] = 1.0,
    beta: Annotated[float, option("Factor of y.")] = 0.0,
    y: Annotated[str | None, option("Array y, needed unless beta is 0.", "FILE.npy")] = None,
    kernel: Annotated[str, option(f"Kernel: auto, {_KERNELS}.", "NAME")] = "auto",
    precision: str | None = None,
    place: ComputingOptions,
    overwrite: bool = False,
) -> Answer:
    """Compute alpha * A @ x + beta * y."""
    import numpy as np

    import mgspmv as mg
    from mgspmv.files import write_beside
    from mgspmv.ingest.vertex_vectors import read_vector
    from mgspmv.saving import check_target

    check_target(output, overwrite=overwrite, suffixes=(".npy",))
    note_checkpoint(f"{output} is unchanged")
    began = time.perf_counter()
    with mg.open(store) as matrix:
        options: dict[str, Any] = {"alpha": alpha, "beta": beta, "precision": precision}
        options["y"] = None if y is None else read_vector(y, max_ndim=2)
        factor = read_vector(x, max_ndim=2)
        with open_client(place) as client:
            product = mg.spmv(place.place(matrix, client, kernel=kernel), factor, **options)
    with write_beside(output) as part, open(part, "wb") as file:
        np.save(file, product)
    elapsed_s = time.perf_counter() - began
    payload = {"output": output, "shape": list(product.shape), "dtype": product.dtype.name, "seconds": elapsed_s}
    return Answer(payload, [f"{output}: {product.dtype.name} of shape {product.shape} in {format_seconds(elapsed_s)}"])


# --- answers ---------------------------------------------------------------------------------------------------------


def make_store(store: str, call: Callable[..., Any], *args: Any, **options: Any) -> tuple[MatrixInfo, float]:
    """Call a function that makes a store; return the info of the matrix, and the seconds that it took."""
    note_checkpoint(f"{store} is unchanged")
    began = time.perf_counter()
    return call(*args, **options).info, time.perf_counter() - began


def answer_stored(info: MatrixInfo, elapsed_s: float, others: Iterable[str] = (), **fields: Any) -> Answer:
    """Make the answer for a store that was made, with other lines and other fields of the payload."""
    order = [f"order: {_describe_order(info)}"] if "reordering" in info.provenance else []
    said = f"{info.url}: {_describe_matrix(info)}, made in {format_seconds(elapsed_s)}"
    return Answer({"store": asdict(info), "seconds": elapsed_s} | fields, [said, *order, *others])


def list_report(report: IngestReport | None, verb: str | None = None) -> list[str]:
    """List the lines of a report, with options in place of arguments in notes and warnings."""
    if report is None:
        return []
    first, *others = report.list_lines(verb)
    return [first, *map(translate_message, others)]


def answer_unchanged(info: MatrixInfo, elapsed_s: float, reason: str) -> Answer:
    """Make the answer for a store that has no new version."""
    payload = {"store": asdict(info), "seconds": elapsed_s, "changed": False}
    return Answer(payload, [f"{info.url}: {reason}; version {info.version} stays"])


def _describe_order(info: MatrixInfo) -> str:
    made = info.provenance.get("reordering")
    bandwidth = f", bandwidth {made['bandwidth_after']:,}, was {made['bandwidth_before']:,}" if made else ""
    return f"{info.order or 'that of the source'}{bandwidth}"


def _describe_matrix(info: MatrixInfo) -> str:
    values = "a pattern" if info.is_pattern else info.dtype
    return f"{info.kind}, {info.shape[0]:,} x {info.shape[1]:,}, {info.nnz:,} entries, {values}"
