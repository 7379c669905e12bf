"""What stands at the head of a report: how the run ended, in a few numbers and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from mgspmv.display.numbers import format_bytes, format_seconds
from mgspmv.report.record import RunRecord, StepRecord
from mgspmv.report.views import has_ended_well, list_records, list_statuses, say


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


def list_peaks(records: Iterable[StepRecord]) -> list[tuple[int, str]]:
    """The most bytes that each step took, and where."""
    names = {"host_peak_bytes": "of a process", "device_bytes": "on a device"}
    return [
        (max(record.memory[name]), f"{where}: {record.name}")
        for record in records
        for name, where in names.items()
        if record.memory.get(name)
    ]


def list_problems(run: RunRecord) -> list[tuple[list[str], str, str]]:
    """The steps that failed and those that were skipped for it, and runs that did not meet their tolerance: names, what
    became of them and why; what several of them say is there once."""
    found: dict[tuple[str, str], list[str]] = {}
    for step in run.steps:
        why: tuple[str, str] | None = None
        if step.state in ("failed", "skipped"):
            why = (step.state, step.error or "no reason was written down")
        elif step.record is not None and not has_ended_well(step.record):
            status = next(status for status in list_statuses(step.record) if not status.is_success)
            why = (f"ended as {status}", status.advice)
        if why is not None:
            found.setdefault(why, []).append(step.name)
    return [(names, state, text) for (state, text), names in found.items()]
