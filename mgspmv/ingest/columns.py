"""Parsing of lines of numbers and names into columns: quickly if all lines are valid, otherwise line by line.

A loop over the bytes of a chunk parses integers, three times as fast as existing parsers, and finds other fields, which
Arrow makes numbers of. Chunks with anything that it does not know are parsed again line by line in Python, which
defines what is accepted, accepts more (quoted fields) and names the line of an error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from mgspmv.heartbeat import AHEAD, prefetch_map
from mgspmv.ingest.streams import Chunk, TextLine
from mgspmv.ingest.tokens import (
    BLANKS,
    FORTRAN_EXPONENT,
    INT64_MAX,
    INT64_MIN,
    SURE_DIGITS,
    Undecided,
    has_decimal_comma,
    is_integer,
    is_number,
    is_plain_integer,
    split_fields,
)
from mgspmv.kernels.compiled import compile_later

SMALL_TEXT = 1 << 19
"""Bytes that are parsed line by line before the parser of lines is compiled; less than a chunk of a longer text."""

INTEGERS = ("int32", "int64")
_THREAD = threading.local()
_FORTRAN_EXPONENT_BYTES = bytes.maketrans(b"dD", b"ee")
_SPACE, _TAB, _LINE_FEED, _RETURN, _ZERO, _PLUS, _MINUS = map(ord, " \t\n\r0+-")


@dataclass(frozen=True)
class TextColumn:
    """Allowed contents of one column of a text."""

    name: str
    """Name of the column, for messages."""
    dtype: Literal["int32", "int64", "float64", "string"] | None
    """Type of the parsed values; None for a column that is not read."""
    low: int = INT64_MIN
    """Smallest integer allowed."""
    high: int = INT64_MAX
    """Largest integer allowed."""
    finite: bool = False
    """Whether NaN and infinities are errors."""
    plain: str = ""
    """Remedy if integers with a plus or leading zeros, such as 007, are errors; empty if they are not."""
    hint: str = ""
    """Remedy for a value that does not fit, for messages."""

    @property
    def expected(self) -> str:
        """Allowed values, for messages."""
        if self.dtype == "float64":
            return "a finite number" if self.finite else "a number"
        if self.dtype == "string":
            return "a name"
        if (self.low, self.high) == (INT64_MIN, INT64_MAX):
            return "a 64-bit integer"
        return f"an integer from {self.low} to {self.high}"


@dataclass(frozen=True)
class TableFormat:
    """Format of the lines of a text."""

    columns: tuple[TextColumn, ...]
    """All columns of a line, including those that are not read."""
    delimiter: str
    """Character between columns, with or without blanks around it; a space stands for one or more blanks."""
    comments: bytes
    """Characters that begin a comment line; comment lines and blank lines are skipped."""
    check_comment: Callable[[TextLine, TableFormat], None] | None = None
    """Raises SourceError for a comment that may be an entry; None if comments are not checked."""

    @property
    def read(self) -> tuple[TextColumn, ...]:
        """Columns that are read."""
        return tuple(c for c in self.columns if c.dtype is not None)


def read_chunks(chunks: Iterable[Chunk], form: TableFormat, threads: int) -> Iterator[tuple[Chunk, list[Any], int]]:
    """Parse chunks on several threads; yield each with its columns and its number of comments, in order.

    The columns that are read are NumPy arrays of their dtypes, or Arrow arrays of strings. Numbers become the nearest
    double, as by `float`; Fortran's exponents (`1.5D+05`) are understood.

    Raises
    ------
    SourceError : a line does not fit the format; names the line and says what was expected; as by `form.check_comment`
    """

    def read(chunk: Chunk) -> tuple[Chunk, list[Any], int]:
        columns, may_have_comments = _parse(chunk, form)
        if not (may_have_comments and form.comments):
            return chunk, columns, 0
        comments = [line for line in chunk.lines() if line.data.strip() and line.is_blank_or_comment(form.comments)]
        if form.check_comment is not None:
            for line in comments:
                form.check_comment(line, form)
        return chunk, columns, len(comments)

    with ThreadPoolExecutor(threads, "mgspmv-parse") as pool:
        yield from prefetch_map(pool, read, chunks, AHEAD * threads)


def nth_line(chunk: Chunk, form: TableFormat, n: int) -> TextLine:
    """Return the line of a chunk's entry number `n`, from 0."""
    return next(islice(_data_lines(chunk, form), n, None))


