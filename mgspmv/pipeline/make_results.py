"""Steps that compute with a matrix: ranks, batches of ranks, and products."""

from __future__ import annotations

import json
import shutil
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import zarr

from mgspmv.api.arguments import align_ranks
from mgspmv.api.arguments import read_vector as read_given
from mgspmv.api.batch_ranking import pagerank_batch
from mgspmv.api.matrix import Matrix, open_matrix
from mgspmv.api.powers import spmv
from mgspmv.api.ranking import Checkpoint, pagerank
from mgspmv.control_groups import peak_memory
from mgspmv.errors import CheckpointError, ConvergenceError, OptionError, hide_secrets, source_error
from mgspmv.ingest.vertex_vectors import DANGLING_RULES, read_seeds, read_vector
from mgspmv.pipeline.definition import PREVIOUS, BatchSection
from mgspmv.pipeline.make_matrix import RunContext
from mgspmv.pipeline.records import (
    PRIVATE,
    find_ranks,
    make_record,
    now,
    publish_record,
    write_array,
    write_ranks,
    write_text,
    write_top,
)
from mgspmv.pipeline.steps import PipelineStep, fetch, find_file, identify_result
from mgspmv.report.record import StepRecord, describe_iterations, describe_solution
from mgspmv.results import Solution, describe_matrix, load_solution
from mgspmv.store.access import check_links, locate_store
from mgspmv.validation import to_json

MOVED = 20
"""Most vertices that a comparison lists."""

_OPTIONS = ("alpha", "tol", "norm", "max_iter", "weight", "precision")


class OpenedMatrix(ExitStack):
    """Opened matrix, loaded once for all results computed from it; released with the context.

    Parameters
    ----------
    store : path or URL of its store
    """

    def __init__(self, store: str, work: RunContext) -> None:
        super().__init__()
        self._store, self._work, self._loaded = store, work, ExitStack()
        self._wanted: tuple[bool, bool] | None = None

    @cached_property
    def matrix(self) -> Matrix:
        """Matrix opened in this process."""
        matrix = self.enter_context(open_matrix(self._store))
        self.enter_context(self._loaded)  # after the matrix, so that it is closed before the matrix
        return matrix

    def find(self, is_turned: bool, *, for_steps: bool = False) -> Any:
        """Return the matrix or its transpose, distributed if a cluster computes.

        Parameters
        ----------
        for_steps : True for the steps of PageRank, for which devices convert a graph to another layout

        Raises
        ------
        KindError : the store does not hold the transpose
        ClusterError, CapacityError : as in `Matrix.distribute`
        """
        matrix = self.matrix.T if is_turned else self.matrix
        if not self._work.is_on_cluster:
            return matrix
        if self._wanted != (wanted := (is_turned, for_steps)):
            self._wanted = None
            self._loaded.close()  # first: the workers may not have memory for both
            self._distributed = self._loaded.enter_context(self._work.distribute(matrix, build_layout=for_steps))
            self._wanted = wanted
        return self._distributed


def make_result(work: RunContext, step: PipelineStep, opened: OpenedMatrix) -> tuple[StepRecord, Exception | None]:
    """Compute a step, and write its results and its record.

    Returns
    -------
    The record. For ranks that did not converge it holds their last state, and the error is returned too; none of them
    are written, and former results stay unchanged.
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
    compares = output.compare and not is_batch
    if former is not None and compares and (before := before or _load_former(step, former)) is not None:
        was = {"before": {"key": former.key, "ended": former.ended}}
        fields["comparison"] = was | compare_ranks(before, ranks, section.top)
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


def _load_former(step: PipelineStep, former: StepRecord | None) -> Solution | None:
    """Load the ranks to be replaced; None if they are missing, changed or not in a readable format."""
    if former is None or former.kind != step.kind or (ranks := find_ranks(step.target, former)) is None:
        return None
    with fetch(ranks) as local:
        return load_solution(local)


# --- comparison ------------------------------------------------------------------------------------------------------


def compare_ranks(before: Solution, now: Solution, k: int) -> dict[str, Any]:
    """Compare ranks `before` and `now`; the result is JSON values.

    Parameters
    ----------
    k : number of highest vertices to compare

    Returns
    -------
    `n_common`, `n_new`, `n_gone` : vertices of both, of `now` only, of `before` only
    `spearman` : rank correlation over the vertices of both, ties at their mean place; None if it is not defined
    `overlap` : share of the k highest that are the same
    `kendall_top` : Kendall's tau-b of the vertices that are in both graphs and among the k highest of either
    `l1` : sum of |now - before| over all vertices, with 0 for missing ones; None if they are scaled differently
    `moved` : [id, place before, place now, rank before, rank now] of the vertices of `kendall_top`, the furthest first.
        A place is 1 plus the number of higher ranks
    """
    from scipy.stats import kendalltau, spearmanr

    old, new = match_ids(before.ids, now.ids)
    was, is_now = before.values[old], now.values[new]
    high_before, high_now = before._select_highest(k), now._select_highest(k)
    was_high, is_high = np.isin(old, high_before), np.isin(new, high_now)
    either = was_high | is_high
    found: dict[str, Any] = to_json(
        {
            "n_common": len(old),
            "n_new": len(now.values) - len(new),
            "n_gone": len(before.values) - len(old),
            "spearman": _correlate(spearmanr, was, is_now),
            "overlap": int(np.count_nonzero(was_high & is_high)) / max(len(high_before), len(high_now), 1),
            "kendall_top": _correlate(kendalltau, was[either], is_now[either]),
            "l1": None if before.scaler != now.scaler else _measure_distance(before, now, old, new),
            "moved": _list_moved(now.ids, before, now, old[either], new[either]),
        }
    )
    return found


def match_ids(before: np.ndarray, now: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the common ids in either array, (n_common,) int64 each, in ascending order of the ids."""
    if (before.dtype == object) != (now.dtype == object):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    _, old, new = np.intersect1d(before, now, assume_unique=True, return_indices=True)
    return old, new


def _correlate(measure: Callable[..., Any], a: np.ndarray, b: np.ndarray) -> float | None:
    """Compute a statistic of SciPy; None if it is not defined, such as for fewer than two values."""
    if len(a) < 2:
        return None
    with warnings.catch_warnings(category=RuntimeWarning, action="ignore"):  # SciPy warns if all values are equal
        found = float(measure(a, b).statistic)
    return None if np.isnan(found) else found


def _measure_distance(before: Solution, now: Solution, old: np.ndarray, new: np.ndarray) -> float:
    common = now.values[new].astype(np.float64) - before.values[old]
    # A vertex of only one of the graphs has rank 0 in the other.
    alone = [np.delete(before.values, old), np.delete(now.values, new)]
    return sum(float(np.abs(own).sum(dtype=np.float64)) for own in (common, *alone))


def _list_moved(ids: np.ndarray, before: Solution, now: Solution, old: np.ndarray, new: np.ndarray) -> list[list[Any]]:
    from scipy.stats import rankdata

    place_before, place_now = (rankdata(-own.values, "min")[where] for own, where in ((before, old), (now, new)))
    # Stable, so that ties are listed in the order of ids.
    order = np.argsort(-np.abs(place_now - place_before), kind="stable")[:MOVED]
    order = order[place_now[order] != place_before[order]]
    columns = (ids[new], place_before, place_now, before.values[old], now.values[new])
    return [list(row) for row in zip(*(column[order].tolist() for column in columns), strict=True)]


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
