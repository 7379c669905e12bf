"""Edge lists: one arc a line, as SNAP, LDBC, KONECT, cuGraph and many others publish graphs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Literal

from mgspmv.errors import OptionError, SourceError
from mgspmv.ingest.columns import (
    INT64_MAX,
    INT64_MIN,
    Column,
    TableFormat,
    find_delimiter,
    is_integer,
    is_number,
    nth_line,
    read_chunks,
    split_line,
)
from mgspmv.ingest.files import Path, describe_files, list_paths, name_files
from mgspmv.ingest.matrix_market import is_banner
from mgspmv.ingest.parts import cut_texts, make_absolute, place_error
from mgspmv.ingest.source import FileSource, Joined, Layout, Place
from mgspmv.ingest.streams import (
    BATCH_BYTES,
    Chunk,
    Line,
    Segment,
    TextStream,
    describe_cut,
    open_texts,
    skip_text,
)
from mgspmv.ingest.vertices import (
    ANY_ROOM,
    IdRoom,
    NumberedVertices,
    Numbering,
    OccurringIntegers,
    OccurringNames,
    Vertices,
    find_unknown,
    make_layout,
    read_vertices,
)
from mgspmv.model import CooBatch, check_choice, default_threads, index_dtype

_COMMENTS = b"#%"
_CLAIM = re.compile(r"\b(nodes|vertices|edges|arcs)\s*[:=]\s*([0-9]{1,18})(?![0-9,.]*[0-9])", re.IGNORECASE)
_NAMES_HINT = 'pass ids="string" if ids are names'


@dataclass(frozen=True)
class _Head:
    """What the lines up to the first edge tell."""

    claims: dict[str, int]
    """Numbers of `nodes` and `edges` that comments state."""
    names: list[str] | None
    """Columns' names, from a line of them."""
    first: Line | None
    """The first edge; None if there is none."""
    used: Chunk | None
    """The first edge if it was read already, so it will not come again."""


class _Notes:
    """What the files have beside edges."""

    def __init__(self) -> None:
        self._files: list[dict[str, Any]] = []
        self._claims: list[dict[str, int]] = []
        self.names: list[str] | None = None
        """Of the columns."""
        self._named = ""
        """The file that names them."""

    @property
    def claims(self) -> dict[str, int]:
        """What the comments of all files state alike."""
        first, *others = self._claims
        return {what: n for what, n in first.items() if all(found.get(what) == n for found in others)}

    def begin(self, text: TextStream, head: _Head) -> None:
        """Take what the begin of a file tells.

        Raises
        ------
        SourceError : the columns have other names than in a file before it
        """
        self._claims.append(head.claims)
        if head.names is not None:
            self._name_columns(text.name, head.names)

    def end(self, provenance: dict[str, Any]) -> None:
        """Take where a file came from."""
        self._files.append(provenance)

    def join(self, later: _Notes) -> None:
        """Take over those of files, or parts of them, that follow.

        Raises
        ------
        SourceError : as of `begin`
        """
        self._claims += later._claims
        self._files += later._files
        if later.names is not None:
            self._name_columns(later._named, later.names)

    def _name_columns(self, file: str, names: list[str]) -> None:
        if self.names is None:
            self.names, self._named = names, file
        if names != self.names:
            raise SourceError(
                f"the columns are {', '.join(names)}, and those of {self._named} are {', '.join(self.names)}; "
                "files that are ingested together have the same columns",
                source=file,
            )

    def describe(self, name: str) -> dict[str, Any]:
        """Where all edges came from."""
        header = {**self.claims, **({"columns": self.names} if self.names else {})}
        return {"format": "edge-list", **describe_files(name, self._files), "header": header}


@dataclass(frozen=True)
class _Told:
    """What a part of edge lists tells."""

    notes: _Notes
    """Of the files that begin in it."""
    ids: tuple[int, int] | None
    """The least and the greatest, where they are integers that occur; None where there is none."""
    listed: dict[str, Any]
    """The provenance of the list of vertices."""


