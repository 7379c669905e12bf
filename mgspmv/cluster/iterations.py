"""Iterations of runs on the rows of one worker, in lockstep with the other workers or in rounds of tasks.

CsrRanking       PageRank by kernels over CSR; slices over Dask's comms, or through the client
LayoutRanking    PageRank by steps on a device, enqueued several at a time; slices from device to device
BatchPasses      PageRank of many vectors; or of some of them with all rows, without the other workers
PowerProducts    power iteration with the row blocks of one or several matrices
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from distributed.comm import get_address_host

from mgspmv.checkpoints import StateAddress, WrittenSlice, write_slice
from mgspmv.cluster.row_block import DeviceRowBlock, ProductOptions, RowBlock
from mgspmv.cluster.worker_run import (
    BatchPiece,
    BlockIteration,
    PowerPiece,
    RankCheck,
    RoundReport,
    TaskSpec,
    VectorShare,
)
from mgspmv.exchange.exchange import DeviceCopies, GatheringExchange, LocalExchange
from mgspmv.exchange.nccl_slices import NcclExchange
from mgspmv.exchange.peer import AllToAll, ClientExchange, Halo, cut_again
from mgspmv.exchange.peer_comm import Message
from mgspmv.kernels.cpu_many import CpuMany
from mgspmv.kernels.device import describe_device, free_device_memory
from mgspmv.kernels.host import HostBlock
from mgspmv.kernels.operands import WIDTHS
from mgspmv.kernels.select import BoundMany
from mgspmv.model import StepSums, free_memory
from mgspmv.solvers.batch import Batch, BatchTask, FinishedVectors, choose_width, count_bytes
from mgspmv.solvers.options import RankTask
from mgspmv.solvers.pagerank import Loop, RunInputs
from mgspmv.solvers.power import PowerLoop, PowerTask, Products, combine, compile_product
from mgspmv.solvers.run import Collected, Rounding
from mgspmv.solvers.steps import DeviceSteps, LocalSteps, Times
from mgspmv.solvers.topk_certificate import TopkCertificate

KEPT_BYTES = 1 << 28
"""Bytes of kept vectors on all workers at which a superstep ends, so that they are sent to the client."""


# --- PageRank of one vector ------------------------------------------------------------------------------------------


class RankIteration(BlockIteration):
    """PageRank of one vector."""

    loop: Loop
    _steps: LocalSteps | DeviceSteps
    """Steps on the rows of this worker, which hold the ranks; made before the first z."""
    _watch: TopkCertificate | None = None
    transport = "peer"

    def __init__(self, part: RowBlock, spec: TaskSpec[RankTask], start: RunInputs, halos: Sequence[Halo]) -> None:
        super().__init__([part], halos)
        self._spec, self._growth = spec, start.growth
        self._task = spec.task

    @abstractmethod
    def _make_steps(self, turns: AllToAll, hellos: Mapping[int, Message]) -> LocalSteps | DeviceSteps:
        """Return the steps, made from the others' first messages."""

    def make_loop(self, turns: AllToAll, hellos: Mapping[int, Message]) -> Loop:
        self._steps = self._make_steps(turns, hellos)
        self._watch = self._steps.watch(self._task.options, turns.gather, self._growth)
        return Loop(self._steps, self._task, self._watch, self._spec.before, self._spec.balance)

    def check_ranks(self) -> RankCheck:
        return RankCheck(*self._steps.check_rows(), self.loop.mass, self.loop.balance)

    def collect(self) -> Collected:
        found = None if self._watch is None else self._watch.found
        return replace(self._steps.collect(), transport=self.transport, stability=found)

    def write_state(self, address: StateAddress) -> WrittenSlice | str:
        """Write the ranks as this worker's slice of a checkpoint."""
        return write_slice(address, self._part.start, self.copy_ranks())

    def copy_ranks(self) -> np.ndarray:
        """Return the ranks after the last step, (n_rows,), on the host."""
        return self._steps.ranks()

    def measure(self) -> float:
        """Compute this worker's part of the residual in lockstep with the other workers. No iteration can follow."""
        return self._steps.measure(self.loop.mass)


