"""Products of integers: exact, or refused; Python's own integers say what is exact."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import mgspmv as mg
from mgspmv.errors import OptionError
from mgspmv.solvers.options import Reads

REFUSED = r"float64, which is exact below 2\^53.* pass x.astype\(\"float64\"\) or precision=\"float64\""
BIG = 2**53


def store(dense, place=None, **options):
    dense = np.asarray(dense)
    return mg.ingest(sp.coo_array(dense), place, kind="matrix", **options)


def multiply_exactly(dense, x):
    return [sum(int(a) * int(b) for a, b in zip(row, x, strict=True)) for row in np.asarray(dense).tolist()]


EXACT = {
    "small": ([[1, 2], [3, 4]], [5, 6]),
    "just below": ([[BIG - 2, 1]], [1, 1]),
    "a large value that meets 0": ([[BIG + 1, 1]], [0, 7]),
    "mixed signs": ([[1, -2], [3, -4]], [-5, 6]),
    "negative x": ([[BIG // 4, 1]], [-1, 1]),
    "unsigned": ([[3]], np.array([7], np.uint64)),
    "truth": ([[3, 4]], np.array([True, False])),
    "no rows": (np.zeros((0, 2), int), [1, 2]),
}
INEXACT = {
    "a value": ([[BIG + 1]], [1]),
    "a sum": ([[BIG - 1, 2]], [1, 1]),
    "a product": ([[3]], [BIG // 3 + 1]),
    "x": ([[1]], [BIG + 1]),
    "unsigned": ([[1]], np.array([2**64 - 1], np.uint64)),
    "terms that cancel": ([[BIG + 1, -BIG]], [1, 1]),
    "x that cancels": ([[BIG, BIG]], [1, -1]),
    "negative": ([[-BIG - 1]], [1]),
    "the least int64": ([[1]], [-(2**63)]),
}


@pytest.mark.parametrize("name", EXACT)
def test_exact_products(name):
    dense, x = EXACT[name]
    found = store(dense) @ np.asarray(x)
    assert found.dtype == np.float64
    assert found.tolist() == multiply_exactly(dense, x)


@pytest.mark.parametrize("name", INEXACT)
def test_products_that_float64_does_not_hold(name):
    dense, x = INEXACT[name]
    matrix, x = store(dense), np.asarray(x)
    with pytest.raises(OptionError, match=REFUSED):
        _ = matrix @ x
    for given_x, options in ((x.astype(float), {}), (x, {"precision": "float64"})):
        rounded = mg.spmv(matrix, given_x, **options)
        np.testing.assert_allclose(rounded, np.asarray(dense, float) @ x.astype(float))


def test_factors():
    matrix, x, y = store([[BIG // 4, 0], [0, 1]]), np.array([1, 5]), np.array([7, -8])
    assert mg.spmv(matrix, x, alpha=-2, beta=3, y=y).tolist() == [-BIG // 2 + 21, -34]
    for options in ({"alpha": 4}, {"beta": 1, "y": np.array([BIG, 0])}, {"beta": BIG, "y": y}):
        with pytest.raises(OptionError, match=REFUSED):
            mg.spmv(matrix, x, **options)
    for options in ({"alpha": 4.5}, {"beta": 1, "y": np.array([2.0**60, 0])}):  # of floating-point numbers
        assert mg.spmv(matrix, x, **options)[0] > BIG


def test_the_transpose_and_the_operator():
    matrix = store([[BIG + 1, 0], [1, 1]], transpose=True)
    for multiply in (matrix.T.__matmul__, matrix.matvec, matrix.rmatvec, matrix.as_linear_operator().matvec):
        with pytest.raises(OptionError, match=REFUSED):
            multiply(np.array([1, 1]))
        assert multiply(np.array([0, 1])).tolist() == [multiply(np.array([0.0, 1.0])).tolist()[0], 1]


@given(st.data())
def test_products_are_exact_or_refused(data):
    number = st.one_of(st.integers(-(2**62), 2**62), st.integers(-9, 9), st.integers(0, 2**27), st.integers(0, BIG))
    numbers = st.lists(number, min_size=3, max_size=3)
    dense, x = data.draw(st.lists(numbers, min_size=2, max_size=2)), data.draw(numbers)
    totals = multiply_exactly(np.abs(dense), np.abs(x))
    if max(totals) < 2**70:
        try:
            found = store(np.array(dense, np.int64)) @ np.array(x, np.int64)
        except OptionError:
            assert max(totals) >= BIG or min(map(min, dense)) < 0
        else:
            assert found.tolist() == multiply_exactly(dense, x)
            assert max(totals) < BIG


def test_on_a_cluster(tmp_path, in_process):
    client = in_process(2)
    for names, is_exact in ((EXACT, True), (INEXACT, False)):
        for name, (dense, x) in names.items():
            matrix = store(dense, tmp_path / name.replace(" ", "-") / str(is_exact))
            if not matrix.shape[0]:
                continue
            with matrix.on(client).distribute_as_placed(Reads(build_layout=False)) as distributed:
                if is_exact:
                    assert (distributed @ np.asarray(x)).tolist() == multiply_exactly(dense, x), name
                    continue
                with pytest.raises(OptionError, match=REFUSED):
                    _ = distributed @ np.asarray(x)
                assert distributed.multiply(np.asarray(x), precision="float64").shape == (1,)
