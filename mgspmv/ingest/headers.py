"""Rules for the lines of a file, headers, comments and the ids of the first edge, and options that overrule them.

See `mgspmv.ingest.tokens` for the form of rules.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Literal

from mgspmv.errors import OptionError
from mgspmv.ingest.column_names import (
    ColumnChoice,
    Weights,
    choose_columns,
    find_role,
    list_names,
    names_vertices,
    resolve_columns,
)
from mgspmv.ingest.columns import TableFormat
from mgspmv.ingest.streams import TextLine
from mgspmv.ingest.tokens import (
    BLANKS,
    SAMPLE_BYTES,
    SAMPLE_LINES,
    SURE_DIGITS,
    Undecided,
    choose_delimiter,
    count_fields,
    is_integer,
    is_number,
    is_plain_integer,
    split_fields,
)
from mgspmv.ingest_report import find_times
from mgspmv.model import check_choice

# --- headers ---------------------------------------------------------------------------------------------------------

_LABEL = re.compile("0|1[89][0-9][0-9]|20[0-9][0-9]")
"""Numbers that may also be names of columns: 0, pandas' name of an unnamed column, and years."""

_HEADER_HINT = "pass header=True if it names the columns, or header=False if it is data"


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
    Undecided : an ambiguous line
    """
    if given is not None and all(isinstance(each, str) for each in given):
        return True
    known = _find_known_ends(first)
    places = [each - 1 for each in given if isinstance(each, int)][:2] if given is not None else [0, 1]
    if any(place >= len(first) for place in places):
        places = [0, 1][: len(first)]  # `resolve_columns` reports numbers out of range
    if first and first[0] == "" and any(first):
        return True
    tokens = [first[place] for place in places]
    are_vertices = is_vertex is not None and any(map(is_vertex, tokens))
    if known is not None and (given is None or not any(map(is_number, tokens))):
        if are_vertices or _recur(tokens, below, places) or _recur([first[k] for k in known], below, known):
            raise Undecided(
                f"the first line, {list_names(first)}, has known column names, which also occur as ids below it; "
                f"{_HEADER_HINT}"
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
    again = ": none of its ids occurs again" if below else ", and no line follows it"
    raise Undecided(f"the first line, {list_names(first)}, may name the columns or be an edge{again}; {_HEADER_HINT}")


def _find_known_ends(first: Sequence[str]) -> tuple[int, int] | None:
    """Return the places of names that mean only source and target; single letters may also be ids."""
    roles = [find_role(name) if len(name.strip()) > 1 else (None, False) for name in first]
    sources, targets = ([k for k, own in enumerate(roles) if own == (end, True)] for end in ("source", "target"))
    return (sources[0], targets[0]) if sources and targets else None


def _recur(tokens: Sequence[str], below: Sequence[Sequence[str]], places: Sequence[int]) -> bool:
    names = {token for token in tokens if not is_number(token)}
    return bool(names) and any(own[place] in names for own in below for place in places if place < len(own))


def _is_numeric(rows: Sequence[Sequence[str]], place: int) -> bool:
    return all(place < len(own) and is_number(own[place]) for own in rows)


_LINE = re.compile("[-=:+_]{3,}")


def check_lines(rows: Sequence[Sequence[str]], columns: ColumnChoice, *, is_below_header: bool) -> None:
    """Raise Undecided if the first edge is a ruled line such as `---`, or may be a second header."""
    first, *below = rows
    if all(map(_LINE.fullmatch, filter(None, first))):
        raise Undecided(
            f"the first edge, {list_names(first)}, looks like a ruled line below a header; delete it, pass skip_rows= "
            'to skip all lines up to it, or pass ids="string" if it is an edge'
        )
    if not is_below_header:
        return
    ends = [first[place] for place in columns.ids]
    are_words = below and not any(map(is_number, ends)) and all(_is_numeric(below, place) for place in columns.ids)
    if are_words or (_find_known_ends(first) is not None and not _recur(ends, below, columns.ids)):
        raise Undecided(
            f"the line below the header, {list_names(first)}, may be a second header; pass skip_rows=1 if it is, or "
            'ids="string" if it is an edge'
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
        return  # with fewer lines, ordinary edges would often look like sizes
    tokens = [*first, *(own[place] for own in below for place in (0, 1) if place < len(own))]
    is_short = all(len(own) < 2 for own in below)
    if is_short or not all(is_plain_integer(token) and len(token) <= SURE_DIGITS for token in tokens):
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
            f"the first line, {' '.join(first)}, may state the numbers of vertices and edges or be an edge; pass "
            "skip_rows=1 if it states these numbers, or header=False if it is an edge"
        )


def has_list_header(
    first: Sequence[str],
    below: Sequence[Sequence[str]],
    *,
    are_names: bool = False,
    is_vertex: Callable[[str], bool] | None = None,
) -> bool:
    """Return whether the first line of a list of vertices names the columns.

    Parameters
    ----------
    first : fields of the first line
    below : fields of lines that follow
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
    if is_number(first[0]):
        return False
    for place, name in enumerate(first):
        if names_vertices(name) and not any(name in own[place : place + 1] for own in below):
            if is_vertex is not None and is_vertex(name):
                raise Undecided(
                    f"{name!r} may be a header or the id of a vertex; add a line `vertex` above it if it is an id, or "
                    "delete it if it is a header"
                )
            return True
    are_numbers = bool(below) and all(bool(own) and is_number(own[0]) for own in below)
    if are_numbers and are_names:
        raise Undecided(
            f"{first[0]!r} above numbers may be a header or an id; add a line `id` above it if it is an id, or delete "
            "it if it is a header"
        )
    return are_numbers


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
    nodes_line: TextLine | None = None
    """Line that states the number of nodes."""
    names: list[str] | None = None
    """Names of columns, from a comment such as `# FromNodeId ToNodeId`."""
    is_undirected: bool = False
    """Whether each line is an edge in both directions: KONECT's `% sym`, SNAP's `# Undirected graph`."""
    mentions_undirected: bool = False
    """Whether a comment contains `undirected` in another form, which may or may not refer to this graph."""
    is_bipartite: bool = False
    """Whether sources and targets are numbered separately: KONECT's `% bip`."""
    n_lines: int = 0
    _is_konect: bool = False
    others: list[TextLine] = field(default_factory=list)
    """Comments that state nothing known, at most `SAMPLE_LINES` and about `SAMPLE_BYTES`; one may be an edge, see
    `looks_like_edge`."""
    _n_bytes: int = 0

    def take(self, comment: TextLine) -> None:
        """Read the next comment."""
        self.n_lines += 1
        line = comment.text
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
                is_nodes = claim[1].lower() in ("nodes", "vertices")
                self.claims["nodes" if is_nodes else "edges"] = int(claim[2])
                self.nodes_line = comment if is_nodes else self.nodes_line
            if claims:
                return
        if (names := _find_names(line)) is not None:
            self.names = names
            return
        if len(self.others) < SAMPLE_LINES and self._n_bytes < SAMPLE_BYTES:
            self.others.append(comment)
            self._n_bytes += len(comment.data)


