"""Processes that go on by themselves: how they are known, and the folder where what they tell of themselves is kept.

A process is known by its number and its birth, so that a later one of the same number is not taken for it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

STATE_VARIABLE = "MGSPMV_STATE"
"""Environment variable that names the folder."""
_LOOK_S = 0.05
"""Seconds between two looks at what nobody gives a sign of."""


@dataclass(frozen=True)
class Process:
    """A process of this machine."""

    pid: int
    birth: str | None
    """See `find_birth`."""

    @classmethod
    def find(cls, pid: int) -> Process:
        """The one that has this number now."""
        return cls(pid, find_birth(pid))

    @property
    def is_there(self) -> bool:
        """Whether it has not ended yet."""
        return self.birth is not None and find_birth(self.pid) == self.birth


def find_birth(pid: int) -> str | None:
    """What no other process of this number has: the boot of the machine, and the tick in which it began.

    Returns
    -------
    None where there is no such process, or one that has ended and that nobody asked how.
    """
    try:
        told = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    boot = ""
    with suppress(OSError):  # of kernels that do not tell
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    fields = told.rpartition(")")[2].split()  # its name, which is before, may have spaces
    return None if fields[0] in "ZX" else f"{boot} {fields[19]}"


def find_state_folder() -> Path:
    """Where it is kept."""
    if folder := os.environ.get(STATE_VARIABLE):
        return Path(folder).absolute()
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "mgspmv"


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Let one process at a time look at what is in a folder, and change it."""
    opened = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def wait_for(is_so: Callable[[], bool], timeout_s: float) -> bool:
    """Whether it was so in time."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S)
    return True
