"""Build CSR matrices from batches of entries, compared with SciPy, and reject unsuitable ones."""

from __future__ import annotations

import sys
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp

from mgspmv.errors import SourceError
from mgspmv.ingest.source import Layout, Source
from mgspmv.model import CooBatch, IngestOptions
from tests.support.arrays import build_matrix
from tests.support.matrices import GRAPHS, HARD

VALUES = {"values": np.float64, "pattern": None}
SIZES = {"batches of 1": 1, "batches of 2": 2, "one batch": 1000}


class ListSource(Source):
    """Entries (i, j, value) as a source, in batches of a size."""

    name = "the list"

    def __init__(self, entries, shape, *, size=1000, values=np.float64, codes=np.int64, kind="matrix", **layout):
        self.default_kind = kind
        self._entries, self._size, self._values, self._codes = list(entries), size, values, codes
        self._layout = Layout(shape, **layout)

    def batches(self):
        for k in range(0, max(1, len(self._entries)), self._size):
            part = self._entries[k : k + self._size]
            ends = (np.array([e[side] for e in part], self._codes) for side in (0, 1))
            yield CooBatch(*ends, None if self._values is None else np.array([e[2] for e in part], self._values))

    def layout(self):
        return self._layout


def build(source, **options):
    return build_matrix(source, IngestOptions(**options), lambda *progress: None)[0]


def build_hard(hard, *, size=1000, values=np.float64, codes=np.int64, **options):
    return build(ListSource(hard.entries, hard.shape, size=size, values=values, codes=codes), **options)


def to_scipy(matrix):
    data = np.ones(len(matrix.indices)) if matrix.data is None else matrix.data
    return sp.csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)


def check_csr(matrix):
    """What every store holds true: pointers ascend to the end, and each row is sorted."""
    n_rows, n_cols = matrix.shape
    assert (matrix.indptr.dtype, matrix.indptr.shape, matrix.indptr[0]) == (np.int64, (n_rows + 1,), 0)
    assert matrix.indptr[-1] == len(matrix.indices)
    assert (np.diff(matrix.indptr) >= 0).all()
    rows = np.repeat(np.arange(n_rows), np.diff(matrix.indptr))
    is_sorted = (np.diff(rows) > 0) | (np.diff(matrix.indices) >= 0)
    assert is_sorted.all()
    assert ((matrix.indices >= 0) & (matrix.indices < n_cols)).all()
    assert matrix.data is None or len(matrix.data) == len(matrix.indices)


def sum_dense(hard, values=True):
    dense = np.zeros(hard.shape)
    for row, col, value in hard.entries:
        dense[row, col] += value if values else 1
    return dense


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_entries_at_the_same_place_keep_the_order_of_the_source(size):
    for name, hard in HARD.items():
        matrix = build_hard(hard, size=size, duplicates="keep")
        wanted = [value for *_, value in sorted(hard.entries, key=lambda entry: entry[:2])]
        assert matrix.data.tolist() == wanted, name


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_graph_is_the_transpose_with_column_sums(values):
    for name, hard in GRAPHS.items():
        matrix = build_hard(hard, values=values, kind="graph", duplicates="keep")
        check_csr(matrix)
        np.testing.assert_array_equal(to_scipy(matrix).toarray(), sum_dense(hard, values is not None).T, name)
        assert matrix.out_degree.dtype == np.int64, name
        assert matrix.out_degree.tolist() == np.bincount(hard.rows, minlength=hard.shape[0]).tolist(), name
        if values is None:
            assert matrix.out_weight is None, name
        else:
            np.testing.assert_allclose(matrix.out_weight, sum_dense(hard).sum(axis=1), rtol=1e-15, err_msg=name)


def test_codes_are_numbered_by_positions():
    ids = np.array(["a", "b", "c"], object)
    source = ListSource(
        [(0, 1, 1.0), (1, 2, 2.0), (4, 0, 3.0)], (3, 3), positions=np.array([2, 0, 1, 9, 0]), vertex_ids=ids
    )
    matrix = build(source)
    assert to_scipy(matrix).toarray().tolist() == [[0, 2, 3], [0, 0, 0], [1, 0, 0]]
    assert matrix.vertex_ids.tolist() == ids.tolist()


