"""The vectors of a product, checked."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from mgspmv.errors import OptionError, ShapeError
from mgspmv.model import MatrixInfo, check_choice


def choose_precision(precision: str | None, x_dtype: np.dtype[Any], info: MatrixInfo) -> Literal["float32", "float64"]:
    """Dtype of a product: the one asked for, else float32 when both the values and x are, else float64.

    Raises
    ------
    OptionError : it is none of these
    """
    check_choice("precision", precision, ("float32", "float64", None))
    if precision is None:
        return "float32" if x_dtype == np.float32 and info.dtype in (None, "float32") else "float64"
    return "float32" if precision == "float32" else "float64"


def start_product(y: Any, beta: float, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """The array that a product goes into: a copy of y, or one that is not read when beta is 0.

    Raises
    ------
    ShapeError, OptionError : y does not fit, or is missing
    """
    if beta == 0:
        return np.empty(shape, dtype)
    if y is None:
        raise OptionError(f"beta is {beta} and there is no y to multiply; pass y, or beta=0")
    y = check_vectors("y", y, shape[0], "rows")
    check_shape(y, shape)
    return np.array(y, dtype=dtype, order="C")


def check_shape(y: Any, shape: tuple[int, ...]) -> None:
    """
    Raises
    ------
    ShapeError : y has another shape than the product
    """
    if y.shape != shape:
        raise ShapeError(f"y has shape {y.shape} but A @ x has {shape}; pass y of that shape")


def check_vectors(name: str, vectors: Any, length: int, unit: str) -> np.ndarray:
    """What a user gave as x or y, as array of shape (length,) or (length, k).

    Parameters
    ----------
    unit : what the length counts, `columns` or `rows`

    Raises
    ------
    ShapeError : another shape
    OptionError : not dense, or not real numbers
    """
    if hasattr(vectors, "__cuda_array_interface__"):
        raise OptionError(f"{name} must be an array of NumPy, not one on a GPU; pass cupy.asnumpy({name})")
    if hasattr(vectors, "tocsr"):
        raise OptionError(f"{name} must be dense; pass {name}.toarray()")
    try:
        array = np.asarray(vectors)
    except ValueError as error:
        raise ShapeError(f"{name} must be a vector or columns of equal length: {error}") from error
    check_form(name, array, length, unit)
    return array


def check_form(name: str, array: Any, length: int, unit: str) -> None:
    """Check dtype and shape of what is an array, such as a dask array, whose elements are not looked at.

    Raises
    ------
    ShapeError, OptionError : as for `check_vectors`
    """
    if array.dtype.kind not in "biuf":
        raise OptionError(f"{name} must hold real numbers, not {array.dtype}")
    if array.ndim not in (1, 2):
        raise ShapeError(f"{name} must have one or two dimensions, not {array.ndim}")
    if array.shape[0] != length:
        size = "n_cols" if unit == "columns" else "n_rows"
        wanted = f"length {size}" if array.ndim == 1 else f"shape ({size}, k)"
        raise ShapeError(
            f"{name} has {array.shape[0]} entries but the matrix has {length} {unit}; pass {name} of {wanted}"
        )
