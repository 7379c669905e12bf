"""Running a pipeline: steps that are finished are kept, the others are made, matrices side by side.

web   |--- ingest ---|- run -|- run -|- product -|          what is computed of a matrix comes one after the other,
wiki  |- ingest -|- run -|- run -|                          for it is loaded once, and each takes all its threads
roads            waits for memory |- ingest -|- run -|
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from typing import Any

from mgspmv.api.arguments import ignore
from mgspmv.errors import CapacityError, MgspmvError, StepsFailedError, hide_secrets
from mgspmv.logs import PIPELINE
from mgspmv.model import Event, Progress, default_threads
from mgspmv.pipeline.computing import Computing, OpenedMatrix
from mgspmv.pipeline.foresee import describe_refused, find_hopeless
from mgspmv.pipeline.identity import MatrixIdentity
from mgspmv.pipeline.leaving import has_made, remove_unused_locks
from mgspmv.pipeline.locks import hold, hold_targets
from mgspmv.pipeline.make_matrix import find_info, make_matrix
from mgspmv.pipeline.make_results import UnfinishedError, make_result
from mgspmv.pipeline.outputs import Results
from mgspmv.pipeline.plan import find_memory, is_turned, look_at_matrix, look_at_result
from mgspmv.pipeline.predict import predict_matrix, predict_result
from mgspmv.pipeline.reading import Definition, read_pipeline
from mgspmv.pipeline.records import Records, now
from mgspmv.pipeline.showing import watch_steps
from mgspmv.pipeline.sources import Checksums
from mgspmv.pipeline.steps import Step, list_steps
from mgspmv.pipeline.work import Work
from mgspmv.report.record import RunRecord, State, StepOutcome, StepRecord
from mgspmv.version import __version__

POLL_S = 0.2
"""Seconds between two looks at whether the run is interrupted."""


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
    on_event : called with a step and what an iteration of it did, by the threads that steps run on
    on_progress : called with ("step: phase", done, total or None), likewise
    on_step : called with what became of a step as soon as that is known, likewise
    on_note : called with lines on the cluster: where its dashboard is and, of a batch system, what jobs wait for,
        likewise
    throw : raise when a step failed; False returns the record that says so

    Returns
    -------
    RunRecord: what became of each step. Ranks are where `StepRecord.outputs` says; `load_solution` reads them.

    Raises
    ------
    PipelineError : the definition is wrong
    PipelineBusyError : another run works in the same folder, or writes to a place that this one would write to
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

    finished = _find_finished(definition, lanes, records, checksums)
    if finished is not None:
        return note(finished)
    if hopeless := find_hopeless(definition.pipeline, lanes, records):
        return _conclude(note(describe_refused(lanes, hopeless)), [*hopeless.values()], definition, throw=throw)
    limits, n_lanes = definition.pipeline.limits, min(definition.pipeline.limits.side_by_side, len(lanes))
    threads = -(-(limits.threads or default_threads()) // n_lanes)
    computes = Computing(definition.pipeline.cluster, client, threads, on_note)
    ending = threading.Event()
    with (
        remove_unused_locks(lanes, records),
        hold(definition.folder) as own,
        hold_targets(lanes, own, ending.set),
        computes as computing,
    ):
        records.sweep()
        work = Work(definition, records, checksums, computing, on_progress or ignore, on_event, ending)
        run = _Run(work, Ledger(find_memory(limits), is_given=limits.memory is not None), on_step)
        try:
            run.run(lanes, n_lanes)
        finally:
            record = note(run.list_outcomes(lanes))
            if any(step.state != "kept" for step in record.steps):
                records.write_run(record)
            if not (run.is_interrupted or has_made(lanes, records)):
                records.forget()
                checksums.forget()
    if run.is_interrupted:
        raise RunInterrupted(record)
    return _conclude(record, run.errors, definition, throw=throw)


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


def _find_finished(
    definition: Definition, lanes: dict[str, list[Step]], records: Records, checksums: Checksums
) -> list[StepOutcome] | None:
    """All steps, if there is nothing to be done for any of them."""
    outcomes = []
    info: Any = None
    for step in (step for lane in lanes.values() for step in lane):
        began = time.perf_counter()
        try:
            if step.kind == "matrix":
                look, info = look_at_matrix(step, records, checksums, needs_identity=False), find_info(step.target)
            else:
                look = look_at_result(step, info, definition.pipeline, records, checksums)
        except MgspmvError:
            return None
        if look.why:
            return None
        outcomes.append(StepOutcome(step.name, step.kind, "kept", time.perf_counter() - began, look.record))
    return outcomes


# --- memory ----------------------------------------------------------------------------------------------------------


class Ledger:
    """Memory that steps share. Who wants more than is left waits for others to end.

    Parameters
    ----------
    limit : bytes
    is_given : whether more than that is refused; else who wants more has it alone
    """

    def __init__(self, limit: int, *, is_given: bool) -> None:
        self.limit, self._is_given = limit, is_given
        self._taken, self._n_holders = 0, 0
        self._changed = threading.Condition()

    def take(self, n_bytes: int, is_interrupted: threading.Event) -> None:
        """Have so many bytes, once they are left.

        Raises
        ------
        CapacityError : it is more than all steps may have
        KeyboardInterrupt : the run is interrupted meanwhile
        """
        if n_bytes > self.limit and self._is_given:
            raise CapacityError(
                f"needs {n_bytes:,} bytes and memory in [limits] is {self.limit:,}; allow more, or compute on a cluster"
            )
        with self._changed:
            while self._n_holders and self._taken + n_bytes > self.limit:
                if is_interrupted.is_set():
                    raise KeyboardInterrupt
                self._changed.wait(POLL_S)
            self._taken, self._n_holders = self._taken + n_bytes, self._n_holders + 1

    def give_back(self, n_bytes: int) -> None:
        """Leave what was taken to others."""
        with self._changed:
            self._taken, self._n_holders = self._taken - n_bytes, self._n_holders - 1
            self._changed.notify_all()


class Share:
    """What a matrix has of the memory, and of the device, while something is computed of it.

    It is given back before more is asked for, so that no two wait for each other.
    """

    def __init__(self, work: Work, ledger: Ledger) -> None:
        self._work, self._ledger = work, ledger
        self._held: int | None = None
        self._has_device = False

    def ensure(self, n_bytes: int, *, on_device: bool, unload: Callable[[], None]) -> None:
        """Have at least so many bytes.

        Parameters
        ----------
        unload : frees what is in the memory that there was

        Raises
        ------
        CapacityError, KeyboardInterrupt : as of `Ledger.take`
        """
        if self._held is not None and n_bytes <= self._held and self._has_device >= on_device:
            return
        unload()
        self.release()
        self._ledger.take(n_bytes, self._work.is_interrupted)
        self._held = n_bytes
        while on_device and not self._has_device:
            self._has_device = self._work.computing.device.acquire(timeout=POLL_S)
            if self._work.is_interrupted.is_set():
                raise KeyboardInterrupt

    def release(self) -> None:
        """Leave all of it to others."""
        if self._has_device:
            self._work.computing.device.release()
        if self._held is not None:
            self._ledger.give_back(self._held)
        self._held, self._has_device = None, False


# --- lanes -----------------------------------------------------------------------------------------------------------


@dataclass
class _Run:
    """Works on matrices side by side, and notes what became of each step."""

    work: Work
    ledger: Ledger
    on_step: Callable[[StepOutcome], None] | None
    outcomes: dict[str, StepOutcome] = field(default_factory=dict)
    errors: list[Exception] = field(default_factory=list)

    @property
    def is_interrupted(self) -> bool:
        return self.work.is_interrupted.is_set()

    def run(self, lanes: dict[str, list[Step]], n_side_by_side: int) -> None:
        """Work on all, so many at a time; back when all threads have ended."""
        waiting, ended = deque(lanes.values()), [threading.Event() for _ in range(n_side_by_side)]
        for k, own in enumerate(ended):
            name = f"mgspmv-pipeline-{k}"
            threading.Thread(target=self._take_turns, args=(waiting, own), name=name, daemon=True).start()
        while True:  # for events, as Python takes a thread for ended whose join was interrupted
            try:
                if all(own.wait(POLL_S) for own in ended):
                    return
            except KeyboardInterrupt:
                if self.is_interrupted:  # the second time nobody is waited for
                    raise
                self.work.is_interrupted.set()

    def list_outcomes(self, lanes: dict[str, list[Step]]) -> list[StepOutcome]:
        """Of all steps, in the order of the plan."""
        steps = [step for lane in lanes.values() for step in lane]
        skipped = "the run was interrupted before"
        return [
            self.outcomes.get(step.name, StepOutcome(step.name, step.kind, "skipped", 0.0, None, skipped))
            for step in steps
        ]

    def _take_turns(self, waiting: deque[list[Step]], ended: threading.Event) -> None:
        try:
            while not self.is_interrupted and (lane := _take_next(waiting)):
                self._work_on(*lane)
        finally:
            ended.set()

    def _work_on(self, first: Step, *rest: Step) -> None:
        """A matrix, and then what is computed of it."""
        if not self._attempt(first, partial(self._make_matrix, first)):
            for step in () if self.is_interrupted else rest:
                error = f"needs {first.name}, which failed"
                self._note(StepOutcome(step.name, step.kind, "skipped", 0.0, None, error))
            return
        opened, share = OpenedMatrix(first.target, self.work.computing), Share(self.work, self.ledger)
        try:
            for step in rest:
                if not self.is_interrupted:
                    self._attempt(step, partial(self._make_result, step, opened, share))
        finally:
            opened.unload()
            share.release()

    def _attempt(self, step: Step, make: Callable[[], StepOutcome]) -> bool:
        """Note what becomes of a step; whether it is there. What fails, fails it alone."""
        began, record = time.perf_counter(), None
        try:
            self._note(make())
            return True
        except KeyboardInterrupt:  # also of a run that was cancelled
            self.work.is_interrupted.set()
            said = "interrupted"
        except UnfinishedError as unfinished:
            said, record = str(unfinished), unfinished.record
            self.errors.append(unfinished.error)
        except Exception as error:
            said = str(error) if isinstance(error, MgspmvError) else hide_secrets(f"{type(error).__name__}: {error}")
            self.errors.append(error)
        elapsed_s = time.perf_counter() - began
        self._note(StepOutcome(step.name, step.kind, "failed", elapsed_s, record, said))
        return False

    def _note(self, outcome: StepOutcome) -> None:
        self.outcomes[outcome.name] = outcome
        _log(outcome)
        if self.on_step is not None:
            self.on_step(outcome)

    def _make_matrix(self, step: Step) -> StepOutcome:
        began, work = time.perf_counter(), self.work
        look = look_at_matrix(step, work.records, work.checksums)
        if not look.why:
            return StepOutcome(step.name, step.kind, "kept", time.perf_counter() - began, look.record)
        assert isinstance(look.identity, MatrixIdentity)
        work.checksums.save()
        threads, on_workers = work.computing.threads, work.computing.makes_matrices
        needed = predict_matrix(step.section, threads, self.ledger.limit, on_workers=on_workers)
        share = Share(work, self.ledger)
        try:
            share.ensure(needed, on_device=False, unload=lambda: None)
            record = make_matrix(work, step, look.identity, needed)
        finally:
            share.release()
        work.records.write_step(record)
        return StepOutcome(step.name, step.kind, "made", time.perf_counter() - began, record, None, needed)

    def _make_result(self, step: Step, opened: OpenedMatrix, share: Share) -> StepOutcome:
        began, work, results = time.perf_counter(), self.work, Results(self.work.records, step)
        predicted: tuple[int | None, float | None] = None, None
        if results.is_waiting:
            results.publish()
        look = look_at_result(step, opened.matrix.info, work.definition.pipeline, work.records, work.checksums)
        record: StepRecord | None = look.record
        state: State = "kept"
        if look.why:
            assert look.identity is not None
            work.checksums.save()
            computing = work.computing
            needed, seconds = predict_result(step, opened.turn(is_turned(step)), computing, look.record, times=False)
            share.ensure(needed, on_device=computing.is_on_device(step.section), unload=opened.unload)
            record, state = make_result(work, step, look.identity, opened, needed), "made"
            predicted = needed, seconds
        return StepOutcome(step.name, step.kind, state, time.perf_counter() - began, record, None, *predicted)


def _log(outcome: StepOutcome) -> None:
    fields = {"step": outcome.name, "state": outcome.state, "elapsed_s": outcome.elapsed_s}
    said = f": {outcome.error}" if outcome.error else ""
    level = logging.ERROR if outcome.state == "failed" else logging.INFO
    PIPELINE.log(level, "step %s is %s%s", outcome.name, outcome.state, said, extra=fields)


def _take_next(waiting: deque[list[Step]]) -> list[Step] | None:
    with suppress(IndexError):  # nothing waits any more
        return waiting.popleft()
    return None
