"""Vectors over vertices as users pass them: numbers by place, or ids, each with a number; in objects or in files.

Libraries of data frames are recognized by names of classes and by protocols, so that none of them is imported.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from mgspmv.errors import OptionError, SourceError, shorten
from mgspmv.files import is_url
from mgspmv.ingest.column_names import choose_list_columns, is_saved_index, names_numbers, names_vertices
from mgspmv.ingest.detect import ForeignFormat, find_format_by_bytes, find_format_by_name, read_head
from mgspmv.ingest.files import open_anywhere, reading, take_name
from mgspmv.ingest.streams import TextStream
from mgspmv.ingest.tokens import Undecided, choose_delimiter, is_plain_integer

_BY_PLACE = "pass np.asarray(...) for numbers by place"


@dataclass(frozen=True, eq=False)
class ById:
    """Ids, each with a number."""

    ids: np.ndarray
    """Ids of vertices in any order: integers or strings (object)."""
    numbers: Any
    """Number per id; None for 1 each."""
    advice: str = ""
    """Advice in messages about unsuitable ids: the origin of the ids, and the argument for another reading."""
    is_default_index: bool = False
    """Whether the ids are a default index 0, 1, ..., which counts as ids only in a store without other ids."""


def classify_vector(name: str, given: Any) -> ById | None:
    """Return the ids and numbers of a vector that is given by id; None for one of numbers by place.

    =============================================  ==========================================================
    given                                          is
    =============================================  ==========================================================
    mapping                                        by id: keys and values
    pandas Series, frame of one column             by id: the index and the values
    frame or Arrow table of two columns            by id: columns of ids and numbers, see `choose_list_columns`
    result with `ids` and `values`                 by id
    list, tuple, set; pandas Index;                ids, each with the number 1
    polars Series or Arrow array of ids
    NumPy array, object with `__array__`           by place
    =============================================  ==========================================================

    Parameters
    ----------
    name : name of the argument in messages

    Raises
    ------
    OptionError : none of these; a sequence of values that are not ids, such as floats; ambiguous columns
    """
    if isinstance(given, Mapping):
        return ById(_read_ids(name, list(given), " in its keys"), list(given.values()))
    if isinstance(given, str | bytes):
        raise OptionError(
            f"{name} must be a vector over the vertices, not {given!r}; pass a mapping of ids to numbers, a Series or "
            f"frame with ids, a list of ids such as [{given!r}], or np.asarray(...) of a number per vertex"
        )
    if isinstance(given, np.ndarray):
        return None
    if hasattr(given, "ids") and hasattr(given, "values"):
        return ById(given.ids, given.values)
    _check_readable(name, given)
    if _has_index(given):
        return _classify_indexed(name, given)
    if is_table(given):
        return _classify_table(name, given)
    if (ids := list_column(name, given)) is None and isinstance(given, Sequence | AbstractSet):
        ids = _read_ids(name, list(given), " in its list of ids", f"{_BY_PLACE}, or a mapping of ids to numbers")
    return None if ids is None else _weigh_equally(ids)


def is_class(obj: Any, library: str, name: str | None = None) -> bool:
    """Return whether an object is of a class of a library, of any name or this one, without importing the library."""
    own = (cls for cls in type(obj).__mro__ if cls.__module__.partition(".")[0] == library)
    return any(name in (None, cls.__name__) for cls in own)


def is_table(obj: Any) -> bool:
    """Return whether an object is a table with named columns: a data frame or an Arrow table."""
    return hasattr(obj, "__arrow_c_stream__") and (hasattr(obj, "schema") or hasattr(obj, "columns"))


def list_column(name: str, given: Any) -> np.ndarray | None:
    """List the ids of a column without an index: a pandas Index, a polars Series, an Arrow array; None for others.

    Raises
    ------
    OptionError : a column of values that are not ids
    """
    is_arrow = hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__")
    if is_class(given, "pandas", "Index") or (is_arrow and not is_table(given) and not _has_index(given)):
        return _read_ids(name, given, "", f"{_BY_PLACE}, or a frame with a column of ids and one of numbers")
    return None


def _weigh_equally(ids: np.ndarray) -> ById:
    """Return ids with the number 1 each; unlike a list of strings, one of integers may be meant by place."""
    return ById(ids, None, "" if ids.dtype == object else f"a list holds ids: {_BY_PLACE}")


def _read_ids(name: str, labels: Any, where: str, advice: str = "pass ids as integers or strings") -> np.ndarray:
    """Convert labels to ids of stores: integers, or strings (object); UUIDs to their text.

    Parameters
    ----------
    labels : list, or a column of pandas, polars or Arrow
    where : place of the ids, for messages

    Raises
    ------
    OptionError : one cannot be an id, or they are of several types
    """
    if not len(labels):
        return np.zeros(0, np.int64)
    kinds = set(map(type, labels)) if isinstance(labels, list) else set()
    if kinds in ({int}, {str}):  # without Arrow, which imports pandas
        return np.array(labels, object if kinds == {str} else None)
    import pyarrow as pa

    from mgspmv.ingest.source import decode, find_kind, to_integers, to_strings

    try:
        ids = labels if isinstance(labels, pa.Array | pa.ChunkedArray) else pa.array(labels, from_pandas=True)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise OptionError(
            f"{name} has ids{where} that are neither all integers nor all strings ({error}); {advice}"
        ) from error
    ids = decode(ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids)
    if ids.null_count:
        raise OptionError(f"{name} has a missing value{where}; {advice}")
    kind = find_kind(ids.type)
    if kind not in ("integer", "string"):
        raise OptionError(f"{name} has {shorten(repr(ids[0].as_py()), 40)}{where}, which is not an id; {advice}")
    found: np.ndarray = to_strings(ids).to_numpy(zero_copy_only=False) if kind == "string" else to_integers(ids)
    return found


def _check_readable(name: str, given: Any) -> None:
    """Raise OptionError for objects whose labels would be lost, are not computed yet, or can be read only once."""
    is_lazy = hasattr(given, "lazy") and hasattr(given, "collect")
    is_lazy |= hasattr(given, "compute") and _has_property(given, "index")
    if is_lazy or (hasattr(given, "coords") and hasattr(given, "dims")) or isinstance(given, Iterator):
        raise OptionError(
            f"{name} is a {name_type(given)}, which is not read as a vector; pass a computed Series or table of ids "
            "and numbers, a list of ids, or np.asarray(...) for numbers by place"
        )


def _has_index(given: Any) -> bool:
    return _has_property(given, "index") and hasattr(given, "to_numpy")


def _has_property(given: Any, name: str) -> bool:
    return hasattr(given, name) and not callable(getattr(given, name))


def name_type(given: Any) -> str:
    """Return the library and the class of an object, for messages."""
    return f"{type(given).__module__.partition('.')[0]} {type(given).__name__}"


def _classify_indexed(name: str, given: Any) -> ById:
    """Classify a Series or frame of pandas, whose index or one of whose columns has the ids."""
    index, columns = given.index, list(map(str, getattr(given, "columns", ())))
    is_default = index.name is None and (getattr(index, "start", None), getattr(index, "step", None)) == (0, 1)
    if len(columns) > 1 or any(map(names_vertices, columns)):
        if is_default or (len(columns) > 1 and any(map(names_vertices, columns))):
            return _classify_table(name, given.reset_index(drop=True))
        raise OptionError(
            f"{name} is a frame, and either its index or one of its columns {', '.join(map(repr, columns))} may be the "
            "ids; pass a Series with ids as index, or two columns, named id and weight"
        )
    advice = (
        "a Series is matched by its index: set the index to ids of vertices, or pass its .to_numpy() for numbers by "
        "place"
    )
    if getattr(index, "nlevels", 1) != 1:
        raise OptionError(f"{name} has an index of {index.nlevels} levels, expected one level of ids; {advice}")
    numbers = given.to_numpy().reshape(len(index))
    if numbers.dtype.kind in "OUS" and len(numbers) and isinstance(numbers[0], str):
        raise OptionError(f"{name} is a Series of strings; pass its .tolist() for a list of ids")
    return ById(_read_ids(name, index, " in its index", advice), numbers, advice, is_default)


def _classify_table(name: str, given: Any) -> ById:
    """Classify a table of ids, or of ids and numbers."""
    import pyarrow as pa

    table = pa.table(given)
    columns = list(table.column_names)
    index = [k for k, column in enumerate(columns) if is_saved_index(column)]
    others = [k for k in range(len(columns)) if k not in index]
    if len(others) == 1 and len(index) == 1 and not names_vertices(columns[others[0]]):
        own, other = index[0], others[0]
    else:
        named = [columns[k] for k in others]
        try:
            chosen = choose_list_columns(named, has_numbers=len(named) > 1 or names_numbers(named[0]))
        except Undecided as error:
            raise OptionError(f"{name}: {error}") from error
        own = others[chosen[0]]
        if chosen[1] is None:
            return _weigh_equally(_read_ids(name, table.column(own), f" in its column of ids {columns[own]!r}"))
        other = others[chosen[1]]
    numbers = table.column(other)
    if numbers.null_count:
        raise OptionError(
            f"{name} has {numbers.null_count} missing values in column {columns[other]!r}; fill them, or drop the rows"
        )
    ids = _read_ids(name, table.column(own), f" in its column of ids {columns[own]!r}")
    advice = f"column {columns[own]!r} was taken as ids and {columns[other]!r} as numbers: name them id and weight"
    return ById(ids, numbers.to_numpy(), advice)


# --- files -----------------------------------------------------------------------------------------------------------

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
    import pyarrow as pa

    from mgspmv.ingest.columns import TextColumn, read_chunks  # Numba takes a second to import
    from mgspmv.ingest.vertices import find_list_form
    from mgspmv.lookup import ArrayLookup

    id_column = TextColumn("id", "string") if string_ids else TextColumn("id", "int64", plain="write it without zeros")
    number_column = TextColumn("weight", "float64", finite=True)
    is_vertex = None if vertex_ids is None else ArrayLookup(len(vertex_ids), vertex_ids).has
    parts = []
    with TextStream(name, hashes=False) as text:
        lines, _ = find_list_form(text, id_column, is_vertex=is_vertex, number_column=number_column)
        for _, columns, _ in read_chunks(text.chunks(), lines, 1):
            parts.append(pa.table(columns, [column.name for column in lines.read]))
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


def reading_table(name: str, said: str) -> AbstractContextManager[None]:
    """Translate the errors that pyarrow raises on a damaged or unreadable file; see `reading`."""
    import pyarrow as pa

    return reading(name, said, pa.ArrowException, ValueError)


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
    how = "not a .npy file of numbers ({}); write it with numpy.save"
    with reading(os.fspath(path), how, *NPY_DAMAGE), open(path, "rb") as file:
        vector: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
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
    name, suffix = os.fspath(path), Path(path).suffix
    if suffix == ".parquet":
        return read_table(path)
    if suffix != ".csv":
        found = suffix or "a name without suffix"
        raise OptionError(f"{path}: expected a .csv or .parquet file of seeds, found {found}")
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    with TextStream(name, hashes=False) as stream:
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
