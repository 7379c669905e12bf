"""Lock of a pipeline's folder: a file that one process holds while it runs the pipeline, and that says who that is."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from mgspmv.errors import PipelineBusyError, StoreError
from mgspmv.os_errors import is_operators, translate_os_error
from mgspmv.validation import parse_json

PRIVATE = ".mgspmv"
"""Folder in which a pipeline keeps what is nobody else's."""


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Have the folder of a pipeline for this process alone.

    Raises
    ------
    PipelineBusyError : another process has it
    StoreError : nothing can be written there, or it has no locks
    """
    path = folder / PRIVATE / "lock"
    own = {"pid": os.getpid(), "host": platform.node(), "began": datetime.now(UTC).isoformat(timespec="seconds")}

    def introduce(opened: int) -> None:
        os.ftruncate(opened, 0)
        os.pwrite(opened, json.dumps(own).encode(), 0)

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path, thread_local=False, fallback_to_soft=False, on_acquired=introduce)
    except OSError as error:
        raise translate_os_error(error, path, "write") from error
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise PipelineBusyError(
            f"another run works in {folder}: {_describe_holder(path)}; wait for its end, or name another folder"
        ) from error
    except OSError as error:
        with suppress(OSError):  # there is something in it
            path.parent.rmdir()
            folder.rmdir()
        if is_operators(error):
            raise translate_os_error(error, path, "lock") from error
        raise StoreError(f"cannot lock {path}: {error.strerror}; name a folder on a local file system") from error
    try:
        yield
    finally:
        lock.release()


def _describe_holder(path: Path) -> str:
    try:
        found = parse_json(path.read_bytes())
        return f"process {found['pid']} on {found['host']}, since {found['began']}"
    except (OSError, ValueError, KeyError, TypeError):  # it may not have written it yet
        return "a process that has just begun"
