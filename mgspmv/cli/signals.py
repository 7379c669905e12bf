"""SIGINT, SIGTERM and SIGHUP interrupt a command, which then removes what is half written."""

from __future__ import annotations

import signal
import time
from types import FrameType

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

SAME_S = 1.0
"""Seconds within which a further signal is the same one: `timeout` and `srun` send it to the process and to its group,
a terminal that is closed sends it and so does its shell."""


def catch_interrupts() -> None:
    """Let signals interrupt this process, but for those that it is to ignore, as under `nohup`.

    A second one, more than `SAME_S` after the first, ends the process at once.
    """
    first_s: float | None = None

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal first_s
        if first_s is None:
            first_s = time.monotonic()
            raise KeyboardInterrupt
        if time.monotonic() > first_s + SAME_S:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    for number in INTERRUPTS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)
