"""Pipelines: many matrices and many runs, defined in one TOML file. Here are their plan and their execution.

matrix:   inputs and options as recorded, and the store is the one that was made     -> kept
results:  inputs and options as recorded, and all files are unchanged                -> kept

Other steps are made one after another. A matrix is made first and loaded once for all results computed from it.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from os import PathLike
from typing import Any, Literal

from mgspmv.display.frames import render_card
from mgspmv.environment import __version__
from mgspmv.errors import MgspmvError, StepsFailedError, hide_secrets
from mgspmv.logs import PIPELINE
from mgspmv.model import MatrixInfo
from mgspmv.monitor.progress import name_calls
from mgspmv.pipeline.definition import Pipeline
from mgspmv.pipeline.make_steps import OpenedMatrix, RunContext, check_replacing, find_info, make_matrix, make_result
from mgspmv.pipeline.reading import Definition, read_pipeline
from mgspmv.pipeline.records import Records, find_damage, now
from mgspmv.pipeline.steps import (
    Identity,
    PipelineStep,
    check_present,
    identify_matrix,
    identify_result,
    list_files,
    list_sources,
)
from mgspmv.report.record import RunRecord, State, StepKind, StepOutcome, StepRecord
from mgspmv.store.read import open_store
from mgspmv.validation import to_json

__all__ = [
    "Definition",
    "PipelinePlan",
    "PlannedStep",
    "RunInterrupted",
    "plan_pipeline",
    "read_pipeline",
    "run_pipeline",
]

PlannedState = Literal["kept", "to make", "unknown", "failing"]
"""State of a step: unchanged; to be made; unknown until the matrix is made; or failing with the current inputs."""


@dataclass(frozen=True)
class PlannedStep:
    """Step with its planned state.

    Examples
    --------
    >>> import mgspmv as mg
    >>> from pathlib import Path
    >>> _ = Path("a.toml").write_text('matrix.web = {generate = "rmat", parameters = {scale = 6}}')
    >>> [(step.name, step.kind, step.state, step.why) for step in mg.plan_pipeline("a.toml").steps]
    [('web', 'matrix', 'to make', 'not made yet')]
    """

    name: str
    kind: StepKind
    state: PlannedState
    why: str
    """Reason why it must be made, or cannot be; empty for `kept`."""
    target: str
    """Path or URL of the store, or of the folder of results."""


@dataclass(frozen=True)
class PipelinePlan:
    """Plan of a run.

    Examples
    --------
    >>> import mgspmv as mg
    >>> from pathlib import Path
    >>> _ = Path("a.toml").write_text('matrix.web = {generate = "rmat", parameters = {scale = 6}}')
    >>> plan = mg.plan_pipeline("a.toml")
    >>> plan.name, plan.is_finished, len(plan.steps)
    ('a', False, 1)
    """

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
    path : path
        The TOML file; paths in it are relative to it.
    overrides : mapping, optional
        Values that replace the values of the file, by dotted key, such as `run.alpha`.

    Raises
    ------
    PipelineError : the definition is wrong

    Examples
    --------
    >>> import mgspmv as mg
    >>> from pathlib import Path
    >>> _ = Path("web.toml").write_text('''
    ...     matrix.web = {generate = "rmat", kind = "graph", parameters = {scale = 6}}
    ...     run.ranks = {alpha = [0.85, 0.9]}
    ... ''')
    >>> mg.plan_pipeline("web.toml")
    <PipelinePlan: web, 3 steps: 3 to make>
    >>> mg.plan_pipeline("web.toml", overrides={"run.ranks.alpha": 0.5}).steps[-1].name
    'web/ranks'
    """
    definition = read_pipeline(path, overrides)
    steps = _plan_steps(definition, Records(definition.folder, definition.base))
    return PipelinePlan(definition.name, str(definition.folder), steps)


def _plan_steps(definition: Definition, records: Records) -> list[PlannedStep]:
    planned = list[PlannedStep]()
    for first, *rest in definition.list_steps().values():
        matrix = _plan_step(first, None, None, definition, records)
        info = open_store(first.target).info if matrix.state == "kept" else None
        planned += [matrix, *(_plan_step(step, matrix, info, definition, records) for step in rest)]
    return planned


