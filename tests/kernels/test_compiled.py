"""Compiled functions that are kept are compiled anew when another file is edited that they take something from."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mgspmv
from mgspmv.kernels import compiled

ROOT = Path(mgspmv.__file__).parents[1]
COMPILING = {"njit", "overload", "compile_kernel", "compile_later"}
"""Decorators of functions that Numba compiles, and of what overloads others."""
INNER = "from numba import njit\n\n@njit\ndef inner(x):\n    return x + {}\n"
OUTER = """
from pathlib import Path
from mgspmv.kernels import compiled
from mgspmv.kernels.compiled import compile_kernel
from constants import TERM
from inner import inner
from numba import njit

compiled.SOURCES = tuple(Path(__file__).with_name(name) for name in ("constants.py", "inner.py"))

@{decorator}
def outer(x):
    return inner(x) + TERM

print(outer(0), sum(outer.stats.cache_hits.values()))
"""

ADD = """
from mgspmv.kernels.compiled import compile_kernel
from mgspmv.kernels.modules import watch_compiling

@compile_kernel
def add(x):
    return x + {}

heard = []
with watch_compiling(lambda: heard.append(None)):
    print(add(1), len(heard), end=" ")
add(1.5)
print(sum(add.stats.cache_hits.values()), len(heard))
"""


@pytest.mark.slow
@pytest.mark.parametrize("decorator", ["compile_kernel", "njit(nogil=True, cache=True)"])
def test_an_edit_elsewhere_is_seen(decorator, tmp_path):
    """As by Numba alone it is not, which is what makes this needed."""
    (tmp_path / "outer.py").write_text(OUTER.format(decorator=decorator))
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}", "NUMBA_CACHE_DIR": str(tmp_path / "n")}

    def run(added, term):
        (tmp_path / "inner.py").write_text(INNER.format(added))
        (tmp_path / "constants.py").write_text(f"TERM = {term}\n")
        command = [sys.executable, "-B", "-c", "import outer"]
        said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
        return [int(word) for word in said.split()]

    is_seen = decorator == "compile_kernel"
    assert run(1, 10) == [11, 0]
    assert run(1, 10) == [11, 1]
    assert run(2, 10) == ([12, 0] if is_seen else [11, 1])
    assert run(2, 30) == ([32, 0] if is_seen else [11, 1])


@pytest.mark.slow
def test_a_file_written_again_is_not_compiled_again_but_an_edited_one(tmp_path):
    """As an upgrade writes all files; and what is compiled is heard, only while it is wanted."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}", "NUMBA_CACHE_DIR": str(tmp_path / "n")}
    for seconds, term, wanted in ((100, 1, "2 1 0 1"), (200, 1, "2 0 2 0"), (300, 3, "4 1 0 1")):
        (tmp_path / "add.py").write_text(ADD.format(term))
        os.utime(tmp_path / "add.py", (seconds, seconds))
        command = [sys.executable, "-B", "-c", "import add"]
        said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
        assert said.strip() == wanted


@pytest.mark.slow
def test_processes_at_once_keep_their_code_apart(tmp_path):
    """Both begin with an empty index: the second has not seen what the first saved."""
    (tmp_path / "twice.py").write_text(
        "from mgspmv.kernels.compiled import compile_kernel\n\n@compile_kernel\ndef twice(x):\n    return x + x\n"
    )
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}", "NUMBA_CACHE_DIR": str(tmp_path / "n")}
    for argument in ("1", "1.5"):
        command = [sys.executable, "-B", "-c", f"import twice; twice.twice({argument})"]
        subprocess.run(command, env=environment, check=True)
        [index] = (tmp_path / "n").rglob("*.nbi")
        index.unlink()
    assert len(list((tmp_path / "n").rglob("*.nbc"))) == 2


def find_compiled(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            names = {own.id for each in node.decorator_list for own in ast.walk(each) if isinstance(own, ast.Name)}
            if names & COMPILING:
                yield node


def test_files_that_functions_take_something_from_are_listed():
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in ROOT.glob("mgspmv/**/*.py")}
    compiling = {path: text for path, text in texts.items() if any(name in text for name in COMPILING)}
    assert len(compiling) > 10
    unlisted = {path: find_unlisted(ast.parse(text)) for path, text in compiling.items()}
    assert {path: names for path, names in unlisted.items() if names} == {}


def find_unlisted(tree):
    """Names that compiled functions take from files whose edits are not seen."""
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
    sources = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in compiled.SOURCES}
    listed = sources if taken.keys() & {"compile_kernel", "compile_later"} else set()
    return {name for name in used if taken[name] not in listed}


def test_without_a_writable_folder_functions_are_compiled_after_a_warning(monkeypatch):
    monkeypatch.setattr(compiled, "find_compiled", lambda folder: None)
    compiled.warn_once.cache_clear()
    with pytest.warns(UserWarning, match="cannot be kept, so every process will compile them; set .NUMBA_CACHE_DIR"):
        add = compiled.compile_kernel(lambda x: x + 1)
    assert add(1) == 2


def test_a_folder_that_cannot_be_written_is_not_chosen(tmp_path):
    assert compiled.find_compiled(str(tmp_path / "new")).parent == tmp_path / "new"
    assert compiled.find_compiled("/proc/none") == compiled.find_compiled("")


def test_numba_has_the_attributes_that_caches_are_kept_by():
    add = compiled.compile_kernel(lambda x: x + 1)
    assert {"_source_stamp", "_data_name_pattern"} <= vars(add._cache._cache_file).keys()