def looks_like_edge(line: str, delimiter: str, n_columns: int) -> bool:
    """Return whether a comment among the edges has their delimiter and number of columns."""
    if _find_names(line) is not None or _KONECT.fullmatch(line) or _SNAP.match(line) or _CLAIM.search(line):
        return False
    if delimiter == " " and line[1:2].strip() == "":
        return False  # a comment character alone is not an id
    return n_columns > 1 and count_fields(line, delimiter) == n_columns


def _find_names(comment: str) -> list[str] | None:
    """Find names of columns in a comment, those of a source and a target among them."""
    text = comment.lstrip(COMMENTS + BLANKS)
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
"""Signs that some programs write between the ends of an edge."""


_MISSING = frozenset(("", "nan", "na", "n/a", "<na>", "null", "none", "nil"))
"""Tokens for a missing value, in lower case."""


def check_missing(rows: Sequence[Sequence[str]], columns: ColumnChoice) -> None:
    """Raise Undecided if one of the ids, which are numbers otherwise, is a token for a missing value."""
    for place in columns.ids:
        ids = {own[place] for own in rows if place < len(own)}
        missing = sorted(token for token in ids if token.lower() in _MISSING)
        if missing and len(ids) > len(missing) and all(is_number(token) for token in ids if token not in missing):
            raise Undecided(
                f"column {place + 1} has {missing[0]!r} among ids that are numbers; drop such lines, or pass "
                'ids="string" if it is an id'
            )


def check_separators(rows: Sequence[Sequence[str]], columns: ColumnChoice) -> None:
    """Raise Undecided if a column of ids holds only a sign between ends of edges, or the letter of DIMACS edges."""
    if len(rows) > 1 and columns.source == 0 and columns.weight is not None:
        kinds = {own[0] for own in rows}
        if (
            len(kinds) == 1
            and kinds <= {"a", "e"}
            and all(map(is_number, (token for own in rows for token in own[1:])))
        ):
            raise Undecided(
                f"column 1 is {kinds.pop()!r} in every line, as in DIMACS files; pass columns=(2, 3) to skip it, or "
                "columns=(1, 2, 3) if it is an id"
            )
    for place in columns.ids:
        signs = {own[place] for own in rows if place < len(own)}
        if len(signs) == 1 and signs <= SEPARATORS:
            raise Undecided(
                f"column {place + 1} is {signs.pop()!r} in every line; choose columns, such as columns=(1, 3)"
            )


def are_names(tokens: Sequence[str]) -> bool:
    """Return whether ids are names rather than integers, judging by both ids of the first edge.

    Raises
    ------
    Undecided : one of them is a number but not an integer
    """
    if all(map(is_integer, tokens)):
        return False
    if any(is_number(token) and not is_integer(token) and re.search("[0-9]", token) for token in tokens):
        raise Undecided('ids must be integers or names, found other numbers; pass ids="string" if they are names')
    return True


