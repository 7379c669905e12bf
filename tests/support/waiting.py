"""Waiting for what must come, however busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

HANG_S = 300.0
"""Seconds after which whatever has not come hangs: the one bound on time in the tests, far above what anything takes.

pytest-timeout ends a test after twice as long.
"""


def wait_for(is_so: Callable[[], Any], timeout_s: float = HANG_S) -> bool:
    """Wait until something is so for which nobody gives a sign; whether it was in time."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