def _plan_step(
    step: PipelineStep, matrix: PlannedStep | None, info: MatrixInfo | None, definition: Definition, records: Records
) -> PlannedStep:
    """Plan one step; of results with the planned step of their matrix, and its information if it is kept."""
    state: PlannedState = "to make"
    try:
        if matrix is None or info is not None:
            why = _describe_reason(step, info, definition.pipeline, records)
        elif matrix.state == "failing":
            state, why = "failing", f"needs {matrix.name}, which cannot be made"
        else:
            check_present(list_files(step).values())
            why = f"needs {matrix.name}, which is made first"
            state = "to make" if records.read_step(step.name) is None else "unknown"
    except MgspmvError as error:
        state, why = "failing", str(error)
    return PlannedStep(step.name, step.kind, state if why else "kept", why, step.target)


def _describe_reason(step: PipelineStep, info: MatrixInfo | None, pipeline: Pipeline, records: Records) -> str:
    """Return the reason to make a step, empty if its results exist as requested; `info` is that of their matrix.

    Raises
    ------
    MgspmvError : the step cannot be made: a source is missing, or its store holds another matrix
    """
    record, section, why = records.read_step(step.name), step.section, "not made yet"
    if info is not None:
        identity = identify_result(step, pipeline, info, records.checksums)
        return why if record is None else _compare(record, identity) or find_damage(step.target, record)
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


# --- run -------------------------------------------------------------------------------------------------------------


class RunInterrupted(KeyboardInterrupt):
    """A run was interrupted; `record` holds the outcomes of its steps."""

    def __init__(self, record: RunRecord) -> None:
        kept = [step.name for step in record.steps if step.state in ("made", "kept")]
        done = f"{len(kept)} of {len(record.steps)} steps are done and kept" if kept else "no step is done yet"
        super().__init__(f"interrupted; {done}{': ' if kept else ''}{', '.join(kept)}; run it again to resume")
        self.record = record


def run_pipeline(
    path: str | PathLike[str],
    *,
    overrides: Mapping[str, Any] | None = None,
    client: Any = None,
    on_note: Callable[[str], None] | None = None,
    throw: bool = True,
) -> RunRecord:
    """Run a definition: keep finished steps, and make the others.

    A step is finished if its record states the same inputs, the same options and this version of the program, and all
    of its outputs are unchanged. For a finished pipeline nothing is written. A run that ends early, for any reason, is
    resumed by the next.

    Parameters
    ----------
    path : path
        The TOML file; paths in it are relative to it.
    overrides : mapping, optional
        Values that replace the values of the file, by dotted key, such as `run.alpha`.
    client : Client, cluster or address, optional
        Client of a Dask cluster, as in `Matrix.distribute`, in place of the definition's.
    on_note : callable, optional
        Called with messages about the cluster: its dashboard and, for a batch system, why jobs are pending.
    throw : bool, default True
        Raise if a step failed; False returns the record of the failure.

    Returns
    -------
    RunRecord: outcomes of the steps. `StepRecord.outputs` lists the files of ranks, for `load_solution`.

    Raises
    ------
    PipelineError : the definition is wrong
    PipelineBusyError : another run works in the same folder
    StepsFailedError : steps failed; those that do not depend on them were made
    KeyboardInterrupt : it was interrupted; the message lists the finished steps

    Examples
    --------
    >>> import mgspmv as mg
    >>> from pathlib import Path
    >>> _ = Path("web.toml").write_text('''
    ...     matrix.web = {generate = "rmat", kind = "graph", parameters = {scale = 6}}
    ...     run.ranks = {alpha = [0.85, 0.9]}
    ... ''')
    >>> record = mg.run_pipeline("web.toml")
    >>> [(step.name, step.state) for step in record.steps]
    [('web', 'made'), ('web/ranks/alpha=0.85', 'made'), ('web/ranks/alpha=0.9', 'made')]
    >>> [step.state for step in mg.run_pipeline("web.toml").steps]
    ['kept', 'kept', 'kept']
    """
    definition = read_pipeline(path, overrides)
    records = Records(definition.folder, definition.base)
    began, clock = now(), time.perf_counter()

    def describe(outcomes: Iterable[StepOutcome]) -> RunRecord:
        elapsed_s, tables = time.perf_counter() - clock, definition.tables
        return RunRecord(definition.name, definition.file, tables, began, elapsed_s, __version__, [*outcomes])

    planned = _plan_steps(definition, records)
    if all(step.state == "kept" for step in planned):
        return describe(StepOutcome(p.name, p.kind, "kept", 0.0, records.read_kept(p.name, p.target)) for p in planned)
    is_interrupted = False
    with records.hold(), RunContext(definition, records, client, on_note) as work:
        why = "the run was interrupted before"
        run = _PipelineRun(work, {p.name: StepOutcome(p.name, p.kind, "skipped", 0.0, None, why) for p in planned})
        try:
            for first, *rest in definition.list_steps().values():
                run.work_on(first, rest)
        except KeyboardInterrupt:
            is_interrupted = True
        record = describe(run.outcomes.values())
        if any(step.state != "kept" for step in record.steps):
            records.write_run(record)
    if is_interrupted:
        raise RunInterrupted(record)
    if throw and run.errors:
        code = getattr(run.errors[0], "exit_code", 1)
        raise StepsFailedError(_list_failures(record, definition), record, code) from run.errors[0]
    return record


