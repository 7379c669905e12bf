"""Runs on a cluster: the iterations of `mgspmv.solvers`, executed by tasks in two ways.

    tasks         each iteration is a round of tasks: the client sends z to every worker; each worker makes the step on
                  its rows and returns its slice of the next z. Simple, and the reference for the other executor.
    supersteps    each task makes about a second of iterations, in lockstep with the other workers, which send each
                  other their slices. The scheduler handles one task per worker and second.

`AttemptWorkers` begins a `WorkerRun` (`mgspmv.cluster.worker_run`) on each worker and calls its methods in tasks.
`TaskSteps` and `Supersteps` iterate with these calls, and `run` of `mgspmv.solvers.run` drives either.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
from distributed.protocol.pickle import dumps

from mgspmv.checkpoints import Checkpointer, StateAddress, WrittenSlice
from mgspmv.cluster.agent import begin_alone, begin_run
from mgspmv.cluster.load import HeldObjects, name_task
from mgspmv.cluster.matrix import DistributedMatrix
from mgspmv.cluster.worker_run import RankCheck, Report, RoundReport, TaskSpec, check_ranks, check_reports
from mgspmv.errors import ClusterError, OptionError
from mgspmv.exchange.ipc import SharedVector
from mgspmv.kernels.select import StepLayout, check_kernel, find_step_layout
from mgspmv.model import Event, Progress, RowCheck, StepSums, ignore
from mgspmv.solvers.options import PageRankOptions, RankTask
from mgspmv.solvers.pagerank import RunInputs
from mgspmv.solvers.run import Collected, Execution, MassCheck, Outcome, run
from mgspmv.solvers.steps import Made, Steps, Times
from mgspmv.solvers.topk_certificate import TopkCertificate

Executor = Literal["tasks", "supersteps"]

SUPERSTEP_S = 1.0
"""Seconds of a superstep: long compared with the scheduler's time per task, short between two progress reports."""
MOST_SENT = 1 << 20
"""Most bytes of the inputs of a worker that are sent with its task, through the scheduler."""
GROWTH = 16
"""Maximum ratio of the lengths of a superstep and the previous one, as the first iterations are slow."""


def find_layout(matrix: DistributedMatrix, task: RankTask, executor: Executor) -> StepLayout | None:
    """Return the layout for steps on devices that exchange slices by NCCL; None where the steps use CSR."""
    backend, info, kernel = matrix.backend, matrix.info, task.kernel
    check_kernel(kernel, backend, for_steps=True)
    if backend != "cuda":
        return None
    layout = find_step_layout(kernel, task.options.precision, info.index_dtype, task.dtype, info.min_weight)
    if executor == "supersteps" and matrix.transport == "nccl":
        return layout
    if layout not in (None, "auto"):
        raise OptionError(
            f"kernel={kernel!r} needs executor='supersteps' and transport='nccl', not executor={executor!r} and "
            f"transport={matrix.transport!r}; pass kernel='auto' or kernel='csr-split'"
        )
    return None


