"""SciPy linear operator of a matrix, for `eigs`, `cg`, `gmres`, `svds`, `lsqr` and others."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator

from mgspmv.errors import KindError, OptionError
from mgspmv.model import check_choice
from mgspmv.store.stored_matrix import MatrixProperties


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
