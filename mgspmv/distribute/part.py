"""The rows of a matrix that one worker holds."""

from __future__ import annotations

from threading import Lock
from typing import Any, Literal

import numpy as np

from mgspmv.exchange.halo import Halo, make_halo
from mgspmv.kernels.cpu import CpuBlock
from mgspmv.kernels.select import bind_kernel
from mgspmv.model import CsrBlock, Precision, default_threads
from mgspmv.store import StoreAddress, StoredMatrix


class Part:
    """A row block, read from the store by the worker that holds it, and the kernels bound to it.

    The columns of a graph are renumbered to those that the block reads, see `mgspmv.exchange.halo`; those of a matrix,
    whose products get x from outside, are not.

    Parameters
    ----------
    rank : which of the workers this is
    bounds : first row of each worker, and the number of rows
    dtype : of the values to read at once; None for none
    threads : to read and multiply with
    """

    def __init__(
        self, address: StoreAddress, rank: int, bounds: tuple[int, ...], dtype: str | None, threads: int | None
    ) -> None:
        self.stored: StoredMatrix = address.open()
        self.rank, self.bounds = rank, bounds
        self.threads = threads or default_threads()
        self._lock = Lock()
        block = self.stored.read_block(self.start, self.stop, None, self.threads)
        self.halo: Halo | None = None
        if self.stored.info.kind != "matrix":
            block, self.halo = make_halo(block, rank, bounds, self.threads)
        self._pattern: CsrBlock = block
        self._values: dict[str, np.ndarray | None] = {}
        self._bound: dict[tuple[Any, ...], CpuBlock] = {}
        self._read_values(dtype)

    @property
    def start(self) -> int:
        """First row."""
        return self.bounds[self.rank]

    @property
    def stop(self) -> int:
        """Row after the last."""
        return self.bounds[self.rank + 1]

    @property
    def nbytes(self) -> int:
        """Bytes of the block's arrays, values in every dtype that was asked for, and of the list of columns."""
        values = sum(v.nbytes for v in self._values.values() if v is not None)
        return self._pattern.nbytes + values + (0 if self.halo is None else self.halo.nbytes)

    def bind(
        self, dtype: str | None, precision: Precision, kernel: str = "auto", threads: int | None = None
    ) -> CpuBlock:
        """The kernel of the block with values of this dtype, or without; values are read and kernels bound once.

        Raises
        ------
        OptionError : no kernel has that name
        """
        key = (dtype, precision, kernel, threads)
        with self._lock:
            if key not in self._bound:
                p = self._pattern
                block = CsrBlock(p.row_offset, p.n_cols, p.indptr, p.indices, self._read_values(dtype))
                self._bound[key] = bind_kernel(block, precision, kernel=kernel, threads=threads or self.threads)
            return self._bound[key]

    def multiply(
        self,
        x: np.ndarray,
        y: np.ndarray | None,
        alpha: float,
        beta: float,
        *,
        dtype: Literal["float32", "float64"],
        kernel: str = "auto",
        threads: int | None = None,
    ) -> np.ndarray:
        """alpha A x + beta y for the rows of this part.

        Parameters
        ----------
        x : (n_cols,) or (n_cols, k) of all columns, of `dtype`
        y : (n_rows,) or (n_rows, k) of these rows; not read when beta is 0
        dtype : `float32` or `float64`, of values, x and the product
        """
        bound = self.bind(dtype, dtype, kernel, threads)
        held = np.ascontiguousarray(x if self.halo is None else self.halo.select(x))
        shape = (self.stop - self.start, *x.shape[1:])
        product = np.empty(shape, dtype) if beta == 0 or y is None else np.array(y, dtype, order="C")
        bound.multiply(held, product, alpha, beta)
        return product

    def _read_values(self, dtype: str | None) -> np.ndarray | None:
        if dtype is None or self.stored.info.is_pattern:
            return None
        if dtype not in self._values:
            self._values[dtype] = self.stored.read_values(self.start, self.stop, dtype, self.threads)
        return self._values[dtype]
