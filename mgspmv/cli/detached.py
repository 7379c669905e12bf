"""Commands about detached runs: `status`, `attach` and `cancel`."""

from __future__ import annotations

import shlex
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from mgspmv.cli.detaching import answer_end
from mgspmv.cli.mode import MODE, note_kept, open_progress
from mgspmv.cli.options import Scheduler, Timeout
from mgspmv.cli.place import Place, open_client
from mgspmv.cli.program import Answer
from mgspmv.cli.tables import tabulate, tabulate_fields
from mgspmv.detached import SAID, DetachedRun, end_run, find_run, list_runs
from mgspmv.errors import OptionError, RunLostError, escape_controls

if TYPE_CHECKING:
    from mgspmv.monitor.recording import Replay

RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="Id of a detached run, or its beginning; `last` is the newest.")
]

SHOWN_CHARACTERS = 60
"""Of a command in a list."""
_LOOK_S = 0.2
"""Seconds between two looks at a run that is shown."""


# --- status ----------------------------------------------------------------------------------------------------------


def status(
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="Id of one, or its beginning; `last` is the newest. Default all."),
    ] = None,
    *,
    scheduler: Scheduler = None,
    timeout: Timeout = 30.0,
) -> Answer:
    """List detached runs, the newest first, or say all of one; with --scheduler the runs that a cluster knows."""
    if scheduler is not None and run is not None:
        raise OptionError("RUN is a detached run, and --scheduler lists those of a cluster; leave one of them out")
    if scheduler is not None:
        return _answer_known(Place(scheduler=scheduler, timeout=timeout))
    if run is not None:
        found = find_run(run)
        return Answer({"runs": [describe_run(found)]}, [tabulate_fields(_list_fields(found))])
    runs = list_runs()
    rows = [_list_cells(found) for found in runs]
    titles = ("run", "state", "does", "change", "began", "host", "command")
    return Answer(
        {"runs": [describe_run(found) for found in runs]},
        [tabulate(titles, rows, n_texts=7)] if rows else ["there are no detached runs; --detach makes them"],
    )


def describe_run(run: DetachedRun) -> dict[str, Any]:
    """All that is known of a run, as JSON values."""
    asked, stage, progress = run.asked, run.stage, run.progress
    return {
        "run": asked.run,
        "state": run.state,
        "command": asked.command,
        "args": list(asked.args),
        "cwd": asked.cwd,
        "host": asked.host,
        "pid": None if run.process is None else run.process.pid,
        "version": asked.version,
        "began": asked.began,
        "seconds": run.heard - asked.began,
        "phase": stage.phase,
        "iteration": stage.iteration,
        "change": stage.change,
        "steps": None if progress.n_steps is None else {"ended": progress.n_ended, "all": progress.n_steps},
        "checkpoint": asked.checkpoint,
        "checkpoint_iteration": stage.kept,
        "exit_code": None if run.end is None else run.end.exit_code,
        "error": None if run.end is None else run.end.payload.get("error"),
        "again": None if run.is_live or run.state == "ended" else name_again(run),
        "folder": str(run.folder),
    }


def name_again(run: DetachedRun) -> str:
    """The command that goes on where a run was, or begins anew where nothing is kept."""
    asked = run.asked
    goes_on = asked.checkpoint is not None and not asked.has_own_place and "--resume" not in asked.args
    words = ["mgspmv", *asked.args, *(["--resume"] if goes_on else [])]
    return f"cd {shlex.quote(asked.cwd)} && {shlex.join(words)}"


def _list_cells(run: DetachedRun) -> tuple[str, ...]:
    stage, command = run.stage, shlex.join(run.asked.args)
    change = "" if stage.change is None else f"{stage.change:.3g}"
    shown = command if len(command) <= SHOWN_CHARACTERS else f"{command[: SHOWN_CHARACTERS - 3]}..."
    return run.asked.run, run.state, _describe_progress(run), change, _format_time(run), run.asked.host, shown


def _list_fields(run: DetachedRun) -> dict[str, Any]:
    told = describe_run(run)
    fields = {name: told[name] for name in ("run", "state")}
    fields |= {"command": shlex.join(["mgspmv", *run.asked.args]), "in": run.asked.cwd, "began": _format_time(run)}
    fields |= {"process": f"{told['pid'] or '?'} of {run.asked.host}", "does": _describe_progress(run)}
    if told["change"] is not None:
        fields["change"] = f"{told['change']:.3g}"
    if told["checkpoint"] is not None and run.state != "ended":
        fields["checkpoint"] = _describe_kept(run)
    if told["exit_code"] is not None:
        fields["exit code"] = told["exit_code"]
    if told["error"] is not None:
        fields["error"] = told["error"]["message"]
    if told["again"] is not None:
        fields["again"] = told["again"]
    return fields | {"folder": told["folder"]}


