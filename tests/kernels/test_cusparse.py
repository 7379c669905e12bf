"""cuSPARSE's C interface, as far as it can be checked with no device: what is passed to it, and what it says."""

from __future__ import annotations

import ctypes
import gc
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from mgspmv.errors import BackendError
from mgspmv.kernels import cusparse
from mgspmv.kernels.cusparse import CusparseProduct
from tests.support.blocks import make_block, make_random, to_scipy
from tests.support.matrices import HARD, naming

VALUES = {0: np.float32, 1: np.float64}
INDICES = {2: np.int32, 3: np.int64}


class Library:
    """A libcusparse in NumPy, with the error of its CSR_ALG2 before version 13: y is left out where beta is not 0."""

    def __init__(self) -> None:
        self.there: dict[int, Any] = {}
        self.calls: list[str] = []
        self.algorithms: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.calls.append(name)
            getattr(Library, f"do_{name.removeprefix('cusparse')}", lambda *_: None)(self, *arguments)
            return 0

        return call

    def add(self, place: Any, made: Any) -> None:
        place._obj.value = len(self.calls)
        self.there[place._obj.value] = made

    def do_Create(self, place: Any) -> None:
        self.add(place, "handle")

    def do_CreateCsr(self, place: Any, n_rows: Any, n_cols: Any, nnz: Any, *arrays_and_types: Any) -> None:
        indptr, indices, data, indptr_type, indices_type, base, value_type = arrays_and_types
        assert base.value == 0
        arrays = (
            view(data, nnz.value, VALUES[value_type.value]),
            view(indices, nnz.value, INDICES[indices_type.value]),
            view(indptr, n_rows.value + 1, INDICES[indptr_type.value]),
        )
        assert arrays[1].dtype == arrays[2].dtype
        self.add(place, sp.csr_array(arrays, shape=(n_rows.value, n_cols.value)))

    def do_CreateDnVec(self, place: Any, n: Any, pointer: Any, value_type: Any) -> None:
        self.add(place, {"n": n.value, "dtype": VALUES[value_type.value], "pointer": pointer})

    def do_DnVecSetValues(self, vector: Any, pointer: Any) -> None:
        self.there[vector.value]["pointer"] = pointer

    def do_SpMV_bufferSize(self, *arguments: Any) -> None:
        arguments[-1]._obj.value = 24

    def do_SpMV(
        self, handle: Any, operation: Any, alpha: Any, matrix: Any, x: Any, beta: Any, y: Any, *rest: Any
    ) -> None:
        assert (self.there[handle.value], operation.value, beta._obj.value) == ("handle", 0, 0)
        self.algorithms.add(rest[1].value)
        x, y = (view(v["pointer"], v["n"], v["dtype"]) for v in (self.there[x.value], self.there[y.value]))
        y[:] = alpha._obj.value * (self.there[matrix.value] @ x)

    def do_Destroy(self, made: Any) -> None:
        del self.there[made.value]

    do_DestroySpMat = do_DestroyDnVec = do_Destroy


def view(pointer: Any, n: int, dtype: Any) -> np.ndarray:
    """The memory that a pointer leads to."""
    return np.frombuffer((ctypes.c_char * (n * np.dtype(dtype).itemsize)).from_address(pointer.value), dtype)


@pytest.fixture
def library(monkeypatch) -> Library:
    """NumPy in the place of CuPy, and `Library` in that of libcusparse."""
    made = Library()
    stream = SimpleNamespace(ptr=7, synchronize=lambda: None)
    cuda = SimpleNamespace(get_current_stream=lambda: stream)
    cupy = SimpleNamespace(ones=np.ones, zeros=np.zeros, empty=np.empty, cuda=cuda)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(cusparse, "_load_library", lambda: made)
    monkeypatch.setattr(cusparse, "_point_to", lambda array: ctypes.c_void_p(array.ctypes.data))
    return made


@pytest.mark.parametrize("data", [np.float32, np.float64, None])
def test_products(library, data):
    for name, hard in HARD.items():
        with naming(name):
            check_products(make_block(hard, data=data), data or np.float32)


def check_products(block, dtype):
    product, rng = CusparseProduct(block, dtype), np.random.default_rng(2)
    for alpha, beta in ((1.0, 0.0), (-0.5, 2.0), (2.0, 1.0)):
        x, y = (rng.normal(size=n).astype(dtype) for n in (block.n_cols, block.n_rows))
        out = np.full(block.n_rows, np.nan, dtype) if beta == 0 else y.copy()
        product.run(x, out, alpha, beta)
        expected = alpha * (to_scipy(block) @ x) + (beta * y.astype(np.float64) if beta else 0)
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=np.finfo(dtype).eps * 1e9)
    assert product.nbytes >= block.nnz * (4 + np.dtype(dtype).itemsize)


def test_the_algorithm_of_users_is_the_deterministic_one(library):
    block = make_random([3, 0, 4], 5)
    CusparseProduct(block, np.float64).run(np.ones(5), np.empty(3))
    assert library.algorithms == {cusparse.ALGORITHMS["cusparse-alg2"]} == {3}


def test_it_prepares_once_and_frees_what_it_made(library):
    product = CusparseProduct(make_random([3, 0, 4], 5), np.float64, "cusparse-alg1")
    assert len(library.there) == 4
    for _ in range(3):
        product.run(np.ones(5), np.empty(3))
    assert (library.calls.count("cusparseSpMV_preprocess"), library.calls.count("cusparseSpMV")) == (1, 3)
    product.close()
    product.close()
    assert library.there == {}


def test_what_nobody_uses_any_more_is_freed(library):
    product = CusparseProduct(make_random([3, 0, 4], 5), np.float64)
    product.run(np.ones(5), np.empty(3))
    del product
    gc.collect()
    assert library.there == {}


def test_both_indices_are_of_64_bits_from_2_to_the_31_nonzeros_on(library, monkeypatch):
    monkeypatch.setattr(cusparse, "INT32_LIMIT", 7)
    for lengths, wanted in (([3, 3], np.int32), ([3, 4], np.int64)):
        block = make_random(lengths, 5)
        product = CusparseProduct(block, np.float64)
        assert {array.dtype for array in product._arrays[:2]} == {np.dtype(wanted)}


# --- what it says ----------------------------------------------------------------------------------------------------


class Refusing:
    """A libcusparse whose functions fail."""

    def __getattr__(self, name: str) -> Any:
        if name == "cusparseGetErrorString":
            return lambda status: b"operation not supported" if status == 10 else b""
        return lambda *_: 10


def test_what_cusparse_returns_is_checked(monkeypatch) -> None:
    monkeypatch.setattr(cusparse, "_load_library", Refusing)
    with pytest.raises(BackendError, match=r"cusparseCreate of cuSPARSE failed: operation not supported \(status 10\)"):
        cusparse.find_version()


def test_a_missing_cusparse_says_what_to_install(monkeypatch) -> None:
    pathfinder = pytest.importorskip("cuda.pathfinder")

    def find_nothing(_: str) -> Any:
        raise pathfinder.DynamicLibNotFoundError("no such file")

    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", find_nothing)
    check_missing()


def test_a_missing_finder_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    check_missing()


def check_missing() -> None:
    cusparse._load_library.cache_clear()
    with pytest.raises(BackendError) as caught:
        cusparse.find_version()
    assert str(caught.value) == (
        "cuSPARSE is not found; install mgspmv[cuda12] or mgspmv[cuda13], which bring it, or use another kernel"
    )
