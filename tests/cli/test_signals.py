"""Signals that end a command: one that no wait hides, a second while it ends, a third, and those that are ignored."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from mgspmv.cli.signals import ENDING, INTERRUPTS
from tests.support.commands import ENVIRONMENT
from tests.support.waiting import HANG_S

pytestmark = pytest.mark.slow  # each starts a process

BEGIN = """
import signal, sys, threading, time
from mgspmv.cli import signals

signals.SAME_S = 0
signals.catch_interrupts()
never = threading.Event()
"""


def start(program):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", BEGIN + program], env=ENVIRONMENT, **pipes)


def run(program):
    stdout, stderr = start(program).communicate(timeout=HANG_S)
    return stdout.decode(), stderr.decode()


@pytest.mark.parametrize("number", INTERRUPTS)
def test_a_wait_that_the_signal_did_not_end_is_ended(number):
    """Another thread takes it here, as the main thread does just before it waits."""
    program = f"""
def send():
    time.sleep(0.2)  # until the main thread waits, which nothing tells
    signal.pthread_kill(threading.get_ident(), {int(number)})

threading.Thread(target=send).start()
try:
    never.wait()
except KeyboardInterrupt:
    print("interrupted")
"""
    assert run(program) == ("interrupted\n", "")


CLEAN = """
try:
    print("begun", flush=True)
    never.wait()
except KeyboardInterrupt:
    print("cleans", flush=True)
    sys.stdin.readline()
    print("clean")
    raise SystemExit(130)
"""


@pytest.mark.parametrize("number", INTERRUPTS)
def test_a_second_signal_lets_the_command_end(number):
    with start(CLEAN) as process:
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(number)
        assert process.stdout.readline() == b"cleans\n"
        process.send_signal(number)
        assert process.stderr.readline() == ENDING
        assert process.communicate(b"\n", HANG_S) == (b"clean\n", b"")
    assert process.returncode == 130


def test_a_third_signal_ends_at_once():
    with start(CLEAN) as process:
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == b"cleans\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline() == ENDING
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=HANG_S) == (b"", b"")
    assert process.returncode == -signal.SIGTERM


def test_what_is_ignored_stays_ignored():
    program = """
for number in signals.INTERRUPTS:
    signal.signal(number, signal.SIG_IGN)
signals.catch_interrupts()
for number in signals.INTERRUPTS:
    signal.raise_signal(number)
print("goes on")
"""
    assert run(program) == ("goes on\n", "")
