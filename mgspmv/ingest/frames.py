"""Tables of edges in memory, or computed in parts: DataFrames, Arrow tables and streams, arrays."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from mgspmv.display.frames import wrap_numbers
from mgspmv.errors import OptionError, SourceError
from mgspmv.ingest.budget import ScratchFile
from mgspmv.ingest.files import cut_evenly
from mgspmv.ingest.objects import to_host
from mgspmv.ingest.source import choose_value_dtype
from mgspmv.ingest.tables import BATCH_ROWS, Table, TableSource, make_empty
from mgspmv.ingest.vertex_vectors import is_class, is_table

_CLASSES = {"pandas": "DataFrame", "polars": "DataFrame", "dask": "DataFrame", "pyarrow": "Table", "cudf": "DataFrame"}
_LABELED = ("pandas", "cudf", "dask")
"""Libraries whose columns have labels of any type."""


class FrameSource(TableSource):
    """A table of pandas, polars, cuDF, Dask or Arrow, as a `Source`; see `TableSource` for the types.

    The partitions of a Dask DataFrame are computed one after the other, by the scheduler that Dask is set to, and rows
    are counted over all of them. Indexes are ignored. NaN in pandas is a missing value.

    Parameters
    ----------
    frame : pandas.DataFrame, polars.DataFrame or LazyFrame, cudf.DataFrame, dask.dataframe.DataFrame, pyarrow.Table, or
        another table with `__arrow_c_stream__`, such as a relation of DuckDB, which is read as a stream
    name : name in messages; default: library, class and size
    format : format in the provenance; default: the library
    columns, options : of `TableSource`; `threads` are those that compute a partition too, if Dask is set to threads

    Raises
    ------
    OptionError : an object of another type; options that contradict each other
    SourceError : by `batches`, for columns or a row that do not fit
    """

    def __init__(
        self,
        frame: Any,
        name: str | None = None,
        format: str | None = None,
        *,
        columns: Sequence[str | int] | None = None,
        **options: Any,
    ) -> None:
        library = find_library(frame)
        if library is None:
            raise OptionError(
                "expected a table of pandas, polars, cuDF, Dask or Arrow, not an object of type "
                f"{type(frame).__module__}.{type(frame).__qualname__}"
            )
        if library in _LABELED and columns is not None and not isinstance(columns, str):
            # an integer may be a label
            columns = [str(each) if each in list(frame.columns) else each for each in columns]
        super().__init__(name or _name_frame(frame), format or library, columns=columns, **options)
        self._frame, self._is_computed = frame, library == "dask"
        self.numbers: list[int] = []
        """Partitions of a part, which the cluster computes; empty for a whole source."""
        self._kept: ScratchFile | None = None
        self._places: dict[int, tuple[int, int]] = {}
        """First byte and number of bytes of each partition that is kept."""

    @property
    def n_stated(self) -> int | None:
        has_length = hasattr(self._frame, "__len__") and not self._is_computed
        return len(self._frame) if has_length else None

    def _tables(self) -> Generator[Table]:
        if self.numbers:
            yield Table(self.name, self._facts.all_columns, self._read_kept)
        else:
            yield open_table(self._frame, self.name, self._threads)

    # --- partitions of a Dask DataFrame, which a cluster computes

    @property
    def n_partitions(self) -> int:
        """Number of partitions of a Dask DataFrame."""
        return int(self._frame.npartitions)

    def list_partitions(self) -> list[Any]:
        """List the partitions of a Dask DataFrame, each as a `Delayed` of the columns that are read."""
        names = self._choose_columns(open_table(self._frame, self.name))
        partitions: list[Any] = _select(self._frame, names).to_delayed()
        return partitions

    def find_futures(self) -> list[Any]:
        """Find the futures of a Dask DataFrame that a cluster holds."""
        from distributed import futures_of

        held: list[Any] = futures_of(self._frame)
        return held

    def split(self, n_parts: int) -> list[FrameSource]:
        """Split a Dask DataFrame by partitions, each of which `keep` receives once it is computed.

        Raises
        ------
        OptionError : a DataFrame of another library
        """
        if not self._is_computed:
            raise OptionError(
                f"{self.name}: a cluster cannot read rows in the memory of this process; write them to Parquet files, "
                "or ingest them without client="
            )
        parts = []
        for own in cut_evenly(range(self.n_partitions), [1] * self.n_partitions, n_parts):
            part = self._take_part()
            part.name = f"partitions {own[0]} to {own[-1]} of {self.name}"
            part._facts.all_columns = [str(label) for label in self._frame.columns]
            part._frame, part.numbers = None, own
            parts.append(part)
        return parts

    def keep(self, number: int, frame: Any, folder: Path | None) -> None:
        """Write a computed partition to a file until it is read; calls from several threads must not overlap.

        Parameters
        ----------
        frame : pandas.DataFrame of the columns that are read
        folder : for the file

        Raises
        ------
        SourceError : Arrow cannot represent a column
        StoreError : the file cannot be written
        """
        opened, sink = open_table(frame, self.name), pa.BufferOutputStream()
        table = pa.Table.from_batches(opened.read(opened.columns))
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        data = np.frombuffer(sink.getvalue(), np.uint8)
        self._kept = self._kept or ScratchFile(folder)
        self._places[number] = (self._kept.append(data), len(data))

    def _read_kept(self, names: list[str]) -> Iterator[Any]:
        assert self._kept is not None  # a part has at least one partition
        for number in self.numbers:
            with pa.ipc.open_stream(self._kept.read(*self._places[number], np.dtype(np.uint8))) as stream:
                yield make_empty(stream.schema).select(names)
                yield from (batch.select(names) for batch in stream)
        self._kept.close()


def open_table(frame: Any, name: str, threads: int | None = None) -> Table:
    """Open a table, of which only the columns that are read are computed and converted to Arrow.

    Column names that are not strings are converted to strings.

    Parameters
    ----------
    threads : number of threads that compute a partition of Dask; default Dask's own number
    """
    library = find_library(frame)
    if is_class(frame, "polars", "LazyFrame"):
        columns = frame.collect_schema().names()
        return Table(name, columns, lambda names: open_table(frame.select(names).collect(), name).read(names))
    if library in _LABELED:
        n_rows = None if library == "dask" else len(frame)
        read = partial(_read_labeled, frame, name, library, threads)
        return Table(name, [str(label) for label in frame.columns], read, n_rows=n_rows)
    try:
        stream = pa.RecordBatchReader.from_stream(frame)
    except (pa.ArrowException, TypeError) as error:
        raise SourceError(f"cannot be read as a stream of Arrow ({error})", source=name) from error

    def read_stream(names: list[str]) -> Iterator[Any]:
        yield make_empty(stream.schema).select(names)  # if there are no rows
        for batch in stream:
            yield batch.select(names)

    n_rows = len(frame) if library in ("pyarrow", "polars") else None
    return Table(name, stream.schema.names, read_stream, n_rows=n_rows, metadata=stream.schema.metadata)


def _read_labeled(frame: Any, name: str, library: str, threads: int | None, names: list[str]) -> Iterator[Any]:
    """Convert columns of a DataFrame to Arrow: in slices, or a partition of Dask at a time."""
    if library == "cudf":
        table = _select(frame, names).to_arrow(preserve_index=False)
        yield from table.to_batches() or [make_empty(table.schema)]
    elif library == "dask":
        import dask

        for partition in _select(frame, names).to_delayed():
            with dask.config.set({} if threads is None else {"num_workers": threads}):
                rows = partition.compute()
            yield from open_table(rows, name).read(names)
            del rows  # frees memory before the next partition is computed
    else:
        for start in range(0, max(1, len(frame)), BATCH_ROWS):
            rows = _select(frame.iloc[start : start + BATCH_ROWS], names)  # sliced first, as selecting copies columns
            try:
                yield pa.RecordBatch.from_pandas(rows, preserve_index=False)
            except (pa.ArrowException, TypeError, OverflowError) as error:
                raise SourceError(
                    f"Arrow cannot convert one of the columns {', '.join(names)} ({error}); cast ids to integers or "
                    "strings, and weights to numbers",
                    source=name,
                ) from error


def _select(frame: Any, names: list[str]) -> Any:
    """Return the columns of a DataFrame whose labels, as strings, are these names."""
    labels = {str(label): label for label in frame.columns}
    return frame[[labels[name] for name in names]]


def find_library(obj: Any) -> str | None:
    """Return the library of a table that `FrameSource` reads, without importing it; None for other objects.

    That of other tables with `__arrow_c_stream__` is `arrow`.
    """
    for library, name in _CLASSES.items():
        if is_class(obj, library, name):
            return library
    return "polars" if is_class(obj, "polars", "LazyFrame") else "arrow" if is_table(obj) else None


def _name_frame(frame: Any) -> str:
    """Return the library and class of a table, and its number of rows or partitions if that is known."""
    library, name = find_library(frame), f"{type(frame).__module__.partition('.')[0]} {type(frame).__name__}"
    if library == "dask":
        return f"dask {type(frame).__name__} of {frame.npartitions} partitions"
    return f"{name} of {len(frame)} rows" if library != "arrow" and hasattr(frame, "__len__") else name


# --- arrays ----------------------------------------------------------------------------------------------------------


def source_from_arrays(src: Any, dst: Any, weights: Any = None, *, form: str = "arrays", **options: Any) -> FrameSource:
    """Return a source of arcs src[k] -> dst[k], given as arrays of any library that `to_host` reads, or as lists.

    Parameters
    ----------
    src, dst : integers, or other ids that `TableSource` accepts; shape (k,)
    weights : real, shape (k,); None for a pattern
    form : form of the arcs that the user passed
    options : of `TableSource`

    Raises
    ------
    OptionError : arrays that are not one-dimensional, not of one length, or not of one type that ids may have
    SourceError : weights that are not real, or wider than 64 bits
    """
    columns = {name: _take_ids(name, to_host(ids)) for name, ids in (("src", src), ("dst", dst))}
    n = len(columns["src"])
    source = f"{n} arcs in {form}"
    if weights is not None:
        array = to_host(weights)
        vector = _take_vector("weights", array)
        dtype = choose_value_dtype(vector.dtype, source)
        columns["weights"] = _wrap(array, vector.astype(dtype, copy=False))
    for name, column in columns.items():
        if len(column) != n:
            raise OptionError(f"src has {n} entries but {name} has {len(column)}; pass arrays of equal length")
    return FrameSource(pa.table(columns), source, "arrays", **options)


def _take_ids(name: str, array: Any) -> Any:
    """Return ids as an Arrow array, in which NaN, None and NA of pandas and NumPy are missing."""
    vector = _take_vector(name, array)
    if not len(vector):
        return pa.nulls(0, pa.int64())  # NumPy converts an empty list to float64
    try:
        ids = _wrap(array, vector) if vector.dtype.kind in "biuf" else _convert_array(array)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise OptionError(
            f"{name} must hold only integers or only strings, Arrow cannot convert it ({error}); cast it to one type"
        ) from error
    if pa.types.is_floating(ids.type) or pa.types.is_boolean(ids.type):
        raise OptionError(
            f"{name} must hold integers or strings, not {vector.dtype}; pass .astype('int64') if these are whole "
            "numbers, or .astype(str)"
        )
    return ids


def _take_vector(name: str, array: Any) -> np.ndarray:
    vector = np.asarray(array)
    if vector.ndim != 1:
        raise OptionError(f"{name} must be one-dimensional, it has shape {vector.shape}")
    return vector


def _wrap(array: Any, vector: np.ndarray) -> Any:
    """Return numbers as an Arrow array: those of NumPy's, unless they are NaN for missing values of the array."""
    if vector.dtype.kind == "f" and not isinstance(array, np.ndarray) and np.isnan(vector).any():
        return _convert_array(array)
    return wrap_numbers(vector.astype(vector.dtype.newbyteorder("="), copy=False))


def _convert_array(array: Any) -> Any:
    if isinstance(array, pa.Array | pa.ChunkedArray):
        return array
    return array.to_arrow() if hasattr(array, "to_arrow") else pa.array(array, from_pandas=True)
