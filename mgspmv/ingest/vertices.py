"""Mapping from the ids in a graph's file to the numbers 0..n-1 of its vertices, and lists of them.

While the edges are read, an id becomes a code (`encode`); when all are read, codes become numbers (`finish`).
"""

from __future__ import annotations

import os
from codecs import BOM_UTF8
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from mgspmv.errors import CapacityError, SourceError
from mgspmv.ingest.budget import ANY_ROOM, MemoryBudget
from mgspmv.ingest.column_names import choose_list_columns, names_numbers
from mgspmv.ingest.columns import TableFormat, TextColumn, read_chunks, split_line
from mgspmv.ingest.detect import read_head
from mgspmv.ingest.headers import DEFAULT_READING, StatedForm, has_list_header
from mgspmv.ingest.numbering import UNKNOWN, IdTable, OccurringIds, are_numbers
from mgspmv.ingest.source import Layout
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
    is_integer,
    is_number,
    split_fields,
)

EMPTY_LIST = "the list of vertices is empty; expected one id per line"
LISTED_BYTES = 32
"""Most bytes per integer of a list of vertices, while the list is sorted and its table made."""
LISTED_NAME_BYTES, LISTED_COPIES = 128, 4
"""Most bytes per name of a list, and copies of its characters, while the list is sorted and its table made."""


class GivenIntegers:
    """Integers that need no codes.

    Parameters
    ----------
    n_vertices : number of vertices, if the integers are the numbers 0..n-1, and no other is passed; None for any
        integers, which are numbered once all are read
    """

    def __init__(self, n_vertices: int | None) -> None:
        self._n_vertices = n_vertices

    def encode(self, *columns: np.ndarray) -> list[np.ndarray]:
        return list(columns)

    def finish(self) -> Layout:
        return Layout((self._n_vertices or 0,) * 2, are_ids=self._n_vertices is None)


class ListedIntegers:
    """Integers of a list of vertices, ascending."""

    def __init__(self, ids: np.ndarray) -> None:
        self._ids, self._table = ids, IdTable(ids)

    def encode(self, *columns: np.ndarray) -> list[np.ndarray]:
        found = [self._table.take(np.clip(ids, self._ids[0], self._ids[-1])) for ids in columns]
        return [np.where(self._ids[own] == ids, own, UNKNOWN) for own, ids in zip(found, columns, strict=True)]

    def finish(self) -> Layout:
        return Layout((len(self._ids),) * 2, None if are_numbers(self._ids) else self._ids)


Vertices = GivenIntegers | OccurringIds | ListedIntegers
"""Mapping from ids to codes (`encode`, batches in their order), and from codes to numbers (`finish`).

Equal ids in a batch have one code, and integers of no vertex have `UNKNOWN`.
"""


def find_unknown(vertices: Vertices, codes: np.ndarray) -> int | None:
    """Return the index of the first integer that is not in the list of vertices; None if all are, or without a list."""
    if not isinstance(vertices, ListedIntegers):
        return None
    unknown = np.flatnonzero(codes == UNKNOWN)
    return int(unknown[0]) if len(unknown) else None


def lists_names(path: str | os.PathLike[str], reading: StatedForm) -> bool:
    """Return whether the ids of a list of vertices are names, by the first of them."""
    head, _ = read_head(os.fspath(path))
    lines = [TextLine(os.fspath(path), k, data) for k, data in enumerate(head.removeprefix(BOM_UTF8).splitlines(), 1)]
    sample = [line for line in lines if not line.is_blank_or_comment(reading.comments)]
    if not sample:
        return False
    first, *below = [split_line(line, reading.delimiter or " ") for line in sample[:SAMPLE_LINES]]
    return not is_integer((below[0] if below and has_list_header(first, below) else first)[0])


