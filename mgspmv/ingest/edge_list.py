"""Edge lists: one arc per line, as SNAP, LDBC, KONECT, cuGraph and many others publish graphs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from mgspmv.errors import OptionError, SourceError
from mgspmv.ingest.column_names import ColumnChoice, choose_columns, resolve_columns
from mgspmv.ingest.columns import TableFormat, TextColumn, nth_line, read_chunks, split_line
from mgspmv.ingest.files import (
    Path,
    Pipe,
    cut_evenly,
    describe_files,
    list_paths,
    make_absolute,
    measure_file,
    name_files,
)
from mgspmv.ingest.headers import (
    Preamble,
    StatedForm,
    are_names,
    check_edge_comment,
    check_lines,
    check_missing,
    check_separators,
    check_sizes,
    choose_read_columns,
    has_header,
)
from mgspmv.ingest.matrix_market import is_banner
from mgspmv.ingest.source import EdgeFacts, EdgeSource, Layout
from mgspmv.ingest.streams import Chunk, TextLine, TextStream
from mgspmv.ingest.tokens import SAMPLE_BYTES, SAMPLE_LINES, Undecided, choose_delimiter
from mgspmv.ingest.vertices import choose_vertices, find_unknown, lists_names
from mgspmv.model import CooBatch, default_threads, index_dtype

SEARCHED_BYTES = 1 << 24
"""Bytes at the beginning of a file in which the names of a first line that may be a header are sought again."""
_NAMES_HINT = 'pass ids="string" if ids are names'
_ZEROS_HINT = 'pass ids="string" to keep them apart, or ids="int" if they are the same'
_WEIGHTS_HINT = "pass weights=False to leave that column out"


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


class EdgeListSource(EdgeSource):
    """Edge lists as a `Source`: an arc per line, from a column of sources to one of targets, optionally with a weight.

    Delimiter, header, columns, comments and ids are detected by rules (`mgspmv.ingest.headers`), or stated by options
    where lines are ambiguous. Blank lines are skipped. Every line must have as many columns as the first. Ids are
    integers if those of the first edge are. Several files are read as if they were one; each has its own comments and
    header, and all must agree in delimiter, header and columns.

    The vertices are
    - 0..n_vertices-1 if `n_vertices` is given;
    - those of the list `vertices` if it is given;
    - 0..N-1 if a comment states N (`# Nodes: N`, as SNAP writes), of several files one in each, and all ids are
      integers in that range;
    - otherwise those that occur in an edge, in ascending order of their ids.

    Parameters
    ----------
    path : local path or URL, or several; may be compressed with gzip, bzip2, xz or zstd; `-` is standard input
    is_vertex : returns whether a name is a known id, so that a first line with it is not a header
    options : of `EdgeSource`

    Raises
    ------
    OptionError : options that contradict each other
    SourceError : by `batches`, for lines that do not fit, or are ambiguous; names the option that decides
    SourceNotFoundError : by `batches`, if there is no file
    """

    def __init__(
        self, path: Path | Sequence[Path], *, is_vertex: Callable[[str], bool] | None = None, **options: Any
    ) -> None:
        self._files = list_paths(path)
        self._form: Head | None = None
        """Form of all lines, for a part; None for a whole source."""
        super().__init__(name_files(self._files), **options)
        self._is_vertex = is_vertex

    def batches(self) -> Iterator[CooBatch]:
        """Yield all arcs, in at least one batch; rows and columns hold codes that `layout` numbers."""
        self._facts = facts = EdgeFacts(self._form)
        with closing(self._read()) as chunks:
            first = next(chunks)
            facts.form = form = self._form or self._find_form(facts.form)
            self.is_undirected = form.preamble.is_undirected
            self._made, facts.listed = choose_vertices(form.id_column, self._reading, self._id_room, self.name)
            names, threads = [column.name for column in form.table.read], self._threads or default_threads()
            for chunk, columns, n_comments in read_chunks(chain([first], chunks), form.table, threads):
                found = dict(zip(names, columns, strict=True))
                if form.names is not None and form.id_column.dtype == "string":
                    _check_repeated(chunk, form, form.names, found["source"], found["target"])
                rows, cols = self._made.encode(found["source"], found["target"])
                for place, codes in zip(form.columns.ids, (rows, cols), strict=True):
                    if (k := find_unknown(self._made, codes)) is not None:
                        line = nth_line(chunk, form.table, k)
                        unknown = split_line(line, form.table.delimiter)[place]
                        raise line.make_error(
                            f"{unknown!r} is not in the list of vertices; add it there or remove the edge"
                        )
                facts.counts.update(n_comments=n_comments, n_rows=len(rows))
                yield CooBatch(rows, cols, found.get("weight"))
        facts.unused_first = getattr(self._made, "unused_first", None)
        self._layout = self._made.finish()
        if self._form is None:
            joined = self.join([facts])
            self._layout = replace(self._layout, provenance=joined.provenance, stated=joined.stated, claim=joined.claim)

    def split(self, n_parts: int) -> list[EdgeListSource]:
        """Return parts of whole files for other processes, see `FileSource`; the first edge determines how all lines
        are read.
        """
        for name in (*self._files, self._reading.vertices):
            if isinstance(name, Pipe):
                raise OptionError(f"{name} is a pipe, read by one process; save it as a file, or leave client= out")
        whole = self._take_part()
        whole._files = tuple(make_absolute(name) for name in self._files)
        head = copy(whole)
        head.hashes_files = False
        with closing(head._read()) as chunks:
            next(chunks)
        whole._form = whole._find_form(whole._facts.form)
        whole.is_undirected = whole._form.preamble.is_undirected
        parts = []
        for files in cut_evenly(whole._files, list(map(measure_file, whole._files)), n_parts):
            parts.append(copy(whole))
            parts[-1]._files = tuple(files)
        return parts

    def join(self, parts: Sequence[EdgeFacts]) -> Layout:
        """Combine the facts of all parts; see `FileSource`."""
        form: Head = parts[0].form
        first, *others = [claims for part in parts for claims in part.claims] or [{}]
        claims = {what: n for what, n in first.items() if all(found.get(what) == n for found in others)}
        stated = next((part.stated for part in parts if part.stated is not None), None)
        nodes, names = claims.get("nodes"), form.names
        provenance = {
            "format": "edge-list",
            **describe_files(self.name, [file for part in parts for file in part.files]),
            "header": {**claims, **({"columns": names} if names else {})},
            "taken": {
                **form.columns.describe(names or [None] * len(form.table.columns)),
                "header": names is not None,
                "header_by": form.header_by,
                **{name: sum(part.counts[name] for part in parts) for name in ("n_header", "n_comments", "n_rows")},
                "delimiter": form.table.delimiter,
                "notes": _list_notes(form, parts),
            },
            **parts[0].listed,
        }
        stated = None if nodes is None else stated
        return Layout((0, 0), are_ids=True, provenance=provenance, stated=stated, claim=nodes)

    def _read(self) -> Generator[Chunk, None, None]:
        """Yield the lines below the headers of all files, in at least one chunk, once the form is known."""
        facts = self._facts
        for k, name in enumerate(self._files):
            with TextStream(name, hashes=self.hashes_files) as text:
                self._begin(text.name, read_head(text, self._reading, self._is_vertex))
                if facts.form is not None and facts.form.first is not None:
                    for chunk in text.chunks():
                        self.fraction = None if text.fraction is None else (k + text.fraction) / len(self._files)
                        yield chunk
                facts.files.append(text.provenance())
        if facts.form is not None and facts.form.first is None:
            yield Chunk(self.name, 1, b"")

    def _begin(self, name: str, head: Head) -> None:
        """Record the beginning of a file.

        Raises
        ------
        SourceError : it has another form than files before it
        """
        facts, first = self._facts, self._facts.form or head
        are_told = all(each.first is not None or each.names is not None for each in (head, first))
        are_edges = head.first is not None and first.first is not None
        if are_told and (head.names != first.names or (are_edges and head.form != first.form)):
            raise SourceError(
                f"it has {head.describe()}, but files before it have {first.describe()}; files that are ingested "
                "together must have one form: pass delimiter=, header=, columns= or comment= for all, or ingest them "
                "separately",
                source=name,
            )
        if facts.form is None or (facts.form.first is None and (head.first is not None or facts.form.names is None)):
            facts.form = head
        facts.claims.append(head.preamble.claims)
        if facts.stated is None and head.preamble.nodes_line is not None:
            facts.stated = head.preamble.nodes_line.make_error
        facts.counts.update(n_header=head.n_header, n_comments=head.preamble.n_lines)

    def _find_form(self, head: Head) -> Head:
        """Add the format of all lines to the beginning of the first file."""
        reading, chosen, n_columns = self._reading, head.columns, head.n_columns
        if head.first is None and reading.weights is True:
            chosen, n_columns = ColumnChoice(0, 1, 2), 3
        columns, n, are_names = [TextColumn("more", None)] * n_columns, reading.n_vertices, self._has_names(head)
        for place, name in zip(chosen.ids, ("source", "target"), strict=True):
            if are_names:
                columns[place] = TextColumn(name, "string")
            elif n is None:
                plain = _ZEROS_HINT if reading.ids == "auto" else ""
                columns[place] = TextColumn(name, "int64", hint=_NAMES_HINT, plain=plain)
            else:
                hint = f"n_vertices={n} sets this range; correct it, or remove the edge"
                dtype: Any = index_dtype(n).name
                columns[place] = TextColumn(name, dtype, 0, n - 1, hint=hint)
        if chosen.weight is not None:
            columns[chosen.weight] = TextColumn("weight", "float64", finite=True, hint=_WEIGHTS_HINT)
        check = check_edge_comment if reading.comment is None else None
        table = TableFormat(tuple(columns), head.delimiter, reading.comments, check)
        return replace(head, columns=chosen, table=table)

    def _has_names(self, head: Head) -> bool:
        """Return whether ids are names, by the first edge or, without edges, by the list of vertices."""
        ids, vertices = self._reading.ids, self._reading.vertices
        if head.first is None:
            if not self.has_known_vertices and not self.may_be_empty:
                where = "this file has" if len(self._files) == 1 else "these files have"
                raise SourceError(
                    f"{where} no edges; pass n_vertices= or vertices= for a graph without edges", source=self.name
                )
            if ids == "auto" and vertices is not None:
                return lists_names(vertices, self._reading)
            return ids == "string"
        tokens = split_line(head.first, head.delimiter)
        try:
            may_be_names = ids == "auto" and self._reading.n_vertices is None
            return ids == "string" or (may_be_names and are_names([tokens[place] for place in head.columns.ids]))
        except Undecided as error:
            raise head.first.make_error(str(error)) from error


def _list_notes(head: Head, parts: Sequence[EdgeFacts]) -> list[str]:
    """List the assumptions about edges of which users should know."""
    notes = []
    if head.preamble.is_undirected:
        notes.append("each edge is read in both directions, as the file says that it is undirected")
    elif head.preamble.mentions_undirected:
        notes.append(
            "a comment says `undirected`, but each line is read as one arc; pass symmetrize=True if all edges are "
            "undirected"
        )
    unused = {part.unused_first for part in parts}
    if None not in unused and any(part.counts["n_rows"] for part in parts):
        notes.append(
            f"{unused.pop()!r}, the first id of the list of vertices, occurs in no edge; replace it by `id` if it is a "
            "header"
        )
    return notes


def _check_repeated(chunk: Chunk, form: Head, names: list[str], sources: Any, targets: Any) -> None:
    """Raise SourceError if a line repeats the header."""
    import pyarrow.compute as pc

    first, second = (pc.equal(own, names[k]) for own, k in zip((sources, targets), form.columns.ids, strict=True))
    if (k := pc.index(pc.and_(first, second), True).as_py()) >= 0:
        raise nth_line(chunk, form.table, k).make_error(
            "this line repeats the header; remove it, or pass skip_rows=1 and header=False if it is an edge"
        )


# --- beginning of a file ---------------------------------------------------------------------------------------------


def read_head(text: TextStream, reading: StatedForm, is_vertex: Callable[[str], bool] | None = None) -> Head:
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
        if reading.header is not None:
            is_header = reading.header
        elif preamble.names is not None and len(preamble.names) == len(first):
            is_header = first == preamble.names
        else:
            try:
                is_header = has_header(first, below, reading.columns, is_vertex)
            except Undecided:  # a name of an edge may occur again further down
                further = _find_names(text, first, delimiter, reading)
                is_header = has_header(first, [*below, *further], reading.columns, is_vertex)
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
        columns = choose_read_columns(names, n_columns, reading)
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
        form = TableFormat((TextColumn("more", None),) * n_columns, delimiter, b"")
        for comment in preamble.others:
            check_edge_comment(comment, form)


def _find_names(text: TextStream, names: list[str], delimiter: str, reading: StatedForm) -> list[list[str]]:
    """Return the fields of lines that may have one of these names, among the first `SEARCHED_BYTES`."""
    marks = [b'"', *(name.encode() for name in names if name)]
    lines = [line for line in text.peek_lines(SEARCHED_BYTES, SEARCHED_BYTES) if any(m in line.data for m in marks)]
    return [split_line(line, delimiter) for line in lines if not line.is_blank_or_comment(reading.comments)]
