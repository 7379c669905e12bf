"""Output modes of a command: text or JSON, quiet, with a log."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from mgspmv.errors import OptionError, escape_controls, hide_secrets

if TYPE_CHECKING:
    from mgspmv.monitor.progress import ProgressLine


@dataclass(frozen=True)
class Mode:
    """Output options that all commands have."""

    json: bool = False
    quiet: bool = False
    log: str | None = None
    log_level: str | None = None
    debug: bool = False

    def open_log(self) -> AbstractContextManager[None]:
        """Write the log that `--log` names, for the context.

        Raises
        ------
        OptionError : an unknown level, or a level without a log
        StoreError : the log cannot be written
        """
        if self.log is None and self.log_level is not None:
            raise OptionError("--log-level needs a log file; add --log FILE")
        if self.log is None:
            return nullcontext()
        from mgspmv.logs import write_log

        return write_log(self.log, self.log_level or "info")


MODE: ContextVar[Mode] = ContextVar("MODE", default=Mode())  # noqa: B039 (it is frozen)

ARGS: ContextVar[tuple[str, ...]] = ContextVar("ARGS", default=())
"""Arguments of the command line, without the name of the program."""

KEPT: ContextVar[str] = ContextVar("KEPT", default="")
"""Note that is printed if the command is interrupted now."""


def find_mode(args: Iterable[str]) -> Mode:
    """Find the mode before options are parsed, so that errors of parsing are reported in it too."""
    given, values = _take_values(takewhile(lambda arg: arg != "--", args), ("--log", "--log-level"))
    is_quiet = not {"--quiet", "-q"}.isdisjoint(given)
    return Mode("--json" in given, is_quiet, values.get("--log"), values.get("--log-level"), "--debug" in given)


def _take_values(args: Iterable[str], names: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    """Split arguments into those without options of these names, and the values of these options."""
    rest, values, left = [], {}, iter(args)
    for arg in left:
        name, sign, value = arg.partition("=")
        given = [value] if sign else [*islice(left, 1)] if name in names else []
        if name in names and given:
            values[name] = given[0]
        else:
            rest.append(arg)
    return rest, values


def open_progress() -> ProgressLine:
    """Open a progress display for work outside the API, on stderr; hidden with `--quiet` or without a terminal."""
    from mgspmv.monitor import progress

    return progress.ProgressLine(is_shown=False) if MODE.get().quiet else progress.open_progress()


def print_note(line: str) -> None:
    """Print a note, neither answer nor error, to stderr unless `--quiet` is given."""
    if not MODE.get().quiet:
        print(escape_controls(hide_secrets(line)), file=sys.stderr, flush=True)


def note_checkpoint(kept: str) -> None:
    """Set the note on what is kept, printed if the command is interrupted from now on."""
    KEPT.set(hide_secrets(kept))
