"""Help of commands: plain text in at most 80 columns, with options in named panels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mgspmv.cli.mode import COMMON
from mgspmv.cli.options import list_settings

PANELS = {
    "Graph": "kind duplicates symmetrize transpose n_vertices vertices insert delete method min_weight "
    "max_weight edges without_edges alpha personalization dangling nstart normalized beta lazy y "
    "scale edge_factor n_edges generate.weights nx ny nz seed",
    "Source": "format delimiter header comment columns weights ids",
    "Stopping": "tol max_iter stop",
    "Output": "output top keep_top hubs keep bins export.format export.vertices checkpoint resume dry_run overwrite",
    "Where": "backend precision device_memory threads memory cluster workers cluster_option scheduler tls "
    "name protocol host port dashboard_port dashboard_origin foreground warm",
    "Advanced": "set wait json quiet log debug version help install_completion show_completion",
}
"""Names of options by the panel of help that shows them; `COMMAND.NAME` takes precedence over `NAME`."""

_PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names.split()}
_OF_ALL = "All commands also take --json, --quiet, --log FILE and --debug: `mgspmv -h`."
_NAMES_WIDTH = 22


def find_panel(command: str, name: str) -> str:
    """Return the panel of an option."""
    return _PANEL_OF.get(f"{command}.{name}") or _PANEL_OF[name]


class PanelledHelp:
    """Base of commands and groups that writes their help; the other base is one of Typer."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write usage, description, arguments, options by panel, commands by panel and the example."""
        own: Any = self
        formatter.write_text(f"Usage: {write_usage(own, ctx)}")
        formatter.write_paragraph()
        formatter.write_text(own.help)
        for panel, rows in _list_panels(own, ctx).items():
            with formatter.section(panel):
                formatter.write_dl(rows, col_max=_NAMES_WIDTH)
        for text in (*(() if is_group(own) else (_OF_ALL,)), own.epilog):
            formatter.write_paragraph()
            formatter.write_text(text)


def is_group(command: Any) -> bool:
    """Return whether a command of click has commands."""
    return hasattr(command, "commands")


def list_parameters(command: Any, ctx: Any) -> list[Any]:
    """List the arguments and options that the help of a command describes: of all commands only that of the program."""
    own = command.get_params(ctx)
    return own if is_group(command) else [parameter for parameter in own if parameter.name not in COMMON]


def write_usage(command: Any, ctx: Any) -> str:
    """Return the synopsis of a command, such as `mgspmv info [OPTIONS] STORE`."""
    arguments = [name_argument(own) for own in command.params if own.param_type_name == "argument"]
    return " ".join([ctx.command_path, "[OPTIONS]", *(["COMMAND"] if is_group(command) else arguments)])


def name_argument(argument: Any) -> str:
    """Return the name of a positional argument as in the synopsis."""
    name = (argument.metavar or argument.name.upper()).strip("[].")
    shown = name if argument.nargs == 1 else f"{name}..."
    return shown if argument.required else f"[{shown}]"


def _list_panels(command: Any, ctx: Any) -> dict[str, list[tuple[str, str]]]:
    """List names and descriptions by panel: of arguments, then of commands, then of options."""
    panels: dict[str, list[tuple[str, str]]] = {"Arguments": []}
    for name, inner in getattr(command, "commands", {}).items():
        panels.setdefault(inner.rich_help_panel or "Commands", []).append((name, inner.help.partition("\n\n")[0]))
    panels |= {panel: [] for panel in PANELS}
    for parameter in list_parameters(command, ctx):
        record = parameter.get_help_record(ctx)
        if record is not None and parameter.param_type_name == "argument":
            panels["Arguments"].append((name_argument(parameter), record[1]))
        elif record is not None:
            panels[find_panel(command.name, parameter.name)].append(record)
            if parameter.name == "set":
                panels["Advanced"] += _list_settings(command)
    return {panel: rows for panel, rows in panels.items() if rows}


def _list_settings(command: Any) -> Iterator[tuple[str, str]]:
    """Yield the rows of the settings of a command."""
    for name, value, meaning, default in list_settings(getattr(command.callback, "settings", {})):
        yield f"  {name}={value}", meaning if default is None else f"{meaning} [default: {default}]"
