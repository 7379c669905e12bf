"""Products with vectors, of sparse matrices and of dense ones."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from mgspmv.api.inputs import MatrixLike, reads_input
from mgspmv.api.matrix import Matrix
from mgspmv.kernels.dense import multiply_dense
from mgspmv.kernels.select import choose_backend
from mgspmv.monitor.progress import ProgressOption


@reads_input("matrix", predicts=False)
def spmv(
    A: MatrixLike,
    x: Any,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    y: Any = None,
    precision: Literal["float32", "float64"] | None = None,
    progress: ProgressOption = None,
) -> Any:
    """Compute y = alpha * A @ x + beta * y.

    Parameters
    ----------
    A : of shape (n_rows, n_cols), opened, distributed, or in another form of those on the page "Inputs": a sparse or
        dense matrix as it is, others as graphs, for which this is the pull product. `A.on` says where it computes, and
        with which kernel. Rows that do not fit in device memory are streamed in pieces, from the host or the store, and
        are multiplied by csr-split
    x : (n_cols,) or (n_cols, k), real; of a distributed matrix also a dask array
    y : (n_rows,) or (n_rows, k), real; needed unless beta is 0, when it is not read. It is not changed.
    precision : default float32 when both A's values and x are float32, else float64; sums are made in float64 by
        csr-rows and csr-serial, and in `precision` by the others. Of integers alone (A's values int64 or a pattern; x,
        alpha and, unless beta is 0, y and beta whole) the product is exact without it, or raises, as float64 holds
        all integers below 2^53; with `float64`, or x in float64, it is rounded
    progress : called with the `Phase` of loading where `A.on(client)` distributes A for this product

    Returns
    -------
    (n_rows,) or (n_rows, k) of `precision`, bit-identical at each run and for any number of threads and workers. A
    NumPy array; for a dask x a dask array that stays on the workers.

    Raises
    ------
    ShapeError : x or y does not fit the matrix
    OptionError : complex numbers; a product of integers that may reach 2^53; an invalid option
    BackendError, MissingDependencyError : `cuda` and no device; or no CuPy
    FormatError : the kernel does not support this matrix; the message says why and names others
    CapacityError : the matrix does not fit in free memory
    ClusterError : a worker is lost, or silent for too long
    """
    options: dict[str, Any] = {"progress": progress} if isinstance(A, Matrix) else {}
    return A.multiply(x, alpha=alpha, beta=beta, y=y, precision=precision, **options)


def gemv(
    A: Any,
    x: Any,
    b: Any = None,
    *,
    kernel: str = "auto",
    backend: Literal["auto", "cpu", "cuda"] = "auto",
) -> np.ndarray:
    """Compute y = A x + b for a dense A in memory.

    Parameters
    ----------
    A, x, b : (n_rows, n_cols), (n_cols,) and (n_rows,) arrays of real numbers; b may be None
    kernel : `auto`, or `dense-rows` (a thread a row), `dense-block` (a thread block a row) or `dense-tiles` (tiles over
        a grid); their sums are made in a fixed order, the same on each backend. `auto` on the CPU is NumPy's product
    backend : as for `spmv`

    Returns
    -------
    (n_rows,) float32 when all operands are, else float64.

    Raises
    ------
    ShapeError : arrays that do not fit each other
    OptionError : complex numbers; no kernel of that name
    BackendError, MissingDependencyError : `cuda` and no device; or no CuPy
    """
    return multiply_dense(A, x, b, kernel, choose_backend(backend))
