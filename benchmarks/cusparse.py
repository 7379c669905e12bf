"""cuSPARSE's product of a CSR matrix, through its C interface.

CuPy's own binding makes descriptors and buffer in each call and never preprocesses; here they are made once, and
`cusparseSpMV_preprocess` is called, as NVIDIA advises for products that are made many times.

Source: cuSPARSE Library, NVIDIA, sections 6.4 (generic API, sparse matrices) and 6.6 (cusparseSpMV, cusparseSpMM).
"""

from __future__ import annotations

import ctypes
import functools
import time
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from ctypes import c_int, c_int64, c_size_t, c_void_p
from typing import Any

import numpy as np

from mgspmv.errors import BackendError
from mgspmv.model import INT32_LIMIT, CsrBlock

ALGORITHMS = {"cusparse-alg1": 2, "cusparse-alg2": 3}
"""CUSPARSE_SPMV_CSR_ALG1 and CUSPARSE_SPMV_CSR_ALG2."""
ALGORITHMS_MANY = {"cusparse-alg1": 4, "cusparse-alg2": 6, "cusparse-alg3": 12}
"""CUSPARSE_SPMM_CSR_ALG1 to ALG3."""

_INDEX_TYPES = {"int32": 2, "int64": 3}
_VALUE_TYPES: dict[str, tuple[int, Any]] = {"float32": (0, ctypes.c_float), "float64": (1, ctypes.c_double)}
_ZERO_BASED = 0
_NOT_TRANSPOSED = 0
_ROW_MAJOR = 2
_MISSING = "cuSPARSE is not found; install mgspmv[cuda12] or mgspmv[cuda13], which bring it"


class CusparseProduct:
    """y = A x by cuSPARSE, with descriptors, buffer and preprocessing made once.

    Parameters
    ----------
    block : on the device; a pattern gets values of 1, which cuSPARSE cannot do without
    dtype : float32 or float64, of the values and of x and y
    algorithm : a key of `ALGORITHMS`

    Attributes
    ----------
    nbytes : bytes of matrix and buffer
    preprocess_s : seconds that preprocessing took

    Raises
    ------
    BackendError : libcusparse is not found; cuSPARSE refuses, and the message names its function and its reason

    Row pointers are int32 while there are fewer than 2^31 nonzeros, cuSPARSE's best case; beyond, both they and the
    columns are int64, since it takes only one type for both. (Version 12.6.3 then fails all the same.)
    """

    _function, _set_values = "cusparseSpMV", "cusparseDnVecSetValues"
    _algorithms = ALGORITHMS
    _transposed: tuple[c_int, ...] = (c_int(_NOT_TRANSPOSED),)

    def __init__(self, block: CsrBlock, dtype: Any, algorithm: str) -> None:
        import cupy

        self._call = _Library()
        self._dtype, self._nnz = np.dtype(dtype), block.nnz
        index = np.int64 if block.nnz >= INT32_LIMIT else block.indices.dtype
        data = cupy.ones(block.nnz, self._dtype) if block.data is None else block.data
        self._arrays = (block.indptr.astype(index, copy=False), block.indices.astype(index, copy=False), data)
        self.nbytes, self.preprocess_s = sum(array.nbytes for array in self._arrays), 0.0
        self._alpha, self._beta = (_VALUE_TYPES[self._dtype.name][1](value) for value in (1, 0))
        stack = ExitStack()
        self.close = weakref.finalize(self, stack.close)
        """Frees what was made; may be called again, and is when nobody uses this any more."""
        self.close.atexit = False  # CUDA may be gone by then
        if block.nnz:
            x, y = (cupy.zeros(self._shape(n), self._dtype) for n in (block.n_cols, block.n_rows))
            self._create(stack, block, x, y)
            self._prepare(self._algorithms[algorithm])

    def run(self, x: Any, y: Any) -> None:
        """Enqueue y = A x on CuPy's current stream."""
        import cupy

        if not self._nnz:
            y.fill(0)
            return
        self._call("cusparseSetStream", self._handle, c_void_p(cupy.cuda.get_current_stream().ptr))
        for vector, array in ((self._x, x), (self._y, y)):
            self._call(self._set_values, vector, _point_to(array))
        self._call(self._function, *self._operands)

    def _shape(self, n: int) -> tuple[int, ...]:
        """Of x or y, of so many rows."""
        return (n,)

    def _describe(self, make: Callable[..., c_void_p], array: Any) -> c_void_p:
        """The descriptor of x or y."""
        value_type = c_int(_VALUE_TYPES[self._dtype.name][0])
        return make("cusparseCreateDnVec", "cusparseDestroyDnVec", c_int64(len(array)), _point_to(array), value_type)

    def _create(self, stack: ExitStack, block: CsrBlock, x: Any, y: Any) -> None:
        """Handle and descriptors, which `stack` frees."""
        import cupy

        def make(create: str, destroy: str, *arguments: Any) -> c_void_p:
            made = c_void_p()
            call(create, ctypes.byref(made), *arguments)
            stack.callback(call, destroy, made)
            return made

        call, value_type = self._call, c_int(_VALUE_TYPES[self._dtype.name][0])
        self._handle = make("cusparseCreate", "cusparseDestroy")
        call("cusparseSetStream", self._handle, c_void_p(cupy.cuda.get_current_stream().ptr))
        shape = (c_int64(block.n_rows), c_int64(block.n_cols), c_int64(block.nnz))
        arrays = map(_point_to, self._arrays)
        types = (*(c_int(_INDEX_TYPES[array.dtype.name]) for array in self._arrays[:2]), c_int(_ZERO_BASED), value_type)
        self._matrix = make("cusparseCreateCsr", "cusparseDestroySpMat", *shape, *arrays, *types)
        self._x, self._y = (self._describe(make, array) for array in (x, y))

    def _prepare(self, algorithm: int) -> None:
        """Buffer and preprocessing."""
        import cupy

        factors = (ctypes.byref(self._alpha), self._matrix, self._x, ctypes.byref(self._beta), self._y)
        types = (c_int(_VALUE_TYPES[self._dtype.name][0]), c_int(algorithm))
        self._operands: tuple[Any, ...] = (self._handle, *self._transposed, *factors, *types)
        size = c_size_t()
        self._call(f"{self._function}_bufferSize", *self._operands, ctypes.byref(size))
        # A pointer of 0 would be refused where no buffer is wanted.
        self._buffer = cupy.empty(max(1, size.value), np.uint8)
        self.nbytes += self._buffer.nbytes
        self._operands = (*self._operands, _point_to(self._buffer))
        stream = cupy.cuda.get_current_stream()
        stream.synchronize()
        began = time.perf_counter()
        self._call(f"{self._function}_preprocess", *self._operands)
        stream.synchronize()
        self.preprocess_s = time.perf_counter() - began


