"""Output of commands: text or JSON, quiet, with a log; answers, tables, notes, errors, and messages of the package with
options in place of Python arguments."""

from __future__ import annotations

import errno
import io
import json as json_format
import os
import re
import shlex
import sys
import traceback
import warnings
from ast import literal_eval
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, fields
from itertools import takewhile
from threading import Thread
from typing import TYPE_CHECKING, Any

import typer

from mgspmv.errors import MgspmvError, StoreError, describe_os_error, escape_controls, hide_secrets

if TYPE_CHECKING:
    from mgspmv.monitor.progress import ProgressLine

EXIT_BROKEN_PIPE = 141

PIPED_WIDTH = 1000
"""Columns of a table outside a terminal, so that nothing is cut."""


@dataclass(frozen=True)
class Mode:
    """Output options that all commands have."""

    json: bool = False
    quiet: bool = False
    log: str | None = None
    debug: bool = False


COMMON = tuple(own.name for own in fields(Mode))
"""Names of the options that all commands have."""

MODE: ContextVar[Mode] = ContextVar("MODE", default=Mode())  # noqa: B039 (it is frozen)

ARGS: ContextVar[tuple[str, ...]] = ContextVar("ARGS", default=())
"""Arguments of the command line, without the name of the program."""

CONTEXT: ContextVar[Any] = ContextVar("CONTEXT", default=None)
"""Click's context of the running command."""

KEPT: ContextVar[str] = ContextVar("KEPT", default="")
"""Note that is printed if the command is interrupted now."""

_ENDING: list[Thread] = []
"""Threads that end what a command used, while it writes its results."""


def end_meanwhile(end: Callable[[], None]) -> None:
    """Call `end` in a thread, for which the command waits after it has printed its answer."""
    _ENDING.append(Thread(target=end, name="mgspmv-end"))
    _ENDING[-1].start()


def await_ends() -> None:
    """Wait for the threads of `end_meanwhile`."""
    with suppress(KeyboardInterrupt):  # the answer is printed, and Python waits again as it ends
        while _ENDING:
            _ENDING[-1].join()
            _ENDING.pop()


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


# --- answers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """Result of a command, for scripts and for people."""

    payload: dict[str, Any] | Callable[[], dict[str, Any]]
    """JSON values, for scripts; a function where they take time to compute."""
    parts: Sequence[Any]
    """Strings and rich tables, for people."""
    error: MgspmvError | None = None
    """Error in addition to the answer; it determines the exit code."""
    lines: Iterator[bytes] | None = None
    """Output for stdout, in UTF-8, many lines at a time; `parts` then go to stderr. None prints `parts` to stdout."""
    exit_code: int = 0
    """Exit code without an error, such as that of a cluster that does not answer."""

    def find_payload(self) -> dict[str, Any]:
        """Return `payload`, computed if it is a function."""
        return self.payload() if callable(self.payload) else self.payload


def tabulate(titles: Sequence[str], rows: Sequence[Sequence[Any]], n_texts: int = 0) -> Any:
    """Make a table whose last `n_texts` columns are text, left-aligned; numbers are right-aligned."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    for place, title in enumerate(titles):
        is_text = place >= len(titles) - n_texts
        table.add_column(title, justify="left" if is_text else "right", overflow="fold")
    for row in rows:
        table.add_row(*(str(cell).replace("\n", r"\n").replace("\t", r"\t") for cell in row))
    return table


def tabulate_fields(fields: dict[str, Any]) -> Any:
    """Make a table of names and values; values that are None or empty are left out."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields.items():
        if value not in (None, "", [], {}):
            table.add_row(name, str(value))
    return table


def give(payload: Mapping[str, Any], parts: Sequence[Any], as_json: bool) -> int:
    """Write an answer to stdout; return 0, or the exit code when it cannot be written."""
    text = f"{json_format.dumps(payload, allow_nan=False)}\n" if as_json else render(parts)
    return write_out([hide_secrets(text)])


def write_out(texts: Iterable[str]) -> int:
    """Write to stdout; return 0, or the exit code when it cannot be written."""
    try:
        for text in texts:
            sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes again at exit, and would report the error a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        is_closed = error.errno == errno.EBADF
        why = "stdout is closed; redirect it to a file" if is_closed else describe_os_error(error, "/dev/stdout")
        print_error(error, f"cannot write the answer: {why}", MODE.get())
        return StoreError.exit_code
    return 0


