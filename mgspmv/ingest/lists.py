"""Lines of lists of vertices and of vectors: an id, or an id and a number, with or without a header.

See `mgspmv.ingest.tokens` for the form of rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mgspmv.errors import SourceError
from mgspmv.ingest.column_names import choose_list_columns, names_numbers, names_vertices
from mgspmv.ingest.columns import TableFormat, TextColumn, split_line
from mgspmv.ingest.edge_list_head import DEFAULT_READING, StatedForm
from mgspmv.ingest.headers import has_list_header
from mgspmv.ingest.streams import TextLine, TextStream
from mgspmv.ingest.tokens import (
    DELIMITERS,
    SAMPLE_BYTES,
    SAMPLE_LINES,
    Undecided,
    choose_delimiter,
    choose_list_delimiter,
    count_fields,
    is_number,
    split_fields,
)

WHOLE_LINE = "\x1f"
"""Delimiter for lines of one field each: a character that no text contains."""

IsVertex = Callable[[str], bool]
"""Returns whether a name is known to be an id."""


def find_list_form(
    text: TextStream, id_column: TextColumn, reading: StatedForm = DEFAULT_READING, is_vertex: IsVertex | None = None
) -> tuple[TableFormat, bool]:
    """Read a list of vertices up to the first one; return the format of its lines, and whether it has a header.

    Raises
    ------
    SourceError : an ambiguous first line, a comment that may be an id, or no line
    """
    are_names = id_column.dtype == "string"
    check = check_list_comment if are_names and reading.comment is None else None
    sample = _sample(text, reading.comments, check)
    try:
        found = choose_list_delimiter([line.text for line in sample], are_integers=not are_names)
        delimiter = reading.delimiter or found or WHOLE_LINE
        first, *below = [split_line(line, delimiter) for line in sample]
        place, has_header = 0, has_list_header(first, below, are_names=are_names, is_vertex=is_vertex)
        if has_header:
            place, _ = choose_list_columns(first, has_numbers=False)
        elif are_names and found not in (None, "\t") and reading.delimiter is None:
            raise Undecided(
                f"each line has {len(first)} columns separated by {found!r}; quote such ids, or pass delimiter="
            )
    except Undecided as error:
        raise sample[0].make_error(str(error)) from error
    if has_header:
        text.read_line()
    columns = _place(len(first), {place: id_column})
    return TableFormat(columns, delimiter, reading.comments, check), has_header


def find_vector_form(
    text: TextStream, id_column: TextColumn, number_column: TextColumn, is_vertex: IsVertex | None = None
) -> TableFormat:
    """Read a vector up to its first id; return the format of its lines, without numbers if each line is an id.

    A line of names that are all known is an id, blanks included, rather than an id and a number.

    Raises
    ------
    SourceError : an ambiguous first line, a comment that may be an id, or no line
    """
    are_names = id_column.dtype == "string"
    sample = _sample(text, DEFAULT_READING.comments, check_list_comment if are_names else None)
    try:
        delimiter = _choose_delimiter([line.text for line in sample], is_vertex if are_names else None, are_names)
        if delimiter is None:
            return find_list_form(text, id_column, StatedForm(WHOLE_LINE), is_vertex)[0]
        first = split_line(sample[0], delimiter)
        has_header = first[0] == "" or not any(map(is_number, first))
        own, other = _choose_vector_columns([line.text for line in sample[:2]], first, delimiter, has_header)
    except Undecided as error:
        raise sample[0].make_error(str(error)) from error
    if has_header:
        text.read_line()
    # below the first line, one that begins like a comment may be a name
    comments = b"" if are_names else DEFAULT_READING.comments
    return TableFormat(_place(len(first), {own: id_column, other: number_column}), delimiter, comments)


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


def _place(n_columns: int, read: dict[int, TextColumn]) -> tuple[TextColumn, ...]:
    return tuple(read.get(place, TextColumn("more", None)) for place in range(n_columns))


def _choose_delimiter(lines: Sequence[str], is_vertex: IsVertex | None, are_names: bool) -> str | None:
    """Return the delimiter of ids and numbers; None if each line is one id."""
    found = choose_list_delimiter(lines, are_integers=not are_names)
    if not are_names:
        found = found or choose_delimiter(lines)
        return found if any(count_fields(line, found) > 1 for line in lines) else None
    if found is None and _have_numbers_behind_blanks(lines):
        found = " "
    found = found or next(
        (each for each in DELIMITERS[:-1] if any(_ends_in_number(line, each) for line in lines)), None
    )
    if found is None or is_vertex is None or not all(map(is_vertex, lines)):
        return found
    if all(is_vertex(_try_split(line, found)[0]) and _ends_in_number(line, found) for line in lines):
        raise Undecided("ambiguous: the line is a vertex, and so is its first field, before a number; quote ids")
    return None


def _choose_vector_columns(
    lines: Sequence[str], first: Sequence[str], delimiter: str, has_header: bool
) -> tuple[int, int]:
    """Return the places of ids and numbers, given the first two lines."""
    if not has_header:
        if len(first) != 2:
            raise Undecided(f"expected an id and a weight, found {len(first)} fields")
        return 0, 1
    are_named = any(names_vertices(name) or names_numbers(name) for name in first)
    if not are_named and not any(_ends_in_number(line, delimiter) for line in lines[1:]):
        raise Undecided(f"expected a number as weight, found {first[-1]!r}; quote an id that contains {delimiter!r}")
    own, other = choose_list_columns(first, has_numbers=True)
    assert other is not None
    return own, other


def _have_numbers_behind_blanks(lines: Sequence[str]) -> bool:
    """Return whether each line has a name and a number, except for a header that names both."""
    first, *rows = [_try_split(line, " ") for line in lines]
    if len(first) != 2 or not all(len(row) == 2 and is_number(row[1]) for row in rows):
        return False
    return is_number(first[1]) or (bool(rows) and (names_vertices(first[0]) or names_numbers(first[1])))


def _try_split(line: str, delimiter: str) -> list[str]:
    try:
        return split_fields(line, delimiter)
    except Undecided:
        return [line]


def _ends_in_number(line: str, delimiter: str) -> bool:
    fields = _try_split(line, delimiter)
    return len(fields) > 1 and is_number(fields[-1])
