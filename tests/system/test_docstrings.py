"""Docstrings: first lines are imperatives for functions and noun phrases for classes and properties; those of public
names have examples and types."""

from __future__ import annotations

import ast
import doctest
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mgspmv

QUESTIONS = re.compile(r"(What|Who|Whom|Whose|Whether|How|That|Those|These|Which|Where|When|Why|As of)\b")
NOUNS = re.compile(r"(The|A|An|One|Each|All|Some|Its|Every|Both|No)\b")
"""They begin noun phrases, which say nothing of what a function does."""
PACKAGE = Path(mgspmv.__file__).parent
WITHOUT_EXAMPLES = {"mgspmv.api.powers.Running", "mgspmv.model.Recovery", "mgspmv.pipeline.RunInterrupted"}
"""Keywords of calls, and objects of failures."""
INTERNAL = re.compile(r"bind\w*|block|distribute_as_placed|format|from_json|multiply|read_out_weight|take_\w+")
"""Methods of public classes for other modules, which the reference does not list."""


def list_docstrings() -> Iterator[tuple[str, bool, str]]:
    """Yield where each docstring is, whether it is a function's, and its first line."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
                continue
            if text := ast.get_docstring(node):
                decorators = [ast.unparse(decorator) for decorator in getattr(node, "decorator_list", [])]
                is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                is_call = is_function and not any("property" in each for each in decorators)
                yield f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 1)}", is_call, text.splitlines()[0]


def list_public() -> Iterator[tuple[str, Any]]:
    """Yield the classes and functions that the API reference lists, and methods with arguments, without wrappers."""
    page = (PACKAGE.parent / "docs" / "reference" / "api.md").read_text()
    names = {f"mgspmv.{name}" for name in mgspmv.__all__} | set(re.findall(r"^::: (\S+)$", page, re.MULTILINE))
    for name in sorted(names - WITHOUT_EXAMPLES):
        found = inspect.unwrap(pkgutil.resolve_name(name))
        if inspect.isfunction(found) or inspect.isclass(found):
            yield name, found
        if not inspect.isclass(found):
            continue
        bases = [base for base in found.__mro__ if base.__module__.startswith("mgspmv")]
        own = {key: value for base in reversed(bases) for key, value in vars(base).items()}
        for key, value in own.items():
            if inspect.isfunction(value) and not key.startswith("_") and not INTERNAL.fullmatch(key):
                method = inspect.unwrap(value)
                if len(inspect.signature(method).parameters) > 1:
                    yield f"{name}.{key}", method


PUBLIC = [*list_public()]
ALL_PUBLIC = pytest.mark.parametrize("found", [found for _, found in PUBLIC], ids=[name for name, _ in PUBLIC])


@ALL_PUBLIC
def test_public_names_have_an_example_that_ends_in_output(found):
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(found) or "")
    assert examples
    assert examples[-1].want
    assert "\nExamples\n--------\n>>> " in inspect.getdoc(found)


@pytest.mark.parametrize("found", [found for _, found in PUBLIC if inspect.isfunction(found)])
def test_parameters_of_public_functions_have_types(found):
    _, _, rest = inspect.getdoc(found).partition("\nParameters\n----------\n")
    section = re.split(r"\n\n\w+\n---", rest)[0]
    heads = [line for line in section.splitlines() if line and not line.startswith(" ")]
    assert all(re.search(rf"^{re.escape(head)}\n    \S", section, re.MULTILINE) for head in heads)
    named = {name: kind for names, _, kind in (head.partition(" : ") for head in heads) for name in names.split(", ")}
    parameters = inspect.signature(found).parameters
    if found.__name__ in mgspmv.__all__:
        assert parameters.keys() - {"running"} <= named.keys()
    for name in named.keys() & parameters.keys():
        default = parameters[name].default
        if named[name] and default is not inspect.Parameter.empty:
            assert named[name].endswith(", optional") or named[name].endswith(f", default {_show(default)}"), name


def _show(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def test_docstrings_begin_with_imperatives_or_nouns():
    found = list(list_docstrings())
    assert len(found) > 1000
    assert not [f"{where}: {line}" for where, _, line in found if QUESTIONS.match(line)]
    assert not [f"{where}: {line}" for where, is_call, line in found if is_call and NOUNS.match(line)]
