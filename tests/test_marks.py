"""Marks of tasks, of whoever makes them."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from mgspmv.marks import Marks, find_marks, make_marks, mark
from mgspmv.store.digests import digest_array
from tests.support.waiting import HANG_S


def test_marks_belong_to_the_thread_that_makes_them():
    mark()  # of nobody
    with make_marks() as marks:
        mark()
        assert (find_marks() is marks, marks.n) == (True, 1)
        other = threading.Thread(target=mark)
        other.start()
        other.join(HANG_S)
        assert marks.n == 1
        with make_marks() as inner:
            mark()
        assert (inner.n, marks.n) == (1, 1)
    assert find_marks() is not marks


def test_the_slowest_step_is_that_of_all_so_far(monkeypatch):
    now = iter([0.0, 1.0, 4.0, 5.0, 10.0, 10.5])
    monkeypatch.setattr("mgspmv.marks.time", type("Played", (), {"monotonic": staticmethod(lambda: next(now))}))
    marks = Marks()
    marks.begin_steps(None)
    for wanted in (3.0, 3.0):
        marks.end_step()
        assert marks.slowest_s == wanted
    marks.begin_steps(marks.slowest_s)
    marks.end_step()
    assert (marks.slowest_s, marks.n) == (3.0, 3)


@pytest.mark.parametrize("n_chunks", [1, 3])
def test_each_piece_of_an_array_is_a_mark(n_chunks, monkeypatch):
    monkeypatch.setattr("mgspmv.store.chunks.CHUNK_ELEMENTS", 10)
    with make_marks() as marks:
        digest_array(np.arange(10 * n_chunks), 2)
    assert marks.n == n_chunks
