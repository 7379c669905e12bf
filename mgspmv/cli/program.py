"""The program: its group of commands, answers of commands, and output to stdout and stderr."""

from __future__ import annotations

import errno
import io
import json as json_format
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, NoReturn, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from mgspmv.cli.help import PanelledHelp
from mgspmv.cli.messages import ADVISED, UNTRANSLATED, find_options, translate
from mgspmv.cli.mode import ARGS, KEPT, MODE, Mode, find_mode, print_note
from mgspmv.cli.options import (
    OPTIONS,
    SETTINGS,
    check_choices,
    list_choices,
    make_completion,
    make_option,
    read_settings,
)
from mgspmv.errors import MgspmvError, StoreError, escape_controls, hide_secrets
from mgspmv.monitor.progress import can_show, show_progress
from mgspmv.os_errors import describe_os_error, translating

EXIT_UNEXPECTED = 1
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

PIPED_WIDTH = 1000
"""Columns of a table outside a terminal, so that nothing is cut."""

# Newer versions of Typer hold a copy of click, older ones use click itself: take the class from its public subclass.
_UsageError: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")

_METAVARS = {int: "N", float: "NUMBER"}
"""Names of values in help, by type."""

_CONTEXT: ContextVar[Any] = ContextVar("_CONTEXT", default=None)
"""Click's context of the running command."""


@dataclass(frozen=True)
class Answer:
    """Result of a command, for scripts and for people."""

    payload: dict[str, Any]
    """JSON values, for scripts."""
    parts: Sequence[Any]
    """Strings and rich tables, for people."""
    error: MgspmvError | None = None
    """Error in addition to the answer; it determines the exit code."""
    lines: Iterator[bytes] | None = None
    """Output for stdout, in UTF-8, many lines at a time; `parts` then go to stderr. None prints `parts` to stdout."""
    exit_code: int = 0
    """Exit code without an error, such as that of a cluster that does not answer."""


class Command(PanelledHelp, TyperCommand):
    """Command whose options replace arguments in messages."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        _CONTEXT.set(ctx)
        return super().invoke(ctx)


class Group(PanelledHelp, TyperGroup):
    """Group that runs a command, prints its `Answer`, and turns errors into messages and exit codes."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run the command line `args` and exit."""
        args = sys.argv[1:] if args is None else list(args)
        mode = find_mode(args)
        MODE.set(mode)
        ARGS.set(tuple(args))
        KEPT.set("")
        _CONTEXT.set(None)
        try:
            shown = show_progress() if can_show() and not mode.quiet else nullcontext()
            with mode.open_log(), shorten_warnings(), translating(), shown:
                outcome = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
            if outcome == EXIT_INTERRUPTED:  # newer versions of Typer return it
                raise KeyboardInterrupt
            code = _finish(outcome, mode) if isinstance(outcome, Answer) else outcome or 0
        except _UsageError as error:
            code = _fail_usage(error, mode)
        except (typer.Abort, KeyboardInterrupt):
            code = EXIT_INTERRUPTED
            print(escape_controls("; ".join(filter(None, ("interrupted", KEPT.get())))), file=sys.stderr)
        except MgspmvError as error:
            code = _finish(Answer({}, (), error), mode)
        except Exception as error:
            hint = "" if mode.debug else "; this error was not expected, --debug shows the traceback"
            _print_error(error, f"{type(error).__name__}: {error}{hint}", mode)
            code = _give(_describe_error(error, str(error), mode), (), mode.json) or EXIT_UNEXPECTED
        sys.exit(code)


app = typer.Typer(
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Sparse matrix-vector products and PageRank on matrices too large for one GPU.",
    epilog="Exit codes: 0 done, 1 unexpected error or a wrong finding of doctor, "
    "2 wrong usage or a missing package, 3 malformed source, "
    "4 unusable store or file, 5 not converged, 6 does not fit into memory, 7 unusable or failed cluster, "
    "130 interrupted. Example: mgspmv pagerank web.zarr -o ranks.csv",
)


def add_command(group: typer.Typer, command: Callable[..., Any], name: str | None = None, **options: Any) -> None:
    """Add a command with the options of its groups and of all commands, and shell completion of choices."""
    group.command(name, cls=Command, **options)(_take_options(command))


