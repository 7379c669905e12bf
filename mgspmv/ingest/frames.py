"""Tables of edges in memory, or computed in parts: DataFrames, Arrow tables and streams."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from mgspmv.display.frames import wrap_numbers
from mgspmv.errors import OptionError, SourceError
from mgspmv.ingest.interchange import to_host
from mgspmv.ingest.parts import cut_evenly, make_absolute
from mgspmv.ingest.scratch import ANY_ROOM, MemoryBudget, ScratchFile
from mgspmv.ingest.tables import BATCH_ROWS, Table, TableSource, find_saved_index, make_empty
from mgspmv.ingest.values import choose_value_dtype
from mgspmv.ingest.vertex_vectors import is_class, is_table

_CLASSES = {
    "pandas": ("DataFrame",),
    "polars": ("DataFrame", "LazyFrame"),
    "dask": ("DataFrame",),
    "pyarrow": ("Table",),
    "cudf": ("DataFrame",),
}
STREAM = "arrow"
"""Name in place of a library's for other tables with `__arrow_c_stream__`."""


class FrameSource(TableSource):
    """A table of pandas, polars, cuDF, Dask or Arrow, as a `Source`; see `TableSource` for the types.

    The partitions of a Dask DataFrame are computed one after the other, by the scheduler that Dask is set to, and rows
    are counted over all of them. Indexes are ignored. NaN in pandas is a missing value.

    Parameters
    ----------
    frame : pandas.DataFrame, polars.DataFrame or LazyFrame, cudf.DataFrame, dask.dataframe.DataFrame, pyarrow.Table, or
        another table with `__arrow_c_stream__`, such as a relation of DuckDB, which is read as a stream
    threads : number of threads that compute a partition, if Dask is set to threads; default Dask's own number
    columns, options : of `TableSource`

    Raises
    ------
    OptionError : an object of another type; options that contradict each other
    SourceError : by `batches`, for columns or a row that do not fit
    """

    def __init__(
        self,
        frame: Any,
        *,
        columns: Sequence[str | int] | None = None,
        threads: int | None = None,
        **options: Any,
    ) -> None:
        library = find_library(frame)
        if library is None:
            raise OptionError(
                "expected a table of pandas, polars, cuDF, Dask or Arrow, not an object of type "
                f"{type(frame).__module__}.{type(frame).__qualname__}"
            )
        super().__init__(_name_frame(frame), columns=_take_labels(frame, columns), **options)
        self._frame, self._library, self._threads = frame, library, threads
        self._format, self._described, self._is_computed = library, self.name, library == "dask"
        self.kept: KeptPartitions | None = None
        """Partitions of a part, computed by the cluster; None for a whole source."""

    def _tables(self) -> Generator[Table]:
        if self.kept is not None:
            yield Table(self.name, self.kept.columns, self.kept.read)
        elif self._library == "dask":
            yield _open_dask(self._frame, self.name, self._threads)
        elif self._library == STREAM:
            yield _open_stream(self._frame, self.name)
        elif _is_lazy(self._frame):
            yield _open_lazy(self._frame, self.name)
        else:
            yield _open_frame(self._frame, self.name)

    def _describe(self) -> dict[str, Any]:
        return {"format": self._format, "name": self._described}

    def _describe_all(self, told: Sequence[dict[str, Any]], header: dict[str, Any]) -> dict[str, Any]:
        return {**told[0], "header": header}

    def split(self, n_parts: int) -> list[FrameSource]:
        """Split a Dask DataFrame by partitions, which `kept` of each part receives once they are computed.

        Raises
        ------
        OptionError : a DataFrame of another library
        """
        if self._library != "dask":
            raise OptionError(
                f"{self.name}: a cluster cannot read rows in the memory of this process; write them to Parquet files, "
                "or leave out client="
            )
        parts = []
        for own in cut_evenly(range(self.n_partitions), [1] * self.n_partitions, n_parts):
            part = copy(self)
            part.name = f"partitions {own[0]} to {own[-1]} of {self.name}"
            part._vertices = None if self._vertices is None else make_absolute(os.fspath(self._vertices))
            part._frame = None
            part.kept = KeptPartitions(self._frame._meta, part.name, own)
            parts.append(part)
        return parts

    @property
    def n_partitions(self) -> int:
        """Number of partitions of a Dask DataFrame."""
        return int(self._frame.npartitions)

    def list_partitions(self) -> list[Any]:
        """List the partitions of a Dask DataFrame, each as a `Delayed` of the columns that are read."""
        table = _open_dask(self._frame, self.name, None)
        partitions: list[Any] = self._frame[_find_labels(self._frame, self._choose_columns(table))].to_delayed()
        return partitions

    def find_futures(self) -> list[Any]:
        """Find the futures of a Dask DataFrame that a cluster holds."""
        from distributed import futures_of

        held: list[Any] = futures_of(self._frame)
        return held


