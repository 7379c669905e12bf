"""The user's cache."""

from __future__ import annotations

import pytest

from mgspmv.kernels.cache import find_folder, replace_file


def test_where_the_folder_is(monkeypatch, tmp_path):
    monkeypatch.setenv("MGSPMV_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_folder() == tmp_path / "own"
    monkeypatch.delenv("MGSPMV_CACHE")
    assert find_folder() == tmp_path / "xdg" / "mgspmv"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert find_folder() == tmp_path / ".cache" / "mgspmv"


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(monkeypatch, tmp_path):
    path = tmp_path / "a" / "spin.cubin"
    replace_file(path, b"one")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("mgspmv.kernels.cache.os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        replace_file(path, b"two")
    assert path.read_bytes() == b"one"
    assert list(path.parent.iterdir()) == [path]
