"""The rows of a matrix that one worker holds, and the kernels on its host that multiply them."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal

import numpy as np

from mgspmv.exchange.halo import Halo, make_halo
from mgspmv.heartbeat import find_heartbeat
from mgspmv.kernels.catalogue import Backend
from mgspmv.kernels.device import get, put
from mgspmv.kernels.select import BoundKernel, BoundMany, bind_kernel, bind_many
from mgspmv.model import CsrBlock, Precision, default_threads
from mgspmv.plan import Streaming
from mgspmv.solvers.inputs import OutWeights
from mgspmv.store.matrix import StoredMatrix
from mgspmv.store.read import StoreAddress


@dataclass(frozen=True)
class RowBlockSpec:
    """Description of the rows that a worker is to hold."""

    address: StoreAddress
    rank: int
    """Rank of the worker."""
    bounds: tuple[int, ...]
    """First row of each worker, and the number of rows."""
    nnz: int
    """Number of entries of its rows."""
    dtype: str | None
    """Data type of the values to read at loading; None to read no values."""
    threads: int | None
    """Number of threads to read and multiply with."""
    backend: Backend
    """Backend of the worker."""
    streaming: Streaming | None = None
    """Settings for streaming rows that do not fit in device memory; None for all rows in it."""
    may_share: bool = True
    """Whether its device and the others of its host may write into each other's memory."""


@dataclass(frozen=True)
class ProductOptions:
    """Options of a product alpha A x + beta y with the rows of a block."""

    dtype: Literal["float32", "float64"]
    """Data type of values, x and the product."""
    alpha: float = 1.0
    beta: float = 0.0
    kernel: str = "auto"
    """Name of a kernel, or `auto`."""
    threads: int | None = None
    """Number of threads; None for those of the block."""
    weights: bool = True
    """Whether values are used; False takes each entry as 1."""


class RowBlock:
    """A row block, read from the store by the worker that holds it, and the kernels bound to it.

    The columns of a graph are renumbered to those that the block reads, see `mgspmv.exchange.halo`. The columns of a
    matrix are not, as its products get all of x.

    Attributes
    ----------
    rank, nnz : rank of the worker that holds it, and number of entries of its rows
    n_terms : the same, as an approximate number of multiplications
    out_weights : out-weights of the rows' vertices, if the matrix is a graph
    """

    backend: Backend = "cpu"

    def __init__(self, spec: RowBlockSpec) -> None:
        self.stored: StoredMatrix = spec.address.open()
        self.rank, self.bounds, self.nnz = spec.rank, spec.bounds, spec.nnz
        self.n_terms = spec.nnz
        self.threads = spec.threads or default_threads()
        self._lock = Lock()
        self._pattern: CsrBlock | None = None
        self._halo: Halo | None = None
        self._values: dict[str, np.ndarray | None] = {}
        self._bound: dict[tuple[Any, ...], BoundKernel] = {}
        self.out_weights = OutWeights(self.stored, self.start, self.stop, self.threads)
        self._load(spec.dtype)

    @property
    def start(self) -> int:
        """First row."""
        return self.bounds[self.rank]

    @property
    def stop(self) -> int:
        """Row after the last."""
        return self.bounds[self.rank + 1]

    @property
    def halo(self) -> Halo | None:
        """Columns of x that kernels over CSR hold; None for all."""
        self._read_pattern()
        return self._halo

    @property
    def nbytes(self) -> int:
        """Bytes of the block's arrays, values in every dtype used so far, columns and out-weights."""
        held: list[Any] = [self._pattern, self._halo, *self._values.values(), self.out_weights]
        return sum(int(h.nbytes) for h in held if h is not None)

    def close(self, reason: str) -> None:
        """Close the connections to other devices, of which a block on a host has none."""

    def bind(
        self, dtype: str | None, precision: Precision, kernel: str = "auto", threads: int | None = None
    ) -> BoundKernel:
        """Return the kernel of the block with values of this dtype, or without; both are made once."""
        key = (dtype, precision, kernel, threads)
        with self._lock:
            if key not in self._bound:
                p = self._read_pattern()
                block = CsrBlock(p.row_offset, p.n_cols, p.indptr, p.indices, self._read_values(dtype))
                self._bound[key] = bind_kernel(
                    block, precision, kernel=kernel, threads=threads or self.threads, backend=self.backend
                )
            return self._bound[key]

    def bind_many(self, dtype: str | None, precision: Precision, threads: int | None = None) -> BoundMany:
        """Return the multi-vector kernels of the block with values of this dtype, or without."""
        with self._lock:
            p = self._read_pattern()
            block = CsrBlock(p.row_offset, p.n_cols, p.indptr, p.indices, self._read_values(dtype))
        return bind_many(block, precision, backend=self.backend, threads=threads or self.threads)

    def multiply(self, x: Any, y: Any, options: ProductOptions) -> Any:
        """Compute alpha A x + beta y for the rows of this block.

        Parameters
        ----------
        x : (n_cols,) or (n_cols, k) of all columns, of `dtype`; a NumPy or CuPy array
        y : (n_rows,) or (n_rows, k) of these rows; not read when beta is 0

        Returns
        -------
        A NumPy or CuPy array, as x.
        """
        dtype, beta = options.dtype, options.beta
        is_numpy = isinstance(x, np.ndarray)
        x, y = (array if array is None or isinstance(array, np.ndarray) else get(array) for array in (x, y))
        bound = self.bind(dtype if options.weights else None, dtype, options.kernel, options.threads)
        held = np.ascontiguousarray(x if self._halo is None else self._halo.select(x))
        shape = (self.stop - self.start, *x.shape[1:])
        product = np.empty(shape, dtype) if beta == 0 or y is None else np.array(y, dtype, order="C")
        find_heartbeat().n_terms = self.nnz * (shape[1] if x.ndim == 2 else 1)
        bound.multiply(held, product, options.alpha, beta)
        return product if is_numpy else put(product)

    def _load(self, dtype: str | None) -> None:
        """Read the pattern and the values of this dtype."""
        self._read_pattern()
        self._read_values(dtype)

    def _read_pattern(self) -> CsrBlock:
        if self._pattern is None:
            block = self.stored.read_block(self.start, self.stop, None, self.threads)
            if self.stored.info.kind != "matrix":
                block, self._halo = make_halo(block, self.rank, self.bounds, self.threads)
            self._pattern = block
        return self._pattern

    def _read_values(self, dtype: str | None) -> np.ndarray | None:
        if dtype is None or self.stored.info.is_pattern:
            return None
        if dtype not in self._values:
            self._values[dtype] = self.stored.read_values(self.start, self.stop, dtype, self.threads)
        return self._values[dtype]