def split_line(line: TextLine, delimiter: str) -> list[str]:
    """Split a line into its columns.

    Raises
    ------
    SourceError : the line is not UTF-8, or a quotation is not closed
    """
    try:
        return split_fields(line.data.decode(), delimiter)
    except UnicodeDecodeError as error:
        raise line.make_error("the line is not UTF-8 text; convert the file to UTF-8") from error
    except Undecided as error:
        raise line.make_error(str(error)) from error


def _parse(chunk: Chunk, form: TableFormat) -> tuple[list[Any], bool]:
    """Parse a chunk; return its columns and whether it may have comments."""
    data, parsed = chunk.data, None
    are_integers = all(column.dtype in INTEGERS for column in form.columns)
    if are_integers or (b'"' not in data and _is_utf8(data)):  # no quotation or non-ASCII character is in integers
        parsed = _parse_quickly(np.frombuffer(data, np.uint8), form)
    if parsed is None:
        return _parse_lines(chunk, form), True
    columns, n_skipped = parsed
    return columns, n_skipped > 0


def _parse_quickly(text: np.ndarray, form: TableFormat) -> tuple[list[Any], int] | None:
    """Parse all lines at once; return the columns and the number of lines without entries.

    None if a line does not, or may not, fit the format.
    """
    if not _read_lines.is_worth(len(text)):
        return None
    are_integers = np.array([column.dtype in INTEGERS for column in form.columns])
    are_texts = np.array([column.dtype in ("float64", "string") for column in form.columns])
    rows = np.where(are_integers, np.cumsum(are_integers), np.cumsum(are_texts) * are_texts) - 1
    limits = np.array([(column.low, column.high) for column in form.columns], np.int64)
    are_plain = np.array([bool(column.plain) for column in form.columns])
    is_simple = are_integers.all()
    # A line of integers has two bytes or more for each. With fields of text, what that leaves over would be too much.
    n_most = len(text) // (2 * len(form.columns)) if is_simple else int(np.count_nonzero(text == _LINE_FEED))
    integers = _find_memory(are_integers.sum(), n_most)
    shape = are_texts.sum() + 1, 0 if is_simple else len(text)  # the last row is that of columns that are not read
    fields, offsets = np.empty(shape, np.uint8), np.zeros((shape[0], 1 if is_simple else n_most + 1), np.int32)
    kinds, delimiter = _list_kinds(form), ord(form.delimiter)
    n_lines, n_skipped = _read_lines(
        text, kinds, delimiter, SURE_DIGITS, are_integers, rows, limits, are_plain, integers, fields, offsets
    )
    if n_lines < 0:
        return None
    columns = [
        integers[row, :n_lines].astype(column.dtype)
        if is_whole
        else _to_array(fields[row], offsets[row, : n_lines + 1], column)
        for column, row, is_whole in zip(form.columns, rows, are_integers, strict=True)
        if column.dtype is not None
    ]
    return None if any(values is None for values in columns) else (columns, n_skipped)


def _find_memory(n_columns: int, n: int) -> np.ndarray:
    """Return int64 of this thread: in new memory, pages are mapped first, for which many threads wait."""
    memory: np.ndarray | None = getattr(_THREAD, "integers", None)
    if memory is None or memory.size < n_columns * n:
        memory = _THREAD.integers = np.empty(n_columns * n, np.int64)
    return memory[: n_columns * n].reshape(n_columns, n)


def _is_utf8(data: bytes) -> bool:
    try:
        return data.isascii() or bool(data.decode())
    except UnicodeDecodeError:
        return False


_RARE, _BLANK, _COMMENT, _TOKEN = range(4)


