"""Rules for interpreting files and tables of edges, vertices or numbers, as pure functions of names and a few lines.

Readers look at the beginning of a source and ask these functions about delimiter, header, columns, comments, ids and
format. A rule decides, or raises `Undecided` with a message that names the argument that decides; nothing is guessed.
`docs/csv.md` states the same rules for users.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import lru_cache
from typing import Literal

SAMPLE_LINES = 1_000
"""Lines at the beginning of a file that the rules examine."""
SAMPLE_BYTES = 1 << 18
"""Bytes at the beginning of a file that the rules examine."""


class Undecided(ValueError):
    """Ambiguity in a source; the message names the argument that decides."""


class UndecidedHeader(Undecided):
    """First line that is an edge of names if one of its ids occurs again, further below."""


# --- numbers ---------------------------------------------------------------------------------------------------------

_INTEGER = re.compile(r"[+-]?[0-9]+")
_PLAIN_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf(?:inity)?|nan)", re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+")
_FORTRAN_EXPONENT = str.maketrans("dD", "ee")


_DIGITS = 18
"""Number of digits that always fit in 64 bits; Python rejects numbers of thousands of digits."""


def is_integer(token: str) -> bool:
    """Return whether a token is written as an integer."""
    return _INTEGER.fullmatch(token) is not None


def is_plain_integer(token: str) -> bool:
    """Return whether a token is an integer without a plus and leading zeros."""
    return _PLAIN_INTEGER.fullmatch(token) is not None


def is_number(token: str) -> bool:
    """Return whether a token is written as a number, Fortran's exponents included."""
    return _NUMBER.fullmatch(token.translate(_FORTRAN_EXPONENT)) is not None


def has_decimal_comma(token: str) -> bool:
    """Return whether a token is a number with a comma for its decimal point."""
    return _DECIMAL_COMMA.fullmatch(token) is not None


# --- delimiters ------------------------------------------------------------------------------------------------------

DELIMITERS = ("\t", "|", ";", ",", " ")
"""Delimiters, in order of preference; a space stands for a run of blanks."""

_BLANKS = " \t"
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
        return [token.strip(_BLANKS) for token in line.split(delimiter)]
    if delimiter == " ":
        return [_unquote(token) for token in _BLANK_FIELD.findall(line)]
    fields = []
    for match in _find_fields(delimiter).finditer(line):
        quoted, plain = match.groups()
        if plain is not None and plain.lstrip(_BLANKS).startswith('"'):
            raise Undecided("the line is not well quoted (a quotation is not closed, or ends within a field)")
        fields.append(plain.strip(_BLANKS) if quoted is None else quoted.replace('""', '"'))
        if match.end() == len(line) and not match.group().endswith(delimiter):
            break
    return fields


@lru_cache
def _find_fields(delimiter: str) -> re.Pattern[str]:
    """Return the pattern of a field and the delimiter after it; blanks around quotations are not part of the field."""
    mark, blanks = re.escape(delimiter), _BLANKS.replace(delimiter, "")
    return re.compile(rf'[{blanks}]*"((?:[^"]|"")*)"[{blanks}]*(?:{mark}|$)|([^{mark}]*)(?:{mark}|$)')


def _unquote(token: str) -> str:
    if not token.startswith('"'):
        return token
    if len(token) < 2 or not token.endswith('"'):
        raise Undecided("the line is not well quoted (a quotation is not closed, or ends within a field)")
    return token[1:-1].replace('""', '"')


def choose_delimiter(lines: Sequence[str]) -> str:
    """Return the first of `DELIMITERS` that all lines share, each with the same number of fields.

    Blanks stand for tabs between numbers where both split lines alike. Where no delimiter is shared by all lines, the
    one that most lines share is returned, and the parser reports the others.

    Parameters
    ----------
    lines : without comments and blank lines
    """
    best, best_share = " ", 0
    for delimiter in DELIMITERS:
        counts = [_count_fields(line, delimiter) for line in lines]
        share = counts.count(max(set(counts), key=counts.count)) if counts and max(counts) > 1 else 0
        if share and share == len(counts) and counts[0] > 1:
            return " " if delimiter == "\t" and _have_tabs_for_blanks(lines) else delimiter
        n_wide = sum(count > 1 for count in counts)
        if counts and n_wide > best_share:
            best, best_share = delimiter, n_wide
    return best


_STATED_DELIMITER = re.compile(r'"?sep=(.)"?\r?', re.IGNORECASE | re.DOTALL)


def find_stated_delimiter(line: str) -> str | None:
    """Return the delimiter that a line states as Excel does, `sep=;`; None for any other line."""
    stated = _STATED_DELIMITER.fullmatch(line)
    return stated.group(1) if stated is not None else None


def choose_list_delimiter(lines: Sequence[str], *, are_integers: bool) -> str | None:
    """Return the delimiter between the id and other columns in a list of vertices; None if each line is one id.

    Parameters
    ----------
    lines : without comments and blank lines
    are_integers : whether ids are integers, so that blanks may separate them from other columns
    """
    for delimiter in DELIMITERS[:-1]:
        counts = {_count_fields(line, delimiter) for line in lines}
        if len(counts) == 1 and counts.pop() > 1:
            return delimiter
    if are_integers and lines and all(_count_fields(line, " ") > 1 for line in lines):
        return " "
    return None


