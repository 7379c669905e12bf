"""What matrices say of themselves that come from stores."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from mgspmv.ingest_report import IngestReport
from mgspmv.model import Kind, MatrixInfo
from mgspmv.store.read import StoredMatrix


class DescribedMatrix:
    """What a matrix says of itself that comes from a store, wherever its entries are."""

    def __init__(self, stored: StoredMatrix) -> None:
        self.stored = stored

    @property
    def info(self) -> MatrixInfo:
        """All that the store says of itself."""
        return self.stored.info

    @property
    def ingest_report(self) -> IngestReport | None:
        """What the source of the store was taken for; None for a store without a report."""
        return self.info.ingest_report

    @property
    def shape(self) -> tuple[int, int]:
        """(n_rows, n_cols)."""
        return self.info.shape

    @property
    def ndim(self) -> int:
        """2."""
        return 2

    @property
    def nnz(self) -> int:
        """Entries that are stored."""
        return self.info.nnz

    @property
    def kind(self) -> Kind:
        """What rows mean: of a `graph` row i has the in-edges of vertex i."""
        return self.info.kind

    @property
    def is_pattern(self) -> bool:
        """Whether all entries are 1 and none is stored."""
        return self.info.is_pattern

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """Dtype of the stored values; None for a pattern."""
        return None if self.info.dtype is None else np.dtype(self.info.dtype)

    @property
    def is_transpose(self) -> bool:
        """Whether this is the `T` of another matrix."""
        return self.stored.original is not None

    @cached_property
    def vertex_ids(self) -> np.ndarray | None:
        """(n_rows,) int64 or strings, ascending: the source's name of each row; None when they are 0..n-1."""
        stored = self.stored.original or self.stored
        return None if stored.info.vertex_ids is None else stored.read_array("vertex_ids")

    @cached_property
    def order(self) -> np.ndarray | None:
        """(n,) int32 or int64: the source's number of each stored row and column; None when they are in its order.

        Vectors and results are in the source's order all the same.
        """
        return self.stored.read_order()
