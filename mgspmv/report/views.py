"""Selection, grouping and naming of records in a report."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from mgspmv.display.numbers import format_number
from mgspmv.model import Status
from mgspmv.report.record import RunRecord, StepRecord

MOST_VARIED = 3
"""Most options with different values in names of runs, in addition to `_USUAL_OPTIONS`."""

_USUAL_OPTIONS = ("alpha", "tol", "precision")
_MEMORY = ("planned_bytes", "held_bytes", "device_bytes", "host_peak_bytes")
_ITERATING = ("product", "exchange", "schedule")


def format_value(value: Any) -> str:
    """Format a JSON value for people."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return format_number(value, 6)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def list_records(run: RunRecord) -> list[StepRecord]:
    """List the records of steps that were made or kept, or did not converge."""
    return [step.record for step in run.steps if step.record is not None]


def is_ranks(record: StepRecord) -> bool:
    """Return whether the record is of ranks, of one vector or many."""
    return record.kind in ("pagerank", "batch")


def find_varied(records: Iterable[StepRecord]) -> list[str]:
    """Return the options usually shown, and those that differ among the runs."""
    options = [record.options for record in records if is_ranks(record)]
    names = dict.fromkeys(name for own in options for name in own)
    differing = [name for name in names if len({format_value(own.get(name)) for own in options}) > 1]
    usual = [name for name in _USUAL_OPTIONS if name in names]
    return usual + [name for name in differing if name not in usual][:MOST_VARIED]


def group_records(records: Iterable[StepRecord]) -> list[tuple[str, list[StepRecord]]]:
    """Group records by the first part of their names, which names a matrix."""
    records = list(records)
    names = list(dict.fromkeys(map(_name_group, records)))
    records.sort(key=lambda record: names.index(_name_group(record)))
    return [(name, list(own)) for name, own in groupby(records, key=_name_group)]


def _name_group(record: StepRecord) -> str:
    return record.name.partition("/")[0]


def name_in_group(record: StepRecord) -> str:
    """Return the rest of a record's name; all of it if it has one part."""
    return record.name.partition("/")[2] or record.name


def name_ranks(record: StepRecord) -> str:
    """Return the name of the run's highest ranks; of many vectors, with the label of the first."""
    vectors = record.result.get("vectors")
    return f"{name_in_group(record)}, {vectors[0]['label']}" if vectors else name_in_group(record)


def list_statuses(record: StepRecord) -> list[Status]:
    """Return the statuses of a run and of each of its vectors; an empty list for other steps."""
    own = [record.result.get("status"), *(vector["status"] for vector in record.result.get("vectors", []))]
    return [Status(status) for status in own if status is not None]


def has_ended_well(record: StepRecord) -> bool:
    """Return whether all statuses are successes."""
    return all(status.is_success for status in list_statuses(record))


def count_iterations(record: StepRecord) -> int:
    """Return the iterations of a run, or of its vectors together."""
    own = [record.result, *record.result.get("vectors", [])]
    return sum(int(described.get("iterations", 0)) for described in own)


def measure_rate(record: StepRecord) -> float:
    """Return entries times iterations per second of iterating; 0 if unknown."""
    elapsed_s = sum(record.seconds.get(phase, 0.0) for phase in _ITERATING)
    return float(record.matrix.get("nnz", 0)) * record.result.get("iterations", 0) / elapsed_s if elapsed_s else 0.0


def find_sources(record: StepRecord) -> list[Mapping[str, Any]]:
    """Return the files that a matrix was read from, and the other input files of any step."""
    source = record.provenance.get("matrix", {}).get("source", {}) if record.kind == "matrix" else {}
    others = [
        {"name": own.get("path"), "format": name, "sha256": own.get("digest")}
        for name, own in record.provenance.get("inputs", {}).items()
        if name != "source"
    ]
    return [*(source.get("files", [source]) if source else []), *others]


def list_memory(records: Iterable[StepRecord]) -> list[tuple[str, int, list[int | None]]]:
    """List for each worker of a step its bytes: predicted, held, on a device, and the peak of its process."""
    found = []
    for record in records:
        columns = [record.memory.get(name, []) for name in _MEMORY]
        for worker in range(max(map(len, columns[1:]))):
            own = [column[worker] if worker < len(column) else None for column in columns]
            found.append((record.name, worker, own))
    return found


def list_circumstances(run: RunRecord) -> list[tuple[str, list[tuple[str, str]]]]:
    """List options, matrix, versions and hardware of each step, in lines of name and value; shared lines come first."""
    told = [(record.name, _describe_circumstances(record)) for record in list_records(run)]
    if len(told) < 2:
        return told
    shared = [line for line in told[0][1] if all(line in lines for _, lines in told[1:])]
    own = [(name, [line for line in lines if line not in shared]) for name, lines in told]
    return [("All steps", shared), *own] if shared else own


def _describe_circumstances(record: StepRecord) -> list[tuple[str, str]]:
    """List the circumstances of a step; those of its matrix are listed with the step that made the matrix."""
    provenance = {k: v for k, v in record.provenance.items() if k != "matrix" or record.kind == "matrix"}
    kept = {"key": record.key, "inputs": record.inputs, "began": record.began, "ended": record.ended}
    about = {"options": record.options, "matrix": record.matrix, "provenance": provenance}
    return list(_flatten(kept | about))


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        elif value not in ("", None):
            yield f"{prefix}{name}", format_value(value)


def enumerate_first(names: Sequence[str], most: int) -> str:
    """Join the first names, followed by the number of the others."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
