"""Steps of a PageRank run that a device makes in batches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from mgspmv.kernels.rank_steps import RankRules, RankSteps, RankVectors
from mgspmv.model import RowCheck, StepSums
from mgspmv.solvers.mass_check import Rounding, Tolerance, find_tolerance
from mgspmv.solvers.options import PageRankOptions, RankTask
from mgspmv.solvers.steps import Made, Times, bound_mass_rounding

if TYPE_CHECKING:
    from mgspmv.solvers.topk_certificate import Gather, TopkCertificate

STEPS_AT_ONCE = 20
"""Most steps of a device before the host reads their results; 1 where one streams rows, so that steps are slow."""


class DeviceSteps:
    """Steps that a device makes in batches; the host reads their results afterwards.

    Parameters
    ----------
    device : has the whole matrix, or the rows of a worker
    vectors : start of the run
    at_once : most steps between two looks, the same on all devices of a run; None for the device's default
    is_counted : whether the out-weights of a pattern are counts
    """

    def __init__(
        self,
        device: RankSteps,
        vectors: RankVectors,
        task: RankTask,
        at_once: int | None = None,
        *,
        is_counted: bool = True,
    ) -> None:
        self._device, self._vectors, self._alpha = device, vectors, task.options.alpha
        self._at_once = at_once or (1 if device.streams else STEPS_AT_ONCE)
        options = task.options
        self._rules = RankRules(options.alpha, task.threshold, options.by_largest, options.is_relative, is_counted)

    def compile(self) -> None:
        """Compile the kernels; see `LocalSteps.compile`."""
        self._device.compile(self._rules)

    def scale(self) -> StepSums:
        return self._device.start(self._vectors, self._rules)

    def advance(self, mass: float, n: int) -> Sequence[Made]:
        device = self._device
        sums = device.advance(min(n, self._at_once))
        assert sums, "the device has stopped, and the loop has not"
        rest = ((0.0,), (device.received_bytes,), (device.nbytes,))
        times = [Times((product_s,), (exchange_s,), *rest) for product_s, exchange_s in device.seconds]
        return list(zip(sums, times, strict=True))

    def ranks(self) -> np.ndarray:
        return self._device.ranks()

    def collect(self) -> np.ndarray:
        """Return the ranks; see `LocalSteps.collect`."""
        ranks = self._device.ranks()
        self._device.release()
        return ranks

    def describe(self) -> str:
        """Describe the device."""
        return self._device.describe()

    def measure(self, mass: float) -> float:
        """Bound |G(x) - x| in L1; see `LocalSteps.measure`."""
        return self._device.residual(mass) + self._alpha * bound_mass_rounding(self._rounding.n_dangling)

    def watch(
        self, options: PageRankOptions, gather: Gather | None = None, growth: float = 1.0
    ) -> TopkCertificate | None:
        """Make the watch of the ranks; see `LocalSteps.watch`."""
        if options.top is None:
            return None
        from mgspmv.solvers.topk_certificate import TopkCertificate

        vectors, is_dangling = self._vectors, self._vectors.weight == 0
        return TopkCertificate(
            options, is_dangling, vectors.dangling, vectors.personalization, self._rounding, gather, growth
        )

    def check_rows(self) -> tuple[RowCheck, float]:
        """Check the rows of the device; see `LocalSteps.check_rows`."""
        found = self._device.check_rows()
        return found, self._tolerance.find_slack(found.sum)

    @cached_property
    def _tolerance(self) -> Tolerance:
        device = self._device
        return find_tolerance(self._rounding, self._vectors.weight, device.precision, has_values=device.has_values)

    @property
    def _rounding(self) -> Rounding:
        device, n_dangling = self._device, int(np.count_nonzero(self._vectors.weight == 0))
        longest = nnz = device.layout.nnz  # upper bound: the layout does not store the lengths of its rows
        return Rounding(longest, nnz, n_dangling, device.entry_rounding)
