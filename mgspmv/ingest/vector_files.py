"""Vectors that users pass as files: numbers by place, numbers by id, or ids; x and y of a product."""

from __future__ import annotations

import math
import os
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from mgspmv.errors import OptionError, SourceError
from mgspmv.files import describe_error, is_url
from mgspmv.ingest.column_names import choose_list_columns, names_numbers, names_vertices
from mgspmv.ingest.detect import ForeignFormat, find_format_by_bytes, find_format_by_name
from mgspmv.ingest.headers import COMMENTS, has_list_header
from mgspmv.ingest.local_files import open_anywhere
from mgspmv.ingest.streams import TextLine, TextStream, read_head
from mgspmv.ingest.tokens import (
    DELIMITERS,
    FORTRAN_EXPONENT,
    SAMPLE_LINES,
    Undecided,
    choose_delimiter,
    choose_list_delimiter,
    has_decimal_comma,
    is_number,
    is_plain_integer,
    split_fields,
)
from mgspmv.os_errors import source_error

DANGLING_RULES = ("uniform", "drop", "error")

NPY_DAMAGE = (
    ValueError, EOFError, SyntaxError, TokenError, TypeError, AttributeError, RecursionError, MemoryError,
)  # fmt: skip
"""Exceptions that NumPy raises on damaged files; MemoryError if a header states more elements than fit in memory."""

Weights = Any
"""Float array of shape (n,), numbers by id, or ids, in the forms that `mgspmv.ingest.vertex_vectors` classifies."""

_WORD_COMMENT = re.compile(r"[#%]\S+")


def read_weights(
    path: str | os.PathLike[str], *, string_ids: bool = False, vertex_ids: np.ndarray | None = None
) -> Weights:
    """Read a number per vertex in their order (`.npy`), or numbers by id or ids alone (text, Parquet).

    A text has an id and a number per line, or one id per line. The rules for delimiters, headers and columns are those
    of `mgspmv.ingest.tokens`, `headers` and `column_names`: a header names the columns, in any order; without one the
    id is first. Ids may be quoted as in CSV. In a list of ids the whole line is the id, blanks included. Lines at the
    head that begin with `#` or `%` are comments.

    Parameters
    ----------
    path : local path or URL; a text may be compressed
    string_ids : whether ids are strings, as in a store whose `vertex_ids` are strings, or integers
    vertex_ids : the strings; they distinguish ids such as `Route 66` from lines of an id and a number

    Returns
    -------
    float array of shape (n,), a mapping of ids to numbers, a list of ids, or a pyarrow Table

    Raises
    ------
    SourceError : missing file, a format that is not read, a malformed line, a number that is not finite, an id given
        twice, ambiguous columns
    """
    name = os.fspath(path)
    if name.endswith(".npy"):
        return read_vector(path)
    is_read_again = not is_url(name) and Path(name).is_file()  # a pipe can be read only once
    form = find_format_by_bytes(read_head(name)[0] if is_read_again else b"") or find_format_by_name(name)
    if form == "parquet":
        return read_table(path)
    if isinstance(form, ForeignFormat):
        raise SourceError(f"this is {form.what}; expected ids and numbers as text, Parquet or .npy", source=name)
    with TextStream(name) as text:
        try:
            lines = [line for chunk in text.chunks() for line in chunk.lines() if line.data.strip()]
            return _List(lines, string_ids, vertex_ids).read()
        except Undecided as error:
            raise SourceError(str(error), source=name) from error
        except UnicodeDecodeError as error:
            raise SourceError(f"not a text file in UTF-8 ({error})", source=name) from error


def check_dangling(rule_or_path: str) -> str:
    """Return the argument if it is one of `DANGLING_RULES` or a file; raise OptionError otherwise."""
    if rule_or_path in DANGLING_RULES or Path(rule_or_path).exists():
        return rule_or_path
    raise OptionError(f"dangling must be {', '.join(DANGLING_RULES)} or a file; there is no file {rule_or_path!r}")


def read_table(path: str | os.PathLike[str]) -> Any:
    """Read a Parquet file, or a folder of them, as a pyarrow Table.

    Raises
    ------
    SourceError : missing file, or not Parquet
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = os.fspath(path)
    with reading_table(name, "cannot be read as parquet: {}"):
        if not is_url(name):
            return check_table(pq.read_table(name))
        with open_anywhere(name) as file:
            return check_table(pq.read_table(pa.BufferReader(file.read())))


@contextmanager
def reading_table(name: str, said: str) -> Iterator[None]:
    """Convert the errors that pyarrow raises on a damaged or unreadable file to SourceError.

    Parameters
    ----------
    said : message, with a placeholder for pyarrow's message
    """
    import pyarrow as pa

    try:
        yield
    except SourceError:
        raise
    except FileNotFoundError as error:
        raise SourceError("there is no such file", source=name) from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise source_error(error, name, said.format(describe_error(error))) from error


def check_table(table: Any) -> Any:
    """Return a table whose names and strings are UTF-8 and whose columns are complete; else raise pyarrow's errors."""
    table.validate(full=True)
    return table.select(table.column_names)  # decodes the names