def _count_fields(line: str, delimiter: str) -> int:
    if '"' not in line and delimiter != " ":
        return line.count(delimiter) + 1
    try:
        return len(split_fields(line, delimiter))
    except Undecided:
        return 1


def _have_tabs_for_blanks(lines: Sequence[str]) -> bool:
    """Return whether lines, but for a header, are numbers, and blanks split all of them as tabs do."""
    if any('"' in line for line in lines):
        return False
    rows = [split_fields(line, " ") for line in lines]
    are_numbers = all(is_number(token) for own in rows[len(rows) > 1 :] for token in own)
    return are_numbers and all(split_fields(line, "\t") == own for line, own in zip(lines, rows, strict=True))


# --- names of columns ------------------------------------------------------------------------------------------------

SOURCE_WORDS = frozenset(["source", "src", "from", "start", "origin", "sender", "follower", "citing"])
"""Words that name the column of sources."""
TARGET_WORDS = frozenset(
    [
        "target", "tgt", "dst", "dest", "destination", "to", "end", "receiver", "recipient", "followee",
        "followed", "cited",
    ]
)  # fmt: skip
"""Words that name the column of targets."""
WEIGHT_WORDS = frozenset(
    [
        "weight", "weights", "wgt", "wgts", "wt", "w", "value", "values", "val", "edgeattr", "attr", "score",
        "scores", "count", "counts", "freq", "frequency",
    ]
)  # fmt: skip
"""Words that name the column of weights."""
VERTEX_WORDS = frozenset(["vertex", "vertices", "node", "nodes", "id", "ids", "name", "label"])
"""Words that name the column of ids in a list of vertices or a vector."""
NUMBER_WORDS = WEIGHT_WORDS | frozenset(
    ["rank", "ranks", "pagerank", "hub", "authority", "katz", "centrality", "probability"]
)
"""Words that name the column of numbers in a vector."""

_FILLERS = frozenset(
    ["node", "vertex", "id", "ids", "nodeid", "no", "number", "float", "int", "long", "double", "string", "edge"]
)
_SHORT_SOURCES, _SHORT_TARGETS = frozenset(("u", "i", "row")), frozenset(("v", "j", "col", "column"))
_INDEX_NAMES = frozenset(("", "index", "idx", "id", "rowid", "rowname", "rownames", "rownumber", "edgeid", "eid"))
_TIME_WORDS = frozenset(
    [
        "time", "times", "timestamp", "timestamps", "timeset", "interval", "date", "dates", "datetime", "ts",
        "unixts", "unixtime", "epoch", "year", "month", "day", "hour", "created", "creation", "updated", "since",
        "until",
    ]
)  # fmt: skip
_OTHER_WORDS = _TIME_WORDS | frozenset(["type", "types", "kind", "label", "labels", "relation", "rel", "comment"])
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_a-zA-Z]+")
_JOINED = re.compile(
    r"(source|src|from|start|origin|target|tgt|dst|dest|destination|to|end)(?:node|vertex)?(?:id)?", re.IGNORECASE
)
_SAVED_INDEX = re.compile(r"__index_level_\d+__|__null_dask_index__")
_UNNAMED = re.compile(r"unnamed:? ?\d+", re.IGNORECASE)

Role = Literal["source", "target", "weight", "index", "other"]


def find_role(name: str) -> tuple[Role | None, bool]:
    """Return the role that a column's name states, and whether the name states only that.

    `source` and `FromNodeId` are sources and nothing else; `source_airport` has a word for sources among others.
    """
    name = name.strip()
    words = [word.lower() for word in _WORDS.findall(name)]
    joined = "".join(words)
    if _SAVED_INDEX.fullmatch(name) or _UNNAMED.fullmatch(name) or joined in _INDEX_NAMES:
        return "index", True
    if (match := _JOINED.fullmatch(joined)) is not None:
        return ("source" if match.group(1).lower() in SOURCE_WORDS else "target"), True
    if joined in _SHORT_SOURCES:
        return "source", True
    if joined in _SHORT_TARGETS:
        return "target", True
    for role, known in (("source", SOURCE_WORDS), ("target", TARGET_WORDS), ("weight", WEIGHT_WORDS)):
        if known & set(words) and set(words) <= known | _FILLERS:
            return role, True  # type: ignore[return-value]  # a Role
    if joined in WEIGHT_WORDS:
        return "weight", True
    if _TIME_WORDS & set(words):
        return "other", False
    is_source, is_target = bool(SOURCE_WORDS & set(words)), bool(TARGET_WORDS & set(words))
    if is_source != is_target:
        return ("source" if is_source else "target"), False
    return ("other" if _OTHER_WORDS & set(words) else None), False


def is_saved_index(name: str) -> bool:
    """Return whether a column is the index that pandas or Dask saved with a table."""
    return _SAVED_INDEX.fullmatch(name) is not None


# --- columns ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Columns:
    """Places of the columns that are read, from 0."""

    source: int
    target: int
    weight: int | None = None

    @property
    def ids(self) -> tuple[int, int]:
        return self.source, self.target


Weights = Literal["auto"] | bool
Extra = Literal["error", "ignore"]

_SAY = 'columns=("SOURCE", "TARGET")'


