"""A matrix whose row blocks are held by the workers of a Dask cluster."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakSet

import numpy as np

from mgspmv.distribute.agent import join_team, load_part, measure_host, measure_part, multiply_part
from mgspmv.distribute.cluster import Cluster, WorkerInfo
from mgspmv.distribute.device_part import TeamSpec
from mgspmv.distribute.part import PartSpec
from mgspmv.distribute.places import Places, Transport, choose_places
from mgspmv.distribute.spans import Spans
from mgspmv.errors import (
    ClosedError,
    ClusterError,
    KindError,
    MissingTransposeError,
    OptionError,
    StoreError,
    StoreNotFoundError,
)
from mgspmv.exchange.links import Member
from mgspmv.kernels.device import get, put
from mgspmv.kernels.operands import check_form, check_shape, check_vectors, choose_precision, start_product
from mgspmv.kernels.select import find_step_layout
from mgspmv.model import MatrixInfo, Precision, check_choice, describe_entries, list_facts
from mgspmv.order import permute, restore
from mgspmv.partition import Memory, Plan, limit, list_shares, plan_rows, predict_seconds, warn_of_streaming
from mgspmv.store import DescribedMatrix, StoreAddress, StoredMatrix

if TYPE_CHECKING:
    from distributed import Client, Future
    from scipy.sparse.linalg import LinearOperator

Progress = Callable[[str, int, int | None], None]
"""Called with (phase, done, total or None)."""

TIMEOUT_S = 30.0
"""Seconds that a worker may be silent, unless the user says otherwise."""


class DistributedMatrix(DescribedMatrix):
    """A matrix of shape (n_rows, n_cols) on a cluster, made by `Matrix.distribute`; a context manager.

    Each worker read its own rows from the store and keeps them until `close()`, until this object is gone, or until the
    client is. A worker that is lost takes its rows with it: distribute the matrix again.
    """

    __array_ufunc__ = None  # so that NumPy leaves `x @ D` to `__rmatmul__`

    def __init__(
        self,
        stored: StoredMatrix,
        cluster: Cluster,
        plan: Plan,
        members: tuple[Member, ...],
        places: Places,
        parts: list[Future],
    ) -> None:
        super().__init__(stored)
        self.cluster = cluster
        self.plan = plan
        self.members = members
        self.places = places
        self._parts = parts
        self._pending: WeakSet[Future] = WeakSet()
        self._spans = Spans("mgspmv", "spmv")
        self.load_s = 0.0
        """Seconds that loading took."""
        self.bandwidths: tuple[float, ...] = ()
        """Bytes per second of the memory of each worker's device, 0 of a host; empty where nobody asked."""

    @property
    def bounds(self) -> tuple[int, ...]:
        """First row of each worker, and the number of rows."""
        return self.plan.bounds

    @property
    def client(self) -> Client:
        """Through which the workers are reached."""
        return self.cluster.client

    @property
    def backend(self) -> Literal["cpu", "cuda"] | None:
        """Where all workers compute; None where some do on their hosts and some on devices."""
        return self.places.backend

    @property
    def transport(self) -> Literal["nccl", "peer"]:
        """How slices go from worker to worker in supersteps; devices that may use NCCL may write directly as well, and
        `Solution.matrix["transport"]` says what a run did."""
        return self.places.transport

    @property
    def workers(self) -> tuple[str | int, ...]:
        """Names of the workers, in the order of their rows."""
        return tuple(member.name for member in self.members)

    @property
    def part_keys(self) -> list[str]:
        """Key of the task that loaded each part.

        Raises
        ------
        ClosedError : it was closed
        """
        self.check_open()
        return [future.key for future in self._parts]

    def check_open(self) -> None:
        """
        Raises
        ------
        ClosedError : it was closed
        SchedulerNotFoundError : the client was closed, or lost its scheduler
        """
        if not self._parts:
            raise ClosedError(f"the distributed matrix of {self.info.url} was closed; distribute it again")
        self.cluster.check_client()

    def __matmul__(self, x: Any) -> Any:
        """y = D @ x for x of shape (n_cols,) or (n_cols, k); see `multiply`."""
        return self.multiply(x)

    def __rmatmul__(self, x: Any) -> Any:
        raise KindError(
            "x @ D needs the transpose on the cluster: ingest with transpose=True, distribute A.T, and compute "
            "A.T.distribute(client) @ x"
        )

    def multiply(
        self,
        x: Any,
        *,
        alpha: float = 1.0,
        beta: float = 0.0,
        y: Any = None,
        kernel: str = "auto",
        precision: str | None = None,
        threads: int | None = None,
        weights: bool = True,
    ) -> Any:
        """alpha * D @ x + beta * y, each worker its rows.

        Parameters
        ----------
        x : (n_cols,) or (n_cols, k), real: an array of NumPy or CuPy, which is sent to every worker; or a dask array of
            either, whose chunks go from worker to worker
        y : (n_rows,) or (n_rows, k); needed unless beta is 0, when it is not read
        weights : False takes each stored entry as 1
        others : as for `mgspmv.api.spmv`

        Returns
        -------
        For an array of NumPy or CuPy the product as such an array. For a dask x a dask array with a chunk for each
        worker, which is being computed and stays on the workers.

        Raises
        ------
        ShapeError, OptionError : as for `mgspmv.api.spmv`; a dask x where the matrix has a client of its own
        WorkerLostError, WorkerTimeoutError : a worker is gone or does not answer
        ClosedError : the matrix was closed
        """
        if _is_dask(x):
            return self._multiply_lazy(x, y, alpha, beta, precision, (kernel, threads, weights))
        is_on_device = _is_cuda(x)
        x, y = (get(array) if _is_cuda(array) else array for array in (x, y))
        x = check_vectors("x", x, self.shape[1], "columns")
        chosen = choose_precision(precision, x.dtype, self.info)
        x = permute(np.ascontiguousarray(x, dtype=chosen), self.order)
        out = start_product(y, beta, (self.shape[0], *x.shape[1:]), chosen)
        if beta != 0:
            out = permute(out, self.order)
        slices = list(pairwise(self.bounds))
        keys = self.part_keys
        x_sent = self.cluster.scatter(x, self.members, "send x")
        y_sent: list[Any] = [None] * len(keys)
        if beta != 0:
            y_sent = list(self.cluster.scatter_each([out[a:b] for a, b in slices], self.members, "send y"))
        options = (alpha, beta, chosen, kernel, threads, weights)
        futures = self._submit(keys, [x_sent] * len(keys), y_sent, options)
        try:
            results = self.cluster.settle(futures, self.members, "product")
        except BaseException:
            self.cluster.release(futures)
            raise
        for (start, stop), rows in zip(slices, results, strict=True):
            out[start:stop] = rows
        product = restore(out, self.order)
        return put(product) if is_on_device else product

    def as_linear_operator(
        self,
        transpose: DistributedMatrix | Literal[True] | None = None,
        *,
        precision: Literal["float32", "float64"] | None = None,
        threads: int | None = None,
        weights: bool = True,
    ) -> LinearOperator:
        """The matrix as `scipy.sparse.linalg.LinearOperator`, each of whose products is a round of tasks.

        Functions of `scipy.sparse.linalg` that do not need the transpose take a matrix with values itself too.

        Parameters
        ----------
        transpose : `A.T` distributed, for `rmatvec`, which `svds`, `lsqr` and others call. True distributes it now, as
            this matrix was, and the workers hold it until the operator is gone
        precision : as for `Matrix.as_linear_operator`
        threads : of each worker
        weights : False takes each stored entry as 1

        Raises
        ------
        OptionError : `transpose` is of another matrix
        MissingTransposeError : True, and the store does not hold it
        CapacityError, ClusterError : as of `Matrix.distribute`, with True
        """
        from mgspmv.iterate.operator import MatrixOperator, check_transpose, choose_dtype

        check_choice("precision", precision, ("float32", "float64", None))
        if transpose is True:
            transpose = self._distribute_transpose()
        elif transpose is not None:
            check_transpose(self, transpose)
        options: dict[str, Any] = {"precision": precision, "threads": threads, "weights": weights}
        return MatrixOperator(
            self.shape,
            precision or choose_dtype(self.dtype),
            partial(self.multiply, **options),
            None if transpose is None else partial(transpose.multiply, **options),
            "products with the transpose need it on the cluster: distribute A.T too, and pass that as transpose to "
            "as_linear_operator, or transpose=True",
        )

    def matvec(self, x: Any) -> Any:
        """D @ x, by the name that SciPy looks for."""
        return self @ x

    def close(self) -> None:
        """Free the memory of the workers at once; products that were begun are finished before."""
        parts, self._parts = self._parts, []
        if not parts:
            return
        try:
            self.cluster.check_client()
            self.cluster.await_done([f for f in self._pending if not f.done()])
            self.cluster.free([future.key for future in parts], self.members)
        except ClusterError:
            pass  # what a worker did not let go of now it drops with the key
        finally:
            for future in parts:
                future.release()
            self.cluster.close()

    def __enter__(self) -> DistributedMatrix:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f"on {len(self.members)} workers of {self.cluster}" if self._parts else "closed"
        return f"<DistributedMatrix: {describe_entries(self.info)}, {state}>"

    def _repr_html_(self) -> str:
        from mgspmv.display.cards import Card, draw_shares, render_card
        from mgspmv.display.numbers import format_seconds

        facts = [
            ("cluster", str(self.cluster)),
            ("computes on", {"cpu": "hosts", "cuda": "devices", None: "hosts and devices"}[self.backend]),
            ("slices go by", self.transport),
            ("loaded in", format_seconds(self.load_s)),
        ]
        is_open = bool(self._parts)
        state = f"on {len(self.members)} workers" if is_open else "closed"
        charts = draw_shares(list_shares(self.plan, [f"worker {name}" for name in self.workers]))
        return render_card(
            Card("DistributedMatrix", [*list_facts(self.info), *facts], state, is_open, charts if is_open else ())
        )

    def _distribute_transpose(self) -> DistributedMatrix:
        if not (self.info.has_transpose or self.is_transpose):
            raise MissingTransposeError(
                f"{self.info.url} does not hold the transpose; ingest it with transpose=True (--transpose)"
            )
        precision = "float32" if self.info.dtype == "float32" else "float64"
        options: dict[str, Any] = {"precision": precision, "backend": self.backend or "auto", "lay_out": False}
        return distribute_matrix(self.stored.transpose(), self.client, **options, timeout=self.cluster.timeout)

    def _submit(self, keys: list[str], xs: list[Any], ys: list[Any], options: tuple[Any, ...]) -> list[Future]:
        token = uuid.uuid4().hex
        given = list(zip(self.members, keys, xs, ys, strict=True))
        with self._spans.enter("product"):
            return [
                self.cluster.submit(member, f"mgspmv-multiply-{token}-{rank}", multiply_part, key, x, y, *options)
                for rank, (member, key, x, y) in enumerate(given)
            ]

    def _multiply_lazy(
        self, x: Any, y: Any, alpha: float, beta: float, precision: str | None, options: tuple[Any, ...]
    ) -> Any:
        import dask.array as da
        from distributed import futures_of

        if self.cluster.is_owner:
            raise OptionError(
                "x is a dask array, whose product stays on the workers for the client of its user; pass that client to "
                "distribute instead of an address or a cluster, or pass x as NumPy array"
            )
        keys = self.part_keys
        self.cluster.check_members(self.members, "product")  # nobody watches the tasks of this product
        check_form("x", x, self.shape[1], "columns")
        chosen = choose_precision(precision, x.dtype, self.info)
        shape = (self.shape[0], *x.shape[1:])
        rows = tuple(int(n) for n in np.diff(self.bounds))
        ys: list[Any] = [None] * len(rows)
        if beta != 0:
            if not _is_dask(y):
                y = da.from_array(start_product(y, beta, shape, chosen), chunks=(rows, *shape[1:]))
            check_form("y", y, shape[0], "rows")
            check_shape(y, shape)
            ys = self._compute_pieces(permute(y.astype(chosen), self.order), rows)
        x = permute(x.astype(chosen), self.order)
        pieces = self._compute_pieces(x, x.chunks[0])
        futures = self._submit(keys, [pieces] * len(keys), ys, (alpha, beta, chosen, *options))
        self._pending.update(futures)
        chunks = [
            da.from_delayed(future, (n, *x.shape[1:]), dtype=chosen)
            for future, n in zip(futures, rows, strict=True)
            if n
        ]
        product = da.concatenate(chunks) if chunks else da.zeros(shape, dtype=chosen)
        if self.order is None:
            return product
        restored = self.client.persist(restore(product, self.order))
        self._pending.update(futures_of(restored))  # it has no more of those above, which it waits for
        return restored

    def _compute_pieces(self, array: Any, rows: tuple[int, ...]) -> list[Future]:
        """Futures of the chunks of an array of one or two dimensions, cut into these numbers of rows."""
        cut = array.rechunk({0: rows, **({1: -1} if array.ndim == 2 else {})})
        futures: list[Future] = self.client.compute(list(cut.to_delayed().ravel()))
        return futures


