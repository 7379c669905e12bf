"""Whether commands, options and names that pages show exist in the programs: nothing is run."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer

import mgspmv
from mgspmv.cli import app
from tests.support.pages import ROOT

_PLACEHOLDERS = re.compile(r"[\[\]]|\.\.\.")
_OPTION = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")
_VARIABLES = re.compile(r"^(\w+=\S* +)+")


class UsageError(AssertionError):
    """A command, option or name that there is not."""


def check_line(text: str) -> None:
    """Check a command of the shell that is not run: files of ours, options, and the command of mgspmv within it.

    Raises
    ------
    UsageError : it would end with a message on its usage
    """
    words = shlex.split(_VARIABLES.sub("", re.sub(r"\s[<>|&].*", "", text)), comments=True)
    checks = {"make": _check_make, "dask": _check_dask, "python": _check_module, "pip": _check_extras}
    checks.get(words[0], lambda words: None)(words)
    for word in words:
        if re.match(r"(deploy|tests)/", word) and "/mine" not in word and not (ROOT / word).exists():
            raise UsageError(f"there is no {word}")
    if words[0] == "mgspmv":
        return _parse_words(words[1:])
    for k in range(1, len(words)):
        if words[k] in _get_app().commands and re.search(r"^mgspmv$|^pipeline$|\.sbatch$", words[k - 1]):
            return _parse_words(words[k:])
    return None


def check_usage(text: str) -> None:
    """Check what stands for commands: `mgspmv hits|katz STORE [-o RANKS]`, where arguments are none yet.

    Raises
    ------
    UsageError : no such command, or it has no such option
    """
    words = _PLACEHOLDERS.sub(" ", _VARIABLES.sub("", text)).split()
    if words[0] != "mgspmv":
        return check_line(text)
    for command, rest in _find_commands(_get_app(), words[1:]):
        wanted = {option for word in rest for option in _OPTION.findall(word.split("=")[0])} - {
            "--help",
            "--help-all",
            "-h",
        }
        if missing := sorted(wanted - _list_own(command)):
            raise UsageError(f"mgspmv {command.name} has no {missing[0]}")
    return None


def check_names(text: str) -> None:
    """Check every `mg.name` and `mgspmv.module.name`.

    Raises
    ------
    UsageError : there is none
    """
    for name in re.findall(r"(?<![\w.\"'/-])mg\.([a-z_]\w*)", text):
        if not hasattr(mgspmv, name):
            raise UsageError(f"mg has no {name}")
    for dotted in re.findall(r"(?<![\w./@])mgspmv(?:\.\w+)+", text):
        try:
            pkgutil.resolve_name(dotted)
        except (ImportError, AttributeError) as error:
            raise UsageError(f"there is no {dotted}") from error


@cache
def list_options() -> set[str]:
    """All options of all commands that pages may speak of."""
    found = {"--help", "--help-all"} | _list_of_scripts()
    for command in _walk(_get_app()):
        found |= _list_own(command)
    return found | _list_own(_get_dask("scheduler")) | _list_own(_get_dask("worker"))


def list_helps() -> Iterator[tuple[str, str]]:
    """Texts of `--help`, with whose they are."""
    for command in _walk(_get_app()):
        yield command.name or "mgspmv", str(command.help)
        for parameter in command.params:
            yield f"{command.name} {parameter.name}", getattr(parameter, "help", None) or ""


@cache
def _get_app() -> Any:
    return typer.main.get_command(app)


def _walk(command: Any) -> Iterator[Any]:
    yield command
    for inner in getattr(command, "commands", {}).values():
        yield from _walk(inner)


def _list_own(command: Any) -> set[str]:
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}


def _find_commands(group: Any, words: list[str]) -> Iterator[tuple[Any, list[str]]]:
    """The commands that words name, several where it says `hits|katz`, with the words behind."""
    inner = getattr(group, "commands", None)
    if inner is None or not words or words[0].startswith("-") or words[0] == "COMMAND":
        yield group, words
        return
    for name in words[0].split("|"):
        if name not in inner:
            raise UsageError(f"there is no command {group.name or 'mgspmv'} {name}; there are {', '.join(inner)}")
        yield from _find_commands(inner[name], words[1:])


def _parse_words(words: list[str]) -> None:
    for command, rest in _find_commands(_get_app(), words):
        try:
            command.make_context(command.name, list(rest))
        except Exception as error:
            raise UsageError(f"mgspmv {shlex.join(words)}: {getattr(error, 'message', '') or error}") from error


def _get_dask(name: str) -> Any:
    return importlib.import_module(f"distributed.cli.dask_{name}").main


def _check_dask(words: list[str]) -> None:
    if words[1] in ("scheduler", "worker"):
        _check_options(words[2:], _list_own(_get_dask(words[1])))
    elif words[1] == "cuda" and importlib.util.find_spec("dask_cuda") is not None:
        _check_options(words[3:], _list_own(importlib.import_module("dask_cuda.cli").worker))


def _check_options(words: list[str], known: set[str]) -> None:
    for option in _OPTION.findall(" ".join(words)):
        if option not in known:
            raise UsageError(f"there is no {option}")


def _check_make(words: list[str]) -> None:
    if shutil.which("make") is not None:
        done = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True)
        if done.returncode != 0:
            raise UsageError(done.stderr.strip())


def _check_module(words: list[str]) -> None:
    if words[1] == "-m":
        file = ROOT / f"{words[2].replace('.', '/')}.py"
        if not file.is_file():
            raise UsageError(f"there is no {words[2]}")
        _check_options(words[3:], _list_of_scripts(file))


def _list_of_scripts(*scripts: Path) -> set[str]:
    """Options of programs among the tests, by default of all, and those that all share."""
    folders = [ROOT / "benchmarks", ROOT / "tests" / "support" / "chaos"]
    every = [path for folder in folders for path in folder.glob("*.py")]
    files = [*scripts, folders[0] / "program.py"] if scripts else every
    return {option for file in files for option in re.findall(r'add_argument\(\s*"(--[\w-]+)"', file.read_text())}


def _check_extras(words: list[str]) -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extras in re.findall(r"(?:mgspmv|\.)\[([\w,]+)\]", " ".join(words)):
        if missing := set(extras.split(",")) - set(known):
            raise UsageError(f"mgspmv has no extra {missing.pop()}; there are {', '.join(sorted(known))}")
