"""A stored matrix, opened in this process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mgspmv.api.embedded import EmbeddedMatrix, limit_to_free
from mgspmv.errors import KindError, OptionError, hide_secrets
from mgspmv.kernels.operands import choose_precision, make_operator, multiply_checked
from mgspmv.kernels.select import choose_backend, find_step_layout
from mgspmv.lookup import VertexLookup
from mgspmv.model import Precision, check_choice, describe_entries
from mgspmv.monitor.progress import ProgressOption, make_report, watched
from mgspmv.partition import Planner
from mgspmv.plan import Plan
from mgspmv.solvers.options import (
    BackendChoice,
    Executor,
    MemoryLimits,
    PageRankOptions,
    Placement,
    Reads,
    TransportChoice,
    check_threads,
    parse_size,
)
from mgspmv.store.held import HeldMatrix, name_matrix
from mgspmv.store.locations import StoreLike, is_in_memory, is_zarr_store
from mgspmv.store.stored_matrix import StoredMatrix, StoredPointers

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

    from mgspmv.cluster.matrix import DistributedMatrix


def open(store: StoreLike, version: str | int | None = None) -> Matrix:
    """Open a stored matrix; its arrays are loaded when they are first used. `open_matrix` is an alias.

    Parameters
    ----------
    store : path or Zarr store
        Local path, fsspec URL or Zarr store.
    version : str or int, optional
        Name or number of an older version, see `list_versions`; default the current one.

    Raises
    ------
    OptionError : an object that is not a store
    StoreError : no complete store of this format version was found, or no such version

    Examples
    --------
    >>> import mgspmv as mg
    >>> _ = mg.ingest(([0, 1, 2], [1, 2, 0]), "web.zarr")
    >>> with mg.open("web.zarr") as web:
    ...     print(web)
    <Matrix: graph of shape (3, 3), 3 entries, pattern, web.zarr>
    """
    if not (isinstance(store, str | os.PathLike) or is_zarr_store(store)):
        raise OptionError(
            f"expected the path, URL or Zarr store of a stored matrix, not a {type(store).__name__}; pass it to "
            "mgspmv.ingest(), which gives a matrix in memory"
        )
    from mgspmv.store.read import open_store

    return Matrix(open_store(store, version))


open_matrix = open


class Matrix(EmbeddedMatrix):
    """A stored matrix of shape (n_rows, n_cols), opened by `open`.

    `A @ x` loads it into memory once and keeps it until `close()` or the end of a `with`.

    Examples
    --------
    >>> import mgspmv as mg
    >>> web = mg.ingest([("home", "shop"), ("shop", "home"), ("blog", "home")])
    >>> web.shape, web.nnz, web.kind
    ((3, 3), 3, 'graph')
    >>> web.vertex_ids.tolist()
    ['blog', 'home', 'shop']
    >>> web @ [1.0, 10.0, 100.0]  # each row sums the vertices that link to it
    array([  0., 101.,  10.])
    """

    def __init__(self, stored: StoredMatrix, transpose_of: Matrix | None = None) -> None:
        super().__init__(stored)
        self._loaded.transpose = transpose_of
        self._is_owner = transpose_of is None

    def on(
        self,
        where: Any = "auto",
        *,
        backend: BackendChoice = "auto",
        kernel: str = "auto",
        threads: int | None = None,
        executor: Executor = "auto",
        device_memory: str | int | None = None,
        host_memory: str | int | None = None,
        transport: TransportChoice = "auto",
        timeout: float = 30.0,
        recover: int = 5,
    ) -> Matrix:
        """Return the matrix with this placement of its products and iterations; both share what is loaded.

            mg.pagerank(A.on("cuda", device_memory="60GB"))
            mg.pagerank(A.on("cpu", threads=2))
            mg.pagerank(A.on(client, executor="tasks"))
            y = A.on("cpu") @ x

        Parameters
        ----------
        where : str, Client or cluster, default "auto"
            `cpu` computes on the host of this process, `cuda` on its current CUDA device, `auto` on a device if one
            exists; or a Dask client, cluster or address of a scheduler, as for `distribute`: each call distributes the
            matrix for itself. Calls that share a cluster take turns.
        backend : {"auto", "cpu", "cuda"}, default "auto"
            With a cluster, the backend of its workers, as for `distribute`.
        kernel : str, default "auto"
            `auto`; for products one of those that docs/gpus.md names, on a cluster `csr-rows` or `csr-serial`; for
            PageRank `csr-rows` or `csr-serial` on hosts, `column-sorted-blocks`, `sell-slices`, `coo` or `csr-split` on
            CUDA. `auto` is csr-rows on hosts, and on a device chosen for the matrix.
        threads : int, optional
            Default: the processors this process may use; on a cluster, those of each worker.
        executor : {"auto", "embedded", "tasks", "supersteps"}, default "auto"
            Executor of iterations: `embedded`, in this process; `supersteps`, in which the workers of a cluster iterate
            in lockstep; or `tasks`, in which each iteration is a round of tasks. `auto` is `supersteps` on a cluster,
            else `embedded`. PageRank makes the same iterations in each, and in `exact` bit-identical ranks.
        device_memory, host_memory : str or int, optional
            Limits as `60GB`, `16GiB` or bytes, on a cluster of each worker, as for `distribute`; in this process only
            for CUDA, where rows that do not fit in device memory are streamed in each step, from the host or the store.
        transport : {"auto", "nccl", "peer"}, default "auto"
            On a cluster, as for `distribute`.
        timeout : float, default 30.0
            On a cluster, seconds without a heartbeat after which a worker is considered lost.
        recover : int, default 5
            On a cluster, how many times at most, when workers are lost or silent, a call continues on the workers that
            remain or rejoined: any call restarts loading the rows, and PageRank resumes from its last checkpoint, or
            starts again without one. 0 raises the error at once.

        Raises
        ------
        OptionError : an invalid option, or one that does not suit the place

        Examples
        --------
        >>> import mgspmv as mg
        >>> web = mg.ingest(([0, 1, 2, 2], [1, 2, 0, 1]))
        >>> mg.pagerank(web.on("cpu", threads=2)).digest() == mg.pagerank(web.on("cpu", threads=1)).digest()
        True
        >>> web.on("cpu") @ [1.0, 2.0, 3.0]
        array([3., 4., 2.])
        """
        client = where
        if isinstance(where, str) and ":" not in where:
            check_choice("where", where, ("auto", "cpu", "cuda"))
            if backend != "auto":
                only = backend if where == "auto" else where
                raise OptionError(f"backend={backend!r} sets the device of a cluster's workers; pass only {only!r}")
            backend, client = where, None  # type: ignore[assignment]
        memory, waiting = (device_memory, host_memory), (timeout, recover)
        return self._place(Placement(client, False, backend, kernel, threads, executor, *memory, transport, *waiting))

    def _place(self, place: Placement) -> Matrix:
        if place == self.place:
            return self
        placed = copy(self)
        placed.place = place
        return placed

    @property
    def T(self) -> Matrix:
        """Transpose, loaded when it is first used and closed with this matrix; of a graph the reversed graph, which
        `pagerank` ranks.

        Raises
        ------
        KindError : the store does not hold it

        Examples
        --------
        >>> import mgspmv as mg
        >>> web = mg.ingest([("a", "c"), ("b", "c")], transpose=True)
        >>> mg.pagerank(web).top(1)[0][0], mg.pagerank(web.T).top(1)[0][0]
        ('c', 'a')
        """
        transpose: Matrix | None = self._loaded.transpose
        if transpose is None:
            if not self.stored.info.has_transpose:
                raise KindError(self._missing_transpose)
            transpose = self._loaded.transpose = Matrix(self.stored.transpose(), transpose_of=self)
        return transpose._place(self.place)

    @property
    def _missing_transpose(self) -> str:
        if is_in_memory(self.stored.place):
            return "the matrix in memory has no transpose; pass transpose=True to ingest(), or use mgspmv.transpose(A)"
        url = self.stored.info.url
        return f"{url} does not hold the transpose; add it with `mgspmv transpose`, and open the store again"

    def find_vertices(self, ids: Sequence[Any] | np.ndarray) -> np.ndarray:
        """Return the numbers of vertices by id, (k,) int64, -1 for unknown ids; not all ids of the store are loaded.

        Raises
        ------
        OptionError : ids that are not integers, or not strings where the store's are
        StoreError : ids cannot be read

        Examples
        --------
        >>> import mgspmv as mg
        >>> mg.ingest([("home", "shop"), ("shop", "blog")]).find_vertices(["shop", "cafe"])
        array([ 2, -1])
        """
        return self._lookup.find(ids)

    def name_vertices(self, numbers: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the ids of vertices by number, (k,) int64 or strings; not all ids of the store are loaded.

        Raises
        ------
        OptionError : a number that no vertex has
        StoreError : ids cannot be read

        Examples
        --------
        >>> import mgspmv as mg
        >>> mg.ingest([("home", "shop"), ("shop", "blog")]).name_vertices([0, 2]).tolist()
        ['blog', 'shop']
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
        """Plan the memory of PageRank (for a `matrix`: of the product) on `workers` workers; reads only `indptr`.

        Parameters
        ----------
        device_memory : str or int, optional
            Memory of each worker's GPU, as `141GB`, `16GiB` or bytes; None where workers compute on the host. Rows of a
            graph that do not fit in GPU memory are streamed in pieces, from the host or, where they do not fit there
            either, from the store.
        host_memory : str or int, optional
            Memory of each worker; None for no limit.
        stop : str, default "change"
            Stop criterion of PageRank, as for `pagerank`: `topk:100` takes additional host memory.
        checkpoint : bool, default False
            True if PageRank writes checkpoints, for which the hosts hold a copy of the ranks.
        threads : int, optional
            Threads of each worker.
        client : Client, cluster or address, optional
            Client of a Dask cluster, as for `distribute`: plan for its workers and their memory. `workers` is ignored.
        backend : {"auto", "cpu", "cuda"}, default "auto"
            With `client`, as for `distribute`; without, `cuda` plans for the current device, and `auto` does if one
            exists.
        timeout : float, default 30.0
            With `client`, as for `distribute`.

        Raises
        ------
        OptionError : an invalid option; `topk` of a `matrix`

        Examples
        --------
        >>> import mgspmv as mg
        >>> web = mg.generate("rmat", scale=10, kind="graph")
        >>> web.plan(2, backend="cpu")
        Plan(pagerank of memory://, 2 workers, at most ... each, ... exchanged per iteration)
        >>> web.plan(host_memory="10kB", backend="cpu").fits
        False
        """
        check_threads(threads)
        sizes = {"device_memory": device_memory, "host_memory": host_memory}
        limits, top = MemoryLimits(*(parse_size(name, size) for name, size in sizes.items())), self._read_top(stop)
        if client is not None:
            from mgspmv.cluster.load import plan_on_cluster

            place = Placement(client, False, backend, "auto", threads, "auto", *limits, timeout=timeout)
            read = None if self.kind == "matrix" and precision == "exact" else precision
            return plan_on_cluster(self.stored, place, Reads(read, top=top, checkpoint=checkpoint))
        info = self.stored.info
        dtype = None if self.is_pattern else "float32" if precision == "float32" else "float64"
        layout = find_step_layout("auto", precision, info.index_dtype, dtype, info.min_weight)
        lays_out = self.kind != "matrix" and layout is not None
        if workers == 1 and choose_backend(backend) == "cuda":
            limits = limit_to_free(limits)
        streams = lays_out or self.kind == "matrix"
        planner = Planner(info, StoredPointers(self.stored), precision, threads, lays_out, streams, top, checkpoint)
        return planner.plan_rows(workers, device_memory=limits.device, host_memory=limits.host, throw=False)

    def close(self) -> None:
        """Free the loaded arrays. The matrix can be used again, and is then loaded again.

        After `ingest(wait=False)` this waits until the store is written; an error of the writing is raised once.
        """
        super().close()
        stored = self.stored
        try:
            if isinstance(stored, HeldMatrix) and stored.writing is not None and stored.writing.finish() is not None:
                self.stored = stored.written
        finally:
            if self._is_owner and self._loaded.transpose is not None:
                self._loaded.transpose.close()

    def __exit__(self, *exception: object) -> None:
        error = exception[1]
        try:
            self.close()
        except Exception as unwritten:
            if not isinstance(error, BaseException):
                raise
            if unwritten is not error:
                error.add_note(f"{hide_secrets(self.stored.info.url)} was not written: {unwritten}")

    @watched
    def distribute(
        self,
        client: Any,
        *,
        precision: Precision | None = None,
        stop: str = "change",
        checkpoint: bool = False,
        weight: bool = True,
        backend: BackendChoice = "auto",
        kernel: str = "auto",
        threads: int | None = None,
        executor: Executor = "auto",
        transport: TransportChoice = "auto",
        device_memory: str | int | None = None,
        host_memory: str | int | None = None,
        timeout: float = 30.0,
        recover: int = 5,
        progress: ProgressOption = None,
    ) -> DistributedMatrix:
        """Load the matrix on the workers of a Dask cluster, each its own rows from the store.

        Parameters
        ----------
        client : Client, cluster or address
            A `distributed.Client`; the address of a scheduler; or a cluster, such as `LocalCluster`.
        precision : {"exact", "float64", "float32"}, optional
            For which values are read now; others are read when they are first needed. Default `exact` for graphs, the
            stored dtype for a `matrix`.
        stop, checkpoint
            As for `plan`: options of PageRank, for which memory is reserved in addition to the matrix.
        weight : bool, default True
            False reads no values.
        kernel, threads, executor, recover
            For calls with the matrix, as for `on`; `DistributedMatrix.on` changes them.
        backend : {"auto", "cpu", "cuda"}, default "auto"
            `cuda` computes on the workers' CUDA devices, `cpu` on their hosts; `auto` on the devices found. On devices
            graphs are laid out for the steps of PageRank in `precision` at once.
        transport : {"auto", "nccl", "peer"}, default "auto"
            How devices send each other slices in supersteps: `nccl`, for which each worker has a separate device; or
            `peer`, through hosts and Dask's comms, the only way for hosts. `auto` is `nccl` where all workers compute
            on separate devices, and there lets devices of one host write into each other's memory where they can, which
            is faster; `Solution.matrix["transport"]` names the transport used.
        device_memory, host_memory : str or int, optional
            Most that each worker may take of its device and of its host, as for `plan`; default: the free memory. Where
            not all rows of a graph fit in device memory, and the transport is not `peer`, some are kept there and the
            others are streamed in each step of PageRank in `exact` or `float32`.
        timeout : float, default 30.0
            Seconds without a heartbeat after which a worker is considered lost. A busy worker still sends them.
        recover : int, default 5
            Also how many times at most loading is restarted, on the workers that remain or rejoined, when workers are
            lost or silent.
        progress : callable or bool, optional
            Called with the `Phase` of loading: `join`, `queue` and `load`, in workers.

        Raises
        ------
        SchedulerNotFoundError, ClusterError : no scheduler answers; it has no workers, or workers without the device or
            the NCCL that is required
        VersionMismatchError : a worker has other versions than this process of mgspmv, Python, or the libraries
        CapacityError : more than a worker may take; the message names the number of workers that suffices
        OptionError : the store is in the memory of this process
        StoreError : a worker cannot read the store

        Examples
        --------
        >>> import mgspmv as mg
        >>> from distributed import Client
        >>> web = mg.ingest(([0, 1, 2, 2], [1, 2, 0, 1]), "web.zarr")
        >>> with Client(n_workers=2, processes=False, dashboard_address=":0") as client, web.distribute(client) as D:
        ...     print(len(D.workers), (mg.pagerank(D).values == mg.pagerank(web).values).all())
        2 True
        """
        check_choice("precision", precision, ("exact", "float64", "float32", None))
        check_choice("weight", weight, (True, False, None))
        memory, waiting = (device_memory, host_memory), (timeout, recover)
        place = Placement(client, False, backend, kernel, threads, executor, *memory, transport, *waiting)
        reads = Reads(precision, bool(weight), self._read_top(stop), checkpoint)
        return self._place(place).distribute_as_placed(reads, progress)

    def distribute_as_placed(self, reads: Reads, progress: ProgressOption = None) -> DistributedMatrix:
        """Load the matrix on the cluster of its placement."""
        from mgspmv.cluster.matrix import distribute_matrix

        return distribute_matrix(self.stored, self.place, reads, make_report(progress))

    def multiply(
        self,
        x: Any,
        *,
        alpha: float = 1.0,
        beta: float = 0.0,
        y: Any = None,
        precision: Literal["float32", "float64"] | None = None,
        weights: bool = True,
        progress: ProgressOption = None,
    ) -> Any:
        """Return alpha * A @ x + beta * y, where the matrix is placed; arguments as for `mgspmv.spmv`.

        Parameters
        ----------
        weights : bool, default True
            False takes each stored entry as 1.
        """
        if self.place.client is None:

            def compute(x: np.ndarray, out: np.ndarray, dtype: Literal["float32", "float64"]) -> np.ndarray:
                bound = self.bind_product(dtype, weights=weights, n_vectors=x.shape[1] if x.ndim == 2 else 1)
                there, result = bound.put(x), bound.put(out)
                bound.multiply(there, result, alpha, beta)
                return bound.get(result)

            return multiply_checked(self, x, y, alpha, beta, precision, compute, weights=weights)
        chosen = choose_precision(precision, getattr(x, "dtype", np.dtype(np.float64)), self.stored.info)
        with self.distribute_as_placed(Reads(chosen, build_layout=False), progress) as D:
            return D.multiply(x, alpha=alpha, beta=beta, y=y, precision=precision, weights=weights)

    def as_linear_operator(
        self, *, precision: Literal["float32", "float64"] | None = None, weight: bool = True
    ) -> LinearOperator:
        """Return the matrix as `scipy.sparse.linalg.LinearOperator`, whose products are those of `spmv`.

        Functions of `scipy.sparse.linalg` take a matrix with values itself too. Products with the transpose (`rmatvec`,
        for `svds`, `lsqr` and others) need it in the store.

        Parameters
        ----------
        precision : {"float32", "float64"}, optional
            Precision of products; default the dtype of the values, float64 for a pattern, and float64 where x has that.
        weight : bool, default True
            False takes each stored entry as 1.

        Raises
        ------
        OptionError : an invalid option
        BackendError, MissingDependencyError : the matrix is placed on `cuda` and there is no device; or no CuPy

        Examples
        --------
        >>> import mgspmv as mg
        >>> import scipy.sparse.linalg
        >>> A = mg.generate("stencil2d", nx=4, ny=4)
        >>> x, status = scipy.sparse.linalg.cg(A.as_linear_operator(), A @ ([1.0] * 16))
        >>> status, x.round(4)[:3]
        (0, array([1., 1., 1.]))
        """
        _ = self.place.computes  # raises if there is no device
        transpose = self.T if self._loaded.transpose is not None or self.stored.info.has_transpose else None
        return make_operator(self, transpose, self._missing_transpose, precision=precision, weights=weight)

    def rmatvec(self, x: Any) -> np.ndarray:
        """Return A.T @ x; SciPy calls it by this name. Needs the stored transpose.

        Examples
        --------
        >>> import mgspmv as mg
        >>> mg.ingest([("a", "b", 2.0), ("b", "a", 3.0)], transpose=True).rmatvec([1.0, 10.0])
        array([20.,  3.])
        """
        product: np.ndarray = self.T.multiply(x)
        return product

    def to_scipy(self) -> Any:
        """Return the matrix as `scipy.sparse.csr_array`, shape (n_rows, n_cols); a pattern gets ones of float64.

        Examples
        --------
        >>> import mgspmv as mg
        >>> mg.ingest([("a", "b", 2.0), ("b", "a", 3.0)]).to_scipy().toarray()
        array([[0., 3.],
               [2., 0.]])
        """
        import scipy.sparse

        indptr, indices = self.stored.read_array("indptr"), self.stored.read_array("indices")
        data: Any = np.ones(self.nnz) if self.is_pattern else self.stored.read_array("data")
        if self.order is not None:
            from mgspmv.ingest.block_sorting import sort_parts

            rows = np.repeat(self.order, np.diff(indptr))
            block = sort_parts([(rows, self.order[indices], data)], 0, *self.shape)
            indptr, indices, data = block.indptr, block.indices, block.data
        return scipy.sparse.csr_array((data, indices, indptr), shape=self.shape)

    def __rmatmul__(self, x: Any) -> np.ndarray:
        """Return x @ A, which is A.T @ x: of shape (n_cols,) or (k, n_cols); needs the stored transpose."""
        product: np.ndarray = self.T.multiply(np.asarray(x).T).T
        return product

    def __repr__(self) -> str:
        return f"<Matrix: {describe_entries(self.stored.info)}, {hide_secrets(self.stored.info.url)}>"

    def _read_top(self, stop: str) -> int | None:
        """Return the number of highest vertices to be proven; None for none."""
        top = PageRankOptions(stop=stop).check_top(self.shape[0])
        if top is not None and self.kind == "matrix":
            raise OptionError(
                f"stop={stop!r} is for PageRank, but {name_matrix(self.stored)} is of kind 'matrix'; leave it out"
            )
        return top