@pytest.mark.parametrize("positions", [[0, -1, -1, 1], [1, -1, -1, 0]], ids=["ascending", "not ascending"])
def test_codes_may_be_beyond_int32_before_they_are_numbered(monkeypatch, positions):
    monkeypatch.setattr(sys.modules["mgspmv.ingest.entries"], "INT32_LIMIT", 2)
    matrix = build(ListSource([(0, 3, 5.0), (0, 0, 1.0)], (2, 2), size=1, positions=np.array(positions)))
    wanted = [[1, 5], [0, 0]] if positions[0] == 0 else [[0, 0], [5, 1]]
    assert to_scipy(matrix).toarray().tolist() == wanted
    assert matrix.indices.dtype == np.int32


@pytest.mark.parametrize("entry", [(-1, 0, 1.0), (2, 0, 1.0), (0, 3, 1.0), (0, -2, 1.0), (2**31, 0, 1.0)])
def test_numbers_outside_the_shape(entry):
    what, number, size = ("row", entry[0], 2) if not 0 <= entry[0] < 2 else ("column", entry[1], 3)
    with pytest.raises(SourceError) as caught:
        build(ListSource([(0, 0, 1.0), entry], (2, 3)))
    assert str(caught.value) == f"the list: {what} {number} is outside 0..{size - 1}"


# --- duplicates ------------------------------------------------------------------------------------------------------

TWICE = [(1, 1, 8.0), (0, 2, 3.0), (0, 1, 1.0), (0, 2, 4.0), (1, 0, 0.5), (0, 2, 5.0)]


@pytest.mark.parametrize(("one", "other"), [(2**62, 2**62), (-(2**63), -1), (2**63 - 1, 1), (-(2**62), -(2**62) - 1)])
def test_sums_beyond_int64(one, other):
    with pytest.raises(SourceError) as caught:
        build(ListSource([(0, 0, one), (0, 0, other)], (1, 1), values=np.int64))
    assert str(caught.value) == (
        "the list: the sum of duplicate entries does not fit into int64; ingest with dtype='float64'"
    )
    source = ListSource([(0, 0, one), (0, 0, other)], (1, 1), values=np.int64)
    assert build(source, dtype="float64").data[0] == float(one) + float(other)


@pytest.mark.parametrize(("one", "other"), [(2**62, 2**62 - 1), (-(2**62), -(2**62)), (5, -9), (0, 0)])
def test_sums_within_int64(one, other):
    matrix = build(ListSource([(0, 0, one), (0, 0, other)], (1, 1), values=np.int64))
    assert matrix.data.tolist() == [one + other]


@pytest.mark.parametrize(
    ("one", "other"), [(1e16, -0.1), (-1e16, 0.1), (np.inf, -np.inf), (np.nan, -1.0), (1e308, 1e308)]
)
def test_sums_of_floats_are_those_of_floats(one, other):
    matrix = build(ListSource([(0, 0, one), (0, 0, other)], (1, 1)))
    np.testing.assert_array_equal(matrix.data, [one + other])


@pytest.mark.parametrize(
    ("kind", "ids", "wanted"),
    [
        ("matrix", None, "(0, 2)"),
        ("graph", None, "(0, 2)"),
        ("graph", np.array(["x", "y", "z"], object), "(x, z)"),
    ],
)
def test_duplicates_are_an_error(kind, ids, wanted):
    with pytest.raises(SourceError) as caught:
        build(ListSource(TWICE, (3, 3), vertex_ids=ids), kind=kind, duplicates="error")
    assert str(caught.value) == (
        f"the list: the entry {wanted} occurs more than once and duplicates='error'; "
        "pass duplicates='sum', 'first' or 'keep', or clean the source"
    )


def test_entries_at_the_ends_of_neighboring_rows_are_no_duplicates():
    for rule in ("sum", "first", "keep", "error"):
        matrix = build(ListSource([(0, 2, 1.0), (1, 2, 2.0), (2, 2, 3.0)], (3, 3)), duplicates=rule)
        assert matrix.data.tolist() == [1.0, 2.0, 3.0], rule


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_self_loops(values):
    for name, hard in HARD.items():
        kept, dropped = (
            build_hard(hard, values=values, self_loops=rule, duplicates="keep") for rule in ("keep", "drop")
        )
        dense = sum_dense(hard, values is not None)
        np.testing.assert_array_equal(to_scipy(kept).toarray(), dense, name)
        if dense.size:
            np.fill_diagonal(dense, 0)
        np.testing.assert_array_equal(to_scipy(dropped).toarray(), dense, name)


