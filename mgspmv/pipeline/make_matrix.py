"""State shared by the steps of a run, and the step that makes a matrix from a source or a generator, and updates it.

A store is made version by version, each complete in itself. Before a version is made, the step is recorded with the
current version: if the store has another version when the run is resumed, it was made, and is not made twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from functools import cached_property
from typing import Any, Literal

from mgspmv.api.matrix import Matrix, open_matrix
from mgspmv.api.stores import generate, ingest, update
from mgspmv.control_groups import peak_memory
from mgspmv.errors import (
    SourceError,
    StoreDamagedError,
    StoreError,
    StoreExistsError,
    StoreNotFoundError,
    StoreUnfinishedError,
)
from mgspmv.files import is_url
from mgspmv.model import MatrixInfo, ignore
from mgspmv.monitor.progress import watched
from mgspmv.pipeline.definition import ClusterSection, MatrixSection
from mgspmv.pipeline.reading import Definition
from mgspmv.pipeline.records import Records, look_at, make_record, now
from mgspmv.pipeline.steps import Identity, PipelineStep, identify_matrix
from mgspmv.report.record import Output, StepRecord
from mgspmv.solvers.options import Reads
from mgspmv.store.read import open_store
from mgspmv.validation import to_json

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


# --- creating --------------------------------------------------------------------------------------------------------


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
