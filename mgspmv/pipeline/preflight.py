"""The check before a run: which steps are kept, to be made or bound to fail, why, and what that takes."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from os import PathLike
from typing import Any, Literal

from mgspmv.display.cards import render_card
from mgspmv.errors import CapacityError, MgspmvError, hide_secrets
from mgspmv.files import is_url
from mgspmv.iterate.options import DEFAULT_TOL
from mgspmv.model import MatrixInfo, Precision
from mgspmv.partition import parse_bytes
from mgspmv.pipeline.context import Computing, OpenedMatrix
from mgspmv.pipeline.definition import LimitsSection, Pipeline
from mgspmv.pipeline.keys import Identity, identify_matrix, identify_result, list_files, list_sources
from mgspmv.pipeline.make_matrix import check_replacing, find_info
from mgspmv.pipeline.outputs import find_damage
from mgspmv.pipeline.reading import Definition, read_pipeline
from mgspmv.pipeline.records import Records
from mgspmv.pipeline.sources import Checksums, check_all_there
from mgspmv.pipeline.steps import Step, list_steps
from mgspmv.report.record import State, StepKind, StepOutcome, StepRecord
from mgspmv.saving import to_json
from mgspmv.store.read import open_store

RESULT_BYTES = 64
"""Of a vertex, beside what computing takes: ranks and ids, sorted for tables and comparisons."""


PlannedState = Literal["kept", "to make", "unknown", "failing"]
"""Kept as it is; to be made; not known before the matrix is there; cannot be made as things are."""


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
    inputs: dict[str, str]
    """Digests, by what the step calls them, as far as they are known."""
    outputs: list[str]
    """Paths."""
    predicted_bytes: int | None = None
    """Of this process."""
    predicted_s: float | None = None
    """Seconds of iterating, where they can be told."""


@dataclass(frozen=True)
class PipelinePlan:
    """What a run would do."""

    name: str
    """Of the pipeline."""
    folder: str
    """Where its records are, and all else that is placed nowhere else."""
    steps: list[PlannedStep] = field(default_factory=list)

    @property
    def is_finished(self) -> bool:
        """Whether nothing is to be made."""
        return all(step.state == "kept" for step in self.steps)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        described: dict[str, Any] = to_json(asdict(self) | {"is_finished": self.is_finished})
        return described

    def __repr__(self) -> str:
        return f"<PipelinePlan: {self.name}, {self._count_states()}>"

    def _repr_html_(self) -> str:
        return render_card(self)

    def _count_states(self) -> str:
        counts = Counter(step.state for step in self.steps)
        return f"{len(self.steps)} steps: " + (", ".join(f"{n} {state}" for state, n in counts.items()) or "none")


def plan_pipeline(
    path: str | PathLike[str] | Definition, *, overrides: Mapping[str, Any] | None = None
) -> PipelinePlan:
    """What a run of a definition would do; nothing is written.

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
    preflight = Preflight(definition.pipeline, records, Checksums(records.private / "sources.json"), times=True)
    checked = [checked for lane in preflight.check_all(str(definition.folder)) for checked in lane]
    steps = [_plan(own, definition.pipeline) for own in checked]
    return PipelinePlan(definition.name, str(definition.folder), steps)


def _plan(checked: Checked, pipeline: Pipeline) -> PlannedStep:
    step, inputs = checked.step, {} if checked.identity is None else checked.identity.inputs
    predicted = checked.predicted_bytes, checked.predicted_s
    outputs = _list_outputs(step, pipeline)
    return PlannedStep(step.name, step.kind, checked.state, checked.why, step.target, inputs, outputs, *predicted)


def _list_outputs(step: Step, pipeline: Pipeline) -> list[str]:
    if step.kind == "matrix":
        return [step.target]
    if step.kind == "product":
        return [f"{step.target}/y.{step.section.format}"]
    names = [*(f"ranks.{format}" for format in pipeline.output.formats), "top.csv", "top.json"]
    return [f"{step.target}/{name}" for name in names]


# --- the check -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checked:
    """A step that was checked."""

    step: Step
    state: PlannedState
    why: str = ""
    """As of `PlannedStep`."""
    identity: Identity | None = None
    """None where it is not known yet."""
    record: StepRecord | None = None
    """How it ended before; None where it did not."""
    error: MgspmvError | None = None
    """Why it cannot be made; None also where that is for the sake of its matrix."""
    predicted_bytes: int | None = None
    predicted_s: float | None = None

    def describe(self, state: State, elapsed_s: float = 0.0, error: str | None = None) -> StepOutcome:
        """What becomes of the step in a run that does nothing for it."""
        record = self.record if state == "kept" else None
        return StepOutcome(self.step.name, self.step.kind, state, elapsed_s, record, error)


