"""Help of commands: complete, in named panels, and readable in 80 columns."""

from __future__ import annotations

import re

import pytest
import typer

from mgspmv.cli import app
from mgspmv.cli.options import PANELS, find_panel, list_parameters
from tests.support.commands import invoke


def list_commands(group, path=()):
    """Path and command of the program, its groups and each command."""
    yield path, group
    for name, command in getattr(group, "commands", {}).items():
        yield from list_commands(command, (*path, name))


COMMANDS = [*list_commands(typer.main.get_command(app))]
NAMES = [" ".join(path) or "mgspmv" for path, _ in COMMANDS]
ALL_COMMANDS = pytest.mark.parametrize(("path", "command"), COMMANDS, ids=NAMES)


def show_help(path, flag="--help"):
    return invoke(*path, flag)[0]


def list_shown(command):
    return list_parameters(command, command.make_context(command.name, [], resilient_parsing=True))


def squeeze(text):
    """Leave out blanks, where lines may end."""
    return "".join(text.split())


@ALL_COMMANDS
def test_help_shows_each_text_as_it_is_written(path, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = show_help(path)
    assert show_help(path, "-h") == shown
    sources = [
        command.help,
        command.epilog,
        *(text for p in list_shown(command) for text in (p.help, p.metavar) if text),
    ]
    assert [text for text in sources if squeeze(text.strip("[].")) not in squeeze(shown)] == []
    assert re.findall(r"<\w+>", shown) == []
    assert max(map(len, shown.splitlines())) <= 80


@ALL_COMMANDS
def test_options_are_in_named_panels(path, command):
    shown = show_help(path)
    titles = re.findall(r"^(\w[\w ]*):$", shown, re.MULTILINE)
    own = [title for title in titles if title in PANELS]
    assert own == [panel for panel in PANELS if panel in own]
    for option in (p for p in list_shown(command) if p.param_type_name == "option"):
        _, _, section = shown.partition(f"\n{find_panel(command.name, option.name)}:\n")
        assert re.search(rf"^ .*{re.escape(option.opts[0])}\b", section.partition("\n\n")[0], re.MULTILINE), option.name


@pytest.mark.parametrize("columns", ["60", "200"])
def test_help_fits_narrow_terminals_and_stays_readable_in_wide_ones(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    lines = show_help(("pagerank",)).splitlines()
    assert max(len(line) for line in lines if "|" not in line) <= min(int(columns), 80)


@ALL_COMMANDS
def test_options_are_few(path, command):
    options = [p for p in list_shown(command) if p.param_type_name == "option"]
    assert len([p for p in options if find_panel(command.name, p.name) != "Advanced"]) <= 23
    assert len(options) <= 36


def test_options_of_all_commands_are_listed_once():
    named = re.search(r"^All commands also take (.*): `mgspmv -h`", show_help(("info",)), re.MULTILINE)[1]
    listed = show_help(())
    for name in re.findall(r"--\w+", named):
        assert f"{name} " in listed
        assert f"\n  {name}" not in show_help(("pagerank",))


def test_brackets_are_shown():
    assert "HOST[:PORT]" in show_help(("cluster", "start"))
    assert "in (0, 1], default" in show_help(("generate",))