def distribute_matrix(
    stored: StoredMatrix,
    client: Any,
    *,
    precision: Precision | None = None,
    weights: bool = True,
    threads: int | None = None,
    backend: str = "auto",
    transport: Transport = "auto",
    device_memory: int | None = None,
    host_memory: int | None = None,
    top: int | None = None,
    checkpoint: bool = False,
    lay_out: bool = True,
    timeout: float = TIMEOUT_S,
    on_progress: Progress | None = None,
) -> DistributedMatrix:
    """Let each worker of a cluster read its rows; see `mgspmv.api.Matrix.distribute`.

    Parameters
    ----------
    top, checkpoint : as of `plan_rows`
    lay_out : make the rows of a graph ready for the steps of PageRank at once, on devices
    """
    address = stored.address()
    report = on_progress or _ignore
    cluster = Cluster(client, timeout)
    try:
        began = time.perf_counter()
        report("join", 0, None)
        limits: dict[str, Any] = {"device_memory": device_memory, "host_memory": host_memory, "threads": threads}
        limits |= {"top": top, "checkpoint": checkpoint}
        workers, places, plan, team, dtype = _plan_parts(
            stored, cluster, precision, weights, backend, transport, lay_out=lay_out, **limits
        )
        warn_of_streaming(plan, stacklevel=4)
        members = tuple(w.member for w in workers)
        if not lay_out:  # only steps that are laid out write directly, and NCCL is slower where it is told so
            places = replace(places, may_share=False)
        specs = _specify(address, workers, places, plan, dtype, threads)
        with cluster.lease(lambda: report("queue", 0, None)):
            parts = _load(cluster, members, specs, team, report)
        matrix = DistributedMatrix(stored, cluster, plan, members, places, parts)
        matrix.load_s = time.perf_counter() - began
        matrix.bandwidths = tuple(w.device.bandwidth for w in workers)
        return matrix
    except BaseException:
        cluster.close()
        raise


