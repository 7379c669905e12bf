"""Running a pipeline: steps that are finished are kept, the others are made one after another.

A matrix is made first and loaded once for all that is computed of it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from typing import Any

from mgspmv.errors import MgspmvError, StepsFailedError, hide_secrets
from mgspmv.logs import PIPELINE
from mgspmv.model import Event, Progress, default_threads, ignore
from mgspmv.pipeline.context import Computing, OpenedMatrix, Work
from mgspmv.pipeline.keys import MatrixIdentity
from mgspmv.pipeline.make_matrix import make_matrix
from mgspmv.pipeline.make_results import UnfinishedError, make_result
from mgspmv.pipeline.preflight import check_matrix, check_result, plan_steps
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
    StepsFailedError : steps failed; those that do not depend on them were made
    KeyboardInterrupt : it was interrupted, and says what is kept
    """
    definition = path if isinstance(path, Definition) else read_pipeline(path, overrides)
    given: dict[str, Any] = {"on_event": on_event, "on_progress": on_progress, "on_step": on_step}
    with watch_steps(definition, given) as hearers:
        return _run_definition(definition, client, on_note, throw, hearers)


def _run_definition(
    definition: Definition,
    client: Any,
    on_note: Callable[[str], None] | None,
    throw: bool,
    hearers: Mapping[str, Callable[..., None] | None],
) -> RunRecord:
    """
    Parameters
    ----------
    hearers : `on_event`, `on_progress` and `on_step` of `run_pipeline`
    """
    records = Records(definition.folder)
    checksums = Checksums(records.private / "sources.json")
    lanes = list_steps(definition.pipeline, str(definition.folder))
    began, clock = now(), time.perf_counter()

    def describe(outcomes: list[StepOutcome]) -> RunRecord:
        elapsed_s = time.perf_counter() - clock
        return RunRecord(definition.name, definition.file, definition.tables, began, elapsed_s, __version__, outcomes)

    planned = plan_steps(definition, records, checksums)
    if all(step.state == "kept" for step in planned):
        return describe([StepOutcome(p.name, p.kind, "kept", 0.0, records.read_step(p.name)) for p in planned])
    threads = definition.pipeline.limits.threads or default_threads()
    with records.hold(), closing(Computing(definition.pipeline.cluster, client, threads, on_note)) as computing:
        records.sweep()
        work = Work(definition, records, checksums, computing, hearers["on_progress"] or ignore, hearers["on_event"])
        why = "the run was interrupted before"
        not_begun = {p.name: StepOutcome(p.name, p.kind, "skipped", 0.0, None, why) for p in planned}
        run = _Run(work, hearers["on_step"], not_begun)
        is_interrupted = False
        try:
            for first, *rest in lanes.values():
                run.work_on(first, rest)
        except KeyboardInterrupt:
            is_interrupted = True
        record = describe([*run.outcomes.values()])
        if any(step.state != "kept" for step in record.steps):
            records.write_run(record)
    if is_interrupted:
        raise RunInterrupted(record)
    if throw and run.errors:
        code = getattr(run.errors[0], "exit_code", 1)
        raise StepsFailedError(_list_failures(record, definition), record, code) from run.errors[0]
    return record


def _list_failures(record: RunRecord, definition: Definition) -> str:
    """What failed, a line for each; of a single step one line."""
    failed = [step for step in record.steps if step.state == "failed"]
    lines = [f"{step.name}: {step.error}" for step in failed]
    if len(failed) > 1:
        lines.insert(0, f"{len(failed)} of {len(record.steps)} steps failed")
    said = "\n".join(lines)
    if any(step.record is not None for step in failed):
        said += f"; how far it came is in the report of this run: mgspmv report {definition.folder}"
    return said


# --- steps -----------------------------------------------------------------------------------------------------------


@dataclass
class _Run:
    """Makes steps, and notes what became of each."""

    work: Work
    on_step: Callable[[StepOutcome], None] | None
    outcomes: dict[str, StepOutcome]
    """By name, in the order of the plan."""
    errors: list[Exception] = field(default_factory=list)

    def work_on(self, first: Step, rest: list[Step]) -> None:
        """Make a matrix, and then what is computed of it.

        Raises
        ------
        KeyboardInterrupt : the run is interrupted; what became of the step is noted
        """
        if not self._attempt(first, self._find_matrix):
            for step in rest:
                self._note(StepOutcome(step.name, step.kind, "skipped", 0.0, None, f"needs {first.name}, which failed"))
            return
        with closing(OpenedMatrix(first.target, self.work.computing)) as opened:
            for step in rest:
                self._attempt(step, partial(self._find_result, opened=opened))

    def _find_matrix(self, step: Step) -> tuple[State, StepRecord]:
        """Keep a matrix or make it; which of the two, and its record."""
        checked = check_matrix(step, self.work.records, self.work.checksums)
        if checked.record is not None and not checked.why:
            return "kept", checked.record
        self.work.checksums.save()
        assert isinstance(checked.identity, MatrixIdentity)
        return "made", make_matrix(self.work, step, checked.identity)

    def _find_result(self, step: Step, opened: OpenedMatrix) -> tuple[State, StepRecord]:
        """Keep results or make them; which of the two, and their record."""
        work = self.work
        checked = check_result(step, work.definition.pipeline, opened.matrix.info, work.records, work.checksums)
        if checked.record is not None and not checked.why:
            return "kept", checked.record
        work.checksums.save()
        return "made", make_result(work, step, checked.identity, opened)

    def _attempt(self, step: Step, find: Callable[[Step], tuple[State, StepRecord]]) -> bool:
        """Find what a step makes, and note what becomes of it; whether it is there. What fails, fails alone."""
        began = time.perf_counter()

        def note(state: State, record: StepRecord | None, error: str | None = None) -> None:
            self._note(StepOutcome(step.name, step.kind, state, time.perf_counter() - began, record, error))

        try:
            note(*find(step))
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
