"""Choices of kernels in the user's cache."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from mgspmv.kernels.cache import warn_once
from mgspmv.kernels.choices import Case, find_file, keep_choice, read_choice

CASE = Case("ab12", 0, 10, "float32", "NVIDIA H200")
TIMES = {"csr-vector": 2e-3, "dia": 1e-3, "cusparse": 3e-3}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """The folder of the cache, which is not there yet."""
    monkeypatch.setenv("MGSPMV_CACHE", str(tmp_path / "a" / "cache"))
    warn_once.cache_clear()
    return tmp_path / "a" / "cache"


def test_the_fastest_is_kept_and_read(cache):
    assert read_choice(CASE) is None
    assert keep_choice(CASE, TIMES) == "dia"
    assert read_choice(CASE) == "dia"
    [path] = cache.iterdir()
    [[key, kept]] = json.loads(path.read_text()).items()
    assert path.name == "choices.json"
    assert key.startswith("ab12; rows 0-10; float32; NVIDIA H200; mgspmv ")
    assert kept == {"kernel": "dia", "milliseconds": {"csr-vector": 2.0, "dia": 1.0, "cusparse": 3.0}}


@pytest.mark.parametrize(
    "change",
    [{"digest": "ab13"}, {"start": 1}, {"stop": 11}, {"dtype": "float64"}, {"device": "NVIDIA A100"}],
    ids=lambda change: next(iter(change)),
)
def test_a_choice_is_for_its_case_only(change):
    keep_choice(CASE, TIMES)
    assert read_choice(replace(CASE, **change)) is None


def test_a_choice_is_for_its_version_only(monkeypatch):
    keep_choice(CASE, TIMES)
    monkeypatch.setattr("mgspmv.kernels.choices.__version__", "99.0")
    assert read_choice(CASE) is None


def test_others_are_left_and_the_last_one_counts():
    other = replace(CASE, digest="cd34")
    keep_choice(CASE, TIMES)
    keep_choice(other, {"sell": 1.0})
    keep_choice(CASE, {"ell": 1.0, "dia": 2.0})
    assert (read_choice(CASE), read_choice(other)) == ("ell", "sell")


def test_where_the_file_is(monkeypatch, tmp_path, cache):
    assert find_file() == cache / "choices.json"
    monkeypatch.delenv("MGSPMV_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert find_file() == tmp_path / "xdg" / "mgspmv" / "choices.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_file() == tmp_path / ".cache" / "mgspmv" / "choices.json"


@pytest.mark.parametrize("damaged", [b"", b'{"a": ', b"[1, 2]", b"\xff\xfe\x00"])
def test_a_damaged_file_is_warned_about_once_and_replaced(cache, damaged):
    cache.mkdir(parents=True)
    find_file().write_bytes(damaged)
    with warnings.catch_warnings(record=True) as warned:
        assert read_choice(CASE) is None
        assert read_choice(CASE) is None
        assert keep_choice(CASE, TIMES) == "dia"
    [warning] = warned
    assert str(warning.message) == (
        f"the choices of kernels in {find_file()} cannot be read and are left out; the next choice that is kept "
        "replaces the file"
    )
    assert read_choice(CASE) == "dia"


@pytest.mark.parametrize("entry", ["dia", None, {}, {"kernel": 7}])
def test_an_entry_that_says_no_kernel_is_none(cache, entry):
    cache.mkdir(parents=True)
    find_file().write_text(json.dumps({CASE.key: entry}))
    assert read_choice(CASE) is None


def test_a_cache_that_cannot_be_written_is_warned_about_once(cache):
    cache.parent.mkdir()
    cache.write_text("a file where the folder should be")
    with warnings.catch_warnings(record=True) as warned:
        assert keep_choice(CASE, TIMES) == "dia"
        assert keep_choice(CASE, TIMES) == "dia"
    [said] = [str(w.message) for w in warned]
    assert said.startswith(f"the choice of a kernel cannot be kept in {find_file()} (")
    assert said.endswith("so kernels will be timed again; set $MGSPMV_CACHE to a folder that can be written")


def test_a_write_that_fails_leaves_what_was_there_and_nothing_else(cache, monkeypatch):
    keep_choice(CASE, TIMES)

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("mgspmv.kernels.cache.os.replace", fail)
    with pytest.warns(UserWarning, match="disk full"):
        keep_choice(CASE, {"ell": 1.0})
    assert read_choice(CASE) == "dia"
    assert [path.name for path in cache.iterdir()] == ["choices.json"]


def test_nothing_is_said_where_nothing_is_wrong():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        keep_choice(CASE, TIMES)
        read_choice(CASE)
