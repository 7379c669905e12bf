"""Compiled functions that are kept are compiled anew when another file is edited that they take something from."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from numba.core.dispatcher import Dispatcher

import mgspmv
from mgspmv.kernels.cache import warn_once
from mgspmv.kernels.compiled import compile_with

ROOT = Path(mgspmv.__file__).parents[1]
COMPILING = {"njit", "overload", "_compile"}
"""Decorators of functions that Numba compiles, and of what overloads others."""
INNER = "from numba import njit\n\n@njit\ndef inner(x):\n    return x + {}\n"
OUTER = """
from mgspmv.kernels.compiled import compile_with
from constants import TERM
from inner import inner
from numba import njit

@{decorator}
def outer(x):
    return inner(x) + TERM

print(outer(0), sum(outer.stats.cache_hits.values()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("decorator", ["compile_with('inner', constants=(TERM,))", "njit(nogil=True, cache=True)"])
def test_an_edit_elsewhere_is_seen(decorator, tmp_path):
    """As by Numba alone it is not, which is what makes this needed."""
    (tmp_path / "outer.py").write_text(OUTER.format(decorator=decorator))
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}

    def run(added, term):
        (tmp_path / "inner.py").write_text(INNER.format(added))
        (tmp_path / "constants.py").write_text(f"TERM = {term}\n")
        command = [sys.executable, "-B", "-c", "import outer"]
        said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
        return [int(word) for word in said.split()]

    is_seen = decorator.startswith("compile_with")
    assert run(1, 10) == [11, 0]
    assert run(1, 10) == [11, 1]
    assert run(2, 10) == ([12, 0] if is_seen else [11, 1])
    assert run(2, 30) == ([32, 0] if is_seen else [11, 1])


def test_a_numba_that_keeps_nothing_there(monkeypatch):
    warn_once.cache_clear()
    monkeypatch.setattr(Dispatcher, "enable_caching", lambda self: setattr(self, "_cache", object()))
    with pytest.warns(UserWarning, match="keeps functions in another way; kernels are compiled in each process"):
        double = compile_with()(lambda x: 2 * x)
    monkeypatch.undo()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert double(4) == 8
    assert not hasattr(double._cache, "_cache_file")


def find_compiled(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            names = {own.id for each in node.decorator_list for own in ast.walk(each) if isinstance(own, ast.Name)}
            if names & COMPILING:
                yield node


def test_what_functions_take_from_other_files_is_named():
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in ROOT.glob("mgspmv/**/*.py")}
    compiled = {path: text for path, text in texts.items() if any(name in text for name in COMPILING)}
    assert len(compiled) > 20
    unnamed = {path: find_unnamed(ast.parse(text)) for path, text in compiled.items()}
    assert {path: names for path, names in unnamed.items() if names} == {}


def find_unnamed(tree):
    """Names that compiled functions take from other files, and that `compile_with` is not told of."""
    taken = {
        alias.asname or alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mgspmv")
        for alias in node.names
    }
    used = {
        name.id
        for function in find_compiled(tree)
        for statement in function.body
        for name in ast.walk(statement)
        if isinstance(name, ast.Name) and name.id in taken
    }
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "compile_with"]
    modules = {own.value for call in calls for own in call.args}
    constants = {own.id for call in calls for keyword in call.keywords for own in keyword.value.elts}
    return {name for name in used if taken[name] not in modules and name not in constants}