class CsrRanking(RankIteration):
    """PageRank by kernels over CSR, on the host or on a device.

    In supersteps slices are sent over Dask's comms (`PeerExchange`); in rounds of tasks they pass through the client
    (`ClientExchange`), which calls `scale`, `step`, `rescale` and `measure_given`.

    Parameters
    ----------
    start : input vectors of the block's rows
    """

    _steps: LocalSteps

    def __init__(self, part: RowBlock, spec: TaskSpec[RankTask], start: RunInputs) -> None:
        assert part.halo is not None
        super().__init__(part, spec, start, [part.halo])
        task = self._task
        kernel = part.bind(task.dtype, task.options.precision, task.kernel, task.threads)
        self._rows = start.bind(kernel, start.take_weight(lambda: part.out_weights.read(task.dtype is not None)))
        self._device = DeviceCopies(kernel.put, kernel.get) if self.has_device else None
        self.computes = kernel.threads if isinstance(kernel, HostBlock) else describe_device()
        kernel.compile(is_relative=task.options.is_relative)

    def _make_steps(self, turns: AllToAll, hellos: Mapping[int, Message]) -> LocalSteps:
        return LocalSteps(self._rows, self._task.options, self._open_peer(turns, hellos, device=self._device))

    @property
    def _relay(self) -> ClientExchange:
        exchange = self._steps.exchange
        assert isinstance(exchange, ClientExchange)
        return exchange

    def scale(self) -> RoundReport:
        """Compute this worker's slice of the first z."""
        self.transport, exchange = "client", ClientExchange(self._halos[0], self._device)
        self._steps = LocalSteps(self._rows, self._task.options, exchange)
        return self._report_round(self._steps.scale())

    def step(self, z: np.ndarray, mass: float) -> RoundReport:
        """Make one iteration on the rows of this worker.

        Parameters
        ----------
        z : (n_cols,), joined from the slices of all workers
        mass : sum of all ranks over dangling vertices
        """
        self._relay.give(z)
        [(sums, times)] = self._steps.advance(mass, 1)
        return self._report_round(sums, times.product_s[0], times.memory_bytes[0])

    def describe_rows(self) -> tuple[Rounding, np.ndarray]:
        """Return the rounding bounds of steps on these rows, and a mask of dangling vertices."""
        return self._rows.rounding, self._rows.kernel.get(self._rows.weight) == 0

    def rescale(self) -> np.ndarray:
        """Compute this worker's slice of z in float64, for the residual."""
        self._steps.begin_residual()
        return self._relay.take()

    def measure_given(self, z: np.ndarray, mass: float) -> float:
        """Compute this worker's part of the residual from z, (n_cols,) float64; see `step`."""
        self._relay.give(z)
        return self._steps.residual(mass)

    def _report_round(self, sums: StepSums, product_s: float = 0.0, held_bytes: int = 0) -> RoundReport:
        ranks = RankCheck(*self._steps.check_rows())
        return RoundReport(self._relay.take(), sums, product_s, held_bytes, ranks)


class LayoutRanking(RankIteration):
    """PageRank by steps on a device, enqueued several at a time, with slices sent from device to device.

    Parameters
    ----------
    start : input vectors of the block's rows
    """

    def __init__(self, part: RowBlock, spec: TaskSpec[RankTask], start: RunInputs) -> None:
        super().__init__(part, spec, start, [])
        self._start, self.computes = start, describe_device()

    def _make_steps(self, turns: AllToAll, hellos: Mapping[int, Message]) -> DeviceSteps:
        spec, task, part, start = self._spec, self._task, self._part, self._start
        assert isinstance(part, DeviceRowBlock)
        assert spec.layout is not None
        join, check = partial(part.join_devices, turns, hellos), turns.peer_comm.check
        self._device = part.bind_steps(task.dtype, spec.layout, task.options.precision, join, check)
        weight = start.take_weight(lambda: part.take_out_weight(task.dtype is not None))
        vectors = start.on_device(weight)
        steps = DeviceSteps(self._device, vectors, task, spec.steps_at_once, is_counted=start.is_counted)
        steps.compile()
        return steps

    def collect(self) -> Collected:
        """Collect as `RankIteration` does, with the transport on which the devices agreed at the start."""
        self.transport = "ipc" if self._device.writes_there else "nccl"
        return super().collect()


# --- a batch ---------------------------------------------------------------------------------------------------------


