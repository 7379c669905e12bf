"""Choice of the backend and the kernel, for sparse matrices and dense ones."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import numpy as np

from mgspmv.errors import CapacityError, FormatError, OptionError, ShapeError
from mgspmv.kernels.catalogue import BACKENDS, KERNELS, SPARSE_KERNELS, Backend
from mgspmv.kernels.device import check_device, get, has_device, put, report_full_device
from mgspmv.kernels.host import SMALL_NNZ, SmallBlock
from mgspmv.model import INT32_LIMIT, CsrBlock, Precision, check_choice

if TYPE_CHECKING:
    from mgspmv.kernels.cpu import CpuBlock
    from mgspmv.kernels.cpu_many import CpuMany
    from mgspmv.kernels.cuda import CudaBlock, CudaMany

StepLayout = Literal["auto", "column-sorted-blocks", "sell-slices", "coo"]
BoundKernel: TypeAlias = "CpuBlock | SmallBlock | CudaBlock"
"""Kernels bound to one block; `CpuBlock` documents the methods. Vectors are on the block's device."""
BoundMany: TypeAlias = "CpuMany | CudaMany"
"""Kernels for many vectors bound to one block; `CpuMany` documents the methods."""
DENSE_KERNELS = [name for name, kernel in KERNELS.items() if kernel.operation == "dense"]
LEAST_FLOAT32 = 2.0**-126
"""Least float32 whose rounding error is relative to its value."""


def choose_backend(backend: str) -> Backend:
    """Choose the backend: the given one or, for `auto`, CUDA if there is a device, else the CPU.

    Raises
    ------
    BackendError, MissingDependencyError : CUDA cannot be used here
    """
    check_choice("backend", backend, ("auto", *BACKENDS))
    if backend == "cpu":
        return "cpu"
    if backend == "cuda":
        check_device()
        return "cuda"
    return "cuda" if has_device() else "cpu"


def list_kernels(backend: str, *, for_steps: bool = False) -> list[str]:
    """List the names of the kernels of a backend, or of those that make PageRank steps on it."""
    check_choice("backend", backend, BACKENDS)
    return [k.name for k in SPARSE_KERNELS if backend in (k.step_backends if for_steps else k.backends)]


def bind_kernel(
    block: CsrBlock, precision: Precision, *, kernel: str = "auto", backend: Backend = "cpu", threads: int | None = None
) -> BoundKernel:
    """Bind the named kernel to a block; `auto` is csr-rows on `cpu` and csr-split, for steps, on `cuda`.

    Parameters
    ----------
    threads : for csr-rows on `cpu`; the other kernels have a fixed number

    Raises
    ------
    OptionError : the backend has no kernel of that name
    FormatError : the kernel does not support this matrix
    """
    check_kernel(kernel, backend)
    if backend == "cuda":
        from mgspmv.kernels.cuda import CudaBlock

        return CudaBlock(block, precision, "csr-split" if kernel == "auto" else kernel)
    if kernel in ("auto", "csr-rows") and block.nnz <= SMALL_NNZ:
        return SmallBlock(block, precision, threads)
    from mgspmv.kernels.cpu import CpuBlock, ReferenceBlock

    if kernel in ("auto", "csr-rows", "csr-serial"):
        return CpuBlock(block, precision, 1 if kernel == "csr-serial" else threads)
    return ReferenceBlock(block, precision, KERNELS[kernel])


def bind_many(
    block: CsrBlock, precision: Precision, *, backend: Backend = "cpu", threads: int | None = None
) -> BoundMany:
    """Bind the PageRank kernels for many vectors at once to a block."""
    if backend == "cuda":
        from mgspmv.kernels.cuda import CudaMany

        return CudaMany(block, precision)
    from mgspmv.kernels.cpu_many import CpuMany

    return CpuMany(block, precision, threads)


