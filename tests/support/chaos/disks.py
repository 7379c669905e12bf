"""Small disks of our own, which can be filled and made read-only; and bits of files, which can be flipped."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from contextlib import AbstractContextManager, suppress
from functools import cache
from pathlib import Path
from types import TracebackType

DISK_MIB = 16
BUSY_S = 5.0
"""Longest that files are open for writing without a pause."""
BALLAST = "ballast"
NAME = "mgspmv-chaos-"
"""With the id of the process that mounts it, the name of a disk."""


class Disk(AbstractContextManager["Disk"]):
    """A folder that is a disk of its own as long as the context lasts, or just a folder.

    Parameters
    ----------
    is_own : whether it is a disk, in memory
    """

    def __init__(self, folder: Path, is_own: bool) -> None:
        self.folder, self.is_own = folder, is_own

    def __enter__(self) -> Disk:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.is_own:
            _remove_left()
            _mount("-t", "tmpfs", "-o", f"size={DISK_MIB}m", f"{NAME}{os.getpid()}", str(self.folder))
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.is_own:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    def fill(self) -> None:
        """Leave no room."""
        with suppress(OSError), open(self.folder / BALLAST, "ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def empty(self) -> None:
        """Undo `fill`."""
        with suppress(OSError):  # nothing is there; or it is read-only
            (self.folder / BALLAST).unlink()

    def forbid(self) -> None:
        """Let nothing be written any more."""
        deadline = time.monotonic() + BUSY_S
        while True:
            try:
                return _mount("-o", "remount,ro", str(self.folder))
            except OSError:  # a file is being written
                if time.monotonic() > deadline:
                    raise

    def permit(self) -> None:
        """Undo `forbid`, once or several times."""
        _mount("-o", "remount,rw", str(self.folder))


@cache
def why_no_disks() -> str:
    """Why there can be no disks of our own here; empty where there can."""
    if os.geteuid() != 0:
        return "needs root, to mount a small disk"
    try:
        with tempfile.TemporaryDirectory() as folder, Disk(Path(folder, "disk"), is_own=True) as disk:
            disk.forbid()
            disk.permit()
    except OSError as error:
        return f"no disks can be mounted here ({error})"
    return ""


def flip(path: Path, where: float, bit: int) -> None:
    """Flip a bit of a file in place.

    Parameters
    ----------
    where : of its bytes, from 0 to less than 1
    """
    with open(path, "r+b") as file:
        at = int(where * os.path.getsize(path))
        file.seek(at)
        value = file.read(1)[0]
        file.seek(at)
        file.write(bytes([value ^ (1 << bit)]))


def list_chunks(store: Path) -> list[Path]:
    """The files of a Zarr store that hold its values."""
    return sorted(path for path in store.rglob("c/**/*") if path.is_file())


def _remove_left() -> None:
    """Remove disks of processes that were killed."""
    for line in Path("/proc/mounts").read_text().splitlines():
        name, folder = line.split()[:2]
        if name.startswith(NAME) and not Path("/proc", name.removeprefix(NAME)).exists():
            subprocess.run(["umount", "--lazy", folder], check=True)


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"mount {' '.join(arguments)}: {done.stderr.strip()}")