def _take_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a command to take the fields of its dataclass parameters, its settings by `--set`, and the options of all
    commands, which `find_mode` reads. The settings are the attribute `settings` of the result."""
    own = {parameter.name: parameter for parameter in _list_parameters(command, command.__name__)}
    settings = {name: parameter for name, parameter in own.items() if name in SETTINGS}

    @wraps(command)
    def run(**given: Any) -> Any:
        if settings:
            given |= {name: parameter.default for name, parameter in settings.items()}
            given |= read_settings(given["set"] or (), settings)
        check_choices(own, given)
        return _call(command, given)

    kept = [parameter for name, parameter in own.items() if name not in settings]
    kept += [make_option(settings)] if settings else []
    kept += _list_parameters(Mode, command.__name__)
    vars(run).update(settings=settings, __signature__=Signature(kept))
    run.__annotations__ = {p.name: p.annotation for p in kept}
    return run


def _list_parameters(call: Callable[..., Any], owner: str) -> Iterator[Parameter]:
    """Yield the parameters of a command or group, described, with the fields of groups in place of these."""
    kinds = get_type_hints(call, include_extras=True)
    for name, parameter in signature(call).parameters.items():
        if is_dataclass(kinds[name]):
            yield from _list_parameters(kinds[name], owner)
        else:
            yield _describe_option(owner, parameter.replace(annotation=kinds[name]))


def _call(call: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """Call a command or make a group of the values of options, by name."""
    kinds = get_type_hints(call)
    kinds.pop("return", None)
    groups = {name: _call(kinds[name], given) for name in kinds if is_dataclass(kinds[name])}
    return call(**{name: given[name] for name in kinds if name not in groups}, **groups)


def _describe_option(owner: str, parameter: Parameter) -> Parameter:
    """Annotate a parameter of a command, or of one of its groups, with its entry in `OPTIONS`."""
    kind, key = parameter.annotation, f"{owner}.{parameter.name}"
    is_described = get_origin(kind) is Annotated
    kind, *said = get_args(kind) if is_described else (kind,)
    described = copy(said[0] if is_described and key not in OPTIONS else OPTIONS.get(key) or OPTIONS[parameter.name])
    if described.metavar is None:
        described.metavar = next((name for own, name in _METAVARS.items() if own in _unpack(kind)), None)
    if kind is bool and parameter.default is False and described.default is ...:  # no names were given
        described.param_decls = (f"--{parameter.name.replace('_', '-')}",)
    described.autocompletion = described.autocompletion or make_completion(list_choices(described.metavar))
    return parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=Annotated[kind, described])


def _unpack(kind: Any) -> tuple[Any, ...]:
    """Return the types in a type such as `list[float] | None`."""
    parts = get_args(kind)
    return tuple(each for part in parts for each in _unpack(part)) if parts else (kind,)


def _print_version(wanted: bool) -> None:
    if wanted:
        from mgspmv.version import find_gpus, find_versions

        found = find_versions() | find_gpus()
        width = max(map(len, found))
        lines = [f"{name:{width}}  {value}" for name, value in found.items()]
        raise typer.Exit(_give(found, lines, MODE.get().json))


@app.callback()
@_take_options
def _accept_version(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print versions of this installation."),
    ] = False,
) -> None:
    pass


# --- messages --------------------------------------------------------------------------------------------------------


def translate_message(message: str) -> str:
    """Return a message of the package with options of the running command in place of arguments."""
    context = _CONTEXT.get()
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


# --- answers ---------------------------------------------------------------------------------------------------------


def _finish(answer: Answer, mode: Mode) -> int:
    payload, message = answer.payload, translate_message(str(answer.error or ""))
    if answer.error is not None:
        payload = payload | _describe_error(answer.error, message, mode)
    parts = () if mode.quiet else answer.parts
    if answer.lines is None:
        code = _give(payload, parts, mode.json)
    else:
        code = _write_out(lines.decode() for lines in answer.lines)
        sys.stderr.write(_render(parts))
    if answer.error is None:
        return code or answer.exit_code
    _print_error(answer.error, message, mode)
    return code or answer.error.exit_code


def _fail_usage(error: Any, mode: Mode) -> int:
    message = error.format_message()
    if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help text
        print(message, file=sys.stderr)
    else:
        asked = getattr(error, "ctx", None)
        setting = getattr(error, "option_name", "").removeprefix("--").replace("-", "_")
        if asked and setting in getattr(asked.command.callback, "settings", ()):
            message = f"No such option: --{setting}; pass --set {setting}=VALUE"
        hint = f" See `{asked.command_path} --help`." if asked else ""
        _print_error(error, f"{message}{'' if message.endswith(('.', '?')) else '.'}{hint}", mode)
    return _give({"error": {"type": "UsageError", "message": message}}, (), mode.json) or error.exit_code


def _give(payload: Mapping[str, Any], parts: Sequence[Any], as_json: bool) -> int:
    """Write an answer to stdout; return 0, or the exit code when it cannot be written."""
    text = f"{json_format.dumps(payload, allow_nan=False)}\n" if as_json else _render(parts)
    return _write_out([hide_secrets(text)])


def _write_out(texts: Iterable[str]) -> int:
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
        _print_error(error, f"cannot write the answer: {why}", MODE.get())
        return StoreError.exit_code
    return 0


def _render(parts: Sequence[Any]) -> str:
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


def _print_error(error: BaseException, message: str, mode: Mode) -> None:
    if mode.debug:
        print(escape_controls(hide_secrets("".join(traceback.format_exception(error)))), end="", file=sys.stderr)
    is_colored = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    said = typer.style("error:", fg=typer.colors.RED, bold=True) if is_colored else "error:"
    print(f"{said} {escape_controls(hide_secrets(message))}", file=sys.stderr)


def _describe_error(error: BaseException, message: str, mode: Mode) -> dict[str, Any]:
    described: dict[str, Any] = {"type": type(error).__name__, "message": message}
    if mode.debug:
        described["traceback"] = traceback.format_exception(error)
    return {"error": described}