def test_self_loops_are_an_error():
    source = ListSource(HARD["self loops"].entries, (5, 5))
    wanted = " has a self loop and self_loops='error'; pass self_loops='keep' or 'drop', or clean the source"
    with pytest.raises(SourceError) as caught:
        build(source, self_loops="error")
    assert str(caught.value) == "the list: vertex 0" + wanted
    named = ListSource([(0, 1, 1.0), (1, 1, 1.0)], (2, 2), positions=np.array([1, 0]), vertex_ids=np.array([70, 80]))
    with pytest.raises(SourceError) as caught:
        build(named, self_loops="error")
    assert str(caught.value) == "the list: vertex 70" + wanted
    assert len(build_hard(HARD["ring"], self_loops="error").indices) == 7


def test_symmetrize_comes_before_duplicates():
    both = [(0, 1, 2.0), (1, 0, 3.0), (1, 1, 7.0)]
    for size in SIZES.values():
        summed = build(ListSource(both, (2, 2), size=size), symmetrize=True)
        assert to_scipy(summed).toarray().tolist() == [[0, 5], [5, 7]]
        first = build(ListSource(both, (2, 2), size=size), symmetrize=True, duplicates="first")
        assert to_scipy(first).toarray().tolist() == [[0, 2], [2, 7]]
    with pytest.raises(SourceError, match=r"\(0, 1\) occurs more than once"):
        build(ListSource(both, (2, 2)), symmetrize=True, duplicates="error")


@pytest.mark.parametrize(
    ("options", "needs"),
    [
        ({"kind": "graph"}, "kind='graph'"),
        ({"kind": "stochastic"}, "kind='stochastic'"),
        ({"symmetrize": True}, "symmetrize"),
    ],
)
def test_what_needs_a_square_matrix(options, needs):
    with pytest.raises(SourceError) as caught:
        build(ListSource([(0, 2, 1.0)], (2, 3)), **options)
    assert str(caught.value) == (
        f"the list: {needs} needs a square matrix, but this one has 2 rows and 3 columns; ingest it with kind='matrix'"
    )


def test_large_integers_are_kept():
    matrix = build(ListSource([(0, 0, 2**53 + 1), (0, 1, -(2**62) - 1)], (1, 2), values=np.int64))
    assert matrix.data.tolist() == [2**53 + 1, -(2**62) - 1]


def test_values_beyond_float32():
    with pytest.raises(SourceError) as caught:
        build(ListSource([(0, 0, 1.0), (0, 1, -1e39)], (1, 2)), dtype="float32")
    assert str(caught.value) == "the list: the value 1e+39 does not fit into float32; ingest with dtype='float64'"
    infinite = build(ListSource([(0, 0, np.inf), (0, 1, 1e38)], (1, 2)), dtype="float32")
    assert infinite.data.tolist() == [np.inf, np.float32(1e38)]


@pytest.mark.parametrize("kind", ["graph", "stochastic"])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite(wrong, kind):
    source = ListSource([(0, 1, wrong), (1, 0, 1.0), (1, 1, wrong)], (2, 2))
    with pytest.raises(SourceError) as caught:
        build(source, kind=kind)
    assert str(caught.value) == (
        f"the list: a {kind} needs finite weights, 2 are NaN or infinite; clean the source, or pass weights=False"
    )
    assert build(source, kind="graph", weights=False).data is None
    assert len(build(source, kind="matrix").data) == 3


def test_stochastic_pattern_has_one_entry_in_a_column():
    assert build(ListSource([(1, 0, 1), (0, 1, 1)], (2, 2), values=None), kind="stochastic").data is None
    with pytest.raises(SourceError, match="column 0 sums to 2"):
        build(ListSource([(1, 0, 1), (0, 0, 1)], (2, 2), values=None), kind="stochastic")


def test_sum_of_weights_is_the_nearest_double_in_any_order():
    rng = np.random.default_rng(0)
    values = rng.random(5000) * 10.0 ** rng.integers(-8, 8, 5000)
    wanted = float(sum(map(Fraction, values)))
    plain = set()
    for seed in range(10):
        targets = np.random.default_rng(seed).permutation(5000) + 1
        entries = [(0, int(t), v) for t, v in zip(targets, values, strict=True)]
        matrix = build(ListSource(entries, (5001, 5001), size=10**6), kind="graph")
        assert matrix.out_weight[0] == wanted
        plain.add(sum(values[np.argsort(targets)].tolist()))
    assert len(plain) > 1


@pytest.mark.parametrize("left_out", ["batches", "layout"])
def test_a_source_has_every_method(left_out):
    kept = {name: vars(ListSource)[name] for name in {"batches", "layout"} - {left_out}}
    with pytest.raises(TypeError, match=f"abstract.*{left_out}"):
        type("Part", (Source,), kept)()
