"""How a command speaks: for people or for scripts, in full, or not at all."""

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
    from mgspmv.monitor.progress import Progress


@dataclass(frozen=True)
class Mode:
    """How a command speaks: options of all commands."""

    json: bool = False
    quiet: bool = False
    log: str | None = None
    log_level: str | None = None
    debug: bool = False

    def open_log(self) -> AbstractContextManager[None]:
        """Write the log that is asked for while the context lasts.

        Raises
        ------
        OptionError : a level that there is not, or one of no log
        StoreError : it cannot be written
        """
        if self.log is None and self.log_level is not None:
            raise OptionError("--log-level says what --log writes; give it a file with --log FILE")
        if self.log is None:
            return nullcontext()
        from mgspmv.logs import write_log

        return write_log(self.log, self.log_level or "info")


MODE: ContextVar[Mode] = ContextVar("MODE", default=Mode())  # noqa: B039 (it is frozen)

ARGS: ContextVar[tuple[str, ...]] = ContextVar("ARGS", default=())
"""The command line, after the name of the program."""

KEPT: ContextVar[str] = ContextVar("KEPT", default="")
"""What is said when the command is interrupted now."""


def find_mode(args: Iterable[str]) -> Mode:
    """Find it before options are parsed, so that what is wrong with those is said in the same way."""
    given, values = _take_values(takewhile(lambda arg: arg != "--", args), ("--log", "--log-level"))
    is_quiet = not {"--quiet", "-q"}.isdisjoint(given)
    return Mode("--json" in given, is_quiet, values.get("--log"), values.get("--log-level"), "--debug" in given)


def _take_values(args: Iterable[str], names: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    """Arguments without options of these names and their values, and these."""
    rest, values, left = [], {}, iter(args)
    for arg in left:
        name, sign, value = arg.partition("=")
        given = [value] if sign else [*islice(left, 1)] if name in names else []
        if name in names and given:
            values[name] = given[0]
        else:
            rest.append(arg)
    return rest, values


def open_progress() -> Progress:
    """Progress of what no function of the API does, on stderr where that is a terminal and somebody wants it."""
    from mgspmv.monitor import progress

    return progress.Progress(is_shown=False) if MODE.get().quiet else progress.open_progress()


def say(line: str) -> None:
    """Tell people, on stderr, what is neither answer nor error."""
    if not MODE.get().quiet:
        print(escape_controls(hide_secrets(line)), file=sys.stderr, flush=True)


def note_kept(kept: str) -> None:
    """Note what there will be if the command is interrupted from now on."""
    KEPT.set(hide_secrets(kept))
