"""A system that refuses to open, make or rename a file or those below a folder, as one does whose disk is full."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
EVENTS = ("open", "os.mkdir", "os.rename")


@dataclass
class _Refusal:
    number: int
    place: Path
    events: tuple[str, ...]
    reading: bool
    n_allowed: int


_refused: list[_Refusal] = []


@contextmanager
def refuse(
    number: int, place: str | Path, events: tuple[str, ...] = EVENTS, *, reading: bool = False, n_allowed: int = 0
) -> Iterator[None]:
    """Raise an error of this number while the context lasts.

    Parameters
    ----------
    events : as Python's audit events call them
    reading : of files that are opened for reading, in place of what is written
    n_allowed : events before the first that is refused
    """
    _listen()
    _refused.append(_Refusal(number, Path(place).resolve(), events, reading, n_allowed))
    try:
        yield
    finally:
        _refused.pop()


@cache
def _listen() -> None:
    sys.addaudithook(_look)  # which stays


def _look(event: str, arguments: tuple[Any, ...]) -> None:
    if not _refused or event not in _refused[-1].events:
        return
    own, path = _refused[-1], arguments[1 if event == "os.rename" else 0]
    writes = event != "open" or bool(arguments[2] & _WRITING)
    if not isinstance(path, str | bytes) or writes == own.reading:
        return
    name = os.path.abspath(os.fsdecode(path))
    if Path(name).is_relative_to(own.place) and (event == "open" or name != str(own.place)):
        own.n_allowed -= 1
        if own.n_allowed < 0:
            raise OSError(own.number, os.strerror(own.number), name)
