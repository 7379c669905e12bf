"""The reference of the command line, made of the program itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import typer
from markdown_tables import escape, make_table, show_code, split_default

from mgspmv.cli import app
from mgspmv.cli.options import list_parameters, name_argument, write_usage

OPTION = re.compile(r"((?:-[\w-]+(?:, | / )?)+)(?: (.*))?$")
EXTRA = re.compile(r"(?:^|  )\[((?:default|required|x|\d).*)\]$")


def write_commands() -> str:
    """A table of all commands, and a heading for each group and each command, with tables of arguments and options."""
    program = typer.main.get_command(app)
    context = program.make_context("mgspmv", [], resilient_parsing=True)
    rows = [_summarize(command, own) for _, command, own in list_commands(program, context)]
    parts = [make_table(("command", "does"), rows), "## Options of all commands\n", _write_tables(program, context)]
    for panel, entries in groupby(list_commands(program, context), key=lambda entry: entry[0]):
        parts += [f"## {panel}\n", *(_write_command(command, own) for _, command, own in entries)]
    return "\n".join(parts)


def list_commands(group: Any, context: Any, panel: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The panel of help, the command and its context, for each command; a group of commands comes before its own."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        own = command.make_context(name, [], parent=context, resilient_parsing=True)
        shown = panel or command.rich_help_panel
        yield shown, command, own
        if hasattr(command, "commands"):
            yield from list_commands(command, own, shown)


def _summarize(command: Any, context: Any) -> tuple[str, str]:
    """The command, linked to its heading, and the first sentence of its help."""
    path = context.command_path
    return f"[`{path}`](#{path.replace(' ', '-')})", escape(re.split(r"(?<=[^.]\.)\s", command.help, maxsplit=1)[0])


def _write_command(command: Any, context: Any) -> str:
    head = [f"### {context.command_path}\n", f"    {write_usage(command, context)}\n", f"{escape(command.help)}\n"]
    if command.epilog:
        example = command.epilog.removeprefix("Example: ")
        head.append(f"```sh\n{example}\n```\n")
    parts = [*head, _write_tables(command, context)]
    return "\n".join(part for part in parts if part)


def _write_tables(command: Any, context: Any) -> str:
    """Tables of arguments and options, less the options of help that all commands have."""
    hidden = ("help", "help_all") if context.parent else ()
    given = [p for p in list_parameters(command, context) if p.get_help_record(context) is not None]
    arguments = [_describe_argument(p, context) for p in given if p.param_type_name == "argument"]
    options = [_describe_option(p, context) for p in given if p.param_type_name == "option" and p.name not in hidden]
    tables = [make_table(("argument", "default", "meaning"), arguments)] if arguments else []
    if options:
        tables.append(make_table(("option", "value", "default", "meaning"), options))
    return "\n".join(tables)


def _describe_argument(argument: Any, context: Any) -> tuple[str, ...]:
    return (show_code(name_argument(argument)), *_describe(argument.get_help_record(context)[1]))


def _describe_option(option: Any, context: Any) -> tuple[str, ...]:
    shown, text = option.get_help_record(context)
    found = OPTION.match(shown)
    assert found is not None, shown
    names = [show_code(name) for name in re.findall(r"-[\w-]+", found[1])]
    return (", ".join(names), _show_value(found[2] or ""), *_describe(text))


def _show_value(value: str) -> str:
    """`a|b|FILE` as a list of words; in small letters they are meant as they are."""
    return ", ".join(show_code(choice.replace(" range", "")) for choice in value.split("|")) if value else ""


def _describe(text: str) -> tuple[str, str]:
    """Default and meaning, of a line of help such as `Most iterations.  [default: 100; x>=1]`."""
    found = EXTRA.search(text)
    extras = found[1].split("; ") if found else []
    meaning, default = split_default(text[: found.start()] if found else text)
    for extra in extras:
        if extra.startswith("default: "):
            default = show_code(extra.removeprefix("default: "))
        elif extra == "required":
            default = "required"
        else:
            meaning += f" {_name_range(extra)}."
    return default if default.startswith("`") else escape(default), escape(meaning)


def _name_range(text: str) -> str:
    """`x>=1` or `0<=x<=1` in words."""
    least, _, most = text.partition("<=x<=")
    return f"From {least} to {most}" if most else text.replace("x>=", "At least ").replace("x<=", "At most ")