class CusparseManyProduct(CusparseProduct):
    """As `CusparseProduct`, for k vectors at once: x (n_cols, k) and y (n_rows, k), row-major, by cusparseSpMM.

    Parameters
    ----------
    algorithm : a key of `ALGORITHMS_MANY`
    """

    _function, _set_values = "cusparseSpMM", "cusparseDnMatSetValues"
    _algorithms = ALGORITHMS_MANY
    _transposed = (c_int(_NOT_TRANSPOSED), c_int(_NOT_TRANSPOSED))

    def __init__(self, block: CsrBlock, dtype: Any, k: int, algorithm: str) -> None:
        self._k = k
        super().__init__(block, dtype, algorithm)

    def _shape(self, n: int) -> tuple[int, ...]:
        return (n, self._k)

    def _describe(self, make: Callable[..., c_void_p], array: Any) -> c_void_p:
        n, k = map(c_int64, array.shape)
        types = (c_int(_VALUE_TYPES[self._dtype.name][0]), c_int(_ROW_MAJOR))
        return make("cusparseCreateDnMat", "cusparseDestroyDnMat", n, k, k, _point_to(array), *types)


def find_version() -> str:
    """Version of the cuSPARSE that is used.

    Raises
    ------
    BackendError : libcusparse is not found
    """
    call = _Library()
    handle, number = c_void_p(), c_int()
    call("cusparseCreate", ctypes.byref(handle))
    try:
        call("cusparseGetVersion", handle, ctypes.byref(number))
    finally:
        call("cusparseDestroy", handle)
    return f"{number.value // 1000}.{number.value % 1000 // 100}.{number.value % 100}"


def _point_to(array: Any) -> c_void_p:
    return c_void_p(array.data.ptr)


class _Library:
    """Calls functions of libcusparse by name and checks what each returns."""

    def __init__(self) -> None:
        self._library = _load_library()

    def __call__(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            reason = self._library.cusparseGetErrorString(status).decode()
            raise BackendError(f"{name} of cuSPARSE failed: {reason} (status {status})")


@functools.cache
def _load_library() -> Any:
    """libcusparse, the one that CuPy uses."""
    try:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    except ImportError as error:
        raise BackendError(_MISSING) from error
    try:
        path = load_nvidia_dynamic_lib("cusparse").abs_path
    except DynamicLibNotFoundError as error:
        raise BackendError(_MISSING) from error
    library = ctypes.CDLL(path)
    library.cusparseGetErrorString.restype = ctypes.c_char_p
    return library
