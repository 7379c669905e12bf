"""What stands at the end of a report: what everything was made from and with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from mgspmv.display.numbers import format_bytes, shorten
from mgspmv.report.record import RunRecord, StepRecord
from mgspmv.report.views import NOTHING, Cell, Table, list_records, make_cell, make_table, say

LONGEST_PATH = 60
LONGEST_VALUE = 400


def list_files(run: RunRecord) -> list[Table]:
    """The files that were read and those that were written, with their checksums."""
    records = list_records(run)
    read = [_describe_source(record, source) for record in records for source in _find_sources(record)]
    written = [
        [Cell(record.name), make_cell(output.path, "name", LONGEST_PATH), Cell(output.digest, "code"), Cell(size)]
        for record in records
        for output in record.outputs
        for size in [format_bytes(output.n_bytes)]
    ]
    tables = [
        make_table("Sources", ("Step", "Source", "Format", "SHA-256", "Size"), read, texts=(0, 1, 2, 3)),
        make_table("Outputs", ("Step", "Output", "SHA-256 of what it holds", "Size"), written, texts=(0, 1, 2)),
    ]
    return [table for table in tables if table.rows]


def _describe_source(record: StepRecord, source: Mapping[str, Any]) -> list[Cell]:
    size = source.get("bytes")
    return [
        Cell(record.name),
        make_cell(source.get("name"), "name", LONGEST_PATH),
        make_cell(source.get("format")),
        Cell(say(source.get("sha256")), "code"),
        NOTHING if size is None else Cell(format_bytes(size)),
    ]


def _find_sources(record: StepRecord) -> list[Mapping[str, Any]]:
    """Of a matrix the files that it was read from; of any step the other files that it read."""
    source = record.provenance.get("matrix", {}).get("source", {}) if record.kind == "matrix" else {}
    inputs = record.provenance.get("inputs", {}).items()
    others = [
        {"name": own.get("path"), "format": name, "sha256": own.get("digest")}
        for name, own in inputs
        if name != "source"
    ]
    return [*(source.get("files", [source]) if source else []), *others]


def list_circumstances(run: RunRecord) -> list[tuple[str, list[tuple[str, str]]]]:
    """What each step says of itself, in lines of name and value: options, matrix, versions, hardware; first what all
    of several steps say."""
    told = [(record.name, _describe_circumstances(record)) for record in list_records(run)]
    if len(told) < 2:
        return told
    shared = [line for line in told[0][1] if all(line in lines for _, lines in told[1:])]
    own = [(name, [line for line in lines if line not in shared]) for name, lines in told]
    return [("All steps", shared), *own] if shared else own


def _describe_circumstances(record: StepRecord) -> list[tuple[str, str]]:
    """All but what its matrix was made from, which the step that made that says."""
    provenance = {k: v for k, v in record.provenance.items() if k != "matrix" or record.kind == "matrix"}
    kept = {"key": record.key, "inputs": record.inputs, "began": record.began, "ended": record.ended}
    about = {"options": record.options, "matrix": record.matrix, "provenance": provenance}
    return list(_flatten(kept | about))


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        elif value not in ("", None):
            yield f"{prefix}{name}", shorten(say(value), LONGEST_VALUE)


def describe_definition(run: RunRecord) -> str:
    """The definition of the pipeline, as JSON; empty where there is none."""
    return json.dumps(run.definition, indent=2, ensure_ascii=False) if run.definition else ""
