"""Reports of what was read and stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mgspmv.ingest.entries import EntryCounts
from mgspmv.ingest.tokens import find_times
from mgspmv.ingest_report import IngestReport, SourceColumn
from mgspmv.model import Duplicates

_FILE_FORMATS = ("edge-list", "matrix-market", "parquet", "npz")
_LEAST_TIMES = 2
"""Smallest number of rows whose whole-number weights may be reported as times."""


def make_report(
    source: dict[str, Any],
    counts: EntryCounts,
    nnz: int,
    rule: Duplicates,
    options: Mapping[str, Any],
) -> IngestReport:
    """Make the report of what was read and stored.

    Parameters
    ----------
    source : provenance of the source, from which `taken` is removed: facts about its columns and lines, namely
        `columns` (`source`, `target` and `weight`, each [number, name] or None), `not_read` (likewise a list),
        `delimiter`, `header` and `header_by`, `n_header`, `n_comments`, `n_rows`, and `notes`, sentences.
        Each may be missing
    counts : counts of all entries
    nnz : number of stored entries
    rule : rule for duplicates
    options : options of the ingest that the user passed
    """
    taken = source.pop("taken", {})
    columns = {name: SourceColumn(*column) for name, column in taken.get("columns", {}).items() if column is not None}
    not_read = [SourceColumn(*column) for column in taken.get("not_read", ())]
    if options.get("weights") is False and "weight" in columns:
        not_read.append(columns.pop("weight"))
    n_rows = taken.get("n_rows", counts.n_given)
    n_mirrored = counts.n_given + counts.n_mirrored - n_rows
    return IngestReport(
        name=source.get("name", ""),
        format=source.get("format"),
        n_files=len(source["files"]) if "files" in source else int(source.get("format") in _FILE_FORMATS),
        source=columns.get("source"),
        target=columns.get("target"),
        weight=columns.get("weight"),
        weight_range=None if counts.least is None or counts.greatest is None else (counts.least, counts.greatest),
        not_read=tuple(not_read),
        delimiter=taken.get("delimiter"),
        header=taken.get("header"),
        header_by=taken.get("header_by"),
        n_header_lines=taken.get("n_header", 0),
        n_comment_lines=taken.get("n_comments", 0),
        n_rows=n_rows,
        n_mirrored=n_mirrored,
        n_loops_dropped=counts.n_loops,
        duplicates=rule,
        n_merged=counts.n_given + counts.n_mirrored - counts.n_loops - nnz,
        n_entries=nnz,
        notes=tuple(taken.get("notes", ())),
        warnings=tuple(_list_warnings(columns.get("weight"), counts, n_rows, options)),
    )


def _list_warnings(
    weight: SourceColumn | None, counts: EntryCounts, n_rows: int, options: Mapping[str, Any]
) -> list[str]:
    if weight is None or options.get("weights") is True or n_rows < _LEAST_TIMES:
        return []
    if not counts.are_whole or counts.least is None or counts.greatest is None:
        return []
    times = find_times(counts.least, counts.greatest)
    if times is None:
        return []
    return [f"{weight} looks like times ({times[0]} .. {times[1]}); pass weights=False if it is not a weight"]
