"""Numbers of entries at each step of an ingest, from which its report is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mgspmv.ingest.tokens import LEAST_TIME, find_times
from mgspmv.ingest_report import IngestReport, SourceColumn
from mgspmv.model import CooBatch, Duplicates

_FILE_FORMATS = ("edge-list", "matrix-market", "parquet", "npz")
_LEAST_TIMES = 2
"""Smallest number of rows whose whole-number weights may be reported as times."""


@dataclass(frozen=True)
class EntryCounts:
    """Counts of the entries of a source, or of some of them; they add up exactly, in any order."""

    n_given: int = 0
    """Number of entries in the batches of the source."""
    n_mirrored: int = 0
    """Number of mirror images added to them."""
    n_loops: int = 0
    """Number of entries on the diagonal that are left out."""
    least: float | None = None
    """Smallest finite value of the remaining entries; an int if values are integers, None if there is none."""
    greatest: float | None = None
    """Largest finite value of the remaining entries; an int if values are integers, None if there is none."""
    are_whole: bool = True
    """Whether all values are integers, or whole floats of at least `LEAST_TIME`, and so may be times."""

    def __add__(self, other: EntryCounts) -> EntryCounts:
        least = [value for value in (self.least, other.least) if value is not None]
        greatest = [value for value in (self.greatest, other.greatest) if value is not None]
        return EntryCounts(
            self.n_given + other.n_given,
            self.n_mirrored + other.n_mirrored,
            self.n_loops + other.n_loops,
            min(least, default=None),
            max(greatest, default=None),
            self.are_whole and other.are_whole,
        )


NO_ENTRIES = EntryCounts()


def count_entries(n_given: int, prepared: CooBatch, *, drops_loops: bool) -> EntryCounts:
    """Count the entries of a batch.

    Parameters
    ----------
    n_given : number of entries in the batch of the source
    prepared : these entries and their mirror images, with loops
    drops_loops : whether loops are left out later
    """
    values, n_loops = prepared.values, 0
    if drops_loops and (loops := prepared.rows == prepared.cols).any():
        values, n_loops = None if values is None else values[~loops], int(np.count_nonzero(loops))
    return EntryCounts(n_given, len(prepared.rows) - n_given, n_loops, *measure_values(values))


def measure_values(values: np.ndarray | None) -> tuple[float | None, float | None, bool]:
    """Return the least and the greatest finite value, and whether these values alone allow them to be times."""
    if values is None or not len(values):
        return None, None, True
    least, greatest = values.min(), values.max()
    if not (np.isfinite(least) and np.isfinite(greatest)):
        finite = values[np.isfinite(values)]
        return (*measure_values(finite)[:2], False)
    is_integer = values.dtype.kind in "iu"
    are_whole = bool(is_integer or (least >= LEAST_TIME and (values == np.floor(values)).all()))
    return (*((int(least), int(greatest)) if is_integer else (float(least), float(greatest))), are_whole)


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
