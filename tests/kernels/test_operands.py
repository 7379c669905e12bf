"""The vectors of a product: what is taken, in which precision, and what is refused with which words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from zarr.storage import MemoryStore

from mgspmv.kernels.operands import choose_precision, start_product
from tests.support.arrays import write_store
from tests.support.stores import make_arrays, make_scipy


@pytest.fixture(scope="module")
def info():
    return write_store(MemoryStore(), make_arrays(make_scipy(3, 7)))


@pytest.mark.parametrize("values", [None, "float32", "float64", "int64"])
def test_float32_only_when_values_and_vector_are(info, values):
    for x in ("f2", "f4", "f8", "i4", "i8", "u1", "?"):
        wanted = "float32" if x == "f4" and values in (None, "float32") else "float64"
        assert choose_precision(None, np.dtype(x), replace(info, dtype=values)) == wanted, x


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