@dataclass(frozen=True)
class Preflight:
    """Checks steps before they are begun.

    Parameters
    ----------
    times : whether seconds are predicted, for which a device is measured with some of the rows
    """

    pipeline: Pipeline
    records: Records
    checksums: Checksums
    times: bool = False

    def check_all(self, folder: str) -> list[list[Checked]]:
        """Check all steps, by matrix; no cluster is started, and no source read of what was never made.

        Parameters
        ----------
        folder : of the pipeline
        """
        return [self._check_lane(lane) for lane in list_steps(self.pipeline, folder).values()]

    def _check_lane(self, lane: list[Step]) -> list[Checked]:
        first, *rest = lane
        matrix = self.check_matrix(first, reads_sources=False)
        if matrix.state == "failing":
            return [matrix, *(Checked(step, "failing", f"needs {first.name}, which cannot be made") for step in rest)]
        if matrix.state == "to make":
            return [matrix, *map(self._check_waiting, rest)]
        opened = OpenedMatrix(first.target, Computing(self.pipeline.cluster, threads=self.pipeline.limits.threads))
        try:
            predicts = self.times or self.pipeline.limits.memory is not None
            return [matrix, *(self.check_result(step, opened, predicts=predicts) for step in rest)]
        finally:
            opened.unload()

    def check_matrix(self, step: Step, *, reads_sources: bool) -> Checked:
        """Check whether a matrix is as it is asked for.

        Parameters
        ----------
        reads_sources : whether it is identified although it was never made
        """
        try:
            check_all_there(list_sources(step.section))
            record, opens = self.records.read_step(step.name), step.section.open is not None
            info = open_store(step.target).info if opens else find_info(step.target)
            if record is None and not reads_sources:
                identity, why = None, "not made yet"
            else:
                identity = identify_matrix(step.section, self.checksums, info if opens else None)
                why = _explain_matrix(step, record, identity, info)
            if not why:
                return Checked(step, "kept", "", identity, record)
            if not (opens or is_url(step.target)):
                check_replacing(step, info, self.records)
        except MgspmvError as error:
            return Checked(step, "failing", str(error), error=error)
        seconds = None if record is None else sum(record.seconds.values())
        return Checked(step, "to make", why, identity, record, predicted_s=seconds)

    def _check_waiting(self, step: Step) -> Checked:
        """Check a step whose matrix is made first."""
        try:
            check_all_there([*list_files(step, self.pipeline).values()])
        except MgspmvError as error:
            return Checked(step, "failing", str(error), error=error)
        record = self.records.read_step(step.name)
        state: PlannedState = "to make" if record is None else "unknown"
        return Checked(step, state, f"needs {step.matrix}, which is made first", None, record)

    def check_result(self, step: Step, opened: OpenedMatrix, *, predicts: bool = True) -> Checked:
        """Check whether results are there as they are asked for, and whether there is memory for them.

        Parameters
        ----------
        predicts : whether what they take is predicted, for which row pointers are read
        """
        try:
            identity = identify_result(step, self.pipeline, opened.matrix.info, self.checksums)
            record = self.records.read_step(step.name)
            if not (why := _explain(record, identity) or find_damage(step.target, record)):
                return Checked(step, "kept", "", identity, record)
            predicted: tuple[int | None, float | None] = (None, None)
            if predicts:
                predicted = predict_result(step, opened, record, times=self.times)
                check_memory(predicted[0], self.pipeline.limits)
        except MgspmvError as error:
            return Checked(step, "failing", str(error), error=error)
        return Checked(step, "to make", why, identity, record, None, *predicted)


def _explain_matrix(step: Step, record: StepRecord | None, identity: Identity, info: MatrixInfo | None) -> str:
    if (why := _explain(record, identity)) or record is None:
        return why
    if info is None:
        return f"{step.target} is gone or damaged"
    return "" if info.digest == record.matrix["digest"] else f"{step.target} was changed since"


def _explain(record: StepRecord | None, identity: Identity) -> str:
    """What is asked for otherwise than it was made; empty where nothing is."""
    if record is None:
        return "not made yet"
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


# --- memory and time -------------------------------------------------------------------------------------------------


def check_memory(n_bytes: int, limits: LimitsSection) -> None:
    """Raise CapacityError where a step takes more than the definition allows."""
    if limits.memory is not None and n_bytes > (limit := parse_bytes(limits.memory)):
        raise CapacityError(
            f"needs {n_bytes:,} bytes and memory in [limits] is {limit:,}; allow more, or compute on a cluster"
        )


def predict_result(
    step: Step, opened: OpenedMatrix, before: StepRecord | None, *, times: bool
) -> tuple[int, float | None]:
    """Bytes that a step takes of this process, and seconds of iterating where they can be told.

    Parameters
    ----------
    before : how it ended before; None where it did not
    times : as for `Preflight`

    Raises
    ------
    CapacityError : it does not fit on the workers that are asked for
    """
    matrix, computing = opened.turn(is_turned(step)), opened.computing
    n_bytes = RESULT_BYTES * max(matrix.shape)
    if computing.is_on_cluster:
        return n_bytes, None
    is_on_device = computing.is_on_device(step.section)
    if is_on_device and not times:
        return n_bytes, None
    precision: Precision = "exact" if step.kind == "product" else step.section.precision
    options: dict[str, Any] = {"threads": computing.threads, "backend": "cuda" if is_on_device else "cpu"}
    plan = matrix.plan(precision=precision, stop=getattr(step.section, "stop", "change"), **options)
    n_bytes += 0 if is_on_device else plan.memory_bytes
    if plan.seconds_per_iteration is None or step.kind == "batch":
        return n_bytes, None
    iterations = 1 if step.kind == "product" else predict_iterations(step.section, before)
    return n_bytes, plan.seconds_per_iteration * iterations


def predict_iterations(section: Any, before: StepRecord | None) -> int:
    """Iterations that a run makes: as many as before with the same alpha; else until alpha^k is less than tol, with
    which changes shrink at least, or max_iter."""
    if before is not None and before.options.get("alpha") == section.alpha and "iterations" in before.result:
        return int(before.result["iterations"])
    if section.tol_mode == "fixed" or not 0 < section.alpha < 1:
        return int(section.max_iter) if section.tol_mode == "fixed" else 1
    tol = min(section.tol or DEFAULT_TOL, 0.5)
    return int(min(section.max_iter, max(1, math.ceil(math.log(tol) / math.log(section.alpha)))))


def is_turned(step: Step) -> bool:
    """Whether a step is of the transpose of its matrix."""
    return bool(step.section.transpose if step.kind == "product" else step.section.reverse)
