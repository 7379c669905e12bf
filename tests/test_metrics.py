"""What metrics are counted with, beside Prometheus' own client."""

from __future__ import annotations

import numpy as np
import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgspmv.metrics import Collector, Family, Histogram

BOUNDS = (0.25, 0.5, 1.0, 4.0)
VALUES = st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.5, 1.0, 3.0, 4.0, 4.5, 1e9])


@given(st.lists(st.lists(VALUES, max_size=30), max_size=5))
def test_histograms_are_those_of_prometheus(batches):
    own = Histogram(BOUNDS)
    registry = prometheus_client.CollectorRegistry()
    other = prometheus_client.Histogram("h", "h", buckets=BOUNDS, registry=registry)
    for batch in batches:
        own.add(batch)
        for value in batch:
            other.observe(value)
    [family] = registry.collect()
    samples = {(s.name, s.labels.get("le")): s.value for s in family.samples}
    assert own.count == samples["h_count", None]
    assert own.sum == pytest.approx(samples["h_sum", None])
    cumulated = np.cumsum(own.counts).tolist()
    assert cumulated == [samples["h_bucket", str(bound)] for bound in (*BOUNDS, "+Inf")]


@pytest.mark.parametrize("values", [0.3, [0.3], np.full((2, 3), 0.3), np.array([], np.float64)])
def test_histograms_take_one_number_or_many(values):
    histogram = Histogram(BOUNDS)
    histogram.add(values)
    assert histogram.counts.tolist() == [0, np.size(values), 0, 0, 0]


# --- families and collectors -----------------------------------------------------------------------------------------


class Counting(Collector):
    families = (
        Family("mgspmv_test_things_total", "counter", "Things.", ("kind",)),
        Family("mgspmv_test_size_bytes", "gauge", "Their size."),
        Family("mgspmv_test_seconds", "histogram", "Their time.", ("kind",)),
    )

    def list_samples(self):
        histogram = Histogram((0.5, 1.0))
        histogram.add([0.1, 0.7, 5.0])
        return {
            "mgspmv_test_things_total": [(("a",), 2), (("b",), 3)],
            "mgspmv_test_size_bytes": [],
            "mgspmv_test_seconds": [(("a",), histogram)],
        }


@pytest.fixture
def counting():
    collector = Counting()
    collector.register()
    yield collector
    prometheus_client.REGISTRY.unregister(collector)


WANTED = """\
# HELP mgspmv_test_things_total Things.
# TYPE mgspmv_test_things_total counter
mgspmv_test_things_total{kind="a"} 2.0
mgspmv_test_things_total{kind="b"} 3.0
# HELP mgspmv_test_size_bytes Their size.
# TYPE mgspmv_test_size_bytes gauge
# HELP mgspmv_test_seconds Their time.
# TYPE mgspmv_test_seconds histogram
mgspmv_test_seconds_bucket{kind="a",le="0.5"} 1.0
mgspmv_test_seconds_bucket{kind="a",le="1.0"} 2.0
mgspmv_test_seconds_bucket{kind="a",le="+Inf"} 3.0
mgspmv_test_seconds_count{kind="a"} 3.0
mgspmv_test_seconds_sum{kind="a"} 5.8
"""


def test_collectors_are_on_what_dask_serves(counting):
    assert WANTED in prometheus_client.generate_latest().decode()


def test_registering_twice_changes_nothing(counting):
    counting.register()
    assert prometheus_client.generate_latest().decode().count("# TYPE mgspmv_test_size_bytes") == 1


def test_another_collector_of_the_same_families_is_refused(counting):
    with pytest.raises(ValueError, match="mgspmv_test_size_bytes"):
        Counting().register()


def test_registering_asks_for_no_numbers():
    class Silent(Counting):
        def list_samples(self):
            pytest.fail("nobody has scraped")

    silent = Silent()
    silent.register()
    prometheus_client.REGISTRY.unregister(silent)
