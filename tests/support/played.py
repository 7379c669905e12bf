"""A device that plays the steps of PageRank: what its methods do is done by the kernels of the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from mgspmv.checkpoints import Checkpointer
from mgspmv.kernels.rank_steps import PLAIN_RULES, RankRules, RankSteps, RankVectors
from mgspmv.kernels.select import bind_kernel
from mgspmv.model import CHANGE_POINT, FIXED_POINT, CsrBlock, Event, Precision, RowCheck, StepSums
from mgspmv.solvers.options import PageRankOptions, RankTask
from mgspmv.solvers.pagerank import CheckedLoop, find_before
from mgspmv.solvers.run import MassCheck, Outcome, run
from mgspmv.solvers.steps import DeviceSteps, LocalSteps


class PlayedDevice:
    """The steps of `RankSteps`, one after the other; parameters as for it, with the matrix as a block."""

    nbytes, received_bytes, streams, entry_rounding = 1234, 0, False, 0.0
    damage: Callable[[np.ndarray], None] | None = None
    """Something done to the ranks, once, after a step."""

    def __init__(self, block: CsrBlock, precision: Precision = "exact") -> None:
        self.kernel = bind_kernel(block, precision)
        self.layout, self.precision, self.has_values = block, precision, block.data is not None
        self.calls: list[str] = []
        """Methods that were called, but `advance`."""
        self.asked: list[int] = []
        """Steps that were asked for at a time."""
        self.n_made = 0
        """Steps made."""

    def compile(self, rules: RankRules = PLAIN_RULES) -> None:
        self.calls.append("compile")
        self.kernel.compile(is_relative=rules.is_relative)

    def start(self, vectors: RankVectors, rules: RankRules) -> StepSums:
        self.calls.append("start")
        n = self.kernel.block.n_rows
        x: Any = np.full(n, vectors.x[0]) if len(vectors.x) == 1 else vectors.x.copy()
        self._x, self._vectors, self._rules, self._has_stopped = x, vectors, rules, False
        self._z, self._z_next = np.zeros((2, n), self.kernel.z_dtype)
        self._sums = self.kernel.scale(self._x, vectors.weight, self._z)
        self.n_made = 0
        return self._sums

    def advance(self, n: int) -> list[StepSums]:
        self.asked.append(n)
        made: list[StepSums] = []
        while len(made) < n and not self._has_stopped:
            made.append(self._step())
        self.seconds = [(0.5, 0.0)] * len(made)
        return made

    def _step(self) -> StepSums:
        v, rules, before = self._vectors, self._rules, self._sums
        scalars = (rules.alpha, before.dangling / FIXED_POINT)
        vectors = (self._z, self._x, self._z_next, v.weight)
        shares = (v.dangling, v.personalization)
        self._sums = self.kernel.step(*vectors, *scalars, *shares, is_relative=rules.is_relative)
        self._z, self._z_next = self._z_next, self._z
        change = (self._sums.change_linf if rules.by_largest else self._sums.change_l1) / CHANGE_POINT
        self._has_stopped = before.n_wrong > 0 or self._sums.n_wrong > 0 or change < rules.threshold
        self.n_made += 1
        if self.damage is not None:
            self.damage(self._x)
            self.damage = None
        return self._sums

    def check_rows(self) -> RowCheck:
        return self.kernel.check_rows(self._x, self._vectors.weight, self._z)

    def residual(self, mass: float) -> float:
        self.calls.append("residual")
        plain, v = self.kernel.with_precision("float64"), self._vectors
        z = np.zeros(len(self._x))
        plain.scale(self._x, v.weight, z)
        return plain.residual(z, self._x, self._rules.alpha, mass, v.dangling, v.personalization)

    def ranks(self) -> np.ndarray:
        self.calls.append("ranks")
        return self._x.copy()

    def release(self) -> None:
        self.calls.append("release")

    def describe(self) -> str:
        return "a played device"


def run_played(
    device: PlayedDevice,
    vectors: RankVectors,
    options: PageRankOptions,
    threshold: float,
    emit: Callable[[Event], None],
    *,
    name: str = "",
    is_counted: bool = True,
    **given: Any,
) -> Outcome:
    """Run to the end on a device; parameters as for `DeviceSteps` and `run_steps`."""
    task = RankTask(name, options, threshold)
    steps = DeviceSteps(cast(RankSteps, device), vectors, task, is_counted=is_counted)
    return run_steps(steps, task, emit, **given)


def run_steps(
    steps: LocalSteps | DeviceSteps,
    task: RankTask,
    emit: Callable[[Event], None],
    keeper: Checkpointer | None = None,
    balance: MassCheck | None = None,
) -> Outcome:
    """Run to the end with steps on all rows of a matrix, as PageRank in one process does."""
    loop = CheckedLoop(steps, task, steps.watch(task.options), find_before(keeper), balance)
    return run(loop, emit, task.options.alpha, keeper)
