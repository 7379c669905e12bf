"""Machine code in files: the same results as by Python, without Numba once it is there."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import mgspmv
from mgspmv.kernels import machine_code
from mgspmv.kernels.later import compile_later
from mgspmv.kernels.machine_code import find_code, find_types
from mgspmv.kernels.modules import watch_compiling

ROOT = Path(mgspmv.__file__).parents[1]
FACTOR = 3


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


def divide(a, b):
    return a // b, a / b


def allocate(n):
    return len(np.empty(n))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("dtype", [np.int32, np.uint64, np.float32, np.float64, bool])
@pytest.mark.parametrize("weights", [None, np.array([0.5, 2.0, 3.0])])
@pytest.mark.parametrize("share", [0.25, np.float32(0.5), 2, np.uint8(3)])
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


def test_numbers_of_several_types_are_left_to_numba():
    assert find_code(divide, find_types((7, 2))) is None
    assert compile_later()(divide)(7, 2) == (3, 3.5)


def test_what_needs_the_runtime_of_numba_is_left_to_numba(folder):
    assert find_code(allocate, find_types((3,))) is None
    assert compile_later()(allocate)(3) == 3
    assert not list(folder.rglob("*.o"))


@pytest.mark.parametrize(
    "arg", [np.arange(6)[::2], np.arange(3, dtype=">i4"), np.array(3), "text", 1 << 63, np.array(["a"]), (1, 2), 1j]
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
    monkeypatch.setattr(machine_code, "find_compiled", lambda folder: None)
    machine_code.warn_once.cache_clear()
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
        "import sys, numpy as np; from mgspmv.kernels.later import compile_later\n"
        "import counting\n"
        "print(counting.count(np.arange(9)), 'numba' in sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    for term, expected in ((1, ["9 True", "9 False"]), (2, ["18 True", "18 False"])):
        (folder / "counting.py").write_text(
            "from mgspmv.kernels.later import compile_later\n\n@compile_later()\ndef count(keys):\n"
            f"    n = 0\n    for key in keys:\n        n += {term}\n    return n\n"
        )
        for said in expected:
            run = subprocess.run(
                [sys.executable, "-B", "-c", program], env=environment, check=True, capture_output=True, text=True
            )
            assert run.stdout.strip() == said