def resolve_columns(
    given: Sequence[str | int], names: Sequence[str] | None, n_columns: int, weights: Weights = "auto"
) -> Columns:
    """Return the columns that a user named, or numbered from 1.

    Raises
    ------
    Undecided : a name that is missing or occurs twice, a number out of range, or a column named twice
    """
    places = [_resolve_column(each, names, n_columns) for each in given]
    if len(set(places)) != len(places):
        raise Undecided(f"columns={tuple(given)!r} takes one column twice; name different ones")
    return Columns(places[0], places[1], places[2] if len(places) > 2 and weights is not False else None)


def _resolve_column(given: str | int, names: Sequence[str] | None, n_columns: int) -> int:
    if isinstance(given, int):
        if not 1 <= given <= n_columns:
            raise Undecided(f"columns= has the number {given}, and there are columns 1 to {n_columns}")
        return given - 1
    assert names is not None
    n_times = list(names).count(given)
    if n_times != 1:
        near = get_close_matches(given, names, n=1) if not n_times else []
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise Undecided(
            f"expected one column {given!r}, found the columns {list_names(names)}{hint}"
            + ("; pass their numbers, counted from 1" if n_times else "")
        )
    return list(names).index(given)


def choose_columns(
    names: Sequence[str] | None, n_columns: int, weights: Weights = "auto", extra_columns: Extra = "error"
) -> Columns:
    """Return the columns of sources, targets and weights: by their names if these state it, else by place.

    Places decide only if there are no names, or two or three names without a known meaning.

    Parameters
    ----------
    names : names of all columns; None without a header
    weights : True to require weights, False to read none, "auto" to read them if they are found
    extra_columns : "ignore" columns that no rule takes, or raise for them

    Raises
    ------
    Undecided : names that contradict each other or their places, or columns that may be weights or not
    """
    if n_columns < 2:
        raise Undecided(
            "expected columns of sources and targets, found one column"
            + (f" {names[0]!r}" if names else "")
            + "; pass delimiter= if another character separates them"
        )
    if names is None:
        return _choose_by_place(n_columns, weights, extra_columns)
    columns = _choose_by_names(names, weights, extra_columns)
    return columns if columns is not None else _choose_unnamed(names, weights, extra_columns)


def _choose_by_place(n_columns: int, weights: Weights, extra_columns: Extra) -> Columns:
    if n_columns == 2 and weights is True:
        raise Undecided('expected a third column of weights, found 2 columns; pass weights=False or weights="auto"')
    if n_columns > 3 and extra_columns == "error":
        raise Undecided(
            f"expected 'source target' or 'source target weight', found {n_columns} columns; say which by their "
            f'numbers, as columns=(1, 2), or pass extra_columns="ignore" to read the first three'
        )
    return Columns(0, 1, 2 if n_columns > 2 and weights is not False else None)


def _choose_by_names(names: Sequence[str], weights: Weights, extra_columns: Extra) -> Columns | None:
    """Choose columns if a name is that of a source or a target, else return None."""
    roles = [find_role(name) for name in names]
    found: dict[str, int] = {}
    for role in ("source", "target"):
        for is_exact in (True, False):
            places = [k for k, own in enumerate(roles) if own == (role, is_exact)]
            if len(places) > 1:
                raise Undecided(
                    f"{list_names([names[k] for k in places])} may all be the {role}; say which columns to read by "
                    f"{_SAY}"
                )
            if places:
                found[role] = places[0]
                break
    if not found:
        return None
    if len(found) == 1:
        found = _complete(found, names, roles)
    weight = _find_weight(set(found.values()), names, roles, weights, extra_columns)
    return Columns(found["source"], found["target"], weight)


def _complete(found: dict[str, int], names: Sequence[str], roles: Sequence[tuple[Role | None, bool]]) -> dict[str, int]:
    """Find both ends, given one by its name: the other is the only column that it can be."""
    role, place = next(iter(found.items()))
    other = "target" if role == "source" else "source"
    left = [k for k, (own, _) in enumerate(roles) if k != place and own is None]
    if len(left) == 1 and (left[0] > place) == (role == "source"):
        return {role: place, other: left[0]}
    raise Undecided(
        f"{names[place]!r} is the {role}, and the {other} may be any of the columns {list_names(names)}; say which by "
        f"{_SAY}"
    )


def _find_weight(
    ends: set[int],
    names: Sequence[str],
    roles: Sequence[tuple[Role | None, bool]],
    weights: Weights,
    extra_columns: Extra,
) -> int | None:
    """Find the column of weights, given both ends, which were found by name."""
    if weights is False:
        return None
    named = [k for k, own in enumerate(roles) if own[0] == "weight" and k not in ends]
    if len(named) == 1:
        return named[0]
    unknown = named or [k for k, own in enumerate(roles) if own[0] is None and k not in ends]
    if weights is True:
        unknown = unknown or [k for k, own in enumerate(roles) if own[0] == "other" and k not in ends]
        if len(unknown) == 1:
            return unknown[0]
        raise Undecided(
            f"expected a column of weights, found the columns {list_names(names)}; name it as the third of "
            'columns=("SOURCE", "TARGET", "WEIGHT"), or leave weights=True out'
        )
    if not unknown or extra_columns == "ignore":
        return None
    what = list_names([names[k] for k in unknown])
    example = ", ".join(f'"{name}"' for name in (*(names[k] for k in sorted(ends)), names[unknown[0]]))
    raise Undecided(
        f"{what} may be weights or not; pass weights=False to leave {'it' if len(unknown) == 1 else 'them'} out, or "
        f"name the weights as the third of columns=({example})"
    )


