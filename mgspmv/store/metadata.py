"""Properties of matrices that come from stores."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Self

import numpy as np

from mgspmv.display.frames import render_card
from mgspmv.ingest_report import IngestReport
from mgspmv.model import Kind, MatrixInfo
from mgspmv.store.stored_matrix import StoredMatrix


class MatrixProperties:
    """Properties of a matrix that comes from a store, wherever its entries are held."""

    __array_ufunc__ = None  # so that NumPy leaves `x @ A` to `__rmatmul__`

    multiply: Callable[..., Any]
    close: Callable[[], None]

    def __init__(self, stored: StoredMatrix) -> None:
        self.stored = stored

    def __matmul__(self, x: Any) -> Any:
        """Return A @ x for x of shape (n_cols,) or (n_cols, k); float32 when A's values and x are, else float64.

        Raises
        ------
        OptionError : A and x are integers, and the product may not be exact in float64; see `mgspmv.spmv`
        """
        return self.multiply(x)

    def matvec(self, x: Any) -> Any:
        """Return A @ x; SciPy calls it by this name.

        Examples
        --------
        >>> import mgspmv as mg
        >>> mg.ingest([("a", "b", 2.0), ("b", "a", 3.0)]).matvec([1.0, 10.0])
        array([30.,  2.])
        """
        return self.multiply(x)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _repr_html_(self) -> str:
        return render_card(self, self.info)

    @property
    def info(self) -> MatrixInfo:
        """Metadata of the stored matrix, once it is written."""
        return self.stored.written.info

    @property
    def ingest_report(self) -> IngestReport | None:
        """Report of the ingest that made the store; None for a store without a report."""
        return self.stored.info.ingest_report

    @property
    def shape(self) -> tuple[int, int]:
        """(n_rows, n_cols)."""
        return self.stored.info.shape

    @property
    def ndim(self) -> int:
        """Number of dimensions: 2."""
        return 2

    @property
    def nnz(self) -> int:
        """Number of stored entries."""
        return self.stored.info.nnz

    @property
    def kind(self) -> Kind:
        """Meaning of the rows: row i of a `graph` has the in-edges of vertex i."""
        return self.stored.info.kind

    @property
    def is_pattern(self) -> bool:
        """True if all entries are 1 and no values are stored."""
        return self.stored.info.is_pattern

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """Dtype of the stored values; None for a pattern."""
        dtype = self.stored.info.dtype
        return None if dtype is None else np.dtype(dtype)

    @property
    def is_transpose(self) -> bool:
        """True if this is the `T` of another matrix."""
        return self.stored.original is not None

    @cached_property
    def vertex_ids(self) -> np.ndarray | None:
        """(n_rows,) int64 or strings, ascending: id of each row in the source; None if the ids are 0..n-1."""
        stored = self.stored.original or self.stored
        return None if stored.info.vertex_ids is None else stored.read_array("vertex_ids")

    @cached_property
    def order(self) -> np.ndarray | None:
        """(n,) int32 or int64: the source's number of each stored row and column; None if they are in its order.

        Vectors and results are always in the source's order.
        """
        return self.stored.read_order()
