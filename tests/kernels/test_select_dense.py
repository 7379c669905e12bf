"""`mg.gemv`: dense products beside NumPy, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import mgspmv as mg
from mgspmv.errors import OptionError, ShapeError
from mgspmv.kernels.select import DENSE_KERNELS

A = np.random.default_rng(1).normal(size=(70, 1100))
x, b = np.random.default_rng(2).normal(size=1100), np.random.default_rng(3).normal(size=70)


@pytest.mark.parametrize("kernel", ["auto", *DENSE_KERNELS])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products(kernel, dtype):
    operands = A.astype(dtype), x.astype(dtype), b.astype(dtype)
    for offset in (None, operands[2]):
        y = mg.gemv(operands[0], operands[1], offset, kernel=kernel, backend="cpu")
        exact = operands[0].astype(np.float64) @ operands[1] + (0 if offset is None else offset)
        bound = np.finfo(dtype).eps * 1104 * (np.abs(A) @ np.abs(x) + np.abs(b))
        assert y.dtype == dtype
        assert (np.abs(y - exact) <= bound).all()


def test_dtype_is_the_widest():
    assert mg.gemv(A.astype(np.float32), x, backend="cpu").dtype == np.float64
    assert mg.gemv(np.ones((2, 3), int), [1, 2, 3], backend="cpu").tolist() == [6.0, 6.0]


@pytest.mark.parametrize(
    ("operands", "message"),
    [
        ((A, x[:5]), "x has shape (5,) and A has 1100 columns; pass shape (1100,)"),
        ((A, x, b[:5]), "b has shape (5,) and A has 70 rows; pass shape (70,)"),
        ((A, A), "x has shape (70, 1100) and A has 1100 columns; pass shape (1100,)"),
        ((x, x), "A must have two dimensions, not 1"),
    ],
)
def test_shapes_that_do_not_fit(operands, message):
    with pytest.raises(ShapeError) as caught:
        mg.gemv(*operands, backend="cpu")
    assert str(caught.value) == message


def test_options_that_make_no_sense():
    with pytest.raises(OptionError, match="x must hold real numbers, not complex128"):
        mg.gemv(A, x * 1j)
    with pytest.raises(
        OptionError, match="kernel must be 'auto' or one of dense-rows, dense-block, dense-tiles, not 'csr'"
    ):
        mg.gemv(A, x, kernel="csr")
    with pytest.raises(OptionError, match="backend must be one of"):
        mg.gemv(A, x, backend="gpu")
