"""Vectors over vertices as users pass them: numbers by place, or ids, each with a number.

Libraries of data frames are recognized by names of classes and by protocols, so that none of them is imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from decimal import Decimal
from numbers import Integral
from typing import Any
from uuid import UUID

import numpy as np

from mgspmv.errors import OptionError, shorten
from mgspmv.ingest.column_names import choose_list_columns, is_saved_index, names_numbers, names_vertices
from mgspmv.ingest.tokens import Undecided


@dataclass(frozen=True, eq=False)
class ByPlace:
    """Numbers in the order of the vertices."""

    numbers: Any
    """Array, or object that NumPy converts to one."""


@dataclass(frozen=True, eq=False)
class ById:
    """Ids, each with a number."""

    ids: list[Any] | np.ndarray
    """Ids of vertices in any order, unchecked."""
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
        return ById(_write_ids(list(given)), list(given.values()))
    if isinstance(given, str | bytes):
        raise OptionError(
            f"{name} must be a vector over the vertices, not {given!r}; pass a mapping of ids to numbers, a Series or "
            "frame with ids, a list of ids, or np.asarray(...) of a number per vertex"
        )
    if isinstance(given, np.ndarray):
        return ByPlace(given)
    if hasattr(given, "ids") and hasattr(given, "values"):
        return ById(given.ids, given.values)
    _check_readable(name, given)
    if _has_index(given):
        return _classify_frame(name, given) if hasattr(given, "columns") else _classify_series(name, given)
    if is_table(given):
        return _classify_table(name, given)
    if (ids := list_column(name, given)) is not None:
        return ById(ids, None, _advise_list(ids))
    if isinstance(given, Sequence | AbstractSet):
        return _list_ids(name, list(given))
    return ByPlace(given)


def is_class(obj: Any, library: str, name: str | None = None) -> bool:
    """Return whether an object is of a class of a library, of any name or this one, without importing the library."""
    own = (cls for cls in type(obj).__mro__ if cls.__module__.partition(".")[0] == library)
    return any(name in (None, cls.__name__) for cls in own)


def is_table(obj: Any) -> bool:
    """Return whether an object is a table with named columns: a data frame or an Arrow table."""
    return hasattr(obj, "__arrow_c_stream__") and (hasattr(obj, "schema") or hasattr(obj, "columns"))


def list_column(name: str, given: Any) -> list[Any] | np.ndarray | None:
    """List the ids of a column without an index: a pandas Index, a polars Series, an Arrow array; None for others.

    Raises
    ------
    OptionError : a column of values that are not ids
    """
    if is_class(given, "pandas", "Index"):
        return _take_ids(name, given)
    if is_table(given) or _has_index(given):
        return None
    if hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__"):
        import pyarrow as pa

        return _list_labels(
            name, pa.chunked_array(given) if hasattr(given, "__arrow_c_stream__") else pa.array(given), ""
        )
    return None


def _choose_columns(name: str, columns: Sequence[str]) -> tuple[int, int | None]:
    """Return the places of ids and of numbers, None for a table of ids alone; raise OptionError if ambiguous."""
    try:
        return choose_list_columns(columns, has_numbers=len(columns) > 1 or names_numbers(columns[0]))
    except Undecided as error:
        raise OptionError(f"{name}: {error}") from error


def _check_readable(name: str, given: Any) -> None:
    """Raise OptionError for objects whose labels would be lost, or that are not computed yet."""
    is_lazy = {"compute": _has_property(given, "index"), "collect": hasattr(given, "lazy")}
    for method in is_lazy:
        if is_lazy[method] and hasattr(given, method):
            raise OptionError(
                f"{name} is a {_name_type(given)}, which is not computed yet; pass the result of .{method}()"
            )
    if hasattr(given, "coords") and hasattr(given, "dims"):
        raise OptionError(
            f"{name} is a {_name_type(given)}; pass its .to_series() for numbers by id, or its .to_numpy() for "
            "numbers by place"
        )
    if isinstance(given, Iterator):
        raise OptionError(f"{name} is a {_name_type(given)}, which can be read once only; pass a list of ids")


def _has_index(given: Any) -> bool:
    return _has_property(given, "index") and hasattr(given, "to_numpy")


def _has_property(given: Any, name: str) -> bool:
    return hasattr(given, name) and not callable(getattr(given, name))


def _name_type(given: Any) -> str:
    return f"{type(given).__module__.partition('.')[0]} {type(given).__name__}"


# --- lists -----------------------------------------------------------------------------------------------------------


def _list_ids(name: str, labels: list[Any]) -> ById:
    """Return ids with the number 1 each."""
    advice = "pass np.asarray(...) for numbers by place, or a mapping of ids to numbers"
    ids = _check_ids(name, labels, " in its list of ids", advice)
    return ById(ids, None, _advise_list(ids))


def _check_ids(name: str, labels: list[Any], where: str, advice: str = "pass ids as integers or strings") -> list[Any]:
    """Convert labels to ids of stores; raise OptionError if one cannot be an id."""
    ids = _write_ids(labels)
    for label in ids:
        if not is_id(label):
            is_missing = repr(label) in ("None", "nan", "<NA>", "NaT")
            what = f"a missing value{where}" if is_missing else f"{shorten(repr(label), 40)}{where}, which is not an id"
            raise OptionError(f"{name} has {what}; {advice}")
    return ids


def _advise_list(ids: list[Any] | np.ndarray) -> str:
    """Return advice for a list that may be meant by place, which a list of strings cannot be."""
    return "" if len(ids) and isinstance(ids[0], str) else "a list holds ids: pass np.asarray(...) for numbers by place"


def is_id(label: Any) -> bool:
    """Return whether an object can be the id of a vertex."""
    return isinstance(label, str | Integral) and not isinstance(label, bool | np.bool_)


def _write_ids(ids: list[Any]) -> list[Any]:
    """Convert ids to those of stores: UUIDs to their text, decimals without places to integers."""
    return [str(label) if isinstance(label, UUID) else _to_integer(label) for label in ids]


def _to_integer(label: Any) -> Any:
    return int(label) if isinstance(label, Decimal) and label == label.to_integral_value() else label


# --- pandas ----------------------------------------------------------------------------------------------------------


def _classify_series(name: str, series: Any) -> ById:
    advice = (
        "a Series is matched by its index: set the index to ids of vertices, or pass its .to_numpy() for numbers by "
        "place"
    )
    if getattr(series.index, "nlevels", 1) != 1:
        raise OptionError(f"{name} has an index of {series.index.nlevels} levels, expected one level of ids; {advice}")
    numbers = series.to_numpy()
    if numbers.dtype.kind in "OUS" and len(numbers) and isinstance(numbers[0], str):
        raise OptionError(f"{name} is a Series of strings; pass its .tolist() for a list of ids")
    index = series.index
    is_integer = index.dtype.kind in "iu"
    ids = index.to_numpy() if is_integer else _check_ids(name, index.tolist(), " in its index", advice)
    return ById(ids, numbers, advice, _is_default(index))


def _is_default(index: Any) -> bool:
    """Return whether an index is the default index of pandas."""
    bounds = tuple(getattr(index, bound, None) for bound in ("start", "step"))
    return bounds == (0, 1) and index.name is None


def _classify_frame(name: str, frame: Any) -> ById:
    columns, is_default = [str(label) for label in frame.columns], _is_default(frame.index)
    if len(columns) == 1:
        if not names_vertices(columns[0]):
            return _classify_series(name, frame.iloc[:, 0])
        if is_default:
            return _list_ids(name, frame.iloc[:, 0].tolist())
        raise OptionError(
            f"{name} is a frame, and either its index or its column {columns[0]!r} may be the ids; "
            "pass the column's .tolist() for a list of ids, or a Series with ids as index"
        )
    own, other = _choose_columns(name, columns)
    if not is_default and not names_vertices(columns[own]):
        raise OptionError(
            f"{name} is a frame, and either its index or one of its columns {', '.join(map(repr, columns))} may be the "
            "ids; pass a Series with ids as index, or two columns, named id and weight"
        )
    assert other is not None
    return ById(
        _take_ids(name, frame.iloc[:, own]), frame.iloc[:, other].to_numpy(), _advise_columns(columns, own, other)
    )


def _take_ids(name: str, column: Any) -> list[Any] | np.ndarray:
    if column.dtype.kind in "iu" and isinstance(column.dtype, np.dtype):
        ids: np.ndarray = column.to_numpy()
        return ids
    return _check_ids(name, column.tolist(), f" in its column of ids {column.name!r}")


def _advise_columns(columns: Sequence[str], own: int, other: int) -> str:
    return f"column {columns[own]!r} was taken as ids and {columns[other]!r} as numbers: name them id and weight"


# --- Arrow -----------------------------------------------------------------------------------------------------------


def _classify_table(name: str, given: Any) -> ById:
    """Classify an Arrow table, or an object that converts to one, such as a polars frame."""
    import pyarrow as pa

    table = pa.table(given)
    columns = list(table.column_names)
    index = [k for k, column in enumerate(columns) if is_saved_index(column)]
    others = [k for k in range(len(columns)) if k not in index]
    if len(others) == 1 and len(index) == 1 and not names_vertices(columns[others[0]]):
        own, other = index[0], others[0]
    else:
        chosen = _choose_columns(name, [columns[k] for k in others])
        if chosen[1] is None:
            ids = _list_labels(name, table.column(others[0]), columns[others[0]])
            return ById(ids, None, _advise_list(ids))
        own, other = (others[place] for place in chosen)  # type: ignore[index]  # none is None
    numbers = table.column(other)
    if numbers.null_count:
        raise OptionError(
            f"{name} has {numbers.null_count} missing values in column {columns[other]!r}; fill them, or drop the rows"
        )
    ids = _list_labels(name, table.column(own), columns[own])
    return ById(ids, numbers.to_numpy(), _advise_columns(columns, own, other))


def _list_labels(name: str, column: Any, title: str) -> list[Any] | np.ndarray:
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    where = f" in its column of ids {title!r}" if title else ""
    if pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        raise OptionError(
            f"{name} has values of type {column.type}{where}, which are not ids; pass np.asarray(...) for numbers by "
            "place, or a frame with a column of ids and one of numbers"
        )
    if pa.types.is_integer(column.type) and not column.null_count:
        ids: np.ndarray = column.to_numpy()
        return ids
    return _check_ids(name, (column.cast(pa.uuid()) if column.type == pa.binary(16) else column).to_pylist(), where)