def _list_kinds(form: TableFormat) -> np.ndarray:
    """Return the kind of each byte: token, token that begins a comment at the beginning of a line, blank, or rare."""
    kinds = np.full(256, _TOKEN, np.uint8)
    kinds[:_SPACE] = _RARE
    kinds[[_SPACE, _TAB]] = _BLANK
    kinds[list(form.comments)] = _COMMENT
    if form.delimiter != " ":
        kinds[ord(form.delimiter)] = _RARE
    return kinds


_WORD = 8
"""Digits that are read at once, in a word of 64 bits whose first byte is the lowest."""
_ONE, _ZEROS, _HIGH_BITS = np.uint64(1), np.uint64(0x3030303030303030), np.uint64(0x8080808080808080)
_BEYOND_NINES = np.uint64(0x7676767676767676)
"""What sets the high bit of a byte of 10 or more."""
_PLACES = np.uint64(0x0001020304050607)
"""What gives the number of the byte that is 1, in the highest byte of the product."""
_PAIRS, _FOURS, _EIGHT = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF), np.uint64(0xFFFFFFFF)
_POWERS = np.array([10**k for k in range(_WORD + 1)])


@compile_later(SMALL_TEXT)
def _read_lines(
    text: Any,
    kinds: Any,
    delimiter: int,
    most_digits: int,
    are_integers: Any,
    rows: Any,
    limits: Any,
    are_plain: Any,
    integers: Any,
    fields: Any,
    offsets: Any,
) -> tuple[int, int]:
    """Parse the integers of lines that end in line feeds, and copy the bytes of the other columns' fields.

    Parameters
    ----------
    rows : row of each column, in `integers` or in `fields` and `offsets`

    Returns
    -------
    number of lines with entries, -1 if a line does not fit, or has rare characters; and of comments and blank lines
    """
    at, n_lines, n_skipped, n_columns, n_text = 0, 0, 0, len(are_integers), len(text)
    least = _COMMENT if delimiter == _SPACE else _BLANK  # fields like New York
    while at < n_text:
        if kinds[text[at]] < _TOKEN:
            while kinds[text[at]] == _BLANK:
                at += 1
            if text[at] == _LINE_FEED or kinds[text[at]] == _COMMENT:
                while text[at] != _LINE_FEED:
                    if text[at] == _RETURN:  # which may end the comment
                        return -1, 0
                    at += 1
                at += 1
                n_skipped += 1
                continue
        for k in range(n_columns):
            row = rows[k]
            if are_integers[k]:
                is_negative = text[at] == _MINUS
                if text[at] < _ZERO and (is_negative or (text[at] == _PLUS and not are_plain[k])):
                    at += 1
                begin, value, n_digits = at, np.int64(0), np.int64(_WORD)
                while n_digits == _WORD and at + _WORD <= n_text:
                    word = np.uint64(0)
                    for b in range(_WORD):  # one load
                        word |= np.uint64(text[np.uintp(at + b)]) << np.uint64(8 * b)
                    word ^= _ZEROS
                    ends = (word + _BEYOND_NINES | word) & _HIGH_BITS  # right up to the first byte that is not a digit
                    if ends:
                        n_digits = np.int64(((ends & (~ends + _ONE)) >> np.uint64(7)) * _PLACES >> np.uint64(56))
                        if n_digits == 0:
                            break
                        word <<= np.uint64(64 - 8 * n_digits)
                    word = (word * np.uint64(10) + (word >> np.uint64(8))) & _PAIRS
                    word = (word * np.uint64(100) + (word >> np.uint64(16))) & _FOURS
                    word = (word * np.uint64(10000) + (word >> np.uint64(32))) & _EIGHT
                    value = value * _POWERS[n_digits] + np.int64(word)
                    at += int(n_digits)
                digit = np.int64(text[at]) - _ZERO
                while 0 <= digit <= 9:
                    value = 10 * value + digit
                    at += 1
                    digit = np.int64(text[at]) - _ZERO
                if at == begin or at - begin > most_digits + 1 or value < 0:  # one digit more fits, or wraps around
                    return -1, 0
                if are_plain[k] and text[begin] == _ZERO and at - begin > 1:
                    return -1, 0
                value = -value if is_negative else value
                if value < limits[k, 0] or value > limits[k, 1]:
                    return -1, 0
                integers[row, n_lines] = value
            else:
                to = end = offsets[row, n_lines]
                kind = kinds[text[at]]
                while kind >= least:
                    fields[row, to] = text[at]
                    to += 1
                    end = end if kind == _BLANK else to
                    at += 1
                    kind = kinds[text[at]]
                offsets[row, n_lines + 1] = end
            end = at
            while kinds[text[at]] == _BLANK:
                at += 1
            if k + 1 == n_columns:
                if text[at] != _LINE_FEED:
                    return -1, 0
                at += 1
            elif text[at] == delimiter:
                at += 1
                while kinds[text[at]] == _BLANK:
                    at += 1
            elif delimiter != _SPACE or at == end or text[at] == _LINE_FEED:
                return -1, 0
        n_lines += 1
    return n_lines, n_skipped


