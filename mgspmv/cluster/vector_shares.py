"""Batches whose vectors are shared out: each worker ranks some of them, with a copy of all rows.

    rows       every pass has vectors of the batch, and each worker computes its rows; workers exchange z in each pass
    shared     every worker makes separate passes, and exchanges nothing

A vector is bit-identical both ways. Sharing needs the memory for all rows on each worker.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from distributed.comm import get_address_host

from mgspmv.cluster.agent import FreeMemory, measure_free
from mgspmv.cluster.executors import SUPERSTEP_S, AttemptWorkers, join_collected
from mgspmv.cluster.load import HeldObjects, read_blocks
from mgspmv.cluster.matrix import DistributedMatrix
from mgspmv.cluster.worker_run import Report, TaskSpec, VectorShare
from mgspmv.errors import CapacityError
from mgspmv.exchange.exchange import LocalExchange
from mgspmv.exchange.peer_comm import Member
from mgspmv.kernels.operands import WIDTHS, fit_width
from mgspmv.model import Event, Progress, Status
from mgspmv.partition import Planner, limit
from mgspmv.plan import SharePlan
from mgspmv.solvers.batch import MEMORY_SHARE, BatchTask, FinishedVectors, count_bytes
from mgspmv.solvers.pagerank import RunInputs
from mgspmv.solvers.run import Collected, Execution, Outcome
from mgspmv.solvers.vectors import Query

LEAST_WIDTH = 16
"""Number of vectors for which a pass over all rows must have memory, unless there are fewer."""


def may_share(matrix: DistributedMatrix) -> bool:
    """Return True if workers gain by sharing out vectors: devices do; hosts share their memory bandwidth instead."""
    return matrix.backend == "cuda"


def deal_vectors(queries: Sequence[Query], n_workers: int) -> tuple[tuple[int, ...], ...]:
    """Deal vectors to workers, those with the highest damping, which take the most iterations, first. Workers for which
    there is no vector are left out."""
    order = sorted(range(len(queries)), key=lambda k: -queries[k].alpha)
    return tuple(tuple(order[rank::n_workers]) for rank in range(min(n_workers, len(order))))


def run_shares(
    matrix: DistributedMatrix,
    spec: TaskSpec[BatchTask],
    queries: Sequence[Query],
    start: RunInputs,
    keep: Callable[[Sequence[FinishedVectors]], None],
    emit: Callable[[Event, int], None],
    report: Progress,
) -> Outcome | None:
    """Iterate all vectors to their ends, each on one worker; None if workers are to compute their rows of all vectors
    instead. Parameters as for `mgspmv.cluster.attempts.run_batch`; the caller holds the lease of the cluster."""
    began, task, is_heard = time.perf_counter(), spec.task, False
    numbers, is_known = deal_vectors(queries, len(matrix.members)), bool(matrix.held.share_plans)
    planned = plan_shares(matrix, numbers, task)
    if planned is None:
        return None

    def cut() -> list[VectorShare]:
        order = None if task.top is None else matrix.order
        shares = enumerate(zip(numbers, planned, strict=True))
        return [VectorShare(start, [queries[k] for k in own], order, rank, of.widest) for rank, (own, of) in shares]

    def hear(event: Event) -> None:
        nonlocal is_heard
        is_heard = True
        emit(event, passes.n_ended)

    try:
        keys = hold_copies(matrix, len(planned), report)
        entered = time.perf_counter()
        with AttemptWorkers([matrix], spec, cut, report, keys) as workers:
            passes = VectorShares(workers, numbers, keep)
            outcome = workers.iterate(passes, hear)
    except CapacityError:
        if not is_known or is_heard:
            raise
        matrix.held.share_plans.clear()  # there is less free memory than when they were made
        return run_shares(matrix, spec, queries, start, keep, emit, report)
    outcome.seconds["start"] += entered - began
    idle = [0] * (len(matrix.members) - len(planned))
    outcome.memory["planned_bytes"] = [*(own.planned_bytes for own in planned), *idle]
    return outcome


def plan_shares(
    matrix: DistributedMatrix, numbers: Sequence[Sequence[int]], task: BatchTask
) -> Sequence[SharePlan] | None:
    """Plan the memory of the first workers, each for its share of the vectors; None if workers compute their rows of
    all vectors instead: hosts do, and devices that cannot hold all rows with the vectors of a pass, or with the rows
    and vectors of other runs. The plan of a batch is kept for the next one like it."""
    if len(numbers) < 2 or not matrix.has_store or not may_share(matrix):
        return None
    key = (task.dtype, task.options.precision, task.width, task.threads, *map(len, numbers))
    if key not in matrix.held.share_plans and (shares := _plan_measured(matrix, numbers, task)) is not None:
        matrix.held.share_plans[key] = shares
    return matrix.held.share_plans.get(key)


def _plan_measured(
    matrix: DistributedMatrix, numbers: Sequence[Sequence[int]], task: BatchTask
) -> list[SharePlan] | None:
    """Plan as `plan_shares` does, by the free memory of the workers."""
    members, shares = matrix.members[: len(numbers)], list[SharePlan]()
    info, ends = matrix.info if task.dtype else replace(matrix.info, dtype=None), {0: 0, matrix.shape[0]: matrix.nnz}
    planner = Planner(info, ends, task.options.precision, task.threads)
    for rank, free in enumerate(_measure(matrix, members, task.dtype)):
        device, host = _divide(matrix, members, rank, free)
        whole = planner.plan(device, host)
        if not whole.fits:
            return None
        [copy] = whole.workers
        room = (host if device is None else device) - copy.block_bytes
        width, own = _find_widest(matrix, task, len(numbers[rank]), room), matrix.plan.workers[rank]
        # Runs with the rows of a worker may take these bytes where it computes.
        beyond = own.bin_bytes + own.piece_bytes
        needed = own.device_bytes + beyond if own.has_device else own.memory_bytes
        if width is None or needed > room:
            return None
        planned_bytes = copy.device_bytes if copy.has_device else copy.memory_bytes
        shares.append(SharePlan(width, planned_bytes))
    return shares


def hold_copies(matrix: DistributedMatrix, n: int, report: Progress) -> list[str]:
    """Let each of the first n workers hold all rows; return the keys of the blocks, by rank. The caller holds the lease
    of the cluster."""
    members, n_held = matrix.members, len(matrix.held.copies)
    if n_held < n:
        bounds = (0, matrix.shape[0])
        specs = [
            replace(own, rank=0, bounds=bounds, plan=replace(own.plan, nnz=matrix.nnz, streaming=None, bin_bytes=0))
            for own in matrix.held.loading.specs
        ]
        jobs = list(zip(members, specs, strict=True))[n_held:n]
        matrix.held.copies.extend(read_blocks(matrix.cluster, members, jobs, report))
    return [block.future.key for block in matrix.held.copies[:n]]


def _measure(matrix: DistributedMatrix, members: Sequence[Member], dtype: str | None) -> list[FreeMemory]:
    """Let workers measure their free memory, by rank."""
    token, copy_keys = uuid.uuid4().hex, [block.future.key for block in matrix.held.copies]
    keys = [f"mgspmv-measure-{token}-{rank}" for rank in range(len(members))]
    measured = HeldObjects(matrix.cluster, members, keys)
    try:
        of_copies = [copy_keys[rank] if rank < len(copy_keys) else None for rank in range(len(members))]
        return measured.make(measure_free, [(matrix.backend, key, dtype) for key in of_copies])
    finally:
        measured.release()


def _divide(
    matrix: DistributedMatrix, members: Sequence[Member], rank: int, free: FreeMemory
) -> tuple[int | None, int]:
    """Return the bytes of device and host memory that a worker may take, with those of the rows that it already has;
    None without a device. Workers that share memory get equal parts."""
    hosts = [get_address_host(member.address) for member in members]
    host = free.host // hosts.count(hosts[rank])
    host = host if matrix.limits.host is None else min(host, matrix.limits.host)
    if free.device is None:
        return None, host + free.block_bytes
    devices = [worker.device.id for worker in matrix.held.loading.workers[: len(members)]]
    device = free.device // devices.count(devices[rank]) + free.block_bytes
    return limit(device, matrix.limits.device), host


def _find_widest(matrix: DistributedMatrix, task: BatchTask, n_vectors: int, room: int) -> int | None:
    """Return the most vectors in a pass that fit in `room` bytes; None if these are too few."""
    n, precision = matrix.shape[0], task.options.precision
    itemsize = 4 if precision == "float32" else 8
    wanted = min(LEAST_WIDTH if task.width is None else task.width, fit_width(n_vectors))
    most = int((MEMORY_SHARE if task.width is None else 1.0) * room)
    fitting = [w for w in WIDTHS if count_bytes(LocalExchange(n), n, precision, itemsize, w) <= most]
    return fitting[-1] if fitting and fitting[-1] >= wanted else None


class VectorShares(Execution):
    """Iterations of workers that rank a share of the vectors each, in tasks of about a second, the first of which
    begins the run, and the last of which has the result.

    A worker whose vectors have ended waits for the others. The event of pass k joins the k-th passes of the workers.

    Parameters
    ----------
    numbers : numbers of the vectors of each worker
    keep : called with the results of finished vectors, as the only part

    Attributes
    ----------
    n_ended : number of vectors that have ended, as last reported
    """

    def __init__(
        self,
        workers: AttemptWorkers,
        numbers: Sequence[Sequence[int]],
        keep: Callable[[Sequence[FinishedVectors]], None],
    ) -> None:
        self._workers, self._numbers, self._keep = workers, numbers, keep
        self._n_all, self.n_ended = len(workers.matrix.members), 0

    def describe(self) -> str:
        return self._workers.hardware

    def start(self) -> None:
        """Begin to iterate on each worker."""
        self._last, self.early_s = self._workers.begin_alone(SUPERSTEP_S)

    def advance(self, n: int | None = None) -> Iterator[Event]:
        made, reports = 0, dict(enumerate(self._last))
        waiting: list[deque[Event]] = [deque() for _ in self._numbers]
        held_bytes = [0] * self._n_all
        while True:
            for rank, report in reports.items():
                self._last[rank] = report
                waiting[rank].extend(report.events)
                for kept in report.kept:
                    self._keep([replace(kept, numbers=tuple(self._numbers[rank][k] for k in kept.numbers))])
            self.n_ended = sum(report.n_ended for report in self._last)
            iterating = [rank for rank, report in enumerate(self._last) if report.status is None]
            self.status = None if iterating else Status.COMPLETED
            while any(waiting) and all(waiting[rank] for rank in iterating):
                made += 1
                heads = [own.popleft() if own else None for own in waiting]
                yield join_passes(heads, held_bytes)
            if not iterating:
                return
            phase = f"iterations from {made + 1}"
            found: list[Report] = self._workers.do(phase, "superstep", None, SUPERSTEP_S, ranks=iterating)
            reports = dict(zip(iterating, found, strict=True))

    def collect(self) -> Collected:
        found = [report.collected for report in self._last if report.collected is not None]
        endings: list[Any] = [None] * sum(map(len, self._numbers))
        for own, numbers in zip(found, self._numbers, strict=True):
            for number, ending in zip(numbers, own.values, strict=True):
                endings[number] = ending
        joined = join_collected(found, endings)
        n_idle = self._n_all - len(found)
        memory = {name: [*own, *[0] * n_idle] for name, own in joined.memory.items()}
        return replace(joined, memory=memory, width=max(own.width for own in found))


def join_passes(events: Sequence[Event | None], held_bytes: list[int]) -> Event:
    """Join passes of the same number, one per worker, into one event, with the greatest change.

    Parameters
    ----------
    events : pass of each worker that has vectors; None if its vectors had ended
    held_bytes : bytes held by each worker of the matrix after its last pass, which are brought up to date
    """
    made = [event for event in events if event is not None]
    product_s = [0.0] * len(held_bytes)
    for rank, event in enumerate(events):
        if event is not None:
            product_s[rank], held_bytes[rank] = event.product_s[0], event.memory_bytes[0]
    nothing = (0.0,) * len(held_bytes)
    return replace(
        made[0],
        change=max(event.change for event in made),
        product_s=tuple(product_s),
        exchange_s=nothing,
        wait_s=nothing,
        exchanged_bytes=(0,) * len(held_bytes),
        memory_bytes=tuple(held_bytes),
    )
