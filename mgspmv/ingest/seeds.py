"""Tables of personalizations that users pass as files, one row per vertex of each vector."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mgspmv.errors import OptionError, SourceError
from mgspmv.ingest.streams import TextStream
from mgspmv.ingest.tokens import choose_delimiter, is_plain_integer
from mgspmv.ingest.vector_files import check_table, read_table, reading_table

SUFFIXES = (".csv", ".parquet")


def read_seeds(path: str | os.PathLike[str], *, string_ids: bool = False) -> Any:
    """Read a table with the columns `vector`, `vertex` and, optionally, `weight`.

    Parameters
    ----------
    path : a CSV file with a header, or a Parquet file
    string_ids : vertices have strings as ids, which in CSV may look like numbers

    Returns
    -------
    pyarrow.Table, as `mgspmv.api.pagerank_batch` takes it. In CSV, names of vectors are integers if all of them are
    written as integers without leading zeros, and strings otherwise.

    Raises
    ------
    OptionError : another suffix
    SourceError : missing file, or one not in the format of its suffix; an id that is not an integer where all must be
    """
    suffix = Path(path).suffix
    if suffix not in SUFFIXES:
        raise OptionError(
            f"{path}: expected a .csv or .parquet file of seeds, found {suffix or 'a name without suffix'}"
        )
    return _read_csv(os.fspath(path), string_ids) if suffix == ".csv" else read_table(path)


def _read_csv(name: str, string_ids: bool) -> Any:
    import pyarrow as pa
    from pyarrow import csv

    with TextStream(name) as stream:
        text = b"".join(chunk.data for chunk in stream.chunks())
    first = text.partition(b"\n")[0].decode("utf-8", "replace")
    delimiter = choose_delimiter([first])
    # read as strings, because Arrow would drop the leading zeros of names that look like integers
    types = csv.ConvertOptions(column_types=dict.fromkeys(("vector", "vertex"), pa.string()))
    with reading_table(name, "cannot be read as csv: {}"):
        parsing = csv.ParseOptions(delimiter=delimiter)
        table = check_table(csv.read_csv(pa.BufferReader(text), convert_options=types, parse_options=parsing))
    if "vertex" in table.column_names and not string_ids:
        table = _to_integers(table, "vertex", name)
    if "vector" in table.column_names and all(map(is_plain_integer, _list_words(table["vector"]))):
        table = _to_integers(table, "vector", name)
    return table


def _list_words(column: Any) -> list[str]:
    return [word.strip() for word in column.unique().to_pylist()]


def _to_integers(table: Any, column: str, name: str) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    wrong = next((word for word in _list_words(table[column]) if not is_plain_integer(word)), None)
    if wrong is not None:
        raise SourceError(f"column {column!r}: expected an integer id, found {wrong!r}", source=name)
    try:
        numbers = pc.utf8_trim_whitespace(table[column]).cast(pa.int64())
    except pa.ArrowException as error:
        raise SourceError(f"column {column!r}: expected 64-bit integers ({error})", source=name) from error
    return table.set_column(table.column_names.index(column), column, numbers)
