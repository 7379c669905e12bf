"""Lines of lists of vertices and of vectors: an id, or an id and a number, with or without a header.

See `mgspmv.ingest.tokens` for the form of rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mgspmv.errors import SourceError
from mgspmv.ingest.column_names import choose_list_columns, names_numbers
from mgspmv.ingest.columns import TableFormat, TextColumn, split_line
from mgspmv.ingest.headers import DEFAULT_READING, StatedForm, has_list_header
from mgspmv.ingest.streams import TextLine, TextStream
from mgspmv.ingest.tokens import (
    DELIMITERS,
    SAMPLE_BYTES,
    SAMPLE_LINES,
    Undecided,
    choose_delimiter,
    choose_list_delimiter,
    count_fields,
    has_decimal_comma,
    is_number,
    split_fields,
)

WHOLE_LINE = "\x1f"
"""Delimiter for lines of one field each: a character that no text contains."""

IsVertex = Callable[[str], bool]
"""Returns whether a name is known to be an id."""


def find_list_form(
    text: TextStream,
    id_column: TextColumn,
    reading: StatedForm = DEFAULT_READING,
    is_vertex: IsVertex | None = None,
    number_column: TextColumn | None = None,
) -> tuple[TableFormat, bool]:
    """Read a list of vertices or a vector up to the first id; return the format of its lines, and whether it has a
    header.

    Parameters
    ----------
    number_column : format of the numbers of a vector, whose lines may also be ids alone; None for a list. A line of
        names that are all known is an id, blanks included, rather than an id and a number

    Raises
    ------
    SourceError : an ambiguous first line, a comment that may be an id, or no line
    """
    are_names, comments = id_column.dtype == "string", reading.comments
    check = check_list_comment if are_names and reading.comment is None else None
    sample = _sample(text, comments, check)
    lines = [line.text for line in sample]
    own, other = 0, None
    try:
        if number_column is None:
            found = choose_list_delimiter(lines, are_integers=not are_names)
        else:
            found = _find_vector_delimiter(lines, is_vertex, are_names=are_names)
        has_numbers = number_column is not None and found is not None
        delimiter = reading.delimiter or found or WHOLE_LINE
        first, *below = [split_line(line, delimiter) for line in sample]
        if has_numbers:
            has_header = first[0] == "" or not any(map(_is_value, first))
        else:
            has_header = has_list_header(first, below, are_names=are_names, is_vertex=is_vertex)
        if has_header:
            own, other = choose_list_columns(first, has_numbers=has_numbers)
        elif has_numbers:
            if len(first) != 2:
                raise Undecided(f"expected an id and a weight, found {len(first)} fields")
            other = 1
        elif are_names and found not in (None, "\t") and reading.delimiter is None:
            raise Undecided(
                f"each line has {len(first)} columns separated by {found!r}; quote such ids, or pass delimiter="
            )
    except Undecided as error:
        raise sample[0].make_error(str(error)) from error
    if has_header:
        text.read_line()
    if has_numbers and are_names:
        comments, check = b"", None  # below the first line of a vector, one that begins like a comment may be a name
    columns = [TextColumn("more", None)] * len(first)
    columns[own] = id_column
    if other is not None and number_column is not None:
        columns[other] = number_column
    return TableFormat(tuple(columns), delimiter, comments, check), has_header


def check_list_comment(line: TextLine, form: TableFormat | None = None) -> None:
    """Raise SourceError if a comment may be a name, as nothing separates its sign from its text."""
    if line.text[1:2].strip():
        raise line.make_error(
            f'this line begins like a comment but may be an id; quote it if it is one, or write "{line.text[:1]} ..." '
            "if it is not"
        )


def _sample(text: TextStream, comments: bytes, check: Callable[[TextLine], None] | None) -> list[TextLine]:
    """Read the comments at the beginning of a list, and return the lines that follow, at least one."""
    for line in text.read_comments(comments):
        if check is not None:
            check(line)
    lines = text.peek_lines(SAMPLE_BYTES, SAMPLE_LINES)
    sample = [line for line in lines if not line.is_blank_or_comment(comments)]
    if not sample:
        raise SourceError("the list of vertices is empty; expected one id per line", source=text.name)
    return sample


def _find_vector_delimiter(lines: Sequence[str], is_vertex: IsVertex | None, *, are_names: bool) -> str | None:
    """Return the delimiter of ids and numbers; None if each line is an id.

    For names it is the first with which a line has a number, or a column for it. Blanks also occur in names, and so
    delimit them only if each line has two fields, the last of them a number.
    """
    if not are_names:
        found = choose_delimiter(lines)
        return found if any(count_fields(line, found) > 1 for line in lines) else None
    named = next((each for each in DELIMITERS[:-1] if any(_has_number(line, each) for line in lines)), None)
    below = [_try_split(line, " ") for line in lines[len(lines) > 1 :]]
    if named is None and all(len(own) == 2 and is_number(own[1]) for own in below):
        named = " "
    if named is None or is_vertex is None or not all(map(is_vertex, lines)):
        return named
    if all(is_vertex(_try_split(line, named)[0]) and _has_number(line, named) for line in lines):
        raise Undecided("ambiguous: the line is a vertex, and so is its first field, before a number; quote ids")
    return None


def _has_number(line: str, delimiter: str) -> bool:
    fields = _try_split(line, delimiter)
    return len(fields) > 1 and any(_is_value(field) or names_numbers(field) for field in fields)


def _is_value(field: str) -> bool:
    return is_number(field) or has_decimal_comma(field)


def _try_split(line: str, delimiter: str) -> list[str]:
    try:
        return split_fields(line, delimiter)
    except Undecided:
        return [line]
