"""The check before a step, and the plan of a run, which is that check of all steps: what is kept, what is made and why.

matrix:   inputs and options as recorded, and the store is the one that was made     -> kept
results:  inputs and options as recorded, and all files are as they were written     -> kept
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from os import PathLike
from typing import Any, Literal

from mgspmv.display.cards import render_card
from mgspmv.errors import MgspmvError, hide_secrets
from mgspmv.model import MatrixInfo
from mgspmv.pipeline.definition import Pipeline
from mgspmv.pipeline.keys import Identity, identify_matrix, identify_result, list_files, list_sources
from mgspmv.pipeline.make_matrix import check_replacing, find_info
from mgspmv.pipeline.outputs import find_damage
from mgspmv.pipeline.reading import Definition, read_pipeline
from mgspmv.pipeline.records import Records
from mgspmv.pipeline.sources import Checksums, check_present
from mgspmv.pipeline.steps import Step, list_steps
from mgspmv.report.record import StepKind, StepRecord
from mgspmv.store.read import open_store
from mgspmv.validation import to_json

NOT_MADE = "not made yet"
"""Why a step is to be made that has no record."""
PlannedState = Literal["kept", "to make", "unknown", "failing"]
"""Kept as it is; to be made; not known before the matrix is made; cannot be made as things are."""


@dataclass(frozen=True)
class PlannedStep:
    """A step, and what would become of it."""

    name: str
    kind: StepKind
    state: PlannedState
    why: str
    """Why it is to be made, or cannot be, in words; empty of what is kept."""
    target: str
    """The store, or the folder of results."""


@dataclass(frozen=True)
class PipelinePlan:
    """What a run would do."""

    name: str
    """Of the pipeline."""
    folder: str
    """Where its records are, and all else that is placed nowhere else."""
    steps: list[PlannedStep]

    @property
    def is_finished(self) -> bool:
        """Whether nothing is to be made."""
        return all(step.state == "kept" for step in self.steps)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self) | {"is_finished": self.is_finished}

    def __repr__(self) -> str:
        counts = Counter(step.state for step in self.steps)
        said = ", ".join(f"{n} {state}" for state, n in counts.items())
        return f"<PipelinePlan: {self.name}, {len(self.steps)} steps: {said}>"

    def _repr_html_(self) -> str:
        return render_card(self)


def plan_pipeline(
    path: str | PathLike[str] | Definition, *, overrides: Mapping[str, Any] | None = None
) -> PipelinePlan:
    """What a run of a definition would do; nothing is written, and no source read of what was never made.

    Parameters
    ----------
    path : the TOML file, or what `read_pipeline` made of it
    overrides : values in place of the file's, by the names of tables and key, as `run.alpha`

    Raises
    ------
    PipelineError : the definition is wrong
    """
    definition = path if isinstance(path, Definition) else read_pipeline(path, overrides)
    records = Records(definition.folder)
    steps = plan_steps(definition, records, Checksums(records.private / "sources.json"))
    return PipelinePlan(definition.name, str(definition.folder), steps)


def plan_steps(definition: Definition, records: Records, checksums: Checksums) -> list[PlannedStep]:
    """What would become of each step; see `plan_pipeline`."""
    pipeline, planned = definition.pipeline, list[PlannedStep]()

    def plan(step: Step, explain: Callable[[], str], state: PlannedState = "to make") -> PlannedStep:
        try:
            why = explain()
        except MgspmvError as error:
            why, state = str(error), "failing"
        planned.append(PlannedStep(step.name, step.kind, state if why else "kept", why, step.target))
        return planned[-1]

    def explain_later(step: Step, matrix: Step) -> str:
        check_present(list_files(step).values())
        return f"needs {matrix.name}, which is made first"

    for first, *rest in list_steps(pipeline, str(definition.folder)).values():
        matrix = plan(first, partial(explain_matrix, first, records, checksums))
        info = open_store(first.target).info if matrix.state == "kept" else None
        for step in rest:
            if matrix.state == "failing":
                plan(step, partial(str, f"needs {first.name}, which cannot be made"), "failing")
            elif info is not None:
                plan(step, partial(explain_result, step, pipeline, info, records, checksums))
            else:
                is_new = records.read_step(step.name) is None
                plan(step, partial(explain_later, step, first), "to make" if is_new else "unknown")
    return planned


# --- the check of a step ---------------------------------------------------------------------------------------------


def explain_matrix(step: Step, records: Records, checksums: Checksums) -> str:
    """Why a matrix is to be made, in words; empty where it exists as it is asked for.

    Raises
    ------
    MgspmvError : it is not, and cannot be made: a source is missing, or another matrix is in its place
    """
    section, record = step.section, records.read_step(step.name)
    check_present(list_sources(section))
    opens = section.open is not None
    info = open_store(step.target).info if opens else find_info(step.target)
    why = NOT_MADE
    if record is not None:
        why = _compare(record, identify_matrix(section, checksums, info if opens else None))
        if not why and info is None:
            why = f"{step.target} is gone or damaged"
        elif not why and info is not None and info.digest != record.matrix["digest"]:
            why = f"{step.target} was changed since"
    if why and not opens:
        check_replacing(step, info, records)
    return why


def explain_result(step: Step, pipeline: Pipeline, info: MatrixInfo, records: Records, checksums: Checksums) -> str:
    """Why results are to be made, in words; empty where they exist as they are asked for.

    Parameters
    ----------
    info : of the matrix that they are of

    Raises
    ------
    MgspmvError : they are not, and cannot be made, as a file is missing
    """
    record, identity = records.read_step(step.name), identify_result(step, pipeline, info, checksums)
    return NOT_MADE if record is None else _compare(record, identity) or find_damage(step.target, record)


def _compare(record: StepRecord, identity: Identity) -> str:
    """What is asked for otherwise than it was made; empty where nothing is."""
    if record.key == identity.key:
        return ""
    changes = [f"{name} changed" for name in identity.inputs if record.inputs.get(name) != identity.inputs[name]]
    changes += [f"{name} is no longer given" for name in record.inputs if name not in identity.inputs]
    asked = json.loads(hide_secrets(json.dumps(to_json(identity.options))))  # as the record has them
    changes += [
        f"{name} was {record.options.get(name)!r} and is to be {value!r}"
        for name, value in asked.items()
        if record.options.get(name) != value
    ]
    return "; ".join(changes) or "another version of the program, or an option that is no longer given, made it"