def _describe_progress(run: DetachedRun) -> str:
    stage, progress = run.stage, run.progress
    if progress.n_steps is not None:
        return f"{progress.n_ended} of {progress.n_steps} steps"
    if stage.iteration:
        return f"iteration {stage.iteration:,}" if stage.phase == "iterate" else f"{stage.phase}, {stage.iteration:,}"
    return f"{stage.phase} {stage.done:,}/{stage.total:,}" if stage.total else stage.phase


def _describe_kept(run: DetachedRun) -> str:
    kept, place = run.stage.kept, run.asked.checkpoint
    return f"{place} has iteration {kept}" if kept else f"none yet, they go to {place}"


def _format_time(run: DetachedRun) -> str:
    return datetime.fromtimestamp(run.asked.began).strftime("%Y-%m-%d %H:%M:%S")


def _answer_known(place: Place) -> Answer:
    """Of the runs that a scheduler knows."""
    with open_progress() as progress, open_client(place, progress) as client:
        from mgspmv.monitor.known import list_known_runs

        known = list_known_runs(client)
    rows = [
        (
            run["run"],
            run["state"],
            run["operation"],
            f"{run['iterations']:,}",
            "" if run["change"] is None else f"{run['change']:.3g}",
            f"{run['seconds']:.3g}",
            str(run["workers"]),
            run["matrix"],
        )
        for run in known
    ]
    titles = ("run", "state", "computes", "iterations", "change", "seconds", "workers", "matrix")
    shown = tabulate(titles, rows, n_texts=8) if rows else "this scheduler knows of no runs"
    return Answer({"runs": known}, [shown])


# --- attach ----------------------------------------------------------------------------------------------------------


def attach(run: RunName) -> Answer:
    """Show a detached run until it ends, and give its answer and exit code; Ctrl-C leaves it, and it goes on."""
    found = find_run(run)
    name = found.asked.run
    note_kept(f"run {name} goes on; `mgspmv attach {name}` shows it again, `mgspmv cancel {name}` ends it")
    ended = _follow(found)
    if ended.end is None:
        raise RunLostError(f"run {name} is lost: {_explain_lost(ended)}")
    return answer_end(ended.end)


def _follow(run: DetachedRun) -> DetachedRun:
    """Show what a run says, and how far it is, until it ends."""
    with open(run.folder / SAID, encoding="utf-8", errors="replace") as said, _open_replay() as replay:
        while True:
            if replay is not None:
                replay.show(run.progress)
            _pass_on(said)
            if not run.is_live:
                return run
            time.sleep(_LOOK_S)
            run = run.look_again()


def _open_replay() -> AbstractContextManager[Replay | None]:
    """What shows progress; None where nobody looks."""
    from mgspmv.monitor.progress import Progress, StepsProgress, is_watched
    from mgspmv.monitor.recording import Replay

    return Replay(Progress, StepsProgress) if is_watched() and not MODE.get().is_quiet else nullcontext()


def _pass_on(said: IO[str]) -> None:
    """Say what the run said since the last time."""
    new = said.read()
    if new and not MODE.get().is_quiet:
        sys.stderr.write(escape_controls(new))
        sys.stderr.flush()


def _explain_lost(run: DetachedRun) -> str:
    kept = f"its last checkpoint is of iteration {run.stage.kept}, " if run.stage.kept else "it told of no checkpoint, "
    return f"its process is gone and did not say how it ended; {kept}and the command again is {name_again(run)}"


# --- cancel ----------------------------------------------------------------------------------------------------------


def cancel(
    run: RunName,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Until it is killed that does not end.")] = 30.0,
) -> Answer:
    """End a detached run as Ctrl-C does, and say what is kept of it."""
    found = find_run(run)
    if not found.is_live:
        return Answer(describe_run(found), [f"run {found.asked.run} is {found.state} already"])
    left = end_run(found, timeout)
    said = f"run {left.asked.run} is {left.state}"
    if left.state == "cancelled":
        way = f"to go on from iteration {left.stage.kept}" if left.stage.kept else "to begin again"
        said = f"{said}; {way}:\n  {name_again(left)}"
    return Answer(describe_run(left), [said])
