"""Execution of a pipeline: finished steps are kept, the others are made one after another.

A matrix is made first and loaded once for all results computed from it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

from mgspmv.errors import MgspmvError, StepsFailedError, hide_secrets
from mgspmv.logs import PIPELINE
from mgspmv.model import ignore
from mgspmv.monitor.progress import name_calls
from mgspmv.pipeline.context import ComputeResources, OpenedMatrix, RunContext
from mgspmv.pipeline.make_matrix import make_matrix
from mgspmv.pipeline.make_results import make_result
from mgspmv.pipeline.preflight import describe_reason, plan_steps
from mgspmv.pipeline.reading import Definition, read_pipeline
from mgspmv.pipeline.records import Records, now
from mgspmv.pipeline.steps import PipelineStep
from mgspmv.report.record import RunRecord, State, StepOutcome, StepRecord
from mgspmv.version import __version__


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
    on_step: Callable[[StepOutcome], None] | None = None,
    on_note: Callable[[str], None] | None = None,
    throw: bool = True,
) -> RunRecord:
    """Run a definition: keep finished steps, and make the others.

    A step is finished if its record states the same inputs, the same options and this version of the program, and all
    of its outputs are unchanged. For a finished pipeline nothing is written. A run that ends early, for any reason, is
    resumed by the next.

    Parameters
    ----------
    path : the TOML file; paths in it are relative to it
    overrides : values that replace the values of the file, by dotted key, such as `run.alpha`
    client : client of a Dask cluster, as in `Matrix.distribute`, in place of the definition's
    on_step : called with the outcome of each step when it ends
    on_note : called with messages about the cluster: its dashboard and, for a batch system, why jobs are pending
    throw : raise if a step failed; False returns the record of the failure

    Returns
    -------
    RunRecord: outcomes of the steps. `StepRecord.outputs` lists the files of ranks, for `load_solution`.

    Raises
    ------
    PipelineError : the definition is wrong
    PipelineBusyError : another run works in the same folder
    StepsFailedError : steps failed; those that do not depend on them were made
    KeyboardInterrupt : it was interrupted; the message lists the finished steps
    """
    definition = read_pipeline(path, overrides)
    records = Records(definition.folder, definition.base)
    began, clock = now(), time.perf_counter()

    def describe(outcomes: Iterable[StepOutcome]) -> RunRecord:
        elapsed_s, tables = time.perf_counter() - clock, definition.tables
        return RunRecord(definition.name, definition.file, tables, began, elapsed_s, __version__, [*outcomes])

    planned = plan_steps(definition, records)
    if all(step.state == "kept" for step in planned):
        return describe(StepOutcome(p.name, p.kind, "kept", 0.0, records.read_kept(p.name, p.target)) for p in planned)
    pipeline = definition.pipeline
    is_interrupted = False
    with (
        records.hold(),
        ComputeResources(pipeline.cluster, client, pipeline.limits.threads, on_note) as computing,
    ):
        work = RunContext(definition, records, computing)
        why = "the run was interrupted before"
        run = _PipelineRun(
            work, on_step or ignore, {p.name: StepOutcome(p.name, p.kind, "skipped", 0.0, None, why) for p in planned}
        )
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
    on_step: Callable[[StepOutcome], None]
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
                self._note(step, "skipped", error=f"needs {first.name}, which failed")
            return
        with OpenedMatrix(first.target, self.work.computing) as opened:
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
                if not describe_reason(step, info, self.work.definition.pipeline, self.work.records):
                    state, record = "kept", self.work.records.read_kept(step.name, step.target)
                elif opened is None:
                    record = make_matrix(self.work, step)
                else:
                    record, failure = make_result(self.work, step, opened)
        except KeyboardInterrupt:  # also raised if a run was cancelled
            self._note(step, "failed", time.perf_counter() - began, error="interrupted")
            raise
        except Exception as error:
            failure = error
        said = None
        if failure is not None:
            self.errors.append(failure)
            is_own = isinstance(failure, MgspmvError)
            said = str(failure) if is_own else hide_secrets(f"{type(failure).__name__}: {failure}")
        self._note(step, state if failure is None else "failed", time.perf_counter() - began, record, said)
        return failure is None

    def _note(
        self,
        step: PipelineStep,
        state: State,
        elapsed_s: float = 0.0,
        record: StepRecord | None = None,
        error: str | None = None,
    ) -> None:
        self.outcomes[step.name] = outcome = StepOutcome(step.name, step.kind, state, elapsed_s, record, error)
        fields = {"step": step.name, "state": state, "elapsed_s": elapsed_s}
        level = logging.ERROR if state == "failed" else logging.INFO
        PIPELINE.log(level, "step %s is %s%s", step.name, state, f": {error}" if error else "", extra=fields)
        self.on_step(outcome)