def _choose_unnamed(names: Sequence[str], weights: Weights, extra_columns: Extra) -> Columns:
    """Choose columns by place, as no name means a source or a target."""
    kept = [k for k, name in enumerate(names) if not is_saved_index(name)]
    roles = [find_role(names[k])[0] for k in kept]
    if len(kept) < 2 or (len(kept) > 3 and extra_columns == "error"):
        raise Undecided(
            f"expected columns of sources, targets and, maybe, weights, found {len(kept)}: {list_names(names)}; name "
            f"them by {_SAY}"
        )
    has_index = "index" in roles if len(kept) > 2 else names[kept[0]].strip() == ""
    if has_index or "weight" in roles[:2] or (len(kept) > 2 and "other" in roles[:2]):
        raise Undecided(
            f"the columns are {list_names(names)}, and neither their names nor their places say which are sources and "
            f"targets; name them by {_SAY}"
        )
    if _are_reversed(names[kept[0]], names[kept[1]]):
        raise Undecided(
            f"the columns are {list_names(names)}, whose names say another order than source and target; name them by "
            f"{_SAY}"
        )
    if weights is True and len(kept) == 2:
        raise Undecided(
            f"expected columns of sources, targets and weights, found 2: {list_names(names)}; pass weights=False or "
            'weights="auto"'
        )
    weight = None
    if len(kept) > 2 and (weights is True or (weights == "auto" and roles[2] != "other")):
        weight = kept[2]
    return Columns(kept[0], kept[1], weight)


_PAIRS = (
    ("arrival", "departure"),
    ("callee", "caller"),
    ("destinazione", "origine"),
    ("destino", "origen"),
    ("destino", "fuente"),
    ("nach", "von"),
    ("object", "subject"),
    ("payee", "payer"),
    ("referred", "referrer"),
    ("successor", "predecessor"),
    ("ziel", "quelle"),
)
"""Pairs of words, target first and source second, which are no known names and must not be reversed silently."""
_COUNTED = re.compile(r"(.*?)([0-9]+|[a-z])", re.IGNORECASE | re.DOTALL)


def _are_reversed(source: str, target: str) -> bool:
    """Return whether names of columns, in this order, mean or count the reverse: `callee, caller`, `n2, n1`."""
    own, other = _find_words(source), _find_words(target)
    if any(late in own and early in other for late, early in _PAIRS):
        return True
    counted = [_COUNTED.fullmatch(name.strip().lower()) for name in (source, target)]
    if counted[0] is None or counted[1] is None or counted[0].group(1) != counted[1].group(1):
        return False
    last, before = (match.group(2) for match in counted if match is not None)
    if last.isdigit() and before.isdigit():
        return len(last + before) <= _DIGITS and int(last) > int(before)
    return not last.isdigit() and not before.isdigit() and ord(last) == ord(before) + 1


def list_names(names: Iterable[str]) -> str:
    """Return names, joined for a message; an empty name is shown as quotes."""
    return ", ".join(name if name.strip() else "''" for name in names)


# --- headers ---------------------------------------------------------------------------------------------------------

_LABEL = re.compile("0|1[89][0-9][0-9]|20[0-9][0-9]")
"""Numbers that may also be names of columns: 0, pandas' name of an unnamed column, and years."""

_SAY_HEADER = "pass header=True if it names the columns, or header=False if it is data"


def has_header(
    first: Sequence[str],
    below: Sequence[Sequence[str]],
    given: Sequence[str | int] | None = None,
    is_vertex: Callable[[str], bool] | None = None,
) -> bool:
    """Return whether the first line of a file of edges names the columns.

    A line with a number above numbers is an edge, as is one with a name that occurs again as an id, in a line that does
    not repeat the first. A line of known names, or of words above numbers, is a header.

    Parameters
    ----------
    first : fields of the first line
    below : fields of lines that follow
    given : columns that the user named, or numbered from 1
    is_vertex : function that returns whether a name is known to be an id, as in a store that is updated

    Raises
    ------
    UndecidedHeader : an ambiguous line, which is an edge if one of its ids occurs in lines that follow `below`
    Undecided : an ambiguous line
    """
    if given is not None and all(isinstance(each, str) for each in given):
        return True
    known = _find_known_ends(first)
    places = [each - 1 for each in given if isinstance(each, int)][:2] if given is not None else [0, 1]
    if any(place >= len(first) for place in places):
        places = [0, 1][: len(first)]
    if first and first[0] == "" and any(first):
        return True
    tokens = [first[place] for place in places]
    are_vertices = is_vertex is not None and any(map(is_vertex, tokens))
    if known is not None and (given is None or not any(map(is_number, tokens))):
        if are_vertices or _recur(tokens, below, places) or _recur([first[k] for k in known], below, known):
            raise Undecided(
                f"the first line is {list_names(first)}, which are names of columns and occur as ids below it; "
                f"{_SAY_HEADER}"
            )
        return True
    columns = [[own[place] for own in below if place < len(own)] for place in places]
    are_numbers = [all(map(is_number, own)) for own in columns]
    others = [own for own in below if [own[place : place + 1] for place in places] != [[token] for token in tokens]]
    if are_vertices or _recur(tokens, others, places):
        return False
    if any(is_number(token) and numbers for token, numbers in zip(tokens, are_numbers, strict=True)):
        return False
    above_numbers = [own for place, own in enumerate(first) if place not in places and _is_numeric(below, place)]
    if any(is_number(token) and _LABEL.fullmatch(token) is None for token in above_numbers):
        return False
    if below and all(are_numbers) and not any(map(is_number, tokens)):
        return True
    if below and not any(map(is_number, tokens)) and any(own and not is_number(own) for own in above_numbers):
        return True
    error = Undecided if any(map(is_number, tokens)) else UndecidedHeader
    raise error(
        f"the first line, {list_names(first)}, may name the columns or be an edge"
        f"{': none of its ids occurs again' if below else ', and no line follows it'}; {_SAY_HEADER}"
    )


