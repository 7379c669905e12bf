"""What metrics are counted with, beside Prometheus' own client."""

from __future__ import annotations

import numpy as np
import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgspmv.metrics import Histogram

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
