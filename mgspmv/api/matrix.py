"""A stored matrix, opened in this process."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mgspmv.api.arguments import check_threads, limit_to_free, parse_size
from mgspmv.errors import KindError, OptionError, hide_secrets
from mgspmv.iterate.options import PageRankOptions
from mgspmv.iterate.start import OutWeights
from mgspmv.kernels.catalogue import Backend
from mgspmv.kernels.device import (
    free_device_memory,
    read_block,
    read_out_degree,
    release_device_memory,
    report_full_device,
)
from mgspmv.kernels.laid_rows import LaidPieces, LaidRows
from mgspmv.kernels.operands import IntegerProduct, check_vectors, choose_precision, start_product
from mgspmv.kernels.rank_steps import RankSteps
from mgspmv.kernels.rates import measure_device, measure_rates
from mgspmv.kernels.select import (
    BoundKernel,
    StepLayout,
    bind_kernel,
    bind_product,
    choose_backend,
    choose_for_vectors,
    find_step_layout,
)
from mgspmv.lookup import VertexLookup
from mgspmv.model import CsrBlock, Precision, Progress, check_choice, describe_entries, free_memory
from mgspmv.monitor.progress import watched
from mgspmv.order import permute, restore
from mgspmv.partition import Plan, choose_piece, plan_rows, predict_seconds, warn_of_streaming
from mgspmv.store.described import DescribedMatrix
from mgspmv.store.places import StoreLike
from mgspmv.store.read import StoredMatrix, open_store

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

    from mgspmv.distribute.matrix import DistributedMatrix
    from mgspmv.kernels.streamed_csr import StreamedCsr


def open_matrix(store: StoreLike, version: str | int | None = None) -> Matrix:
    """Open a stored matrix; its arrays are loaded when they are first used.

    Parameters
    ----------
    version : name or number of an older version, see `list_versions`; default the current one

    Raises
    ------
    StoreError : no complete store of this format version was found, or no such version
    """
    return Matrix(open_store(store, version))


class Matrix(DescribedMatrix):
    """A stored matrix of shape (n_rows, n_cols), opened by `open_matrix`.

    `A @ x` loads it into memory once and keeps it until `close()` or the end of a `with`.
    """

    def __init__(self, stored: StoredMatrix, transpose_of: Matrix | None = None) -> None:
        super().__init__(stored)
        self._transpose = transpose_of
        self._is_owner = transpose_of is None
        self._loaded: dict[tuple[str | None, Backend], CsrBlock] = {}
        self._bound: dict[Hashable, BoundKernel] = {}
        self._layouts: dict[Hashable, LaidPieces] = {}
        self._streamed: dict[Hashable, StreamedCsr | None] = {}
        self._out_weights: OutWeights | None = None

    @property
    def T(self) -> Matrix:
        """Transpose, loaded when it is first used and closed with this matrix; of a graph the reversed graph, which
        `pagerank` ranks.

        Raises
        ------
        KindError : the store does not hold it
        """
        if self._transpose is None:
            if not self.info.has_transpose:
                raise KindError(self._missing_transpose)
            self._transpose = Matrix(self.stored.transpose(), transpose_of=self)
        return self._transpose

    @property
    def _missing_transpose(self) -> str:
        url = self.info.url
        return f"{url} does not hold the transpose; add it by mgspmv.transpose(store), and open the store again"

    def find_vertices(self, ids: Sequence[Any] | np.ndarray) -> np.ndarray:
        """Return the numbers of vertices by id, (k,) int64, -1 for unknown ids; not all ids of the store are loaded.

        Raises
        ------
        OptionError : ids that are not integers, or not strings where the store's are
        StoreError : ids cannot be read
        """
        return self._lookup.find(ids)

    def name_vertices(self, numbers: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the ids of vertices by number, (k,) int64 or strings; not all ids of the store are loaded.

        Raises
        ------
        OptionError : a number that no vertex has
        StoreError : ids cannot be read
        """
        return self._lookup.read(numbers)

    @cached_property
    def _lookup(self) -> VertexLookup:
        return VertexLookup(self.stored.original or self.stored)

    def plan(
        self,
        workers: int = 1,
        *,
        device_memory: str | int | None = None,
        host_memory: str | int | None = None,
        precision: Precision = "exact",
        stop: str = "change",
        checkpoint: bool = False,
        threads: int | None = None,
        client: Any = None,
        backend: Literal["auto", "cpu", "cuda"] = "auto",
        timeout: float = 30.0,
    ) -> Plan:
        """Plan the memory and time of PageRank (for a `matrix`: the product) on `workers` workers; reads only `indptr`.

        Parameters
        ----------
        device_memory : of each worker's GPU, as `141GB`, `16GiB` or bytes; None where workers compute on the host. Rows
            of a graph that do not fit in GPU memory are streamed in pieces, from the host or, where they do not fit
            there either, from the store
        host_memory : of each worker; None for no limit
        stop : of PageRank, as for `pagerank`: `topk:100` takes additional host memory
        checkpoint : whether PageRank writes checkpoints, for which the hosts hold a copy of the ranks
        threads : of each worker
        client : of a Dask cluster, as for `distribute`: plan for its workers and their memory, and predict
            seconds from what they measure with some of their rows. `workers` is ignored
        backend : with `client`, as for `distribute`; without, `cuda` plans, likewise, for the current device, and
            `auto` does if one exists
        timeout : with `client`, as for `distribute`

        Raises
        ------
        CapacityError : it does not fit; the message names the number of workers that suffices
        OptionError : an invalid option; `topk` of a `matrix`
        """
        check_threads(threads)
        limits: dict[str, Any] = {"device_memory": parse_size(device_memory), "host_memory": parse_size(host_memory)}
        beside: dict[str, Any] = {"top": self._read_top(stop), "checkpoint": checkpoint}
        if client is not None:
            from mgspmv.distribute.loading import plan_on_cluster

            reads = None if self.kind == "matrix" and precision == "exact" else precision
            options: dict[str, Any] = {"precision": reads, "threads": threads, "backend": backend, **beside}
            return plan_on_cluster(self.stored, client, **options, **limits, timeout=timeout)
        indptr, info = self.stored.read_array("indptr"), self.info
        dtype = None if self.is_pattern else "float32" if precision == "float32" else "float64"
        layout = find_step_layout("auto", precision, info.index_dtype, dtype, info.min_weight)
        lays_out = self.kind != "matrix" and layout is not None
        planning: dict[str, Any] = {"precision": precision, "threads": threads, "lays_out": lays_out, **beside}
        planning["streams"] = lays_out or self.kind == "matrix"
        is_here = workers == 1 and choose_backend(backend) == "cuda"
        if is_here:
            limits = limit_to_free(**limits)
        plan = plan_rows(info, indptr, workers, **planning, **limits)
        if is_here and lays_out:
            options = {"threads": threads, "streaming": plan.workers[0].streaming}
            rates = measure_device(self.stored, 0, info.shape[0], dtype, precision, **options)
            release_device_memory()
        elif workers == 1 and limits["device_memory"] is None:
            rates = measure_rates(threads)
        else:
            return plan
        return predict_seconds(plan, [rates])

    def close(self) -> None:
        """Free the loaded arrays. The matrix can be used again, and is then loaded again."""
        self._bound.clear()
        self._layouts.clear()
        self._streamed.clear()
        self._loaded.clear()
        self._out_weights = None
        if self._is_owner and self._transpose is not None:
            self._transpose.close()

    @watched
    def distribute(
        self,
        client: Any,
        *,
        precision: Precision | None = None,
        stop: str = "change",
        checkpoint: bool = False,
        weights: bool = True,
        threads: int | None = None,
        backend: Literal["auto", "cpu", "cuda"] = "auto",
        transport: Literal["auto", "nccl", "peer"] = "auto",
        device_memory: str | int | None = None,
        host_memory: str | int | None = None,
        timeout: float = 30.0,
        recover: int = 0,
        on_progress: Progress | None = None,
    ) -> DistributedMatrix:
        """Load the matrix on the workers of a Dask cluster, each its own rows from the store.

        Parameters
        ----------
        client : a `distributed.Client`; the address of a scheduler; or a cluster, such as `LocalCluster`
        precision : for which values are read now; others are read when they are first needed. Default `exact` for
            graphs, the stored dtype for a `matrix`
        stop, checkpoint : of PageRank, for which memory is reserved in addition to the matrix, as for `plan`
        weights : False reads no values
        threads : of each worker's kernels; default as many as its cluster gave the worker
        backend : `cuda` computes on the workers' CUDA devices, `cpu` on their hosts; `auto` on the devices
            found. On devices graphs are laid out for the steps of PageRank in `precision` at once
        transport : how devices send each other slices in supersteps: `nccl`, for which each worker has a separate
            device; or `peer`, through hosts and Dask's comms, the only way for hosts. `auto` is `nccl` where all
            workers compute on separate devices, and there lets devices of one host write into each other's memory where
            they can, which is faster; `Solution.matrix["transport"]` names the transport used
        device_memory, host_memory : most that each worker may take of its device and of its host, as for `plan`;
            default: the free memory. Where not all rows of a graph fit in device memory, and the transport is not
            `peer`, some are kept there and the others are streamed in each step of PageRank in `exact` or `float32`
        timeout : seconds without a heartbeat after which a worker is considered lost. A busy worker still sends them
        recover : how many times at most loading is restarted, on the workers that remain or rejoined, when workers are
            lost or silent
        on_progress : called with (phase, workers done, workers in all); phases `join`, `queue` and `load`

        Raises
        ------
        SchedulerNotFoundError, ClusterError : no scheduler answers; it has no workers, or workers without the device or
            the NCCL that is required
        VersionMismatchError : a worker has other versions than this process of mgspmv, Python, or the libraries
        CapacityError : more than a worker may take; the message names the number of workers that suffices
        OptionError : the store is in the memory of this process
        StoreError : a worker cannot read the store
        """
        from mgspmv.distribute.matrix import distribute_matrix

        check_threads(threads)
        check_choice("precision", precision, ("exact", "float64", "float32", None))
        check_choice("backend", backend, ("auto", "cpu", "cuda"))
        check_choice("transport", transport, ("auto", "nccl", "peer"))
        places: dict[str, Any] = {"backend": backend, "transport": transport}
        places |= {"device_memory": parse_size(device_memory), "host_memory": parse_size(host_memory)}
        options: dict[str, Any] = {"precision": precision, "weights": weights, "threads": threads, **places}
        options |= {"top": self._read_top(stop), "checkpoint": checkpoint}
        waits: dict[str, Any] = {"timeout": timeout, "recover": recover, "on_progress": on_progress}
        return distribute_matrix(self.stored, client, **options, **waits)

    def as_linear_operator(
        self,
        *,
        precision: Literal["float32", "float64"] | None = None,
        backend: Literal["auto", "cpu", "cuda"] = "auto",
        threads: int | None = None,
        weights: bool = True,
    ) -> LinearOperator:
        """Return the matrix as `scipy.sparse.linalg.LinearOperator`, whose products are those of `spmv`.

        Functions of `scipy.sparse.linalg` take a matrix with values itself too. Products with the transpose (`rmatvec`,
        for `svds`, `lsqr` and others) need it in the store.

        Parameters
        ----------
        precision : of products; default the dtype of the values, float64 for a pattern, and float64 where x has that
        backend, threads : as for `spmv`
        weights : False takes each stored entry as 1

        Raises
        ------
        OptionError : an invalid option
        BackendError : `cuda` and no device, or CuPy is not installed
        """
        from mgspmv.iterate.operator import MatrixOperator, choose_dtype

        check_threads(threads)
        check_choice("precision", precision, ("float32", "float64", None))
        options: dict[str, Any] = {"precision": precision, "threads": threads, "weights": weights}
        options |= {"backend": choose_backend(backend)}
        transpose = self.T if self._transpose is not None or self.info.has_transpose else None
        return MatrixOperator(
            self.shape,
            precision or choose_dtype(self.dtype),
            partial(self.multiply, **options),
            None if transpose is None else partial(transpose.multiply, **options),
            self._missing_transpose,
        )

    def rmatvec(self, x: Any) -> np.ndarray:
        """Return A.T @ x; SciPy calls it by this name. Needs the stored transpose."""
        return self.T.multiply(x)

    def to_scipy(self) -> Any:
        """Return the matrix as `scipy.sparse.csr_array`, shape (n_rows, n_cols); a pattern gets ones of float64."""
        import scipy.sparse

        indptr, indices = self.stored.read_array("indptr"), self.stored.read_array("indices")
        data: Any = np.ones(self.nnz) if self.is_pattern else self.stored.read_array("data")
        if self.order is not None:
            from mgspmv.ingest.sorter import sort_parts

            rows = np.repeat(self.order, np.diff(indptr))
            block = sort_parts([(rows, self.order[indices], data)], 0, *self.shape)
            indptr, indices, data = block.indptr, block.indices, block.data
        return scipy.sparse.csr_array((data, indices, indptr), shape=self.shape)

    def block(
        self, dtype: str | None, threads: int | None = None, backend: Backend = "cpu", top: int | None = None
    ) -> CsrBlock:
        """Return the rows as stored, with values of this dtype, or without; loaded once, by `threads` threads.

        Parameters
        ----------
        backend : `cuda` holds them on the current device, and not on the host
        top : number of highest vertices to be proven, for which memory is reserved; None for none

        Raises
        ------
        CapacityError : the free memory does not suffice
        """
        dtype = None if self.is_pattern else dtype
        key = (dtype, backend)
        if key not in self._loaded:
            is_cuda = backend == "cuda"
            memory = {"device_memory": free_device_memory()} if is_cuda else {"host_memory": free_memory()}
            precision: Precision = "float32" if dtype == "float32" else "float64"
            self._plan_here(dtype, precision, threads, top=top, **memory)
            read = read_block if is_cuda else StoredMatrix.read_block
            self._loaded[key] = read(self.stored, 0, self.shape[0], dtype, threads)
        return self._loaded[key]

    def bind(
        self,
        dtype: str | None,
        precision: Precision,
        *,
        kernel: str = "auto",
        threads: int | None = None,
        backend: Backend = "cpu",
        top: int | None = None,
        multiplies: bool = False,
    ) -> BoundKernel:
        """Return the kernel of the rows with values of this dtype, or without; bound once.

        Parameters
        ----------
        top : as for `block`
        multiplies : for products with x of `precision`; else for steps of PageRank

        Raises
        ------
        OptionError : the backend has no kernel of that name
        FormatError : the kernel does not support this matrix
        CapacityError : the free memory does not suffice
        """
        key = (dtype, precision, kernel, threads, backend, multiplies)
        if key not in self._bound:
            bind: Callable[..., BoundKernel] = bind_product if multiplies else bind_kernel
            options: dict[str, Any] = {"kernel": kernel, "threads": threads, "backend": backend}
            self._bound[key] = bind(self.block(dtype, threads, backend, top), precision, **options)
        return self._bound[key]

    def bind_product(
        self,
        dtype: Literal["float32", "float64"],
        *,
        kernel: str = "auto",
        threads: int | None = None,
        backend: Backend = "cpu",
        weights: bool = True,
        n_vectors: int = 1,
        **limits: int | None,
    ) -> BoundKernel | StreamedCsr:
        """Return the kernel for products with x of this dtype; it streams the rows that do not fit on the device.

        Parameters
        ----------
        weights : False takes each stored entry as 1
        n_vectors : columns of x
        limits : `device_memory` and `host_memory`, as for `spmv`, in bytes

        Raises
        ------
        OptionError, FormatError, CapacityError : as for `bind`, and in `StreamedCsr`
        """
        own = dtype if weights and not self.is_pattern else None
        if backend == "cuda":
            key = (dtype, kernel, weights, *limits.values())
            if key not in self._streamed:
                self._streamed[key] = self._bind_streamed(own, dtype, kernel, threads, **limits)
            if (streamed := self._streamed[key]) is not None:
                return streamed
        kernel = choose_for_vectors(kernel, backend, self.shape, n_vectors)
        return self.bind(own, dtype, kernel=kernel, threads=threads, backend=backend, multiplies=True)

    def _bind_streamed(
        self,
        values: str | None,
        dtype: Literal["float32", "float64"],
        kernel: str,
        threads: int | None,
        **limits: int | None,
    ) -> StreamedCsr | None:
        """Return the kernel that streams rows through the current device; None where all rows fit."""
        from mgspmv.kernels.streamed_csr import StreamedCsr

        is_there = any(held == "cuda" for _, held in self._loaded)
        if is_there and all(limit is None for limit in limits.values()):
            return None
        _, plan = self._plan_here(values, dtype, threads, streams=True, **limit_to_free(**limits))
        warn_of_streaming(plan, stacklevel=4)
        streaming = plan.workers[0].streaming
        if streaming is None:
            return None
        options: dict[str, Any] = {"is_pattern": values is None, "threads": threads, "kernel": kernel}
        return StreamedCsr(self.stored, 0, self.shape[0], dtype, streaming, **options)

    def bind_steps(
        self,
        dtype: str | None,
        precision: Precision,
        layout: StepLayout = "auto",
        threads: int | None = None,
        top: int | None = None,
        **limits: int | None,
    ) -> RankSteps:
        """Return the steps of PageRank on the current device, for all rows, with values of this dtype or without.

        Their layout is made once, while the matrix is read piece by piece: the host never holds it, the device a piece.

        Parameters
        ----------
        top : as for `block`
        limits : `device_memory` and `host_memory`, as for `pagerank`, in bytes

        Raises
        ------
        FormatError : the layout cannot hold this matrix
        CapacityError : the free memory does not suffice
        """
        dtype = None if self.is_pattern else dtype
        key = (dtype, layout, *limits.values())
        if key not in self._layouts:
            memory = limit_to_free(**limits)
            indptr, plan = self._plan_here(dtype, precision, threads, lays_out=True, streams=True, top=top, **memory)
            warn_of_streaming(plan, stacklevel=5)
            streaming = plan.workers[0].streaming

            def read(start: int, stop: int) -> CsrBlock:
                return read_block(self.stored, start, stop, dtype, threads)

            named = None if layout == "auto" else layout
            with report_full_device("the layout of the matrix for steps of PageRank"):
                rows = LaidRows(indptr, read, layout=named, piece_entries=choose_piece(self.nnz, streaming))
                is_read = read_out_degree(self.stored, 0, self.shape[0], threads) > 0
                places = rows.place_streamed(is_read, streaming)
                self._layouts[key] = rows.lay_out(places, places.all_columns, places.n_sent, streaming)
        return RankSteps(self._layouts[key], precision)

    def read_out_weight(self, use_weights: bool, threads: int | None = None) -> np.ndarray:
        """Return out-weights of the vertices, (n,) float64, read-only; out-degrees unless weights are used.

        Those of a reversed graph are summed from its stored values, and cached.
        """
        if self._out_weights is None:
            self._out_weights = OutWeights(self.stored, 0, self.shape[0], threads)
        return self._out_weights.read(use_weights)

    def multiply(
        self,
        x: Any,
        *,
        alpha: float = 1.0,
        beta: float = 0.0,
        y: Any = None,
        kernel: str = "auto",
        backend: Backend | Literal["auto"] = "auto",
        precision: Literal["float32", "float64"] | None = None,
        threads: int | None = None,
        device_memory: int | None = None,
        host_memory: int | None = None,
        weights: bool = True,
    ) -> np.ndarray:
        """Return alpha * A @ x + beta * y, computed in this process; see `mgspmv.api.spmv`.

        Parameters
        ----------
        device_memory, host_memory : in bytes
        weights : False takes each stored entry as 1
        """
        computes = choose_backend(backend)
        x = check_vectors("x", x, self.shape[1], "columns")
        chosen = choose_precision(precision, x.dtype, self.info)
        out = start_product(y, beta, (self.shape[0], *x.shape[1:]), chosen)
        integers = IntegerProduct.find(self.info, x, y, alpha, beta, precision, weights=weights)
        x = permute(np.ascontiguousarray(x, dtype=chosen), self.order)
        if beta != 0:
            out = permute(out, self.order)
        options: dict[str, Any] = {"kernel": kernel, "threads": threads, "backend": computes, "weights": weights}
        options |= {"device_memory": device_memory, "host_memory": host_memory}
        bound = self.bind_product(chosen, n_vectors=x.shape[1] if x.ndim == 2 else 1, **options)
        x, out = bound.put(x), bound.put(out)
        bound.multiply(x, out, alpha, beta)
        restored: np.ndarray = restore(bound.get(out), self.order)
        if integers is not None:
            integers.check(restored, partial(self.multiply, precision="float64", **options))
        return restored

    def __rmatmul__(self, x: Any) -> np.ndarray:
        """Return x @ A, which is A.T @ x: of shape (n_cols,) or (k, n_cols); needs the stored transpose."""
        return self.T.multiply(np.asarray(x).T).T

    def __repr__(self) -> str:
        return f"<Matrix: {describe_entries(self.info)}, {hide_secrets(self.info.url)}>"

    def check_room(
        self, dtype: str | None, threads: int | None = None, top: int | None = None, **limits: int | None
    ) -> None:
        """Check that CSR with values of this dtype, or without, and vectors fit in the current device's memory.

        Parameters
        ----------
        top : as for `block`
        limits : `device_memory` and `host_memory`, as for `pagerank`, in bytes

        Raises
        ------
        CapacityError : they do not fit
        """
        precision: Precision = "float32" if dtype == "float32" else "float64"
        self._plan_here(dtype, precision, threads, top=top, **limit_to_free(**limits))

    def _read_top(self, stop: str) -> int | None:
        """Return the number of highest vertices to be proven; None for none."""
        top = PageRankOptions(stop=stop).check_top(self.shape[0])
        if top is not None and self.kind == "matrix":
            raise OptionError(f"stop={stop!r} is of PageRank, and {self.info.url} is of kind 'matrix'; leave it out")
        return top

    def _plan_here(
        self, dtype: str | None, precision: Precision, threads: int | None, **planning: Any
    ) -> tuple[np.ndarray, Plan]:
        """Return the row pointers, and the plan of the matrix in this process with values of this dtype, or without."""
        indptr = self.stored.read_array("indptr", threads=threads)
        loaded = self.info if dtype else replace(self.info, dtype=None)
        return indptr, plan_rows(loaded, indptr, precision=precision, threads=threads, **planning)