def _to_array(fields: np.ndarray, offsets: np.ndarray, column: TextColumn) -> Any:
    """Return fields as numbers or as an Arrow array of strings; None if one is not a number or is empty."""
    data = fields[: offsets[-1]].tobytes()
    if column.dtype == "float64":
        data = data.translate(_FORTRAN_EXPONENT_BYTES)
    names = pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(data))
    if column.dtype == "string":
        return names if np.diff(offsets).all() else None
    if b"(" in data:  # Arrow takes nan(5) for a number
        return None
    try:
        values = np.array(names.cast(pa.float64()))  # copied, as Arrow's memory is read-only
    except pa.ArrowInvalid:
        return None
    return None if column.finite and not np.isfinite(values).all() else values


def _data_lines(chunk: Chunk, form: TableFormat) -> Iterator[TextLine]:
    return (line for line in chunk.lines() if not line.is_blank_or_comment(form.comments))


def _parse_lines(chunk: Chunk, form: TableFormat) -> list[Any]:
    """Parse line by line, or raise for the first line that does not fit."""
    rows = []
    for line in _data_lines(chunk, form):
        tokens = split_line(line, form.delimiter)
        if len(tokens) != len(form.columns):
            names = " ".join(column.name for column in form.columns)
            raise line.make_error(f"expected {names!r}, found {len(tokens)} column{'s' * (len(tokens) != 1)}")
        pairs = zip(tokens, form.columns, strict=True)
        rows.append([_parse_token(token, column, line) for token, column in pairs if column.dtype is not None])
    columns = zip(*rows, strict=True) if rows else [()] * len(form.read)
    return [
        pa.array(values, pa.string()) if column.dtype == "string" else np.array(values, dtype=column.dtype)
        for values, column in zip(columns, form.read, strict=True)
    ]


def _parse_token(token: str, column: TextColumn, line: TextLine) -> int | float | str:
    token = token if column.dtype == "string" else token.strip(BLANKS)
    value: int | float | str | None = None
    if column.dtype == "string":
        value = token or None
    elif column.dtype == "float64" and is_number(token):
        number = float(token.translate(FORTRAN_EXPONENT))
        value = number if np.isfinite(number) or not column.finite else None
    elif column.dtype in INTEGERS and is_integer(token) and len(token.lstrip("+-0")) <= 20:  # more digits never fit
        integer = int(token)
        value = integer if column.low <= integer <= column.high else None
    if column.plain and value is not None and not is_plain_integer(token):
        raise line.make_error(
            f"{column.name} is {token!r}, and as an integer it would be the same vertex as {value}; {column.plain}"
        )
    if value is None and column.dtype == "float64" and has_decimal_comma(token):
        raise line.make_error(f"{column.name} is {token!r}, with a decimal comma; write numbers with a decimal point")
    if value is None:
        hint = f"; {column.hint}" if column.hint else ""
        raise line.make_error(f"expected {column.name} to be {column.expected}, found {token!r}{hint}")
    return value
