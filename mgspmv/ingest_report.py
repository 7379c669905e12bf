"""Report of an ingest: the interpretation of its source, and the fate of its entries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

_DELIMITERS = {" ": "blanks", "\t": "tab"}


class SourceColumn(NamedTuple):
    """Column of a source."""

    number: int | None
    """Number from 1; None for columns that have only a name, such as an attribute of edges."""
    name: str | None
    """Name; None if the source names no columns."""

    def __str__(self) -> str:
        number = "" if self.number is None else f"column {self.number}"
        return " ".join(filter(None, (number, "" if self.name is None else repr(self.name))))


@dataclass(frozen=True)
class IngestReport:
    """Interpretation of an ingest's source, and counts of its entries.

    Printed, it is the output of `mgspmv ingest`. Fields that do not apply to a source are None, or 0: a NetworkX graph
    has no columns, and a table no comments.

    Examples
    --------
    >>> import mgspmv as mg
    >>> report = mg.ingest([("a", "b"), ("a", "b"), ("b", "b")], self_loops="drop").ingest_report
    >>> report.n_rows, report.n_merged, report.n_loops_dropped, report.n_entries
    (3, 1, 1, 1)
    """

    name: str
    """Path or URL of the source, or a short description."""
    format: str | None
    """Format the source was read as, such as `edge-list`."""
    n_files: int
    """Number of files read; 0 for an object in memory."""
    source: SourceColumn | None
    """Column with the sources of edges."""
    target: SourceColumn | None
    """Column with the targets of edges."""
    weight: SourceColumn | None
    """Column with the weights; None if each edge is an entry of 1."""
    weight_range: tuple[float, float] | None
    """Least and greatest finite value of the entries, before duplicates were merged."""
    not_read: tuple[SourceColumn, ...]
    """Columns that were not read."""
    delimiter: str | None
    """Character between columns of a text; a space means any run of blanks."""
    header: bool | None
    """Whether a line names the columns; None for sources without lines."""
    header_by: str | None
    """Option or rule that decided `header`, such as `names` or `header=True`."""
    n_header_lines: int
    """Number of lines that name columns, in all files."""
    n_comment_lines: int
    """Number of lines of edge lists skipped as comments."""
    n_rows: int
    """Number of edges or entries in the source: rows of a table, edges of a graph, entries of a matrix."""
    n_mirrored: int
    """Number of mirrored entries added, by `symmetrize` or because the source declares itself symmetric."""
    n_loops_dropped: int
    """Number of diagonal entries left out by `self_loops="drop"`."""
    duplicates: str
    """Rule for duplicate entries: `sum`, `first`, `keep` or `error`."""
    n_merged: int
    """Number of duplicates added to another entry (`sum`) or left out (`first`)."""
    n_entries: int
    """Number of entries stored: `n_rows + n_mirrored - n_loops_dropped - n_merged`."""
    notes: tuple[str, ...] = ()
    """Other assumptions about the source."""
    warnings: tuple[str, ...] = ()
    """Likely mistakes, with remedies."""

    def __str__(self) -> str:
        return "\n".join(self.list_lines())

    def list_lines(self, verb: str | None = None) -> list[str]:
        """Return the printed lines: one that begins with `verb`, default `read` or `generated`; notes; warnings.

        Examples
        --------
        >>> import mgspmv as mg
        >>> lines = mg.ingest([("a", "b"), ("b", "a")]).ingest_report.list_lines("loaded")
        >>> lines[0].partition(";")[0]
        'loaded: 2 arcs in pairs, arrays, 2 rows'
        """
        verb = verb or ("generated" if self.format == "generator" else "read")
        format = "" if self.format in (None, "generator") else self.format
        files = _count(self.n_files, "file") if self.n_files > 1 else ""
        rows = _count(self.n_rows, "entry" if self.source is None else "row")
        read = ", ".join(filter(None, (self.name, format, files, rows)))
        mirrored = f"{_count(self.n_mirrored, 'mirror image')} added, " if self.n_mirrored else ""
        merged = f"{_count(self.n_merged, 'duplicate')} merged ({self.duplicates})"
        counts = f"{mirrored}{merged}, {_count(self.n_loops_dropped, 'loop')} dropped"
        lines = [f"{verb}: {'; '.join([read, *self._list_columns(), *self._describe_lines(), counts])}"]
        lines += [f"note: {note}" for note in self.notes]
        return [*lines, *(f"warning: {warning}" for warning in self.warnings)]

    def _list_columns(self) -> list[str]:
        if self.source is None or self.target is None:
            named = [] if self.weight is None else [f"weight: {self.weight}"]
        else:
            weight = "none" if self.weight is None else str(self.weight)
            named = [f"source: {self.source}", f"target: {self.target}", f"weight: {weight}"]
        if self.weight_range is not None:
            values = " .. ".join(map(_format_value, self.weight_range))
            named = [*named, f"values {values}"] if self.weight is None else [*named[:-1], f"{named[-1]}, {values}"]
        return [*named, f"not read: {', '.join(map(str, self.not_read))}"] if self.not_read else named

    def _describe_lines(self) -> list[str]:
        lines = []
        if self.delimiter is not None:
            lines.append(f"delimiter: {_DELIMITERS.get(self.delimiter, repr(self.delimiter))}")
        if self.header is not None:
            by = "" if self.header_by is None else f" ({self.header_by})"
            n_lines = _count(self.n_header_lines, "line") if self.n_header_lines else "names"
            lines.append(f"header: {n_lines if self.header else 'none'}{by}")
        if self.n_comment_lines:
            lines.append(f"comments: {_count(self.n_comment_lines, 'line')}")
        return [", ".join(lines)] if lines else []


def _count(n: int, what: str) -> str:
    """Format a number with its noun, in the plural unless the number is 1."""
    plural = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{n:,} {what if n == 1 else plural}"


def _format_value(value: float) -> str:
    """Format a value, without a fraction if it is an integer, so that large integers are exact."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e16 else f"{value:g}"


