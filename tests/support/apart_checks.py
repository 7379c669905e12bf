"""Checks that a process apart makes in tests."""

from __future__ import annotations

import os
import signal
import sys
import time

from mgspmv.doctor.findings import ok, warn


def check_well():
    print("libraries print what they like", flush=True)
    return ok("well", n=1)


def check_warned():
    yield ok("one")
    yield warn("two", "meaning", "remedy")


def check_raising():
    raise OSError("not this time")


def check_hanging():
    time.sleep(600)


def check_killed():
    print("the last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(600)


def check_leaving():
    os._exit(3)
