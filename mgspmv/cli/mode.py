"""Output modes of a command: text or JSON, quiet, with a log."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, fields
from itertools import takewhile
from typing import TYPE_CHECKING

from mgspmv.errors import escape_controls, hide_secrets

if TYPE_CHECKING:
    from mgspmv.monitor.progress import ProgressLine


@dataclass(frozen=True)
class Mode:
    """Output options that all commands have."""

    json: bool = False
    quiet: bool = False
    log: str | None = None
    debug: bool = False

    def open_log(self) -> AbstractContextManager[None]:
        """Write the log that `--log` names, for the context.

        Raises
        ------
        StoreError : the log cannot be written
        """
        if self.log is None:
            return nullcontext()
        from mgspmv.logs import write_log

        return write_log(self.log, "debug" if self.debug else "info")


COMMON = tuple(own.name for own in fields(Mode))
"""Names of the options that all commands have."""

MODE: ContextVar[Mode] = ContextVar("MODE", default=Mode())  # noqa: B039 (it is frozen)

ARGS: ContextVar[tuple[str, ...]] = ContextVar("ARGS", default=())
"""Arguments of the command line, without the name of the program."""

KEPT: ContextVar[str] = ContextVar("KEPT", default="")
"""Note that is printed if the command is interrupted now."""


def find_mode(args: Iterable[str]) -> Mode:
    """Find the mode before options are parsed, so that errors of parsing are reported in it too."""
    given, log, left = set(), None, takewhile(lambda arg: arg != "--", args)
    for arg in left:
        name, sign, value = arg.partition("=")
        if name == "--log":
            log = value if sign else next(left, None)
        else:
            given.add(arg)
    return Mode("--json" in given, not given.isdisjoint({"--quiet", "-q"}), log, "--debug" in given)


def open_progress() -> ProgressLine:
    """Open a progress display for work outside the API, on stderr; hidden with `--quiet` or without a terminal."""
    from mgspmv.monitor.progress import ProgressLine

    return ProgressLine(is_shown=False if MODE.get().quiet else None)


def print_note(line: str) -> None:
    """Print a note, neither answer nor error, to stderr unless `--quiet` is given."""
    if not MODE.get().quiet:
        print(escape_controls(hide_secrets(line)), file=sys.stderr, flush=True)


def note_checkpoint(kept: str) -> None:
    """Set the note on what is kept, printed if the command is interrupted from now on."""
    KEPT.set(hide_secrets(kept))