# --- making ----------------------------------------------------------------------------------------------------------

_FIRST_TIME, _LAST_TIME = 631_152_000, 4_102_444_800  # seconds since 1970: 1990 to 2100
_TIME_UNITS = (1, 1_000, 1_000_000, 1_000_000_000)
LEAST_TIME = 19_000_101
"""Least number that may be a time: a day of 1900 as YYYYMMDD."""
_LAST_DAY = 21_001_231


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


_FILE_FORMATS = ("edge-list", "matrix-market", "parquet", "npz")
_LEAST_TIMES = 2
"""Smallest number of rows whose whole-number weights may be reported as times."""


def make_report(
    source: dict[str, Any], counts: EntryCounts, nnz: int, rule: str, options: Mapping[str, Any]
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
    weight, extent = columns.get("weight"), None
    warnings: tuple[str, ...] = ()
    if counts.least is not None and counts.greatest is not None:
        extent = counts.least, counts.greatest
        may_be_times = options.get("weights") is not True and n_rows >= _LEAST_TIMES and counts.are_whole
        if weight is not None and may_be_times and (times := find_times(*extent)) is not None:
            said = f"{weight} looks like times ({times[0]} .. {times[1]}); pass weights=False if it is not a weight"
            warnings = (said,)
    return IngestReport(
        name=source.get("name", ""),
        format=source.get("format"),
        n_files=len(source["files"]) if "files" in source else int(source.get("format") in _FILE_FORMATS),
        source=columns.get("source"),
        target=columns.get("target"),
        weight=weight,
        weight_range=extent,
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
        warnings=warnings,
    )


def find_times(low: float, high: float) -> tuple[str, str] | None:
    """Return the first and the last day if whole numbers from `low` to `high` look like times, else None.

    These are seconds, ms, us or ns since 1970, all from 1990 to 2100, or days written as YYYYMMDD.
    """
    for unit in _TIME_UNITS:
        if _FIRST_TIME * unit <= low <= high <= _LAST_TIME * unit:
            first, last = (datetime.fromtimestamp(number / unit, UTC).date().isoformat() for number in (low, high))
            return first, last
    if not LEAST_TIME <= low <= high <= _LAST_DAY:
        return None
    try:
        first, last = (datetime.strptime(str(int(number)), "%Y%m%d").date().isoformat() for number in (low, high))
    except ValueError:
        return None
    return first, last
