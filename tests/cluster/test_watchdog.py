"""What the watchdog of a worker takes for hanging; looks are made by hand."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace

import pytest

from mgspmv.cluster import watchdog as module
from mgspmv.cluster.watchdog import BEGIN_S, SLOW_PER_S, SLOWEST, Watchdog, describe_threads
from mgspmv.errors import StoreError
from tests.support.waiting import HANG_S, wait_for

PATIENCE_S = 20.0
WORKER = SimpleNamespace(name="gpu-3")
DISK_IS_FULL = StoreError("cannot write a scratch file: no space left on device; pass another folder as scratch=")
DISK_IS_FULL.__cause__ = OSError(28, "No space left on device")


@pytest.fixture
def watchdog(monkeypatch):
    """One that looks when it is told to."""
    monkeypatch.setattr(Watchdog, "_run", lambda self: None)
    return Watchdog()


def check_how_long_a_task_may_be_without_a_mark(watchdog, slowest_s, n_terms, patience_s, limit_s):
    with watchdog.watch(WORKER, patience_s) as heartbeat:
        heartbeat.slowest_s, heartbeat.n_terms, heartbeat.phase = slowest_s, n_terms, "iteration 7"
        watchdog.look(limit_s)
        assert watchdog.list_hangs(WORKER) == []
        watchdog.look(0.5)
        watchdog.look(0.5)
        [hang] = watchdog.list_hangs(WORKER)
    said = (f"made no progress for {limit_s + 0.5:.3g} s", "its log has the stacks of its threads")
    assert hang.describe() == ("iteration 7", *said)


def test_how_long_a_task_may_be_without_a_mark(watchdog):
    for slowest_s, n_terms, patience_s, limit_s in [
        (None, 0, PATIENCE_S, BEGIN_S),
        (None, 0, 1000.0, 1000.0),
        (None, 10**10, PATIENCE_S, BEGIN_S + 10**10 / SLOW_PER_S),
        (0.001, 0, PATIENCE_S, PATIENCE_S),
        (7.0, 0, PATIENCE_S, SLOWEST * 7.0),
    ]:
        check_how_long_a_task_may_be_without_a_mark(watchdog, slowest_s, n_terms, patience_s, limit_s)


def test_the_stacks_of_all_threads_are_logged(watchdog, caplog):
    go_on = threading.Event()

    def stand_still():
        go_on.wait(HANG_S)

    thread = threading.Thread(target=stand_still, name="the one that hangs")
    thread.start()
    try:
        assert wait_for(lambda: "in stand_still" in describe_threads())
        with caplog.at_level(logging.ERROR), watchdog.watch(WORKER, PATIENCE_S) as heartbeat:
            heartbeat.phase = "load"
            watchdog.look(BEGIN_S + 1)
    finally:
        go_on.set()
        thread.join(HANG_S)
    own, of_dask = caplog.records
    assert (own.name, own.worker, own.phase) == ("mgspmv.workers", "gpu-3", "load")
    for text in (own.stacks, of_dask.getMessage()):
        assert "thread the one that hangs:" in text
        assert "in stand_still" in text
    assert of_dask.name.startswith("distributed.worker")


def test_time_in_which_the_process_was_stopped_does_not_count(monkeypatch):
    """The clock jumps at each look, as after SIGCONT."""
    now, looked = iter([0.0, 1000.0, 2000.0, 3000.0]), []
    watchdog = Watchdog()
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=lambda s: None, monotonic=lambda: next(now)))
    monkeypatch.setattr(watchdog, "_has_tasks", lambda: len(looked) < 3)
    monkeypatch.setattr(watchdog, "look", looked.append)
    watchdog._run()
    assert looked == [2 * module.LOOK_S] * 3


@pytest.mark.parametrize("error", [OSError(28, "No space left on device", "/a"), DISK_IS_FULL])
def test_what_an_operator_can_mend_names_the_worker(monkeypatch, error):
    def fail():
        raise error

    monkeypatch.setattr(module, "get_worker", lambda: WORKER)
    with pytest.raises(StoreError, match=r"no space left on device; .*; this is on worker gpu-3$") as raised:
        module.do_watched(PATIENCE_S, fail)
    assert isinstance(raised.value.__cause__, OSError)
    assert raised.value.exit_code == 4