class BatchPasses(BlockIteration):
    """PageRank of many vectors: with the rows of this worker, or, with a `VectorShare`, of some of the vectors with all
    rows, in which workers make different passes.

    Parameters
    ----------
    worker : the `distributed.Worker` of this process
    """

    loop: Batch

    def __init__(self, worker: Any, part: RowBlock, spec: TaskSpec[BatchTask], piece: BatchPiece) -> None:
        self._task, self._spec, task = spec.task, spec, spec.task
        self._share = piece if isinstance(piece, VectorShare) else None
        kernel: BoundMany
        halos: list[Halo] = []
        if isinstance(part, DeviceRowBlock) and (self._share is not None or spec.transport == "nccl"):
            kernel = part.bind_many_whole(task.dtype, task.options.precision)
        else:
            kernel = part.bind_many(task.dtype, task.options.precision, task.threads)
            halos = [] if part.halo is None or self._share is not None else [part.halo]
        super().__init__([part], halos)
        if self._share is not None:
            self.rank, self.is_alone = self._share.rank, True  # the rank of a block of all rows is 0
        use_weights = task.dtype is not None
        self._rows = piece.start.bind_many(
            kernel, part.out_weights, use_weights=use_weights, has_device=self.has_device
        )
        self._worker, self._piece = worker, piece
        self._kept: list[FinishedVectors] = []
        self.computes = kernel.threads if isinstance(kernel, CpuMany) else describe_device()

    def make_loop(self, turns: AllToAll, hellos: Mapping[int, Message]) -> Batch:
        exchange, queries, task = self._make_exchange(turns, hellos), self._piece.queries, self._task
        fastest, given = self._rows.kernel.best_width, (task.width, len(queries))
        if self._share is not None:
            width = choose_width(*given, min(fastest, self._share.widest), [])
        else:
            where = f" on worker {self._spec.members[self.rank]}"
            width = choose_width(*given, fastest, self._measure_free(exchange), where)
        self.width = min(turns.gather(width))
        # At this number of kept vectors, the same on all workers, a superstep ends.
        kept, n, top = self._kept, self._part.bounds[-1], task.top
        of_vector = 8 * n if top is None else 16 * min(top, n) * len(self._spec.members)
        most = max(1, KEPT_BYTES // of_vector)
        keep, is_full = partial(_keep, kept), lambda: sum(len(own.numbers) for own in kept) >= most
        return Batch(self._rows, queries, task, self.width, exchange, self._piece.order, keep, is_full)

    def take_kept(self) -> tuple[Sequence[FinishedVectors], int]:
        kept = [*self._kept]
        self._kept.clear()
        return kept, self.loop.n_ended

    def collect(self) -> Collected:
        transport = self._spec.transport if self._share is None else "local"
        return replace(self.loop.collect(), transport=transport, memory={"held_bytes": [self.loop.first_bytes]})

    def _make_exchange(self, turns: AllToAll, hellos: Mapping[int, Message]) -> GatheringExchange:
        part, kernel = self._part, self._rows.kernel
        if self._share is None and self._spec.transport == "peer":
            return self._open_peer(turns, hellos, 0, DeviceCopies(kernel.put, kernel.get) if self.has_device else None)
        if self._share is None:
            assert isinstance(part, DeviceRowBlock)
            part.join_devices(turns, hellos)
            if part.group is not None:
                return NcclExchange(part.group, part.bounds)
        return LocalExchange(part.bounds[-1])

    def _measure_free(self, exchange: GatheringExchange) -> list[tuple[int, dict[int, int]]]:
        """Return the free and needed bytes of each memory: device, host, and the limit of the worker's process."""
        kernel, part, precision = self._rows.kernel, self._part, self._task.options.precision
        itemsize, n_rows = kernel.z_dtype.itemsize, part.stop - part.start
        hosts = [get_address_host(member.address) for member in self._spec.members]
        n_sharing = hosts.count(hosts[self.rank])
        needed = {w: count_bytes(exchange, n_rows, precision, itemsize, w) for w in WIDTHS}
        memories = []
        if self.has_device:  # workers may share it where they do not use NCCL
            memories.append((free_device_memory() // (1 if self._spec.transport == "nccl" else n_sharing), needed))
            needed = {w: exchange.n_staged * w * itemsize for w in WIDTHS}
        memories.append((free_memory() // n_sharing, needed))
        if (limit := self._worker.memory_manager.memory_limit) is not None:
            used = self._worker.monitor.get_process_memory()
            memories.append((max(0, limit - used), needed))
        return memories


def _keep(all_kept: list[FinishedVectors], kept: FinishedVectors) -> None:
    """Keep a copy, as the arrays may be overwritten. Not a method, as a batch must not reference its iteration."""
    all_kept.append(replace(kept, ranks=np.array(kept.ranks, order="C")))


# --- power iteration -------------------------------------------------------------------------------------------------


class PowerProducts(BlockIteration):
    """Power iteration: products and steps on the rows of this worker. A device computes the products only.

    A worker holds the elements of x of its rows; each product fetches the columns that it reads from the others.

    Parameters
    ----------
    parts : row blocks of the factors of the product, the last of which multiplies first
    """

    loop: PowerLoop

    def __init__(self, parts: Sequence[RowBlock], spec: TaskSpec[PowerTask], piece: PowerPiece) -> None:
        self._task = spec.task
        read = zip(parts, [*parts[1:], parts[0]], strict=True)
        super().__init__(parts, [cut_again(_find_columns(part), made_by.bounds) for part, made_by in read])
        self._multiply, computes = zip(*(_bind(part, self._task) for part in parts), strict=True)
        self._piece, self.computes = piece, computes[0]
        self._reported = (0.0, 0.0, 0)  # seconds exchanged and waited, and bytes received, at the last iteration

    def make_loop(self, turns: AllToAll, hellos: Mapping[int, Message]) -> PowerLoop:
        zeros = partial(np.zeros, dtype=self._task.precision)
        self._turns = turns
        self._columns = [self._open_peer(turns, hellos, k).open(zeros) for k in range(len(self._halos))]
        gather = turns.gather
        products = Products(
            multiply=self._multiply_all,
            put=np.array,
            get=np.asarray,
            hardware="",
            combine=lambda own, of: combine(gather(own), of),
            report_times=self._report_times,
        )
        turns.begin()
        return PowerLoop(products, self._piece.step, self._piece.x, self._task)

    def collect(self) -> Collected:
        return replace(self.loop.collect(), transport="peer")

    def _multiply_all(self, x: np.ndarray) -> np.ndarray:
        """Return this worker's rows of the product, from its elements of x."""
        for columns, multiply in zip(reversed(self._columns), reversed(self._multiply), strict=True):
            x = multiply(columns.fetch(x))
        return x

    def _report_times(self, elapsed_s: float, n_bytes: int) -> Times:
        turns, (exchanged_s, waited_s, received_bytes) = self._turns, self._reported
        self._reported = (turns.exchanged_s, turns.waited_s, turns.received_bytes)
        exchange_s, wait_s = turns.exchanged_s - exchanged_s, turns.waited_s - waited_s
        moved = (exchange_s,), (wait_s,), (turns.received_bytes - received_bytes,)
        # Bytes that this worker holds in addition to x, y and the next x, which are `n_bytes`.
        added = self._piece.step.added
        between = [(part.stop - part.start) * np.dtype(self._task.precision).itemsize for part in self.parts[1:]]
        held = sum(part.nbytes for part in self.parts) + sum(columns.nbytes for columns in self._columns)
        held += sum(between) + (added.nbytes if isinstance(added, np.ndarray) else 0)
        return Times((elapsed_s - exchange_s - wait_s,), *moved, (n_bytes + held,))


def _find_columns(part: RowBlock) -> Halo:
    """Return the columns of x that products of a row block read: all of them on a device."""
    halo = part.halo if part.backend == "cpu" else None
    return Halo(part.rank, part.bounds, (None,) * (len(part.bounds) - 1)) if halo is None else halo


def _bind(part: RowBlock, task: PowerTask) -> tuple[Callable[[np.ndarray], np.ndarray], int | str]:
    """Return a function that multiplies with a block, and its hardware: number of threads, or name of the device."""
    dtype, threads = task.precision, task.threads
    if part.backend == "cuda":
        options = ProductOptions(dtype, threads=threads, weights=task.weights)
        return partial(part.multiply, y=None, options=options), describe_device()
    kernel = part.bind(dtype if task.weights else None, dtype, threads=threads)
    assert isinstance(kernel, HostBlock)
    compile_product(kernel, dtype)

    def multiply(x: np.ndarray) -> np.ndarray:
        y = np.empty(part.stop - part.start, dtype)
        kernel.multiply(x, y)
        return y

    return multiply, kernel.threads


def make_iteration(worker: Any, parts: Sequence[RowBlock], spec: TaskSpec[Any], piece: Any) -> BlockIteration:
    """Make the iteration of a run from its inputs on this worker: of a ranking the `RunInputs`, or a piece."""
    if isinstance(piece, PowerPiece):
        return PowerProducts(parts, spec, piece)
    if isinstance(piece, BatchPiece):
        return BatchPasses(worker, parts[0], spec, piece)
    return (CsrRanking if spec.layout is None else LayoutRanking)(parts[0], spec, piece)
