"""Dense matrix-vector products and sums: the kernels of `kernels/dense.cu` and `kernels/reduce.cu`, and references."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from mgspmv.errors import OptionError, ShapeError
from mgspmv.kernels.catalogue import KERNELS
from mgspmv.kernels.device import count_blocks, get, load_kernel, put, zeros
from mgspmv.kernels.formats import SUM_CHUNK, THREADS, TILE_COLS, TILE_ROWS

DENSE_KERNELS = [name for name, kernel in KERNELS.items() if kernel.operation == "dense"]
SHORT_ROW = 32
"""Maximum columns for which one thread per row reads whole sectors."""
FEW_ROWS = 1024
"""Rows below which one thread block per row leaves multiprocessors idle."""


def multiply_dense(A: Any, x: Any, b: Any, kernel: str, backend: Literal["cpu", "cuda"]) -> np.ndarray:
    """Compute y = A x + b; see `mgspmv.gemv`.

    Raises
    ------
    ShapeError, OptionError : shapes do not match, values are not real, or no kernel has that name
    """
    if kernel != "auto" and kernel not in DENSE_KERNELS:
        raise OptionError(f"kernel must be 'auto' or one of {', '.join(DENSE_KERNELS)}, not {kernel!r}")
    A, x, b = _check_operands(A, x, b)
    if backend == "cuda":
        chosen = _choose_kernel(A.shape) if kernel == "auto" else kernel
        return get(multiply_on_device(put(A), put(x), None if b is None else put(b), chosen))
    if kernel == "auto":
        product: np.ndarray = A @ x if b is None else A @ x + b
        return product
    y = np.empty(A.shape[0], A.dtype)
    KERNELS[kernel].reference(A, x, b, y)
    return y


def sum_vector(x: Any) -> Any:
    """Sum a device vector in a fixed order, by parallel reduction.

    Parameters
    ----------
    x : (n,) float32 or float64, on the device

    Returns
    -------
    0-dimensional array of its dtype, on the device. The order of additions depends on n alone.
    """
    kernel = load_kernel("reduce.cu", "sum_chunks", VALUE=x.dtype, PATTERN=0)
    while len(x) != 1:
        out = zeros(max(1, count_blocks(len(x), SUM_CHUNK)), x.dtype)
        if len(x):
            kernel((len(out),), (THREADS,), (np.int64(len(x)), x, out))
        x = out
    return x[0]


def multiply_on_device(A: Any, x: Any, b: Any, kernel: str) -> Any:
    """Compute y = A x + b on the device.

    Parameters
    ----------
    A : (n_rows, n_cols) C-ordered, float32 or float64, on the device
    x, b : (n_cols,) and (n_rows,) or None, of the same dtype
    kernel : `dense-rows`, `dense-block` or `dense-tiles`; see kernels/dense.cu
    """
    n_rows, n_cols = A.shape
    y = zeros(n_rows, A.dtype)
    if not n_rows:
        return y
    b = np.uint64(0) if b is None else b
    sizes = (np.int64(n_rows), np.int64(n_cols))

    def run(name: str, grid: tuple[int, ...], *arguments: Any) -> None:
        load_kernel("dense.cu", name, VALUE=A.dtype, PATTERN=0)(grid, (THREADS,), arguments)

    if kernel == "dense-rows":
        run("dense_rows", (count_blocks(n_rows, THREADS),), *sizes, A, x, b, y)
    elif kernel == "dense-block":
        run("dense_block", (n_rows,), sizes[1], A, x, b, y)
    else:
        n_tiles = count_blocks(n_cols, TILE_COLS)
        partial = zeros(n_tiles * n_rows, A.dtype)
        if n_tiles:
            run("dense_tiles", (count_blocks(n_rows, TILE_ROWS) * n_tiles,), *sizes, A, x, partial)
        run("add_tiles", (count_blocks(n_rows, THREADS),), sizes[0], np.int64(n_tiles), partial, b, y)
    return y


def _choose_kernel(shape: tuple[int, int]) -> str:
    n_rows, n_cols = shape
    if n_cols <= SHORT_ROW:
        return "dense-rows"
    return "dense-tiles" if n_rows < FEW_ROWS and n_cols > TILE_COLS else "dense-block"


def _check_operands(A: Any, x: Any, b: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Check the operands and return them C-ordered, in the dtype of the product."""
    named = {"A": np.asarray(A), "x": np.asarray(x)} | ({} if b is None else {"b": np.asarray(b)})
    for name, array in named.items():
        if array.dtype.kind not in "biuf":
            raise OptionError(f"{name} must hold real numbers, not {array.dtype}")
    if named["A"].ndim != 2:
        raise ShapeError(f"A must have two dimensions, not {named['A'].ndim}")
    for name, length, what in (("x", named["A"].shape[1], "columns"), ("b", named["A"].shape[0], "rows")):
        if name in named and named[name].shape != (length,):
            raise ShapeError(f"{name} has shape {named[name].shape} and A has {length} {what}; pass shape ({length},)")
    is_single = all(array.dtype == np.float32 for array in named.values())
    made = {n: np.ascontiguousarray(a, np.float32 if is_single else np.float64) for n, a in named.items()}
    return made["A"], made["x"], made.get("b")
