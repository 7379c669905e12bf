"""The rows of a matrix that one worker holds, and the kernels that multiply them.

RowBlock          rows in the memory of the host
DeviceRowBlock    rows on the device: kernels over CSR, and layouts for steps that all devices make together
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Any, Literal

import numpy as np

from mgspmv.cluster.worker_rows import RowsAddress, WorkerRows
from mgspmv.errors import CapacityError
from mgspmv.exchange.nccl import NcclGroup, join_group
from mgspmv.exchange.nccl_slices import NcclSlices, SharedColumns, share_columns
from mgspmv.exchange.peer import AllToAll, Halo, make_halo
from mgspmv.exchange.peer_comm import Message
from mgspmv.heartbeat import find_heartbeat
from mgspmv.kernels.catalogue import Backend
from mgspmv.kernels.context import begin_sorting
from mgspmv.kernels.cuda import CudaMany, StreamedCsr
from mgspmv.kernels.device import (
    LITTLE,
    current_device,
    describe_device,
    get,
    make_row_reader,
    put,
    read_block,
    read_graph,
    read_out_degree,
    read_vector,
    release_device_memory,
    report_full_device,
)
from mgspmv.kernels.layout import LayoutBuilder, MatrixLayout, RowOrder
from mgspmv.kernels.rank_products import begin_compiling
from mgspmv.kernels.rank_steps import RankSteps
from mgspmv.kernels.select import (
    BoundKernel,
    BoundMany,
    StepLayout,
    bind_kernel,
    bind_many,
    bind_product,
    choose_for_vectors,
)
from mgspmv.model import CsrBlock, Precision, default_threads
from mgspmv.partition import choose_piece
from mgspmv.plan import WorkerPlan
from mgspmv.solvers.pagerank import OutWeights
from mgspmv.store.held import is_on_device
from mgspmv.store.read import StoreAddress
from mgspmv.store.stored_matrix import StoredMatrix

CONCURRENT = 4
"""Divisor of the entries per streamed piece if layouts or other kernels already hold device memory."""


@dataclass(frozen=True)
class RowBlockSpec:
    """Description of the rows that a worker is to hold."""

    address: StoreAddress | RowsAddress
    """Address of the matrix, or of the rows that workers have built of it."""
    rank: int
    """Rank of the worker."""
    bounds: tuple[int, ...]
    """First row of each worker, and the number of rows."""
    plan: WorkerPlan
    """Plan of its rows and memory."""
    dtype: str | None
    """Data type of the values to read at loading; None to read no values."""
    threads: int | None
    """Number of threads to read and multiply with."""
    backend: Backend
    """Backend of the worker."""
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
    """A row block, read by the worker that holds it, and the kernels bound to it.

    The columns of a graph are renumbered to those that the block reads, see `mgspmv.exchange.peer`. The columns of a
    matrix are not, as its products get all of x.

    Parameters
    ----------
    stored : matrix that has the rows, in a store or on this worker

    Attributes
    ----------
    rank, nnz : rank of the worker that holds it, and number of entries of its rows
    n_terms : the same, as an approximate number of multiplications
    out_weights : out-weights of the rows' vertices, if the matrix is a graph
    """

    backend: Backend = "cpu"

    def __init__(self, spec: RowBlockSpec, stored: StoredMatrix) -> None:
        self.stored = stored
        self.rank, self.bounds, self.nnz = spec.rank, spec.bounds, spec.plan.nnz
        self.n_terms = self.nnz
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
        held += [self.stored] if isinstance(self.stored, WorkerRows) else []
        return sum(int(h.nbytes) for h in held if h is not None)

    def count_bytes(self, dtype: str | None) -> int:
        """Count the bytes of the CSR block with values of this dtype, or without; 0 if it is not read yet."""
        values = None if dtype is None or self.stored.info.is_pattern else self._values.get(dtype)
        return 0 if self._pattern is None else self._pattern.nbytes + (0 if values is None else values.nbytes)

    def fetch(self, name: str, start: int, stop: int) -> np.ndarray:
        """Return elements of an array of the rows, on the host."""
        return self.stored.read_array(name, start, stop, self.threads)

    def close(self, reason: str) -> None:
        """Close the connections to other devices, of which a block on a host has none."""

    def bind(
        self, dtype: str | None, precision: Precision, kernel: str = "auto", threads: int | None = None
    ) -> BoundKernel:
        """Return the kernel of the block with values of this dtype, or without; both are made once."""
        key = (dtype, precision, kernel, threads)
        with self._lock:
            if key not in self._bound:
                block, threads = self._read_block(dtype), threads or self.threads
                self._bound[key] = bind_kernel(block, precision, kernel=kernel, threads=threads, backend=self.backend)
            return self._bound[key]

    def bind_many(self, dtype: str | None, precision: Precision, threads: int | None = None) -> BoundMany:
        """Return the multi-vector kernels of the block with values of this dtype, or without."""
        with self._lock:
            block = self._read_block(dtype)
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

    def _read_block(self, dtype: str | None) -> CsrBlock:
        return replace(self._read_pattern(), data=self._read_values(dtype))

    def _read_values(self, dtype: str | None) -> np.ndarray | None:
        if dtype is None or self.stored.info.is_pattern:
            return None
        if dtype not in self._values:
            self._values[dtype] = self.stored.read_values(self.start, self.stop, dtype, self.threads)
        return self._values[dtype]


class DeviceRowBlock(RowBlock):
    """Row block on the worker's current device. CSR is read when first needed, as steps have a separate layout.

    Attributes
    ----------
    group : the devices of all workers, if they are connected
    """

    backend = "cuda"

    def __init__(self, spec: RowBlockSpec, stored: StoredMatrix) -> None:
        self.group: NcclGroup | None = stored.group if isinstance(stored, WorkerRows) else None
        self._blocks: dict[str | None, CsrBlock] = {}
        self._many: dict[str | None, BoundMany] = {}
        self._products: dict[tuple[str, str, bool], BoundKernel | StreamedCsr] = {}
        self._layouts: dict[tuple[str | None, StepLayout], tuple[MatrixLayout, SharedColumns | None]] = {}
        self._plan, self._streaming, self._may_share = spec.plan, spec.plan.streaming, spec.may_share
        self._out_degree: Any = None
        """(n_rows,) int64 out-degrees on the device, as they were read with the rows, until a run takes them."""
        super().__init__(spec, stored)

    @property
    def nbytes(self) -> int:
        """Bytes as in `RowBlock`, with device memory of blocks and layouts and that which other devices write into."""
        streamed = [made for made in [*self._products.values()] if isinstance(made, StreamedCsr)]
        many = [made.stream for made in [*self._many.values()] if isinstance(made, CudaMany)]
        held: list[Any] = [*self._blocks.values(), *many, *streamed, *(laid for laid, _ in [*self._layouts.values()])]
        shared = 0 if self.group is None else self.group.nbytes
        return super().nbytes + shared + sum(int(h.nbytes) for h in held)

    def count_bytes(self, dtype: str | None) -> int:
        block = self._blocks.get(None if self.stored.info.is_pattern else dtype)
        return 0 if block is None else block.nbytes

    def close(self, reason: str) -> None:
        """Close the connections to other devices."""
        if self.group is not None:
            self.group.close()

    def _load(self, dtype: str | None) -> None:
        """Read nothing yet."""

    def multiply(self, x: Any, y: Any, options: ProductOptions) -> Any:
        """Multiply as `RowBlock.multiply` does, by a kernel chosen for the block with all columns of the matrix."""
        import cupy

        dtype, beta, kernel, weights = options.dtype, options.beta, options.kernel, options.weights
        shape = (self.stop - self.start, *x.shape[1:])
        k = shape[1] if x.ndim == 2 else 1
        find_heartbeat().n_terms = self.nnz * k
        if self._streaming is None:
            kernel = choose_for_vectors(kernel, "cuda", (self.stop - self.start, self.stored.info.shape[1]), k)
        with self._lock:  # a kernel has buffers for one product at a time, and several tasks run
            key = (dtype, kernel, weights)
            if key not in self._products:
                if self._streaming is None:
                    block = self._read_whole(dtype if weights else None)
                    self._products[key] = bind_product(block, dtype, kernel=kernel, backend="cuda")
                else:
                    self._products[key] = self._bind_streamed(dtype, kernel, weights)
            product = cupy.empty(shape, dtype) if beta == 0 or y is None else cupy.array(y, dtype, order="C")
            self._products[key].multiply(cupy.ascontiguousarray(put(x)), product, options.alpha, beta)
        return get(product) if isinstance(x, np.ndarray) else product

    def bind_many_whole(self, dtype: str | None, precision: Precision) -> BoundMany:
        """Bind as `bind_many` does, with all columns of the matrix, not just those that the block reads.

        Raises
        ------
        CapacityError : the block does not fit in device memory
        """
        values = None if self.stored.info.is_pattern else dtype
        with self._lock:
            if values not in self._many:
                self._many[values] = bind_many(self._read_whole(dtype), precision, backend="cuda")
            return self._many[values].with_precision(precision)

    def _read_whole(self, dtype: str | None) -> CsrBlock:
        values = None if self.stored.info.is_pattern else dtype
        if values not in self._blocks:
            self._blocks[values] = read_block(self.stored, self.start, self.stop, values, self.threads)
        return self._blocks[values]

    def _bind_streamed(self, dtype: Literal["float32", "float64"], kernel: str, weights: bool) -> StreamedCsr:
        streaming = self._streaming
        assert streaming is not None
        if self._layouts or self._products:  # they hold the device memory, and the pinned memory
            n_entries = max(1, streaming.piece_entries // CONCURRENT)
            streaming = replace(streaming, held="store", kept_bytes=0, piece_entries=n_entries)
        is_pattern = self.stored.info.is_pattern or not weights
        given = (self.stored, self.start, self.stop, dtype, streaming)
        return StreamedCsr(*given, is_pattern=is_pattern, threads=self.threads, kernel=kernel)

    def _read_pattern(self) -> CsrBlock:
        if self._streaming is not None:
            raise CapacityError(
                f"the {self.stop - self.start:,} rows of rank {self.rank} do not fit in the memory of "
                f"{describe_device()}. Rows are streamed only for products, and for PageRank in exact or float32 with "
                "transport='nccl'; use one of these, more GPUs, or backend='cpu'"
            )
        return super()._read_pattern()

    # --- layouts for steps on devices, made by all workers together

    def join_devices(self, turns: AllToAll, hellos: Mapping[int, Message]) -> None:
        """Connect the device with those of the other workers, unless already connected.

        Parameters
        ----------
        hellos : their `greet` messages
        """
        if hellos:
            self.group = join_group(turns, hellos, self.group, may_share=self._may_share)

    def bind_steps(
        self,
        dtype: str | None,
        layout: StepLayout,
        precision: Precision,
        join: Callable[[], None],
        check: Callable[[], None],
    ) -> RankSteps:
        """Return the steps of PageRank on this device, made together with the other workers; the layout is built once.

        Parameters
        ----------
        join : connects the devices, see `join_devices`; rows are read meanwhile
        check : raises when a worker is lost or the work was aborted

        Raises
        ------
        FormatError : the layout cannot hold this matrix
        CapacityError : it does not fit in the free memory
        """
        key = (None if self.stored.info.is_pattern else dtype, layout)
        if key in self._layouts:
            join()
        else:
            if self._streaming is not None:  # earlier products hold the memory that is planned for the layout
                with self._lock:
                    self._products.clear()
            value, shape = key[0], (self.stop - self.start, self.stored.info.shape[1])
            begin_compiling(layout, None if value is None else np.dtype(value), precision, shape, self.nnz)
            begin_sorting(current_device())
            with report_full_device("the layout of the matrix for steps of PageRank"):
                self._layouts[key] = self._lay_out(*key, precision == "exact", join, check)
            release_device_memory(beyond=LITTLE)  # that of the rows in CSR, which plans of runs do not count
        laid, columns = self._layouts[key]
        if columns is None or self.group is None:
            return RankSteps(laid, precision)
        n_terms = max(self.stored.info.nnz, self.stored.info.shape[0])
        return RankSteps(laid, precision, NcclSlices(self.group, columns, n_terms))

    def _lay_out(
        self, dtype: str | None, layout: StepLayout, is_exact: bool, join: Callable[[], None], check: Callable[[], None]
    ) -> tuple[MatrixLayout, SharedColumns | None]:
        """Build the layout from rows read in pieces; also return the columns of each device, None if one has all."""
        with ThreadPoolExecutor(1, "mgspmv-survey") as pool:
            surveying = pool.submit(copy_context().run, self._survey, dtype, layout, is_exact, current_device())
            join()  # to connect takes as long
            rows, places = surveying.result()
        n_cols = self.stored.info.shape[1]
        own, columns, n_columns = places.columns, None, places.n_sent
        release_device_memory()  # else lasting arrays are cut from freed blocks and pin them
        if self.group is not None:
            mark = partial(rows.mark_columns, n_cols) if rows.is_near else None
            columns = share_columns(self.group, places.columns, places.n_sent, self.bounds, mark)
            own, columns, n_columns = columns.places, replace(columns, places=None), columns.slices.starts[-1]
            places = replace(places, columns=None)  # frees their memory for the layout
        return rows.build_layout(places, own, n_columns, self._streaming, check), columns

    def take_out_weight(self, use_weights: bool) -> Any:
        """Return the out-weights of the rows' vertices, or their out-degrees, (n_rows,) float64: those of a graph as it
        is stored are on the device, except where rows are streamed, as these leave no memory for them."""
        stored, rows = self.stored, (self.start, self.stop)
        degree, self._out_degree = self._out_degree, None
        if self._streaming is not None or stored.original is not None or stored.info.kind != "graph":
            return self.out_weights.read(use_weights)
        if use_weights:
            return read_vector(stored, "out_weight", *rows, self.threads)
        degree = read_out_degree(stored, *rows, self.threads) if degree is None else degree
        return degree.astype(np.float64)

    def _survey(
        self, dtype: str | None, layout: StepLayout, is_exact: bool, device: int
    ) -> tuple[LayoutBuilder, RowOrder]:
        """Survey and order the rows on a device."""
        import cupy

        streaming = self._streaming
        with cupy.cuda.Device(device):
            size = choose_piece(self._plan, is_there=is_on_device(self.stored))
            indptr, read, degree = self._read_at_once(dtype) if self.nnz <= size else self._read_pieces(dtype)
            rows = LayoutBuilder(
                indptr,
                read,
                layout=None if layout == "auto" else layout,
                piece_entries=size,
                row_offset=self.start,
                bin_bytes=self._plan.bin_bytes,
                is_exact=is_exact,
                may_stream=streaming is not None,
            )
            if degree is None:
                degree = read_out_degree(self.stored, self.start, self.stop, self.threads)
            return rows, rows.place_streamed(degree, streaming)

    def _read_at_once(self, dtype: str | None) -> tuple[Any, Callable[[int, int], CsrBlock], Any]:
        """Read all rows; return row pointers, a function that returns the rows as a block, and out-degrees."""
        rows = (self.start, self.stop)
        indptr, block, degree, _ = read_graph(self.stored, dtype, self.threads, rows=rows)
        self._out_degree = degree
        return indptr, lambda first, stop: block, degree

    def _read_pieces(self, dtype: str | None) -> tuple[Any, Callable[[int, int], CsrBlock], None]:
        """Read row pointers; return them, a function that reads rows, and no out-degrees, which would take memory."""
        read = self.stored.read_array if self._streaming is not None else partial(read_vector, self.stored)
        indptr = read("indptr", self.start, self.stop + 1, self.threads)
        first_entry = int(indptr[0])
        indptr -= first_entry
        return indptr, make_row_reader(self.stored, self.start, indptr, first_entry, dtype, self.threads), None