def plan_on_cluster(
    stored: StoredMatrix,
    client: Any,
    *,
    precision: Precision | None = None,
    threads: int | None = None,
    backend: str = "auto",
    device_memory: int | None = None,
    host_memory: int | None = None,
    top: int | None = None,
    checkpoint: bool = False,
    timeout: float = TIMEOUT_S,
) -> Plan:
    """What the workers of a cluster will hold, and how fast they measure themselves to be; see
    `mgspmv.api.Matrix.plan`."""
    address = stored.address()
    cluster = Cluster(client, timeout)
    try:
        limits: dict[str, Any] = {"device_memory": device_memory, "host_memory": host_memory, "threads": threads}
        limits |= {"top": top, "checkpoint": checkpoint}
        workers, places, plan, team, dtype = _plan_parts(
            stored, cluster, precision, True, backend, "auto", lay_out=True, **limits
        )
        if team is None:
            return plan
        specs = _specify(address, workers, places, plan, dtype, threads)
        with cluster.lease(lambda: None):  # a run would be in the way, and be kept waiting
            futures = [
                cluster.submit(w.member, f"mgspmv-measure-{uuid.uuid4().hex}", measure_part, spec, plan.precision)
                for spec, w in zip(specs, workers, strict=True)
            ]
            try:
                return predict_seconds(plan, cluster.settle(futures, team.members, "measure"))
            finally:
                cluster.release(futures)
    finally:
        cluster.close()


