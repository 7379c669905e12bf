"""Metrics of this process for Prometheus: on `/metrics` of Dask's servers, which show the default registry."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import REGISTRY, CollectorRegistry, Metric


class ProcessMetrics:
    """Metrics of one registry, which the default one shows after `register`.

    They belong to the process, however many workers or schedulers run in it.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._is_registered = False

    def register(self) -> None:
        """Show the metrics on `/metrics` of this process from now on; a second time changes nothing."""
        if not self._is_registered:
            REGISTRY.register(self)
            self._is_registered = True

    def collect(self) -> Iterator[Metric]:
        """Yield the current values, as registries ask for them."""
        return collect_registry(self.registry)


def collect_registry(registry: CollectorRegistry) -> Iterator[Metric]:
    """Yield the metrics of a registry without the times at which each series was created."""
    for metric in registry.collect():
        metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
        yield metric
