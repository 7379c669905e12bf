"""The step that makes a matrix: from a source or a generator, and by edges that change it.

A store is made version by version, each whole in itself. What is about to be made is written down before, with the
version that there is: if there is another one when the run is gone on with, it was made, and is not made again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mgspmv.api import generate, ingest, open_matrix, update
from mgspmv.errors import (
    SourceError,
    StoreDamagedError,
    StoreError,
    StoreExistsError,
    StoreNotFoundError,
    StoreUnfinishedError,
)
from mgspmv.files import is_url
from mgspmv.model import MatrixInfo, peak_memory
from mgspmv.pipeline.context import Work, describe_provenance
from mgspmv.pipeline.keys import MatrixIdentity, identify_matrix
from mgspmv.pipeline.outputs import measure_bytes
from mgspmv.pipeline.records import Records, now
from mgspmv.pipeline.steps import Step
from mgspmv.report.measure import measure_degrees
from mgspmv.report.record import Output, StepRecord
from mgspmv.store.read import open_store
from mgspmv.validation import to_json


@dataclass(frozen=True)
class Todo:
    """What is to be done for a matrix."""

    makes_base: bool
    """Whether it is made from its source, or generated."""
    updates: bool
    """Whether it is then changed."""
    before: tuple[str, ...]
    """What changed it before, the last at the end."""


def find_info(store: str) -> MatrixInfo | None:
    """What the store says of itself; None where there is none, or a damaged one.

    Raises
    ------
    StoreError : it cannot be read, or is something else
    """
    try:
        return open_store(store).info
    except (StoreNotFoundError, StoreUnfinishedError, StoreDamagedError):
        return None


def make_matrix(work: Work, step: Step, identity: MatrixIdentity) -> StepRecord:
    """Make the matrix, or what of it is not there, and write its record.

    Raises
    ------
    StoreExistsError : another matrix is in the store, or one that was changed since
    SourceError : a source was changed while it was read
    MgspmvError : what `ingest`, `generate` and `update` raise
    """
    began, seconds = now(), dict[str, float]()
    todo = find_todo(work, step, identity)
    if todo.makes_base:
        _note_begun(work, step, identity, "base", [])
        with _measure(seconds, "ingest"):
            _make_base(work, step)
    chain = [*todo.before]
    if todo.updates and identity.update is not None:
        chain.append(identity.update)
        _note_begun(work, step, identity, "update", chain)
        with _measure(seconds, "update"):
            _update(work, step)
    if todo.makes_base or todo.updates:
        _check_unchanged(work, step, identity)
    with open_matrix(step.target) as matrix, _measure(seconds, "measure"):
        info, degrees = matrix.info, measure_degrees(matrix)
    described = asdict(info)
    provenance = describe_provenance(step, identity, matrix=described.pop("provenance"))
    record = StepRecord(
        key=identity.key,
        kind="matrix",
        name=step.name,
        inputs=identity.inputs,
        outputs=[] if step.section.open and not step.section.update else [_describe_store(step.target, info)],
        options=to_json(identity.options),
        matrix=to_json(described),
        began=began,
        ended=now(),
        seconds=seconds,
        memory={"host_peak_bytes": [peak_memory()]},
        result={"base": identity.base, "updates": chain},
        degrees=degrees,
        provenance=to_json(provenance),
    )
    work.records.write_step(record)
    return record


def find_todo(work: Work, step: Step, identity: MatrixIdentity) -> Todo:
    """What is to be done, given what was.

    Raises
    ------
    StoreExistsError, StoreError : as of `make_matrix`
    """
    info, record, begun = find_info(step.target), work.records.read_step(step.name), work.records.read_begun(step.name)
    if begun is not None and begun["key"] == identity.key and info is not None:
        chain, is_changed = tuple(begun["updates"]), info.version != begun["before"]
        if begun["stage"] == "update":
            return Todo(False, not is_changed, chain if is_changed else chain[:-1])
        if is_changed:
            return Todo(False, identity.update is not None, chain)
    same_base = record is not None and record.result["base"] == identity.base
    chain = tuple(record.result["updates"]) if record is not None and same_base else ()
    if step.section.open is not None:
        return Todo(False, identity.update is not None and chain[-1:] != (identity.update,), chain)
    if same_base and _is_as_left(info, record) and identity.update is not None:
        return Todo(False, chain[-1:] != (identity.update,), chain)
    check_replacing(step, info, work.records)
    if not step.section.overwrite:
        _check_gone(step, identity, chain)
    return Todo(True, identity.update is not None, ())


def _is_as_left(info: MatrixInfo | None, record: StepRecord | None) -> bool:
    return record is not None and info is not None and bool(info.digest == record.matrix["digest"])


def check_replacing(step: Step, info: MatrixInfo | None, records: Records) -> None:
    """Look whether a matrix may be made in the place of what is there.

    Parameters
    ----------
    info : of what is there; None where there is nothing, or something damaged

    Raises
    ------
    StoreExistsError : as of `make_matrix`
    """
    if step.section.overwrite or info is None:
        return
    is_begun = records.read_begun(step.name) is not None
    if not (is_begun or _is_as_left(info, records.read_step(step.name))):
        raise StoreExistsError(
            f"{step.target} holds a matrix that this pipeline did not make, or that was changed since; set overwrite "
            f'= true in [matrix.{step.name}] to have it replaced, use it as it is by open = "{step.target}", or name '
            "another store"
        )


def _check_gone(step: Step, identity: MatrixIdentity, chain: tuple[str, ...]) -> None:
    lost = [update for update in chain if update != identity.update]
    if lost and identity.update is not None:
        raise StoreError(
            f"{step.target} was changed by {len(lost)} updates that are not there any more, for it is gone or damaged; "
            f"restore it, or set overwrite = true in [matrix.{step.name}] to begin from its source again"
        )


def _note_begun(work: Work, step: Step, identity: MatrixIdentity, stage: str, updates: list[str]) -> None:
    """Write down what is about to be made of which version."""
    info = find_info(step.target)
    begun = {"key": identity.key, "stage": stage, "before": info and info.version, "updates": updates}
    work.records.write_begun(step.name, begun)


@contextmanager
def _measure(seconds: dict[str, float], phase: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    seconds[phase] = time.perf_counter() - began


# --- making ----------------------------------------------------------------------------------------------------------


def _make_base(work: Work, step: Step) -> None:
    section, computing = step.section, work.computing
    options: dict[str, Any] = {**section.options, "overwrite": True, "on_progress": work.listen(step).on_progress}
    if computing.makes_matrices:
        own = computing.section
        options |= {"client": computing.client, "timeout": own.timeout, "threads": own.threads}
    else:
        options |= _limit(work, section)
    if section.generate is not None:
        generate(section.generate, step.target, **options, **section.parameters)
    else:
        ingest(section.path, step.target, **options | {"scratch": section.scratch})


def _limit(work: Work, section: Any) -> dict[str, Any]:
    """What this process may take, as arguments of `ingest`."""
    memory = work.definition.pipeline.limits.memory
    return {"memory": memory, "scratch": section.scratch, "threads": work.computing.threads}


def _update(work: Work, step: Step) -> None:
    section = step.section.update
    options: dict[str, Any] = section.options | section.given("insert", "delete", "keep") | _limit(work, step.section)
    update(step.target, **options, on_progress=work.listen(step).on_progress)


def _check_unchanged(work: Work, step: Step, identity: MatrixIdentity) -> None:
    again = identify_matrix(step.section, work.checksums, None if step.section.update else find_info(step.target))
    wanted = {name: found for name, found in identity.inputs.items() if name != "store"}
    changed = [name for name, found in wanted.items() if again.inputs[name] != found]
    if changed:
        raise SourceError(f"{' and '.join(changed)} was changed while {step.name} was made of it; run again")


def _describe_store(store: str, info: MatrixInfo) -> Output:
    n_bytes = info.nbytes if is_url(store) else measure_bytes(Path(store))
    return Output(store, n_bytes, info.digest, info.version)