class EdgeListSource(FileSource):
    """Edge lists as a `Source`: `source target` or `source target weight` a line, each an arc source -> target.

    Lines that start with `#` or `%` are comments, blank lines are skipped. Columns are separated by commas, tabs or
    blanks, as the first edge's are; every line must have as many as the first. A first line of words above integer
    ids is taken for the columns' names. Ids are integers if the first edge's both are. Several files follow each other
    as if they were one, but that each may have comments and a line of the columns' names, the same in all.

    The vertices are
    - 0..n_vertices-1 if `n_vertices` is given;
    - those of the list `vertices` if it is given;
    - 0..N-1 if a comment states N (`# Nodes: N`, as SNAP writes), of several files one in each, and all ids are
      integers in that range;
    - otherwise those that occur in an edge, in ascending order of their ids.

    Parameters
    ----------
    path : local path or URL, or several; may be compressed with gzip, bzip2, xz or zstd
    n_vertices : number of vertices, isolated ones included
    vertices : path of a list of vertices (LDBC's `.v`): one a line, its id in the first column
    delimiter : character between columns; a space stands for any run of blanks; None to go by the first edge
    weights : whether the third column holds weights (float64); "auto" if there is one. With False it is not looked at
    ids : "int", "string", or "auto" to go by the first edge
    extra_columns : "ignore" columns beyond the third, or take them for an "error"
    batch_bytes : bytes of text a batch is made from
    threads : that decompress and parse
    id_room : what the vertices' ids may take

    Raises
    ------
    OptionError : options that contradict each other
    SourceError : by `batches`, for a line that does not fit; names it
    SourceNotFoundError : by `batches`, if there is no file
    """

    default_kind: Literal["graph", "matrix"] = "graph"

    def __init__(
        self,
        path: Path | Sequence[Path],
        *,
        n_vertices: int | None = None,
        vertices: str | os.PathLike[str] | None = None,
        delimiter: str | None = None,
        weights: Literal["auto"] | bool = "auto",
        ids: Literal["auto", "int", "string"] = "auto",
        extra_columns: Literal["error", "ignore"] = "error",
        batch_bytes: int = BATCH_BYTES,
        threads: int | None = None,
        id_room: IdRoom = ANY_ROOM,
    ) -> None:
        check_choice("weights", weights, ("auto", True, False))
        check_choice("ids", ids, ("auto", "int", "string"))
        check_choice("extra_columns", extra_columns, ("error", "ignore"))
        check_vertex_options(n_vertices, vertices, ids)
        if delimiter is not None and (len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n#%'):
            raise OptionError(f"delimiter must be one character such as ',' or ';', not {delimiter!r}")
        self._files = list_paths(path)
        super().__init__(name_files(self._files))
        self.files = self._files + (() if vertices is None else (os.fspath(vertices),))
        self._n_vertices, self._vertices = n_vertices, vertices
        self._delimiter, self._weights, self._ids = delimiter, weights, ids
        self._extra_columns, self._batch_bytes = extra_columns, batch_bytes
        self._threads, self._id_room = threads or default_threads(), id_room

    def batches(self) -> Iterator[CooBatch]:
        """Give all arcs, in at least one batch; rows and columns hold codes that `layout` numbers."""
        notes = _Notes()
        with closing(open_texts(self._files, self._batch_bytes, self._threads)) as texts:
            begun = self._find_first(texts, notes)
            form = self._find_format(begun[1].first if begun else None)
            vertices, listed = self._find_vertices(form.columns[0])
            self.on_begin(vertices)
            chunks = self._read(*begun, texts, form, notes) if begun else [Chunk(self.name, 1, b"")]
            n_given = self.start.n_given
            encode = partial(_encode_chunk, form=form, vertices=vertices)
            ahead = () if self.is_kept else (encode, vertices)
            parsed = read_chunks(skip_text(chunks, n_given), form, self._threads, *ahead)
            for chunk, batch in _encode_all(parsed, encode, vertices) if self.is_kept else parsed:
                n_given += len(chunk.data)
                self.place = Place(n_given)
                yield batch
        provenance = {**notes.describe(self.name), **listed}
        self._layout = make_layout(vertices.finish(notes.claims.get("nodes")), provenance)

    @property
    def has_known_vertices(self) -> bool:  # type: ignore[override]
        """As of `FileSource`."""
        return self._n_vertices is not None or self._vertices is not None

    def split(self, n_parts: int) -> list[EdgeListPart]:
        """As of `FileSource`; the first edge says how all lines are to be read."""
        files, notes = [make_absolute(name) for name in self._files], _Notes()
        with closing(open_texts(files, self._batch_bytes, 1)) as texts:
            begun = self._find_first(texts, notes)
            form = self._find_format(begun[1].first if begun else None)
        vertices = None if self._vertices is None else make_absolute(os.fspath(self._vertices))
        known = (form, notes.names, self._n_vertices, vertices, self._delimiter)
        return [EdgeListPart(self.name, segments, *known) for segments in cut_texts(files, n_parts)]

    def join(self, told: Sequence[_Told]) -> Joined:
        """As of `FileSource`."""
        notes = _Notes()
        for part in told:
            notes.join(part.notes)
        claim, ids = notes.claims.get("nodes"), [part.ids for part in told if part.ids is not None]
        is_fit = claim is not None and ids and all(low >= 0 and high < claim for low, high in ids)
        return Joined(claim if is_fit else None, {**notes.describe(self.name), **told[0].listed})

    def _find_first(self, texts: Iterator[TextStream], notes: _Notes) -> tuple[TextStream, _Head] | None:
        """The first of the files that has an edge, and its begin."""
        for text in texts:
            head = _read_head(text, self._delimiter, self._ids)
            if head.first and head.used and len(self._files) > 1 and text.peek_line() is None:
                head = self._judge_only_line(head, head.first)
            notes.begin(text, head)
            if head.first is not None:
                return text, head
            notes.end(text.provenance())
        return None

    def _judge_only_line(self, head: _Head, line: Line) -> _Head:
        """See to a line of words without an edge below it: one of names itself, or a part without edges."""
        if self._ids == "auto":
            raise line.refuse(
                'the only line of this file may be an edge of names, or name the columns; pass ids="string" for an '
                'edge, else ids="int"'
            )
        names = split_line(line, self._delimiter or find_delimiter(line))
        return _Head(head.claims, names, None, None) if len(names) > 1 else head

    def _read(
        self, text: TextStream, head: _Head, others: Iterator[TextStream], form: TableFormat, notes: _Notes
    ) -> Iterator[Chunk]:
        """The edges of a file whose begin was read, and of all after it."""
        yield from self._read_edges(text, head, 0)
        notes.end(text.provenance())
        ids = "string" if form.columns[0].dtype == "string" else "int"
        for k, other in enumerate(others, 1):
            head = _read_head(other, form.delimiter, ids, notes.names)
            notes.begin(other, head)
            yield from self._read_edges(other, head, k)
            notes.end(other.provenance())

    def _read_edges(self, text: TextStream, head: _Head, n_before: int) -> Iterator[Chunk]:
        """The edges of a file after so many others."""
        for chunk in chain([head.used] if head.used else [], text.chunks()):
            self.fraction = None if text.fraction is None else (n_before + text.fraction) / len(self._files)
            yield chunk

    def _find_format(self, first: Line | None) -> TableFormat:
        if first is None:
            return self._find_empty_format()
        delimiter = self._delimiter or find_delimiter(first)
        tokens = split_line(first, delimiter)
        has_weights = self._has_weights(first, len(tokens))
        are_names = self._ids == "string" or (self._ids == "auto" and self._are_names(first, tokens))
        third = [Column("weight", "float64" if has_weights else None, finite=True)]
        others = (third + [Column("more", None)] * len(tokens))[: len(tokens) - 2]
        return TableFormat((*self._id_columns(are_names), *others), delimiter, _COMMENTS)

    def _find_empty_format(self) -> TableFormat:
        """A list without edges: only the vertices have ids, if any."""
        if self._n_vertices is None and self._vertices is None and not self.may_be_empty:
            where = "this file" if len(self._files) == 1 else "these files"
            raise SourceError(
                f"there is no edge in {where}; pass n_vertices= or vertices= for a graph without edges",
                source=self.name,
            )
        are_names = self._ids == "string" or (
            self._ids == "auto" and self._vertices is not None and self._lists_names()
        )
        weights = (Column("weight", "float64", finite=True),) if self._weights is True else ()
        return TableFormat((*self._id_columns(are_names), *weights), self._delimiter or " ", _COMMENTS)

    def _lists_names(self) -> bool:
        assert self._vertices is not None
        with TextStream(self._vertices) as text:
            text.skip_comments(_COMMENTS)
            first = text.peek_line()
            return first is not None and not is_integer(split_line(first, self._delimiter or find_delimiter(first))[0])

    def _has_weights(self, line: Line, n_columns: int) -> bool:
        if n_columns < 2:
            raise line.refuse("expected 'source target' or 'source target weight', found one column; pass delimiter=")
        if n_columns > 3 and self._extra_columns == "error":
            raise line.refuse(
                f"expected 'source target' or 'source target weight', found {n_columns} columns; "
                'pass extra_columns="ignore" to read the first three, with weights=False the first two'
            )
        if n_columns == 2 and self._weights is True:
            raise line.refuse("expected 'source target weight', found 2 columns; pass weights=False")
        return n_columns > 2 and self._weights is not False

    def _are_names(self, line: Line, tokens: list[str]) -> bool:
        if self._n_vertices is not None or all(map(is_integer, tokens[:2])):
            return False
        if any("." in token and is_number(token) for token in tokens[:2]):
            raise line.refuse(f"ids are integers or names, and these are other numbers; {_NAMES_HINT}")
        return True

    def _id_columns(self, are_names: bool) -> tuple[Column, Column]:
        if are_names:
            return Column("source", "string"), Column("target", "string")
        if self._n_vertices is None:
            low, high, dtype, hint = INT64_MIN, INT64_MAX, "int64", _NAMES_HINT
        else:
            low, high, dtype = 0, self._n_vertices - 1, index_dtype(self._n_vertices).name
            hint = f"n_vertices={self._n_vertices} says so"
        source, target = (Column(name, dtype, low, high, hint=hint) for name in ("source", "target"))  # type: ignore[arg-type]  # int32 or int64
        return source, target

    def _find_vertices(self, id_column: Column) -> tuple[Vertices, dict[str, Any]]:
        return _find_vertices(id_column, self._n_vertices, self._vertices, self._delimiter, self._id_room)


class EdgeListPart(FileSource):
    """Some of the lines of edge lists, see `EdgeListSource.split`.

    Parameters
    ----------
    segments : whole lines of files, and what is before the edges where a file begins
    form : of all lines
    names : of the columns in the first file that names them; None where that is none so far
    n_vertices, vertices, delimiter : as of `EdgeListSource`
    """

    default_kind: Literal["graph", "matrix"] = "graph"

    def __init__(
        self,
        name: str,
        segments: Sequence[Segment],
        form: TableFormat,
        names: list[str] | None,
        n_vertices: int | None,
        vertices: str | None,
        delimiter: str | None,
    ) -> None:
        super().__init__(name)
        self._segments, self._form, self._names = segments, form, names
        self._known = (n_vertices, vertices, delimiter)
        self._threads, self._id_room = 1, ANY_ROOM
        self._notes = _Notes()

    @property
    def has_known_vertices(self) -> bool:  # type: ignore[override]
        """As of `FileSource`."""
        return self._known[:2] != (None, None)

    def prepare(self, threads: int, id_room: IdRoom) -> None:
        """As of `FileSource`."""
        self._threads, self._id_room = threads, id_room

    def batches(self) -> Iterator[CooBatch]:
        """Give all arcs, in at least one batch; rows and columns hold codes that `number` numbers."""
        self._made, self._listed = _find_vertices(self._form.columns[0], *self._known, self._id_room)
        try:
            with closing(open_texts(self._segments, BATCH_BYTES, self._threads)) as texts:
                encode = partial(_encode_chunk, form=self._form, vertices=self._made)
                for _, batch in read_chunks(self._read(texts), self._form, self._threads, encode, self._made):
                    yield batch
        except SourceError as error:
            raise place_error(error, self._segments) from None

    def tell(self) -> _Told:
        """As of `FileSource`."""
        extent = self._made.extent if isinstance(self._made, OccurringIntegers) else None
        return _Told(self._notes, extent, self._listed)

    def number(self, claim: int | None) -> Layout:
        """As of `FileSource`."""
        return make_layout(Numbering(claim) if claim is not None else self._made.finish(None), {})

    def _read(self, texts: Iterator[TextStream]) -> Iterator[Chunk]:
        n_chunks = 0
        for k, (text, segment) in enumerate(zip(texts, self._segments, strict=True)):
            for chunk in self._read_segment(text, segment):
                self.fraction = None if text.fraction is None else (k + text.fraction) / len(self._segments)
                n_chunks += 1
                yield chunk
            if not segment.begin:
                self._notes.end(text.provenance() if segment.is_whole else describe_cut(segment.name))
        if not n_chunks:
            yield Chunk(self.name, 1, b"")

    def _read_segment(self, text: TextStream, segment: Segment) -> Iterator[Chunk]:
        if not segment.begin:
            ids = "string" if self._form.columns[0].dtype == "string" else "int"
            head = _read_head(text, self._form.delimiter, ids, self._names)
            self._notes.begin(text, head)
            yield from [head.used] if head.used else []
        yield from text.chunks()


def _find_vertices(
    id_column: Column,
    n_vertices: int | None,
    path: str | os.PathLike[str] | None,
    delimiter: str | None,
    id_room: IdRoom,
) -> tuple[Vertices, dict[str, Any]]:
    """What becomes of ids, and the provenance of the list of vertices at a path."""
    if n_vertices is not None:
        return NumberedVertices(n_vertices), {}
    if path is not None:
        column = Column("vertex", id_column.dtype, hint=id_column.hint)
        vertices, provenance = read_vertices(path, column, delimiter, _COMMENTS, id_room)
        return vertices, {"vertices": provenance}
    return (OccurringNames(id_room) if id_column.dtype == "string" else OccurringIntegers(id_room)), {}


def check_vertex_options(n_vertices: int | None, vertices: Any, ids: str) -> None:
    """Raise OptionError for options that contradict each other."""
    if n_vertices is None:
        return
    if n_vertices < 0:
        raise OptionError(f"n_vertices must be 0 or more, not {n_vertices}")
    if vertices is not None:
        raise OptionError("n_vertices= and vertices= both say what the vertices are; pass one of them")
    if ids == "string":
        raise OptionError("n_vertices is for ids that are integers; for names pass vertices=")


def _read_head(text: TextStream, delimiter: str | None, ids: str, names: list[str] | None = None) -> _Head:
    """Read comments and a line of columns' names, up to the first edge.

    Parameters
    ----------
    names : of the columns in a file before it, by which they are known where no edge follows them
    """
    claims = _read_claims(text)
    first = text.peek_line()
    if first is None or ids == "string" or not _may_be_names(first, delimiter):
        return _Head(claims, None, first, None)
    text.read_line()
    text.skip_comments(_COMMENTS)
    second = text.peek_line()
    tokens = split_line(first, delimiter or find_delimiter(first))
    if tokens == names if second is None else _are_names_of(first, second, delimiter):
        return _Head(claims, tokens, second, None)
    return _Head(claims, None, first, Chunk(first.source, first.number, first.data + b"\n"))


def _read_claims(text: TextStream) -> dict[str, int]:
    """Read the comments; the last number of nodes and of edges that they state."""
    found = {}
    for k, line in enumerate(text.read_comments(_COMMENTS)):
        if k == 0 and is_banner(line):
            raise line.refuse('this is a Matrix Market file; pass format="matrix-market"')
        if b":" not in line.data and b"=" not in line.data:  # so that long lines are soon over
            continue
        for claim in _CLAIM.finditer(line.text):
            what, number = claim.groups()
            found["nodes" if what.lower() in ("nodes", "vertices") else "edges"] = int(number)
    return found


def _may_be_names(line: Line, delimiter: str | None) -> bool:
    tokens = split_line(line, delimiter or find_delimiter(line))
    return not any(map(is_number, tokens))


def _are_names_of(names: Line, edge: Line, delimiter: str | None) -> bool:
    delimiter = delimiter or find_delimiter(edge)
    tokens = split_line(edge, delimiter)
    return len(tokens) == len(split_line(names, delimiter)) and len(tokens) > 1 and all(map(is_integer, tokens[:2]))


def _encode_all(
    parsed: Iterable[tuple[Chunk, list[Any]]],
    encode: Callable[[Chunk, list[Any]], tuple[Chunk, CooBatch]],
    vertices: Vertices,
) -> Iterator[tuple[Chunk, CooBatch]]:
    """Chunks and their entries, encoded when it is their turn."""
    for chunk, columns in parsed:
        if vertices.is_full:
            vertices.spill()
        yield encode(chunk, columns)


def _encode_chunk(chunk: Chunk, columns: list[Any], form: TableFormat, vertices: Vertices) -> tuple[Chunk, CooBatch]:
    sources, targets, *weights = columns
    rows, cols = vertices.encode(sources, targets)
    for side, codes in enumerate((rows, cols)):
        if (k := find_unknown(vertices, codes)) is not None:
            line = nth_line(chunk, form, k)
            unknown = split_line(line, form.delimiter)[side]
            raise line.refuse(f"{unknown!r} is not in the list of vertices; add it there or remove the edge")
    return chunk, CooBatch(rows, cols, weights[0] if weights else None)
