"""How an agent ends what a run left on its worker: it waits for tasks that end, and for no device."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace

import pytest

from mgspmv.distribute import agent as module
from mgspmv.distribute.agent import Agent
from mgspmv.distribute.watchdog import BEGIN_S, Watchdog
from tests.support.waiting import HANG_S


class PlayedSession:
    """That of a task which ends some time after it was told to; never without a time."""

    def __init__(self, ends_s: float | None) -> None:
        self.is_busy, self.reasons, self._ends_s = True, list[str](), ends_s

    def close(self, reason: str) -> None:
        self.reasons.append(reason)
        if self._ends_s is not None:
            threading.Timer(self._ends_s, setattr, (self, "is_busy", False)).start()


@pytest.fixture
def watchdog(monkeypatch):
    """One that looks when it is told to."""
    monkeypatch.setattr(Watchdog, "_run", lambda self: None)
    watchdog = Watchdog()
    monkeypatch.setattr(module, "WATCHDOG", watchdog)
    return watchdog


@pytest.fixture
def agent(watchdog, monkeypatch):
    monkeypatch.setattr(module.METRICS, "has_device", False)  # so that it is as it was afterwards
    agent = Agent()
    worker = SimpleNamespace(name="gpu-1", handlers={})
    agent.setup(worker)
    yield agent
    agent.teardown(worker)


def abort(agent, session, wait_s):
    """What an agent says of the end of its session, and after how many seconds."""
    agent.hold_session("begin-0", session)
    began = time.monotonic()
    has_ended = asyncio.run(agent.abort("begin-0", "run web was given up", wait_s))
    assert session.reasons[0] == "run web was given up"
    return has_ended, time.monotonic() - began


def test_a_task_that_ends_is_waited_for(agent):
    has_ended, after_s = abort(agent, PlayedSession(0.3), HANG_S)
    assert has_ended
    assert after_s >= 0.3


def test_a_task_that_does_not_end_is_waited_for_within_bounds(agent):
    has_ended, after_s = abort(agent, PlayedSession(None), 0.3)
    assert not has_ended
    assert after_s >= 0.3


@pytest.mark.parametrize(("waits", "has_time"), [(True, True), (False, False)])
def test_a_task_that_was_found_to_hang(agent, watchdog, waits, has_time):
    """One that waits for others in vain ends when it is told to, and its worker is there for the next run; on one that
    is at work nobody waits."""
    with watchdog.watch(agent._worker, 20.0) as marks:
        marks.waits = waits
        watchdog.look(BEGIN_S + 1)
        assert len(agent._list_hangs()) == 1
        has_ended, after_s = abort(agent, PlayedSession(0.3), HANG_S)
    assert has_ended == has_time
    assert (after_s >= 0.3) == has_time


def test_nothing_waits_for_a_device_when_rows_are_let_go_of(agent, monkeypatch):
    """What frees memory of a device waits for all that runs there, which may never end; the event loop must not."""
    given, closed = [], []
    monkeypatch.setattr(module, "let_go", lambda held, release: given.append((*held, release)))
    on_device = SimpleNamespace(backend="cuda", close=closed.append)
    agent.hold_part("load-0", on_device)
    agent.hold_part("load-1", SimpleNamespace(backend="cpu", close=closed.append))
    asyncio.run(agent.free(["load-0", "load-1", "load-2"]))
    assert given == [(on_device, module.release_device_memory)]
    assert closed == ["the matrix was closed"] * 2
