"""Marks of tasks, of whoever makes them."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from mgspmv.heartbeat import Heartbeat, beat, find_heartbeat, make_heartbeat
from mgspmv.store.digests import digest_array
from tests.support.waiting import HANG_S


def test_marks_belong_to_the_thread_that_makes_them():
    beat()  # of nobody
    with make_heartbeat() as heartbeat:
        beat()
        assert (find_heartbeat() is heartbeat, heartbeat.n) == (True, 1)
        other = threading.Thread(target=beat)
        other.start()
        other.join(HANG_S)
        assert heartbeat.n == 1
        with make_heartbeat() as inner:
            beat()
        assert (inner.n, heartbeat.n) == (1, 1)
    assert find_heartbeat() is not heartbeat


def test_the_slowest_step_is_that_of_all_so_far(monkeypatch):
    now = iter([0.0, 1.0, 4.0, 5.0, 10.0, 10.5])
    monkeypatch.setattr("mgspmv.heartbeat.time", type("Played", (), {"monotonic": staticmethod(lambda: next(now))}))
    heartbeat = Heartbeat()
    heartbeat.begin_steps(None)
    for wanted in (3.0, 3.0):
        heartbeat.end_step()
        assert heartbeat.slowest_s == wanted
    heartbeat.begin_steps(heartbeat.slowest_s)
    heartbeat.end_step()
    assert (heartbeat.slowest_s, heartbeat.n) == (3.0, 3)


@pytest.mark.parametrize("n_chunks", [1, 3])
def test_each_piece_of_an_array_is_a_mark(n_chunks, monkeypatch):
    monkeypatch.setattr("mgspmv.store.digests.CHUNK_ELEMENTS", 10)
    with make_heartbeat() as heartbeat:
        digest_array(np.arange(10 * n_chunks), 2)
    assert heartbeat.n == n_chunks
