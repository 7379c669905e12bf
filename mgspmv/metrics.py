"""What metrics for Prometheus are made of; who counts, and what, is above.

Servers of Dask show the default registry of `prometheus_client` as `/metrics`. A collector that is registered there
belongs to the process, however many workers or schedulers run in it, and is asked when somebody scrapes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from prometheus_client import Metric

Sample = tuple[tuple[str, ...], "float | Histogram"]
"""Values of the labels, and the number, of a histogram all of it."""


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


@dataclass(frozen=True)
class Family:
    """Numbers of one name, which differ by their labels."""

    name: str
    """By the conventions of Prometheus: with the unit, and `_total` of a counter."""
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    """What it is, in a sentence."""
    labels: tuple[str, ...] = ()
    """Their names."""

    def make(self, samples: Iterable[Sample]) -> Metric:
        """What `prometheus_client` takes of these."""
        from prometheus_client import core

        family = core.CounterMetricFamily if self.kind == "counter" else core.GaugeMetricFamily
        numbers = family(self.name.removesuffix("_total"), self.help, labels=self.labels)
        histograms = core.HistogramMetricFamily(self.name, self.help, labels=self.labels)
        for labels, value in samples:
            if isinstance(value, Histogram):
                histograms.add_metric(labels, _list_buckets(value), value.sum)
            else:
                numbers.add_metric(labels, value)
        return histograms if self.kind == "histogram" else numbers


class Collector(ABC):
    """Numbers of some families, as the default registry asks for them."""

    families: tuple[Family, ...]
    """All that there may be."""

    def __init__(self) -> None:
        self._is_registered = False

    def register(self) -> None:
        """Show the numbers on `/metrics` of this process from now on; a second time changes nothing."""
        from prometheus_client import REGISTRY

        if not self._is_registered:
            REGISTRY.register(self)
            self._is_registered = True

    def describe(self) -> list[Metric]:
        """The families without their numbers."""
        return [family.make(()) for family in self.families]

    def collect(self) -> Iterator[Metric]:
        """The families with the numbers of now."""
        samples = self.list_samples()
        for family in self.families:
            yield family.make(samples[family.name])

    @abstractmethod
    def list_samples(self) -> dict[str, list[Sample]]:
        """By family the numbers of now; of each family, if only an empty list."""


def _list_buckets(histogram: Histogram) -> list[tuple[str, float]]:
    from prometheus_client.utils import floatToGoString

    names = [*map(floatToGoString, histogram.bounds.tolist()), "+Inf"]
    return [*zip(names, accumulate(histogram.counts.tolist()), strict=True)]
