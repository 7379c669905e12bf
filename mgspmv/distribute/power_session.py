"""What a worker keeps of a run of power iteration, with matrices of which it holds parts.

The elements of x that belong to its rows stay on the worker; each product brings the columns that it reads from the
other workers. A device makes products alone: vectors are on its host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mgspmv.distribute.part import Part
from mgspmv.distribute.session import Session, Spec, find_wanted, greet_asking
from mgspmv.exchange.columns import Columns, cut_again, hold_all
from mgspmv.exchange.halo import Halo
from mgspmv.exchange.turns import Turns
from mgspmv.iterate.pagerank import Times
from mgspmv.iterate.power import PowerLoop, PowerTask, Products, Step, compile_product
from mgspmv.iterate.tally import Norm, combine
from mgspmv.kernels.cpu import CpuBlock
from mgspmv.kernels.device import describe_device
from mgspmv.model import TolMode


@dataclass(frozen=True)
class PowerSpec(Spec):
    """What all workers of a run are told."""

    task: PowerTask
    """What was asked for."""


@dataclass(frozen=True, eq=False)
class PowerStart:
    """What a run starts with, in the order of the stored rows."""

    x: np.ndarray
    """(n,) float32 or float64, as the run's precision: the start."""
    step: Step
    """What is made of each product; its vector, if it has one, is (n,) of the same dtype."""

    def cut(self, start: int, stop: int) -> PowerStart:
        """The elements `start` .. `stop`, as views."""
        return PowerStart(self.x[start:stop], self.step.place(lambda vector: vector[start:stop]))


class Workmates:
    """The other workers of a run, as `mgspmv.iterate.power.Products` has them.

    Parameters
    ----------
    measure : bytes that this worker holds beside x, y and the next x
    """

    def __init__(self, turns: Turns, measure: Callable[[], int]) -> None:
        self._turns, self._measure = turns, measure
        self._seen = (0.0, 0.0, 0)

    def combine(self, own: float, of: Norm | TolMode) -> float:
        return combine([told["own"] for told in self._turns.gather({"own": own})], of)

    def tell_times(self, elapsed_s: float, n_bytes: int) -> Times:
        turns, (exchanged_s, waited_s, received_bytes) = self._turns, self._seen
        self._seen = (turns.exchanged_s, turns.waited_s, turns.received_bytes)
        exchange_s, wait_s = turns.exchanged_s - exchanged_s, turns.waited_s - waited_s
        return Times(
            (elapsed_s - exchange_s - wait_s,),
            (exchange_s,),
            (wait_s,),
            (turns.received_bytes - received_bytes,),
            (n_bytes + self._measure(),),
        )


class PowerSession(Session):
    """Products and steps on the rows of a worker, in lockstep with the others.

    Parameters
    ----------
    worker : the `distributed.Worker` that this is on
    parts : of the matrices whose product it is: x has the rows of the first one, and is multiplied by the last one
    start : of the rows of the first part
    """

    _loop: PowerLoop | None

    def __init__(self, worker: Any, parts: Sequence[Part], spec: PowerSpec, start: PowerStart) -> None:
        self._parts, self._start = parts, start
        read = zip(parts, [*parts[1:], parts[0]], strict=True)
        self._halos = [cut_again(_find_columns(part), made_by.bounds) for part, made_by in read]
        self._columns: list[Columns] = []
        self._multiply = [_bind(part, spec.task) for part in parts]
        super().__init__(worker, parts[0], spec, partial(greet_asking, self._halos))
        self._spec = spec
        self.computes = _describe(parts[0], spec.task)

    @property
    def parts(self) -> Sequence[Part]:
        return self._parts

    def collect(self) -> tuple[np.ndarray, str, dict[str, int]]:
        """(n_rows,): the vector; how slices went from worker to worker; and the bytes that this worker took."""
        assert self._loop is not None
        return self._loop.x, "peer", self.measure_memory()

    def _connect(self, width: int) -> PowerLoop:
        task, hellos = self._spec.task, self.links.connect()
        turns = Turns(self.links, self._part.rank, len(self._spec.members))
        dtype = np.dtype(task.precision)
        self._columns = [
            Columns(turns, halo, find_wanted(hellos, halo, k), dtype) for k, halo in enumerate(self._halos)
        ]
        self.links.phase = "iteration 1"
        mates = Workmates(turns, self._measure_held)
        products = Products(self._multiply_all, np.array, np.asarray, "", 0, mates.combine, mates.tell_times)
        loop = PowerLoop(products, self._start.step, self._start.x, task)
        turns.begin()
        return loop

    def _multiply_all(self, x: np.ndarray) -> np.ndarray:
        """This worker's rows of the product, of its elements of x."""
        for columns, multiply in zip(reversed(self._columns), reversed(self._multiply), strict=True):
            x = multiply(columns.gather(x))
        return x

    def _measure_held(self) -> int:
        added = self._start.step.added
        between = [(part.stop - part.start) * np.dtype(self._spec.task.precision).itemsize for part in self._parts[1:]]
        held = sum(part.nbytes for part in self._parts) + sum(columns.nbytes for columns in self._columns)
        return held + sum(between) + (added.nbytes if isinstance(added, np.ndarray) else 0)


def _find_columns(part: Part) -> Halo:
    """The columns that products of a part get: on a device all."""
    halo = part.halo if part.backend == "cpu" else None
    return hold_all(part.rank, part.bounds) if halo is None else halo


def _bind(part: Part, task: PowerTask) -> Callable[[np.ndarray], np.ndarray]:
    """The product with a part, of its columns."""
    dtype, threads = task.precision, task.threads
    if part.backend == "cuda":
        return partial(part.multiply, y=None, alpha=1.0, beta=0.0, dtype=dtype, threads=threads, weights=task.weights)
    kernel = part.bind(dtype if task.weights else None, dtype, threads=threads)
    compile_product(kernel, dtype)

    def multiply(x: np.ndarray) -> np.ndarray:
        y = np.empty(part.stop - part.start, dtype)
        kernel.multiply(x, y)
        return y

    return multiply


def _describe(part: Part, task: PowerTask) -> int | str:
    """Threads of the host, or the device by its name."""
    if part.backend == "cuda":
        return describe_device()
    kernel = part.bind(task.precision if task.weights else None, task.precision, threads=task.threads)
    assert isinstance(kernel, CpuBlock)
    return kernel.threads