def _open_frame(frame: Any, name: str) -> Table:
    """Open a DataFrame of pandas, polars or cuDF or an Arrow table, of which each slice is converted to Arrow.

    Column names that are not strings are converted to strings.
    """
    library = find_library(frame)

    def take(names: list[str], start: int) -> Any:
        if library in ("pandas", "cudf"):
            rows = frame.iloc[start : start + BATCH_ROWS]  # sliced first, as selecting columns copies them
            rows = rows[_find_labels(frame, names)]
            is_host = library == "pandas"
            return pa.Table.from_pandas(rows, preserve_index=False) if is_host else rows.to_arrow(preserve_index=False)
        part = frame.select(names).slice(start, BATCH_ROWS)
        return part if library == "pyarrow" else part.to_arrow()

    def read(names: list[str]) -> Iterator[Any]:
        for start in range(0, max(1, len(frame)), BATCH_ROWS):
            try:
                arrow = take(names, start)
            except (pa.ArrowException, TypeError, OverflowError) as error:
                raise _types_error(name, names, error) from error
            yield from arrow.to_batches() or [make_empty(arrow.schema)]

    index = find_saved_index(frame.schema) if library == "pyarrow" else ()
    columns = list(map(str, frame.column_names if library == "pyarrow" else frame.columns))
    return Table(name, columns, read, index, n_rows=len(frame))


def _open_lazy(frame: Any, name: str) -> Table:
    """Open a polars LazyFrame, of which only the columns that are read are computed."""

    def read(names: list[str]) -> Iterator[Any]:
        yield from _open_frame(frame.select(names).collect(), name).read(names)

    return Table(name, frame.collect_schema().names(), read)


def _open_stream(frame: Any, name: str) -> Table:
    """Open a table by the Arrow C interface, which can be read once."""
    try:
        stream = pa.RecordBatchReader.from_stream(frame)
    except (pa.ArrowException, TypeError) as error:
        raise SourceError(f"cannot be read as a stream of Arrow ({error})", source=name) from error

    def read(names: list[str]) -> Iterator[Any]:
        yield make_empty(stream.schema).select(names)  # if there are no rows
        for batch in stream:
            yield batch.select(names)

    return Table(name, list(stream.schema.names), read, find_saved_index(stream.schema))


def _open_dask(frame: Any, name: str, threads: int | None) -> Table:
    """Open a Dask DataFrame; its partitions are computed one at a time, with only the columns that are read."""
    settings = {} if threads is None else {"num_workers": threads}

    def read(names: list[str]) -> Iterator[Any]:
        import dask

        chosen, n_rows = frame[_find_labels(frame, names)], 0
        for partition in chosen.to_delayed():
            with dask.config.set(settings):
                rows = partition.compute()
            if len(rows):  # without rows, a column of objects has no type
                yield from _open_frame(rows, name).read(names)
            n_rows += len(rows)
            del rows  # frees memory before the next partition is computed
        if not n_rows:
            yield from _open_frame(chosen._meta, name).read(names)

    return Table(name, [str(label) for label in frame.columns], read)


class KeptPartitions:
    """Computed partitions of a Dask DataFrame, stored in a file until they are read.

    Parameters
    ----------
    meta : DataFrame without rows
    numbers : numbers of the partitions
    """

    def __init__(self, meta: Any, name: str, numbers: Sequence[int]) -> None:
        self.name, self.numbers = name, numbers
        self.columns = [str(label) for label in meta.columns]
        self._meta = meta
        self._file: ScratchFile | None = None
        self._places: dict[int, tuple[int, int]] = {}

    def keep(self, number: int, frame: Any, folder: Path | None) -> None:
        """Write a partition to the file; calls from several threads must not overlap.

        Parameters
        ----------
        frame : pandas.DataFrame of the columns that are read
        folder : for the file

        Raises
        ------
        SourceError : Arrow cannot represent a column
        StoreError : the file cannot be written
        """
        if not len(frame):  # without rows, a column of objects has no type
            self._places[number] = (0, 0)
            return
        sink, names = pa.BufferOutputStream(), [str(label) for label in frame.columns]
        table = pa.Table.from_batches(_open_frame(frame, self.name).read(names))
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        data = np.frombuffer(sink.getvalue(), np.uint8)
        self._file = self._file or ScratchFile(folder)
        self._places[number] = (self._file.append(data), len(data))

    def read(self, names: list[str]) -> Iterator[Any]:
        """Yield columns as record batches, a partition at a time."""
        if self._file is None:
            yield from _open_frame(self._meta, self.name).read(names)
            return
        for number in self.numbers:
            offset, n_bytes = self._places[number]
            if n_bytes:
                with pa.ipc.open_stream(self._file.read(offset, n_bytes, np.dtype(np.uint8))) as stream:
                    yield from (batch.select(names) for batch in stream)
        self._file.close()


