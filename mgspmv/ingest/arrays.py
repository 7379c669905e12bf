"""Arcs between names in arrays of NumPy, pandas, polars or Arrow, read as a table."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import pyarrow as pa

from mgspmv.errors import OptionError
from mgspmv.ingest.frames import FrameTable
from mgspmv.ingest.objects import check_lengths, check_vector
from mgspmv.ingest.source import FileSource
from mgspmv.ingest.tables import BATCH_ROWS, Table, TableSource
from mgspmv.ingest.values import choose_value_dtype
from mgspmv.ingest.vertices import ANY_ROOM, IdRoom


class NamedArraysSource(TableSource):
    """Arcs src[k] -> dst[k] between names, with or without weights, as arrays: read as a table of these columns.

    Parameters
    ----------
    src, dst : strings, UUIDs, or whatever else `TableSource` takes for ids; shape (k,)
    weights, n_vertices : as of `ArraysSource`
    id_room : as of `TableSource`

    Raises
    ------
    OptionError : arrays that are not one-dimensional, not of one length, or not of one type
    SourceError : as of `ArraysSource`
    SourceError : by `batches`, for a missing id, or ids of other types
    """

    def __init__(
        self,
        src: Any,
        dst: Any,
        weights: Any = None,
        n_vertices: int | None = None,
        id_room: IdRoom = ANY_ROOM,
    ) -> None:
        given = {"src": src, "dst": dst} | ({} if weights is None else {"weights": weights})
        columns = {label: _to_arrow(label, array) for label, array in given.items()}
        check_lengths(columns)
        super().__init__(f"{len(columns['src'])} arcs in arrays", n_vertices=n_vertices, id_room=id_room)
        if weights is not None:
            choose_value_dtype(check_vector("weights", weights).dtype, self.name)
        self._table = pa.table(columns)

    def _tables(self) -> Generator[Table]:
        yield FrameTable(self._table, self.name, BATCH_ROWS)

    def _describe(self) -> dict[str, Any]:
        return {"name": self.name, "format": "arrays"}

    def _describe_all(self, told: Sequence[dict[str, Any]], header: dict[str, Any]) -> dict[str, Any]:
        return told[0]

    def split(self, n_parts: int) -> list[FileSource]:
        """As of `FileSource`.

        Raises
        ------
        OptionError : always
        """
        raise OptionError(
            f"{self.name} are in this process, and a cluster reads files or a Dask DataFrame; write them to a "
            "Parquet file, or leave out client="
        )


def _to_arrow(name: str, array: Any) -> Any:
    """Return a vector as one of Arrow, in which what pandas and NumPy have as NaN, None or NA is missing."""
    if isinstance(array, pa.Array | pa.ChunkedArray):
        return array
    try:
        return array.to_arrow() if hasattr(array, "to_arrow") else pa.array(array, from_pandas=True)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise OptionError(
            f"{name} must hold integers or strings alone, Arrow cannot hold it ({error}); cast it to one type"
            if name != "weights"
            else f"weights must hold numbers, Arrow cannot hold it ({error}); pass .astype('float64')"
        ) from error
