"""What messages in the package's source may say: arguments, as `ids="string"`, and no options of commands."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import mgspmv
from mgspmv.ingest.open import EDGE_LIST_OPTIONS

PACKAGE = Path(mgspmv.__file__).parent

COMMANDS_ONLY = {
    "cli": "commands",
    "doctor": "advises on commands to start",
    "launching": "is called by `mgspmv cluster` alone",
}
"""Folders whose messages are of commands, and why."""

KEYS = {"pipeline": 'keys of a file, as `kind = "graph"`'}
"""Folders whose messages name something else than arguments."""

OPTION = re.compile(r"(?<![\w-])--[a-z]")
OTHER_PROGRAM = re.compile(r"`(?:dask|ssh|nvidia-smi)\b[^`]*`")
NOUNS = {"A", "x", "y", "ids", "numbers", "shape"}
"""Arguments whose names are what messages call the thing itself."""
ADVICE = r"\b(?:pass|leave|leave out|raise|without(?= client))"


def read_literals(source: str) -> Iterator[tuple[int, str]]:
    """Strings with blanks in them, but docstrings; of f-strings the fields are `{}`."""
    tree = ast.parse(source)
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inner |= {id(part) for whole in ast.walk(tree) if isinstance(whole, ast.JoinedStr) for part in whole.values}
    for node in ast.walk(tree):
        if id(node) in inner:
            continue
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if " " in text:
            yield node.lineno, text


@cache
def read_messages() -> list[tuple[str, str]]:
    """Folder in the package, and place and text."""
    files = [(path.relative_to(PACKAGE), path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))]
    return [(at.parts[0], f"{at}:{number}: {text}") for at, source in files for number, text in read_literals(source)]


def list_arguments() -> set[str]:
    """Those of public functions and methods."""
    public = [getattr(mgspmv, name) for name in mgspmv.__all__]
    kinds = filter(inspect.isclass, public)
    methods = [each for kind in kinds for name, each in vars(kind).items() if not re.match("_[a-z]", name)]
    functions = filter(inspect.isfunction, [*public, *methods])
    return {*EDGE_LIST_OPTIONS, *(name for each in functions for name in inspect.signature(each).parameters)} - NOUNS


def find_options(message: str) -> list[str]:
    return OPTION.findall(OTHER_PROGRAM.sub("", message))


def find_bare_arguments(message: str, arguments: set[str]) -> list[str]:
    """Arguments that are advised without the sign that tells them from other words."""
    return re.findall(rf"{ADVICE} ({'|'.join(sorted(arguments))})\b(?![=(\w-])", message)


def test_no_message_names_options():
    assert [
        message for folder, message in read_messages() if folder not in COMMANDS_ONLY and find_options(message)
    ] == []


def test_advised_arguments_are_written_as_arguments():
    arguments = list_arguments()
    assert {"n_vertices", "weights", "client", "nstart", "personalization", "delimiter"} <= arguments
    own = [message for folder, message in read_messages() if folder not in COMMANDS_ONLY | KEYS]
    assert [message for message in own if find_bare_arguments(message, arguments)] == []


@pytest.mark.parametrize(
    ("source", "n_options", "n_bare"),
    [
        ('raise E("pass vertices (--vertices)")', 1, 1),
        ('raise E(f"{name} is wrong; leave {name} or n_cols out, see --help")', 1, 0),
        ('raise E("wrong; leave client out")', 0, 1),
        ('raise E("wrong; pass client=, or leave out n_cols=")', 0, 0),
        ('raise E("give the file of `dask scheduler --scheduler-file`")', 0, 0),
        ('def f():\n    """See --help to pass client."""', 0, 0),
        ('run(["--no-dashboard"])', 0, 0),
    ],
)
def test_what_is_found(source, n_options, n_bare):
    texts = [text for _, text in read_literals(source)]
    assert sum(len(find_options(text)) for text in texts) == n_options
    assert sum(len(find_bare_arguments(text, {"client", "n_cols", "vertices"})) for text in texts) == n_bare