def _find_known_ends(first: Sequence[str]) -> tuple[int, int] | None:
    """Return the places of names that mean only source and target; single letters may also be ids."""
    roles = [find_role(name) if len(name.strip()) > 1 else (None, False) for name in first]
    sources, targets = ([k for k, own in enumerate(roles) if own == (end, True)] for end in ("source", "target"))
    return (sources[0], targets[0]) if sources and targets else None


def _recur(tokens: Sequence[str], below: Sequence[Sequence[str]], places: Sequence[int]) -> bool:
    wanted = {token for token in tokens if not is_number(token)}
    return bool(wanted) and any(own[place] in wanted for own in below for place in places if place < len(own))


def _is_numeric(rows: Sequence[Sequence[str]], place: int) -> bool:
    return all(place < len(own) and is_number(own[place]) for own in rows)


_LINE = re.compile("[-=:+_]{3,}")


def check_lines(rows: Sequence[Sequence[str]], columns: Columns, *, is_below_header: bool) -> None:
    """Raise Undecided if the first edge is a drawn line, or names the columns again."""
    first, *below = rows
    if all(map(_LINE.fullmatch, filter(None, first))):
        raise Undecided(
            f"the first edge would be a drawn line, {list_names(first)}; delete it, pass skip_rows= to leave out all "
            'lines up to it, or pass ids="string" if it is an edge'
        )
    if not is_below_header:
        return
    ends = [first[place] for place in columns.ids]
    are_words = below and not any(map(is_number, ends)) and all(_is_numeric(below, place) for place in columns.ids)
    if are_words or (_find_known_ends(first) is not None and not _recur(ends, below, columns.ids)):
        raise Undecided(
            f"the line below the header, {list_names(first)}, may name the columns as well; pass skip_rows=1 if it "
            'does, or ids="string" if it is an edge'
        )


def check_sizes(rows: Sequence[Sequence[str]], *, is_whole: bool) -> None:
    """Raise Undecided if the first line fits the sizes that some programs write above edges.

    These are `rows columns entries`, as in Matrix Market, or `vertices edges`.

    Parameters
    ----------
    rows : fields of the first lines
    is_whole : whether these are all lines
    """
    first, *below = rows
    if len(first) not in (2, 3) or not all(map(is_plain_integer, first)) or len(below) < 5 - len(first):
        return  # with fewer lines any edge may fit
    tokens = [*first, *(own[place] for own in below for place in (0, 1) if place < len(own))]
    if not all(is_plain_integer(token) and len(token) <= _DIGITS for token in tokens):
        return
    highest = [max(int(own[place]) for own in below if place < len(own)) for place in (0, 1)]
    sizes, n_edges = (int(first[0]), int(first[-2])), int(first[-1])
    is_count = n_edges == len(below) or (
        not is_whole and len(first) == 3 and n_edges > len(below) and find_times(n_edges, n_edges) is None
    )
    if len(first) == 2:
        highest = [max(highest)] * 2
    if is_count and all(size >= high for size, high in zip(sizes, highest, strict=True)):
        raise Undecided(
            f"the first line, {' '.join(first)}, may say how many vertices and edges there are or be an edge; pass "
            "skip_rows=1 if it says that, or header=False if it is an edge"
        )


def has_list_header(
    first: Sequence[str],
    below: Sequence[Sequence[str]],
    *,
    has_numbers: bool = False,
    are_names: bool = False,
    is_vertex: Callable[[str], bool] | None = None,
) -> bool:
    """Return whether the first line of a list of vertices, or of a vector, names the columns.

    Parameters
    ----------
    first : fields of the first line
    below : fields of lines that follow
    has_numbers : whether a column of numbers is expected next to the ids
    are_names : whether ids are known to be names, which may look like numbers
    is_vertex : function that returns whether a name is known to be an id

    Raises
    ------
    Undecided : an unknown word above ids that look like numbers and are names; a known word that is an id
    """
    if not first:
        return False
    if first[0] == "" and any(first):
        return True
    if has_numbers and len(first) > 1:
        return not any(map(is_number, first))
    if is_number(first[0]):
        return False
    for place, name in enumerate(first):
        if names_vertices(name) and not any(name in own[place : place + 1] for own in below):
            if is_vertex is not None and is_vertex(name):
                raise Undecided(
                    f"{name!r} may name the column or be the vertex of this id; write a line `vertex` above it if it "
                    "is an id, or delete it if it is not"
                )
            return True
    are_numbers = bool(below) and all(bool(own) and is_number(own[0]) for own in below)
    if are_numbers and are_names:
        raise Undecided(
            f"{first[0]!r} above numbers may name the column or be an id; write a line `id` above it if it is an id, "
            "or delete it if it is not"
        )
    return are_numbers


