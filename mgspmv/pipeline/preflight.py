"""The check before a run: which steps are kept, to be made or bound to fail, why, and what that takes."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from os import PathLike
from typing import Any, Literal

from mgspmv.display.cards import Card, make_table, render_card
from mgspmv.display.numbers import format_bytes, format_seconds
from mgspmv.errors import CapacityError, MgspmvError, hide_secrets
from mgspmv.files import is_url
from mgspmv.iterate.options import DEFAULT_TOL
from mgspmv.model import MatrixInfo, Precision, free_memory
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
from mgspmv.results import to_json
from mgspmv.store.read import open_store

MEMORY_SHARE = 0.8
"""Of the memory that is free, what a step may take unless the definition says."""
RESULT_BYTES = 64
"""Of a vertex, beside what computing takes: ranks and ids, sorted for tables and comparisons."""


@dataclass(frozen=True)
class PlannedStep:
    """A step, and what would become of it."""

    name: str
    kind: StepKind
    state: Literal["kept", "to make", "unknown", "failing"]
    """Kept as it is; to be made; not known before the matrix is there; cannot be made as things are."""
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
    memory_bytes: int
    """What a step may take."""
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
        return (
            f"<PipelinePlan: {self.name}, {self._count_states()}, at most {format_bytes(self.memory_bytes)} at a time>"
        )

    def _repr_html_(self) -> str:
        rows = [
            (
                step.name,
                step.kind,
                step.state,
                "" if step.predicted_bytes is None else format_bytes(step.predicted_bytes),
                "" if step.predicted_s is None else format_seconds(step.predicted_s),
                hide_secrets(step.why or step.target),
            )
            for step in self.steps
        ]
        table = make_table(
            "Steps", ("step", "kind", "state", "memory", "predicted", "why, or where it is"), rows, len(rows)
        )
        memory = f"at most {format_bytes(self.memory_bytes)} at a time"
        facts = [("pipeline", self.name), ("folder", hide_secrets(self.folder)), ("memory", memory)]
        is_good = all(step.state != "failing" for step in self.steps)
        return render_card(Card("PipelinePlan", facts, self._count_states(), is_good, [table]))

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
    lanes = list_steps(definition.pipeline, str(definition.folder))
    steps = [checked.planned for lane in lanes.values() for checked in preflight.check(lane)]
    return PipelinePlan(definition.name, str(definition.folder), find_memory(definition.pipeline.limits), steps)


# --- a step alone ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Look:
    """What was found of a step."""

    identity: Identity | None
    """None where it is not needed, for the step never ended."""
    record: StepRecord | None
    """How it ended before."""
    why: str
    """Why it is to be made; empty where it is kept."""


def look_at_matrix(step: Step, records: Records, checksums: Checksums, *, needs_identity: bool = True) -> Look:
    """Whether a matrix is as it is asked for.

    Parameters
    ----------
    needs_identity : of what never ended too, for which sources are read

    Raises
    ------
    SourceError, OptionError, StoreError : a source or the store cannot be read
    """
    record = records.read_step(step.name)
    info = find_info(step.target) if step.section.open is None else open_store(step.target).info
    if record is None and not needs_identity:
        return Look(None, None, "not made yet")
    identity = identify_matrix(step.section, checksums, None if step.section.open is None else info)
    if record is None:
        return Look(identity, None, "not made yet")
    why = _explain(record, identity)
    if not why and info is None:
        why = f"{step.target} is gone or damaged"
    if not why and info is not None and info.digest != record.matrix["digest"]:
        why = f"{step.target} was changed since"
    return Look(identity, record, why)


def look_at_result(step: Step, info: MatrixInfo, pipeline: Pipeline, records: Records, checksums: Checksums) -> Look:
    """Whether results are there as they are asked for.

    Raises
    ------
    SourceError, OptionError : an input cannot be read
    """
    identity, record = identify_result(step, pipeline, info, checksums), records.read_step(step.name)
    if record is None:
        return Look(identity, None, "not made yet")
    return Look(identity, record, _explain(record, identity) or find_damage(step.target, record))


def _explain(record: StepRecord, identity: Identity) -> str:
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


# --- all steps -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checked:
    """A step that was checked."""

    planned: PlannedStep
    record: StepRecord | None = None
    """How it ended before; None where it did not, or that is not known."""
    error: MgspmvError | None = None
    """Why it cannot be made; None also where that is for the sake of its matrix."""
    elapsed_s: float = 0.0
    """What checking it took."""

    def describe(self, state: State, error: str | None = None) -> StepOutcome:
        """What becomes of the step in a run that does nothing for it."""
        elapsed_s, record = (self.elapsed_s, self.record) if state == "kept" else (0.0, None)
        return StepOutcome(self.planned.name, self.planned.kind, state, elapsed_s, record, error)


@dataclass(frozen=True)
class Preflight:
    """Checks the steps of a pipeline before any of them is begun.

    Parameters
    ----------
    times : whether seconds are predicted, for which a device is measured with some of the rows
    """

    pipeline: Pipeline
    records: Records
    checksums: Checksums
    times: bool

    def check(self, lane: list[Step]) -> list[Checked]:
        """Check a matrix, and what is computed of it."""
        first, *rest = lane
        matrix = self._check_one(first, self._plan_matrix)
        if matrix.planned.state == "failing":
            why = f"needs {first.name}, which cannot be made"
            return [matrix, *(Checked(_fail(step, why)) for step in rest)]
        if matrix.planned.state == "to make":
            return [matrix, *(self._check_one(step, self._plan_waiting) for step in rest)]
        computing = Computing(self.pipeline.cluster, threads=self.pipeline.limits.threads)  # which is not started
        opened = OpenedMatrix(first.target, computing)
        try:
            plan_result = partial(self._plan_result, opened=opened, computing=computing)
            return [matrix, *(self._check_one(step, plan_result) for step in rest)]
        finally:
            opened.unload()

    def _check_one(self, step: Step, plan: Callable[[Step], tuple[PlannedStep, StepRecord | None]]) -> Checked:
        began = time.perf_counter()
        try:
            return Checked(*plan(step), None, time.perf_counter() - began)
        except MgspmvError as error:
            return Checked(_fail(step, str(error)), None, error)

    def _plan_matrix(self, step: Step) -> tuple[PlannedStep, StepRecord | None]:
        check_all_there(list_sources(step.section))
        look = look_at_matrix(step, self.records, self.checksums, needs_identity=False)
        inputs = {} if look.identity is None else look.identity.inputs
        if not look.why:
            return PlannedStep(step.name, step.kind, "kept", "", step.target, inputs, [step.target]), look.record
        if step.section.open is None and not is_url(step.target):
            check_replacing(step, find_info(step.target), self.records)
        seconds = None if look.record is None else sum(look.record.seconds.values())
        planned = PlannedStep(
            step.name, step.kind, "to make", look.why, step.target, inputs, [step.target], None, seconds
        )
        return planned, look.record

    def _plan_waiting(self, step: Step) -> tuple[PlannedStep, StepRecord | None]:
        """Plan a step whose matrix is made first."""
        check_all_there([*list_files(step, self.pipeline).values()])
        record = self.records.read_step(step.name)
        state: Any = "to make" if record is None else "unknown"
        why = f"needs {step.matrix}, which is made first"
        return PlannedStep(step.name, step.kind, state, why, step.target, {}, self._list_outputs(step)), record

    def _plan_result(
        self, step: Step, opened: OpenedMatrix, computing: Computing
    ) -> tuple[PlannedStep, StepRecord | None]:
        look = look_at_result(step, opened.matrix.info, self.pipeline, self.records, self.checksums)
        assert look.identity is not None
        inputs, outputs = look.identity.inputs, self._list_outputs(step)
        if not look.why:
            return PlannedStep(step.name, step.kind, "kept", "", step.target, inputs, outputs), look.record
        predicted = predict_result(step, opened, computing, look.record, times=self.times)
        check_memory(predicted[0], self.pipeline.limits)
        return (
            PlannedStep(step.name, step.kind, "to make", look.why, step.target, inputs, outputs, *predicted),
            look.record,
        )

    def _list_outputs(self, step: Step) -> list[str]:
        if step.kind == "product":
            return [f"{step.target}/y.{step.section.format}"]
        names = [*(f"ranks.{format}" for format in self.pipeline.output.formats), "top.csv", "top.json"]
        return [f"{step.target}/{name}" for name in names]


def _fail(step: Step, why: str) -> PlannedStep:
    return PlannedStep(step.name, step.kind, "failing", why, step.target, {}, [])


def is_hopeless(lane: list[Checked]) -> bool:
    """Whether the matrix cannot be made, or nothing that is computed of it."""
    first, *rest = (checked.planned.state == "failing" for checked in lane)
    return first or (bool(rest) and all(rest))


# --- memory and time -------------------------------------------------------------------------------------------------


def find_memory(limits: LimitsSection) -> int:
    """Bytes that a step may take of this process."""
    return int(MEMORY_SHARE * free_memory()) if limits.memory is None else parse_bytes(limits.memory)


def check_memory(n_bytes: int, limits: LimitsSection) -> None:
    """Raise CapacityError where a step takes more than the definition allows."""
    if limits.memory is not None and n_bytes > (limit := parse_bytes(limits.memory)):
        raise CapacityError(
            f"needs {n_bytes:,} bytes and memory in [limits] is {limit:,}; allow more, or compute on a cluster"
        )


def predict_result(
    step: Step, opened: OpenedMatrix, computing: Computing, before: StepRecord | None, *, times: bool
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
    matrix = opened.turn(is_turned(step))
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
