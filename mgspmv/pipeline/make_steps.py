"""Steps of a run: matrices, made from a source or a generator and updated, and ranks, batches and products of them.

A store is made version by version, each complete in itself. Before a version is made, the step is recorded with the
current version: if the store has another version when the run is resumed, it was made, and is not made twice.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import numpy as np
import zarr

from mgspmv.api.arguments import align_ranks
from mgspmv.api.arguments import read_vector as read_given
from mgspmv.api.batch_ranking import pagerank_batch
from mgspmv.api.matrix import Matrix, open_matrix
from mgspmv.api.powers import spmv
from mgspmv.api.ranking import Checkpoint, pagerank
from mgspmv.api.stores import generate, ingest, update
from mgspmv.environment import peak_memory
from mgspmv.errors import (
    CheckpointError,
    ConvergenceError,
    OptionError,
    SourceError,
    StoreDamagedError,
    StoreError,
    StoreExistsError,
    StoreNotFoundError,
    StoreUnfinishedError,
    hide_secrets,
    source_error,
)
from mgspmv.files import is_url
from mgspmv.ingest.vertex_vectors import DANGLING_RULES, read_seeds, read_vector
from mgspmv.model import MatrixInfo, ignore
from mgspmv.monitor.progress import watched
from mgspmv.pipeline.definition import PREVIOUS, BatchSection, ClusterSection, MatrixSection
from mgspmv.pipeline.reading import Definition
from mgspmv.pipeline.records import (
    PRIVATE,
    Records,
    find_ranks,
    look_at,
    make_record,
    now,
    publish_record,
    write_array,
    write_ranks,
    write_text,
    write_top,
)
from mgspmv.pipeline.steps import Identity, PipelineStep, fetch, find_file, identify_matrix, identify_result
from mgspmv.report.record import Output, StepRecord, compare_ranks, describe_iterations, describe_solution
from mgspmv.results import Solution, describe_matrix, load_solution
from mgspmv.solvers.options import Reads
from mgspmv.store.access import check_links, locate_store
from mgspmv.store.read import open_store
from mgspmv.validation import to_json

_OPTIONS = ("alpha", "tol", "norm", "max_iter", "weight", "precision")
Stage = Literal["ingest", "update"]
"""Stages of a matrix: `ingest` reads or generates it; `update` then changes it."""


class RunContext(ExitStack):
    """State shared by the steps of a run; a cluster that it starts is closed with the context.

    Parameters
    ----------
    client : client of a cluster to use in place of the definition's
    on_note : called with messages about the cluster when it is started or connected to
    """

    def __init__(
        self, definition: Definition, records: Records, client: Any, on_note: Callable[[str], None] | None
    ) -> None:
        super().__init__()
        self.definition, self.pipeline, self.records = definition, definition.pipeline, records
        self.is_on_cluster = self.pipeline.cluster is not None or client is not None
        self.cluster = self.pipeline.cluster or ClusterSection()
        self._given, self._on_note = client, on_note or ignore

    @cached_property
    def client(self) -> Any:
        """Client of the cluster, which is started or connected to on first access.

        Raises
        ------
        ClusterError : the cluster cannot be started, or does not answer
        """
        if self._given is not None:
            return self._given
        from mgspmv.cluster.managers import connect
        from mgspmv.monitor.events import find_dashboard

        kind = self.cluster.kind if self.cluster.address is None else None
        given = self.cluster.given("timeout", "workers", "threads", "options", "tls")
        client = self.enter_context(connect(kind, self.cluster.address, **given, on_note=self._on_note))
        if (dashboard := find_dashboard(client)) is not None:
            self._on_note(f"dashboard: {dashboard}")
        return client

    def distribute(self, matrix: Matrix, *, build_layout: bool) -> Any:
        """Load a matrix on the workers, as the definition says."""
        started = {} if self._given is not None else {"local": "cpu", "cuda": "cuda"}
        backend: Any = started.get(self.cluster.kind, "auto")
        names = ("transport", "timeout", "threads", "executor", "device_memory", "host_memory")
        placed = matrix.on(self.client, backend=backend, **self.cluster.given(*names))
        return watched(placed.distribute_as_placed)(Reads(build_layout=build_layout))


# --- matrices --------------------------------------------------------------------------------------------------------


def find_info(store: str) -> MatrixInfo | None:
    """Return the information of a store; None if it is missing or damaged."""
    try:
        return open_store(store).info
    except (StoreNotFoundError, StoreUnfinishedError, StoreDamagedError):
        return None


def make_matrix(work: RunContext, step: PipelineStep) -> StepRecord:
    """Make the matrix, or the rest of it if a run was killed, and write its record.

    Raises
    ------
    StoreExistsError : the store holds another matrix, or one that was changed since
    SourceError : a source was changed while it was read
    MgspmvError : errors of `ingest`, `generate` and `update`
    """
    began, seconds = now(), dict[str, float]()
    identity = identify_matrix(step, work.records.checksums)
    work.records.checksums.save()
    todo, chain = find_todo(work, step, identity)
    for stage in todo:
        chain += [identity.update] if stage == "update" and identity.update is not None else []
        before = find_info(step.target)
        # The version that the stage starts from, and the updates in the version that it makes.
        begun = {"key": identity.key, "before": before and before.version, "updates": chain}
        work.records.write_begun(step.name, begun)
        clock = time.perf_counter()
        (_ingest if stage == "ingest" else _update)(work, step)
        seconds[stage] = time.perf_counter() - clock
    if todo:  # sources were read again after their checksums were computed
        _check_unchanged(work, step, identity)
    with open_matrix(step.target) as matrix:
        info = matrix.info
    described = asdict(info)
    n_bytes = info.nbytes if is_url(step.target) else look_at(step.target)[1]
    stored = Output(step.target, n_bytes, info.digest, info.version)
    record = make_record(
        step,
        identity,
        began,
        described.pop("provenance"),
        outputs=[] if step.section.open and not step.section.update else [stored],
        matrix=to_json(described),
        seconds=seconds,
        memory={"host_peak_bytes": [peak_memory()]},
        result={"base": identity.base, "updates": chain},
    )
    work.records.write_step(work.records.make_portable(record))
    return record


def find_todo(work: RunContext, step: PipelineStep, identity: Identity) -> tuple[list[Stage], list[str]]:
    """Return the stages to be made, and the updates that were made before, the last at the end."""
    info, record, begun = find_info(step.target), work.records.read_step(step.name), work.records.read_begun(step.name)
    update: list[Stage] = [] if identity.update is None else ["update"]
    if begun is not None and begun["key"] == identity.key and info is not None:
        is_made, chain = info.version != begun["before"], list(begun["updates"])
        if is_made or chain:
            made = chain if is_made else chain[:-1]
            return (update if made[-1:] != [identity.update] else []), made
    same_base = record is not None and record.result["base"] == identity.base
    chain = list(record.result["updates"]) if record is not None and same_base else []
    if step.section.open is not None or (same_base and update and _is_as_left(info, record)):
        return (update if chain[-1:] != [identity.update] else []), chain
    check_replacing(step, info, work.records)
    lost = [own for own in chain if own != identity.update]
    if lost and update and not step.section.overwrite:
        raise StoreError(
            f"{step.target} is missing or damaged, and had {len(lost)} updates that its source does not contain; "
            f"restore it, or set overwrite = true in [matrix.{step.name}] to make it again from its source"
        )
    return ["ingest", *update], []


def _is_as_left(info: MatrixInfo | None, record: StepRecord | None) -> bool:
    return record is not None and info is not None and bool(info.digest == record.matrix["digest"])


def check_replacing(step: PipelineStep, info: MatrixInfo | None, records: Records) -> None:
    """Check that a matrix may replace the existing one.

    Parameters
    ----------
    info : information on the existing one; None if it is missing or damaged
    """
    if step.section.overwrite or info is None:
        return
    is_begun = records.read_begun(step.name) is not None
    if not (is_begun or _is_as_left(info, records.read_step(step.name))):
        raise StoreExistsError(
            f"{step.target} holds a matrix that this pipeline did not make, or that was changed since; set overwrite "
            f"= true in [matrix.{step.name}] to replace it, open it to use it, or set another store"
        )


def _ingest(work: RunContext, step: PipelineStep) -> None:
    section, own = step.section, work.cluster
    options: dict[str, Any] = {**section.options, "overwrite": True}
    if work.is_on_cluster and own.ingest:
        options |= {"client": work.client, "timeout": own.timeout, "threads": own.threads}
    else:
        options |= _limit(work, section)
    if section.generate is not None:
        generate(section.generate, step.target, **options, **section.parameters)
    else:
        ingest(section.source, step.target, **options | {"scratch": section.scratch})


def _limit(work: RunContext, section: MatrixSection) -> dict[str, Any]:
    """Return the resource limits of this process, as arguments of `ingest`."""
    limits = work.pipeline.limits
    return {"memory": limits.memory, "scratch": section.scratch, "threads": limits.threads}


def _update(work: RunContext, step: PipelineStep) -> None:
    section = step.section.update
    options: dict[str, Any] = section.options | section.given("insert", "delete", "keep") | _limit(work, step.section)
    update(step.target, **options)


def _check_unchanged(work: RunContext, step: PipelineStep, identity: Identity) -> None:
    again = identify_matrix(step, work.records.checksums).inputs
    changed = [name for name, found in identity.inputs.items() if name != "store" and again[name] != found]
    if changed:
        raise SourceError(f"{' and '.join(changed)} changed while {step.name} was made from it; run the pipeline again")


# --- results ---------------------------------------------------------------------------------------------------------


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
