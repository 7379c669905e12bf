"""Parquet tables of edges: an arc a row."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from difflib import get_close_matches
from threading import Event
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet

from mgspmv.errors import OptionError, SourceError
from mgspmv.ingest.columns import INT64_MAX, INT64_MIN, Column
from mgspmv.ingest.edge_list import check_vertex_options
from mgspmv.ingest.source import FileSource, Layout
from mgspmv.ingest.streams import open_bytes
from mgspmv.ingest.vertices import (
    ANY_ROOM,
    IdRoom,
    NumberedVertices,
    OccurringIntegers,
    OccurringNames,
    Vertices,
    find_unknown,
    read_vertices,
)
from mgspmv.model import CooBatch, check_choice, index_dtype

BATCH_ROWS = 1 << 20
"""Rows of a batch."""
HASHED_BYTES = 1 << 20
"""Read at a time to be hashed."""


class ParquetSource(FileSource):
    """A Parquet file of edges as a `Source`: columns of sources, targets and, maybe, weights, each row an arc.

    Ids are integers of any width that fit into 64 bits with a sign, or strings. What the vertices are is as for
    `EdgeListSource`, but for the number of them, which no comment can state.

    Parameters
    ----------
    path : local path or URL
    columns : names of the columns of sources, targets and, maybe, weights; None for the first two, and the third for
        weights
    n_vertices : number of vertices, whose ids are 0..n_vertices-1
    vertices : path of a list of vertices, as of `EdgeListSource`
    weights : whether there are weights; "auto" if there is a third column. With False it is not looked at
    extra_columns : "ignore" columns beyond the third, or take them for an "error", where `columns` does not say which
    batch_rows : rows of a batch
    id_room : what the vertices' ids may take

    Raises
    ------
    OptionError : options that contradict each other
    SourceError : by `batches`, for what is no such file, or a row that does not fit; names it
    SourceNotFoundError : by `batches`, if there is no file
    """

    default_kind: Literal["graph", "matrix"] = "graph"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        columns: Sequence[str] | None = None,
        n_vertices: int | None = None,
        vertices: str | os.PathLike[str] | None = None,
        weights: Literal["auto"] | bool = "auto",
        extra_columns: Literal["error", "ignore"] = "error",
        batch_rows: int = BATCH_ROWS,
        id_room: IdRoom = ANY_ROOM,
    ) -> None:
        check_choice("weights", weights, ("auto", True, False))
        check_choice("extra_columns", extra_columns, ("error", "ignore"))
        check_vertex_options(n_vertices, vertices, "auto")
        if columns is not None and len(columns) not in (2, 3):
            raise OptionError(
                f"columns must name those of sources, targets and, maybe, weights, not {len(columns)}: {list(columns)}"
            )
        if columns is not None and len(columns) != 3 and weights is True:
            raise OptionError(
                f"weights are wanted and columns={list(columns)} names none; name a third, or leave it out"
            )
        super().__init__(path)
        self._columns, self._weights, self._extra_columns = columns, weights, extra_columns
        self._n_vertices, self._vertices, self._batch_rows, self._id_room = n_vertices, vertices, batch_rows, id_room

    def batches(self) -> Iterator[CooBatch]:
        """Give all arcs, in at least one batch; rows and columns hold codes that `layout` numbers."""
        is_over = Event()
        with open_bytes(self.name) as raw, ThreadPoolExecutor(1, "mgspmv-hash") as pool:
            try:
                table = self._open(raw)
                digest = pool.submit(_digest_file, self.name, is_over)
                yield from self._read_all(table, digest)
            finally:
                is_over.set()

    def _read_all(self, table: Any, digest: Future[str | None]) -> Iterator[CooBatch]:
        names = self._choose_columns(table.schema_arrow)
        are_names = self._check_types(names, [table.schema_arrow.field(name).type for name in names])
        vertices, listed = self._find_vertices(are_names)
        n_read = 0
        for part in self._read(table, names):
            yield self._encode(part, names, n_read, vertices, are_names)
            n_read += part.num_rows
        if not n_read:
            nothing = np.zeros(0, np.int32)
            yield CooBatch(nothing, nothing, np.zeros(0) if len(names) > 2 else None)
        self._layout = self._finish(vertices, {**self._describe(table, names, digest), **listed})

    def _refuse(self, message: str) -> SourceError:
        return SourceError(message, source=self.name)

    def _open(self, raw: Any) -> Any:
        try:
            return pa.parquet.ParquetFile(self.name if "://" not in self.name else raw)
        except (pa.ArrowInvalid, OSError) as error:
            raise self._refuse(f"this is no Parquet file, or it is damaged or cut short ({error})") from error

    def _read(self, table: Any, names: list[str]) -> Iterator[Any]:
        try:
            yield from table.iter_batches(batch_size=self._batch_rows, columns=names)
        except (pa.ArrowException, OSError) as error:
            raise self._refuse(f"the Parquet file is damaged or cut short ({error}); fetch it again") from error

    def _choose_columns(self, schema: Any) -> list[str]:
        there = list(schema.names)
        if self._columns is not None:
            for name in self._columns:
                if there.count(name) != 1:
                    near = get_close_matches(name, there, n=1)
                    hint = f"; did you mean {near[0]!r}?" if near else ""
                    raise self._refuse(f"expected one column {name!r}, found the columns {', '.join(there)}{hint}")
            return list(self._columns)[: 2 if self._weights is False else 3]
        if len(there) < 2 or (len(there) == 2 and self._weights is True):
            wanted = "sources, targets and weights" if self._weights is True else "sources and targets"
            raise self._refuse(f"expected columns of {wanted}, found {len(there)}: {', '.join(there)}")
        if len(there) > 3 and self._extra_columns == "error":
            raise self._refuse(
                f"expected columns of sources, targets and, maybe, weights, found {len(there)}: {', '.join(there)}; "
                'name those by columns=(...) (--columns), or pass extra_columns="ignore" for the first three'
            )
        return there[: 2 if self._weights is False else 3]

    def _check_types(self, names: list[str], types: list[Any]) -> bool:
        """Whether ids are names."""
        kinds = [_find_kind(each) for each in types]
        for name, kind, each in zip(names[:2], kinds, types, strict=False):
            if kind not in ("integer", "string"):
                raise self._refuse(f"expected ids in column {name!r} to be integers or strings, found {each}")
        if kinds[0] != kinds[1]:
            raise self._refuse(
                f"ids in columns {names[0]!r} and {names[1]!r} are {types[0]} and {types[1]}; store both as integers, "
                "or as strings"
            )
        if len(names) > 2 and kinds[2] not in ("integer", "number"):
            raise self._refuse(
                f"expected weights in column {names[2]!r} to be numbers, found {types[2]}; pass weights=False, or name "
                "others by columns=(...) (--columns)"
            )
        if kinds[0] == "string" and self._n_vertices is not None:
            raise self._refuse(
                "n_vertices is for ids that are integers, and these are strings; pass a list of vertices"
            )
        return kinds[0] == "string"

    def _find_vertices(self, are_names: bool) -> tuple[Vertices, dict[str, Any]]:
        if self._n_vertices is not None:
            return NumberedVertices(self._n_vertices), {}
        if self._vertices is not None:
            column = Column("vertex", "string" if are_names else "int64")
            vertices, provenance = read_vertices(self._vertices, column, None, b"#%")
            return vertices, {"vertices": provenance}
        return (OccurringNames(self._id_room) if are_names else OccurringIntegers(self._id_room)), {}

    def _encode(self, part: Any, names: list[str], n_before: int, vertices: Vertices, are_names: bool) -> CooBatch:
        for name in names:
            if part[name].null_count:
                row = n_before + int(np.flatnonzero(np.asarray(part[name].is_null()))[0])
                raise self._refuse(f"row {row} has nothing in column {name!r}; drop such rows, or fill them")
        ids = [
            part[name].cast(pa.string()) if are_names else self._to_integers(part[name], name, n_before)
            for name in names[:2]
        ]
        codes = vertices.encode(*ids)
        for name, own in zip(names, codes, strict=False):
            if (k := find_unknown(vertices, own)) is not None:
                raise self._refuse(
                    f"row {n_before + k}: {part[name][k].as_py()!r} in column {name!r} is not in the list of vertices; "
                    "add it there or remove the edge"
                )
        return CooBatch(codes[0], codes[1], _to_numbers(part[names[2]]) if len(names) > 2 else None)

    def _to_integers(self, ids: Any, name: str, n_before: int) -> np.ndarray:
        array: np.ndarray = ids.to_numpy(zero_copy_only=False)
        low, high = (INT64_MIN, INT64_MAX) if self._n_vertices is None else (0, self._n_vertices - 1)
        if len(array) and (int(array.min()) < low or int(array.max()) > high):
            k = int(np.flatnonzero((array < low) | (array > high))[0])
            wanted = "a 64-bit integer" if self._n_vertices is None else f"0..{high}, as n_vertices={high + 1} says"
            raise self._refuse(f"row {n_before + k}: expected {wanted} in column {name!r}, found {array[k]}")
        dtype = np.dtype(np.int64) if self._n_vertices is None else index_dtype(self._n_vertices)
        return array.astype(dtype)

    def _describe(self, table: Any, names: list[str], digest: Future[str | None]) -> dict[str, Any]:
        metadata = table.metadata
        header = {"columns": names, "rows": metadata.num_rows, "row_groups": metadata.num_row_groups}
        known: dict[str, Any] = {"name": self.name, "sha256": digest.result(), "header": header}
        if "://" not in self.name:
            known["bytes"] = os.path.getsize(self.name)
        return {name: value for name, value in known.items() if value is not None}

    def _finish(self, vertices: Vertices, provenance: dict[str, Any]) -> Layout:
        numbering = vertices.finish(None)
        return Layout(
            shape=(numbering.n_vertices, numbering.n_vertices),
            vertex_ids=numbering.vertex_ids,
            positions=numbering.positions,
            are_ids=numbering.are_ids,
            names=numbering.names,
            provenance={"format": "parquet", **provenance},
        )


def _find_kind(of: Any) -> Literal["integer", "number", "string"] | None:
    if pa.types.is_dictionary(of):
        of = of.value_type
        return "string" if pa.types.is_string(of) or pa.types.is_large_string(of) else None
    if pa.types.is_integer(of):
        return "integer"
    if pa.types.is_string(of) or pa.types.is_large_string(of):
        return "string"
    return "number" if pa.types.is_floating(of) or pa.types.is_decimal(of) or pa.types.is_boolean(of) else None


def _to_numbers(weights: Any) -> np.ndarray:
    if pa.types.is_decimal(weights.type) or pa.types.is_float16(weights.type):
        weights = weights.cast(pa.float64())
    return np.asarray(weights.to_numpy(zero_copy_only=False))


def _digest_file(name: str, is_over: Event) -> str | None:
    """SHA-256 of a local file; of others, which would be fetched twice, none."""
    if "://" in name:
        return None
    digest = hashlib.sha256()
    with open(name, "rb", buffering=0) as file:
        while not is_over.is_set() and (piece := file.read(HASHED_BYTES)):
            digest.update(piece)
    return digest.hexdigest()
