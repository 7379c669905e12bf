"""The user's cache."""

from __future__ import annotations

from mgspmv.kernels.cache import find_folder


def test_where_the_folder_is(monkeypatch, tmp_path):
    monkeypatch.setenv("MGSPMV_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_folder() == tmp_path / "own"
    monkeypatch.delenv("MGSPMV_CACHE")
    assert find_folder() == tmp_path / "xdg" / "mgspmv"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert find_folder() == tmp_path / ".cache" / "mgspmv"
