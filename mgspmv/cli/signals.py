"""Handlers of SIGINT, SIGTERM and SIGHUP: a command is interrupted, and removes incomplete output."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from types import FrameType

from mgspmv.cli.mode import MODE

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ENDING = b"stopping, and removing incomplete output; the next signal stops at once, and leaves it\n"

SAME_S = 1.0
"""Seconds within which a repeated signal counts as one: `timeout` and `srun` signal both the process and its group, and
both a closed terminal and its shell send a signal."""


def catch_interrupts() -> None:
    """Let signals interrupt this process, except those that are ignored, as under `nohup`.

    The second signal prints `ENDING`, and the third ends the process at once.
    """
    taken_s: list[float] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if taken_s and now_s < taken_s[-1] + SAME_S:
            return
        taken_s.append(now_s)
        if len(taken_s) == 1:
            raise KeyboardInterrupt
        if len(taken_s) > 2:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        if not MODE.get().quiet:
            with suppress(OSError):  # the terminal may be closed
                os.write(2, ENDING)  # sys.stderr may be writing at this moment

    for number in INTERRUPTS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)
