"""The transport of one process: two buffers that take turns."""

from __future__ import annotations

import numpy as np

from mgspmv.exchange.transport import LocalTransport
from mgspmv.model import StepSums


def test_starts_at_zero():
    for dtype in [np.int64, np.float32, np.float64]:
        transport = LocalTransport(5, np.dtype(dtype))
        assert transport.z.dtype == dtype, dtype
        assert transport.z.tolist() == [0] * 5, dtype
        assert transport.slot(0, 5).dtype == dtype, dtype
        assert transport.exchanged_bytes == 0, dtype


def test_slots_become_the_next_z_and_not_before():
    transport = LocalTransport(5, np.dtype(np.float64))
    transport.slot(0, 2)[:] = [1, 2]
    transport.slot(2, 5)[:] = [3, 4, 5]
    assert transport.z.tolist() == [0] * 5
    transport.exchange(StepSums())
    assert transport.z.tolist() == [1, 2, 3, 4, 5]


def test_two_buffers_take_turns():
    transport = LocalTransport(3, np.dtype(np.int64))
    seen = set()
    for step in range(1, 5):
        transport.slot(0, 3)[:] = step
        read = transport.z
        before = read.tolist()
        assert not np.shares_memory(read, transport.slot(0, 3))
        transport.exchange(StepSums())
        assert transport.z.tolist() == [step] * 3
        assert read.tolist() == before
        seen.add(id(transport.z))
    assert len(seen) == 2


def test_sums_are_already_everybodys_and_nothing_moves():
    transport = LocalTransport(3, np.dtype(np.int64))
    sums = StepSums(change_l1=5, change_linf=3, dangling=2**62, n_wrong=1)
    assert transport.exchange(sums) == sums
    assert transport.exchanged_bytes == 0
