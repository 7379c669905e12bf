"""Where the time of a run went, as a trace that Perfetto and chrome://tracing show, a row for each worker.

    phases     |- load -|- start -|--------------- iterate ---------------|- residual -|- collect -|
    worker 0                      | product | wait | exchange | product ...
    worker 1                      | product   | exchange      | product   ...

Source: the Trace Event Format of Chromium, its JSON object form. Runs note how long things took, and not when they
began: phases follow each other, and so do the parts of each worker's iterations, from the begin of iterating on. What
lies between iterations, such as what the scheduler takes, is therefore at the end of a row, and the rows of workers
are as exact beside each other as these parts add up on each.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

from mgspmv.errors import OptionError, StoreExistsError
from mgspmv.files import create_file, exists
from mgspmv.model import Event

BEFORE, AFTER = ("load", "queue", "compile", "follow", "start"), ("residual", "collect")
"""Phases before and after iterating, in their order."""
ITERATING = ("product", "exchange", "look", "enter", "keep", "checkpoint", "schedule")
"""Phases that iterating is made of: of a batch, vectors enter and are kept between passes; the last checkpoint, after
iterating, is in `checkpoint` too."""
PARTS = ("product", "wait", "exchange")
"""What a worker does in an iteration, in this order."""
LAID_OUT = "durations are measured, begins are the sums of the durations before them in the row"

_PID, _PHASES = 1, 0
"""Of the run, and the row of its phases; workers come below it."""


def write_trace(
    path: str | os.PathLike[str],
    events: Sequence[Event],
    seconds: Mapping[str, float],
    said: Mapping[str, Any],
    *,
    overwrite: bool = False,
) -> None:
    """Write the trace of a run to a path or URL that ends in `.json`.

    Parameters
    ----------
    events : what each iteration did
    seconds : by phase
    said : what else is known of the run, for the reader

    Raises
    ------
    OptionError : another suffix, or there are no events
    StoreExistsError : something is there and `overwrite` is False
    StoreError : it cannot be written
    """
    if not os.fspath(path).endswith(".json"):
        raise OptionError(f"{os.fspath(path)}: a trace is JSON; pass a name that ends in .json")
    if not events:
        raise OptionError(
            "there is nothing to trace, as no iteration was noted; vectors of a batch share theirs: trace the batch"
        )
    if not overwrite and exists(path):
        raise StoreExistsError(f"{os.fspath(path)} exists already; choose another name or pass overwrite=True")
    about: dict[str, Any] = {"run": events[0].run, "laid out": LAID_OUT, **said}
    head = {"displayTimeUnit": "ms", "otherData": {name: str(value) for name, value in about.items()}}
    with create_file(path) as file:
        file.write(f'{json.dumps(head)[:-1]}, "traceEvents": [\n'.encode())
        for number, entry in enumerate(generate_entries(events, seconds)):
            file.write(f"{',' if number else ''}{json.dumps(entry, allow_nan=False)}\n".encode())
        file.write(b"]}\n")


def generate_entries(events: Sequence[Event], seconds: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    """The entries of a trace: names of rows, phases, and the parts of each worker's iterations.

    Yields
    ------
    dicts of the trace-event format; `ts` and `dur` are in microseconds.
    """
    n_workers = len(events[0].product_s)
    yield _name("process_name", _PHASES, f"mgspmv run {events[0].run}")
    for row in range(n_workers + 1):
        yield _name("thread_name", row, "phases" if row == _PHASES else f"worker {row - 1}")
        yield {"ph": "M", "name": "thread_sort_index", "pid": _PID, "tid": row, "args": {"sort_index": row}}
    began = yield from _lay_out_phases(seconds)
    for worker in range(n_workers):
        yield from _lay_out_worker(events, worker, began)


def _lay_out_phases(seconds: Mapping[str, float]) -> Generator[dict[str, Any], None, float]:
    """One after the other; returns when iterating begins, in seconds."""
    others = [phase for phase in seconds if phase not in (*BEFORE, *ITERATING, *AFTER)]
    at = 0.0
    for phase in (*BEFORE, *others):
        if phase in seconds:
            yield _complete(phase, _PHASES, at, seconds[phase])
            at += seconds[phase]
    began, parts = at, {phase: seconds[phase] for phase in ITERATING if phase in seconds}
    yield _complete("iterate", _PHASES, at, sum(parts.values()), **{f"{name}_s": own for name, own in parts.items()})
    at += sum(parts.values())
    for phase in AFTER:
        if phase in seconds:
            yield _complete(phase, _PHASES, at, seconds[phase])
            at += seconds[phase]
    return began


def _lay_out_worker(events: Sequence[Event], worker: int, at: float) -> Iterator[dict[str, Any]]:
    """Each iteration, and in it what the worker did; the first worker's row tells the change too."""
    for event in events:
        own = {part: getattr(event, f"{part}_s")[worker] for part in PARTS}
        known: dict[str, Any] = {"exchanged_bytes": event.exchanged_bytes[worker]}
        known |= {"memory_bytes": event.memory_bytes[worker], "change": repr(event.change), "epoch": event.epoch}
        yield _complete(f"iteration {event.iteration}", worker + 1, at, sum(own.values()), **known)
        for part, elapsed_s in own.items():
            if elapsed_s > 0:
                yield _complete(part, worker + 1, at, elapsed_s, iteration=event.iteration)
            at += elapsed_s
        if worker == 0 and math.isfinite(event.change) and event.change > 0:
            value = {"log10": math.log10(event.change)}
            yield {"ph": "C", "name": "change", "pid": _PID, "tid": 1, "ts": _to_us(at), "args": value}


def _complete(name: str, row: int, began_s: float, elapsed_s: float, **known: Any) -> dict[str, Any]:
    times = {"ts": _to_us(began_s), "dur": _to_us(began_s + elapsed_s) - _to_us(began_s)}
    return {"ph": "X", "name": name, "cat": "mgspmv", "pid": _PID, "tid": row, **times, "args": known}


def _name(kind: str, row: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": _PID, "tid": row, "args": {"name": name}}


def _to_us(seconds: float) -> float:
    return seconds * 1e6
