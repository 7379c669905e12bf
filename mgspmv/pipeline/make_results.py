"""Steps that compute with a matrix: ranks, batches of ranks, and products."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import zarr

from mgspmv.api.arguments import align_ranks
from mgspmv.api.arguments import read_vector as read_given
from mgspmv.api.batch_ranking import pagerank_batch
from mgspmv.api.checkpointing import Checkpoint
from mgspmv.api.products import spmv
from mgspmv.api.ranking import pagerank
from mgspmv.batch_results import load_batch
from mgspmv.errors import CheckpointError, ConvergenceError, OptionError, hide_secrets
from mgspmv.ingest.vector_files import DANGLING_RULES, read_seeds, read_vector
from mgspmv.model import peak_memory
from mgspmv.os_errors import source_error
from mgspmv.pipeline.compare import compare_batches, compare_ranks
from mgspmv.pipeline.context import OpenedMatrix, RunContext, make_record
from mgspmv.pipeline.definition import PREVIOUS, BatchSection
from mgspmv.pipeline.outputs import find_ranks, publish_record, write_array, write_ranks, write_text, write_top
from mgspmv.pipeline.records import PRIVATE, now
from mgspmv.pipeline.sources import fetch
from mgspmv.pipeline.steps import PipelineStep, find_file, identify_result
from mgspmv.report.record import StepRecord, describe_iterations, describe_solution
from mgspmv.results import Solution, describe_matrix, load_solution
from mgspmv.store.locations import check_links, locate_store
from mgspmv.validation import to_json

_OPTIONS = ("alpha", "tol", "norm", "max_iter", "weight", "precision")


def make_result(work: RunContext, step: PipelineStep, opened: OpenedMatrix) -> tuple[StepRecord, Exception | None]:
    """Compute a step, and write its results and its record.

    Returns
    -------
    The record. For ranks that did not converge it holds their last state, and the error is returned too; none of them
    are written, and former results stay unchanged.

    Raises
    ------
    MgspmvError : errors of `pagerank`, `pagerank_batch`, `spmv` and of writing results
    """
    began, info = now(), opened.matrix.info
    identity = identify_result(step, work.pipeline, info, work.records.checksums)
    work.records.checksums.save()
    try:
        fields = (_multiply if step.kind == "product" else _rank)(work, step, opened)
    except ConvergenceError as error:
        fields = describe_iterations(error.solution)
        return make_record(step, identity, began, info.provenance, outputs=[], **fields), error
    record = make_record(step, identity, began, info.provenance, **fields)
    portable = work.records.make_portable(record)
    publish_record(step.target, portable, work.records.read_step(step.name))
    work.records.write_step(portable)  # last: it marks the step as finished
    shutil.rmtree(_locate_checkpoint(work, step), ignore_errors=True)
    return record, None


def _locate_checkpoint(work: RunContext, step: PipelineStep) -> Path:
    """Return the path of a step's checkpoint, which is kept until the step is finished."""
    return work.records.folder / PRIVATE / "checkpoints" / quote(step.name, safe="=,")


# --- ranks -----------------------------------------------------------------------------------------------------------


def _rank(work: RunContext, step: PipelineStep, opened: OpenedMatrix) -> dict[str, Any]:
    """Compute ranks or a batch of them, compare them with the ranks that they replace, and write them."""
    section, output, is_batch = step.section, work.pipeline.output, step.kind == "batch"
    started = time.perf_counter()
    is_warm, former = getattr(section, "nstart", None) == PREVIOUS, work.records.read_step(step.name)
    before = _load_former(step, former) if is_warm else None
    matrix = opened.find(section.reverse, for_steps=not is_batch)
    vectors = _read_vectors(section, matrix)
    if is_warm and before is not None:
        with suppress(OptionError):  # no common vertex: start without them
            vectors["nstart"] = align_ranks(before, matrix)
    if is_batch:
        options = {name: getattr(section, name) for name in (*_OPTIONS, "width", "keep_top")} | vectors
        ranks: Any = pagerank_batch(_place(work, section, matrix), **options)
    else:
        ranks = _run_pagerank(work, step, matrix, vectors)
    ranked = time.perf_counter()
    n_kept = (is_batch and section.keep_top) or matrix.shape[0]
    highest = ranks.top(min(section.top, n_kept))
    if is_batch:
        fields = describe_iterations(ranks)
        fields["top"] = [[name, to_json(rank)] for name, rank in next(iter(highest.values()))]
    else:
        fields = describe_solution(ranks, section.top)
        if is_warm:
            cold = "personalization" if "personalization" in vectors else "uniform"
            fields["result"]["start"] = PREVIOUS if "nstart" in vectors else cold
    outputs = []
    if former is not None and output.compare and (before := before or _load_former(step, former)) is not None:
        compare: Callable[..., dict[str, Any]] = compare_batches if is_batch else compare_ranks
        was = {"before": {"key": former.key, "ended": former.ended}}
        fields["comparison"] = was | compare(before, ranks, section.top)
        text = hide_secrets(json.dumps(fields["comparison"], indent=1, allow_nan=False))
        outputs.append(write_text(f"{text}\n", f"{step.target}/comparison.json"))
    outputs += write_ranks(ranks, step.target, output.formats)
    outputs += write_top(highest if is_batch else {None: highest}, step.target)
    prepare_s = max(0.0, ranked - started - sum(ranks.seconds.values()))
    fields["seconds"] |= {"prepare": prepare_s, "save": time.perf_counter() - ranked}
    return fields | {"outputs": outputs}


