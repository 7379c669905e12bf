"""Checks of the vectors of a product, and widths and terms of the kernels of many vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mgspmv.errors import KindError, OptionError, ShapeError
from mgspmv.model import MatrixInfo, check_choice
from mgspmv.order import permute, restore
from mgspmv.store.stored_matrix import MatrixProperties

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

WIDTHS = (2, 4, 8, 16, 32, 64)
"""Numbers of vectors per pass for which kernels are compiled."""
EXACT_LIMIT = 2.0**53
"""Upper bound of the integers that float64 represents exactly."""
_INEXACT = 'pass x.astype("float64") or precision="float64" to accept a rounded product'


def choose_precision(precision: str | None, x_dtype: np.dtype[Any], info: MatrixInfo) -> Literal["float32", "float64"]:
    """Choose the dtype of a product: the requested one, else float32 if values and x are float32, else float64.

    Raises
    ------
    OptionError : unknown precision
    """
    check_choice("precision", precision, ("float32", "float64", None))
    if precision is None:
        return "float32" if x_dtype == np.float32 and info.dtype in (None, "float32") else "float64"
    return "float32" if precision == "float32" else "float64"


def multiply_checked(
    A: MatrixProperties,
    x: Any,
    y: Any,
    alpha: float,
    beta: float,
    precision: str | None,
    compute: Callable[[np.ndarray, np.ndarray, Literal["float32", "float64"]], np.ndarray],
    *,
    weights: bool,
) -> np.ndarray:
    """Compute alpha * A @ x + beta * y from the arguments of a user, and check them; see `mgspmv.spmv`.

    Parameters
    ----------
    compute : function of x and y, in the order of the stored rows, and their dtype, that returns the product, which it
        may write into y; y is not read if beta is 0
    weights : False takes each stored entry as 1
    """
    x = check_vectors("x", x, A.shape[1], "columns")
    dtype = choose_precision(precision, x.dtype, A.stored.info)
    out = start_product(y, beta, (A.shape[0], *x.shape[1:]), dtype)
    if beta != 0:
        out = permute(out, A.order)
    placed = permute(np.ascontiguousarray(x, dtype=dtype), A.order)
    product: np.ndarray = restore(compute(placed, out, dtype), A.order)
    multiply = partial(A.multiply, precision="float64", weights=weights)
    check_integers(A.stored.info, x, y, alpha, beta, precision, product, multiply, weights=weights)
    return product


def make_operator(
    A: MatrixProperties, transpose: MatrixProperties | None, missing: str, *, precision: Any, weights: bool
) -> LinearOperator:
    """Make the linear operator of products with a matrix and its transpose, for `scipy.sparse.linalg`.

    The matrix is real; the real and imaginary parts of complex vectors are multiplied as two vectors at once.

    Parameters
    ----------
    transpose : of A, for products with it; None without one
    missing : message of the error of products with the transpose where there is none
    precision, weights : of the products; see `as_linear_operator` of the matrix

    Raises
    ------
    OptionError : unknown precision
    KindError : by `rmatvec`, `rmatmat` and functions that need them, without the transpose
    """
    from scipy.sparse.linalg import LinearOperator

    check_choice("precision", precision, ("float32", "float64", None))

    def multiply(matrix: MatrixProperties | None, x: np.ndarray) -> np.ndarray:
        if matrix is None:
            raise KindError(missing)
        if not np.iscomplexobj(x):
            product: np.ndarray = matrix.multiply(x, precision=precision, weights=weights)
            return product
        parts = multiply(matrix, np.concatenate([x.real.reshape(len(x), -1), x.imag.reshape(len(x), -1)], axis=1))
        half = parts.shape[1] // 2
        return (parts[:, :half] + 1j * parts[:, half:]).reshape(len(parts), *x.shape[1:])

    own, transposed = partial(multiply, A), partial(multiply, transpose)
    dtype = precision or ("float64" if A.dtype is None else A.dtype)
    return LinearOperator(A.shape, own, transposed, own, np.dtype(dtype), transposed)


def check_transpose(matrix: MatrixProperties, transpose: Any) -> None:
    """Raise `OptionError` unless `transpose` is the stored transpose of the same matrix."""
    is_other = isinstance(transpose, MatrixProperties) and transpose.is_transpose != matrix.is_transpose
    if not is_other or transpose.info.digest != matrix.info.digest:
        raise OptionError(
            f"transpose must be that of {matrix.info.url}, not {transpose!r}; distribute A.T of the same store"
        )


def start_product(y: Any, beta: float, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return the output array of a product: a copy of y, or an uninitialized one if beta is 0.

    Raises
    ------
    ShapeError, OptionError : y has the wrong shape, or is missing
    """
    if beta == 0:
        return np.empty(shape, dtype)
    if y is None:
        raise OptionError(f"beta={beta} requires y; pass y=, or beta=0")
    y = check_vectors("y", y, shape[0], "rows")
    if y.shape != shape:
        raise ShapeError(f"y has shape {y.shape} but A @ x has {shape}; pass y of that shape")
    return np.array(y, dtype=dtype, order="C")


