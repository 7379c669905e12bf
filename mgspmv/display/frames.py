"""Objects as tables: results of pandas, polars and Arrow, the highest ranks, and the fields that notebooks show."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from html import escape
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from mgspmv.display import shorten
from mgspmv.errors import MissingDependencyError, hide_secrets

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]
    import polars
    import pyarrow

LONGEST = 90
"""Most characters of a text in a table; longer ones are shortened in the middle."""
LONGEST_ID = 40
"""Most characters of an id or a label."""
MOST_ROWS = 20
"""Most rows of a table."""
FOLDED = ("events",)
"""Fields whose tables are folded in a card."""
_TABLE = "margin: 0 0 0.5em; border-collapse: collapse; table-layout: auto"
_CAPTION = "caption-side: top; text-align: left; padding: 0 0 0.3em"
_CELL = "text-align: left; vertical-align: top; padding: 0.15em 1.2em 0.15em 0"
"""Styles of elements in notebooks."""
SHOWN_ROWS = 60
"""Most rows in the text and the HTML of a table."""

Columns = dict[str, np.ndarray]


class Tabular(ABC):
    """Base class of results that convert to tables, whose last column is sorted by if asked for."""

    @abstractmethod
    def generate_columns(self) -> Iterator[Columns]:
        """Yield the rows of the table in batches, at least one: columns of equal length by name; strings are object."""

    def to_pandas(self, sort: bool = False) -> pandas.DataFrame:
        """Return a `pandas.DataFrame`, with its default index; string ids are a column of Python strings.

        Parameters
        ----------
        sort : bool, default False
            Highest values of the last column first, equal ones in the given order, NaN last.

        Raises
        ------
        MissingDependencyError : pandas is not installed

        Examples
        --------
        >>> import mgspmv as mg
        >>> ranks = mg.pagerank([("alice", "bob"), ("carol", "bob"), ("bob", "alice")])
        >>> ranks.to_pandas(sort=True)
              id      rank
        0    bob  0.486487
        1  alice  0.463513
        2  carol  0.050000
        >>> ranks.to_pandas().set_index("id")["rank"].round(4)["alice"].item()
        0.4635
        """
        _import("pandas")
        frame: Any = self.to_arrow(sort).to_pandas()
        return frame

    def to_polars(self, sort: bool = False) -> polars.DataFrame:
        """Return a `polars.DataFrame`, of the memory of `to_arrow`.

        Parameters
        ----------
        sort : bool, default False
            As for `to_pandas`.

        Raises
        ------
        MissingDependencyError : polars is not installed

        Examples
        --------
        >>> import mgspmv as mg
        >>> import polars
        >>> ranks = mg.pagerank([("alice", "bob"), ("carol", "bob"), ("bob", "alice")])
        >>> ranks.to_polars().filter(polars.col("rank") < 0.1)["id"].to_list()
        ['carol']
        """
        frame: polars.DataFrame = _import("polars").from_arrow(self.to_arrow(sort), rechunk=False)
        return frame

    def to_arrow(self, sort: bool = False) -> pyarrow.Table:
        """Return a `pyarrow.Table`; string ids are of type large_string.

        Integer ids and unsorted ranks are not copied.

        Parameters
        ----------
        sort : bool, default False
            As for `to_pandas`.

        Examples
        --------
        >>> import mgspmv as mg
        >>> mg.pagerank([("alice", "bob"), ("carol", "bob"), ("bob", "alice")]).to_arrow(sort=True)["id"].to_pylist()
        ['bob', 'alice', 'carol']
        """
        import pyarrow as pa

        table = pa.concat_tables(map(make_arrow_table, self.generate_columns()))
        if not sort:
            return table
        values = unwrap_numbers(table.column(table.num_columns - 1).combine_chunks())
        return table.take(np.argsort(-np.where(np.isnan(values), -np.inf, values), kind="stable"))


def make_arrow_table(columns: Columns) -> pyarrow.Table:
    """Return an Arrow table of columns, without a copy of numbers."""
    import pyarrow as pa

    arrays = [
        pa.array(own, pa.large_string()) if own.dtype == object else wrap_numbers(own) for own in columns.values()
    ]
    return pa.Table.from_arrays(arrays, list(columns))


_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}
"""NumPy's names of types of Arrow that has others; `to_pandas_dtype` may import pandas."""


def wrap_numbers(vector: np.ndarray) -> Any:
    """Return numbers as an array of Arrow of the same memory, without pandas, which `pyarrow.array` imports."""
    import pyarrow as pa

    buffer = pa.py_buffer(np.ascontiguousarray(vector))
    return pa.Array.from_buffers(pa.from_numpy_dtype(vector.dtype), len(vector), [None, buffer])


def unwrap_numbers(array: Any) -> np.ndarray:
    """Return an array of numbers of Arrow, none of which is missing, as one of NumPy, without pandas if possible."""
    import pyarrow as pa

    is_plain = pa.types.is_integer(array.type) or pa.types.is_floating(array.type)
    if not is_plain or array.null_count or not isinstance(array, pa.Array) or array.buffers()[1] is None:
        found: np.ndarray = array.to_numpy(zero_copy_only=False)
        return found
    dtype = np.dtype(_FLOATS.get(str(array.type), str(array.type)))
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)


def _import(library: str) -> Any:
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise MissingDependencyError(
            f"to_{library}() needs {library}, which is not installed; pip install {library}"
        ) from error


