"""Messages of iterations: however many there were, nothing of them is lost, and they are small."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgspmv.cluster.publish import MOST_GROUPS, pack_events
from mgspmv.model import Event

SUMMED = ("product_s", "exchange_s", "wait_s", "exchanged_bytes")


def make_events(n, n_workers=1, first=1, epoch=0):
    rng = np.random.default_rng(n)
    seconds = rng.random((n, 3, n_workers))
    return [
        Event("r", epoch, first + k, 0.5**k, *map(tuple, seconds[k].tolist()), (k,) * n_workers, (100 + k,) * n_workers)
        for k in range(n)
    ]


@given(st.integers(1, 1000), st.integers(1, 3), st.integers(1, 50))
def test_sums_and_ends_of_groups_are_those_of_the_events(n, n_workers, first):
    events = make_events(n, n_workers, first)
    packed = msgpack.unpackb(msgpack.packb(pack_events(events, range(n_workers))))
    assert (packed["kind"], packed["run"], packed["epoch"], packed["first"]) == ("iterations", "r", 0, first)
    lasts = packed["iteration"]
    assert len(lasts) == len(packed["change"]) <= MOST_GROUPS
    assert lasts[-1] == events[-1].iteration
    sizes = np.diff([first - 1, *lasts])
    assert (sizes[:-1] == sizes[0]).all()
    assert 0 < sizes[-1] <= sizes[0]
    assert packed["change"] == [events[last - first].change for last in lasts]
    for name in SUMMED:
        for rank in range(n_workers):
            assert len(packed[name][rank]) == len(lasts)
            assert sum(packed[name][rank]) == pytest.approx(sum(getattr(e, name)[rank] for e in events))
    assert packed["held_bytes"] == [100 + n - 1] * n_workers