def read_vertices(
    path: str | os.PathLike[str],
    id_column: TextColumn,
    reading: StatedForm = DEFAULT_READING,
    room: MemoryBudget = ANY_ROOM,
    is_vertex: Callable[[str], bool] | None = None,
    edges: str = "",
) -> tuple[ListedIntegers | OccurringIds, dict[str, Any]]:
    """Read a list of vertices: one per line, its id in the first column or in the one that a header names.

    A line of names that has no tab is one id, blanks included; a quoted id may hold any character.

    Parameters
    ----------
    path : local path or URL, compressed or not
    id_column : format of an id
    reading : the user's options for delimiter and comments
    room : memory for the list
    is_vertex : function that returns whether a name is known to be an id
    edges : name of the source of the edges, for messages about names that are not in the list

    Returns
    -------
    the vertices, and the file's provenance

    Raises
    ------
    SourceError : an invalid or ambiguous line, an id that is listed twice, or no id
    CapacityError : the list does not fit into memory
    """
    with TextStream(path) as text:
        form, has_header = find_list_form(text, id_column, reading, is_vertex)
        ids, need = list[Any](), 0
        for _, (own,), _ in read_chunks(text.chunks(), form, room.threads):
            ids.append(own if isinstance(own, np.ndarray) else own.cast(pa.large_string()))
            need += _estimate_bytes(own)
            _check_room(need, text, room)
        if not any(map(len, ids)):
            raise SourceError(EMPTY_LIST, source=text.name)
        if isinstance(ids[0], np.ndarray):
            return _list_integers(ids, text.name), text.provenance()
        return _list_names(ids, text.name, room, edges, has_header=has_header), text.provenance()


def choose_vertices(
    id_column: TextColumn, reading: StatedForm, id_room: MemoryBudget, edges: str
) -> tuple[Vertices, dict[str, Any]]:
    """Choose the mapping from ids to numbers; return it with the provenance of the list of vertices, if any.

    Parameters
    ----------
    edges : name of the source of the edges, for messages
    """
    if reading.n_vertices is None and reading.vertices is not None:
        column = replace(id_column, name="vertex")
        vertices, provenance = read_vertices(reading.vertices, column, reading, id_room, edges=edges)
        return vertices, {"vertices": provenance}
    if id_column.dtype == "string" and reading.n_vertices is None:
        return OccurringIds(pa.large_string(), id_room), {}
    return GivenIntegers(reading.n_vertices), {}


def _estimate_bytes(ids: Any) -> int:
    """Return the most bytes that ids of a list, and the tables made from them, take."""
    if isinstance(ids, np.ndarray):
        return LISTED_BYTES * len(ids)
    import pyarrow.compute as pc

    return LISTED_NAME_BYTES * len(ids) + LISTED_COPIES * int(pc.sum(pc.binary_length(ids)).as_py() or 0)


def _check_room(need: int, text: TextStream, room: MemoryBudget) -> None:
    if need <= room.memory:
        return
    whole = f"about {need / text.fraction / 1e9:.3g}" if text.fraction else f"more than {need / 1e9:.3g}"
    raise CapacityError(
        f"{text.name}: the list of vertices takes {whole} GB of memory, but the limit is {room.memory / 1e9:.3g} GB; "
        "allow more by memory=, or leave out vertices= to find the vertices in the edges"
    )


def _list_integers(columns: list[np.ndarray], source: str) -> ListedIntegers:
    """Return the vertices of a list, given in parts, which are released."""
    ids = np.concatenate(columns)
    columns.clear()
    ids.sort()
    _raise_repeated(ids[1:][ids[1:] == ids[:-1]].tolist(), source)
    return ListedIntegers(ids)


def _list_names(
    columns: list[Any], source: str, room: MemoryBudget, edges: str = "", *, has_header: bool = True
) -> OccurringIds:
    """Return the vertices of a list, given in parts, which are released."""
    import pyarrow.compute as pc

    names = pa.concat_arrays(columns)
    first_name = None if has_header else names[0].as_py()
    columns.clear()
    names = names.take(pc.sort_indices(names))
    repeated = names.slice(1).filter(pc.equal(names.slice(1), names.slice(0, len(names) - 1)))
    _raise_repeated(repeated.slice(0, 1).to_pylist(), source)
    return OccurringIds(names.type, room, names, first_name, edges)


def _raise_repeated(repeated: list[Any], source: str) -> None:
    if repeated:
        raise SourceError(
            f"vertex {repeated[0]!r} is listed more than once; list each vertex on one line only", source=source
        )


# --- lines of lists of vertices and of vectors: an id, or an id and a number ------------------------------------------

WHOLE_LINE = "\x1f"
"""Delimiter for lines of one field each: a character that no text contains."""


def find_list_form(
    text: TextStream,
    id_column: TextColumn,
    reading: StatedForm = DEFAULT_READING,
    is_vertex: Callable[[str], bool] | None = None,
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
    for comment in text.read_comments(comments):
        if check is not None:
            check(comment)
    sample = [line for line in text.peek_lines(SAMPLE_BYTES, SAMPLE_LINES) if not line.is_blank_or_comment(comments)]
    if not sample:
        raise SourceError(EMPTY_LIST, source=text.name)
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


def _find_vector_delimiter(
    lines: Sequence[str], is_vertex: Callable[[str], bool] | None, *, are_names: bool
) -> str | None:
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