def bind_product(
    block: CsrBlock,
    dtype: Literal["float32", "float64"],
    *,
    kernel: str = "auto",
    backend: Backend = "cpu",
    threads: int | None = None,
) -> BoundKernel:
    """Bind the best kernel for products, or the named one, to a block, and build its format.

    Parameters
    ----------
    dtype : of x

    Raises
    ------
    OptionError : the backend has no kernel of that name
    FormatError : the named kernel does not support this matrix
    CapacityError : its format does not fit in device memory; with `auto`, nor does any other
    """
    if kernel != "auto":
        return bind_kernel(block, dtype, kernel=kernel, backend=backend, threads=threads)
    names = rank_products(block, dtype, backend)
    for name in names[:-1]:
        with suppress(FormatError, CapacityError):  # the next kernel is tried
            return bind_kernel(block, dtype, kernel=name, backend=backend, threads=threads)
    return bind_kernel(block, dtype, kernel=names[-1], backend=backend, threads=threads)


def choose_for_vectors(kernel: str, backend: Backend, shape: tuple[int, int], k: int) -> str:
    """Choose the kernel for products with k vectors: csr-many for several on `cuda`, unless one is named.

    Parameters
    ----------
    shape : of the block; csr-many counts rows in the dtype of the columns
    """
    counts = shape[0] < INT32_LIMIT or shape[1] >= INT32_LIMIT
    return "csr-many" if kernel == "auto" and backend == "cuda" and k > 1 and counts else kernel


def find_step_layout(
    kernel: str, precision: Precision, index_dtype: str, dtype: str | None, min_weight: float | None
) -> StepLayout | None:
    """Choose the layout for PageRank steps on a device, `auto` for the best one; None if it must be CSR.

    Parameters
    ----------
    dtype : of the values that are used; None for a pattern
    min_weight : the least value of the store

    Raises
    ------
    FormatError : the named kernel does not support this matrix or this precision
    """
    if kernel == "csr-split":
        return None
    problem = None
    if precision == "float64":
        problem = "adds in fixed point and supports precision='exact' and 'float32'"
    elif index_dtype != "int32":
        problem = "counts columns in 32 bits, but the matrix has 2^31 or more"
    elif dtype == "float32" and min_weight is not None and min_weight < LEAST_FLOAT32:
        problem = f"needs float32 values of at least {LEAST_FLOAT32:.3g}, but the smallest is {min_weight:.3g}"
    if problem is None:
        return cast(StepLayout, kernel)
    if kernel == "auto":
        return None
    raise FormatError(f"kernel {kernel!r} {problem}; pass kernel='csr-split' or 'auto'")


def rank_products(block: CsrBlock, dtype: Precision, backend: Backend) -> list[str]:
    """Rank kernels for products, best first; the last one supports every matrix."""
    if backend == "cpu":
        return ["csr-rows"]
    from mgspmv.kernels.features import find_features, rank_kernels

    with suppress(CapacityError), report_full_device("the analysis of the matrix for the choice of a kernel"):
        return rank_kernels(find_features(block, dtype))
    return ["csr-split"]  # needs no further memory


def check_kernel(kernel: str, backend: Backend, *, for_steps: bool = False) -> None:
    """Check that a backend has a kernel of this name for products, or for PageRank steps.

    Raises
    ------
    OptionError : it has none
    """
    names = list_kernels(backend, for_steps=for_steps)
    if kernel == "auto" or kernel in names:
        return
    if kernel not in KERNELS:
        raise OptionError(f"kernel must be 'auto' or one of {', '.join(names)}, not {kernel!r}")
    operation = "PageRank steps" if for_steps else "products"
    raise OptionError(
        f"kernel {kernel!r} does not support {operation} on backend {backend!r}; pass kernel='auto' or one of "
        f"{', '.join(names)}"
    )


def multiply_dense(A: Any, x: Any, b: Any, kernel: str, backend: Backend) -> np.ndarray:
    """Compute y = A x + b; see `mgspmv.gemv`.

    Raises
    ------
    ShapeError, OptionError : shapes do not match, values are not real, or no kernel has that name
    """
    if kernel != "auto" and kernel not in DENSE_KERNELS:
        raise OptionError(f"kernel must be 'auto' or one of {', '.join(DENSE_KERNELS)}, not {kernel!r}")
    A, x, b = _check_operands(A, x, b)
    if backend == "cuda":
        from mgspmv.kernels.cuda_products import multiply_on_device

        return get(multiply_on_device(put(A), put(x), None if b is None else put(b), kernel))
    if kernel == "auto":
        product: np.ndarray = A @ x if b is None else A @ x + b
        return product
    y = np.empty(A.shape[0], A.dtype)
    KERNELS[kernel].reference(A, x, b, y)
    return y


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
