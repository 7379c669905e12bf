"""The vectors of a product: what is taken, in which precision, and what is refused with which words."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
from zarr.storage import MemoryStore

from mgspmv.errors import OptionError, ShapeError
from mgspmv.kernels.operands import check_vectors, choose_precision, start_product
from tests.support.arrays import write_store
from tests.support.stores import make_arrays, make_scipy


@pytest.fixture(scope="module")
def info():
    return write_store(MemoryStore(), make_arrays(make_scipy(3, 7)))


# --- precision -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [None, "float32", "float64", "int64"])
def test_float32_only_when_values_and_vector_are(info, values):
    for x in ("f2", "f4", "f8", "i4", "i8", "u1", "?"):
        wanted = "float32" if x == "f4" and values in (None, "float32") else "float64"
        assert choose_precision(None, np.dtype(x), replace(info, dtype=values)) == wanted, x


@pytest.mark.parametrize("asked", ["exact", "float16", "", 32])
def test_precisions_that_products_do_not_have(info, asked):
    with pytest.raises(OptionError) as caught:
        choose_precision(asked, np.dtype(np.float64), info)
    assert str(caught.value) == f"precision must be one of 'float32', 'float64', not {asked!r}"


# --- y ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3,), (3, 2), (3, 0), (0,)])
def test_a_product_without_beta_reads_no_y(shape):
    for y, dtype in product((None, "no vector", np.ones(99)), ("float32", "float64")):
        out = start_product(y, 0, shape, dtype)
        assert (out.dtype, out.shape) == (np.dtype(dtype), shape)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_product_begins_as_a_copy_of_y(dtype):
    for y in (np.array([1, 2, 3]), [1.0, 2.0, 3.0], np.asfortranarray(np.arange(6.0).reshape(3, 2))):
        out = start_product(y, 0.5, np.shape(y), dtype)
        assert out.dtype == dtype
        assert out.flags.c_contiguous
        assert out.flags.writeable
        assert out.tolist() == np.asarray(y).tolist()
        assert not np.shares_memory(out, y)
    frozen = np.ones(3, dtype)
    frozen.setflags(write=False)
    start_product(frozen, 1.0, (3,), dtype)[:] = 7
    assert frozen.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("y", "beta", "error", "message"),
    [
        (None, 0.5, OptionError, "beta=0.5 requires y; pass y=, or beta=0"),
        (np.ones(4), 1, ShapeError, "y has 4 entries but the matrix has 3 rows; pass y of length n_rows"),
        (np.ones((4, 2)), 1, ShapeError, "y has 4 entries but the matrix has 3 rows; pass y of shape (n_rows, k)"),
        (np.ones((3, 2)), 1, ShapeError, "y has shape (3, 2) but A @ x has (3,); pass y of that shape"),
        (np.ones(3) * 1j, 1, OptionError, "y must hold real numbers, not complex128"),
        (sp.csr_array((3, 1)), 1, OptionError, "y must be dense; pass y.toarray()"),
        (5.0, 1, ShapeError, "y must have one or two dimensions, not 0"),
    ],
)
def test_ys_that_are_refused(y, beta, error, message):
    with pytest.raises(error) as caught:
        start_product(y, beta, (3,), "float64")
    assert str(caught.value) == message


# --- x ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (np.ones(4), ShapeError, "x has 4 entries but the matrix has 3 columns; pass x of length n_cols"),
        (np.ones((1, 3)), ShapeError, "x has 1 entries but the matrix has 3 columns; pass x of shape (n_cols, k)"),
        (np.ones((3, 1, 1)), ShapeError, "x must have one or two dimensions, not 3"),
        (1.0, ShapeError, "x must have one or two dimensions, not 0"),
        (None, OptionError, "x must hold real numbers, not object"),
        (["a", "b", "c"], OptionError, "x must hold real numbers, not <U1"),
        (np.ones(3, "M8[s]"), OptionError, "x must hold real numbers, not datetime64[s]"),
        (np.ones(3) * 1j, OptionError, "x must hold real numbers, not complex128"),
        (sp.coo_array((3, 3)), OptionError, "x must be dense; pass x.toarray()"),
    ],
)
def test_xs_that_are_refused(x, error, message):
    with pytest.raises(error) as caught:
        check_vectors("x", x, 3, "columns")
    assert str(caught.value) == message
