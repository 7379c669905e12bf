"""Traces in the Trace Event Format, read back and checked as its description asks."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

PHASES = {"X": {"ts", "dur"}, "C": {"ts", "args"}, "M": {"args"}}
"""Kinds of entries that are used, and what each needs beside `name`, `pid` and `tid`."""
METADATA = {"process_name": "name", "thread_name": "name", "thread_sort_index": "sort_index"}
SLACK_US = 1e-3
"""What rounding does to times."""


def read_trace(path: str | Path) -> dict[str, Any]:
    """A trace; fails where an entry is not as the format wants it, or two of a row overlap without one in the other."""
    trace: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=_refuse)
    assert trace["displayTimeUnit"] in ("ms", "ns")
    assert all(isinstance(value, str) for value in trace["otherData"].values())
    for entry in trace["traceEvents"]:
        assert {"ph", "name", "pid", "tid"} | PHASES[entry["ph"]] <= entry.keys(), entry
        assert isinstance(entry["name"], str)
        assert isinstance(entry["pid"], int)
        assert isinstance(entry["tid"], int)
        for name in ("ts", "dur"):
            assert math.isfinite(entry.get(name, 0.0)), entry
            assert entry.get(name, 0.0) >= 0, entry
        if entry["ph"] == "M":
            assert METADATA[entry["name"]] in entry["args"]
        if entry["ph"] == "C":
            assert all(isinstance(value, int | float) for value in entry["args"].values())
    for row in list_rows(trace).values():
        _check_nesting(row)
    return trace


def list_rows(trace: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The complete events of each row, by its name, in the order of the file."""
    entries = trace["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in entries if e["ph"] == "M" and e["name"] == "thread_name"}
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in names.values()}
    for entry in entries:
        if entry["ph"] == "X":
            rows[names[entry["tid"]]].append(entry)
    return rows


def add_up(row: list[dict[str, Any]]) -> dict[str, float]:
    """Seconds of all complete events of a row, by their names."""
    sums: dict[str, float] = defaultdict(float)
    for entry in row:
        sums[entry["name"]] += entry["dur"] / 1e6
    return dict(sums)


def _check_nesting(row: list[dict[str, Any]]) -> None:
    open_until: list[float] = []
    for entry in sorted(row, key=lambda e: (e["ts"], -e["dur"])):
        end = entry["ts"] + entry["dur"]
        while open_until and open_until[-1] <= entry["ts"] + SLACK_US:
            open_until.pop()
        assert not open_until or end <= open_until[-1] + SLACK_US, entry
        open_until.append(end)


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")