def _run_pagerank(work: RunContext, step: PipelineStep, matrix: Any, vectors: dict[str, Any]) -> Solution:
    """Compute ranks, in the scale of [output]."""
    section = step.section
    options = {name: getattr(section, name) for name in (*_OPTIONS, "stop")} | vectors
    placed = _place(work, section, matrix, kernel=section.kernel)
    if work.is_on_cluster:
        placed = placed.on(recover=section.recover)
    place = _locate_checkpoint(work, step) if section.checkpoint else None
    try:
        kept = None if place is None else Checkpoint(place, resume=True)
        solution = pagerank(placed, **options, checkpoint=kept)
    except CheckpointError:  # from another matrix or other options, or damaged: start again
        solution = pagerank(placed, **options, checkpoint=place)
    return solution.scale(work.pipeline.output.scaler)


def _read_vectors(section: Any, matrix: Any) -> dict[str, Any]:
    """Read the given vectors of PageRank, by the names of its arguments."""
    vectors: dict[str, Any] = {}
    for name in ("personalization", "out_weight", "dangling", "nstart"):
        if (path := find_file(section, name)) is not None:
            is_of_batch = name == "personalization" and isinstance(section, BatchSection)
            with fetch(path) as local:
                vectors[name] = (
                    read_seeds(local, string_ids=matrix.info.vertex_ids == "string")
                    if is_of_batch
                    else read_given(local, matrix.vertex_ids, aligns=name == "nstart")
                )
    if section.dangling in DANGLING_RULES:
        vectors["dangling"] = section.dangling
    return vectors


def _place(work: RunContext, section: Any, matrix: Any, kernel: str = "auto") -> Any:
    """Return a matrix with the backend, threads and kernel of a step."""
    if work.is_on_cluster:
        return matrix.on(kernel=kernel)
    return matrix.on(section.backend, threads=work.pipeline.limits.threads, kernel=kernel)


def _load_former(step: PipelineStep, former: StepRecord | None) -> Any:
    """Load the ranks to be replaced; None if they are missing, changed or not in a readable format."""
    if former is None or former.kind != step.kind or (ranks := find_ranks(step.target, former)) is None:
        return None
    with fetch(ranks) as local:
        return (load_batch if step.kind == "batch" else load_solution)(local)


# --- products --------------------------------------------------------------------------------------------------------


def _multiply(work: RunContext, step: PipelineStep, opened: OpenedMatrix) -> dict[str, Any]:
    section = step.section
    started = time.perf_counter()
    matrix = opened.find(section.transpose)
    x, y = read_array(section.x), None if section.y is None else read_array(section.y)
    options: dict[str, Any] = section.given("alpha", "beta", "precision")
    placed = _place(work, section, matrix, **section.given("kernel"))
    prepared = time.perf_counter()
    product = np.asarray(spmv(placed, x, y=y, **options))
    multiplied = time.perf_counter()
    output = write_array(product, f"{step.target}/y.{section.format}")
    seconds = {"prepare": prepared - started, "product": multiplied - prepared}
    return {
        "matrix": to_json(describe_matrix(opened.matrix.info, "", is_reversed=section.transpose)),
        "seconds": seconds | {"save": time.perf_counter() - multiplied},
        "memory": {"host_peak_bytes": [peak_memory()]},
        "result": {"shape": list(product.shape), "dtype": str(product.dtype)},
        "outputs": [output],
    }


def read_array(path: str) -> np.ndarray:
    """Read a vector, or several as columns, from the path or URL of a .npy file or a Zarr array.

    Raises
    ------
    SourceError : it cannot be read
    """
    with fetch(path) as local:
        if path.endswith(".npy"):
            return read_vector(local, max_ndim=2)
        check_links(locate_store(str(local)), "", below=True)
        try:
            return np.asarray(zarr.open_array(str(local), mode="r")[...])
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            said = f"not named .npy, and cannot be read as a Zarr array: {error}"
            raise source_error(error, str(local), said) from error
