"""Parts that threads take in turn."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from multiprocessing import get_context

import pytest

from mgspmv.heartbeat import make_heartbeat
from mgspmv.store import digests
from mgspmv.store.digests import run_parts
from tests.support.waiting import HANG_S, wait_for


@pytest.mark.parametrize("threads", [1, 3, None])
@pytest.mark.parametrize("n", [0, 1, 100])
def test_each_part_is_done_once_and_is_a_mark(n, threads):
    done: list[int] = []
    with make_heartbeat() as heartbeat:
        run_parts(done.append, range(n), threads)
    assert sorted(done) == [*range(n)]
    assert heartbeat.n == n


def test_parts_are_done_by_several_threads_that_stay():
    together, names = threading.Barrier(3), []

    def work(part: int) -> None:
        together.wait(HANG_S)
        names.append(threading.current_thread().name)

    for _ in range(2):
        run_parts(work, range(3), 3)
    assert len(set(names[:3])) == 3
    assert set(names[:3]) == set(names[3:])


def test_after_an_error_no_part_is_begun_and_all_threads_have_ended(monkeypatch):
    begun, ended, running, failing = [], [], [], threading.Barrier(2)
    monkeypatch.setattr(digests, "wait", lambda threads: (running.extend(threads), wait(threads)))

    def work(part: int) -> None:
        begun.append(part)
        failing.wait(HANG_S)
        if part == 0:
            raise OSError("broken")
        assert wait_for(lambda: any(thread.done() for thread in running))
        ended.append(part)

    with pytest.raises(OSError, match="broken"):
        run_parts(work, range(50), 2)
    assert (sorted(begun), ended) == ([0, 1], [1])


def test_parts_of_parts_need_no_further_threads():
    done: list[tuple[int, int]] = []
    run_parts(lambda part: run_parts(lambda own: done.append((part, own)), range(4), 2), range(4), 2)
    assert sorted(done) == [(part, own) for part in range(4) for own in range(4)]


def test_callers_share_the_threads():
    done: list[int] = []
    with ThreadPoolExecutor(8) as callers:
        wait([callers.submit(run_parts, done.append, range(20), 2) for _ in range(8)], HANG_S)
    assert len(done) == 160


def _sum_in_a_child(n: int) -> int:
    done: list[int] = []
    run_parts(done.append, range(n), 2)
    return sum(done)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own():
    assert _sum_in_a_child(5) == 10
    with get_context("fork").Pool(1) as pool:
        assert pool.apply_async(_sum_in_a_child, (5,)).get(HANG_S) == 10
