"""The command line: each command calls `mgspmv` and answers with tables for people or one JSON object for scripts.

Answers go to stdout, progress and errors to stderr. Heavy libraries are imported inside the commands, so that
`mgspmv --help` does not wait for them. Here is the program: errors with their exit codes, signals, and the list of all
commands, which are in the other modules.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from copy import copy
from dataclasses import is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from types import FrameType
from typing import Annotated, Any, NoReturn, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from mgspmv.cli import clusters, ranking, results, stores
from mgspmv.cli.options import OPTIONS, PanelledHelp, check_choices
from mgspmv.cli.output import (
    ARGS,
    CONTEXT,
    KEPT,
    MODE,
    Answer,
    Mode,
    await_ends,
    describe_error,
    find_mode,
    give,
    print_error,
    render,
    shorten_warnings,
    translate_message,
    write_out,
)
from mgspmv.errors import MgspmvError, escape_controls, translating
from mgspmv.logs import write_log
from mgspmv.monitor.progress import can_show, show_progress

EXIT_UNEXPECTED = 1
EXIT_INTERRUPTED = 130

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ENDING = b"stopping, and removing incomplete output; the next signal stops at once, and leaves it\n"

SAME_S = 1.0
"""Seconds within which a repeated signal counts as one: `timeout` and `srun` signal both the process and its group, and
both a closed terminal and its shell send a signal."""

# Newer versions of Typer hold a copy of click, older ones use click itself: take the class from its public subclass.
_UsageError: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")

_METAVARS = {int: "N", float: "NUMBER"}
"""Names of values in help, by type."""


class Command(PanelledHelp, TyperCommand):
    """Command whose options replace arguments in messages, and are made when they are first needed."""

    _made: list[Any] | None = None

    @property
    def params(self) -> list[Any]:
        """Options and arguments; those of all commands together take as long to make as to import NumPy."""
        if self._made is None:
            alone = typer.Typer(add_completion=False)
            alone.command()(_take_options(vars(self.callback)["command"]))
            made = typer.main.get_command(alone)
            self._made, self.callback = made.params, made.callback
        return self._made

    @params.setter
    def params(self, none: list[Any]) -> None:  # Typer sets those of `run` in `add_command`
        pass

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        CONTEXT.set(ctx)
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
        CONTEXT.set(None)
        try:
            shown = show_progress() if can_show() and not mode.quiet else nullcontext()
            logged = nullcontext() if mode.log is None else write_log(mode.log, "debug" if mode.debug else "info")
            with logged, shorten_warnings(), translating(), shown:
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
            print_error(error, f"{type(error).__name__}: {error}{hint}", mode)
            code = give(describe_error(error, str(error), mode), (), mode.json) or EXIT_UNEXPECTED
        await_ends()
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
    "130 interrupted.\n\nExample: mgspmv pagerank web.zarr -o ranks.csv",
)


def add_command(group: typer.Typer, command: Callable[..., Any], name: str | None = None, **options: Any) -> None:
    """Add a command with the options of its groups and of all commands."""

    def run() -> None:
        """Stand for the command until `Command.params` makes its options."""

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    vars(run)["command"] = command
    group.command(name, cls=Command, **options)(run)


def _take_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a command to take the fields of its dataclass parameters, and the options of all commands, which `find_mode`
    reads."""
    own = {parameter.name: parameter for parameter in _list_parameters(command, command.__name__)}

    @wraps(command)
    def run(**given: Any) -> Any:
        check_choices(own, given)
        return _call(command, given)

    kept = [*own.values(), *_list_parameters(Mode, command.__name__)]
    vars(run).update(__signature__=Signature(kept))
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
    return parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=Annotated[kind, described])


def _unpack(kind: Any) -> tuple[Any, ...]:
    """Return the types in a type such as `list[float] | None`."""
    parts = get_args(kind)
    return tuple(each for part in parts for each in _unpack(part)) if parts else (kind,)


def _print_version(wanted: bool) -> None:
    if wanted:
        from mgspmv.environment import find_gpus, find_versions

        found = find_versions() | find_gpus()
        width = max(map(len, found))
        lines = [f"{name:{width}}  {value}" for name, value in found.items()]
        raise typer.Exit(give(found, lines, MODE.get().json))


@app.callback()
@_take_options
def _accept_version(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print versions of this installation."),
    ] = False,
) -> None:
    pass


# --- answers ---------------------------------------------------------------------------------------------------------


def _finish(answer: Answer, mode: Mode) -> int:
    payload, message = answer.find_payload() if mode.json else {}, translate_message(str(answer.error or ""))
    if answer.error is not None:
        payload = payload | describe_error(answer.error, message, mode)
    parts = () if mode.quiet else answer.parts
    if answer.lines is None:
        code = give(payload, parts, mode.json)
    else:
        code = write_out(lines.decode() for lines in answer.lines)
        sys.stderr.write(render(parts))
    if answer.error is None:
        return code or answer.exit_code
    print_error(answer.error, message, mode)
    return code or answer.error.exit_code


