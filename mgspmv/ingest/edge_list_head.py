"""Beginning of a file of edges: comments, header, delimiter and columns, detected by the rules of `headers`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mgspmv.errors import OptionError, SourceError
from mgspmv.ingest.column_names import ColumnChoice, Weights, choose_columns, resolve_columns
from mgspmv.ingest.columns import (
    TableFormat,
    TextColumn,
    split_line,
)
from mgspmv.ingest.headers import (
    COMMENTS,
    Preamble,
    check_lines,
    check_missing,
    check_separators,
    check_sizes,
    has_header,
    looks_like_edge,
)
from mgspmv.ingest.matrix_market import is_banner
from mgspmv.ingest.streams import TextLine, TextStream
from mgspmv.ingest.tokens import (
    SAMPLE_BYTES,
    SAMPLE_LINES,
    Undecided,
    choose_delimiter,
)
from mgspmv.model import check_choice


@dataclass(frozen=True)
class StatedForm:
    """Options that state how lines are read.

    Parameters
    ----------
    delimiter : character between columns; a space stands for any run of blanks; None to detect it
    header : whether the first line names the columns; None to detect it
    skip_rows : lines to skip at the beginning of each file
    comment : characters that begin comments, or "none"; None for `#` and `%`. If given, the text of comments is ignored
    columns : names of sources, targets and optionally weights, or numbers from 1; None to choose by name or place
    weights : whether weights are read (float64); "auto" if there is such a column; or the name of the column
    ids : "int", "string", or "auto" to detect it from the first edge
    """

    delimiter: str | None = None
    header: bool | None = None
    skip_rows: int = 0
    comment: str | None = None
    columns: Sequence[str | int] | None = None
    weights: Weights = "auto"
    ids: Literal["auto", "int", "string"] = "auto"

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
        check_columns(self.columns, self.weights)
        if self.header is False and self.columns and isinstance(self.columns[0], str):
            raise OptionError(
                f"header=False contradicts the names in columns={tuple(self.columns)!r}; pass numbers, counted from 1"
            )

    @property
    def comments(self) -> bytes:
        """Characters that begin a comment."""
        return b"" if self.comment == "none" else (self.comment or COMMENTS).encode()


def check_columns(columns: Sequence[str | int] | None, weights: Weights) -> None:
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


DEFAULT_READING = StatedForm()


@dataclass(frozen=True)
class Head:
    """Lines up to the first edge of a file, and the format of its edges."""

    preamble: Preamble
    n_header: int = 0
    """Number of lines that name the columns."""
    first: TextLine | None = None
    """First edge; None if there is none."""
    names: list[str] | None = None
    """Names of the columns; None without a header."""
    header_by: str | None = None
    """Reason for taking `names` as names: `a comment`, `as given` or `by its names`; None without a header."""
    delimiter: str = " "
    columns: ColumnChoice = field(default=ColumnChoice(0, 1))
    n_columns: int = 2
    table: TableFormat = field(default=TableFormat((), " ", b""))
    """Format of the lines of all files, in the first file that has an edge."""

    @property
    def id_column(self) -> TextColumn:
        return self.table.columns[self.columns.source]

    @property
    def form(self) -> tuple[Any, ...]:
        """Facts in which all files agree."""
        return self.delimiter, self.n_columns, self.columns, self.preamble.is_undirected

    def describe(self) -> str:
        """Describe the form of the file, for messages."""
        header = "no header" if self.names is None else f"a header, {', '.join(self.names)}"
        edges = "undirected" if self.preamble.is_undirected else "directed"
        return f"{header}, {self.n_columns} columns, the delimiter {self.delimiter!r} and {edges} edges"


def read_head(
    text: TextStream,
    reading: StatedForm,
    is_vertex: Callable[[str], bool] | None = None,
) -> Head:
    """Read the comments and the header of a file, up to the first edge, and choose delimiter and columns.

    Parameters
    ----------
    is_vertex : as in `EdgeListSource`

    Raises
    ------
    SourceError : the lines may be read in several ways, or a comment may be an edge; names the argument that decides
    """
    for _ in range(reading.skip_rows):
        text.read_line()
    preamble = _read_preamble(text, reading)
    seen = list(text.peek_lines(SAMPLE_BYTES, SAMPLE_LINES))
    is_whole = len(seen) < SAMPLE_LINES and sum(len(line.data) + 1 for line in seen) < SAMPLE_BYTES
    sample = [line for line in seen if not line.is_blank_or_comment(reading.comments)]
    if not sample:
        return Head(preamble)
    delimiter = reading.delimiter or choose_delimiter([line.text for line in sample])
    first, *below = [split_line(line, delimiter) for line in sample]
    _check_preamble(preamble, delimiter, len(below[0] if below else first), reading)
    try:
        if max(map(len, (first, *below[:1]))) < 2:
            choose_columns(None, 1)
        is_header = _is_header(first, below, reading, preamble, is_vertex)
        if is_header:
            text.read_line()
            preamble = _read_preamble(text, reading, preamble)
            if reading.columns is not None:
                resolve_columns(reading.columns, first, len(first), reading.weights)
            if not below:
                return Head(preamble, 1, None, first)
        names, n_columns = first if is_header else preamble.names, len(below[0] if is_header else first)
        if is_header and len(first) != n_columns:
            raise Undecided(
                f"the header has {len(first)} columns, {', '.join(first)}, but the line below it has {n_columns}; "
                "write a header with a name for each column, or pass skip_rows= and columns= with numbers"
            )
        if names is not None and len(names) != n_columns:
            names = None
        columns = _choose_columns(names, n_columns, reading)
        rows = below if is_header else [first, *below]
        if reading.columns is None:
            check_separators(rows, columns)
        if reading.ids == "auto":
            check_missing(rows, columns)
            check_lines(rows, columns, is_below_header=is_header)
        if reading.header is None and not is_header:
            check_sizes(rows, is_whole=is_whole)
    except Undecided as error:
        raise sample[0].make_error(str(error)) from error
    _check_preamble(preamble, delimiter, n_columns, reading)
    by = "a comment" if not is_header else "as given" if reading.header else "by its names"
    header_by = None if names is None else by
    return Head(preamble, int(is_header), text.peek_line(), names, header_by, delimiter, columns, n_columns)


def check_alike(name: str, head: Head, first: Head) -> None:
    """Raise SourceError if a file has another form than the first file that has edges or names of columns.

    Parameters
    ----------
    name : path or URL of the file
    """
    if any(each.first is None and each.names is None for each in (head, first)):
        return
    are_edges = head.first is not None and first.first is not None
    if head.names != first.names or (are_edges and head.form != first.form):
        raise SourceError(
            f"it has {head.describe()}, but files before it have {first.describe()}; files that are ingested together "
            "must have one form: pass delimiter=, header=, columns= or comment= for all, or ingest them separately",
            source=name,
        )


def _read_preamble(text: TextStream, reading: StatedForm, preamble: Preamble | None = None) -> Preamble:
    """Read comments and, unless the user passed `comment`, the facts that they state."""
    preamble = preamble or Preamble()
    for line in text.read_comments(reading.comments):
        if is_banner(line):
            raise line.make_error(
                'this is a Matrix Market file, not an edge list; ingest it alone, with format="matrix-market"'
            )
        if reading.comment is None:
            preamble.take(line)
        else:
            preamble.n_lines += 1
    if preamble.is_bipartite:
        raise SourceError(
            "the file is bipartite (% bip): sources and targets are numbered separately, so equal ids would be merged; "
            "make the ids distinct, for example with a letter before each, or pass "
            'comment="%" if both have one numbering',
            source=text.name,
        )
    return preamble


def _check_preamble(preamble: Preamble, delimiter: str, n_columns: int, reading: StatedForm) -> None:
    """Raise SourceError if a comment before the edges has the form of an edge."""
    if reading.comment is None:
        for comment in preamble.others:
            _check_comment(comment, delimiter, n_columns)


def check_edge_comment(line: TextLine, form: TableFormat) -> None:
    """Raise SourceError for a comment that has the form of an edge."""
    _check_comment(line, form.delimiter, len(form.columns))


def _check_comment(line: TextLine, delimiter: str, n_columns: int) -> None:
    if looks_like_edge(line.text, delimiter, n_columns):
        raise line.make_error(
            'this line begins like a comment but has the columns of an edge; pass comment="none" if it is an edge, or '
            f"comment={line.text[:1]!r} if such lines are comments"
        )


def _is_header(
    first: list[str],
    below: list[list[str]],
    reading: StatedForm,
    preamble: Preamble,
    is_vertex: Callable[[str], bool] | None,
) -> bool:
    if reading.header is not None:
        return reading.header
    if preamble.names is not None and len(preamble.names) == len(first):
        return first == preamble.names
    return has_header(first, below, reading.columns, is_vertex)


def _choose_columns(names: list[str] | None, n_columns: int, reading: StatedForm) -> ColumnChoice:
    if reading.columns is not None:
        if names is None and isinstance(reading.columns[0], str):
            raise Undecided(
                f"columns={tuple(reading.columns)!r} are names, but there is no header; pass numbers, counted from 1"
            )
        return resolve_columns(reading.columns, names, n_columns, reading.weights)
    return choose_columns(names, n_columns, reading.weights)