def check_vectors(name: str, vectors: Any, length: int, unit: str) -> np.ndarray:
    """Check x or y as given by a user, and return it as an array of shape (length,) or (length, k).

    Parameters
    ----------
    unit : what the length counts, `columns` or `rows`

    Raises
    ------
    ShapeError : another shape
    OptionError : not dense, or not real numbers
    """
    if hasattr(vectors, "__cuda_array_interface__"):
        raise OptionError(f"{name} must be a NumPy array, not a GPU array; pass cupy.asnumpy({name})")
    if hasattr(vectors, "tocsr"):
        raise OptionError(f"{name} must be dense; pass {name}.toarray()")
    try:
        array = np.asarray(vectors)
    except ValueError as error:
        raise ShapeError(f"{name} must be a vector or columns of equal length: {error}") from error
    if array.dtype.kind not in "biuf":
        raise OptionError(f"{name} must hold real numbers, not {array.dtype}")
    if array.ndim not in (1, 2):
        raise ShapeError(f"{name} must have one or two dimensions, not {array.ndim}")
    if array.shape[0] != length:
        size = "n_cols" if unit == "columns" else "n_rows"
        expected = f"length {size}" if array.ndim == 1 else f"shape ({size}, k)"
        raise ShapeError(
            f"{name} has {array.shape[0]} entries but the matrix has {length} {unit}; pass {name} of {expected}"
        )
    return array


def check_integers(
    info: MatrixInfo,
    x: np.ndarray,
    y: Any,
    alpha: float,
    beta: float,
    precision: str | None,
    product: np.ndarray,
    multiply: Callable[..., np.ndarray],
    *,
    weights: bool,
) -> None:
    """Check that a product of integers, alpha * A @ x + beta * y, which is made in float64, is exact. No check is made
    if a number is not an integer, or `precision` is given.

    A sum is exact if the absolute values of its terms add up to less than 2^53:

        |alpha| (|A| |x|)_i + |beta| |y_i| < 2^53 for each row i

    Where nothing is negative the product is that sum, and a float64 result below 2^53 implies that no step was rounded,
    as rounding is monotonic. Where A has negative values, the least of which is -m, it is bounded by

        |A| |x| <= A |x| + 2 m P |x|, where P is the pattern of A

    Parameters
    ----------
    multiply : function of (x, weights=True) that returns A x, or P x without weights; x is a float64 vector or columns
    weights : False takes each stored entry as 1

    Raises
    ------
    OptionError : it may not be exact
    """
    y = None if beta == 0 else np.asarray(y)
    are_whole = float(alpha).is_integer() and float(beta).is_integer() and (y is None or y.dtype.kind in "biu")
    has_integers = precision is None and x.dtype.kind in "biu" and (info.dtype in (None, "int64") or not weights)
    if not are_whole or not has_integers:
        return
    least = 1.0 if info.is_pattern or not weights or info.min_weight is None else info.min_weight
    total, limit = product, EXACT_LIMIT
    if alpha != 1 or beta != 0 or least < 0 or (x.dtype.kind == "i" and x.min(initial=0) < 0):
        x = np.abs(x.astype(np.float64))
        total = multiply(x)
        if least < 0:
            total = total - 2 * least * multiply(x, weights=False)
            limit /= 2  # terms of A |x| cancel, and it may be rounded
        total = abs(alpha) * total
        if y is not None:
            total = total + abs(beta) * np.abs(y.astype(np.float64))
    if not float(np.max(total, initial=0)) < limit:
        raise OptionError(
            "products of integers are computed in float64, which is exact below 2^53, and a sum of this product may "
            f"reach 2^53; {_INEXACT}"
        )


def multiply_columns(multiply: Callable[..., None], x: Any, y: Any, *scalars: Any) -> None:
    """Call multiply(x, y, *scalars) for a vector or each column; arrays are NumPy's or CuPy's."""
    if x.ndim == 1:
        multiply(x, y, *scalars)
        return
    for c in range(x.shape[1]):  # copies, as kernels need contiguous vectors
        column = y[:, c].copy()
        multiply(x[:, c].copy(), column, *scalars)
        y[:, c] = column


# --- many vectors -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Terms:
    """Terms of a step besides A z, for each vector of a pass, on the rows of a block; arrays are where the block is.

    x' = alpha (A z + m d) + (1 - alpha) p
    """

    alpha: Any
    """(width,) float64, on the host; 0 for columns without a vector."""
    dangling: Any
    """d, float64: (n_rows,) or (1,) if it is the same for all vectors; (0,) if it is p of each vector."""
    base: Any
    """(width,) float64, on the host: value of p in rows without an entry; 0, or 1/n if p is uniform."""
    rows: Any
    """(m,) int64: rows of the block where p differs from its base, ascending."""
    columns: Any
    """(m,) int64: vector of each of these entries."""
    weights: Any
    """(m,) float64: value of p at each of these entries."""

    @property
    def entries(self) -> tuple[Any, Any, Any]:
        """Rows, columns and weights of the entries of p."""
        return self.rows, self.columns, self.weights


def narrow_widths(width: int) -> tuple[int, ...]:
    """Return a width and all smaller ones, largest first."""
    return tuple(w for w in reversed(WIDTHS) if w <= width)


def fit_width(n_vectors: int) -> int:
    """Return the smallest of `WIDTHS` that holds `n_vectors`, or the largest."""
    return next((w for w in WIDTHS if w >= n_vectors), WIDTHS[-1])
