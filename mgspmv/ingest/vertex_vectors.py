"""Vectors over vertices as users pass them: numbers by place, or ids, each with a number.

Libraries of data frames are recognized by names of classes and by protocols, so that none of them is imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import numpy as np

from mgspmv.errors import OptionError, shorten
from mgspmv.ingest.column_names import choose_list_columns, is_saved_index, names_numbers, names_vertices
from mgspmv.ingest.tokens import Undecided

_BY_PLACE = "pass np.asarray(...) for numbers by place"


@dataclass(frozen=True, eq=False)
class ByPlace:
    """Numbers in the order of the vertices."""

    numbers: Any
    """Array, or object that NumPy converts to one."""


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


def classify_vector(name: str, given: Any) -> ByPlace | ById:
    """Classify a vector as given by place or by id.

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
        return ByPlace(given)
    if hasattr(given, "ids") and hasattr(given, "values"):
        return ById(given.ids, given.values)
    _check_readable(name, given)
    if _has_index(given):
        return _classify_indexed(name, given)
    if is_table(given):
        return _classify_table(name, given)
    if (ids := list_column(name, given)) is None and isinstance(given, Sequence | AbstractSet):
        ids = _read_ids(name, list(given), " in its list of ids", f"{_BY_PLACE}, or a mapping of ids to numbers")
    return ByPlace(given) if ids is None else _weigh_equally(ids)


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

    from mgspmv.ingest.values import decode, find_kind, to_integers, to_strings

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
