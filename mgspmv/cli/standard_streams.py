"""Standard output and error of the program, where one of them is closed, full, or read by nobody."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any

from mgspmv.errors import StoreError
from mgspmv.os_errors import describe_os_error

OUT = "/dev/stdout"


def open_streams() -> None:
    """Have commands notice where their answer is lost, and go on where their messages are.

    A descriptor that is closed is taken, or the next file that is opened would have its number and get what is printed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            _open_nothing()
    if sys.stdout is sys.__stdout__:  # and nobody has replaced it
        sys.stdout = _wrap(_Output, sys.stdout, "strict")
    if sys.stderr is sys.__stderr__:
        sys.stderr = _wrap(_Messages, sys.stderr, "backslashreplace")


def _open_nothing() -> int:
    """A file that cannot be written, in place of one that is closed."""
    return os.open(os.devnull, os.O_RDONLY)


def _wrap(kind: type[io.FileIO], before: io.TextIOWrapper | None, errors: str) -> io.TextIOWrapper:
    """
    Parameters
    ----------
    before : what Python made; None where it found its descriptor closed, which another file may have by now
    """
    raw = kind(_open_nothing() if before is None else before.fileno(), "w", closefd=False)
    encoding = "utf-8" if before is None else before.encoding
    errors = errors if before is None else before.errors or errors
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors, line_buffering=kind is _Messages or raw.isatty())


class _Output(io.FileIO):
    """Standard output, whose failures name it; after one it goes nowhere, or Python would fail again on its way out."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            is_closed = error.errno == errno.EBADF
            said = "it is closed; redirect it to a file" if is_closed else describe_os_error(error, OUT)
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            raise StoreError(f"cannot write the answer to {OUT}: {said}") from error


class _Messages(io.FileIO):
    """Standard error, whose failures have nowhere to be told."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)