def _fail_usage(error: Any, mode: Mode) -> int:
    wrong: list[Any] = getattr(error.__cause__, "errors", list)()
    for found in wrong[:1]:  # expected and given value, in place of the text of Pydantic, by which Typer reads values
        limits = {"ge": "at least", "le": "at most"}
        kind = {"float_parsing": "a number", "int_parsing": "an integer"}.get(found["type"])
        bounds = [f"{limits[key]} {bound:g}" for key, bound in found.get("ctx", {}).items() if key in limits]
        if kind or bounds:
            error.message = f"expected {kind or bounds[0]}, got {found['input']!r}"
    message = error.format_message()
    if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help text
        print(message, file=sys.stderr)
    else:
        asked = getattr(error, "ctx", None)
        hint = f" See `{asked.command_path} --help`." if asked else ""
        print_error(error, f"{message}{'' if message.endswith(('.', '?')) else '.'}{hint}", mode)
    return give({"error": {"type": "UsageError", "message": message}}, (), mode.json) or error.exit_code


# --- signals ---------------------------------------------------------------------------------------------------------


def catch_interrupts() -> None:
    """Let signals interrupt this process, except those that are ignored, as under `nohup`.

    The second signal prints `ENDING`, and the third ends the process at once.
    """
    taken_s: list[float] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if taken_s and now_s < taken_s[-1] + SAME_S:
            return
        taken_s.append(now_s)
        if len(taken_s) == 1:
            raise KeyboardInterrupt
        if len(taken_s) > 2:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        if not MODE.get().quiet:
            with suppress(OSError):  # the terminal may be closed
                os.write(2, ENDING)  # sys.stderr may be writing at this moment

    for number in INTERRUPTS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)


# --- commands --------------------------------------------------------------------------------------------------------

PANELS: dict[str, dict[Callable[..., Any], str]] = {
    "Matrices": {
        stores.ingest: "ingest web.mtx.gz web.zarr --kind graph",
        stores.generate: "generate rmat rmat.zarr --scale 20",
        stores.update: "update web.zarr --insert new.csv --delete old.csv",
        stores.versions: "versions web.zarr --keep 2",
        stores.reorder: "reorder web.zarr --method rcm",
        stores.transpose: "transpose web.zarr",
        stores.subgraph: "subgraph web.zarr part.zarr --min-weight 0.5",
        stores.export: "export web.zarr web.parquet",
        stores.info: "info web.zarr",
        stores.verify: "verify web.zarr",
    },
    "Products and ranks": {
        stores.plan: "plan web.zarr --workers 4 --device-memory 80GB",
        stores.spmv: "spmv matrix.zarr x.npy -o y.npy",
        ranking.pagerank: "pagerank web.zarr -o ranks.parquet",
        ranking.pagerank_batch: "pagerank-batch web.zarr --personalization seeds.csv -o ranks.zarr",
        ranking.hits: "hits web.zarr -o authorities.parquet --hubs hubs.parquet",
        ranking.katz: "katz web.zarr --alpha auto -o katz.parquet",
        ranking.eigenvector: "eigenvector web.zarr -o centrality.parquet",
        ranking.stationary: "stationary chain.zarr --lazy 0.5",
    },
    "Results": {
        results.top: "top ranks.parquet --top 20",
        results.summary: "summary ranks.parquet",
        results.report: "report ranks.zarr",
    },
    "Pipelines and measurements": {results.run: "run pipeline.toml --dry-run", clusters.doctor: "doctor web.zarr"},
    "Clusters": {clusters.status: "status", clusters.cancel: "cancel 1f2e"},
}
"""All commands with an example of each, in the order in which help lists them."""

for panel, commands in PANELS.items():
    for command, example in commands.items():
        add_command(app, command, rich_help_panel=panel, epilog=f"Example: mgspmv {example}")
group = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    help="Start, list and stop clusters on this machine.",
    epilog="Example: mgspmv cluster start",
)
for command, example in ((clusters.start, "start --backend cuda"), (clusters.show, "status"), (clusters.stop, "stop")):
    add_command(group, command, example.partition(" ")[0], epilog=f"Example: mgspmv cluster {example}")
app.add_typer(group, name="cluster", rich_help_panel="Clusters")


def main(args: list[str] | None = None) -> None:
    """Run the program: the entry point `mgspmv`."""
    catch_interrupts()
    atexit.register(gc.freeze)  # else Python looks for cycles of all objects as it ends, for a tenth of a second
    # sys.stdout is None if closed, and the next file would get its number. Opened for reading, writes to it fail.
    number = os.open(os.devnull, os.O_RDONLY) if sys.stdout is None else sys.stdout.fileno()
    looks: dict[str, Any] = {name: getattr(sys.stdout, name, None) for name in ("encoding", "errors")}
    # With PYTHONUNBUFFERED, Python's own stdout ignores partial writes.
    sys.stdout = open(number, "w", closefd=False, **looks)  # noqa: SIM115
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    app(args, prog_name="mgspmv")