class AttemptWorkers(HeldObjects):
    """Workers of an attempt, each with a `WorkerRun`; a context manager that ends them, also after an error.

    Parameters
    ----------
    matrices : whose row blocks the run multiplies with, on the same workers
    cut : makes the inputs of each worker, as for `make_iteration`
    report : called when the run begins
    block_keys : keys of other blocks than the row blocks of the matrices, one for each of the first workers; these
        then iterate alone, from `begin_alone` until their runs end and are freed
    """

    def __init__(
        self,
        matrices: Sequence[DistributedMatrix],
        spec: TaskSpec[Any],
        cut: Callable[[], Sequence[Any]],
        report: Progress,
        block_keys: Sequence[str] | None = None,
    ) -> None:
        self.matrix, self.matrices = matrices[0], matrices
        members = self.matrix.members if block_keys is None else self.matrix.members[: len(block_keys)]
        super().__init__(self.matrix.cluster, members, [f"mgspmv-begin-{uuid.uuid4().hex}" for _ in members])
        self._spec, self._cut, self._report, self._block_keys = spec, cut, report, block_keys
        self.hardware = ""
        """Threads or devices of the workers, as text."""

    def __enter__(self) -> Self:
        self._report("start", 0, None)
        began = time.perf_counter()
        self._pieces = self._cut()
        try:
            if self._block_keys is None:
                keys = zip(*(matrix.row_block_keys for matrix in self.matrices), strict=True)
                with self.cluster.scatter_each(self._pieces, self.members, "start", "mgspmv-begin") as sent:
                    given = [(own, self._spec, piece) for own, piece in zip(keys, sent, strict=True)]
                    self.hardware = describe_workers(self.make(begin_run, given))
        except BaseException as error:
            self._abandon(error)
            raise
        self._begun_s = time.perf_counter() - began
        return self

    def iterate(
        self,
        execution: Execution,
        emit: Callable[[Event], None],
        alpha: float | None = None,
        keeper: Checkpointer | None = None,
        on_start: Callable[[], None] = lambda: None,
    ) -> Outcome:
        """Iterate to the end with these workers; arguments as for `run` of `mgspmv.solvers.run`."""
        outcome = run(execution, emit, alpha, keeper, self._report, on_start)
        outcome.seconds["start"] += self._begun_s
        return outcome

    def begin_alone(self, most_s: float) -> tuple[list[Report], float]:
        """Begin the runs of workers that iterate alone, and make a superstep of about `most_s` seconds of each; return
        the reports, and the seconds of the longest superstep."""
        assert self._block_keys is not None
        packed = [dumps(piece) for piece in self._pieces]  # Dask sends each of hundreds of arrays separately
        if max(map(len, packed)) <= MOST_SENT:
            sending: AbstractContextManager[Sequence[Any]] = nullcontext(packed)
        else:
            sending = self.cluster.scatter_each(packed, self.members, "start", "mgspmv-begin")
        with sending as sent:
            pairs = zip(self._block_keys, sent, strict=True)
            begun = self.make(begin_alone, [([key], self._spec, piece, most_s) for key, piece in pairs])
        computes, elapsed_s, reports = zip(*begun, strict=True)
        self.hardware = describe_workers(computes)
        return [*reports], max(elapsed_s)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            self._abandon(error)
            return
        if self._block_keys is None:
            with suppress(ClusterError):  # a worker that does not answer frees it when the key is released
                self.cluster.free(self.keys, self.members)
        self.release()

    def call(self, phase: str, method: str, *args: Any) -> list[Any]:
        """Call a method of the iteration on each worker, as `do` does one of its run."""
        return self.do_each(phase, "call", [(phase, method, *args)] * len(self.members), name=method)

    def collect(self) -> Collected:
        """Return the result of all workers."""
        with SharedVector(self.matrix.shape[0]) as vector:
            found: list[Collected] = self.do("collect", "collect", vector.address)
            values = [own.values for own in found]
            joined = values[0] if isinstance(values[0], list) else vector.join(values, self.matrix.bounds)
        planned = zip(*map(list_planned, self.matrices), strict=True)
        collected = join_collected(found, joined)
        collected.memory["planned_bytes"] = [sum(of_worker) for of_worker in planned]
        return collected

    def _abandon(self, error: BaseException) -> None:
        """Abort the run on all reachable workers, and wait for its tasks to end, so that the next attempt can begin."""
        self.release()
        with suppress(Exception):  # the original error is raised instead
            reason = f"run {self._spec.run} was aborted: {error or type(error).__name__}"
            self.cluster.abort(self._spec.run, self.members, reason)


def join_collected(found: Sequence[Collected], values: Any) -> Collected:
    """Join the results of workers, of which the values are joined already."""
    seconds = {phase: max(own.seconds[phase] for own in found) for phase in found[0].seconds}
    names = dict.fromkeys(name for own in found for name in own.memory)
    memory = {name: [own.memory.get(name, [0])[0] for own in found] for name in names}  # 0 without a device
    return replace(found[0], values=values, seconds=seconds, memory=memory)


class TaskSteps(Steps):
    """Steps as rounds of tasks: the client holds z, and the workers hold the rows, and write their slices of
    checkpoints."""

    is_remote = True

    def __init__(self, workers: AttemptWorkers, n_before: int) -> None:
        self._workers, self._iteration, self._phase = workers, n_before, "start"  # phase of the last round
        self._z = np.empty(0)
        self._found: list[RankCheck] = []  # of each worker after it

    def describe(self) -> str:
        return self._workers.hardware

    def compile(self) -> None:
        """Do nothing: workers compile when the run begins."""

    def scale(self) -> StepSums:
        return self._join(self._workers.call(self._phase, "scale"))

    def advance(self, mass: float, n: int) -> Sequence[Made]:
        self._iteration += 1
        self._phase = f"iteration {self._iteration}"
        began = time.perf_counter()
        reports: list[RoundReport] = self._send_z("step", mass)
        sums, n_workers = self._join(reports), len(reports)
        product_s, held = zip(*((report.product_s, report.held_bytes) for report in reports), strict=True)
        slowest_s = max(product_s)
        moved_s = max(0.0, time.perf_counter() - began - slowest_s)
        waited_s = tuple(slowest_s - own_s for own_s in product_s)
        return [(sums, Times(product_s, (moved_s,) * n_workers, waited_s, (self._z.nbytes,) * n_workers, held))]

    def ranks(self) -> np.ndarray:
        return np.concatenate(self._workers.call(self._phase, "copy_ranks"))

    def check_rows(self) -> tuple[RowCheck, float]:
        return sum((own.rows for own in self._found), RowCheck()), sum(own.slack for own in self._found)

    def measure(self, mass: float) -> float:
        self._phase = "residual"
        self._z = np.concatenate(self._workers.call(self._phase, "rescale"))
        return float(sum(self._send_z("measure_given", mass)))

    def check(self, mass: float, balance: MassCheck | None, iteration: int) -> None:
        check_ranks(self._found, mass, balance, self._workers.members, iteration, self._phase)

    def write_state(self, address: StateAddress) -> Sequence[WrittenSlice | str]:
        return self._workers.call("checkpoint", "write_state", address)

    def collect(self) -> Collected:
        return self._workers.collect()

    def watch(self, options: PageRankOptions, start: RunInputs) -> TopkCertificate | None:
        """Return the certificate of `stop="topk:..."` over the ranks of all workers; None for other criteria."""
        if options.top is None:
            return None
        roundings, is_dangling = zip(*self._workers.call("start", "describe_rows"), strict=True)
        vectors = (np.concatenate(is_dangling), start.dangling, start.personalization)
        return TopkCertificate(options, *vectors, sum(roundings[1:], roundings[0]), growth=start.growth)

    def _send_z(self, method: str, mass: float) -> list[Any]:
        """Send z to all workers, call a method of each with it, and return the results by rank."""
        workers, phase = self._workers, self._phase
        with workers.cluster.scatter_each([self._z], workers.members, phase, name_task(method)) as [z]:
            self._z = np.empty(0)  # frees the client's copy while the workers compute
            return workers.call(phase, method, z, mass)

    def _join(self, reports: list[RoundReport]) -> StepSums:
        """Concatenate the slices of all workers, and return the total of their sums."""
        self._z, self._found = np.concatenate([report.z for report in reports]), [report.ranks for report in reports]
        return sum((report.sums for report in reports), StepSums())


