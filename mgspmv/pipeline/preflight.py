"""Reason to make a step again, and the plan of a run: the steps to keep, the steps to make, and the reasons.

matrix:   inputs and options as recorded, and the store is the one that was made     -> kept
results:  inputs and options as recorded, and all files are unchanged                -> kept
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any, Literal

from mgspmv.display.cards import render_card
from mgspmv.errors import MgspmvError, hide_secrets
from mgspmv.model import MatrixInfo
from mgspmv.pipeline.definition import Pipeline
from mgspmv.pipeline.make_matrix import check_replacing, find_info
from mgspmv.pipeline.outputs import find_damage
from mgspmv.pipeline.reading import Definition, read_pipeline
from mgspmv.pipeline.records import Records
from mgspmv.pipeline.sources import check_present
from mgspmv.pipeline.steps import Identity, PipelineStep, identify_matrix, identify_result, list_files, list_sources
from mgspmv.report.record import StepKind, StepRecord
from mgspmv.store.read import open_store
from mgspmv.validation import to_json

NOT_MADE = "not made yet"
"""Reason to make a step without a record."""
PlannedState = Literal["kept", "to make", "unknown", "failing"]
"""State of a step: unchanged; to be made; unknown until the matrix is made; or failing with the current inputs."""


@dataclass(frozen=True)
class PlannedStep:
    """Step with its planned state."""

    name: str
    kind: StepKind
    state: PlannedState
    why: str
    """Reason why it must be made, or cannot be; empty for `kept`."""
    target: str
    """Path or URL of the store, or of the folder of results."""


@dataclass(frozen=True)
class PipelinePlan:
    """Plan of a run."""

    name: str
    """Name of the pipeline."""
    folder: str
    """Folder of the records, and default folder of all outputs."""
    steps: list[PlannedStep]

    @property
    def is_finished(self) -> bool:
        """True if there is nothing to make."""
        return all(step.state == "kept" for step in self.steps)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return asdict(self) | {"is_finished": self.is_finished}

    def __repr__(self) -> str:
        counts = Counter(step.state for step in self.steps)
        said = ", ".join(f"{n} {state}" for state, n in counts.items())
        return f"<PipelinePlan: {self.name}, {len(self.steps)} steps: {said}>"

    def _repr_html_(self) -> str:
        return render_card(self)


def plan_pipeline(path: str | PathLike[str], *, overrides: Mapping[str, Any] | None = None) -> PipelinePlan:
    """Plan a run of a definition; nothing is written, and sources of steps without a record are not read.

    Parameters
    ----------
    path : the TOML file; paths in it are relative to it
    overrides : values that replace the values of the file, by dotted key, such as `run.alpha`

    Raises
    ------
    PipelineError : the definition is wrong
    """
    definition = read_pipeline(path, overrides)
    steps = plan_steps(definition, Records(definition.folder, definition.base))
    return PipelinePlan(definition.name, str(definition.folder), steps)


def plan_steps(definition: Definition, records: Records) -> list[PlannedStep]:
    """Plan each step; see `plan_pipeline`."""
    planned = list[PlannedStep]()
    for first, *rest in definition.list_steps().values():
        matrix = _plan_step(first, None, None, definition, records)
        info = open_store(first.target).info if matrix.state == "kept" else None
        planned += [matrix, *(_plan_step(step, matrix, info, definition, records) for step in rest)]
    return planned


def _plan_step(
    step: PipelineStep, matrix: PlannedStep | None, info: MatrixInfo | None, definition: Definition, records: Records
) -> PlannedStep:
    """Plan one step.

    Parameters
    ----------
    matrix : the step that makes the matrix of results
    info : information on that matrix, if it is kept
    """
    state: PlannedState = "to make"
    try:
        if matrix is None or info is not None:
            why = describe_reason(step, info, definition.pipeline, records)
        elif matrix.state == "failing":
            state, why = "failing", f"needs {matrix.name}, which cannot be made"
        else:
            check_present(list_files(step).values())
            why = f"needs {matrix.name}, which is made first"
            state = "to make" if records.read_step(step.name) is None else "unknown"
    except MgspmvError as error:
        state, why = "failing", str(error)
    return PlannedStep(step.name, step.kind, state if why else "kept", why, step.target)


def describe_reason(step: PipelineStep, info: MatrixInfo | None, pipeline: Pipeline, records: Records) -> str:
    """Return the reason to make a step; an empty string if its results exist as requested.

    Parameters
    ----------
    info : information on the matrix of results; None for the step that makes it

    Raises
    ------
    MgspmvError : the step cannot be made: a source is missing, or its store holds another matrix
    """
    record = records.read_step(step.name)
    if info is None:
        return _describe_matrix_reason(step, record, records)
    identity = identify_result(step, pipeline, info, records.checksums)
    return NOT_MADE if record is None else _compare(record, identity) or find_damage(step.target, record)


def _describe_matrix_reason(step: PipelineStep, record: StepRecord | None, records: Records) -> str:
    section, why = step.section, NOT_MADE
    check_present(list_sources(section).values())
    info = find_info(step.target) if section.open is None else open_store(step.target).info
    if record is not None:
        why = _compare(record, identify_matrix(step, records.checksums))
        if not why and info is None:
            why = f"{step.target} is missing or damaged"
        elif not why and info is not None and info.digest != record.matrix["digest"]:
            why = f"{step.target} was changed since it was made"
    if why and section.open is None:
        check_replacing(step, info, records)
    return why


def _compare(record: StepRecord, identity: Identity) -> str:
    """Describe how the requested inputs and options differ from those recorded; empty if they do not."""
    if record.key == identity.key:
        return ""
    changes = [f"{name} changed" for name in identity.inputs if record.inputs.get(name) != identity.inputs[name]]
    changes += [f"{name} is no longer given" for name in record.inputs if name not in identity.inputs]
    asked = json.loads(hide_secrets(json.dumps(to_json(identity.options))))  # the record has secrets hidden too
    changes += [
        f"{name} changed from {record.options.get(name)!r} to {value!r}"
        for name, value in asked.items()
        if record.options.get(name) != value
    ]
    return "; ".join(changes) or "made by another version of the program, or with an option that is no longer given"
