"""SIGINT, SIGTERM and SIGHUP: each interrupts a command once, which then removes what is half written.

CPython notes a signal and runs its handler when the main thread next runs Python. Where the signal comes just before
the main thread waits for a lock, nothing ends that wait, so a thread of its own wakes the main thread until the
handlers have run.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from types import FrameType
from typing import Any

from mgspmv.cli.mode import MODE

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ENDING = b"ending, and removing what is half written; the next signal ends at once, and leaves that\n"

SAME_S = 1.0
"""Seconds within which a further signal is the same one: `timeout` and `srun` send it to the process and to its group,
a terminal that is closed sends it and so does its shell."""

_WAKE = signal.SIGURG
"""Wakes the main thread. Whoever does not handle it, such as a program that has just been started, ignores it."""
_FIRST_WAKE_S, _LAST_WAKE_S = 0.05, 1.0
"""Seconds before the main thread is woken, which double each time up to the last."""


class Interrupts:
    """Handlers of signals for the life of this process; its main thread makes them.

    Parameters
    ----------
    numbers : signals that interrupt
    """

    def __init__(self, numbers: Iterable[signal.Signals]) -> None:
        self._numbers = tuple(numbers)
        self._n_taken, self._last_s = 0, 0.0
        self._is_awake = threading.Event()
        self._main = threading.get_ident()
        told, self._tells = socket.socketpair()
        self._tells.setblocking(False)
        signal.signal(_WAKE, lambda *_: self._is_awake.set())
        signal.set_wakeup_fd(self._tells.fileno(), warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
        threading.Thread(target=self._wake, args=(told,), name="mgspmv-signals", daemon=True).start()
        for number in self._numbers:
            signal.signal(number, self._take)
        self._hook, sys.unraisablehook = sys.unraisablehook, self._repeat_lost

    def _wake(self, told: socket.socket) -> None:
        """Wake the main thread after each signal until it has run the handlers, that of `_WAKE` last."""
        while numbers := told.recv(4096):
            pause_s = _FIRST_WAKE_S
            self._is_awake.clear()
            while set(numbers) != {_WAKE} and not self._is_awake.wait(pause_s):
                signal.pthread_kill(self._main, _WAKE)
                pause_s = min(2 * pause_s, _LAST_WAKE_S)

    def _take(self, number: int, frame: FrameType | None) -> None:
        """Interrupt; say the second time that this goes on, and end at once the third time."""
        now_s = time.monotonic()
        if self._n_taken and now_s < self._last_s + SAME_S:
            return
        self._n_taken, self._last_s = self._n_taken + 1, now_s
        if self._n_taken == 1:
            raise KeyboardInterrupt
        if self._n_taken > 2:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        if not MODE.get().is_quiet:
            with suppress(OSError):  # the terminal may be gone
                os.write(2, ENDING)  # sys.stderr may be writing at this moment

    def _repeat_lost(self, lost: Any) -> None:
        """Interrupt again where an object's end or a callback of C was interrupted, which cannot pass that on."""
        if isinstance(lost.exc_value, KeyboardInterrupt):
            self._n_taken = 0
            threading.Timer(_FIRST_WAKE_S, os.kill, (os.getpid(), self._numbers[0])).start()
        else:
            self._hook(lost)


def catch_interrupts() -> None:
    """Let signals interrupt this process, but for those that it is to ignore, as under `nohup`."""
    Interrupts(number for number in INTERRUPTS if signal.getsignal(number) is not signal.SIG_IGN)