class Supersteps(Execution):
    """Iterations in supersteps: each task makes many, in lockstep with those of the other workers.

    Parameters
    ----------
    max_iter : maximum number of iterations, including `n_before`
    n_before : number of iterations made before this attempt
    on_reports : called with the reports of each superstep
    first : number of iterations of the first superstep, whose time gives the length of the next
    """

    def __init__(
        self,
        workers: AttemptWorkers,
        max_iter: int,
        n_before: int = 0,
        on_reports: Callable[[Sequence[Report]], None] = ignore,
        first: int = 1,
    ) -> None:
        self._workers, self._max_iter, self._n_before = workers, max_iter, n_before
        self._on_reports, self._first = on_reports, first

    def describe(self) -> str:
        return self._workers.hardware

    def start(self) -> None:
        """Connect the workers to each other and make the first z."""
        self.status = self._workers.do("connect", "start")[0]

    def advance(self, n: int | None = None) -> Iterator[Event]:
        workers, made, n = self._workers, self._n_before, self._first
        while self.status is None:
            n = min(n, self._max_iter - made)
            phase = f"iterations {made + 1} to {made + n}"
            reports: list[Report] = workers.do(phase, "superstep", n)
            # Before the events are reported: a checkpoint or a result must not be made of corrupted ranks.
            check_reports(reports, workers.members, phase)
            self.status = reports[0].status
            self._on_reports(reports)
            events = [join_events(own) for own in zip(*(report.events for report in reports), strict=True)]
            for k, event in enumerate(events, 1):
                self.is_ahead = k < len(events)
                yield event
            made += len(events)
            n = choose_length(events)

    def write_state(self, address: StateAddress) -> Sequence[WrittenSlice | str]:
        return self._workers.call("checkpoint", "write_state", address)

    def measure(self) -> float:
        return float(sum(self._workers.call("residual", "measure")))

    def collect(self) -> Collected:
        return self._workers.collect()


def list_planned(matrix: DistributedMatrix) -> list[int]:
    """List the bytes planned for each worker, on its device if it has one."""
    return [w.device_bytes if w.has_device else w.memory_bytes for w in matrix.plan.workers]


def describe_workers(computes: Iterable[int | str]) -> str:
    """Describe the hardware of workers: threads of their hosts, or devices."""
    kinds = Counter(f"{c} {'thread' if c == 1 else 'threads'}" if isinstance(c, int) else c for c in computes)
    return ", ".join(f"{n} {'worker' if n == 1 else 'workers'} of {kind}" for kind, n in kinds.items())


def join_events(events: tuple[Event, ...]) -> Event:
    """Join the events of one iteration, one per worker, into one event."""
    product_s, exchange_s, wait_s = (
        tuple(getattr(event, name)[0] for event in events) for name in ("product_s", "exchange_s", "wait_s")
    )
    if not any(wait_s):  # devices cannot time the wait for others separately
        slowest_s = max(product_s)
        wait_s = tuple(min(e, slowest_s - p) for e, p in zip(exchange_s, product_s, strict=True))
        exchange_s = tuple(e - w for e, w in zip(exchange_s, wait_s, strict=True))
    return replace(
        events[0],
        product_s=product_s,
        exchange_s=exchange_s,
        wait_s=wait_s,
        exchanged_bytes=tuple(event.exchanged_bytes[0] for event in events),
        memory_bytes=tuple(event.memory_bytes[0] for event in events),
    )


def choose_length(events: list[Event]) -> int:
    """Choose the number of iterations of the next superstep, to take about `SUPERSTEP_S`."""
    elapsed_s = sum(e.product_s[0] + e.exchange_s[0] + e.wait_s[0] for e in events)
    return max(1, min(GROWTH * len(events), int(SUPERSTEP_S * len(events) / max(elapsed_s, 1e-9))))
