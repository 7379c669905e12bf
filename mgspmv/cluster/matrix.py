"""A matrix whose row blocks are held by the workers of a Dask cluster."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mgspmv.cluster.dask_cluster import Cluster
from mgspmv.cluster.load import HeldObjects, HeldRowBlock, LoadedRows, drop_blocks, load_matrix
from mgspmv.cluster.row_block import ProductOptions
from mgspmv.cluster.scheduler_client import End, record_failure
from mgspmv.cluster.worker_rows import LOST, RowsAddress
from mgspmv.errors import (
    ClosedError,
    ClusterError,
    KindError,
    OptionError,
    WorkerLostError,
    WorkerMemoryError,
    WorkerTimeoutError,
)
from mgspmv.exchange.peer_comm import Member
from mgspmv.kernels.device import get, put
from mgspmv.kernels.operands import check_transpose, make_operator, multiply_checked
from mgspmv.model import Progress, Recovery, describe_entries, ignore
from mgspmv.partition import INGEST_FIRST, TRANSPOSE_FIRST
from mgspmv.plan import Plan, SharePlan
from mgspmv.solvers.options import Executor, MemoryLimits, Placement, Reads
from mgspmv.store.stored_matrix import MatrixProperties, Range, StoredMatrix

if TYPE_CHECKING:
    from distributed import Client
    from scipy.sparse.linalg import LinearOperator


@dataclass(frozen=True, kw_only=True, repr=False)
class ClusterRows(StoredMatrix):
    """Matrix whose rows the workers hold without a store. `arrays` has the ids of the vertices, if there are any; their
    degrees and weights are fetched from the workers."""

    cluster: Cluster
    rows: RowsAddress
    blocks: list[HeldRowBlock] = field(default_factory=list)
    """Row blocks that the workers hold, by rank, once they are loaded."""

    def read_range(self, asked: Range, threads: int | None = None) -> Any:
        """Return elements of an array that has one per vertex; see `StoredMatrix.read_array`.

        Raises
        ------
        OptionError : another array, which the workers alone have
        ClusterError : a worker is lost
        """
        name, start, stop = asked.name, asked.start, asked.stop
        if name in self.arrays:
            return self.arrays[name][start:stop]
        if name not in ("out_degree", "out_weight"):
            raise OptionError(
                f"the workers alone have the entries of this matrix, which is in no store; {INGEST_FIRST}"
            )
        stop = self.info.shape[0] if stop is None else stop
        cut = [(max(start, first), min(stop, end)) for first, end in pairwise(self.rows.bounds)]
        ranks = [rank for rank, (a, b) in enumerate(cut) if a < b]
        blocks = HeldObjects(self.cluster, self.rows.members, [block.future.key for block in self.blocks])
        try:
            parts = blocks.do_each("fetch", "fetch", [(name, *cut[rank]) for rank in ranks], ranks=ranks)
        finally:
            blocks.release()
        return np.concatenate(parts or [np.zeros(0)])

    @property
    def digest(self) -> str:
        raise OptionError(
            f"this matrix is in no store, and has no digest by which a checkpoint is found again; {INGEST_FIRST}"
        )

    def address(self) -> RowsAddress:
        return self.rows


@dataclass
class HeldRows:
    """Rows that the workers hold, shared by the placements of a matrix."""

    loading: LoadedRows
    """Workers, and the rows that each was given to read."""
    parts: list[HeldRowBlock]
    """Row block of each worker, by rank; fewer where redistributing failed, and none of a closed matrix."""
    copies: list[HeldRowBlock] = field(default_factory=list)
    """Blocks of all rows that the first workers hold, one each, until the matrix is closed or redistributed."""
    share_plans: dict[Hashable, Sequence[SharePlan]] = field(default_factory=dict)
    """Memory planned for batches whose vectors the workers share out, by kind of batch."""
    is_closed: bool = False


class DistributedMatrix(MatrixProperties):
    """A matrix of shape (n_rows, n_cols) on a cluster, made by `Matrix.distribute` or `mgspmv.read_edges`; a context
    manager.

    Each worker reads its own rows from the store, or builds them from edges, and keeps them until `close()`, or until
    this object is deleted or the client disconnects. The rows of a lost worker are lost: PageRank then redistributes a
    matrix that is in a store by itself; before other calls, call `redistribute()`.

    Examples
    --------
    >>> import mgspmv as mg
    >>> from distributed import Client
    >>> web = mg.ingest(([0, 1, 2, 2], [1, 2, 0, 1]), "web.zarr")
    >>> with Client(n_workers=2, processes=False, dashboard_address=":0") as client, web.distribute(client) as D:
    ...     print(D.shape, len(D.workers), D @ [1.0, 2.0, 3.0])
    (3, 3) 2 [3. 4. 2.]
    """

    def __init__(
        self,
        stored: StoredMatrix,
        cluster: Cluster,
        request: tuple[Placement, Reads],
        loading: LoadedRows,
        recoveries: tuple[Recovery, ...] = (),
    ) -> None:
        super().__init__(stored)
        self.cluster = cluster
        place = request[0]
        self.place = Placement(
            is_distributed=True,
            kernel=place.kernel,
            threads=place.threads,
            executor=place.executor,
            recover=place.recover,
        )
        """How the workers compute; see `on`."""
        self.recoveries = recoveries
        """Workers lost during loading, with the time after which it resumed."""
        self._request = request
        self.held = HeldRows(loading, loading.parts)
        """Rows that the workers hold."""

    def on(
        self,
        *,
        kernel: str | None = None,
        threads: int | None = None,
        executor: Executor | None = None,
        recover: int | None = None,
    ) -> DistributedMatrix:
        """Return the matrix with other options of its products and iterations; both share the rows on the workers.

        Parameters
        ----------
        kernel, threads, executor, recover
            As for `Matrix.on`; None leaves them as they are.

        Raises
        ------
        OptionError : an invalid option

        Examples
        --------
        >>> import mgspmv as mg
        >>> from distributed import Client
        >>> web = mg.ingest(([0, 1, 2, 2], [1, 2, 0, 1]), "web.zarr")
        >>> with Client(n_workers=2, processes=False, dashboard_address=":0") as client, web.distribute(client) as D:
        ...     print(mg.pagerank(D.on(executor="tasks")).options["executor"])
        tasks
        """
        placed, place = copy(self), self.place
        placed.place = replace(
            place,
            kernel=place.kernel if kernel is None else kernel,
            threads=place.threads if threads is None else threads,
            executor=place.executor if executor is None else executor,
            recover=place.recover if recover is None else recover,
        )
        return placed

    @property
    def has_store(self) -> bool:
        """True if rows can be read again from a store; False for a matrix of `mgspmv.read_edges`."""
        return not isinstance(self.stored, ClusterRows)

    @property
    def is_closed(self) -> bool:
        """True if it was closed; it cannot be opened again."""
        return self.held.is_closed

    def redistribute(self, on_progress: Progress | None = None, *, has_lease: bool = False) -> None:
        """Distribute the matrix over the present workers, with the options of `Matrix.distribute`.

        A worker whose rows do not change keeps them; the others read theirs. On GPUs all rows are read again.

        Parameters
        ----------
        on_progress : callable, optional
            As in `Matrix.distribute`.
        has_lease : bool, default False
            True if the caller holds the lease of the cluster.

        Raises
        ------
        ClosedError : it was closed
        CapacityError, ClusterError, StoreError : as in `Matrix.distribute`; the call can be repeated
        ClusterError : the matrix is in no store

        Examples
        --------
        >>> import mgspmv as mg
        >>> from distributed import Client
        >>> web = mg.ingest(([0, 1, 2, 2], [1, 2, 0, 1]), "web.zarr")
        >>> with Client(n_workers=1, processes=False, dashboard_address=":0") as client, web.distribute(client) as D:
        ...     client.cluster.scale(2)
        ...     client.wait_for_workers(2)
        ...     D.redistribute()
        ...     print(len(D.workers))
        2
        """
        self._check_closed()
        if not self.has_store:
            raise ClusterError(LOST, phase="load")
        held = self.held
        drop_blocks(self.cluster, held.copies, [*held.copies])
        held.share_plans.clear()
        held.loading = load_matrix(
            self.stored, self.cluster, *self._request, on_progress or ignore, held.parts, has_lease=has_lease
        )
        held.parts = held.loading.parts

    @property
    def plan(self) -> Plan:
        """Rows and memory planned for each worker."""
        return self.held.loading.plan

    @property
    def members(self) -> tuple[Member, ...]:
        """The workers, in the order of their rows."""
        return self.held.loading.members

    @property
    def bounds(self) -> tuple[int, ...]:
        """First row of each worker, and the number of rows."""
        return self.plan.bounds

    @property
    def client(self) -> Client:
        """Dask client of the workers."""
        return self.cluster.client

    @property
    def backend(self) -> Literal["cpu", "cuda"]:
        """Backend of the workers."""
        return self.held.loading.places.backend

    @property
    def transport(self) -> Literal["nccl", "peer"]:
        """Transport of slices between workers in supersteps; devices with NCCL may also write directly, see
        `Solution.matrix["transport"]` for the transport of a run."""
        return self.held.loading.places.transport

    @property
    def workers(self) -> tuple[str | int, ...]:
        """Names of the workers, in the order of their rows."""
        return tuple(member.name for member in self.members)

    @property
    def row_block_keys(self) -> list[str]:
        """Key of the task that loaded each row block.

        Raises
        ------
        ClosedError : it was closed
        """
        self.check_open()
        return [part.future.key for part in self.held.parts]

    @property
    def limits(self) -> MemoryLimits:
        """Memory limits given by the user."""
        return self._request[0].limits

    @property
    def held_bytes(self) -> list[int]:
        """Bytes of the row block of each worker, as loaded."""
        return [part.n_bytes for part in self.held.parts]

    def check_open(self) -> None:
        """Check that the matrix is open and the client is connected.

        Raises
        ------
        ClosedError : it was closed
        SchedulerNotFoundError : the client was closed, or lost its scheduler
        """
        self._check_closed()
        if len(self.held.parts) < len(self.members):
            raise ClosedError(
                f"the distributed matrix of {self.info.url} is incomplete, as redistributing it failed; call "
                "redistribute(), or distribute it again"
            )
        self.cluster.check_client()

    def _check_closed(self) -> None:
        if self.is_closed:
            remedy = "distribute it" if self.has_store else "read the edges"
            raise ClosedError(f"the distributed matrix of {self.info.url} was closed; {remedy} again")

    def __rmatmul__(self, x: Any) -> Any:
        if not self.has_store:
            raise KindError(f"x @ D needs the transpose; {TRANSPOSE_FIRST}: A.T.distribute(client) @ x")
        raise KindError(
            "x @ D needs the transpose on the cluster: add it to the store with `mgspmv transpose`, distribute A.T, "
            "and compute A.T.distribute(client) @ x"
        )

    def multiply(
        self,
        x: Any,
        *,
        alpha: float = 1.0,
        beta: float = 0.0,
        y: Any = None,
        precision: str | None = None,
        weights: bool = True,
    ) -> Any:
        """Compute alpha * D @ x + beta * y; each worker computes its rows.

        Parameters
        ----------
        x : array
            (n_cols,) or (n_cols, k), real: a NumPy or CuPy array, which is sent to every worker.
        y : array, optional
            (n_rows,) or (n_rows, k); required unless beta is 0, when it is not read.
        weights : bool, default True
            False takes each stored entry as 1.
        others
            As in `mgspmv.spmv`.

        Returns
        -------
        The product, an array of the kind of x.

        Raises
        ------
        ShapeError, OptionError : as in `mgspmv.spmv`
        WorkerLostError, WorkerTimeoutError : a worker is lost or does not answer
        ClosedError : the matrix was closed
        """
        kernel, threads = self.place.kernel, self.place.threads
        is_on_device = _is_cuda(x)
        x, y = (get(array) if _is_cuda(array) else array for array in (x, y))

        def compute(x: np.ndarray, out: np.ndarray, dtype: Literal["float32", "float64"]) -> np.ndarray:
            return self._multiply_here(x, out, ProductOptions(dtype, alpha, beta, kernel, threads, weights))

        product = multiply_checked(self, x, y, alpha, beta, precision, compute, weights=weights)
        return put(product) if is_on_device else product

    def _multiply_here(self, x: np.ndarray, out: np.ndarray, options: ProductOptions) -> np.ndarray:
        """Multiply vectors of this process, which are in the order of the stored rows, into `out`."""
        slices, blocks = list(pairwise(self.bounds)), HeldObjects(self.cluster, self.members, self.row_block_keys)
        with ExitStack() as stack:
            sending = self.cluster.scatter_each([x], self.members, "send x", "mgspmv-multiply")
            [x_sent] = stack.enter_context(sending)
            y_sent: list[Any] = [None] * len(slices)
            if options.beta != 0:
                pieces = [out[a:b] for a, b in slices]
                sending = self.cluster.scatter_each(pieces, self.members, "send y", "mgspmv-multiply")
                y_sent = stack.enter_context(sending)
            stack.callback(blocks.release)
            results = blocks.do_each("product", "multiply", [(x_sent, y, options) for y in y_sent])
        for (start, stop), rows in zip(slices, results, strict=True):
            out[start:stop] = rows
        return out

    def as_linear_operator(
        self,
        transpose: DistributedMatrix | None = None,
        *,
        precision: Literal["float32", "float64"] | None = None,
        weight: bool = True,
    ) -> LinearOperator:
        """Return the matrix as a `scipy.sparse.linalg.LinearOperator`; each product is a round of tasks.

        Functions of `scipy.sparse.linalg` that do not need the transpose also take this matrix itself, with values.

        Parameters
        ----------
        transpose : DistributedMatrix, optional
            `A.T` distributed, for `rmatvec`, which `svds`, `lsqr` and others call.
        precision : {"float32", "float64"}, optional
            As in `Matrix.as_linear_operator`.
        weight : bool, default True
            False takes each stored entry as 1.

        Raises
        ------
        OptionError : `transpose` is of another matrix

        Examples
        --------
        >>> import mgspmv as mg
        >>> from distributed import Client
        >>> web = mg.ingest(([0, 1, 2, 2], [1, 2, 0, 1]), "web.zarr")
        >>> with Client(n_workers=2, processes=False, dashboard_address=":0") as client, web.distribute(client) as D:
        ...     print(D.as_linear_operator().matvec([1.0, 2.0, 3.0]))
        [3. 4. 2.]
        """
        if transpose is not None:
            check_transpose(self, transpose)
        missing = (
            "products with the transpose need it on the cluster: distribute A.T too, and pass that as transpose to "
            "as_linear_operator"
        )
        return make_operator(self, transpose, missing, precision=precision, weights=weight)

    def close(self) -> None:
        """Free the memory of the workers."""
        held = self.held
        parts, held.parts, held.copies = [*held.parts, *held.copies], [], []
        if held.is_closed:
            return
        held.is_closed = True
        try:
            self.cluster.check_client()
            self.cluster.free([part.future.key for part in parts], [part.member for part in parts])
        except ClusterError:
            pass  # a worker that does not answer frees its rows when the key is released
        finally:
            self.cluster.release([part.future for part in parts])
            self.cluster.close()

    def __repr__(self) -> str:
        state = f"on {len(self.members)} workers of {self.cluster}" if not self.is_closed else "closed"
        return f"<DistributedMatrix: {describe_entries(self.info)}, {state}>"


def distribute_matrix(
    stored: StoredMatrix, place: Placement, reads: Reads, on_progress: Progress = ignore
) -> DistributedMatrix:
    """Let each worker of a cluster read its rows; see `mgspmv.Matrix.distribute`.

    Parameters
    ----------
    place : with the client, its time-out, and how many times loading restarts when a worker is lost
    """
    stored.address()  # raises for a store in memory, which workers cannot read
    cluster = Cluster(place.client, place.timeout)
    try:
        loading, recoveries = _load_until_done(stored, cluster, place, reads, on_progress)
        return DistributedMatrix(stored, cluster, (place, reads), loading, recoveries)
    except BaseException:
        cluster.close()
        raise


def _load_until_done(
    stored: StoredMatrix, cluster: Cluster, place: Placement, reads: Reads, report: Progress
) -> tuple[LoadedRows, tuple[Recovery, ...]]:
    """Load on the workers; if some are lost meanwhile, on the remaining ones, up to `place.recover` times."""
    losses: list[End] = []
    while True:
        try:
            loading = load_matrix(stored, cluster, place, reads, report)
        except (WorkerLostError, WorkerTimeoutError, WorkerMemoryError) as error:
            if error.worker is None or len(losses) == place.recover:
                raise
            losses.append(record_failure(error, 0, cluster.n_joined))
        else:
            return loading, tuple(end(0, len(loading.parts)) for end in losses)
        report("recover", 0, None)
        cluster.await_workers(cluster.n_joined)


def _is_cuda(array: Any) -> bool:
    return hasattr(array, "__cuda_array_interface__")
