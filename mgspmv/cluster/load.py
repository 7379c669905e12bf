"""Loading a matrix on the workers of a cluster: their backends and the transport between them, the rows of each, and
loading again on other workers.

A worker whose range of rows is unchanged keeps them; the others read theirs again. Devices, which build layouts
together, all read their rows again, at the first run.
"""

from __future__ import annotations

import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from distributed import Future
from distributed.comm import get_address_host

from mgspmv.cluster.agent import call_held, load_row_block
from mgspmv.cluster.dask_cluster import Cluster, WorkerInfo
from mgspmv.cluster.row_block import RowBlockSpec
from mgspmv.cluster.worker_rows import LOST, RowsAddress
from mgspmv.errors import (
    ClusterError,
    MissingDependencyError,
    OptionError,
    StoreError,
    StoreNotFoundError,
    WorkerLostError,
)
from mgspmv.exchange.peer_comm import Member, worker_error
from mgspmv.kernels.catalogue import Backend
from mgspmv.kernels.device import NO_CUPY
from mgspmv.kernels.select import find_step_layout
from mgspmv.model import Precision, Progress, ignore
from mgspmv.partition import Planner, limit, warn_of_streaming
from mgspmv.plan import Plan
from mgspmv.solvers.options import Placement, Reads, TransportChoice
from mgspmv.store.stored_matrix import StoredMatrix, StoredPointers


@dataclass(frozen=True)
class WorkerPlacement:
    """Backend of the workers, their device memory, and the transport between them."""

    backend: Backend
    transport: Literal["nccl", "peer"]
    """Transport between workers: NCCL, or Dask's comms."""
    device_memory: int | None = None
    """Least bytes of free device memory of a worker, shared by the workers on a device; None on hosts."""
    may_share: bool = True
    """Whether devices of one host may write into each other's memory, in place of NCCL."""


