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
    shown = show_help(path, "--help-all")
    sources = [
        command.help,
        command.epilog,
        *(text for p in list_shown(command) for text in (p.help, p.metavar) if text),
    ]
    assert [text for text in sources if squeeze(text.strip("[].")) not in squeeze(shown)] == []
    assert re.findall(r"<\w+>", shown) == []
    assert max(map(len, shown.splitlines())) <= 80


@ALL_COMMANDS
def test_help_is_a_part_of_the_whole_with_all_but_advanced_options(path, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown, whole = show_help(path), show_help(path, "--help-all")
    assert show_help(path, "-h") == shown
    *lines, pointer = shown.splitlines()
    assert [line for line in lines if line not in whole.splitlines()] == []
    names = {name for p in list_shown(command) for name in p.opts if name.startswith("--")}
    for option in (p for p in list_shown(command) if p.param_type_name == "option"):
        is_common = find_panel(command.name, option.name) != "Advanced"
        entry = rf"^  (-\w, )?{re.escape(max(option.opts, key=len))}( |$)"
        assert bool(re.search(entry, shown, re.MULTILINE)) == is_common, option.name
    names |= {"--help", "--help-all"} | {name for p in command.params for name in p.opts if name.startswith("--")}
    assert set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", whole, re.MULTILINE)) == names
    is_short = len(shown.splitlines()) < len(whole.splitlines())
    assert pointer.startswith("All options") == is_short
    if is_short:
        assert pointer.endswith(f": `{' '.join(['mgspmv', *path])} --help-all`")
    assert len(shown.splitlines()) <= (60 if path else 80)


@ALL_COMMANDS
def test_options_are_in_named_panels(path, command):
    shown = show_help(path, "--help-all")
    titles = re.findall(r"^(\w[\w ]*):$", shown, re.MULTILINE)
    own = [title for title in titles if title in PANELS]
    assert own == [panel for panel in PANELS if panel in own]
    for option in (p for p in list_shown(command) if p.param_type_name == "option"):
        _, _, section = shown.partition(f"\n{find_panel(command.name, option.name)}:\n")
        assert re.search(rf"^ .*{re.escape(option.opts[0])}\b", section.partition("\n\n")[0], re.MULTILINE), option.name


@pytest.mark.parametrize("columns", ["60", "200"])
def test_help_fits_narrow_terminals_and_stays_readable_in_wide_ones(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    lines = show_help(("pagerank",), "--help-all").splitlines()
    assert max(len(line) for line in lines if "|" not in line) <= min(int(columns), 80)


@ALL_COMMANDS
def test_options_are_few(path, command):
    options = [p for p in list_shown(command) if p.param_type_name == "option"]
    assert len([p for p in options if find_panel(command.name, p.name) != "Advanced"]) <= 23
    assert len(options) <= 36


def test_options_of_all_commands_are_listed_once():
    for name in ("--json", "--quiet", "--log", "--debug", "--help", "--help-all"):
        entry = re.compile(rf"^  (-\w, )?{name} ", re.MULTILINE)
        assert entry.search(show_help(()))
        assert entry.search(show_help(("pagerank",), "--help-all"))
        assert not entry.search(show_help(("pagerank",)))


def test_brackets_are_shown():
    assert "HOST[:PORT]" in show_help(("cluster", "start"))
    assert squeeze("in (0, 1], default") in squeeze(show_help(("generate",)))
