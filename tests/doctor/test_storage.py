"""Checks of folders, files and object stores."""

from __future__ import annotations

import math
import os
import time
from types import SimpleNamespace

import pytest

from mgspmv.doctor import storage
from mgspmv.doctor.findings import run_check
from mgspmv.doctor.storage import check_scratch, check_store, find_file_system, make_store_checks, measure_scratch
from tests.support.buckets import serve_s3


@pytest.fixture(autouse=True)
def limit(monkeypatch):
    """`limit(NAME=value)` sets limits of the checks, which a busy machine keeps unless a test says otherwise."""

    def set_limits(**limits):
        for name, value in limits.items():
            monkeypatch.setattr(storage, name, value)

    set_limits(SCRATCH_BYTES=16 << 20, SLOW_BYTES_PER_S=0.0, SLOW_LATENCY_S=math.inf)
    return set_limits


# --- the scratch folder ----------------------------------------------------------------------------------------------


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """`scratch(free, system)`: the folder for temporary files has so many bytes free, on that file system."""
    monkeypatch.setattr(storage.tempfile, "gettempdir", lambda: str(tmp_path))

    def fill(free, system="ext4"):
        monkeypatch.setattr(storage.os, "statvfs", lambda _: SimpleNamespace(f_bavail=free, f_frsize=1))
        monkeypatch.setattr(storage, "find_file_system", lambda _: system)
        return tmp_path

    return fill


def test_scratch(scratch):
    folder = scratch(100 << 30)
    found = check_scratch()
    assert found.status == "ok"
    assert found.values["written_bytes_per_s"] > 0
    assert found.values["read_bytes_per_s"] > 0
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("free", "system", "status", "words"),
    [
        (1 << 20, "ext4", "wrong", "1.05 MB are free in "),
        (5 << 30, "ext4", "warning", "(ext4): 5.37 GB free, writes "),
        (100 << 30, "tmpfs", "warning", "is in memory (tmpfs), 107 GB free"),
    ],
)
def test_scratch_without_room(scratch, free, system, status, words):
    scratch(free, system)
    found = check_scratch()
    assert found.status == status
    assert words in found.found
    assert "TMPDIR" in found.remedy


def test_scratch_that_is_slow(scratch, limit):
    scratch(100 << 30)
    limit(SLOW_BYTES_PER_S=1e15)
    found = check_scratch()
    assert (found.status, found.remedy) == ("warning", "Set TMPDIR or --scratch to a faster disk.")


def test_scratch_that_cannot_be_written(scratch, monkeypatch):
    scratch(100 << 30)

    def fail(**_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(storage.tempfile, "TemporaryFile", fail)
    found = check_scratch()
    assert found.status == "wrong"
    assert found.found.endswith("cannot be written: Read-only file system")


def test_scratch_is_measured_for_a_while_only(tmp_path, limit):
    limit(SCRATCH_BYTES=1 << 50, TAKE_S=0.05)
    written, read = measure_scratch(tmp_path)
    assert min(written, read) > 0


def test_scratch_where_the_system_keeps_what_was_written(tmp_path, monkeypatch):
    monkeypatch.delattr(storage.os, "posix_fadvise")
    written, read = measure_scratch(tmp_path)
    assert written > 0
    assert read is None


def test_file_systems(tmp_path, limit):
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/a / ext4 rw 0 0\ntmpfs {tmp_path}/in\\040memory tmpfs rw 0 0\n")
    limit(MOUNTS=mounts)
    assert find_file_system(tmp_path) == "ext4"
    assert find_file_system(tmp_path / "in memory" / "x") == "tmpfs"
    limit(MOUNTS=tmp_path / "none")
    assert find_file_system(tmp_path) is None


# --- stores ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """A folder with 18 MiB in files of several sizes, an empty one among them."""
    for k, n in enumerate((0, 1 << 20, 17 << 20, 100)):
        path = tmp_path / "data.zarr" / str(k) / "chunk"
        path.parent.mkdir(parents=True)
        path.write_bytes(os.urandom(n))
    return tmp_path / "data.zarr"


def test_a_folder(folder):
    found = check_store(str(folder))
    assert found.status == "ok"
    assert found.values["files"] == 3
    assert found.values["bytes"] == (18 << 20) + 100
    assert " MB with " in found.found
    assert check_store(f"file://{folder}").status == check_store(f"obstore+file://{folder}").status == "ok"


def test_all_bytes_are_read_once(folder, limit):
    read, files = storage._list_files(str(folder))
    places = []
    n_bytes, rate = storage._measure_reading(lambda *p: places.append(p) or read(*p), files)
    assert n_bytes == (18 << 20) + 100
    assert rate > 0
    assert sorted(b - a for _, a, b in places) == [100, 1 << 20, 1 << 20, *[4 << 20] * 4]
    limit(READ_BYTES=8 << 20)
    assert storage._measure_reading(read, files)[0] == 8 << 20
    limit(TAKE_S=0.0)
    assert storage._measure_reading(read, files)[0] == 0


def test_little_is_not_judged(tmp_path, limit):
    limit(SLOW_BYTES_PER_S=1e15)
    (tmp_path / "few").write_bytes(b"x" * 1000)
    found = check_store(str(tmp_path / "few"))
    assert found.status == "ok"
    assert found.found.endswith("too little to say how fast it is")


def test_what_is_slow(folder, limit):
    limit(SLOW_BYTES_PER_S=1e15)
    assert check_store(str(folder)).remedy.startswith("Copy it to a faster disk")
    limit(SLOW_LATENCY_S=0.0)
    assert check_store(str(folder)).remedy.startswith("Read it from a machine nearer to it")


@pytest.mark.parametrize(
    ("store", "words"),
    [
        ("{}/none.zarr", "there is no such file or folder"),
        ("{}/empty", "has no files with anything in them"),
        ("udp://bucket/x", "Protocol not known: udp"),
        ("http://127.0.0.1:9/x", "cannot be read"),
    ],
)
def test_what_cannot_be_read(tmp_path, store, words):
    (tmp_path / "empty").mkdir()
    found = check_store(store.format(tmp_path))
    assert found.status == "wrong"
    assert words in found.found
    assert found.remedy


def test_a_store_that_hangs(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"x")
    monkeypatch.setattr(storage, "_read_local", lambda *_: time.sleep(600))
    [check] = make_store_checks([str(tmp_path / "a")])
    [found] = run_check(check, 0.2)
    assert (found.name, found.kind, found.status) == ("store", "storage", "wrong")


@pytest.mark.external
def test_an_object_store(folder, limit):
    with serve_s3() as system:
        system.put(str(folder), "bucket/doctor.zarr", recursive=True)
        found = check_store("s3://bucket/doctor.zarr")
        assert found.status == "ok", found
        assert found.values["bytes"] == (18 << 20) + 100
        assert 0 < found.values["latency_s"] < 60
        one = check_store("s3://bucket/doctor.zarr/1/chunk")
        assert (one.status, one.values["files"]) == ("ok", 1)
        missing = check_store("s3://bucket/no-doctor.zarr")
        assert missing.status == "wrong"
        assert "there is no such file" in missing.found
        limit(SLOW_LATENCY_S=0.0)
        assert check_store("s3://bucket/doctor.zarr").status == "warning"
