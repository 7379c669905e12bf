"""Signals that end a command: the same one twice, a second while it ends, a third, and those that are ignored."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from mgspmv.cli import ENDING, INTERRUPTS
from tests.support.commands import ENVIRONMENT
from tests.support.waiting import HANG_S

pytestmark = pytest.mark.slow  # each starts a process

PROGRAM = """
import sys, threading
from mgspmv import cli as signals

signals.SAME_S = float(sys.argv[1])
signals.catch_interrupts()
try:
    print("begun", flush=True)
    while True:  # in turns, as a signal just before a wait does not interrupt it
        threading.Event().wait(0.01)
except KeyboardInterrupt:
    print("cleans", flush=True)
    reader = threading.Thread(target=sys.stdin.readline, daemon=True)
    reader.start()
    while reader.is_alive():
        reader.join(0.01)
    print("clean")
    raise SystemExit(130)
"""


def start(same_s):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", PROGRAM, str(same_s)], env=ENVIRONMENT, **pipes)


@pytest.mark.parametrize("number", INTERRUPTS)
def test_the_same_signal_again_lets_the_command_end(number):
    with start(HANG_S) as process:
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(number)
        assert process.stdout.readline() == b"cleans\n"
        process.send_signal(number)
        assert process.communicate(b"\n", HANG_S) == (b"clean\n", b"")
    assert process.returncode == 130


@pytest.mark.parametrize("third", [None, signal.SIGTERM])
def test_a_second_signal_lets_the_command_end_and_a_third_ends_it_at_once(third):
    with start(0) as process:
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == b"cleans\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline() == ENDING
        if third is not None:
            process.send_signal(third)
        assert process.communicate(None if third else b"\n", HANG_S) == (b"" if third else b"clean\n", b"")
    assert process.returncode == (130 if third is None else -third)


def test_what_is_ignored_stays_ignored():
    program = """
import signal
from mgspmv import cli as signals

for number in signals.INTERRUPTS:
    signal.signal(number, signal.SIG_IGN)
signals.catch_interrupts()
for number in signals.INTERRUPTS:
    signal.raise_signal(number)
print("goes on")
"""
    done = subprocess.run([sys.executable, "-c", program], env=ENVIRONMENT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("goes on\n", "")