def names_vertices(name: str) -> bool:
    """Return whether a column's name means ids of vertices."""
    words, known = _find_words(name), VERTEX_WORDS | {"nodeid", "vertexid"}
    return bool(words & known) and words <= known | _FILLERS


def names_numbers(name: str) -> bool:
    """Return whether a column's name means the numbers of a vector."""
    return bool(_find_words(name) & NUMBER_WORDS) and not names_vertices(name)


def _find_words(name: str) -> set[str]:
    return {word.lower() for word in _WORDS.findall(name)}


def choose_list_columns(names: Sequence[str], *, has_numbers: bool) -> tuple[int, int | None]:
    """Return the places of ids and of numbers in a list of vertices or a vector, given its columns' names.

    Raises
    ------
    Undecided : several columns may be the ids or the numbers
    """
    kept = [k for k, name in enumerate(names) if not is_saved_index(name)]
    ids = [k for k in kept if names_vertices(names[k])]
    numbers = [k for k in kept if names_numbers(names[k])]
    if len(ids) > 1 and (numbers or not has_numbers):  # next to an id, a label is a description
        ids = [k for k in ids if _find_words(names[k]) & {"id", "ids"}] or ids
    if not has_numbers:
        if len(ids) == 1 or (not ids and len(kept) == 1):
            return (ids or kept)[0], None
        raise Undecided(f"of the columns {list_names(names)}, name only the one of ids `id`")
    if len(ids) == 1 and len(numbers) == 1:
        return ids[0], numbers[0]
    if len(kept) == 2 and names[kept[0]].strip() and len(ids) < 2 and len(numbers) < 2:
        if ids:
            return ids[0], next(k for k in kept if k != ids[0])
        if numbers:
            return next(k for k in kept if k != numbers[0]), numbers[0]
        return kept[0], kept[1]
    raise Undecided(f"the columns are {list_names(names)}; keep two, of ids and numbers, named `id` and `weight`")


# --- comments --------------------------------------------------------------------------------------------------------

COMMENTS = "#%"
"""Characters that begin a comment by default."""

_CLAIM = re.compile(r"\b(nodes|vertices|edges|arcs)\s*[:=]\s*([0-9]{1,18})(?![0-9,.]*[0-9])", re.IGNORECASE)
_KONECT = re.compile(r"%\s*(sym|asym|bip)\s+[a-z]+\s*", re.IGNORECASE)
_KONECT_SIZES = re.compile(r"%\s*[0-9]+(?:\s+[0-9]+){0,3}\s*")
_UNDIRECTED = re.compile(r"\bundirected\b", re.IGNORECASE)
_SNAP = re.compile(r"#\s*(directed|undirected) graph\b", re.IGNORECASE)


@dataclass
class Preamble:
    """Claims in the comments of a file, which are read one by one."""

    claims: dict[str, int] = field(default_factory=dict)
    """Stated numbers of `nodes` and `edges`; the last if there are several."""
    nodes_line: tuple[int, str] = (0, "")
    """Number and text of the line that states the number of nodes."""
    names: list[str] | None = None
    """Names of columns, from a comment such as `# FromNodeId ToNodeId`."""
    is_undirected: bool = False
    """Whether each line is an edge both ways: KONECT's `% sym`, SNAP's `# Undirected graph`."""
    mentions_undirected: bool = False
    """Whether a comment contains `undirected` in another form, which may or may not refer to this graph."""
    is_bipartite: bool = False
    """Whether sources and targets are numbered separately: KONECT's `% bip`."""
    n_lines: int = 0
    _is_konect: bool = False
    _suspects: dict[tuple[str, int], tuple[int, str]] = field(default_factory=dict)

    def take(self, line: str, number: int = 0) -> None:
        """Read the next comment.

        Parameters
        ----------
        number : number of the line in its file, from 1
        """
        self.n_lines += 1
        line = line.strip()
        if self.n_lines == 1 and (konect := _KONECT.fullmatch(line)) is not None:
            kind = konect.group(1).lower()
            self._is_konect, self.is_undirected, self.is_bipartite = True, kind == "sym", kind == "bip"
            return
        if self._is_konect and self.n_lines <= 3 and _KONECT_SIZES.fullmatch(line):
            return
        if (snap := _SNAP.match(line)) is not None:
            self.is_undirected = snap.group(1).lower() == "undirected"
            return
        self.mentions_undirected |= _UNDIRECTED.search(line) is not None
        if ":" in line or "=" in line:
            claims = list(_CLAIM.finditer(line))
            for claim in claims:
                what, number_of = claim.groups()
                is_nodes = what.lower() in ("nodes", "vertices")
                self.claims["nodes" if is_nodes else "edges"] = int(number_of)
                self.nodes_line = (number, line) if is_nodes else self.nodes_line
            if claims:
                return
        if (names := _find_names(line)) is not None:
            self.names = names
            return
        for delimiter in DELIMITERS:
            if (n_fields := _count_as_edge(line, delimiter)) > 1:
                self._suspects.setdefault((delimiter, n_fields), (number, line))

    def find_suspect(self, delimiter: str, n_columns: int) -> tuple[int, str] | None:
        """Return the number and text of the first comment that has the form of an edge; None if there is none."""
        return self._suspects.get((delimiter, n_columns))