class TopRanks(Tabular, Sequence[tuple[Any, float]]):
    """The highest ranks, highest first: a sequence of pairs (id, rank), equal to a list of these pairs.

    `print` and notebooks show it as a table with places.

    Parameters
    ----------
    ids : array
        (k,) int64 or strings (object).
    ranks : array
        (k,) float64 or float32.

    Examples
    --------
    >>> import mgspmv as mg
    >>> (first, rank), *others = mg.pagerank([("alice", "bob"), ("carol", "bob"), ("bob", "alice")]).top(10)
    >>> first, round(rank, 4), len(others)
    ('bob', 0.4865, 2)
    """

    def __init__(self, ids: np.ndarray, ranks: np.ndarray) -> None:
        self._ids, self._ranks = ids, ranks

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[tuple[Any, float]]:
        return zip(self._ids.tolist(), self._ranks.tolist(), strict=True)

    @overload
    def __getitem__(self, place: int) -> tuple[Any, float]: ...
    @overload
    def __getitem__(self, place: slice) -> TopRanks: ...
    def __getitem__(self, place: int | slice) -> tuple[Any, float] | TopRanks:
        if isinstance(place, slice):
            return TopRanks(self._ids[place], self._ranks[place])
        return self._ids[[place]].tolist()[0], self._ranks[place].item()

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, list | tuple | TopRanks) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # like a list, which it equals

    def __repr__(self) -> str:
        from rich.cells import cell_len

        rows, left = self._list_rows(), self._ids.dtype == object
        widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for place, name, rank in rows:
            blanks = " " * (widths[1] - cell_len(name))
            named = name + blanks if left else blanks + name
            lines.append(f"{place:>{widths[0]}}  {named}  {rank:>{widths[2]}}")
        return "\n".join(lines + self._list_notes())

    def _repr_html_(self) -> str:
        return make_table("; ".join(self._list_notes()), self._list_rows())

    def generate_columns(self) -> Iterator[Columns]:
        """Yield the columns `id` and `rank`."""
        return iter([{"id": self._ids, "rank": self._ranks}])

    def _list_rows(self) -> list[tuple[str, str, str]]:
        pairs = zip(self[:SHOWN_ROWS], range(1, SHOWN_ROWS + 1), strict=False)
        return [("place", "id", "rank"), *((str(k), _write_id(name), f"{rank:.8g}") for (name, rank), k in pairs)]

    def _list_notes(self) -> list[str]:
        n_hidden = len(self) - SHOWN_ROWS
        return [f"{n_hidden:,} more, shown by to_pandas()"] if n_hidden > 0 else []


def _write_id(label: Any) -> str:
    """Format an id in a line; strings that are empty, begin or end in blanks, or cannot be printed are quoted."""
    is_plain = isinstance(label, str) and label and label.isprintable() and label == label.strip()
    return shorten(label, LONGEST_ID) if is_plain else quote(label)


# --- HTML of notebooks ------------------------------------------------------------------------------------------------


def render_card(shown: Any, described: Any = None) -> str:
    """Return the HTML of an object: its `repr` and its fields that can be written in a line; and a table of each field
    that lists data classes.

    Parameters
    ----------
    described : object of a data class whose fields are shown; default `shown` itself
    """
    own = _list_fields(shown if described is None else described)
    facts = [(name, text) for name, value in own.items() if (text := _describe(value))]
    tables = [make_table(repr(shown), facts, has_head=False)]
    for name, value in own.items():
        if isinstance(value, Sequence) and value and is_dataclass(value[0]):
            rows = [_list_fields(each) for each in value[:MOST_ROWS]]
            titles = [title for title in rows[0] if any(_describe(row[title]) for row in rows)]
            caption = name if len(rows) == len(value) else f"{name}, the first {len(rows):,} of {len(value):,}"
            lines = [titles, *([_describe(row[t]) for t in titles] for row in rows)]
            if name in FOLDED:
                tables.append(f"<details><summary>{escape(caption)}</summary>{make_table('', lines)}</details>")
            else:
                tables.append(make_table(caption, lines))
    return f"<div>{''.join(tables)}</div>"


def quote(label: Any) -> str:
    """Format a vertex id or a label: strings in quotes, shortened."""
    return shorten(repr(label) if isinstance(label, str) else str(label), LONGEST_ID)


def _list_fields(shown: Any) -> dict[str, Any]:
    return {each.name: getattr(shown, each.name) for each in fields(shown)}


def _describe(value: Any) -> str:
    """Format a value, a pair, or a dictionary of values in a line; empty for other types."""
    if isinstance(value, Mapping):
        said = {name: _describe(each) for name, each in value.items()}
        return ", ".join(f"{name} {text}" for name, text in said.items() if text)
    if isinstance(value, list | tuple) and len(value) == 2 and all(isinstance(each, int) for each in value):
        return " × ".join(f"{each:,}" for each in value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value) if isinstance(value, bool | str) else ""


def make_table(caption: str, rows: Sequence[Sequence[str]], *, has_head: bool = True) -> str:
    """Return the HTML of a table of texts, which are escaped.

    Its look does not depend on the styles of notebooks, some of which center tables and align text to the right.

    Parameters
    ----------
    has_head : the first row has the titles of columns; else the first column has the names of rows
    """
    lines = [
        "".join(_make_cell(text, is_title=(y == 0) if has_head else (x == 0)) for x, text in enumerate(row))
        for y, row in enumerate(rows)
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    title = f'<caption style="{_CAPTION}">{escape(hide_secrets(caption))}</caption>' if caption else ""
    width = "" if has_head else "; min-width: 26em"  # of the caption, which has several lines otherwise
    return f'<table style="{_TABLE}{width}">{title}{body}</table>'


def _make_cell(text: str, *, is_title: bool) -> str:
    name, weight = ("th", 600) if is_title else ("td", 400)
    shown = escape(shorten(hide_secrets(text), LONGEST))
    return f'<{name} style="{_CELL}; font-weight: {weight}">{shown}</{name}>'
