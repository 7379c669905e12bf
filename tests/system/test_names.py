"""Names: the field's words, one meaning each, and none of those that were replaced (renames.tsv)."""

from __future__ import annotations

import ast
import csv
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import typer

import mgspmv
from mgspmv.cli import app
from tests.support.schema import make_schema

PACKAGE = Path(mgspmv.__file__).parent
TABLE = Path(__file__).with_name("renames.tsv")
VERBS = re.compile(r"_*(say|tell|blame|refuse|explain|judge)(_|$)")
"""Verbs with which no function begins; format, notify, ..._error, raise, describe and check say more."""
LONGEST = 500
"""Most lines of a file."""


def read_renames() -> list[tuple[str, str, str]]:
    """Return the rows of the table: kind, old name, new name."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = [(row["kind"], row["old"], row["new"]) for row in csv.DictReader(file, delimiter="\t")]
    assert len(rows) > 100
    return rows


def list_definitions() -> Iterator[tuple[str, str, str]]:
    """Yield the kind, the name and the module of all modules, classes, functions and arguments of the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
        for part in module.split("."):
            yield "module", part, module
        yield "module", module, module
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                yield "class", node.name, module
                yield "class", f"{module.partition('.')[0]}.{node.name}", module
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield "function", node.name, module
                yield "function", f"{module.partition('.')[0]}.{node.name}", module
                for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                    yield "argument", argument.arg, module


def list_options() -> Iterator[str]:
    """Yield the options of all commands, without hyphens in front."""
    commands = [typer.main.get_command(app)]
    for command in commands:
        commands.extend(getattr(command, "commands", {}).values())
        for parameter in command.params:
            yield from (name.lstrip("-") for name in (*parameter.opts, *parameter.secondary_opts))


def list_keys(schema: object) -> Iterator[str]:
    """Yield the keys of all tables of a definition of pipelines."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        for own in schema.values():
            yield from list_keys(own)
    elif isinstance(schema, list):
        for own in schema:
            yield from list_keys(own)


def test_replaced_names_do_not_come_back():
    defined = defaultdict(set)
    for kind, name, module in list_definitions():
        defined[kind, name].add(module)
    for name in list_options():
        defined["option", name].add("cli")
    for name in list_keys(make_schema()):
        defined["key", name].add("pipeline")
    for name in (("option", "executor"), ("key", "executor"), ("argument", "executor"), ("class", "WorkerRun")):
        assert defined[name], name
    assert not {(kind, old): sorted(where) for kind, old, _ in read_renames() if (where := defined[kind, old])}


def test_functions_begin_with_verbs_that_say_what_they_do():
    found = list(list_definitions())
    assert not [(module, name) for kind, name, module in found if kind == "function" and VERBS.match(name)]


def test_a_class_name_has_one_meaning():
    """Private classes count, and aliases of types with the name of a class."""
    meanings = defaultdict(set)
    for kind, name, module in list_definitions():
        if kind == "class" and "." not in name:
            meanings[name.lstrip("_")].add(f"{module}.{name}")
    classes = set(meanings)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [target.id for target in getattr(node, "targets", ()) if isinstance(target, ast.Name)]
            for name in classes.intersection(name.lstrip("_") for name in names):
                meanings[name].add(f"{path.name}: {name}")
    assert len(classes) > 200
    assert not {name: where for name, where in meanings.items() if len(where) > 1}


def test_a_file_name_is_in_at_most_two_folders():
    folders = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        folders[path.name].add(path.parent.name)
    assert not {name: where for name, where in folders.items() if len(where) > 2 and name != "__init__.py"}


def count_lines(source):
    """Lines without the examples of docstrings, which are the last section."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    texts = (ast.get_docstring(node) for node in ast.walk(ast.parse(source)) if isinstance(node, documented))
    return source.count("\n") - sum(f"\n{text}".partition("\n\nExamples\n---")[2].count("\n") for text in texts if text)


def test_files_are_short():
    lines = {path: count_lines(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}
    assert not {path: n for path, n in lines.items() if n > LONGEST}


def test_most_functions_are_short():
    lengths = sorted(
        node.end_lineno - node.lineno + 1
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    assert lengths[len(lengths) * 9 // 10] <= 25
