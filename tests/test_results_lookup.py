"""Ranks by id, as pairs, as an array, and as tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mgspmv as mg
from mgspmv.errors import OptionError, UnknownIdError
from tests.support.memory import measure_peak
from tests.test_results import INTEGER_IDS, STRING_IDS, make_solution

KINDS = pytest.mark.parametrize("ids", [None, INTEGER_IDS, STRING_IDS], ids=["none", "int64", "string"])
INTEGERS, STRINGS = st.integers(-(2**63), 2**63 - 1), st.text(st.characters(exclude_categories=["Cs"]))


@KINDS
def test_ids_are_always_an_array(ids):
    solution = make_solution(ids=ids)
    wanted = np.arange(4) if ids is None else ids
    assert (solution.ids.dtype, solution.ids.tolist()) == (wanted.dtype, wanted.tolist())
    assert solution.ids is solution.ids
    assert not hasattr(solution, "vertex_ids")


def test_ids_that_nobody_asked_for_take_no_memory():
    solution = make_solution(np.full(1 << 21, 0.5))
    assert measure_peak(lambda: (solution[77], 1 << 21 in solution, next(iter(solution)))) < 8 << 20
    assert "ids" not in vars(solution)
    assert solution.ids.nbytes == 16 << 20


@given(st.lists(INTEGERS, unique=True) | st.lists(STRINGS, unique=True), st.data())
def test_each_id_has_its_rank(ids, data):
    own = np.array(ids, object if ids and isinstance(ids[0], str) else np.int64)
    solution = make_solution(np.arange(len(ids)) / 8, ids=own)
    assert [solution[label] for label in ids] == solution.values.tolist()
    assert solution[own].tolist() == solution[ids].tolist() == solution.values.tolist()
    assert all(label in solution for label in ids)
    assert dict(solution) == dict(zip(ids, solution.values.tolist(), strict=True))
    other = data.draw(STRINGS if own.dtype == object else INTEGERS)
    assert (other in solution) == (other in ids)
    if other not in ids:
        with pytest.raises(KeyError, match=r"^solution\[...\] has the id"):
            solution[other]


@KINDS
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_one_id_gives_a_number_and_several_an_array(ids, dtype):
    solution = make_solution(ids=ids, dtype=dtype)
    some = solution.ids[[2, 0, 2]]
    assert [type(solution[label]) for label in (some[0], some.tolist()[0])] == [float, float]
    for given_ids in (some, some.tolist(), tuple(some.tolist()), pd.Index(some), pd.Series(some, index=[5, 6, 7])):
        assert solution[given_ids].tolist() == solution.values[[2, 0, 2]].tolist(), type(given_ids)
        assert solution[given_ids].dtype == dtype
    assert solution[pa.array(some.tolist())].tolist() == solution.values[[2, 0, 2]].tolist()
    assert solution[[]].tolist() == []


@pytest.mark.parametrize(
    ("ids", "label", "message"),
    [
        (None, 4, "has the id 4, which no vertex has; near: 3"),
        (None, -1, "has the id -1, which no vertex has; near: 0"),
        (None, 2**70, "but the ids of vertices are 64-bit integers; pass 64-bit integers"),
        (INTEGER_IDS, 6, "has the id 6, which no vertex has; near: 5"),
        (STRING_IDS, "anne", "has the id 'anne', which no vertex has; near: 'ann'"),
        *(
            (ids, label, f"has the id {label!r} but the ids of vertices are")
            for ids in (None, INTEGER_IDS)
            for label in ("1", 1.0, True, np.True_.item(), None, b"1", slice(0, 2))
        ),
        (STRING_IDS, 1, "has the id 1 but the ids of vertices are strings; pass strings"),
    ],
)
def test_other_ids_are_key_errors_in_one_line(ids, label, message):
    solution = make_solution(ids=ids)
    for wrong in (label, [label]):
        with pytest.raises(KeyError) as caught:
            solution[wrong]
        assert isinstance(caught.value, UnknownIdError | OptionError)
        assert str(caught.value).startswith("solution[...] has the id ")
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
    assert label not in solution


def test_a_mask_and_a_table_are_no_ids():
    solution = make_solution()
    with pytest.raises(KeyError, match="has the id True but the ids of vertices are 64-bit integers"):
        solution[np.array([True, False, True, False])]
    with pytest.raises(OptionError, match="must be a list of ids, not array"):
        solution[np.array([[0, 1]])]


@KINDS
def test_iteration_gives_pairs_in_the_order_of_the_vertices(ids):
    solution = make_solution((0.5, np.nan, 0.0, 0.25), ids=ids)
    pairs = list(solution)
    assert [label for label, _ in pairs] == solution.ids.tolist()
    np.testing.assert_equal([rank for _, rank in pairs], solution.values)
    assert len(solution) == len(pairs) == 4
    assert list(make_solution(())) == []


def test_numpy_takes_the_values():
    solution = make_solution()
    assert np.shares_memory(np.asarray(solution), solution.values)
    assert np.asarray(solution, np.float32).dtype == np.float32
    assert not np.shares_memory(np.array(solution), solution.values)
    with pytest.raises(ValueError, match="copy"):
        np.asarray(solution, np.float32, copy=False)
    assert np.max(solution) == 0.4


@KINDS
@pytest.mark.parametrize("values", [(0.1, 0.4, np.nan, 0.4), (0.5,), ()], ids=["four", "one", "none"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_tables_hold_all_ids_and_ranks(ids, values, dtype):
    solution = make_solution(values, dtype, ids=None if ids is None else ids[: len(values)])
    frames = (solution.to_pandas(), solution.to_polars(), solution.to_arrow())
    for table in frames:
        assert np.asarray(table["id"]).tolist() == solution.ids.tolist()
        assert np.asarray(table["rank"]).dtype == dtype
        np.testing.assert_equal(np.asarray(table["rank"]), solution.values)
    assert isinstance(frames[0].index, pd.RangeIndex)
    order = [1, 3, 0, 2] if len(values) == 4 else range(len(values))
    assert solution.to_pandas(sort=True)["id"].tolist() == [solution.ids.tolist()[k] for k in order]


def test_numbers_are_not_copied_to_arrow():
    solution = make_solution(ids=INTEGER_IDS)
    table = solution.to_arrow()
    addresses = [table[name].chunk(0).buffers()[1].address for name in ("id", "rank")]
    assert addresses == [own.ctypes.data for own in (solution.ids, solution.values)]


def test_ranks_of_0_are_in_tables_and_not_among_the_highest():
    solution = make_solution((0.0, 0.7, 0.0, 0.3))
    assert solution.top(4) == [(1, 0.7), (3, 0.3)]
    assert solution.top(4).to_pandas()["id"].tolist() == [1, 3]
    scaled = solution.scale("minmax")
    assert scaled.top(4).to_polars().rows() == [(1, 1.0), (3, 0.3 / 0.7)]
    assert scaled.to_pandas(sort=True)["id"].tolist() == [1, 3, 0, 2]
    assert scaled[3] == 0.3 / 0.7


def test_plots_take_axes():
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    solution = make_solution()
    axes = solution.plot()
    assert len(axes.lines[0].get_xdata()) == 4
    assert solution.plot("convergence", ax=plt.subplots()[1]).lines[0].get_ydata().tolist() == list(solution.changes)
    with pytest.raises(OptionError, match="kind"):
        solution.plot("rank")
    plt.close("all")


def test_five_lines_end_in_a_table(tmp_path):
    edges = pd.DataFrame({"source": ["a", "b", "c"], "target": ["b", "c", "b"]})
    with mg.ingest(edges, tmp_path / "e.zarr", kind="graph") as A:
        table = mg.pagerank(A).to_pandas(sort=True)
    assert table["id"].tolist() == ["b", "c", "a"]
    assert table["rank"].sum() == pytest.approx(1)
