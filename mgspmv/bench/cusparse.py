"""cuSPARSE's product of a CSR matrix, through its C interface: the program that the CUDA kernels stand beside.

CuPy's own binding makes descriptors and buffer in each call and never preprocesses; here they are made once, and
`cusparseSpMV_preprocess` is called, as NVIDIA advises for products that are made many times.

Source: cuSPARSE Library, NVIDIA, sections 6.4 (generic API, sparse matrices) and 6.6 (cusparseSpMV).
"""

from __future__ import annotations

import ctypes
import functools
import time
from contextlib import ExitStack
from ctypes import c_int, c_int64, c_size_t, c_void_p
from types import TracebackType
from typing import Any, Self

import numpy as np

from mgspmv.errors import BackendError, MissingDependencyError
from mgspmv.model import INT32_LIMIT, CsrBlock

ALGORITHMS = {"cusparse-alg1": 2, "cusparse-alg2": 3}
"""CUSPARSE_SPMV_CSR_ALG1 and CUSPARSE_SPMV_CSR_ALG2; the second gives the same bits in every run."""

_INDEX_TYPES = {"int32": 2, "int64": 3}
_VALUE_TYPES: dict[str, tuple[int, Any]] = {"float32": (0, ctypes.c_float), "float64": (1, ctypes.c_double)}
_ZERO_BASED = 0
_NOT_TRANSPOSED = 0


class CusparseProduct:
    """y = A x with one algorithm; a context manager that frees what it made.

    Parameters
    ----------
    block : on the device; a pattern gets values of 1, which cuSPARSE cannot do without
    x, y : float32 or float64 on the device, used by every product
    algorithm : a key of `ALGORITHMS`

    Attributes
    ----------
    y : as given
    nbytes : bytes of matrix and buffer
    preprocess_s : seconds that preprocessing took

    Raises
    ------
    MissingDependencyError : libcusparse is not found
    BackendError : cuSPARSE refuses; the message names its function and its reason

    Row pointers are int32 while there are fewer than 2^31 nonzeros, cuSPARSE's best case; beyond, both they and the
    columns are int64, since it takes only one type for both. (Version 12.6.3 then fails all the same.)
    """

    def __init__(self, block: CsrBlock, x: Any, y: Any, algorithm: str) -> None:
        import cupy

        self._call = _Library()
        self._stack = ExitStack()
        self.y = y
        dtype = x.dtype.name
        index = np.int64 if block.nnz >= INT32_LIMIT else block.indices.dtype
        data = cupy.ones(block.nnz, dtype) if block.data is None else block.data
        self._arrays = [block.indptr.astype(index, copy=False), block.indices.astype(index, copy=False), data, x, y]
        value_type, scalar = _VALUE_TYPES[dtype]
        self._alpha, self._beta = scalar(1), scalar(0)
        try:
            self._create(block, value_type)
            self._prepare(value_type, ALGORITHMS[algorithm])
        except BaseException:
            self.close()
            raise

    def _create(self, block: CsrBlock, value_type: int) -> None:
        """Handle and descriptors."""
        import cupy

        self._handle, self._matrix, self._x, self._into = (c_void_p() for _ in range(4))
        indptr, indices, data, x, y = (c_void_p(array.data.ptr) for array in self._arrays)
        self._make("cusparseCreate", "cusparseDestroy", self._handle)
        self._call("cusparseSetStream", self._handle, c_void_p(cupy.cuda.get_current_stream().ptr))
        shape = (c_int64(block.n_rows), c_int64(block.n_cols), c_int64(block.nnz))
        index_types = [c_int(_INDEX_TYPES[array.dtype.name]) for array in self._arrays[:2]]
        types = (*index_types, c_int(_ZERO_BASED), c_int(value_type))
        self._make("cusparseCreateCsr", "cusparseDestroySpMat", self._matrix, *shape, indptr, indices, data, *types)
        for vector, place, length in ((self._x, x, block.n_cols), (self._into, y, block.n_rows)):
            self._make("cusparseCreateDnVec", "cusparseDestroyDnVec", vector, c_int64(length), place, c_int(value_type))

    def _prepare(self, value_type: int, algorithm: int) -> None:
        """Buffer and preprocessing."""
        import cupy

        factors = (ctypes.byref(self._alpha), self._matrix, self._x, ctypes.byref(self._beta), self._into)
        self._operands: tuple[Any, ...] = (
            self._handle,
            c_int(_NOT_TRANSPOSED),
            *factors,
            c_int(value_type),
            c_int(algorithm),
        )
        size = c_size_t()
        self._call("cusparseSpMV_bufferSize", *self._operands, ctypes.byref(size))
        # A pointer of 0 would be refused where no buffer is wanted.
        self._buffer = cupy.empty(max(1, size.value), np.uint8)
        self._operands = (*self._operands, c_void_p(self._buffer.data.ptr))
        self.nbytes = sum(array.nbytes for array in (*self._arrays[:3], self._buffer))
        stream = cupy.cuda.get_current_stream()
        stream.synchronize()
        began = time.perf_counter()
        self._call("cusparseSpMV_preprocess", *self._operands)
        stream.synchronize()
        self.preprocess_s = time.perf_counter() - began

    def run(self) -> None:
        """Enqueue y = A x on the stream that was CuPy's current one when this was made."""
        self._call("cusparseSpMV", *self._operands)

    def close(self) -> None:
        """Free what was made; may be called again."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make(self, create: str, destroy: str, place: c_void_p, *arguments: Any) -> None:
        self._call(create, ctypes.byref(place), *arguments)
        self._stack.callback(self._call, destroy, place)


def find_version() -> str:
    """Version of the cuSPARSE that is used.

    Raises
    ------
    MissingDependencyError : libcusparse is not found
    """
    call = _Library()
    handle, number = c_void_p(), c_int()
    call("cusparseCreate", ctypes.byref(handle))
    try:
        call("cusparseGetVersion", handle, ctypes.byref(number))
    finally:
        call("cusparseDestroy", handle)
    return f"{number.value // 1000}.{number.value % 1000 // 100}.{number.value % 100}"


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
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

    try:
        path = load_nvidia_dynamic_lib("cusparse").abs_path
    except DynamicLibNotFoundError as error:
        raise MissingDependencyError(
            "cuSPARSE, beside which kernels are timed, is not found; install mgspmv[cuda12] or mgspmv[cuda13], which "
            "bring it"
        ) from error
    library = ctypes.CDLL(path)
    library.cusparseGetErrorString.restype = ctypes.c_char_p
    return library
