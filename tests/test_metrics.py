"""Metrics of a process as Dask's servers show them."""

from __future__ import annotations

from collections.abc import Iterator

import prometheus_client
import pytest

from mgspmv.metrics import ProcessMetrics


class Counting(ProcessMetrics):
    def __init__(self) -> None:
        super().__init__()
        things = prometheus_client.Counter("mgspmv_test_things_total", "Things.", ["kind"], registry=self.registry)
        things.labels("a").inc(2)
        prometheus_client.Histogram("mgspmv_test_seconds", "T.", buckets=[0.5], registry=self.registry).observe(0.7)


@pytest.fixture
def counting() -> Iterator[Counting]:
    metrics = Counting()
    metrics.register()
    yield metrics
    prometheus_client.REGISTRY.unregister(metrics)


WANTED = """\
# HELP mgspmv_test_things_total Things.
# TYPE mgspmv_test_things_total counter
mgspmv_test_things_total{kind="a"} 2.0
# HELP mgspmv_test_seconds T.
# TYPE mgspmv_test_seconds histogram
mgspmv_test_seconds_bucket{le="0.5"} 0.0
mgspmv_test_seconds_bucket{le="+Inf"} 1.0
mgspmv_test_seconds_count 1.0
mgspmv_test_seconds_sum 0.7
"""


def test_what_dask_serves_has_the_metrics_once_and_no_more(counting: Counting) -> None:
    counting.register()
    served = prometheus_client.generate_latest().decode()
    assert WANTED in served
    assert served.count("mgspmv_test_") == WANTED.count("mgspmv_test_")


def test_the_same_names_twice_are_an_error(counting: Counting) -> None:
    with pytest.raises(ValueError, match="mgspmv_test_things"):
        Counting().register()
