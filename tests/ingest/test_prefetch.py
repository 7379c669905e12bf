"""Items made ahead by another thread: all, in order, no more than allowed, and errors in their place."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from mgspmv.ingest.prefetch import Prefetcher
from tests.support.waiting import HANG_S


def test_an_error_comes_after_the_items_before_it():
    def fail():
        yield 1
        yield 2
        raise KeyError("three")

    ahead = Prefetcher(fail(), 5, "test-ahead")
    assert [next(ahead), next(ahead)] == [1, 2]
    with pytest.raises(KeyError, match="three"):
        next(ahead)


def test_nothing_is_left_of_one_that_is_given_up(monkeypatch):
    closes = threading.Event()

    def wait():
        yield 1
        assert closes.wait(HANG_S)
        time.sleep(0.05)
        yield 2
        raise AssertionError("nobody asked")

    monkeypatch.setattr(sys.modules["mgspmv.ingest.prefetch"], "PATIENCE_S", HANG_S)
    ahead = Prefetcher(wait(), 1, "test-given-up")
    assert next(ahead) == 1
    closes.set()
    assert ahead.close()
    assert [thread for thread in threading.enumerate() if thread.name.startswith("test-given-up")] == []
    assert list(ahead) == []


def test_one_that_never_comes_back_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(sys.modules["mgspmv.ingest.prefetch"], "PATIENCE_S", 0.05)
    release = threading.Event()

    def wait():
        yield 1
        release.wait()
        yield 2

    ahead = Prefetcher(wait(), 1, "test-waiting")
    assert next(ahead) == 1
    assert not ahead.close()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "test-waiting"]
    assert thread.daemon
    release.set()
    thread.join(HANG_S)
    assert not thread.is_alive()
