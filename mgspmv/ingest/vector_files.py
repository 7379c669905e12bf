"""Vectors that users pass as files: numbers by place, numbers by id, or ids; x and y of a product; tables of seeds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from mgspmv.errors import OptionError, SourceError
from mgspmv.files import describe_error, is_url
from mgspmv.ingest.detect import ForeignFormat, find_format_by_bytes, find_format_by_name, read_head
from mgspmv.ingest.files import open_anywhere, take_name
from mgspmv.ingest.streams import TextStream
from mgspmv.ingest.tokens import choose_delimiter, is_plain_integer
from mgspmv.os_errors import source_error

DANGLING_RULES = ("uniform", "drop", "error")

NPY_DAMAGE = (
    ValueError, EOFError, SyntaxError, TokenError, TypeError, AttributeError, RecursionError, MemoryError,
)  # fmt: skip
"""Exceptions that NumPy raises on damaged files; MemoryError if a header states more elements than fit in memory."""


def read_weights(
    path: str | os.PathLike[str], *, string_ids: bool = False, vertex_ids: np.ndarray | None = None
) -> Any:
    """Read a number per vertex in their order (`.npy`), or numbers by id or ids alone, which have 1 (text, Parquet).

    A text has an id and a number per line, or one id per line as in a list of vertices. The rules for delimiters,
    headers and columns are those of `mgspmv.ingest.tokens`, `headers` and `column_names`: a header names the columns,
    in any order; without one the id is first. Ids may be quoted as in CSV. In a list of ids the whole line is the id,
    blanks included. Lines at the head that begin with `#` or `%` are comments.

    Parameters
    ----------
    path : local path or URL; a text may be compressed
    string_ids : whether ids are strings, as in a store whose `vertex_ids` are strings, or integers
    vertex_ids : the strings; they distinguish ids such as `Route 66` from lines of an id and a number

    Returns
    -------
    float array of shape (n,), or a pyarrow Table of ids and numbers, or of ids alone

    Raises
    ------
    SourceError : missing file, a format that is not read, a malformed line, a number that is not finite, ambiguous
        columns
    """
    name = take_name(path)
    if name.endswith(".npy"):
        return read_vector(path)
    form = find_format_by_bytes(read_head(name)[0]) or find_format_by_name(name)
    if form == "parquet":
        return read_table(path)
    if isinstance(form, ForeignFormat):
        raise SourceError(f"this is {form.what}; expected ids and numbers as text, Parquet or .npy", source=name)
    return _read_text(name, string_ids, vertex_ids)


def _read_text(name: str, string_ids: bool, vertex_ids: np.ndarray | None) -> Any:
    import pyarrow as pa

    from mgspmv.ingest.columns import TextColumn, read_chunks  # Numba takes a second to import
    from mgspmv.ingest.vertices import find_list_form
    from mgspmv.lookup import ArrayLookup

    id_column = TextColumn("id", "string") if string_ids else TextColumn("id", "int64", plain="write it without zeros")
    number_column = TextColumn("weight", "float64", finite=True)
    is_vertex = None if vertex_ids is None else ArrayLookup(len(vertex_ids), vertex_ids).has
    parts = []
    with TextStream(name) as text:
        form, _ = find_list_form(text, id_column, is_vertex=is_vertex, number_column=number_column)
        for _, columns, _ in read_chunks(text.chunks(), form, 1):
            parts.append(pa.table(columns, [column.name for column in form.read]))
    return pa.concat_tables(parts)


def check_dangling(rule_or_path: str) -> str:
    """Return the argument if it is one of `DANGLING_RULES` or a file; raise OptionError otherwise."""
    if rule_or_path in DANGLING_RULES or Path(rule_or_path).exists():
        return rule_or_path
    raise OptionError(f"dangling must be {', '.join(DANGLING_RULES)} or a file; there is no file {rule_or_path!r}")


def read_table(path: str | os.PathLike[str]) -> Any:
    """Read a Parquet file, or a folder of them, as a pyarrow Table.

    Raises
    ------
    SourceError : missing file, or not Parquet
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = os.fspath(path)
    with reading_table(name, "cannot be read as parquet: {}"):
        if not is_url(name):
            return check_table(pq.read_table(name))
        with open_anywhere(name) as file:
            return check_table(pq.read_table(pa.BufferReader(file.read())))


@contextmanager
def reading_table(name: str, said: str) -> Iterator[None]:
    """Convert the errors that pyarrow raises on a damaged or unreadable file to SourceError.

    Parameters
    ----------
    said : message, with a placeholder for pyarrow's message
    """
    import pyarrow as pa

    try:
        yield
    except SourceError:
        raise
    except FileNotFoundError as error:
        raise SourceError("there is no such file", source=name) from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise source_error(error, name, said.format(describe_error(error))) from error


def check_table(table: Any) -> Any:
    """Return a table whose names and strings are UTF-8 and whose columns are complete; else raise pyarrow's errors."""
    table.validate(full=True)
    return table.select(table.column_names)  # decodes the names


def read_vector(path: str | os.PathLike[str], *, max_ndim: int = 1) -> np.ndarray:
    """Read an array of real numbers from a `.npy` file, one-dimensional unless `max_ndim` is 2.

    Raises
    ------
    SourceError : missing file, not a `.npy` file, or one that is shorter than its header claims, another number of
        dimensions, not real numbers
    """
    try:
        with open(path, "rb") as file:
            vector: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
    except FileNotFoundError as error:
        raise SourceError("there is no such file", source=str(path)) from error
    except OSError as error:
        raise source_error(error, path, f"cannot be read: {error.strerror}") from error
    except NPY_DAMAGE as error:
        raise SourceError(
            f"not a .npy file of numbers ({describe_error(error)}); write it with numpy.save", source=str(path)
        ) from error
    if not 1 <= vector.ndim <= max_ndim or vector.dtype.kind not in "biuf":
        expected = "one-dimensional" if max_ndim == 1 else "one- or two-dimensional"
        found = f"{vector.dtype} of shape {vector.shape}"
        raise SourceError(f"expected a {expected} array of real numbers, found {found}", source=str(path))
    return vector


# --- seeds -----------------------------------------------------------------------------------------------------------


def read_seeds(path: str | os.PathLike[str], *, string_ids: bool = False) -> Any:
    """Read a table of personalizations with the columns `vector`, `vertex` and, optionally, `weight`.

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
    if suffix == ".parquet":
        return read_table(path)
    if suffix != ".csv":
        found = suffix or "a name without suffix"
        raise OptionError(f"{path}: expected a .csv or .parquet file of seeds, found {found}")
    return _read_csv(os.fspath(path), string_ids)


def _read_csv(name: str, string_ids: bool) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    with TextStream(name) as stream:
        text = b"".join(chunk.data for chunk in stream.chunks())
    first = text.partition(b"\n")[0].decode("utf-8", "replace")
    # read as strings, because Arrow would drop the leading zeros of names that look like integers
    types = {"vector": pa.string(), "vertex": pa.string() if string_ids else pa.int64()}
    options = csv.ParseOptions(delimiter=choose_delimiter([first])), csv.ConvertOptions(column_types=types)
    with reading_table(name, "cannot be read as csv: {}"):
        table = check_table(csv.read_csv(pa.BufferReader(text), None, *options))
        if "vector" not in table.column_names:
            return table
        names = pc.utf8_trim_whitespace(table["vector"])
        if not all(map(is_plain_integer, names.unique().to_pylist())):
            return table
        return table.set_column(table.column_names.index("vector"), "vector", names.cast(pa.int64()))
