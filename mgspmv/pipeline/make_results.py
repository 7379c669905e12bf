"""The steps that compute with a matrix: ranks, batches of ranks, and products."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np

from mgspmv.api import pagerank, pagerank_batch, spmv
from mgspmv.api.warm import read_vector as read_given
from mgspmv.batch_results import load_batch
from mgspmv.display.numbers import format_bytes
from mgspmv.errors import CapacityError, CheckpointError, ConvergenceError, MgspmvError, OptionError, SourceError
from mgspmv.ingest.seeds import read_seeds
from mgspmv.ingest.weights import DANGLING_RULES, read_vector
from mgspmv.model import free_memory, peak_memory
from mgspmv.os_errors import refuse_source
from mgspmv.pipeline.compare import compare_batches, compare_ranks, list_ids, match_ids
from mgspmv.pipeline.context import Listener, OpenedMatrix, Work, describe_provenance
from mgspmv.pipeline.definition import PREVIOUS
from mgspmv.pipeline.keys import Identity, find_file
from mgspmv.pipeline.outputs import describe_outputs, digest_array, digest_ranks, find_ranks, publish, stage
from mgspmv.pipeline.places import fetch
from mgspmv.pipeline.records import PRIVATE, now, write_json
from mgspmv.pipeline.steps import Step
from mgspmv.pipeline.tables import list_top, read_labels, save_batch, save_product, save_ranks, save_top
from mgspmv.report.measure import describe_iterations, describe_solution
from mgspmv.report.record import Output, StepRecord
from mgspmv.results import Solution, describe_matrix, load_solution
from mgspmv.store.places import check_links, locate_store
from mgspmv.validation import to_json

T = TypeVar("T")

_OPTIONS = ("alpha", "tol", "tol_mode", "max_iter", "weights", "precision")


class UnfinishedError(Exception):
    """The iteration of a step ended without meeting its tolerance.

    Nothing of it is written. `record` says how far it came, and `error` what `pagerank` or `pagerank_batch` raised.
    """

    def __init__(self, record: StepRecord, error: ConvergenceError) -> None:
        super().__init__(str(error))
        self.record, self.error = record, error


def make_result(work: Work, step: Step, identity: Identity, opened: OpenedMatrix) -> StepRecord:
    """Compute a step, put its results in their place and write its record.

    Raises
    ------
    UnfinishedError : it did not converge; what was in its place is there as it was
    MgspmvError : what `pagerank`, `pagerank_batch`, `spmv` and the writing of results raise
    """
    began = now()
    make: Callable[..., dict[str, Any]] = {"pagerank": _rank, "batch": _rank_many, "product": _multiply}[step.kind]
    describe = partial(_describe, step, identity, opened, began)
    with stage(step, work.records.folder) as staged:
        try:
            fields = make(work, step, opened, staged)
        except ConvergenceError as error:
            raise UnfinishedError(describe([], describe_iterations(error.solution)), error) from error
        outputs = describe_outputs(staged, step.target, fields.pop("digests"))
        record = publish(staged, step.target, describe(outputs, fields), work.records.read_step(step.name))
    work.records.write_step(record)
    shutil.rmtree(_locate_checkpoint(work, step), ignore_errors=True)
    return record


def _locate_checkpoint(work: Work, step: Step) -> Path:
    """Where the state of a step is kept until it is finished."""
    return work.records.folder / PRIVATE / "checkpoints" / quote(step.name, safe="=,")


def _describe(
    step: Step,
    identity: Identity,
    opened: OpenedMatrix,
    began: str,
    outputs: list[Output],
    fields: dict[str, Any],
) -> StepRecord:
    asked = {name: value for name, value in fields.pop("options").items() if name not in identity.options}
    provenance = describe_provenance(step, identity, matrix=opened.matrix.info.provenance)
    return StepRecord(
        key=identity.key,
        kind=step.kind,
        name=step.name,
        inputs=identity.inputs,
        outputs=outputs,
        options=to_json(identity.options | asked),
        began=began,
        ended=now(),
        provenance=to_json(provenance),
        **fields,
    )


# --- ranks -----------------------------------------------------------------------------------------------------------


def _rank(work: Work, step: Step, opened: OpenedMatrix, folder: Path) -> dict[str, Any]:
    section, output, listener = step.section, work.definition.pipeline.output, work.listen(step)
    started = time.perf_counter()
    before = _load_before(work, step, load_solution)
    matrix = opened.find(section.reverse, on_progress=listener.on_progress, for_steps=True)
    options = {name: getattr(section, name) for name in (*_OPTIONS, "stop", "kernel")}
    vectors = _read_vectors(section, matrix, before)
    options |= vectors | _place(work, section, listener) | {"on_event": listener.on_event}
    checkpoint = _locate_checkpoint(work, step)
    solution = _rank_kept(matrix, checkpoint, options) if section.checkpoint else pagerank(matrix, **options)
    solution = solution.scale(output.scaler)
    ranked = time.perf_counter()
    fields = describe_solution(solution, section.top)
    if before is not None and output.compares:
        fields["comparison"] = _save_comparison(work, step, compare_ranks(before, solution, section.top), folder)
    if section.nstart == PREVIOUS:
        cold = "personalization" if "personalization" in vectors else "uniform"
        fields["result"]["start"] = PREVIOUS if "nstart" in vectors else cold
    save_ranks(solution, folder, output.formats)
    fields["top"] = _save_top(work, step, matrix, {None: solution.top(section.top)}, folder)
    fields["seconds"] |= {"prepare": _left(ranked - started, solution), "save": time.perf_counter() - ranked}
    digest = digest_ranks(solution)
    return fields | {"digests": {"ranks.zarr": digest, "ranks.parquet": digest}}


def _rank_kept(matrix: Any, checkpoint: Path, options: dict[str, Any]) -> Solution:
    """Go on with what was kept, or from the begin where that is of something else, or damaged."""
    try:
        return pagerank(matrix, **options, checkpoint=checkpoint, resume=True)
    except CheckpointError:
        return pagerank(matrix, **options, checkpoint=checkpoint)


def _left(elapsed_s: float, solution: Solution) -> float:
    """Of the seconds until ranks were there, those that the solution does not count."""
    return max(0.0, elapsed_s - sum(solution.seconds.values()))


def _read_vectors(section: Any, matrix: Any, before: Solution | None) -> dict[str, Any]:
    """PageRank's vectors that are given, by the names of its arguments."""
    vectors: dict[str, Any] = {}
    for name in ("personalization", "out_weight", "dangling", "nstart"):
        if (path := find_file(section, name)) is not None:
            with fetch(path) as local:
                vectors[name] = read_given(local, matrix.vertex_ids, aligns=name == "nstart")
    if section.dangling in DANGLING_RULES:
        vectors["dangling"] = section.dangling
    if getattr(section, "nstart", None) == PREVIOUS and before is not None and _suits(before, matrix):
        vectors["nstart"] = before
    return vectors