def _plan_parts(
    stored: StoredMatrix,
    cluster: Cluster,
    precision: Precision | None,
    weights: bool,
    backend: str,
    transport: Transport,
    *,
    lay_out: bool,
    threads: int | None,
    device_memory: int | None,
    host_memory: int | None,
    top: int | None,
    checkpoint: bool,
) -> tuple[list[WorkerInfo], Places, Plan, TeamSpec | None, str | None]:
    """The workers, where they compute, what each will hold, what they lay out together, and the dtype of the values."""
    workers = cluster.join(devices=backend != "cpu")
    info, members = stored.info, tuple(w.member for w in workers)
    places = choose_places(workers, backend, transport)
    if device_memory is not None and all(memory is None for memory in places.device_memory):
        raise OptionError(
            "device_memory limits what is taken of GPUs, and none of the workers computes on one; leave it out, or "
            "pass host_memory"
        )
    precision = precision or _default_precision(info)
    dtype = None if info.is_pattern or not weights else "float32" if precision == "float32" else "float64"
    team = _make_team(info, members, places, precision, dtype, cluster.patience) if lay_out else None
    plan = plan_rows(
        info if dtype else replace(info, dtype=None),
        stored.read_array("indptr"),
        len(workers),
        precision=precision,
        device_memory=_even([limit(memory, device_memory) for memory in places.device_memory]),
        host_memory=_even([limit(w.memory, host_memory) for w in workers]),
        speeds=_find_speeds(cluster, workers, places),
        threads=threads or max(w.threads for w in workers),
        lays_out=team is not None,
        streams=team is not None or not lay_out or info.kind == "matrix",
        top=top,
        checkpoint=checkpoint,
    )
    return workers, places, plan, team, dtype