def choose_placement(workers: Sequence[WorkerInfo], backend: str, transport: TransportChoice) -> WorkerPlacement:
    """Choose backends and transport by the devices of the workers and the user's options.

    Parameters
    ----------
    backend : `auto` for devices if all workers have one, else hosts; `cpu`; or `cuda` for devices on all
    transport : `auto` for NCCL where every worker has a separate device, or memory that devices of one host share;
        `nccl` for NCCL alone; `peer`

    Raises
    ------
    MissingDependencyError : CuPy is not installed on a worker
    ClusterError : a worker has no device, or shares it with another worker, or NCCL is missing
    """
    problems = {w.member: w.device.problem for w in workers if w.device.problem is not None}
    if backend == "cuda" and problems:
        member, problem = next(iter(problems.items()))
        if problem == NO_CUPY:
            raise MissingDependencyError(
                f"backend='cuda' needs CuPy, which is not installed on worker {member}; install mgspmv[cuda12] or "
                "mgspmv[cuda13] there, or pass backend='auto'"
            )
        raise ClusterError(
            f"backend='cuda' needs a GPU on each of the {len(workers)} workers, and worker {member} has none: "
            f"{problem}; start workers with `dask cuda worker`, one for each GPU, or pass backend='auto'",
            worker=str(member.name),
            phase="join",
        )
    if backend == "cpu" or problems:
        member, problem = next(iter(problems.items())) if backend != "cpu" else (workers[0].member, "backend='cpu'")
        if transport == "nccl":
            raise ClusterError(
                f"transport='nccl' needs a GPU on each worker, and worker {member} computes on its host ({problem}); "
                "pass transport='auto'",
                phase="join",
            )
        if backend != "cpu" and len(problems) < len(workers):
            warnings.warn(
                f"{len(problems)} of {len(workers)} workers have no GPU, for example worker {member} ({problem}), so "
                "all compute on their hosts; remove them to compute on GPUs, or pass backend='cpu'",
                stacklevel=7,
            )
        return WorkerPlacement("cpu", "peer")
    n_sharing = Counter(w.device.id for w in workers)
    memory = min(w.device.memory // n_sharing[w.device.id] for w in workers)
    chosen = _choose_transport(workers, n_sharing, transport)
    return WorkerPlacement("cuda", chosen, memory, may_share=transport != "nccl")


def _choose_transport(
    workers: Sequence[WorkerInfo], n_sharing: Counter[str], transport: TransportChoice
) -> Literal["nccl", "peer"]:
    shared = [w for w in workers if n_sharing[w.device.id] > 1]
    without = [w for w in workers if w.device.nccl_problem is not None]
    if transport == "peer":
        return "peer"
    if len(workers) == 1:
        return "nccl"
    if shared:
        what = f"{len(shared)} workers share GPUs, for example worker {shared[0].member} its {shared[0].device.name}"
        how = "start one for each GPU, as `dask cuda worker` does"
        if transport == "nccl":
            raise ClusterError(
                f"transport='nccl' needs a separate GPU for each worker, and {what}; {how}", phase="join"
            )
        warnings.warn(f"{what}: NCCL cannot connect them, and slices go through their hosts; {how}", stacklevel=5)
        return "peer"
    if without:
        raise ClusterError(
            f"worker {without[0].member} cannot use NCCL: {without[0].device.nccl_problem}; or pass transport='peer', "
            "which sends slices through the hosts and is many times slower",
            worker=str(without[0].member.name),
            phase="join",
        )
    machines = len({get_address_host(w.member.address) for w in workers if w.member.address.startswith("tls://")})
    if transport == "auto" and machines > 1:
        warnings.warn(
            f"the workers are on {machines} machines and connected by TLS, and NCCL does not encrypt: slices go "
            "through their hosts; pass transport='nccl' if the network between the GPUs is trusted",
            stacklevel=5,
        )
        return "peer"
    return "nccl"


class HeldObjects:
    """Objects that workers hold for a client, one each; rounds of tasks make them and call their methods.

    Parameters
    ----------
    keys : keys of the tasks that make the objects, under which agents hold them, by rank
    """

    def __init__(self, cluster: Cluster, members: Sequence[Member], keys: Sequence[str]) -> None:
        self.cluster, self.members, self.keys = cluster, members, tuple(keys)
        self.made: list[Future] = []
        """Futures of the tasks that made the objects."""
        self.running: list[Future] = []
        """Futures of tasks that are not known to be done."""

    def make(
        self,
        function: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        phase: str = "start",
        on_done: Callable[[int], None] = ignore,
        ranks: Sequence[int] | None = None,
    ) -> list[Any]:
        """Make the objects by a function of the key and of arguments by rank; return its results. Parameters as for
        `do_each`."""
        keys = self.keys if ranks is None else [self.keys[rank] for rank in ranks]
        results = self._run(phase, keys, function, arguments, on_done, ranks)
        self.made, self.running = self.running, []
        return results

    def do(self, phase: str, method: str, *args: Any, ranks: Sequence[int] | None = None) -> list[Any]:
        """Call a method of each object, or of those of some ranks, with the same arguments; return the results by
        rank."""
        return self.do_each(phase, method, [args] * len(self.members if ranks is None else ranks), ranks=ranks)

    def do_each(
        self,
        phase: str,
        method: str,
        arguments: Sequence[tuple[Any, ...]],
        on_done: Callable[[int], None] = ignore,
        name: str = "",
        ranks: Sequence[int] | None = None,
    ) -> list[Any]:
        """Call a method as `do` does, with arguments by rank, in tasks of this or the method's name; `on_done` as in
        `Cluster.settle`."""
        token = uuid.uuid4().hex
        keys = [f"{name_task(name or method)}-{token}-{k}" for k in range(len(arguments))]
        results = self._run(phase, keys, call_held, [(method, *own) for own in arguments], on_done, ranks)
        self.cluster.release(self.running)
        self.running = []
        return results

    def _run(
        self,
        phase: str,
        keys: Sequence[str],
        function: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        on_done: Callable[[int], None],
        ranks: Sequence[int] | None,
    ) -> list[Any]:
        chosen = range(len(self.members)) if ranks is None else ranks
        self.running = [
            self.cluster.submit(self.members[rank], key, function, self.keys[rank], *own)
            for rank, key, own in zip(chosen, keys, arguments, strict=True)
        ]
        return self.cluster.settle(self.running, self.members, phase, on_done, chosen)

    def release(self) -> None:
        """Release all tasks."""
        self.cluster.release([*self.running, *self.made])
        self.made, self.running = [], []


def name_task(method: str) -> str:
    """Return the key prefix of tasks that call a method."""
    return f"mgspmv-{method}".replace("_", "-")


@dataclass(frozen=True, eq=False)
class HeldRowBlock:
    """Row block held by a worker, as known to the client."""

    member: Member
    """Worker that holds it."""
    future: Future
    """Future of the task that loaded it, whose key identifies it."""
    spec: RowBlockSpec
    """Description of its rows, as sent to the worker."""
    n_bytes: int
    """Bytes of the row block."""


@dataclass(frozen=True, eq=False)
class LoadedRows:
    """Assignment of rows to workers, planned or loaded."""

    workers: list[WorkerInfo]
    """Workers by rank."""
    places: WorkerPlacement
    """Backends of the workers, and the transport between them."""
    plan: Plan
    specs: list[RowBlockSpec]
    """Description of the rows of each worker, by rank."""
    parts: list[HeldRowBlock] = field(default_factory=list)
    """Row blocks held, by rank; empty before loading."""

    @property
    def members(self) -> tuple[Member, ...]:
        """The workers, by rank."""
        return tuple(w.member for w in self.workers)


def load_matrix(
    stored: StoredMatrix,
    cluster: Cluster,
    place: Placement,
    reads: Reads,
    report: Progress,
    held: list[HeldRowBlock] | None = None,
    *,
    has_lease: bool = False,
) -> LoadedRows:
    """Load a matrix over the present workers.

    Parameters
    ----------
    held : row blocks already held; those dropped here are removed from the list. None the first time
    has_lease : whether the caller holds the lease of the cluster; else wait for it
    """
    report("join", 0, None)
    is_again, held = held is not None, [] if held is None else held
    drop_blocks(cluster, held, [part for part in held if part.spec.backend == "cuda"])
    arranged = _arrange(stored, cluster, place, reads, {part.member: part.n_bytes for part in held}, is_again=is_again)
    warn_of_streaming(arranged.plan, stacklevel=6)
    with nullcontext() if has_lease else cluster.lease(lambda: report("queue", 0, None)):
        parts = _load(cluster, arranged, held, report)
    return replace(arranged, parts=parts)


def plan_on_cluster(stored: StoredMatrix, place: Placement, reads: Reads) -> Plan:
    """Plan the rows and memory of the workers of a cluster; see `mgspmv.Matrix.plan`."""
    stored.address()
    with closing(Cluster(place.client, place.timeout)) as cluster:
        return _arrange(stored, cluster, place, reads, {}, is_again=False, throw=False).plan


def _arrange(
    stored: StoredMatrix,
    cluster: Cluster,
    place: Placement,
    reads: Reads,
    held_bytes: dict[Member, int],
    *,
    is_again: bool,
    throw: bool = True,
) -> LoadedRows:
    """Join the workers, choose their backends, and plan the rows of each.

    Parameters
    ----------
    held_bytes : bytes of row blocks that workers hold, counted as available memory
    throw : raise if the matrix does not fit
    """
    address, limits = stored.address(), place.limits
    workers = cluster.join(devices=place.backend != "cpu", is_again=is_again)
    own = address if isinstance(address, RowsAddress) else None
    if own is not None:
        workers = _find_holders(own, workers)
    info = stored.info
    places = choose_placement(workers, place.backend, place.transport)
    if not reads.build_layout:  # only layouts use direct writes, whose NCCL settings are slower
        places = replace(places, may_share=False)
    if limits.device is not None and places.device_memory is None:
        raise OptionError(
            "device_memory= limits the memory of GPUs, and no worker computes on a GPU; leave it out, or pass "
            "host_memory="
        )
    of_products: Precision = "float32" if info.dtype == "float32" else "float64"
    precision = reads.precision or ("exact" if info.kind != "matrix" else of_products)
    dtype = None if info.is_pattern or not reads.weights else "float32" if precision == "float32" else "float64"
    lays_out = False
    if reads.build_layout and places.transport == "nccl" and info.kind != "matrix":
        lays_out = find_step_layout("auto", precision, info.index_dtype, dtype, info.min_weight) is not None
    planner = Planner(
        info if dtype else replace(info, dtype=None),
        StoredPointers(stored) if own is None else own.ends,
        precision,
        place.threads or max(w.threads for w in workers),
        lays_out=lays_out,
        streams=own is None and (lays_out or not reads.build_layout or info.kind == "matrix"),
        top=reads.top,
        checkpoint=reads.checkpoint,
        bounds=None if own is None else own.bounds,
    )
    plan = planner.plan_rows(
        len(workers),
        device_memory=limit(places.device_memory, limits.device),
        host_memory=limit(min(w.memory + held_bytes.get(w.member, 0) for w in workers), limits.host),
        throw=throw,
    )
    all_threads = [place.threads or w.threads for w in workers]
    specs = [
        RowBlockSpec(address, rank, plan.bounds, own, dtype, threads, places.backend, places.may_share)
        for rank, (threads, own) in enumerate(zip(all_threads, plan.workers, strict=True))
    ]
    return LoadedRows(workers, places, plan, specs)


def _find_holders(rows: RowsAddress, workers: Sequence[WorkerInfo]) -> list[WorkerInfo]:
    """Return the workers that hold rows, by rank; raise `WorkerLostError` if one of them is lost."""
    found = {worker.member: worker for worker in workers}
    for rank, member in enumerate(rows.members):
        if member not in found:
            raise worker_error(WorkerLostError, rows.members, rank, "load", "was lost", LOST)
    return [found[member] for member in rows.members]


def _load(cluster: Cluster, arranged: LoadedRows, held: list[HeldRowBlock], report: Progress) -> list[HeldRowBlock]:
    """Let each worker hold its rows: unchanged row blocks are kept, and the others are read."""
    keys = {w.member: w.parts for w in arranged.workers}
    specs = dict(zip(arranged.members, arranged.specs, strict=True))
    kept = {
        part.member: part
        for part in held
        if part.future.key in keys.get(part.member, ())
        and replace(part.spec, address=specs[part.member].address) == specs[part.member]
    }
    drop_blocks(cluster, held, [part for part in held if part.member not in kept])
    jobs = [(member, spec) for member, spec in specs.items() if member not in kept]
    read = {part.member: part for part in read_blocks(cluster, arranged.members, jobs, report)}
    return [kept.get(member) or read[member] for member in arranged.members]


def read_blocks(
    cluster: Cluster, members: Sequence[Member], jobs: Sequence[tuple[Member, RowBlockSpec]], report: Progress
) -> list[HeldRowBlock]:
    """Let some of the members read and hold rows, one block each."""
    token, n = uuid.uuid4().hex, len(jobs)
    blocks = HeldObjects(cluster, members, [f"mgspmv-load-{token}-{rank}" for rank in range(len(members))])
    ranks, specs = [members.index(member) for member, _ in jobs], [(spec,) for _, spec in jobs]
    report("load", 0, n)
    try:
        sizes = blocks.make(load_row_block, specs, "load", lambda done: report("load", done, n), ranks)
    except BaseException as error:
        blocks.release()
        if isinstance(error, StoreNotFoundError):
            raise StoreNotFoundError(
                f"a worker cannot find the store: {error}; the path or URL must name the same store on all workers"
            ) from error
        if isinstance(error, StoreError):
            raise type(error)(f"a worker cannot use the store: {error}") from error
        raise
    loaded = zip(jobs, blocks.made, sizes, strict=True)
    return [HeldRowBlock(member, future, spec, n_bytes) for (member, spec), future, n_bytes in loaded]


def drop_blocks(cluster: Cluster, held: list[HeldRowBlock], parts: list[HeldRowBlock]) -> None:
    """Release row blocks, at once on workers that answer."""
    held[:] = [part for part in held if part not in parts]
    cluster.release([part.future for part in parts])
    with suppress(ClusterError):  # a worker that does not answer frees it when the key is released
        cluster.free([part.future.key for part in parts], [part.member for part in parts])
