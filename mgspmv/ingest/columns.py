"""Parsing of lines of numbers and names into columns: quickly if all lines are valid, otherwise line by line.

Lines of unsigned integers with one character between them are read by a loop over their bytes, which is three times as
fast as existing parsers; other chunks are parsed by Arrow's CSV parser. Chunks that neither can read are parsed again
line by line in Python, which defines what is accepted, accepts more (signs, Fortran's exponents) and names the line of
an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
from numba import njit

from mgspmv.ingest.prefetch import AHEAD, prefetch_map
from mgspmv.ingest.streams import Chunk, TextLine
from mgspmv.ingest.tokens import (
    BLANKS,
    FORTRAN_EXPONENT,
    SURE_DIGITS,
    Undecided,
    has_decimal_comma,
    is_integer,
    is_number,
    is_plain_integer,
    split_fields,
)
from mgspmv.ingest.values import INT64_MAX, INT64_MIN

_FORTRAN_EXPONENT_BYTES = bytes.maketrans(b"dD", b"ee")
_ANY_BLANK_TO_SPACE = bytes.maketrans(b"\t\v\f", b"   ")
_SPACE, _TAB, _LINE_FEED, _ZERO = map(ord, " \t\n0")


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


def read_columns(chunk: Chunk, form: TableFormat) -> list[Any]:
    """Parse the lines of a chunk.

    Numbers become the nearest double, as by `float`; Fortran's exponents (`1.5D+05`) are understood.

    Returns
    -------
    list, for each column that is read: numpy array of its dtype, or Arrow string array

    Raises
    ------
    SourceError : a line does not fit the format; names the line and says what was expected
    """
    if (integers := _parse_integers(chunk.data, form)) is not None:
        return integers
    for data, delimiter in _spellings(chunk.data, form):
        columns = _parse_quickly(data, delimiter, form)
        if columns is not None:
            return columns
    return _parse_lines(chunk, form)


def read_chunks(
    chunks: Iterable[Chunk],
    form: TableFormat,
    threads: int,
    make: Callable[[Chunk, list[Any]], Any] = lambda *each: each,
) -> Iterator[Any]:
    """Parse chunks on several threads, and yield the result of `make` for each and its columns, in order.

    Raises
    ------
    SourceError : as for `read_columns`
    """
    with ThreadPoolExecutor(threads, "mgspmv-parse") as pool:
        yield from prefetch_map(pool, lambda chunk: make(chunk, read_columns(chunk, form)), chunks, AHEAD * threads)


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


def count_comments(chunk: Chunk, form: TableFormat, n_entries: int) -> int:
    """Count the comments of a chunk from which `n_entries` entries were read, and check them.

    Raises
    ------
    SourceError : as by `form.check_comment`
    """
    if not form.comments or np.count_nonzero(np.frombuffer(chunk.data, np.uint8) == _LINE_FEED) == n_entries:
        return 0
    comments = [line for line in chunk.lines() if line.data.strip() and line.is_blank_or_comment(form.comments)]
    if form.check_comment is not None:
        for line in comments:
            form.check_comment(line, form)
    return len(comments)


def _parse_integers(data: bytes, form: TableFormat) -> list[Any] | None:
    """Parse lines of integers into columns; None if there is anything else, or an integer out of range."""
    dtypes = {column.dtype for column in form.columns}
    if len(dtypes) != 1 or not dtypes <= {"int32", "int64"} or not data:
        return None
    limits = np.array([(column.low, column.high) for column in form.columns], np.int64)
    are_plain = np.array([bool(column.plain) for column in form.columns])
    text = np.frombuffer(data, np.uint8)
    found = np.empty((len(form.columns), int(np.count_nonzero(text == _LINE_FEED))), dtypes.pop())
    separators = (_SPACE, _TAB) if form.delimiter == " " else (ord(form.delimiter),) * 2
    return list(found) if _read_digits(text, separators, SURE_DIGITS, limits, are_plain, found) else None


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]  # Numba has no types
def _read_digits(text: Any, separators: Any, most_digits: int, limits: Any, are_plain: Any, found: Any) -> bool:
    """Fill columns with the integers of lines that end in line feeds; return whether all lines are valid."""
    at, n_lines, n_columns = 0, 0, len(found)
    while at < len(text):
        for k in range(n_columns):
            first, value = at, np.int64(0)
            digit = np.int64(text[at]) - _ZERO
            while 0 <= digit <= 9:
                value = 10 * value + digit
                at += 1
                digit = np.int64(text[at]) - _ZERO
            if at == first or at - first > most_digits or value < limits[k, 0] or value > limits[k, 1]:
                return False
            if are_plain[k] and text[first] == _ZERO and at - first > 1:
                return False
            if k + 1 < n_columns:
                if text[at] != separators[0] and text[at] != separators[1]:
                    return False
            elif text[at] != _LINE_FEED:
                return False
            found[k, n_lines] = value
            at += 1
        n_lines += 1
    return True


def _spellings(data: bytes, form: TableFormat) -> Iterator[tuple[bytes, str]]:
    """Yield texts that may be parsed quickly: without comments, then without superfluous blanks too.

    With superfluous blanks a line has empty columns, which are not numbers. They could be names or columns that are not
    read, so texts with such columns are always cleaned.
    """
    data = _drop_comments(data, form)
    if any(mark in data for mark in _find_traps(form)):
        return
    if any(column.plain for column in form.columns) and _has_padding(data, form.delimiter):
        return
    if form.delimiter == " " and b'"' in data:  # quoted fields are left to the line-by-line parser
        return
    if form.delimiter != " ":
        if b'"' not in data:
            yield data, form.delimiter
        return
    all_numbers = all(c.dtype in ("int32", "int64", "float64") for c in form.columns)
    if all_numbers:
        yield data, "\t" if b"\t" in data else " "
    yield _squeeze_blanks(data, may_have_exponents=all_numbers), " "


def _has_padding(data: bytes, delimiter: str) -> bool:
    """Return whether a token begins with a plus, or with a zero before another digit."""
    text = np.frombuffer(b"\n" + data, np.uint8)
    before, own, after = text[:-2], text[1:-1], text[2:]
    begins = (before <= _SPACE) | (before == ord(delimiter)) | (before == ord("-"))
    pads = (own == ord("+")) | ((own == _ZERO) & (after >= _ZERO) & (after <= ord("9")))
    return bool((begins & pads).any())


def _find_traps(form: TableFormat) -> list[bytes]:
    """Return characters of tokens that Arrow may parse as numbers but this module rejects: 0x10 and nan(5)."""
    integers = any(c.dtype in ("int32", "int64") for c in form.columns)
    numbers = any(c.dtype == "float64" and not c.finite for c in form.columns)
    return [b"x", b"X"] * integers + [b"("] * numbers


def _drop_comments(data: bytes, form: TableFormat) -> bytes:
    if not any(form.comments[i : i + 1] in data for i in range(len(form.comments))):
        return data
    return re.sub(rb"(?m)^[ \t\v\f]*[" + re.escape(form.comments) + rb"][^\n]*\n", b"", data)


def _squeeze_blanks(data: bytes, may_have_exponents: bool) -> bytes:
    """Leave one space between columns and none at either end of a line."""
    text = np.frombuffer(data.translate(_ANY_BLANK_TO_SPACE), np.uint8)
    keep = np.ones(len(text), bool)
    np.logical_or(text[:-1] != _SPACE, text[1:] > _SPACE, out=keep[:-1])  # keeps the last blank before a token
    data = text[keep].tobytes().replace(b"\n ", b"\n").removeprefix(b" ")
    return data.translate(_FORTRAN_EXPONENT_BYTES) if may_have_exponents else data


def _parse_quickly(data: bytes, delimiter: str, form: TableFormat) -> list[Any] | None:
    """Parse with Arrow; None if a line does not, or may not, fit the format."""
    names = [str(i) for i in range(len(form.columns))]
    types = {name: column.dtype for name, column in zip(names, form.columns, strict=True) if column.dtype is not None}
    try:
        table = pa.csv.read_csv(
            pa.BufferReader(data),
            # one block: a chunk is small, and parsing it on one thread is faster than decompression
            pa.csv.ReadOptions(column_names=names, use_threads=False, block_size=len(data) + 1),
            pa.csv.ParseOptions(delimiter=delimiter, quote_char=False, escape_char=False),
            pa.csv.ConvertOptions(
                column_types={name: pa.type_for_alias(dtype) for name, dtype in types.items()},
                include_columns=list(types),
                null_values=[],
            ),
        )
    except pa.ArrowInvalid:
        return None
    columns = [
        _to_array(values, column, delimiter) for values, column in zip(table.itercolumns(), form.read, strict=True)
    ]
    fits = all(_fits(values, column) for values, column in zip(columns, form.read, strict=True))
    return columns if fits else None


def _to_array(values: Any, column: TextColumn, delimiter: str) -> Any:
    if column.dtype == "string":
        names = values.combine_chunks()
        return names if delimiter == " " else pa.compute.utf8_trim(names, characters=BLANKS)
    return np.array(values.to_numpy())  # copied, as Arrow's memory is read-only


def _fits(values: Any, column: TextColumn) -> bool:
    if not len(values):
        return True
    if column.dtype == "string":
        return bool(pa.compute.min(pa.compute.binary_length(values)).as_py() > 0)
    if column.dtype == "float64":
        return not column.finite or bool(np.isfinite(values).all())
    return bool(column.low <= values.min() and values.max() <= column.high)


def _data_lines(chunk: Chunk, form: TableFormat) -> Iterator[TextLine]:
    return (line for line in chunk.lines() if not line.is_blank_or_comment(form.comments))


def _parse_lines(chunk: Chunk, form: TableFormat) -> list[Any]:
    """Parse line by line, or raise for the first line that does not fit."""
    rows = [_parse_line(line, form) for line in _data_lines(chunk, form)]
    columns = zip(*rows, strict=True) if rows else [()] * len(form.read)
    return [
        pa.array(values, pa.string()) if column.dtype == "string" else np.array(values, dtype=column.dtype)
        for values, column in zip(columns, form.read, strict=True)
    ]


def _parse_line(line: TextLine, form: TableFormat) -> list[int | float | str]:
    tokens = split_line(line, form.delimiter)
    if len(tokens) != len(form.columns):
        names = " ".join(column.name for column in form.columns)
        raise line.make_error(f"expected {names!r}, found {len(tokens)} column{'s' * (len(tokens) != 1)}")
    pairs = zip(tokens, form.columns, strict=True)
    return [_parse_token(token, column, line) for token, column in pairs if column.dtype is not None]


def _parse_token(token: str, column: TextColumn, line: TextLine) -> int | float | str:
    token = token if column.dtype == "string" else token.strip(BLANKS)
    value: int | float | str | None = token or None
    if column.dtype != "string":
        value = _parse_number(token, column) if column.dtype == "float64" else _parse_integer(token, column)
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


def _parse_integer(token: str, column: TextColumn) -> int | None:
    # More than 20 digits never fit, and int() raises its own ValueError for thousands of digits.
    if not is_integer(token) or len(token.lstrip("+-0")) > 20:
        return None
    value = int(token)
    return value if column.low <= value <= column.high else None


def _parse_number(token: str, column: TextColumn) -> float | None:
    if not is_number(token):
        return None
    value = float(token.translate(FORTRAN_EXPONENT))
    return value if np.isfinite(value) or not column.finite else None