def read_vector(path: str | os.PathLike[str], *, max_ndim: int = 1) -> np.ndarray:
    """Read an array of real numbers from a `.npy` file, one-dimensional unless `max_ndim` is 2.

    Raises
    ------
    SourceError : missing file, not a `.npy` file, or one that is shorter than its header claims, another number of
        dimensions, not real numbers
    """
    try:
        with open(path, "rb") as file:
            vector: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
    except FileNotFoundError as error:
        raise SourceError("there is no such file", source=str(path)) from error
    except OSError as error:
        raise source_error(error, path, f"cannot be read: {error.strerror}") from error
    except NPY_DAMAGE as error:
        raise SourceError(
            f"not a .npy file of numbers ({describe_error(error)}); write it with numpy.save", source=str(path)
        ) from error
    if not 1 <= vector.ndim <= max_ndim or vector.dtype.kind not in "biuf":
        expected = "one-dimensional" if max_ndim == 1 else "one- or two-dimensional"
        found = f"{vector.dtype} of shape {vector.shape}"
        raise SourceError(f"expected a {expected} array of real numbers, found {found}", source=str(path))
    return vector


# --- texts -----------------------------------------------------------------------------------------------------------


class _List:
    """Lines of ids, or of ids and numbers.

    Parameters
    ----------
    lines : without blank ones
    string_ids, vertex_ids : see `read_weights`
    """

    def __init__(self, lines: list[TextLine], string_ids: bool, vertex_ids: np.ndarray | None) -> None:
        self._string_ids, self._vertex_ids = string_ids, vertex_ids
        n_comments = next((k for k, line in enumerate(lines) if not _begins_comment(line.text)), len(lines))
        self._comments, self._lines = lines[:n_comments], lines[n_comments:]
        self._texts = [line.data.decode("utf-8").strip() for line in self._lines]
        sure = [text for text in self._texts[:SAMPLE_LINES] if not _begins_comment(text)]
        self._delimiter = self._choose_delimiter(sure)

    def read(self) -> dict[Any, float] | list[Any]:
        """Return a mapping of ids to numbers, or a list of ids."""
        if not self._lines:
            self._check_comments(1)
            return {}
        if self._delimiter is None:
            self._check_comments(1)
            return self._read_ids()
        first = self._split(0)
        self._check_comments(len(first))
        has_header = has_list_header(first, [], has_numbers=True)
        own, other = self._choose_columns(first, has_header)
        numbers: dict[Any, float] = {}
        for k in range(has_header, len(self._lines)):
            fields = self._split(k)
            fits = len(fields) == len(first) > 1
            if _begins_comment(self._texts[k]) and not (self._string_ids and fits and is_number(fields[other])):
                continue
            if not fits:
                expected = "an id and a weight" if len(first) <= 2 else f"{len(first)} fields"
                raise self._lines[k].make_error(f"expected {expected}, found {len(fields)} fields")
            label = self._parse_id(k, fields[own])
            if label in numbers:
                raise self._lines[k].make_error("this id was given before; keep one line per id")
            numbers[label] = self._parse_number(k, fields[other])
        return numbers

    def _choose_delimiter(self, lines: Sequence[str]) -> str | None:
        """Return the delimiter of ids and numbers; None if each line is one id."""
        if not lines:
            return None
        found = choose_list_delimiter(lines, are_integers=not self._string_ids)
        if not self._string_ids:
            likely = found or choose_delimiter(lines)
            return likely if any(len(_try_split(line, likely)) > 1 for line in lines) else None
        if found is None and _have_numbers_behind_blanks(lines):
            found = " "
        if found is None:
            found = next((each for each in DELIMITERS[:-1] if any(_ends_in_number(line, each) for line in lines)), None)
        return None if found is None or self._are_vertices(lines, found) else found

    def _are_vertices(self, lines: Sequence[str], delimiter: str) -> bool:
        """Return whether whole lines are ids rather than ids and numbers."""
        if not all(map(self._is_known, lines)):
            return False
        if all(self._is_known(_try_split(line, delimiter)[0]) and _ends_in_number(line, delimiter) for line in lines):
            raise self._lines[0].make_error(
                "ambiguous: the line is a vertex, and so is its first field, before a number; quote ids, as in CSV"
            )
        return True

    def _is_known(self, label: str) -> bool:
        if self._vertex_ids is None:
            return False
        place = bisect_left(self._vertex_ids, label)
        return bool(place < len(self._vertex_ids) and self._vertex_ids[place] == label)

    def _split(self, k: int) -> list[str]:
        assert self._delimiter is not None
        try:
            return split_fields(self._texts[k], self._delimiter)
        except Undecided as error:
            raise self._lines[k].make_error(str(error)) from error

    def _check_comments(self, n_columns: int) -> None:
        """Raise SourceError if a comment at the head may be an id, or an id and a number."""
        for line in self._comments if self._string_ids else ():
            text = line.text
            fields = [text] if self._delimiter is None else _try_split(text, self._delimiter)
            is_word = _WORD_COMMENT.fullmatch(text) is not None and not names_vertices(text[1:])
            are_fields = len(fields) == n_columns > 1 and is_number(fields[-1]) and text[1:2].strip() != ""
            if are_fields or (n_columns == 1 and is_word):
                raise line.make_error(
                    f"this may be a comment or an id that begins with {text[0]!r}; quote the id, or delete the line"
                )

    def _read_ids(self) -> list[Any]:
        ids: dict[Any, None] = {}
        for k in range(self._has_title(), len(self._lines)):
            text = self._texts[k]
            if _begins_comment(text) and (not self._string_ids or (not text[1:2].strip() and not self._is_known(text))):
                continue
            label = self._parse_id(k, _unquote(text))
            if label in ids:
                raise self._lines[k].make_error("this id was given before; keep one line per id")
            ids[label] = None
        return list(ids)

    def _has_title(self) -> bool:
        """Return whether the first line of a list of ids is a header."""
        first, *others = map(_unquote, self._texts)
        if self._string_ids:
            return names_vertices(first) and first not in others and not self._is_known(first)
        return not is_number(first) and (names_vertices(first) or any(map(is_plain_integer, others[:1])))

    def _choose_columns(self, first: Sequence[str], has_header: bool) -> tuple[int, int]:
        """Return the places of ids and numbers."""
        if not has_header:
            if len(first) != 2:
                raise self._lines[0].make_error(f"expected an id and a weight, found {len(first)} fields")
            return 0, 1
        are_named = any(names_vertices(name) or names_numbers(name) for name in first)
        if not are_named and not any(_ends_in_number(text, self._delimiter or " ") for text in self._texts[1:2]):
            if self._string_ids:
                raise self._lines[0].make_error(
                    f"expected a number as weight, found {first[-1]!r}; quote an id that contains {self._delimiter!r}"
                )
            raise self._lines[0].make_error(f"expected an integer id, found {first[0]!r}")
        try:
            own, other = choose_list_columns(first, has_numbers=True)
        except Undecided as error:
            raise self._lines[0].make_error(str(error)) from error
        assert other is not None
        return own, other

    def _parse_id(self, k: int, word: str) -> int | str:
        if not word:
            raise self._lines[k].make_error("expected an id, found an empty field")
        if self._string_ids:
            return word
        if not is_plain_integer(word):
            raise self._lines[k].make_error(f"expected an integer id, found {word!r}")
        if not -(2**63) <= int(word) < 2**63:
            raise self._lines[k].make_error(f"expected a 64-bit integer id, found {word!r}")
        return int(word)

    def _parse_number(self, k: int, word: str) -> float:
        if not is_number(word):
            hint = "; write a decimal point, not a comma" if has_decimal_comma(word) else ""
            raise self._lines[k].make_error(f"expected a number as weight, found {word!r}{hint}")
        number = float(word.translate(FORTRAN_EXPONENT))
        if not math.isfinite(number):
            raise self._lines[k].make_error(f"expected a finite weight, found {word!r}")
        return number


def _begins_comment(text: str) -> bool:
    return text[:1] != "" and text[0] in COMMENTS


def _have_numbers_behind_blanks(lines: Sequence[str]) -> bool:
    """Return whether each line has a name and a number, except for a header that names both."""
    rows = [_try_split(line, " ") for line in lines]
    first = rows[0]
    if not all(len(row) == 2 and is_number(row[1]) for row in rows[1:]) or len(first) != 2:
        return False
    return is_number(first[1]) or (len(rows) > 1 and (names_vertices(first[0]) or names_numbers(first[1])))


def _try_split(line: str, delimiter: str) -> list[str]:
    try:
        return split_fields(line, delimiter)
    except Undecided:
        return [line]


def _ends_in_number(line: str, delimiter: str) -> bool:
    fields = _try_split(line, delimiter)
    return len(fields) > 1 and is_number(fields[-1])


def _unquote(text: str) -> str:
    fields = _try_split(text, ",") if text.startswith('"') else [text]
    return fields[0] if len(fields) == 1 else text
