"""Slices through the process that drives the run."""

from __future__ import annotations

import numpy as np

from mgspmv.exchange.halo import Halo
from mgspmv.exchange.relay import RelayTransport
from mgspmv.model import StepSums

HALO = Halo(1, (0, 4, 9, 12), (np.array([1, 3], np.int32), None, None))
"""Of the worker of rows 4 to 9, which reads two rows of the one before it and all of the one after it."""
HELD = [1, 3, 4, 5, 6, 7, 8, 9, 10, 11]

DTYPES = [np.int64, np.float32, np.float64]


def test_the_held_columns_of_what_is_given_are_read():
    for dtype in DTYPES:
        transport = RelayTransport(HALO, np.dtype(dtype))
        for step in (1, 2):
            z = (100 * step + np.arange(12)).astype(dtype)
            transport.give(z)
            assert transport.z.dtype == dtype, dtype
            assert transport.z.tolist() == z[HELD].tolist(), dtype
            assert not np.shares_memory(transport.z, z), dtype


def test_what_is_written_is_taken():
    for dtype in DTYPES:
        transport = RelayTransport(HALO, np.dtype(dtype))
        transport.slot(4, 6)[:] = [1, 2]
        transport.slot(6, 9)[:] = [3, 4, 5]
        taken = transport.take()
        assert taken.dtype == dtype, dtype
        assert taken.tolist() == [1, 2, 3, 4, 5], dtype


def test_what_was_taken_is_not_written_again():
    transport = RelayTransport(HALO, np.dtype(np.int64))
    taken = []
    for step in range(4):
        transport.slot(4, 9)[:] = step
        taken.append(transport.take())
        transport.slot(4, 9)[:] = -1
    assert [t.tolist() for t in taken] == [[step] * 5 for step in range(4)]


def test_slots_do_not_change_what_is_read():
    transport = RelayTransport(HALO, np.dtype(np.int64))
    transport.give(np.arange(12))
    transport.slot(4, 9)[:] = -1
    assert transport.exchange(StepSums()) == StepSums()
    assert transport.z.tolist() == HELD
    assert transport.take().tolist() == [-1] * 5
    assert transport.z.tolist() == HELD


def test_sums_are_those_of_this_worker():
    transport = RelayTransport(HALO, np.dtype(np.int64))
    sums = StepSums(change_l1=2**62 - 1, change_linf=3, dangling=2**62 + 1, n_wrong=1)
    assert transport.exchange(sums, product_s=2.0) == sums
    assert transport.waited_s == 0.0


def test_bytes_are_those_that_came_and_those_that_are_held():
    transport = RelayTransport(HALO, np.dtype(np.int64))
    assert (transport.exchanged_bytes, transport.nbytes) == (0, 8 * 5 + 4 * 2)
    for n_given in (1, 2):
        transport.give(np.arange(12))
        assert (transport.exchanged_bytes, transport.nbytes) == (8 * 12 * n_given, 8 * 10 + 8 * 5 + 4 * 2)


def test_restarted_in_another_dtype():
    for dtype in DTYPES:
        transport = RelayTransport(HALO, np.dtype(np.int64))
        transport.give(np.arange(12))
        transport.restart(np.dtype(dtype))
        assert transport.slot(4, 9).dtype == dtype, dtype
        transport.slot(4, 9)[:] = [0.5, 1, 2, 3, 4]
        assert transport.take().tolist() == np.array([0.5, 1, 2, 3, 4]).astype(dtype).tolist(), dtype
        transport.give((np.arange(12) / 2).astype(dtype))
        assert transport.z.dtype == dtype, dtype
        assert transport.z.tolist() == (np.arange(12) / 2).astype(dtype)[HELD].tolist(), dtype


def test_a_worker_without_rows():
    nothing = np.empty(0, np.int32)
    transport = RelayTransport(Halo(1, (0, 4, 4, 6), (nothing, None, nothing)), np.dtype(np.float64))
    transport.give(np.arange(6.0))
    assert len(transport.z) == len(transport.slot(4, 4)) == len(transport.take()) == 0