def _suits(before: Solution, matrix: Any) -> bool:
    """Whether ranks have vertices of the matrix, and are no scores."""
    ids_before = list_ids(before.vertex_ids, len(before.values))
    ids = list_ids(matrix.vertex_ids, matrix.shape[0])
    return before.scaler == "none" and len(match_ids(ids_before, ids)[0]) > 0


def _place(work: Work, section: Any, listener: Listener) -> dict[str, Any]:
    """Options that say where ranks are computed."""
    if work.computing.is_on_cluster:
        alone = {}
        if hasattr(section, "stop"):
            alone = {"recover": section.recover, "drive": work.computing.section.drive}
        return {"threads": work.computing.kernel_threads, "on_progress": listener.on_progress, **alone}
    return {"threads": work.computing.kernel_threads, "backend": section.backend}


def _load_before(work: Work, step: Step, load: Callable[[Path], T]) -> T | None:
    """The ranks that are replaced, where they are needed and can be read."""
    record = work.records.read_step(step.name)
    is_needed = work.definition.pipeline.output.compares or getattr(step.section, "nstart", None) == PREVIOUS
    if record is None or record.kind != step.kind or not is_needed:
        return None
    if (ranks := find_ranks(step.target, record)) is None:
        return None
    with fetch(ranks) as local:
        return load(local)


def _save_comparison(work: Work, step: Step, comparison: dict[str, Any], folder: Path) -> dict[str, Any]:
    record = work.records.read_step(step.name)
    assert record is not None
    compared = {"before": {"key": record.key, "ended": record.ended}, **comparison}
    write_json(folder / "comparison.json", compared)
    return compared


def _save_top(
    work: Work, step: Step, matrix: Any, highest: dict[Any, list[tuple[Any, float]]], folder: Path
) -> list[list[Any]]:
    """Write the tables of the highest of each vector; the rows of the first as a record has them."""
    path = work.definition.pipeline.matrix[step.matrix].labels
    labels = {}
    if path is not None:
        ids = {name for pairs in highest.values() for name, _ in pairs}
        with fetch(path) as local:
            labels = read_labels(str(local), ids, string_ids=matrix.info.vertex_ids == "string")
    rows = [
        ({} if vector is None else {"vector": vector}) | row
        for vector, pairs in highest.items()
        for row in list_top(pairs, labels)
    ]
    save_top(rows, folder, has_labels=bool(labels))
    names = ("id", "rank", "label") if labels else ("id", "rank")
    return [[row[name] for name in names] for row in rows if row.get("vector") == next(iter(highest))]


