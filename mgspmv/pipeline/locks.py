"""What keeps two runs off one output: files that a process holds while it works, and that say who it is.

FOLDER/.mgspmv/lock          of the pipeline whose folder this is
PLACE/.mgspmv/locks/NAME     of the store, or of the results of a matrix, at PLACE/NAME, whichever pipeline writes them

In object stores the locks of places are objects, see `mgspmv.pipeline.lock_objects`.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mgspmv.errors import PipelineBusyError, StoreError
from mgspmv.files import is_url
from mgspmv.os_errors import is_operators, translate_os_error
from mgspmv.pipeline.lock_objects import hold_objects
from mgspmv.pipeline.steps import Step
from mgspmv.validation import parse_json

PRIVATE = ".mgspmv"
"""Folder in which a pipeline keeps what is nobody else's."""
_NONE_THERE = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
"""What file systems say that have no locks."""


@contextmanager
def hold(folder: Path) -> Iterator[str]:
    """Have the folder of a pipeline for this process alone; what its runs are known by to others.

    Raises
    ------
    PipelineBusyError : another process has it
    StoreError : nothing can be written there, or it has no locks
    """
    path = folder / PRIVATE / "lock"
    with _open(path) as opened:
        try:
            known = _read_holder(path)["pipeline"]
            pipeline = secrets.token_hex(8) if known == "?" else known
            _take(opened, path, f"works in {folder}", "name another folder", pipeline=pipeline)
        except OSError as error:
            if is_operators(error):
                raise translate_os_error(error, path, "lock") from error
            raise StoreError(f"cannot lock {path}: {error.strerror}; name a folder on a local file system") from error
        yield pipeline


@contextmanager
def hold_targets(lanes: dict[str, list[Step]], pipeline: str, on_lost: Callable[[], None]) -> Iterator[None]:
    """Have what steps write for this process alone, as far as it is on file systems that have locks, or at URLs where
    an object can be written.

    Parameters
    ----------
    pipeline : what `hold` gave
    on_lost : called when another run took a place at a URL over

    Raises
    ------
    PipelineBusyError : another process writes some of it
    StoreError : nothing can be written there
    """
    paths, urls = _list_targets(lanes)
    with ExitStack() as stack:
        for target in paths:
            path = _locate_lock(target)
            opened = stack.enter_context(_open(path))
            try:
                _take(opened, path, f"writes {target}", "have this one write elsewhere")
            except OSError as error:
                if error.errno not in _NONE_THERE:
                    raise translate_os_error(error, path, "lock") from error
        if urls:
            stack.enter_context(hold_objects(urls, f"{PRIVATE}/locks", _describe_holder(), pipeline, on_lost))
        yield


def list_locks(folder: Path, lanes: dict[str, list[Step]]) -> list[Path]:
    """The files that `hold` and `hold_targets` make here."""
    return [folder / PRIVATE / "lock", *map(_locate_lock, _list_targets(lanes)[0])]


def remove_lock(path: Path) -> None:
    """Remove a lock, unless somebody has it."""
    with suppress(OSError):
        opened = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(opened, path):
                path.unlink()
        finally:
            os.close(opened)


def _locate_lock(target: Path) -> Path:
    return target.parent / PRIVATE / "locks" / target.name


def _list_targets(lanes: dict[str, list[Step]]) -> tuple[list[Path], list[str]]:
    """The stores that are made or changed, and the folders with the results of a matrix, each once: local paths without
    links, and URLs."""
    targets = []
    for first, *rest in lanes.values():
        if first.section.open is None or first.section.update is not None:
            targets.append(first.target)
        targets += [step.target.removesuffix(step.name) + step.matrix for step in rest]
    paths = {Path(os.path.realpath(target)) for target in targets if not is_url(target)}
    return sorted(paths), sorted({target.rstrip("/") for target in targets if is_url(target)})


@contextmanager
def _open(path: Path) -> Iterator[int]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise translate_os_error(error, path, "write") from error
    try:
        yield opened
    finally:
        os.close(opened)


def _take(opened: int, path: Path, doing: str, instead: str, **more: str) -> None:
    """
    Raises
    ------
    PipelineBusyError : another process has it
    OSError : it has no locks, or cannot be written to
    """
    try:
        _lock(opened, path)
    except BlockingIOError as error:
        holder = _read_holder(path)
        raise PipelineBusyError(
            f"another run {doing}: process {holder['pid']} on {holder['host']}, since {holder['began']}; wait for its "
            f"end, or {instead}"
        ) from error
    os.ftruncate(opened, 0)
    os.pwrite(opened, json.dumps(_describe_holder() | more).encode(), 0)


def _lock(opened: int, path: Path) -> None:
    """Lock the file that is at a path. The one that was opened there is another, if a run removed it as it ended."""
    fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    while not _is_at(opened, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        again = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        os.dup2(again, opened)
        os.close(again)
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_at(opened: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(opened), os.stat(path))
    except FileNotFoundError:
        return False


def _describe_holder() -> dict[str, Any]:
    return {"pid": os.getpid(), "host": platform.node(), "began": datetime.now(UTC).isoformat(timespec="seconds")}


def _read_holder(path: Path) -> dict[str, Any]:
    try:
        found = parse_json(path.read_bytes())
    except (OSError, ValueError):  # it may not have written it yet
        found = None
    return dict.fromkeys(("pid", "host", "began", "pipeline"), "?") | (found if isinstance(found, dict) else {})