# --- options ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StatedForm:
    """Options that state how edges are read; those of lines do not apply to tables.

    Parameters
    ----------
    delimiter : character between columns; a space stands for any run of blanks; None to detect it
    header : whether the first line names the columns; None to detect it
    skip_rows : lines to skip at the beginning of each file
    comment : characters that begin comments, or "none"; None for `#` and `%`. If given, the text of comments is ignored
    columns : names of sources, targets and optionally weights, or numbers from 1; None to choose by name or place
    weights : whether weights are read (float64); "auto" if there is such a column; or the name of the column
    ids : "int", "string", or "auto" to detect it from the first edge
    n_vertices : number of vertices, whose ids are 0..n_vertices-1, isolated ones included
    vertices : path of a list of vertices (LDBC's `.v`): one per line, its id in the first column
    """

    delimiter: str | None = None
    header: bool | None = None
    skip_rows: int = 0
    comment: str | None = None
    columns: Sequence[str | int] | None = None
    weights: Weights = "auto"
    ids: Literal["auto", "int", "string"] = "auto"
    n_vertices: int | None = None
    vertices: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.weights, str):
            check_choice("weights", self.weights, ("auto", True, False))
        check_choice("ids", self.ids, ("auto", "int", "string"))
        check_choice("header", self.header, (None, True, False))
        delimiter, comment = self.delimiter, self.comment
        if delimiter is not None and (len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n'):
            raise OptionError(f"delimiter must be one character such as ',' or ';', not {delimiter!r}")
        if comment is not None and (not comment or not comment.isascii() or '"' in comment or "\n" in comment):
            raise OptionError(f'comment must be "none" or characters such as "#", not {comment!r}')
        if isinstance(self.skip_rows, bool) or not isinstance(self.skip_rows, int) or self.skip_rows < 0:
            raise OptionError(f"skip_rows must be 0 or more, not {self.skip_rows!r}")
        if delimiter is not None and delimiter.encode() in self.comments:
            raise OptionError(f"delimiter {delimiter!r} begins comments too; pass comment= with other characters")
        _check_columns(self.columns, self.weights)
        _check_vertices(self.n_vertices, self.vertices, self.ids)
        if self.header is False and self.columns and isinstance(self.columns[0], str):
            raise OptionError(
                f"header=False contradicts the names in columns={tuple(self.columns)!r}; pass numbers, counted from 1"
            )

    @property
    def comments(self) -> bytes:
        """Characters that begin a comment."""
        return b"" if self.comment == "none" else (self.comment or COMMENTS).encode()


def _check_columns(columns: Sequence[str | int] | None, weights: Weights) -> None:
    """Raise OptionError for columns that are not two or three names or numbers, or lack the requested weights."""
    if columns is None:
        return
    if isinstance(columns, str) or len(columns) not in (2, 3) or len({type(each) for each in columns}) != 1:
        raise OptionError(
            "columns must be two or three names, or numbers from 1, of sources, targets and optionally weights, not "
            f"{len(columns)}: {columns if isinstance(columns, str) else list(columns)}"
        )
    if not isinstance(columns[0], str | int) or isinstance(columns[0], bool):
        raise OptionError(f"columns must be names or numbers from 1, not {columns!r}")
    if isinstance(weights, str) and weights != "auto":
        raise OptionError(
            f"weights={weights!r} names a column besides columns={tuple(columns)!r}; name it as the third of columns="
        )
    if len(columns) != 3 and weights is True:
        raise OptionError(
            f"weights=True requires a third column in columns={tuple(columns)!r}; add it, or leave weights=True out"
        )


def _check_vertices(n_vertices: Any, vertices: Any, ids: str) -> None:
    """Raise OptionError for options that contradict each other."""
    if n_vertices is None:
        return
    if isinstance(n_vertices, bool) or not isinstance(n_vertices, Integral) or n_vertices < 0:
        raise OptionError(f"n_vertices must be an integer of at least 0, not {n_vertices!r}")
    if vertices is not None:
        raise OptionError("n_vertices= and vertices= both define the vertices; pass only one of them")
    if ids == "string":
        raise OptionError("n_vertices= requires integer ids; for names, pass a list of vertices with vertices=")


DEFAULT_READING = StatedForm()


def choose_read_columns(names: list[str] | None, n_columns: int, reading: StatedForm) -> ColumnChoice:
    """Choose columns by the options or by their names; raise Undecided if these do not suffice."""
    if reading.columns is not None:
        if names is None and isinstance(reading.columns[0], str):
            raise Undecided(
                f"columns={tuple(reading.columns)!r} are names, but there is no header; pass numbers, counted from 1"
            )
        return resolve_columns(reading.columns, names, n_columns, reading.weights)
    return choose_columns(names, n_columns, reading.weights)


def check_edge_comment(line: TextLine, form: TableFormat) -> None:
    """Raise SourceError for a comment that has the form of an edge."""
    if looks_like_edge(line.text, form.delimiter, len(form.columns)):
        raise line.make_error(
            'this line begins like a comment but has the columns of an edge; pass comment="none" if it is an edge, or '
            f"comment={line.text[:1]!r} if such lines are comments"
        )