def _specify(
    address: StoreAddress,
    workers: list[WorkerInfo],
    places: Places,
    plan: Plan,
    dtype: str | None,
    threads: int | None,
) -> list[PartSpec]:
    """What each worker is told of its rows."""
    return [
        PartSpec(
            address,
            rank,
            plan.bounds,
            own.nnz,
            dtype,
            threads or w.threads,
            places.backends[rank],
            own.streaming,
            places.may_share,
        )
        for rank, (w, own) in enumerate(zip(workers, plan.workers, strict=True))
    ]


def _load(
    cluster: Cluster, members: tuple[Member, ...], specs: list[PartSpec], team: TeamSpec | None, report: Progress
) -> list[Future]:
    token = uuid.uuid4().hex
    keys = [f"mgspmv-load-{token}-{rank}" for rank in range(len(members))]
    spans = Spans("mgspmv", "distribute")
    with spans.enter("load"):
        futures = [
            cluster.submit(member, key, load_part, key, spec, team)
            for member, key, spec in zip(members, keys, specs, strict=True)
        ]
    joining: list[Future] = []
    report("load", 0, len(members))
    try:
        # Of a team the rows are read when it lays them out together.
        cluster.settle(futures, members, "load", None if team else lambda done: report("load", done, len(members)))
        if team is not None:
            with spans.enter("load"):
                joining = [
                    cluster.submit(member, f"mgspmv-join-{token}-{rank}", join_team, keys[rank], team)
                    for rank, member in enumerate(members)
                ]
            cluster.settle(joining, members, "load", lambda done: report("load", done, len(members)))
            cluster.release(joining)
    except BaseException as error:
        cluster.release([*joining, *futures])
        if isinstance(error, StoreNotFoundError):
            raise StoreNotFoundError(
                f"a worker finds no store: {error}; the path or URL must lead all workers to the same store"
            ) from error
        if isinstance(error, StoreError):
            raise type(error)(f"a worker cannot use the store: {error}") from error
        raise
    return futures


def _make_team(
    info: MatrixInfo,
    members: tuple[Member, ...],
    places: Places,
    precision: Precision,
    dtype: str | None,
    patience: float,
) -> TeamSpec | None:
    """What workers are told that lay rows out for steps on their devices; None where kernels over CSR make them."""
    if places.transport != "nccl" or info.kind == "matrix":
        return None
    layout = find_step_layout("auto", precision, info.index_dtype, dtype, info.min_weight)
    run = f"team-{uuid.uuid4().hex}"
    return None if layout is None else TeamSpec(run, members, patience, dtype, precision, layout)


def _find_speeds(cluster: Cluster, workers: list[WorkerInfo], places: Places) -> list[float] | None:
    """Bytes per second of each worker's memory, if they are not all alike; hosts are measured only beside devices."""
    if places.backend == "cpu":
        return None
    speeds = [w.device.bandwidth for w in workers]
    hosts = [k for k, backend in enumerate(places.backends) if backend == "cpu"]
    members = [workers[k].member for k in hosts]
    futures = [
        cluster.submit(m, f"mgspmv-measure-{uuid.uuid4().hex}", measure_host, workers[k].threads)
        for k, m in zip(hosts, members, strict=True)
    ]
    try:
        for k, speed in zip(hosts, cluster.settle(futures, members, "join") if hosts else [], strict=True):
            speeds[k] = speed
    finally:
        cluster.release(futures)
    n_sharing = Counter(w.device.id for w, own in zip(workers, places.backends, strict=True) if own == "cuda")
    for k, backend in enumerate(places.backends):
        if backend == "cuda":
            speeds[k] /= n_sharing[workers[k].device.id]
    return None if len(set(speeds)) == 1 else speeds


def _even(memory: Sequence[int | None]) -> Memory:
    """The least for all where the workers are of one kind, so that a plan can say how many would do; else of each."""
    if all(m is None for m in memory):
        return None
    return list(memory) if any(m is None for m in memory) else min(m for m in memory if m is not None)


def _default_precision(info: MatrixInfo) -> Precision:
    """What most products or ranks of a matrix are computed in."""
    if info.kind != "matrix":
        return "exact"
    return "float32" if info.dtype == "float32" else "float64"


def _is_dask(array: Any) -> bool:
    return hasattr(array, "dask") and hasattr(array, "chunks")


def _is_cuda(array: Any) -> bool:
    return hasattr(array, "__cuda_array_interface__")


def _ignore(phase: str, done: int, total: int | None) -> None:
    """Report progress to nobody."""
