"""PageRank as the benchmark iterates it: what it asks of every program, and this project's own."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

import numpy as np

from benchmarks.machines import Machine
from mgspmv.kernels.device import free_device_memory
from mgspmv.kernels.layout import LayoutBuilder
from mgspmv.kernels.modules import choose_weight
from mgspmv.kernels.rank_steps import RankRules, RankSteps, RankVectors
from mgspmv.kernels.select import bind_kernel
from mgspmv.model import CsrBlock, Precision
from mgspmv.solvers.options import PageRankOptions, RankTask
from mgspmv.solvers.pagerank import Loop
from mgspmv.solvers.steps import LocalSteps, Rows

ALPHA = 0.85
FEW, MANY = 5, 25
"""Iterations of the runs whose difference is the time of an iteration: neither is to have converged."""
"""Damping factor of every run; start, personalization and dangling are uniform."""


class Iterations(Protocol):
    """A program's PageRank on one graph, without a stop but that of its count."""

    @property
    def has_stopped(self) -> bool:
        """Whether the latest `advance` made fewer iterations than it was asked for."""
        ...

    def prepare(self) -> float:
        """Make all that is made once, from arrays on the device, and the start.

        It may be called again, drops what it made before (whose memory it may use), and gives the seconds from when
        the device has nothing to do until all is done.
        """
        ...

    def advance(self, k: int) -> None:
        """Make, or enqueue, k iterations: from the start where this is the first call since `prepare`, later from
        there or from the start again."""
        ...

    def ranks(self) -> np.ndarray:
        """(n,) float64: the ranks after `advance`, in the order of the graph."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...


class StepIterations:
    """The steps of `mg.pagerank` on a backend, each begun by the host.

    Parameters
    ----------
    block : in-edges, where the machine has its arrays
    weight : (n,) float64 out-weights there
    """

    has_stopped = False

    def __init__(self, machine: Machine, block: CsrBlock, weight: Any, precision: Precision) -> None:
        self._machine, self._block, self._weight, self._precision = machine, block, weight, precision
        self._rows: Rows | None = None
        self._loop: Loop | None = None

    def prepare(self) -> float:
        self._rows = self._loop = None
        return self._machine.clock(self._bind)

    def _bind(self) -> None:
        kernel = bind_kernel(self._block, self._precision, backend=self._machine.backend)
        kernel.compile()
        n = self._block.n_rows
        x = kernel.zeros(n, np.float32 if self._precision == "float32" else np.float64)
        x += 1 / n
        uniform = kernel.put(np.array([1 / n]))
        rows = Rows(kernel, x, self._weight, uniform, uniform, n_dangling=int((self._weight == 0).sum()))
        options = PageRankOptions(alpha=ALPHA, norm="fixed", max_iter=2**31, precision=self._precision)
        steps = LocalSteps(rows, options)
        self._rows, self._loop = rows, Loop(steps, RankTask("", options, 0.0))
        self._loop.start()

    def advance(self, k: int) -> None:
        assert self._loop is not None
        for _ in self._loop.advance(k):
            pass

    def ranks(self) -> np.ndarray:
        assert self._rows is not None
        return self._rows.kernel.get(self._rows.x).astype(np.float64)

    def close(self) -> None:
        self._rows = self._loop = None
        self._machine.free()


class CapturedIterations:
    """The steps of `mg.pagerank` on a device, begun by the dozen; parameters as for `StepIterations`."""

    def __init__(self, machine: Machine, block: CsrBlock, weight: Any, precision: Precision) -> None:
        self._machine, self._block, self._weight, self._precision = machine, block, weight, precision
        self._steps: RankSteps | None = None
        self._has_stopped = False
        self._bin_bytes = free_device_memory() // 2  # plans know it before

    @property
    def has_stopped(self) -> bool:
        return self._has_stopped

    def prepare(self) -> float:
        self._steps = None
        return self._machine.clock(self._build)

    def _build(self) -> None:
        n, weight = self._block.n_rows, choose_weight(self._weight)  # waits for the device, which has nothing to do yet
        rows = LayoutBuilder(
            self._block.indptr,
            lambda *_: self._block,
            bin_bytes=self._bin_bytes,
            is_exact=self._precision == "exact",
        )
        places = rows.place(self._weight)  # of a pattern: counts
        layout = rows.build_layout(places, places.columns, places.n_sent, None)
        self._steps = RankSteps(layout, self._precision)
        x = np.array([1 / n], np.float32 if self._precision == "float32" else np.float64)
        uniform = np.array([1 / n])
        rules = RankRules(ALPHA, threshold=-1.0, by_largest=False, weight=weight)
        self._steps.start(RankVectors(x, self._weight, uniform, uniform), rules)

    def advance(self, k: int) -> None:
        assert self._steps is not None
        self._has_stopped = len(self._steps.advance(k)) < k

    def ranks(self) -> np.ndarray:
        assert self._steps is not None
        return self._steps.ranks().astype(np.float64)

    def close(self) -> None:
        self._steps = None
        self._machine.free()


def make_ours(machine: Machine, block: CsrBlock, weight: Any, precision: Precision) -> Iterations:
    """The fastest that this project has on the machine; parameters as for `StepIterations`."""
    make = CapturedIterations if machine.backend == "cuda" else StepIterations
    return make(machine, block, weight, precision)


def time_iteration(machine: Machine, iterations: Iterations, rounds: int) -> float | str:
    """Seconds of an iteration, or why they are not known.

    (least time of `MANY` iterations - least time of `FEW`) / (MANY - FEW), so that what a run does once is not in it. A
    run that stops at a fixed point before `MANY` would seem faster than it is, and has no time.
    """
    least = {}
    for k in (FEW, MANY):
        advance = partial(iterations.advance, k)
        advance()  # compiles, and captures what is captured for k
        least[k] = min(machine.clock(advance) for _ in range(rounds))
        if iterations.has_stopped:
            return f"it converged within {k} iterations, so that the time of one is not known"
    if least[MANY] <= least[FEW]:
        return f"{MANY} iterations took no longer than {FEW}: {least[MANY] * 1e3:.4g} and {least[FEW] * 1e3:.4g} ms"
    return (least[MANY] - least[FEW]) / (MANY - FEW)
