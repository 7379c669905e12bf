"""What stands at the head of a report: how the run ended, in a few numbers and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mgspmv.display.numbers import format_bytes, format_scaled, format_seconds
from mgspmv.model import Status
from mgspmv.report.record import RunRecord, StepRecord
from mgspmv.report.views import has_ended_well, is_ranks, list_records, list_statuses, measure_rate, say, select

MOST_NAMED = 8
"""Steps that say the same."""


@dataclass(frozen=True)
class Tile:
    """A number."""

    name: str
    value: str
    more: str = ""


@dataclass(frozen=True)
class Problem:
    """What did not come about, and why."""

    steps: str
    state: str
    text: str


def list_facts(run: RunRecord) -> list[tuple[str, str]]:
    """When, what and on what, as far as it is known."""
    records = list_records(run)
    facts = {
        "began": f"{datetime.fromisoformat(run.began):%Y-%m-%d %H:%M:%S %Z}".strip() if run.began else "",
        "took": format_seconds(run.elapsed_s) if run.elapsed_s else "",
        "file": run.file,
        "program": f"mgspmv {run.version}" if run.version else "",
        "versions": _list_versions(records),
        "hardware": "; ".join(_list_hardware(records)),
    }
    return [(name, value) for name, value in facts.items() if value]


def _list_versions(records: Iterable[StepRecord]) -> str:
    """Of Python and libraries; where they are not the same for all steps, all that there are."""
    found: dict[str, list[str]] = {}
    for record in records:
        for name, version in record.provenance.get("versions", {}).items():
            found.setdefault(name, []).append(str(version))
    named = {name: " and ".join(dict.fromkeys(versions)) for name, versions in found.items() if name != "mgspmv"}
    return ", ".join(f"{name} {versions}" for name, versions in named.items())


def _list_hardware(records: Sequence[StepRecord]) -> list[str]:
    """What the steps say that they ran on, each once."""
    said = [_describe_machine(record.provenance.get("machine", {})) for record in records]
    said += [say(record.matrix.get("hardware") or "") for record in records]
    return [hardware for hardware in dict.fromkeys(said) if hardware]


def _describe_machine(machine: Mapping[str, Any]) -> str:
    counts = [f"{machine['processors']} processors"] if "processors" in machine else []
    counts += [format_bytes(machine["memory_bytes"])] if "memory_bytes" in machine else []
    return ", ".join([*(str(machine[name]) for name in ("host", "processor") if machine.get(name)), *counts])


def list_tiles(run: RunRecord) -> list[Tile]:
    """What the run came to."""
    counts = {state: sum(step.state == state for step in run.steps) for state in ("made", "kept", "failed", "skipped")}
    tiles = [Tile("steps", f"{len(run.steps)}", ", ".join(f"{n} {state}" for state, n in counts.items() if n))]
    if run.elapsed_s:
        tiles.append(Tile("time", format_seconds(run.elapsed_s), "from begin to end"))
    ranked = select(list_records(run), is_ranks)
    if ranked:
        n_well = len(select(ranked, has_ended_well))
        n_iterations = sum(_count_iterations(record) for record in ranked)
        tiles.append(Tile("runs", f"{len(ranked)}", f"{n_well} ended as asked, {n_iterations:,} iterations"))
        fastest = max(ranked, key=measure_rate)
        if rate := measure_rate(fastest):
            tiles.append(Tile("edges a second", format_scaled(rate), f"at most, {fastest.name}"))
    peaks = [peak for record in list_records(run) for peak in _list_peaks(record)]
    if peaks:
        most, where = max(peaks)
        tiles.append(Tile("memory", format_bytes(most), f"at most, {where}"))
    return tiles


def _count_iterations(record: StepRecord) -> int:
    own = [record.result, *record.result.get("vectors", [])]
    return sum(int(described.get("iterations", 0)) for described in own)


def _list_peaks(record: StepRecord) -> list[tuple[int, str]]:
    names = {"host_peak_bytes": "of a process", "device_bytes": "on a device"}
    taken = record.memory
    return [(max(taken[name]), f"{where}: {record.name}") for name, where in names.items() if taken.get(name)]


def list_problems(run: RunRecord) -> list[Problem]:
    """The steps that failed and those that were skipped for it, and runs that did not meet their tolerance; what
    several of them say is there once."""
    found: dict[tuple[str, str], list[str]] = {}
    for step in run.steps:
        why: tuple[str, str] | None = None
        if step.state in ("failed", "skipped"):
            why = (step.state, step.error or "no reason was written down")
        elif step.record is not None and not has_ended_well(step.record):
            status = _find_worst(step.record)
            why = (f"ended as {status}", status.advice)
        if why is not None:
            found.setdefault(why, []).append(step.name)
    return [Problem(_enumerate(names), state, text) for (state, text), names in found.items()]


def _find_worst(record: StepRecord) -> Status:
    """The first status that is one of failure."""
    return next(status for status in list_statuses(record) if not status.is_success)


def _enumerate(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
