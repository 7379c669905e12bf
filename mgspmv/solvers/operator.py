"""SciPy linear operator of a matrix, for `eigs`, `cg`, `gmres`, `svds`, `lsqr` and others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator

from mgspmv.errors import KindError, OptionError
from mgspmv.store.metadata import MatrixProperties

Multiply = Callable[[np.ndarray], np.ndarray]
"""A @ x for real x of shape (n_cols,) or (n_cols, k)."""


class MatrixOperator(LinearOperator):  # type: ignore[misc]  # SciPy has no types
    """Linear operator of products with a matrix and its transpose, for `scipy.sparse.linalg`.

    The matrix is real; the real and imaginary parts of complex vectors are multiplied as two vectors at once.

    Parameters
    ----------
    shape : (n_rows, n_cols)
    dtype : of the products with vectors of this dtype
    multiply : A @ x
    multiply_transposed : A.T @ x; None without the transpose, where `missing` is the error message

    Raises
    ------
    KindError : by `rmatvec`, `rmatmat` and functions that need them, without the transpose
    """

    def __init__(
        self,
        shape: tuple[int, int],
        dtype: Any,
        multiply: Multiply,
        multiply_transposed: Multiply | None,
        missing: str = "",
    ) -> None:
        super().__init__(np.dtype(dtype), shape)
        self._multiply, self._multiply_transposed, self._missing = multiply, multiply_transposed, missing

    def _matvec(self, x: np.ndarray) -> np.ndarray:
        return _multiply_complex(self._multiply, x)

    _matmat = _matvec

    def _rmatvec(self, x: np.ndarray) -> np.ndarray:
        return _multiply_complex(self._transposed(), x)

    _rmatmat = _rmatvec

    def _adjoint(self) -> MatrixOperator:
        """Return the transpose, as the matrix is real."""
        shape = (self.shape[1], self.shape[0])
        return MatrixOperator(shape, self.dtype, self._transposed(), self._multiply)

    _transpose = _adjoint

    def _transposed(self) -> Multiply:
        if self._multiply_transposed is None:
            raise KindError(self._missing)
        return self._multiply_transposed


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