def looks_like_edge(line: str, delimiter: str, n_columns: int) -> bool:
    """Return whether a comment among the edges has their delimiter and number of columns."""
    if _find_names(line) is not None or _KONECT.fullmatch(line) or _SNAP.match(line) or _CLAIM.search(line):
        return False
    return n_columns > 1 and _count_as_edge(line, delimiter) == n_columns


def _count_as_edge(line: str, delimiter: str) -> int:
    if delimiter == " " and line[1:2].strip() == "":
        return 1  # a comment sign alone is no id
    return _count_fields(line, delimiter)


def _find_names(comment: str) -> list[str] | None:
    """Find names of columns in a comment, those of a source and a target among them."""
    text = comment.lstrip(COMMENTS + _BLANKS)
    delimiter = choose_delimiter([text])
    try:
        names = split_fields(text, delimiter)
    except Undecided:
        return None
    roles = [find_role(name) for name in names]
    is_exact = ("source", True) in roles and ("target", True) in roles
    return names if is_exact and all(name and not is_number(name) for name in names) and len(names) < 10 else None


# --- ids -------------------------------------------------------------------------------------------------------------


SEPARATORS = frozenset(("->", "-->", "=>", "==>", "--", "---", "<->", "<-", "-", "&", "\u2192"))
"""Signs between the ends of an edge, as some programs write them."""


_MISSING = frozenset(("", "nan", "na", "n/a", "<na>", "null", "none", "nil"))
"""Tokens for a missing value, in lower case."""


def check_missing(rows: Sequence[Sequence[str]], columns: Columns) -> None:
    """Raise Undecided if one of the ids, which are numbers otherwise, is a token for a missing value."""
    for place in columns.ids:
        ids = {own[place] for own in rows if place < len(own)}
        missing = sorted(token for token in ids if token.lower() in _MISSING)
        if missing and len(ids) > len(missing) and all(is_number(token) for token in ids if token not in missing):
            raise Undecided(
                f"column {place + 1} has {missing[0]!r} among ids that are numbers; drop such lines, or pass "
                'ids="string" if it is an id'
            )


def check_separators(rows: Sequence[Sequence[str]], columns: Columns) -> None:
    """Raise Undecided if a column of ids holds only a sign between ends of edges, or the letter of DIMACS edges."""
    if len(rows) > 1 and columns.source == 0 and columns.weight is not None:
        kinds = {own[0] for own in rows}
        if (
            len(kinds) == 1
            and kinds <= {"a", "e"}
            and all(map(is_number, (token for own in rows for token in own[1:])))
        ):
            raise Undecided(
                f"column 1 is {kinds.pop()!r} in every line, as in files of DIMACS; say which columns are read, as "
                "columns=(2, 3), or columns=(1, 2, 3) if it is an id"
            )
    for place in columns.ids:
        signs = {own[place] for own in rows if place < len(own)}
        if len(signs) == 1 and signs <= SEPARATORS:
            raise Undecided(
                f"column {place + 1} is {signs.pop()!r} in every line; say which columns are read, as columns=(1, 3)"
            )


def are_names(tokens: Sequence[str]) -> bool:
    """Return whether ids are names rather than integers, by both ids of the first edge.

    Raises
    ------
    Undecided : they are other numbers
    """
    if all(map(is_integer, tokens)):
        return False
    if any(is_number(token) and not is_integer(token) and re.search("[0-9]", token) for token in tokens):
        raise Undecided('ids are integers or names, and these are other numbers; pass ids="string" if ids are names')
    return True


# --- times -----------------------------------------------------------------------------------------------------------

_FIRST_TIME, _LAST_TIME = 631_152_000, 4_102_444_800  # seconds since 1970: 1990 to 2100
_TIME_UNITS = (1, 1_000, 1_000_000, 1_000_000_000)
LEAST_TIME = 19_000_101
"""Least number that may be a time: a day of 1900 as YYYYMMDD."""
_LAST_DAY = 21_001_231


