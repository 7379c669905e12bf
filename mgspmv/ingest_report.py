"""Report of an ingest: the interpretation of its source, and the fate of its entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

_DELIMITERS = {" ": "blanks", "\t": "tab"}


class SourceColumn(NamedTuple):
    """Column of a source."""

    number: int | None
    """From 1; None for what has a name alone, such as an attribute of edges."""
    name: str | None
    """None where the source names no columns."""

    def __str__(self) -> str:
        number = "" if self.number is None else f"column {self.number}"
        return " ".join(filter(None, (number, "" if self.name is None else repr(self.name))))


@dataclass(frozen=True)
class IngestReport:
    """Interpretation of an ingest's source, and counts of its entries.

    Printed, it is the output of `mgspmv ingest`. Fields that do not apply to a source are None, or 0: a NetworkX graph
    has no columns, and a table no comments.
    """

    name: str
    """Path or URL of what was read, or a few words."""
    format: str | None
    """What it was read as, such as `edge-list`."""
    n_files: int
    """Files that were read; 0 for an object in memory."""
    source: SourceColumn | None
    """Column of the sources of edges."""
    target: SourceColumn | None
    """Column of their targets."""
    weight: SourceColumn | None
    """Column of their weights; None where each edge is an entry of 1."""
    weight_range: tuple[float, float] | None
    """Least and greatest finite value of the entries, before those at one place were merged."""
    not_read: tuple[SourceColumn, ...]
    """Columns that the matrix has nothing of."""
    delimiter: str | None
    """Character between columns of a text; a space stands for any run of blanks."""
    header: bool | None
    """Whether a line names the columns; None for what has no lines."""
    header_by: str | None
    """What decided that, such as `names` or `header=True`."""
    n_header_lines: int
    """Lines that name columns, of all files."""
    n_comment_lines: int
    """Lines of edge lists that were skipped as comments."""
    n_rows: int
    """Edges or entries that the source holds: rows of a table, edges of a graph, entries of a matrix."""
    n_mirrored: int
    """Entries that were added as mirror images: of `symmetrize`, or of a source that says that it is symmetric."""
    n_loops_dropped: int
    """Entries on the diagonal that were left out, by `self_loops="drop"`."""
    duplicates: str
    """The rule for entries at one place: `sum`, `first`, `keep` or `error`."""
    n_merged: int
    """Entries that became part of another one at the same place (`sum`), or were left out for it (`first`)."""
    n_entries: int
    """Entries that were stored: `n_rows + n_mirrored - n_loops_dropped - n_merged`."""
    notes: tuple[str, ...] = ()
    """What else was assumed of the source."""
    warnings: tuple[str, ...] = ()
    """What is likely to be wrong, and what to do then."""

    def __str__(self) -> str:
        return "\n".join(self.list_lines())

    def list_lines(self, verb: str | None = None) -> list[str]:
        """Return the printed lines: one that begins with `verb`, default `read` or `generated`; notes; warnings."""
        verb = verb or ("generated" if self.format == "generator" else "read")
        read = f"{self.name}, {self._describe_source()}"
        facts = [read, *self._list_columns(), *self._describe_lines(), self._describe_counts()]
        lines = [f"{verb}: {'; '.join(facts)}"]
        lines += [f"note: {note}" for note in self.notes]
        return [*lines, *(f"warning: {warning}" for warning in self.warnings)]

    def describe(self) -> dict[str, str]:
        """Return the report as a dict of names and texts, without those that do not apply."""
        facts = {
            "read": self._describe_source(),
            "columns": "; ".join(self._list_columns()),
            "lines": "; ".join(self._describe_lines()),
            "counts": self._describe_counts(),
            "notes": "; ".join(self.notes),
            "warnings": "; ".join(self.warnings),
        }
        return {name: fact for name, fact in facts.items() if fact}

    def _describe_source(self) -> str:
        rows = _count(self.n_rows, "entry" if self.source is None else "row")
        format = "" if self.format in (None, "generator") else self.format
        files = _count(self.n_files, "file") if self.n_files > 1 else ""
        return ", ".join(filter(None, (format, files, rows)))

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

    def _describe_counts(self) -> str:
        mirrored = f"{_count(self.n_mirrored, 'mirror image')} added, " if self.n_mirrored else ""
        merged = f"{_count(self.n_merged, 'duplicate')} merged ({self.duplicates})"
        return f"{mirrored}{merged}, {_count(self.n_loops_dropped, 'loop')} dropped"


def _count(n: int, what: str) -> str:
    """Format a number with its noun, in the plural unless the number is 1."""
    plural = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{n:,} {what if n == 1 else plural}"


def _format_value(value: float) -> str:
    """Format a value, without a fraction if it is an integer, so that large integers are exact."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e16 else f"{value:g}"