# --- batches ---------------------------------------------------------------------------------------------------------


def _rank_many(work: Work, step: Step, opened: OpenedMatrix, folder: Path) -> dict[str, Any]:
    section, output, listener = step.section, work.definition.pipeline.output, work.listen(step)
    if output.scaler != "none":
        raise OptionError(f'[output] scaler = "{output.scaler}" is for runs; batches keep ranks as they are')
    matrix = opened.find(section.reverse, on_progress=listener.on_progress)
    strings = matrix.info.vertex_ids == "string"
    seeds = None
    if section.seeds is not None:
        with fetch(section.seeds) as local:
            seeds = read_seeds(local, string_ids=strings)
    options = {name: getattr(section, name) for name in (*_OPTIONS, "width")} | _read_vectors(section, matrix, None)
    options["top"] = section.top if section.keep == "top" else None
    options |= {"on_event": listener.on_event} | _place(work, section, listener)
    batch = pagerank_batch(matrix, seeds, **options)
    ranked = time.perf_counter()
    save_batch(batch, folder, output.formats)
    top = _save_top(work, step, matrix, batch.top(min(section.top, matrix.shape[0])), folder)
    fields = describe_iterations(batch)
    if output.compares and (before := _load_before(work, step, load_batch)) is not None:
        fields["comparison"] = _save_comparison(work, step, compare_batches(before, batch, section.top), folder)
    fields["seconds"] |= {"save": time.perf_counter() - ranked}
    digest = digest_ranks(batch)
    return fields | {"top": top, "digests": {"ranks.zarr": digest, "ranks.parquet": digest}}


# --- products --------------------------------------------------------------------------------------------------------


def _multiply(work: Work, step: Step, opened: OpenedMatrix, folder: Path) -> dict[str, Any]:
    section, listener = step.section, work.listen(step)
    started = time.perf_counter()
    matrix = opened.find(section.transpose, on_progress=listener.on_progress)
    x, y = read_array(section.x), None if section.y is None else read_array(section.y)
    options: dict[str, Any] = section.given("alpha", "beta", "kernel", "precision")
    if not work.computing.is_on_cluster:
        options |= {"backend": section.backend}
    prepared = time.perf_counter()
    product = np.asarray(spmv(matrix, x, y=y, threads=work.computing.kernel_threads, **options))
    multiplied = time.perf_counter()
    path = folder / f"y.{section.format}"
    if section.format == "csv":
        save_product(product, opened.matrix.vertex_ids, path)
    else:
        save_array(product, path)
    seconds = {"prepare": prepared - started, "product": multiplied - prepared}
    return {
        "options": {},
        "matrix": to_json(describe_matrix(opened.matrix.info, "", is_reversed=section.transpose)),
        "seconds": seconds | {"save": time.perf_counter() - multiplied},
        "memory": {"host_peak_bytes": [peak_memory()]},
        "result": {"shape": list(product.shape), "dtype": str(product.dtype)},
        "digests": {"y.zarr": digest_array(product)},
    }


def read_array(path: str) -> np.ndarray:
    """A vector, or several as columns, from a .npy file or a Zarr array, either of which may be at a URL.

    Raises
    ------
    SourceError : it cannot be read, or is no array of real numbers
    CapacityError : there is no memory for it
    """
    with fetch(path) as local:
        return read_vector(local, max_ndim=2) if path.endswith(".npy") else _read_zarr(str(local))


def _read_zarr(path: str) -> np.ndarray:
    import zarr

    check_links(locate_store(path), "", below=True)
    try:
        stored = zarr.open_array(path, mode="r")
        if stored.nbytes > free_memory():
            raise CapacityError(
                f"{path} holds {format_bytes(stored.nbytes)}, and {format_bytes(free_memory())} of memory are free"
            )
        array = np.asarray(stored[...])
    except MgspmvError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise refuse_source(error, path, f"cannot be read as a Zarr array, nor is it named .npy: {error}") from error
    if array.ndim not in (1, 2) or array.dtype.kind not in "biuf":
        raise SourceError(
            f"wanted a one- or two-dimensional array of real numbers, found {array.dtype} of shape {array.shape}",
            source=path,
        )
    return array


def save_array(array: np.ndarray, path: Path) -> None:
    """Write an array as .npy, or as a Zarr array."""
    if path.suffix == ".npy":
        np.save(path, array)
        return
    import zarr

    stored = zarr.create_array(path, shape=array.shape, dtype=array.dtype, config={"write_empty_chunks": True})
    stored[...] = array