def find_times(low: float, high: float) -> tuple[str, str] | None:
    """Return the days of the first and the last time, where whole numbers from `low` to `high` look like times.

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


# --- formats ---------------------------------------------------------------------------------------------------------

Format = Literal["matrix-market", "edge-list", "parquet", "npz"]

_SUFFIXES: dict[str, Format] = {".npz": "npz", ".parquet": "parquet", ".pq": "parquet", ".parq": "parquet"}
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zstd", ".lzma", ".bgz")

_VIA_NETWORKX = "read it with NetworkX ({}) and pass the graph"
_FOREIGN = (
    (".graph .metis", "a METIS graph", "convert it to an edge list, or read it by its library and pass arrays"),
    (".chaco", "a Chaco graph", "convert it to an edge list"),
    (".graphml", "GraphML", _VIA_NETWORKX.format("networkx.read_graphml")),
    (".gexf", "GEXF", _VIA_NETWORKX.format("networkx.read_gexf")),
    (".gml", "GML", _VIA_NETWORKX.format("networkx.read_gml")),
    (".net", "a Pajek network", _VIA_NETWORKX.format("networkx.read_pajek")),
    (".paj", "a Pajek project", _VIA_NETWORKX.format("networkx.read_pajek")),
    (".adjlist", "an adjacency list", _VIA_NETWORKX.format("networkx.read_adjlist")),
    (".dot .gv", "DOT of Graphviz", "convert it to an edge list"),
    (".gr", "a DIMACS graph", "keep its lines `a SOURCE TARGET WEIGHT` without the first column"),
    (".col", "a DIMACS graph", "keep its lines `e SOURCE TARGET` without the first column"),
    (".dimacs", "a DIMACS graph", "keep its lines of edges without the first column"),
    (".rb", "Rutherford-Boeing", "read it with scipy.io.hb_read and pass the matrix"),
    (".rsa .rua .hb", "Harwell-Boeing", "read it with scipy.io.hb_read and pass the matrix"),
    (".h5ad", "AnnData in HDF5", "write it with anndata's write_zarr, or pass its .X"),
    (".h5 .hdf5", "HDF5", "read it with its library and pass the matrix"),
    (".mat", "MATLAB", "read it with scipy.io.loadmat and pass the matrix"),
    (".npy", "a NumPy array", "load it with numpy.load and pass the matrix, or a tuple of columns (src, dst)"),
    (".pkl .pickle", "a pickle", "load it where you trust it, and pass the object"),
    (".feather", "Feather", "read it with pyarrow.feather.read_table and pass the table"),
    (".arrow", "an Arrow file", "read it with pyarrow.ipc and pass the table"),
    (".orc", "ORC", "read it with pyarrow.orc and pass the table"),
    (".avro", "Avro", "convert it to Parquet"),
    (".json", "JSON", "convert it to CSV, or read it and pass a graph or a table"),
    (".jsonl .ndjson", "JSON", "convert it to CSV, or read it with pandas.read_json(lines=True) and pass the table"),
    (".xlsx .xls", "an Excel workbook", "save it as CSV"),
    (".zip", "a zip archive", "unpack it and name the files in it"),
    (".tar .tgz .tbz2", "a tar archive", "unpack it and name the files in it"),
    (".7z", "a 7-Zip archive", "unpack it and name the files in it"),
    (".rar", "a RAR archive", "unpack it and name the files in it"),
)
"""Unsupported formats: suffix, description and advice."""


@dataclass(frozen=True)
class Foreign:
    """File of a format that is not read."""

    what: str
    advice: str

    def explain(self) -> str:
        return f"this is {self.what}, which ingest does not read; {self.advice}"


_FOREIGN_SUFFIXES = {
    suffix: Foreign(what, advice) for suffixes, what, advice in _FOREIGN for suffix in suffixes.split()
}
_FOREIGN_BYTES: tuple[tuple[re.Pattern[bytes], str], ...] = tuple(
    (re.compile(pattern, re.DOTALL | re.IGNORECASE), suffix)
    for pattern, suffix in (
        (rb"PK\x03\x04|PK\x05\x06", ".zip"),
        (rb".{257}ustar", ".tar"),
        (rb"7z\xbc\xaf\x27\x1c", ".7z"),
        (rb"Rar!\x1a\x07", ".rar"),
        (rb"\x89HDF\r\n\x1a\n", ".h5"),
        (rb"MATLAB 5\.0 MAT-file", ".mat"),
        (rb"\x93NUMPY", ".npy"),
        (rb"ARROW1|FEA1", ".feather"),
        (rb"ORC[\x00-\x1f]", ".orc"),
        (rb"Obj\x01", ".avro"),
        (rb"\x80[\x02-\x05]", ".pkl"),
        (rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", ".xls"),
        (rb"\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<graphml\b", ".graphml"),
        (rb"\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<gexf\b", ".gexf"),
        (rb"(?:\s*(?:creator|version|comment)\b[^\n]*\n)*\s*graph\s*\[", ".gml"),
        (rb"(?:\s*%[^\n]*\n)*\s*\*(?:network|vertices|arcs|edges)\b", ".net"),
        (rb"(?:c\b[^\n]*\n)*p\s+(?:sp|edges?|col|max|min|asn|aux)\b", ".dimacs"),
        (rb"\s*(?:strict\s+)?(?:di)?graph\b[^\n{]*\{", ".dot"),
        (rb"\s*[\[{]\s*(?:[\"\[{\]}]|$)", ".json"),
    )
)
_XML = re.compile(rb"\s*<(?:\?xml|!doctype|html)", re.IGNORECASE)
_PARQUET = b"PAR1"


def strip_compression(name: str) -> str:
    """Return a file's name in lower case, without the suffix of a compression."""
    name = name.lower()
    stem, suffix = os.path.splitext(name)
    return stem if suffix in _COMPRESSED else name


def find_format_by_name(name: str) -> Format | Foreign | None:
    """Return the format that the suffix of a file's name indicates; None if it indicates none, as `.csv` and `.txt`.

    `.mtx` indicates no format: such a file must have the banner of Matrix Market, see `detect_format`.
    """
    suffix = os.path.splitext(strip_compression(name))[1]
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    return _FOREIGN_SUFFIXES.get(suffix)


def find_format_by_bytes(head: bytes) -> Format | Foreign | None:
    """Return the format that the first bytes of a file, decompressed, indicate; None for any other text.

    Parameters
    ----------
    head : at least 512 bytes, or the whole file
    """
    if head.startswith(_PARQUET):
        return "parquet"
    if head[:512].removeprefix(b"\xef\xbb\xbf").lower().lstrip().startswith((b"%%matrixmarket", b"%matrixmarket")):
        return "matrix-market"
    for pattern, suffix in _FOREIGN_BYTES:
        if pattern.match(head):
            return _FOREIGN_SUFFIXES[suffix]
    if _XML.match(head):
        return Foreign("XML", "convert it to CSV")
    return None