def _list_failures(record: RunRecord, definition: Definition) -> str:
    """Describe the failures, one line each; for a pipeline of a single step one line."""
    failed = [step for step in record.steps if step.state == "failed"]
    lines = [f"{step.name}: {step.error}" for step in failed]
    if len(failed) > 1:
        lines.insert(0, f"{len(failed)} of {len(record.steps)} steps failed")
    said = "\n".join(lines)
    if any(step.record is not None for step in failed):
        said += f"; for its convergence so far, run: mgspmv report {definition.folder}"
    return said


# --- steps -----------------------------------------------------------------------------------------------------------


@dataclass
class _PipelineRun:
    """Run that makes steps, and records the outcome of each."""

    work: RunContext
    outcomes: dict[str, StepOutcome]
    """Outcomes by name of the step, in the order of the plan."""
    errors: list[Exception] = field(default_factory=list)

    def work_on(self, first: PipelineStep, rest: list[PipelineStep]) -> None:
        """Make a matrix, and then the results computed from it.

        Raises
        ------
        KeyboardInterrupt : the run is interrupted; the outcome of the step is recorded
        """
        if not self._attempt(first, None):
            for step in rest:
                why = f"needs {first.name}, which failed"
                self._note(StepOutcome(step.name, step.kind, "skipped", 0.0, None, why))
            return
        with OpenedMatrix(first.target, self.work) as opened:
            for step in rest:
                self._attempt(step, opened)

    def _attempt(self, step: PipelineStep, opened: OpenedMatrix | None) -> bool:
        """Keep or make a step, and record its outcome; return whether its results exist. Errors are not raised.

        Parameters
        ----------
        opened : the matrix of the results; None for the step that makes it
        """
        began = time.perf_counter()
        record, failure, place = None, None, [*self.outcomes].index(step.name) + 1
        state: State = "made"
        try:
            with name_calls(f"{step.name} ({place} of {len(self.outcomes)}): "):
                info = None if opened is None else opened.matrix.info
                # Checked again: the plan was made before the matrix, and before this run got the lock.
                if not _describe_reason(step, info, self.work.pipeline, self.work.records):
                    state, record = "kept", self.work.records.read_kept(step.name, step.target)
                elif opened is None:
                    record = make_matrix(self.work, step)
                else:
                    record, failure = make_result(self.work, step, opened)
        except KeyboardInterrupt:  # also raised if a run was cancelled
            elapsed_s = time.perf_counter() - began
            self._note(StepOutcome(step.name, step.kind, "failed", elapsed_s, None, "interrupted"))
            raise
        except Exception as error:
            failure = error
        said = None
        if failure is not None:
            self.errors.append(failure)
            is_own = isinstance(failure, MgspmvError)
            said = str(failure) if is_own else hide_secrets(f"{type(failure).__name__}: {failure}")
        elapsed_s = time.perf_counter() - began
        self._note(StepOutcome(step.name, step.kind, state if failure is None else "failed", elapsed_s, record, said))
        return failure is None

    def _note(self, outcome: StepOutcome) -> None:
        self.outcomes[outcome.name] = outcome
        fields = {"step": outcome.name, "state": outcome.state, "elapsed_s": outcome.elapsed_s}
        level = logging.ERROR if outcome.state == "failed" else logging.INFO
        said = f": {outcome.error}" if outcome.error else ""
        PIPELINE.log(level, "step %s is %s%s", outcome.name, outcome.state, said, extra=fields)
