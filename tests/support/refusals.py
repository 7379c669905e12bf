"""A system that refuses to open, make or rename a file or those below a folder, as one does whose disk is full."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_EVENTS = ("open", "os.mkdir", "os.rename")
_refused: list[tuple[int, Path, bool, tuple[str, ...]]] = []


@contextmanager
def refuse(
    number: int, place: str | Path, events: tuple[str, ...] = _EVENTS, *, reading: bool = False
) -> Iterator[None]:
    """Raise an error of this number while the context lasts.

    Parameters
    ----------
    events : as Python's audit events call them
    reading : of files that are opened for reading, in place of what is written
    """
    _listen()
    _refused.append((number, Path(place).resolve(), reading, events))
    try:
        yield
    finally:
        _refused.pop()


@cache
def _listen() -> None:
    sys.addaudithook(_look)  # which stays


def _look(event: str, arguments: tuple[object, ...]) -> None:
    if not _refused or event not in _refused[-1][-1]:
        return
    number, folder, reading, _ = _refused[-1]
    path = arguments[1 if event == "os.rename" else 0]
    writes = event != "open" or bool(arguments[2] & _WRITING)  # type: ignore[operator]
    if isinstance(path, str | bytes) and writes != reading:
        name = os.path.abspath(os.fsdecode(path))
        if Path(name).is_relative_to(folder) and (event == "open" or name != str(folder)):
            raise OSError(number, os.strerror(number), name)
