"""Whether commands, options and names that pages show exist in the programs: nothing is run."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cache
from inspect import Parameter, get_annotations, getsource, signature
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer

import mgspmv
from mgspmv.api.powers import Running
from mgspmv.cli import app
from mgspmv.ingest.generate import GENERATORS
from mgspmv.ingest.open import EDGE_LIST_OPTIONS, GROUP_OPTIONS, PARQUET_OPTIONS
from tests.support.pages import ROOT

_PLACEHOLDERS = re.compile(r"[\[\]]|\.\.\.")
_OPTION = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")
_VARIABLES = re.compile(r"^(\w+=\S* +)+")


class UsageError(AssertionError):
    """A command, option or name that there is not."""


# --- commands --------------------------------------------------------------------------------------------------------


def check_line(text: str) -> None:
    """Check a command of the shell that is not run.

    What it names must be there: of mgspmv command, options and their types; of others what is known without running.

    Raises
    ------
    UsageError : it would end with a message on its usage, or is of a program of which nothing is known
    """
    words = shlex.split(_VARIABLES.sub("", re.sub(r"\s[<>|&].*", "", text)), comments=True)
    checks = {
        "mgspmv": _parse_words,
        "dask": _check_dask,
        "make": _check_make,
        "python": _check_script,
        "pip": _check_extras,
        "pytest": _check_marks,
        "ruff": lambda words: None,
        "curl": lambda words: None,
        "mypy": lambda words: None,
        "docker": _check_docker,
        "kubectl": _check_kubectl,
        **dict.fromkeys(("nohup", "systemd-run"), lambda words: _parse_words(words[words.index("mgspmv") + 1 :])),
        **dict.fromkeys(("sbatch", "qsub"), _check_job),
        **dict.fromkeys(("uv", "useradd", "install", "systemctl", "python3"), lambda words: None),
    }
    if words[0] not in checks:
        raise UsageError(f"{words[0]} is no program of which tests know how to check it")
    checks[words[0]](words[1:])


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
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        wanted = {option for word in rest for option in _OPTION.findall(word.split("=")[0])} - {"--help"}
        if missing := sorted(wanted - known):
            raise UsageError(f"mgspmv {command.name} has no {missing[0]}")
    return None


def list_options() -> set[str]:
    """All options of all commands that pages may speak of."""
    found = {"--help"} | _list_of_scripts()
    for command in _walk(_get_app()):
        found |= {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for name in ("scheduler", "worker"):
        found |= {option for parameter in _get_dask(name).params for option in parameter.opts}
    return found


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


def _find_commands(group: Any, words: list[str]) -> Iterator[tuple[Any, list[str]]]:
    """The commands that words name, several where it says `hits|katz`, with the words behind."""
    inner = getattr(group, "commands", None)
    if inner is None or not words or words[0].startswith("-") or words[0] == "COMMAND":
        yield group, words
        return
    for name in words[0].split("|"):
        if name not in inner:
            raise UsageError(
                f"there is no command {group.name or 'mgspmv'} {name}; there are {', '.join(sorted(inner))}"
            )
        yield from _find_commands(inner[name], words[1:])


def _parse_words(words: list[str]) -> None:
    if not words:
        raise UsageError("mgspmv alone does nothing")
    [(command, rest)] = _find_commands(_get_app(), words)
    try:
        command.make_context(command.name, list(rest))
    except Exception as error:
        raise UsageError(f"mgspmv {shlex.join(words)}: {getattr(error, 'message', '') or error}") from error


def _get_dask(name: str) -> Any:
    return importlib.import_module(f"distributed.cli.dask_{name}").main


def _check_dask(words: list[str]) -> None:
    if words[0] == "mgspmv":
        return _parse_words(words[1:])
    if words[0] == "cuda":
        words, name = words[1:], "cuda worker"
        if importlib.util.find_spec("dask_cuda") is None:
            return None
        command = importlib.import_module("dask_cuda.cli").worker
    elif words[0] in ("scheduler", "worker"):
        name, command = words[0], _get_dask(words[0])
    else:
        raise UsageError(f"dask {words[0]} is none of mgspmv, scheduler, worker and cuda worker")
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for option in _OPTION.findall(" ".join(words)):
        if option not in known:
            raise UsageError(f"dask {name} has no {option}")
    return None


def _check_make(words: list[str]) -> None:
    if shutil.which("make") is None:
        return
    done = subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise UsageError(done.stderr.strip())


def _check_script(words: list[str]) -> None:
    name = words[1] if words[0] == "-m" else words[0]
    script = ROOT / f"{name.replace('.', '/')}.py" if words[0] == "-m" else ROOT / name
    if not script.is_file():
        raise UsageError(f"there is no {name}")
    for option in _OPTION.findall(" ".join(words[2 if words[0] == "-m" else 1 :])):
        if option not in _list_of_scripts(script):
            raise UsageError(f"{name} has no {option}")


def _list_of_scripts(*scripts: Path) -> set[str]:
    """Options of programs among the tests, by default of all, and those that all share."""
    folders = [ROOT / "benchmarks", ROOT / "tests" / "support" / "chaos"]
    every = [path for folder in folders for path in folder.glob("*.py")]
    files = [*scripts, folders[0] / "program.py"] if scripts else every
    return {option for file in files for option in re.findall(r'add_argument\(\s*"(--[\w-]+)"', file.read_text())}


def _check_extras(words: list[str]) -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extras in re.findall(r"(?:mgspmv|\.)\[([\w,]+)\]", " ".join(words)):
        for extra in extras.split(","):
            if extra not in known:
                raise UsageError(f"mgspmv has no extra {extra}; there are {', '.join(sorted(known))}")


def _check_marks(words: list[str]) -> None:
    marks = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["markers"]
    if "-m" in words and words[words.index("-m") + 1] not in {mark.partition(":")[0] for mark in marks}:
        raise UsageError(f"tests have no mark {words[words.index('-m') + 1]}")
    for path in (word for word in words if word.startswith("tests")):
        if not (ROOT / path).exists():
            raise UsageError(f"there is no {path}")


def _check_job(words: list[str]) -> None:
    """The script, and the command of ours that it runs."""
    [at] = [k for k, word in enumerate(words) if word.startswith("deploy/")]
    if not (ROOT / words[at]).is_file():
        raise UsageError(f"there is no {words[at]}")
    handed = [word.partition("MGSPMV_COMMAND=")[2].split() for word in words if "MGSPMV_COMMAND=" in word]
    _parse_words(handed[0] if handed else words[at + 1 :])


def _check_docker(words: list[str]) -> None:
    """Files, and the command of ours that is run inside."""
    for option, path in pairwise(words):
        if option == "--file" and not (ROOT / path).is_file():
            raise UsageError(f"there is no {path}")
    if words[0] == "exec":
        _parse_words(words[words.index("mgspmv") + 2 :])
    if "pipeline" in words[:-1]:
        _parse_words(words[words.index("pipeline") + 1 :])


def _check_kubectl(words: list[str]) -> None:
    """Folders, but for those that readers make, whose names begin with `mine`."""
    for option, path in pairwise(words):
        if option == "-k" and not (ROOT / path).is_dir() and not Path(path).name.startswith("mine"):
            raise UsageError(f"there is no {path}")


# --- names of Python -------------------------------------------------------------------------------------------------


def check_names(text: str) -> None:
    """Check every `mg.name`, with the keywords of its calls, `A.name` and the like, and `mgspmv.module.name`.

    Raises
    ------
    UsageError : there is none
    """
    for call in _find_calls(text):
        _check_call(call)
    for owner, name in re.findall(r"(?<![\w.\"'/-])(mg|A|D|s|batch|Solution)\.([a-z_]\w*)", text):
        if not _has(_get_owner(owner), name):
            raise UsageError(f"{owner} has no {name}")
    for dotted in re.findall(r"(?<![\w./@])mgspmv(?:\.\w+)+", text):
        _find_dotted(dotted)


def _get_owner(name: str) -> Any:
    owners = {
        "mg": mgspmv,
        "A": mgspmv.Matrix,
        "D": mgspmv.DistributedMatrix,
        "s": mgspmv.Solution,
        "Solution": mgspmv.Solution,
        "batch": mgspmv.BatchSolution,
    }
    return owners[name]


def _has(owner: Any, name: str) -> bool:
    if hasattr(owner, name) or name in getattr(owner, "__annotations__", ()):
        return True
    is_made_by_hand = isinstance(owner, type) and not is_dataclass(owner)
    return is_made_by_hand and re.search(rf"self\.{name}\b.* = ", getsource(owner.__init__)) is not None


def _find_dotted(dotted: str) -> None:
    names = dotted.split(".")
    for count in range(len(names), 0, -1):
        try:
            found = importlib.import_module(".".join(names[:count]))
        except ModuleNotFoundError:
            continue
        for name in names[count:]:
            if not _has(found, name):
                raise UsageError(f"there is no {dotted}")
            found = getattr(found, name, None)
        return


def _find_calls(text: str) -> Iterator[ast.Call]:
    """Calls of `mg.name(...)` in running text, which may leave out values, `name=`, and the last arguments, `...`."""
    for match in re.finditer(r"(?<![\w.])(mg|A|D)\.\w+\(", text):
        depth, end = 1, match.end()
        while depth and end < len(text):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        written = re.sub(r",\s*\.\.\.\s*\)$", ")", text[match.start() : end])
        written = re.sub(r"=(?=[,)])", "=None", written)
        try:
            call = ast.parse(written, mode="eval").body
        except SyntaxError as error:
            raise UsageError(f"{written} is no Python: {error}") from error
        if isinstance(call, ast.Call):
            yield call


def _check_call(call: ast.Call) -> None:
    function = call.func
    assert isinstance(function, ast.Attribute)
    assert isinstance(function.value, ast.Name)
    owner = _get_owner(function.value.id)
    if not _has(owner, function.attr):
        raise UsageError(f"{function.value.id} has no {function.attr}")
    function_itself = getattr(owner, function.attr)
    known = _list_arguments(function_itself)
    for keyword in call.keywords:
        if keyword.arg is not None and keyword.arg not in known:
            raise UsageError(f"{function.value.id}.{function.attr} has no argument {keyword.arg}")


def _list_arguments(function: Any) -> set[str]:
    """Names of all arguments, and of those that go by `**`."""
    known = set()
    for parameter in signature(function).parameters.values():
        if parameter.kind is not Parameter.VAR_KEYWORD:
            known.add(parameter.name)
        elif parameter.name == "running":
            known |= set(get_annotations(Running))
        elif parameter.name == "edge_list_options":
            known |= {*EDGE_LIST_OPTIONS, *PARQUET_OPTIONS, *GROUP_OPTIONS}
        else:
            known |= {name for make in GENERATORS.values() for name in signature(make).parameters}
    return known
