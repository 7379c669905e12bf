"""SciPy linear operator of a matrix, for `eigs`, `cg`, `gmres`, `svds`, `lsqr` and others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator

from mgspmv.errors import KindError, OptionError
from mgspmv.store.metadata import MatrixProperties

Multiply = Callable[[np.ndarray], np.ndarray]
"""A @ x for real x of shape (n_cols,) or (n_cols, k)."""


def make_operator(
    shape: tuple[int, int], dtype: Any, multiply: Multiply, multiply_transposed: Multiply | None, missing: str = ""
) -> LinearOperator:
    """Make the linear operator of products with a matrix and its transpose, for `scipy.sparse.linalg`.

    The matrix is real; the real and imaginary parts of complex vectors are multiplied as two vectors at once.

    Parameters
    ----------
    shape : (n_rows, n_cols)
    dtype : of the products with vectors of this dtype
    multiply : A @ x
    multiply_transposed : A.T @ x; None without the transpose

    Raises
    ------
    KindError : with the message `missing`, by `rmatvec`, `rmatmat` and functions that need them, without the transpose
    """

    def transposed(x: np.ndarray) -> np.ndarray:
        if multiply_transposed is None:
            raise KindError(missing)
        return _multiply_complex(multiply_transposed, x)

    own = partial(_multiply_complex, multiply)
    return LinearOperator(shape, own, transposed, own, np.dtype(dtype), transposed)


def choose_dtype(dtype: np.dtype[Any] | None) -> np.dtype[Any]:
    """Choose the dtype of an operator: that of the matrix's values; float64 for a pattern."""
    return np.dtype(np.float64) if dtype is None else dtype


def check_transpose(matrix: MatrixProperties, transpose: Any) -> None:
    """Raise `OptionError` unless `transpose` is the stored transpose of the same matrix."""
    is_other = isinstance(transpose, MatrixProperties) and transpose.is_transpose != matrix.is_transpose
    if not is_other or transpose.info.digest != matrix.info.digest:
        raise OptionError(
            f"transpose must be that of {matrix.info.url}, not {transpose!r}; distribute A.T of the same store"
        )


def _multiply_complex(multiply: Multiply, x: np.ndarray) -> np.ndarray:
    if not np.iscomplexobj(x):
        return multiply(x)
    parts = multiply(np.concatenate([x.real.reshape(len(x), -1), x.imag.reshape(len(x), -1)], axis=1))
    half = parts.shape[1] // 2
    product: np.ndarray = (parts[:, :half] + 1j * parts[:, half:]).reshape(len(parts), *x.shape[1:])
    return product