def render(parts: Sequence[Any]) -> str:
    from rich.console import Console
    from rich.text import Text

    class EscapingConsole(Console):
        """Console that escapes control characters in lines and cells of tables."""

        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(escape_controls(text), **options)

    text, is_terminal = io.StringIO(), sys.stdout.isatty()
    looks: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False, "force_terminal": is_terminal}
    console = EscapingConsole(file=text, width=None if is_terminal else PIPED_WIDTH, **looks)
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def print_error(error: BaseException, message: str, mode: Mode) -> None:
    if mode.debug:
        print(escape_controls(hide_secrets("".join(traceback.format_exception(error)))), end="", file=sys.stderr)
    is_colored = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    said = typer.style("error:", fg=typer.colors.RED, bold=True) if is_colored else "error:"
    print(f"{said} {escape_controls(hide_secrets(message))}", file=sys.stderr)


def describe_error(error: BaseException, message: str, mode: Mode) -> dict[str, Any]:
    described: dict[str, Any] = {"type": type(error).__name__, "message": message}
    if mode.debug:
        described["traceback"] = traceback.format_exception(error)
    return {"error": described}


# --- messages --------------------------------------------------------------------------------------------------------

CommandOptions = Mapping[str, "Option"]
"""Parameters of a command by their names."""

UNTRANSLATED = ("run",)
"""Commands with arguments in a file, where keys have the names of Python's arguments."""

ADVISED = ("ingest", "reorder")
"""Commands whose names are verbs of advice in messages; words such as update or report have other meanings too."""

_MASKED = re.compile(r"""(?<![\w=])(?:'[^'\n]*'|"[^"\n]*"|`[^`\n]*`|--[a-z-]+ \w+=\S+)""")
_MARK = re.compile(r"\0(\d+)\0")
_ARGUMENT = re.compile(
    r"""
    (?<![\w./?&=$-])(?P<name>[a-z]\w*)=(?![=>]|[A-Z]+\b)
    (?P<value>
        \.\.\. | "[^"]*" | '[^']*' | \([^()]*\) | \[[^\[\]]*\]
        | (?!\.(?:[\s,;:)]|$))[^\s,;:()\[\]"'=]+?(?=\.?(?:[\s,;:)\]]|$))
    )?
    (?P<others>(?:(?:,|,?\ or)\ \0\d+\0(?!=))*)
    """,
    re.VERBOSE,
)
"""Pattern of an argument with its value, or with several such as `'sum', 'first' or 'keep'`."""

_CALL = re.compile(r"(?<!\w)\.?[a-z_][\w.]*\((?!s\))")
_SUBJECT = re.compile(r"^([a-z_]+)(?= (?:must|is 0|has|sums to|holds) )|(?<=: )([a-z_]+)(?= must )")
_BARE = re.compile(r"(?<![\w./?&=$-])[a-z]+(?:_[a-z]+)+(?![\w(=/]|\.\w)")
_VERBS = "pass|leave|use|give|name|choose|allow|add|raise|set|ingest|compute|make|free|take|say|call|increase"
_ADVICE = re.compile(rf"\b(?:{_VERBS})\b")
_ALTERNATIVE = re.compile(rf"(,? (?:or|and|else) (?=(?:{_VERBS})\b)|,? or (?=\w+=)|, (?=\w+=)|, (?:or|else) )")


@dataclass(frozen=True)
class Option:
    """One parameter of a command."""

    name: str
    """Name of the option, such as `--weights`, or of the positional argument in the synopsis, such as `STORE`."""
    negation: str | None = None
    """Name of the negated option, such as `--no-weights`."""
    is_flag: bool = False
    is_positional: bool = False

    def write(self, value: str) -> str:
        """Return the option with a value that is written as in Python."""
        if value in ("", "...", "(...)", "[...]"):
            return self.name
        if self.is_flag:
            return (self.negation if value == "False" else None) or self.name
        return f"{self.name} {_write_value(value)}"


