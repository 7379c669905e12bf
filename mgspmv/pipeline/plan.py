"""What a run would do: which steps are kept and which are to be made, why, and what that takes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from os import PathLike
from typing import Any, Literal

from mgspmv.display.cards import Card, make_table, render_card
from mgspmv.display.numbers import format_bytes, format_seconds
from mgspmv.errors import MgspmvError, hide_secrets
from mgspmv.model import MatrixInfo, free_memory
from mgspmv.partition import parse_bytes
from mgspmv.pipeline.computing import Computing, OpenedMatrix
from mgspmv.pipeline.definition import LimitsSection, Pipeline
from mgspmv.pipeline.identity import Identity, identify_matrix, identify_result, list_files, list_sources
from mgspmv.pipeline.make_matrix import find_info
from mgspmv.pipeline.outputs import Results
from mgspmv.pipeline.predict import predict_matrix, predict_result
from mgspmv.pipeline.reading import Definition, read_pipeline
from mgspmv.pipeline.records import Records
from mgspmv.pipeline.sources import Checksums, check_all_there
from mgspmv.pipeline.steps import Step, list_steps
from mgspmv.report.record import StepKind, StepRecord
from mgspmv.results import to_json
from mgspmv.store.read import open_store

MEMORY_SHARE = 0.8
"""Of the memory that is free, what steps may take unless the definition says."""


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
    """What steps that run side by side may take."""
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


@dataclass(frozen=True)
class Look:
    """What was found of a step."""

    identity: Identity | None
    """None where it is not needed, for the step never ended."""
    record: StepRecord | None
    """How it ended before."""
    why: str
    """Why it is to be made; empty where it is kept."""


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
    planner = _Planner(definition.pipeline, records, Checksums(records.private / "sources.json"))
    lanes = list_steps(definition.pipeline, str(definition.folder))
    steps = [planned for lane in lanes.values() for planned in planner.plan(lane)]
    memory = find_memory(definition.pipeline.limits)
    return PipelinePlan(definition.name, str(definition.folder), memory, steps)


def find_memory(limits: LimitsSection) -> int:
    """Bytes that steps which run side by side may take."""
    return int(MEMORY_SHARE * free_memory()) if limits.memory is None else parse_bytes(limits.memory)


# --- looking ---------------------------------------------------------------------------------------------------------


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
    identity, results = identify_result(step, pipeline, info, checksums), Results(records, step)
    if results.is_waiting:
        return Look(identity, records.read_step(step.name), "made, and not all in place")
    record = records.read_step(step.name)
    if record is None:
        return Look(identity, None, "not made yet")
    return Look(identity, record, _explain(record, identity) or results.find_damage(record) or "")


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


# --- planning --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Planner:
    pipeline: Pipeline
    records: Records
    checksums: Checksums

    @property
    def computing(self) -> Computing:
        """Which is not started."""
        return Computing(self.pipeline.cluster, threads=self.pipeline.limits.threads)

    def plan(self, lane: list[Step]) -> list[PlannedStep]:
        """A matrix and what is computed of it."""
        first, *rest = lane
        matrix = self._plan_matrix(first)
        if matrix.state != "kept":
            return [matrix, *(self._wait(step, matrix) for step in rest)]
        opened = OpenedMatrix(first.target, self.computing)
        try:
            return [matrix, *(self._plan_result(step, opened) for step in rest)]
        finally:
            opened.unload()

    def _plan_matrix(self, step: Step) -> PlannedStep:
        try:
            look = look_at_matrix(step, self.records, self.checksums, needs_identity=False)
            if look.identity is None:
                check_all_there(list_sources(step.section))
        except MgspmvError as error:
            return _fail(step, error)
        inputs = {} if look.identity is None else look.identity.inputs
        if not look.why:
            return PlannedStep(step.name, step.kind, "kept", "", step.target, inputs, [step.target])
        threads, memory = self.pipeline.limits.threads, find_memory(self.pipeline.limits)
        on_workers = self.computing.makes_matrices
        n_bytes = predict_matrix(step.section, threads, memory, on_workers=on_workers)
        seconds = None if look.record is None else sum(look.record.seconds.values())
        return PlannedStep(
            step.name, step.kind, "to make", look.why, step.target, inputs, [step.target], n_bytes, seconds
        )

    def _wait(self, step: Step, matrix: PlannedStep) -> PlannedStep:
        if matrix.state == "failing":
            state: Any = "failing"
            why = f"needs {matrix.name}, which cannot be made"
        else:
            try:
                check_all_there([*list_files(step, self.pipeline).values()])
            except MgspmvError as error:
                return _fail(step, error)
            state = "to make" if self.records.read_step(step.name) is None else "unknown"
            why = f"needs {matrix.name}, which is made first"
        return PlannedStep(step.name, step.kind, state, why, step.target, {}, self._list_outputs(step))

    def _plan_result(self, step: Step, opened: OpenedMatrix) -> PlannedStep:
        try:
            look = look_at_result(step, opened.matrix.info, self.pipeline, self.records, self.checksums)
            assert look.identity is not None
            inputs, outputs = look.identity.inputs, self._list_outputs(step)
            if not look.why:
                return PlannedStep(step.name, step.kind, "kept", "", step.target, inputs, outputs)
            matrix = opened.turn(is_turned(step))
            predicted = predict_result(step, matrix, self.computing, look.record, times=True)
        except MgspmvError as error:
            return _fail(step, error)
        return PlannedStep(step.name, step.kind, "to make", look.why, step.target, inputs, outputs, *predicted)

    def _list_outputs(self, step: Step) -> list[str]:
        if step.kind == "product":
            return [f"{step.target}/y.{step.section.format}"]
        formats = self.pipeline.output.formats
        tops = ["csv", "json", *(["jsonl"] if "jsonl" in formats else [])]
        names = [*(f"ranks.{format}" for format in formats), *(f"top.{format}" for format in tops)]
        return [f"{step.target}/{name}" for name in names]


def is_turned(step: Step) -> bool:
    """Whether a step is of the transpose of its matrix."""
    return bool(step.section.transpose if step.kind == "product" else step.section.reverse)


def _fail(step: Step, error: MgspmvError) -> PlannedStep:
    return PlannedStep(step.name, step.kind, "failing", str(error), step.target, {}, [])
