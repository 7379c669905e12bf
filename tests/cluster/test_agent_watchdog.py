"""What the watchdog of a worker takes for hanging; looks are made by hand, at a clock that is set."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace

import pytest

from mgspmv.cluster import agent
from mgspmv.cluster.agent import BEGIN_S, LOOK_S, SLOW_PER_S, SLOWEST, WAITS, Watchdog, describe_threads
from mgspmv.errors import StoreError
from mgspmv.heartbeat import find_heartbeat
from tests.support.waiting import HANG_S, wait_for

PATIENCE_S = 20.0
WORKER = SimpleNamespace(name="gpu-3")
DISK_IS_FULL = StoreError("cannot write a scratch file: no space left on device; pass another folder as scratch=")
DISK_IS_FULL.__cause__ = OSError(28, "No space left on device")


@pytest.fixture
def clock(monkeypatch):
    """The time that looks see."""
    now = [0.0]
    monkeypatch.setattr(agent, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def look(watchdog, clock, elapsed_s):
    """Look again and again until so much time has passed."""
    for _ in range(int(elapsed_s / LOOK_S)):
        clock[0] += LOOK_S
        watchdog.look()


def check_how_long_a_task_may_be_without_a_mark(clock, slowest_s, n_terms, patience_s, limit_s):
    watchdog = Watchdog(WORKER)
    with watchdog.watch(patience_s):
        heartbeat = find_heartbeat()
        heartbeat.slowest_s, heartbeat.n_terms, heartbeat.phase = slowest_s, n_terms, "iteration 7"
        look(watchdog, clock, limit_s)
        assert watchdog.list_hangs() == []
        look(watchdog, clock, 1.0)
        [hang] = watchdog.list_hangs()
    said = (f"made no progress for {limit_s + 0.5:.3g} s", "its log has the stacks of its threads")
    assert hang.describe() == ("iteration 7", *said, None)


def test_how_long_a_task_may_be_without_a_mark(clock):
    for slowest_s, n_terms, patience_s, limit_s in [
        (None, 0, PATIENCE_S, BEGIN_S),
        (None, 0, 1000.0, 1000.0),
        (None, 10**10, PATIENCE_S, BEGIN_S + 10**10 / SLOW_PER_S),
        (0.001, 0, PATIENCE_S, PATIENCE_S),
        (7.0, 0, PATIENCE_S, SLOWEST * 7.0),
    ]:
        check_how_long_a_task_may_be_without_a_mark(clock, slowest_s, n_terms, patience_s, limit_s)


def test_a_task_that_waits_names_the_worker_that_keeps_it_waiting(clock):
    watchdog = Watchdog(WORKER)
    with watchdog.watch(PATIENCE_S):
        heartbeat = find_heartbeat()
        heartbeat.slowest_s, heartbeat.phase, heartbeat.waits, heartbeat.awaited = 7.0, "iteration 7", True, 2
        look(watchdog, clock, WAITS * SLOWEST * 7.0)
        assert watchdog.list_hangs() == []
        look(watchdog, clock, 1.0)
        [hang] = watchdog.list_hangs()
        assert hang.describe() == (
            "iteration 7", "was silent for 280 s", "it hangs, or other tasks occupy its threads", 2
        )  # fmt: skip
        heartbeat.awaited = None  # as while a device waits
        assert hang.describe()[1:] == (
            "waited 280 s for other workers, and none made progress",
            "the log of each has the stacks of its threads",
            None,
        )


def test_the_stacks_of_all_threads_are_logged(clock, caplog):
    go_on, watchdog = threading.Event(), Watchdog(WORKER)

    def stand_still():
        go_on.wait(HANG_S)

    thread = threading.Thread(target=stand_still, name="the one that hangs")
    thread.start()
    try:
        assert wait_for(lambda: "in stand_still" in describe_threads())
        with caplog.at_level(logging.ERROR), watchdog.watch(PATIENCE_S):
            find_heartbeat().phase = "load"
            look(watchdog, clock, BEGIN_S + 1)
    finally:
        go_on.set()
        thread.join(HANG_S)
    own, of_dask = caplog.records
    assert (own.name, own.worker, own.phase) == ("mgspmv.workers", "gpu-3", "load")
    for text in (own.stacks, of_dask.getMessage()):
        assert "thread the one that hangs:" in text
        assert "in stand_still" in text
    assert of_dask.name.startswith("distributed.worker")


def test_time_in_which_the_process_was_stopped_does_not_count(clock):
    watchdog = Watchdog(WORKER)
    with watchdog.watch(PATIENCE_S):
        find_heartbeat().slowest_s = 0.001
        for _ in range(3):
            clock[0] += 1000.0
            watchdog.look()
        assert watchdog.list_hangs() == []


@pytest.mark.parametrize("error", [OSError(28, "No space left on device", "/a"), DISK_IS_FULL])
def test_what_an_operator_can_mend_names_the_worker(monkeypatch, error):
    def fail():
        raise error

    monkeypatch.setattr(agent, "get_worker", lambda: WORKER)
    monkeypatch.setattr(agent, "get_agent", lambda: SimpleNamespace(watchdog=Watchdog(WORKER)))
    with pytest.raises(StoreError, match=r"no space left on device; .*; this is on worker gpu-3$") as raised:
        agent.do_watched(PATIENCE_S, fail)
    assert isinstance(raised.value.__cause__, OSError)
    assert raised.value.exit_code == 4