def find_library(obj: Any) -> str | None:
    """Return the library of a table that `FrameSource` reads, without importing it; None for other objects."""
    for library, names in _CLASSES.items():
        if any(is_class(obj, library, name) for name in names):
            return library
    return STREAM if is_table(obj) else None


def has_no_columns(frame: Any) -> bool:
    """Return whether a table has no columns at all, as those of an empty list."""
    return getattr(frame, "shape", (0, 1))[1] == 0


def _is_lazy(frame: Any) -> bool:
    return is_class(frame, "polars", "LazyFrame")


def _name_frame(frame: Any) -> str:
    """Return the library and class of a table, and its number of rows or partitions if that is known."""
    library, name = find_library(frame), type(frame).__name__
    if library == STREAM:
        return f"{type(frame).__module__.partition('.')[0]} {name}"
    if library == "dask":
        return f"dask {name} of {frame.npartitions} partitions"
    return f"{library} {name}" if _is_lazy(frame) else f"{library} {name} of {len(frame)} rows"


def _take_labels(frame: Any, columns: Sequence[str | int] | None) -> Sequence[str | int] | None:
    """Return the given columns; integers that are labels of a DataFrame are replaced by its column names."""
    if find_library(frame) not in ("pandas", "dask", "cudf") or columns is None or isinstance(columns, str):
        return columns
    if not any(isinstance(label, int) for label in frame.columns):
        return columns
    return [str(each) if each in list(frame.columns) else each for each in columns]


def _find_labels(frame: Any, names: list[str]) -> list[Any]:
    labels = {str(label): label for label in frame.columns}
    return [labels[name] for name in names]


def _types_error(table: str, names: list[str], error: Exception) -> SourceError:
    return SourceError(
        f"Arrow cannot convert one of the columns {', '.join(names)} ({error}); cast ids to integers or strings, and "
        "weights to numbers",
        source=table,
    )


# --- arrays ----------------------------------------------------------------------------------------------------------


def source_from_arrays(
    src: Any,
    dst: Any,
    weights: Any = None,
    *,
    form: str = "arrays",
    n_vertices: int | None = None,
    id_room: MemoryBudget = ANY_ROOM,
) -> FrameSource:
    """Return a source of arcs src[k] -> dst[k], given as arrays of any library that `to_host` reads, or as lists.

    Parameters
    ----------
    src, dst : integers, or other ids that `TableSource` accepts; shape (k,)
    weights : real, shape (k,); None for a pattern
    form : form of the arcs that the user passed
    n_vertices, id_room : as in `TableSource`

    Raises
    ------
    OptionError : arrays that are not one-dimensional, not of one length, or not of one type that ids may have
    SourceError : missing numbers, or weights that are not real, or wider than 64 bits
    """
    src, dst, weights = map(to_host, (src, dst, weights))
    ends = {name: _take_ids(name, ids) for name, ids in (("src", src), ("dst", dst))}
    name, n = f"{len(ends['src'])} arcs in {form}", len(ends["src"])
    if weights is not None:
        vector = _take_vector("weights", weights)
        ends["weights"] = wrap_numbers(vector.astype(choose_value_dtype(vector.dtype, name), copy=False))
    for label, column in ends.items():
        if len(column) != n:
            raise OptionError(f"src has {n} entries but {label} has {len(column)}; pass arrays of equal length")
    source = FrameSource(pa.table(ends), n_vertices=n_vertices, id_room=id_room)
    source.name, source._described, source._format = name, name, "arrays"
    return source


def _take_ids(name: str, ids: Any) -> Any:
    """Return ids as an Arrow array, in which NaN, None and NA of pandas and NumPy are missing."""
    vector = _take_vector(name, ids)
    if not len(vector):
        return pa.array([], pa.int64())  # NumPy converts an empty list to float64
    if vector.dtype.kind in "iu":
        return wrap_numbers(vector.astype(vector.dtype.newbyteorder("="), copy=False))
    if vector.dtype.kind not in "OUST":
        raise OptionError(
            f"{name} must hold integers or strings, not {vector.dtype}; pass .astype('int64') if these are whole "
            "numbers, or .astype(str)"
        )
    if isinstance(ids, pa.Array | pa.ChunkedArray):
        return ids
    try:
        return ids.to_arrow() if hasattr(ids, "to_arrow") else pa.array(ids, from_pandas=True)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise OptionError(
            f"{name} must hold only integers or only strings, Arrow cannot convert it ({error}); cast it to one type"
        ) from error


def _take_vector(name: str, array: Any) -> np.ndarray:
    """Return one of the arrays of arcs as a NumPy array; raises SourceError for missing numbers."""
    vector = np.asarray(array)
    if vector.ndim != 1:
        raise OptionError(f"{name} must be one-dimensional, it has shape {vector.shape}")
    n_missing = getattr(array, "null_count", 0)
    if vector.dtype.kind == "f" and (n_missing() if callable(n_missing) else n_missing):  # NaN in NumPy
        raise SourceError(f"{name} has missing values; drop these arcs, or fill them")
    return vector
