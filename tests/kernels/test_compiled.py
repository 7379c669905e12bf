"""Compiled functions: the same results as by Python, and files of code that belong to one state of the sources."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import mgspmv
from mgspmv.kernels import compiled
from mgspmv.kernels.compiled import compile_later, find_code, find_types
from mgspmv.kernels.modules import watch_compiling
from tests.support.pairwise import cover_pairs

ROOT = Path(mgspmv.__file__).parents[1]
FACTOR = 3
COMPILING = {"njit", "overload", "compile_kernel", "compile_later"}
"""Decorators of functions that Numba compiles, and of what overloads others."""


def describe(matrix, weights, is_doubled, start, share, out):
    total = 0
    for i in range(matrix.shape[0]):
        for j in range(matrix.shape[1]):
            weight = 1.0 if weights is None else weights[j]
            out[i] += matrix[i, j] * weight * share * (2 if is_doubled else 1)
            total += FACTOR
    return np.int64(start + total), matrix.shape[1]


def find_first(keys, key):
    for k in range(len(keys)):
        if keys[k] == key:
            return k
    return -1


def add_one(keys):
    for k in range(len(keys)):
        keys[k] += 1


def find_highest(numbers):
    highest = -np.inf
    for number in numbers:
        highest = max(highest, number)
    return highest


def add_sizes(keys, sizes):
    total = 0
    for size in sizes:
        total += size
    for key in keys:
        total += key
    return total


def divide(a, b):
    return a // b, a / b


def allocate(n):
    return len(np.empty(n))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    return tmp_path


@cover_pairs(
    dtype=[np.int32, np.uint64, np.float32, np.float64, bool],
    weights=[None, np.array([0.5, 2.0, 3.0])],
    share=[0.25, np.float32(0.5), 2, np.uint8(3)],
)
def test_results_are_those_of_python(dtype, weights, share):
    matrix = (np.arange(6).reshape(2, 3) % 4).astype(dtype)
    expected, found = np.zeros(2), np.zeros(2)
    args = matrix, weights, True, np.int64(-7), share
    code = find_code(describe, find_types((*args, found)))
    assert code is not None
    assert code(*args, found) == describe(*args, expected) == (11, 3)
    np.testing.assert_array_equal(found, expected)


def test_no_result_and_one():
    keys = np.arange(5)
    assert find_code(add_one, find_types((keys,)))(keys) is None
    assert find_code(find_first, find_types((keys, 3)))(keys, 3) == 2
    assert find_code(find_first, find_types((keys, 9)))(keys, 9) == -1
    assert find_code(find_first, find_types((keys[:0], 9)))(keys[:0], 9) == -1


@pytest.mark.parametrize("n", [0, 3])
def test_a_float(n):
    numbers = np.array([0.1, 1e300, -3.0])[:n]
    assert find_code(find_highest, find_types((numbers,)))(numbers) == find_highest(numbers)


def test_tuples_are_constants_of_the_code_which_is_compiled_once(folder):
    heard = []
    for sizes in ((0,), (2, 5)):
        heard.clear()
        with watch_compiling(lambda: heard.append(1)):
            code = find_code(add_sizes, find_types((np.arange(3), sizes)))
        assert code is not None
        assert code(np.arange(3), sizes) == 3 + sum(sizes)
    assert len(list(folder.rglob("*.o"))) == 2
    assert len(heard) == 1


def test_numbers_of_several_types_are_left_to_numba():
    assert find_code(divide, find_types((7, 2))) is None
    assert compile_later()(divide)(7, 2) == (3, 3.5)


def test_what_needs_the_runtime_of_numba_is_left_to_numba(folder):
    assert find_code(allocate, find_types((3,))) is None
    assert compile_later()(allocate)(3) == 3
    assert not list(folder.rglob("*.o"))


@pytest.mark.parametrize(
    "arg",
    [np.arange(6)[::2], np.arange(3, dtype=">i4"), np.array(3), "text", 1 << 63, np.array(["a"]), (1, 2.0), (), 1j],
)
def test_arguments_that_are_left_to_numba(arg):
    assert find_types((1, arg)) is None


def test_strided_keys_are_counted_too():
    later = compile_later()(find_first)
    assert later(np.arange(10)[::2], 4) == 2
    assert later(np.arange(10), 4) == 4


def test_code_is_loaded_in_place_of_compiled_and_damaged_files_are_replaced(folder):
    keys, heard = np.arange(5), []
    types = find_types((keys, 3))
    with watch_compiling(lambda: heard.append(1)):
        find_code(find_first, types)
        n = len(heard)
        assert n
        assert find_code(find_first, types)(keys, 3) == 3
        assert len(heard) == n
        [path] = folder.rglob("*.o")
        path.write_bytes(b"damaged")
        assert find_code(find_first, types)(keys, 3) == 3
        assert len(heard) > n
    assert path.stat().st_size > 100


def test_without_a_folder_code_is_compiled_after_a_warning(monkeypatch):
    keys = np.arange(5)
    monkeypatch.setattr(compiled, "find_compiled", lambda folder: None)
    compiled.warn_once.cache_clear()
    with pytest.warns(UserWarning, match="every process will compile them"):
        assert find_code(find_first, find_types((keys, 3)))(keys, 3) == 3


def test_other_settings_and_types_have_other_files(folder, monkeypatch):
    keys = np.arange(5)
    find_code(find_first, find_types((keys, 3)))
    find_code(find_first, find_types((keys.astype(np.int32), 3)))
    monkeypatch.setenv("NUMBA_OPT", "2")
    find_code(find_first, find_types((keys, 3)))
    assert len(list(folder.rglob("*.o"))) == 3


def test_threads_share_the_code():
    later, keys = compile_later()(find_first), np.arange(1000)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda key: later(keys, key), range(1000))) == list(range(1000))


@pytest.mark.slow
def test_the_next_process_does_not_load_numba(folder):
    program = (
        "import sys, numpy as np; from mgspmv.kernels.compiled import compile_later\n"
        "import counting\n"
        "print(counting.count(np.arange(9)), 'numba' in sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    for term, expected in ((1, ["9 True", "9 False"]), (2, ["18 True", "18 False"])):
        (folder / "counting.py").write_text(
            "from mgspmv.kernels.compiled import compile_later\n\n@compile_later()\ndef count(keys):\n"
            f"    n = 0\n    for key in keys:\n        n += {term}\n    return n\n"
        )
        for said in expected:
            run = subprocess.run(
                [sys.executable, "-B", "-c", program], env=environment, check=True, capture_output=True, text=True
            )
            assert run.stdout.strip() == said


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


def test_a_folder_that_cannot_be_written_is_not_chosen(tmp_path):
    assert compiled.find_compiled(str(tmp_path / "new")).parent == tmp_path / "new"
    assert compiled.find_compiled("/proc/none") == compiled.find_compiled("")


def test_code_is_made_anew_when_a_file_is_edited_that_functions_of_others_use(folder, monkeypatch):
    source = folder / "source.py"
    monkeypatch.setattr(compiled, "SOURCES", (source,))
    places = []
    for text in ("FACTOR = 3", "FACTOR = 3", "FACTOR = 4"):
        source.write_text(text)
        compiled.digest_files.cache_clear()
        compiled.find_compiled.cache_clear()
        places.append(compiled.find_compiled(str(folder)))
    compiled.digest_files.cache_clear()
    compiled.find_compiled.cache_clear()
    assert places[0] == places[1] != places[2]
