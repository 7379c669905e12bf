"""Rules for tokens and delimiters: numbers, and fields of a line.

A rule decides, or raises `Undecided` with a message that names the argument that decides; nothing is guessed. Rules are
pure functions of names and a few lines. `docs/csv.md` states them for users.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

SAMPLE_LINES = 1_000
"""Lines at the beginning of a file that the rules examine."""
SAMPLE_BYTES = 1 << 18
"""Bytes at the beginning of a file that the rules examine."""


class Undecided(ValueError):
    """Ambiguity in a source; the message names the argument that decides."""


# --- numbers ---------------------------------------------------------------------------------------------------------

_INTEGER = re.compile(r"[+-]?[0-9]+")
_PLAIN_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf(?:inity)?|nan)", re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+")
FORTRAN_EXPONENT = str.maketrans("dD", "ee")


_BAD_QUOTES = 'invalid quotes: a quoted field is not closed, or text follows it; write "" for a quote inside a field'

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
SURE_DIGITS = 18
"""Number of digits that always fit in 64 bits; Python rejects numbers of thousands of digits."""


def is_integer(token: str) -> bool:
    """Return whether a token is written as an integer."""
    return _INTEGER.fullmatch(token) is not None


def is_plain_integer(token: str) -> bool:
    """Return whether a token is an integer without a plus and leading zeros."""
    return _PLAIN_INTEGER.fullmatch(token) is not None


def is_number(token: str) -> bool:
    """Return whether a token is written as a number, Fortran's exponents included."""
    return _NUMBER.fullmatch(token.translate(FORTRAN_EXPONENT)) is not None


def has_decimal_comma(token: str) -> bool:
    """Return whether a token is a number with a decimal comma."""
    return _DECIMAL_COMMA.fullmatch(token) is not None


# --- delimiters ------------------------------------------------------------------------------------------------------

DELIMITERS = ("\t", "|", ";", ",", " ")
"""Delimiters, in order of preference; a space stands for a run of blanks."""

BLANKS = " \t"
_BLANK_FIELD = re.compile(r'"(?:[^"]|"")*"(?=[ \t\v\f\r]|$)|[^ \t\v\f\r]+')


def split_fields(line: str, delimiter: str) -> list[str]:
    """Split a line into fields, quoted as in CSV; blanks around a field are dropped unless they are quoted.

    Raises
    ------
    Undecided : a quotation is not closed
    """
    line = line.rstrip("\r")
    if '"' not in line:
        if delimiter == " ":
            return _BLANK_FIELD.findall(line)
        return [token.strip(BLANKS) for token in line.split(delimiter)]
    if delimiter == " ":
        return [_unquote(token) for token in _BLANK_FIELD.findall(line)]
    fields = []
    for match in _find_fields(delimiter).finditer(line):
        quoted, plain = match.groups()
        if plain is not None and plain.lstrip(BLANKS).startswith('"'):
            raise Undecided(_BAD_QUOTES)
        fields.append(plain.strip(BLANKS) if quoted is None else quoted.replace('""', '"'))
        if match.end() == len(line) and not match.group().endswith(delimiter):
            break
    return fields


@lru_cache
def _find_fields(delimiter: str) -> re.Pattern[str]:
    """Return the pattern of a field and the delimiter after it; blanks around quotations are not part of the field."""
    mark, blanks = re.escape(delimiter), BLANKS.replace(delimiter, "")
    return re.compile(rf'[{blanks}]*"((?:[^"]|"")*)"[{blanks}]*(?:{mark}|$)|([^{mark}]*)(?:{mark}|$)')


def _unquote(token: str) -> str:
    if not token.startswith('"'):
        return token
    if len(token) < 2 or not token.endswith('"'):
        raise Undecided(_BAD_QUOTES)
    return token[1:-1].replace('""', '"')


def choose_delimiter(lines: Sequence[str]) -> str:
    """Return the first of `DELIMITERS` that all lines share, each with the same number of fields.

    Blanks stand for tabs between numbers where both split lines alike. Where no delimiter is shared by all lines, the
    one that most lines share is returned, and the parser reports the others.

    Parameters
    ----------
    lines : without comments and blank lines
    """
    if (shared := _find_shared(lines, DELIMITERS)) is not None:
        return " " if shared == "\t" and _have_tabs_for_blanks(lines) else shared
    n_split = {delimiter: sum(count_fields(line, delimiter) > 1 for line in lines) for delimiter in DELIMITERS}
    best = max(DELIMITERS, key=n_split.__getitem__)
    return best if n_split[best] else " "


def _find_shared(lines: Sequence[str], delimiters: Sequence[str]) -> str | None:
    """Return the first delimiter that cuts all lines into the same number of fields, at least two."""
    for delimiter in delimiters:
        counts = {count_fields(line, delimiter) for line in lines}
        if len(counts) == 1 and counts.pop() > 1:
            return delimiter
    return None


def choose_list_delimiter(lines: Sequence[str], *, are_integers: bool) -> str | None:
    """Return the delimiter between the id and other columns in a list of vertices; None if each line is one id.

    Parameters
    ----------
    lines : without comments and blank lines
    are_integers : whether ids are integers, so that blanks may separate them from other columns
    """
    are_cut = are_integers and bool(lines) and all(count_fields(line, " ") > 1 for line in lines)
    return _find_shared(lines, DELIMITERS[:-1]) or (" " if are_cut else None)


def count_fields(line: str, delimiter: str) -> int:
    """Return the number of fields of a line; 1 if its quotes are invalid."""
    if '"' not in line and delimiter != " ":
        return line.count(delimiter) + 1
    try:
        return len(split_fields(line, delimiter))
    except Undecided:
        return 1


def _have_tabs_for_blanks(lines: Sequence[str]) -> bool:
    """Return whether all lines below a possible header are numbers, and blanks and tabs split every line alike."""
    if any('"' in line for line in lines):
        return False
    rows = [split_fields(line, " ") for line in lines]
    are_numbers = all(is_number(token) for own in rows[len(rows) > 1 :] for token in own)
    return are_numbers and all(split_fields(line, "\t") == own for line, own in zip(lines, rows, strict=True))