def find_options(command: Any) -> dict[str, Option]:
    """Return the options of a command of click by the names of its parameters."""
    found: dict[str, Option] = {}
    for own in command.params:
        if own.param_type_name == "argument":
            metavar = (own.metavar or own.name.upper()).strip("[].")
            found[own.name] = Option(metavar, is_positional=True)
        else:
            names = [max(each, key=len) for each in (own.opts, own.secondary_opts) if each]
            found[own.name] = Option(names[0], names[1] if len(names) > 1 else None, bool(own.is_flag))
    if "scheduler" in found and "cluster" in found:
        for name in ("client", "where"):
            found.setdefault(name, Option("--cluster or --scheduler"))
    return found


def translate_message(message: str) -> str:
    """Return a message of the package with options of the running command in place of arguments."""
    context = CONTEXT.get()
    if context is None or context.command.name in UNTRANSLATED:
        return message
    commands = context.find_root().command.commands
    others = {name: find_options(commands[name]) for name in ADVISED}
    return translate(message, find_options(context.command), others)


@contextmanager
def shorten_warnings() -> Iterator[None]:
    """Show warnings as one line, with options in place of arguments."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        print_note(f"warning: {translate_message(' '.join(str(message).split()))}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def translate(message: str, options: CommandOptions, others: Mapping[str, CommandOptions]) -> str:
    """Return a message with a command's options in place of arguments.

    `ids="string"` becomes `--ids string`, and `weights=False` becomes `--no-weights`. Advice that the command cannot
    follow, as it has no such option, is left out. Text in quotes stays.

    Parameters
    ----------
    options : of the command that runs
    others : options of the commands of `ADVISED`, by the name of the command
    """
    masked: list[str] = []

    def mask(found: re.Match[str]) -> str:
        masked.append(found[0])
        return f"\0{len(masked) - 1}\0"

    first, *advice = _MASKED.sub(mask, message).split("; ")
    own = _Translator(options, others, masked)
    first = _SUBJECT.sub(lambda found: own.rename(found[0]), first)
    return own.unmask("; ".join([own.translate(first)[0], *filter(None, map(own.translate_advice, advice))]))


@dataclass(frozen=True)
class _Translator:
    options: CommandOptions
    others: Mapping[str, CommandOptions]
    masked: list[str]

    def unmask(self, text: str) -> str:
        return _MARK.sub(lambda found: self.masked[int(found[1])], text)

    def rename(self, name: str) -> str:
        option = self.options.get(name)
        return name if option is None or option.is_positional else option.name

    def translate_advice(self, text: str) -> str:
        """Translate the alternatives that the command supports; empty where it supports none."""
        if not _ADVICE.search(text):
            return self.translate(text)[0]
        first, *rest = _ALTERNATIVE.split(text)
        kept, is_known = "", True
        for joint, part in zip(["", *rest[::2]], [first, *rest[1::2]], strict=True):
            verb = (
                "" if is_known or not _ARGUMENT.match(part) else "pass "
            )  # which may be left out with the part before
            translated, is_known = self.translate(part)
            if is_known:
                kept = f"{kept}{joint}{verb}{translated}" if kept else f"{verb}{translated}"
        return kept

    def translate(self, text: str) -> tuple[str, bool]:
        """Translate a part of a message; also return whether all of it has a counterpart on the command line.

        Options are those of the command of `others` that is named last before the argument, else the running command's.
        """
        is_known = not _CALL.search(text)

        def write(found: re.Match[str]) -> str:
            nonlocal is_known
            name, words = found["name"], re.findall(r"\w+", text[: found.start()])
            known = [*(self.others[word] for word in words[::-1] if word in self.others), self.options]
            option = next((each[name] for each in known if name in each), None)
            is_known = is_known and option is not None
            if option is None:
                return found[0]
            others = _MARK.sub(lambda other: _write_value(self.masked[int(other[1])]), found["others"])
            return f"{option.write(self.unmask(found['value'] or ''))}{others}"

        translated = _ARGUMENT.sub(write, text)
        return _BARE.sub(lambda found: self.rename(found[0]), translated), is_known


def _write_value(value: str) -> str:
    """Write a Python literal as a shell argument, and None, a choice by the program, as auto; other text stays."""
    try:
        literal = literal_eval(value)
    except (SyntaxError, ValueError):
        return value
    if isinstance(literal, tuple | list):
        return shlex.quote(",".join(map(str, literal)))
    if isinstance(literal, str):
        return "$'\\t'" if literal == "\t" else shlex.quote(literal)
    return "auto" if literal is None else value
