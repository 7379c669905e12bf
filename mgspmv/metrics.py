"""What metrics are counted with; who counts, and of what, is above."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike


class Histogram:
    """How many numbers there were up to each of some bounds, and their sum, as histograms of Prometheus have it.

    Parameters
    ----------
    bounds : increasing
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = np.array(bounds, np.float64)
        self.counts = np.zeros(len(self.bounds) + 1, np.int64)
        """(len(bounds) + 1,): numbers up to each bound that are above the one before; the last are above all."""
        self.sum = 0.0

    def add(self, values: ArrayLike) -> None:
        """Take one number or many, of any shape."""
        taken = np.ravel(np.asarray(values, np.float64))
        self.counts += np.bincount(np.searchsorted(self.bounds, taken), minlength=len(self.counts))
        self.sum += float(taken.sum())

    @property
    def count(self) -> int:
        """Numbers that were taken."""
        return int(self.counts.sum())
