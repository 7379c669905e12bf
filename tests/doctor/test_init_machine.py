"""Checks of packages, limits, folders and stores."""

from __future__ import annotations

import json
import resource
from collections import namedtuple
from dataclasses import asdict
from pathlib import Path

import pytest

import mgspmv as mg
from mgspmv import doctor
from mgspmv.doctor import check_folders, check_limits, check_packages, check_store

Usage = namedtuple("Usage", "total used free")


def test_the_packages_of_this_environment_belong_together():
    found = check_packages()
    assert found.status == "ok", found
    assert found.values["versions"]["mgspmv"] == mg.__version__
    json.dumps(asdict(found))


def test_packages_that_overwrite_each_other(monkeypatch):
    monkeypatch.setattr(doctor, "_list_installed", lambda: {"numpy", "cupy-cuda12x", "cupy"})
    found = check_packages()
    assert (found.status, found.found) == ("wrong", "cupy-cuda12x and cupy are installed together")


def find_limits() -> dict[str, str]:
    """The status of each finding, by a word of it."""
    found = list(check_limits())
    json.dumps([asdict(finding) for finding in found])
    return {word: f.status for f in found for word in ("memory", "files", "processes", "/dev/shm") if word in f.found}


def set_limits(monkeypatch, files: int, processes: int, memory: int = 1 << 40, shared: int = 1 << 40):
    limits = {resource.RLIMIT_NOFILE: files, resource.RLIMIT_NPROC: processes}
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limits[which], 1 << 20))
    monkeypatch.setattr(doctor, "free_memory", lambda: memory)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: Usage(0, 0, shared))


def test_limits(monkeypatch):
    monkeypatch.setattr(doctor, "list_groups", lambda controller: [])
    set_limits(monkeypatch, 1 << 16, resource.RLIM_INFINITY)
    assert set(find_limits().values()) == {"ok"}
    set_limits(monkeypatch, 1024, 100, 1 << 30, 64 << 20)
    assert find_limits() == {"memory": "warning", "files": "warning", "processes": "warning", "/dev/shm": "warning"}
    set_limits(monkeypatch, 64, 1 << 16)
    assert find_limits()["files"] == "wrong"


def test_the_control_group_limits_processes(monkeypatch, tmp_path):
    set_limits(monkeypatch, 1 << 16, 1 << 16)
    (tmp_path / "pids.max").write_text("10\n")
    monkeypatch.setattr(doctor, "list_groups", lambda controller: [tmp_path] if controller == "pids" else [])
    assert find_limits()["processes"] == "warning"


def find_folders() -> dict[str, str]:
    return {finding.values["folder"]: finding.status for finding in check_folders()}


def test_folders(monkeypatch, tmp_path):
    cache, scratch = tmp_path / "not" / "yet", tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("MGSPMV_CACHE", str(cache))
    monkeypatch.setattr(doctor.tempfile, "gettempdir", lambda: str(scratch))
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: Usage(0, 0, 1 << 40))
    assert find_folders().items() >= {str(scratch): "ok", str(cache): "ok"}.items()
    assert not cache.exists()
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: Usage(0, 0, 1 << 20))
    assert find_folders()[str(scratch)] == "warning"


def test_folders_that_cannot_be_written(monkeypatch, tmp_path):
    (file := tmp_path / "file").touch()
    monkeypatch.setenv("MGSPMV_CACHE", str(file))
    monkeypatch.setattr(doctor.tempfile, "gettempdir", lambda: str(file))
    scratch, cache, *_ = check_folders()
    assert (scratch.status, cache.status) == ("wrong", "warning")
    assert "TMPDIR" in scratch.remedy
    assert "MGSPMV_CACHE" in cache.remedy


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_store_is_read(scheme, tmp_path):
    mg.generate("rmat", tmp_path / "g.zarr", scale=6, seed=1)
    found = check_store(f"{scheme}{tmp_path}/g.zarr")
    assert found.status == "ok", found
    assert found.values["bytes_per_s"] > 0
    assert check_store(f"{scheme}{tmp_path}/g.zarr/zarr.json").values["files"] == 1


@pytest.mark.parametrize("url", ["{}/new.zarr", "memory://doctor/new.zarr"])
def test_a_store_that_does_not_exist(url, tmp_path):
    found = check_store(url.format(tmp_path))
    assert (found.status, found.found) == ("wrong", f"{url.format(tmp_path)} does not exist")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_used(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    assert check_store(str(tmp_path / "empty")).status == "wrong"
    assert check_store(str(tmp_path / "no" / "x.zarr")).found.endswith("x.zarr does not exist")
    unknown = check_store("nonsense://x")
    assert (unknown.status, unknown.values["store"]) == ("wrong", "nonsense://x")
    Path(tmp_path / "file").touch()
    below = check_store(str(tmp_path / "file" / "x.zarr"))
    assert below.status == "wrong"
