"""Tables of results in other libraries, and the highest ranks as text and HTML."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from mgspmv.display.frames import SHOWN_ROWS, Columns, Tabular, TopRanks
from mgspmv.errors import MissingDependencyError

ODD = ["a", "", " b", "two\nlines", "<b>&", "中文", "x" * 99]


def make_top(ids=(7, -1), ranks=(0.5, 0.25), dtype=np.float64):
    kind = object if any(isinstance(label, str) for label in ids) else np.int64
    return TopRanks(np.array(ids, kind), np.array(ranks, dtype))


class Batches(Tabular):
    """A table in two batches."""

    def generate_columns(self) -> Iterator[Columns]:
        yield {"id": np.arange(3), "rank": np.array([0.1, np.nan, 0.4])}
        yield {"id": np.arange(3, 5), "rank": np.array([0.4, -np.inf])}


@pytest.mark.parametrize("convert", ["to_pandas", "to_polars", "to_arrow"])
def test_batches_are_one_table_sorted_if_asked_for(convert):
    for sort, ids in ((False, [0, 1, 2, 3, 4]), (True, [2, 3, 0, 1, 4])):
        table = getattr(Batches(), convert)(sort)
        assert [str(name) for name in getattr(table, "columns" if convert != "to_arrow" else "column_names")] == [
            "id",
            "rank",
        ]
        assert np.asarray(table["id"]).tolist() == ids
        np.testing.assert_equal(np.asarray(table["rank"]), np.array([0.1, np.nan, 0.4, 0.4, -np.inf])[ids])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_types_are_those_of_the_library(dtype):
    numbered, named = make_top(dtype=dtype), make_top(ODD, np.ones(len(ODD)))
    assert numbered.to_pandas().dtypes.tolist() == [np.int64, dtype]
    assert numbered.to_polars().dtypes == [pl.Int64, pl.Float64 if dtype == np.float64 else pl.Float32]
    assert numbered.to_arrow().schema.types == [pa.int64(), pa.from_numpy_dtype(dtype)]
    assert named.to_arrow().schema.field("id").type == pa.large_string()
    assert named.to_polars().dtypes[0] == pl.String
    for found in (named.to_pandas()["id"], named.to_polars()["id"], named.to_arrow()["id"]):
        assert list(found.to_pylist() if isinstance(found, pa.ChunkedArray) else found) == ODD
    assert pd.DataFrame(numbered, columns=["id", "rank"]).equals(numbered.to_pandas().astype({"rank": np.float64}))


def test_tables_of_pandas_do_not_share_memory_and_those_of_arrow_do():
    ranks = np.array([0.5, 0.25])
    top = TopRanks(np.array([3, 4]), ranks)
    frame, table = top.to_pandas(), top.to_arrow()
    ranks[0] = 9.0
    assert (frame["rank"][0], table["rank"][0].as_py()) == (0.5, 9.0)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_missing_library_is_named_with_the_command(monkeypatch, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingDependencyError) as caught:
        getattr(make_top(), f"to_{library}")()
    assert str(caught.value) == f"to_{library}() needs {library}, which is not installed; pip install {library}"


def test_the_highest_are_a_sequence_of_pairs():
    top = make_top(("b", "a", "c"), (0.5, 0.25, 0.125))
    pairs = [("b", 0.5), ("a", 0.25), ("c", 0.125)]
    assert top == pairs
    assert top == tuple(pairs)
    assert top == make_top(("b", "a", "c"), (0.5, 0.25, 0.125))
    assert pairs == top
    assert top != pairs[:2]
    assert top != "b"
    assert (len(top), top[0], top[-1], list(top), dict(top)) == (3, pairs[0], pairs[2], pairs, dict(pairs))
    assert isinstance(top[1:], TopRanks)
    assert top[1:] == pairs[1:]
    assert ("a", 0.25) in top
    assert [type(part) for part in top[0]] == [str, float]
    for change in (lambda: top.__setitem__(0, 1), lambda: hash(top)):
        with pytest.raises((AttributeError, TypeError)):
            change()
    with pytest.raises(IndexError):
        top[3]
    assert make_top((), ()) == []
    assert not make_top((), ())


def test_the_text_has_places_and_aligned_columns():
    assert repr(make_top()).splitlines() == [
        "place  id  rank",
        "    1   7   0.5",
        "    2  -1  0.25",
    ]
    assert repr(make_top(ODD, (0.25, *[1e-7] * 6))).splitlines() == [
        "place  id                                         rank",
        f"    1  {'a':40}   0.25",
        f"    2  {''!r:40}  1e-07",
        f"    3  {' b'!r:40}  1e-07",
        rf"    4  {repr('two')[:-1]}\nlines'{'':28}  1e-07",
        f"    5  {'<b>&':40}  1e-07",
        f"    6  中文{'':36}  1e-07",
        f"    7  {'x' * 20}…{'x' * 19}  1e-07",
    ]
    assert repr(make_top((), ())) == "place  id  rank"
    assert repr(make_top(("a",), (np.nan,))).splitlines()[1] == "    1  a    nan"


def test_rows_that_are_not_shown_are_counted():
    lines = repr(make_top(range(1000, 3000), np.ones(2000))).splitlines()
    assert len(lines) == SHOWN_ROWS + 2
    assert lines[-1] == f"{2000 - SHOWN_ROWS:,} more, shown by to_pandas()"
    assert lines[-1] in make_top(range(2000), np.ones(2000))._repr_html_()


def test_the_html_is_escaped():
    rows = [["".join(cell.itertext()) for cell in row] for row in ET.fromstring(make_top(ODD, [0.5] * 7)._repr_html_())]
    assert rows[:2] == [["place", "id", "rank"], ["1", "a", "0.5"]]
    assert ["5", "<b>&", "0.5"] in rows
