"""Running a pipeline: steps that are finished are kept, the others are made one after another.

A matrix is made first and loaded once for all that is computed of it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from typing import Any

from mgspmv.api.arguments import ignore
from mgspmv.errors import MgspmvError, StepsFailedError, hide_secrets
from mgspmv.logs import PIPELINE
from mgspmv.model import Event, Progress, default_threads
from mgspmv.pipeline.context import Computing, OpenedMatrix, Work
from mgspmv.pipeline.keys import MatrixIdentity
from mgspmv.pipeline.locks import hold
from mgspmv.pipeline.make_matrix import make_matrix
from mgspmv.pipeline.make_results import UnfinishedError, make_result
from mgspmv.pipeline.preflight import Checked, Preflight
from mgspmv.pipeline.reading import Definition, read_pipeline
from mgspmv.pipeline.records import Records, now
from mgspmv.pipeline.showing import watch_steps
from mgspmv.pipeline.sources import Checksums
from mgspmv.pipeline.steps import Step, list_steps
from mgspmv.report.record import RunRecord, State, StepOutcome, StepRecord
from mgspmv.version import __version__


class RunInterrupted(KeyboardInterrupt):
    """A run was interrupted; `record` holds what became of its steps."""

    def __init__(self, record: RunRecord) -> None:
        kept = [step.name for step in record.steps if step.state in ("made", "kept")]
        done = f"{len(kept)} of {len(record.steps)} steps are done and kept" if kept else "no step is done yet"
        super().__init__(f"interrupted; {done}{': ' if kept else ''}{', '.join(kept)}; run it again to go on")
        self.record = record


def run_pipeline(
    path: str | PathLike[str] | Definition,
    *,
    overrides: Mapping[str, Any] | None = None,
    client: Any = None,
    on_event: Callable[[Step, Event], None] | None = None,
    on_progress: Progress | None = None,
    on_step: Callable[[StepOutcome], None] | None = None,
    on_note: Callable[[str], None] | None = None,
    throw: bool = True,
) -> RunRecord:
    """Run a definition: keep the steps that are finished, and make the others.

    A step is finished when its record says that it was made of the same inputs with the same options by this version of
    the program, and all of its outputs are there as they were written. Of a finished pipeline nothing is written. A run
    that ends early, however it does, is gone on with by the next.

    Parameters
    ----------
    path : the TOML file, or what `read_pipeline` made of it
    overrides : values in place of the file's, by the names of tables and key, as `run.alpha`
    client : of a Dask cluster, as for `Matrix.distribute`, in place of the definition's
    on_event : called with a step and what an iteration of it did
    on_progress : called with ("step: phase", done, total or None)
    on_step : called with what became of a step as soon as that is known
    on_note : called with lines on the cluster: where its dashboard is and, of a batch system, what jobs wait for
    throw : raise when a step failed; False returns the record that says so

    Returns
    -------
    RunRecord: what became of each step. Ranks are where `StepRecord.outputs` says; `load_solution` reads them.

    Raises
    ------
    PipelineError : the definition is wrong
    PipelineBusyError : another run works in the same folder
    StepsFailedError : steps failed; those that do not depend on them were made. Or nothing that is asked for can be
        made, as files or stores are not there or not to be used; then nothing was begun or written
    KeyboardInterrupt : it was interrupted, and says what is kept
    """
    definition = path if isinstance(path, Definition) else read_pipeline(path, overrides)
    given: dict[str, Any] = {"on_event": on_event, "on_progress": on_progress, "on_step": on_step}
    with watch_steps(definition, given) as hearers:
        return _run_definition(definition, client, on_note=on_note, throw=throw, **hearers)


def _run_definition(
    definition: Definition,
    client: Any,
    *,
    on_note: Callable[[str], None] | None,
    throw: bool,
    on_event: Callable[[Step, Event], None] | None,
    on_progress: Progress | None,
    on_step: Callable[[StepOutcome], None] | None,
) -> RunRecord:
    """See `run_pipeline`."""
    records = Records(definition.folder)
    checksums = Checksums(records.private / "sources.json")
    lanes = list_steps(definition.pipeline, str(definition.folder))
    began, clock = now(), time.perf_counter()

    def note(steps: list[StepOutcome]) -> RunRecord:
        named = (definition.name, definition.file, definition.tables, began, time.perf_counter() - clock)
        return RunRecord(*named, __version__, steps)

    preflight = Preflight(definition.pipeline, records, checksums)
    found = preflight.check_all(str(definition.folder))
    checked = [own for lane in found for own in lane]
    if all(own.state == "kept" for own in checked):
        return note([own.describe("kept") for own in checked])
    if all(lane[0].error or (lane[1:] and all(own.error for own in lane[1:])) for lane in found):
        errors: list[Exception] = [own.error for own in checked if own.error is not None]
        return _conclude(note([_describe_refused(own) for own in checked]), errors, definition, throw=throw)
    threads = definition.pipeline.limits.threads or default_threads()
    computes = Computing(definition.pipeline.cluster, client, threads, on_note)
    with hold(definition.folder), computes as computing:
        records.sweep()
        work = Work(definition, records, checksums, computing, on_progress or ignore, on_event)
        run, is_interrupted = _Run(work, preflight, on_step), False
        try:
            for lane in lanes.values():
                run.work_on(*lane)
        except KeyboardInterrupt:
            is_interrupted = True
        record = note(run.list_outcomes(lanes))
        if any(step.state != "kept" for step in record.steps):
            records.write_run(record)
    if is_interrupted:
        raise RunInterrupted(record)
    return _conclude(record, run.errors, definition, throw=throw)


def _describe_refused(checked: Checked) -> StepOutcome:
    """What becomes of a step of a run that is not begun."""
    if checked.error is not None:
        return checked.describe("failed", error=checked.why)
    if checked.state == "kept":
        return checked.describe("kept")
    is_matrix, matrix = checked.step.kind == "matrix", checked.step.matrix
    why = "what needs it cannot be made" if is_matrix else f"needs {matrix}, which failed"
    return checked.describe("skipped", error=why)


def _conclude(record: RunRecord, errors: list[Exception], definition: Definition, *, throw: bool) -> RunRecord:
    if throw and not record.is_success:
        said = _list_failures(record, definition)
        raise StepsFailedError(said, record, getattr(errors[0], "exit_code", 1)) from errors[0]
    return record


def _list_failures(record: RunRecord, definition: Definition) -> str:
    """What failed; of a single step, or for a single reason, in one line."""
    failed = [step for step in record.steps if step.state == "failed"]
    report = f"in the report of this run: mgspmv report {definition.folder}"
    is_reported = any(step.record is not None for step in failed)
    if len({step.error for step in failed}) == 1:
        name = failed[0].name + (f" and {len(failed) - 1} more" if len(failed) > 1 else "")
        return f"{name}: {failed[0].error}" + (f"; how far it came is {report}" if is_reported else "")
    n_needing = sum(step.state == "skipped" and step.kind != "matrix" for step in record.steps)
    count = f"{len(failed)} of {len(record.steps)} steps failed" + (f" and {n_needing} need them" if n_needing else "")
    lines = [count, *(f"{step.name}: {step.error}" for step in failed)]
    return "\n".join([*lines, f"how far they came is {report}"] if is_reported else lines)


# --- steps -----------------------------------------------------------------------------------------------------------


@dataclass
class _Run:
    """Makes steps, and notes what became of each."""

    work: Work
    preflight: Preflight
    on_step: Callable[[StepOutcome], None] | None
    outcomes: dict[str, StepOutcome] = field(default_factory=dict)
    errors: list[Exception] = field(default_factory=list)

    def work_on(self, first: Step, *rest: Step) -> None:
        """Make a matrix, and then what is computed of it.

        Raises
        ------
        KeyboardInterrupt : the run is interrupted; what became of the step is noted
        """
        check_matrix = partial(self.preflight.check_matrix, first, reads_sources=True)
        if not self._attempt(first, check_matrix, self._make_matrix):
            for step in rest:
                error = f"needs {first.name}, which failed"
                self._note(StepOutcome(step.name, step.kind, "skipped", 0.0, None, error))
            return
        opened = OpenedMatrix(first.target, self.work.computing)
        make_result = partial(self._make_result, opened=opened)
        try:
            for step in rest:
                self._attempt(step, partial(self.preflight.check_result, step, opened), make_result)
        finally:
            opened.unload()

    def list_outcomes(self, lanes: dict[str, list[Step]]) -> list[StepOutcome]:
        """Of all steps, in the order of the plan."""
        steps = [step for lane in lanes.values() for step in lane]
        skipped = "the run was interrupted before"
        return [
            self.outcomes.get(step.name, StepOutcome(step.name, step.kind, "skipped", 0.0, None, skipped))
            for step in steps
        ]

    def _attempt(self, step: Step, check: Callable[[], Checked], make: Callable[[Checked], StepRecord]) -> bool:
        """Make a step unless it is there, and note what becomes of it; whether it is there. What fails, fails alone."""
        began = time.perf_counter()

        def note(state: State, record: StepRecord | None, error: str | None = None, *predicted: Any) -> None:
            elapsed_s = time.perf_counter() - began
            self._note(StepOutcome(step.name, step.kind, state, elapsed_s, record, error, *predicted))

        try:
            checked = check()
            if checked.error is not None:
                raise checked.error
            if checked.state == "kept":
                note("kept", checked.record)
            else:
                self.work.checksums.save()
                note("made", make(checked), None, checked.predicted_bytes, checked.predicted_s)
            return True
        except KeyboardInterrupt:  # also of a run that was cancelled
            note("failed", None, "interrupted")
            raise
        except UnfinishedError as unfinished:
            note("failed", unfinished.record, str(unfinished))
            self.errors.append(unfinished.error)
        except Exception as error:
            is_own = isinstance(error, MgspmvError)
            note("failed", None, str(error) if is_own else hide_secrets(f"{type(error).__name__}: {error}"))
            self.errors.append(error)
        return False

    def _make_matrix(self, checked: Checked) -> StepRecord:
        assert isinstance(checked.identity, MatrixIdentity)
        return make_matrix(self.work, checked.step, checked.identity)

    def _make_result(self, checked: Checked, opened: OpenedMatrix) -> StepRecord:
        assert checked.identity is not None
        assert checked.predicted_bytes is not None
        return make_result(self.work, checked.step, checked.identity, opened, checked.predicted_bytes)

    def _note(self, outcome: StepOutcome) -> None:
        self.outcomes[outcome.name] = outcome
        _log(outcome)
        if self.on_step is not None:
            self.on_step(outcome)


def _log(outcome: StepOutcome) -> None:
    fields = {"step": outcome.name, "state": outcome.state, "elapsed_s": outcome.elapsed_s}
    said = f": {outcome.error}" if outcome.error else ""
    level = logging.ERROR if outcome.state == "failed" else logging.INFO
    PIPELINE.log(level, "step %s is %s%s", outcome.name, outcome.state, said, extra=fields)
