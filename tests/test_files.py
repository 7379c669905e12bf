"""Files that have their name once they are whole."""

from __future__ import annotations

import os
import shutil
import signal
import uuid

import fsspec
import pytest

from mgspmv import files
from mgspmv.errors import MissingDependencyError, OptionError, StoreError
from mgspmv.files import create_file, exists, settle, translating_errors, write_beside
from tests.support.killed import count_changes


def put(path, text, is_folder):
    """Write a file, or a folder of two."""
    with write_beside(path) as part:
        if is_folder:
            part.mkdir()
        for name in ("a", "b") if is_folder else ("",):
            (part / name).write_text(text)


def get(path):
    """What was put there; of a folder of which half is there, nothing that was."""
    if not path.is_dir():
        return path.read_text() if path.exists() else None
    return (
        " ".join(sorted({inside.read_text() for inside in path.iterdir()})) if len([*path.iterdir()]) == 2 else "half"
    )


def kill(call, limit):
    """Let a child do something until it is about to change files for the time of that number; whether it was."""
    child = os.fork()
    if child == 0:
        try:
            count_changes(limit)
            call()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.parametrize("is_folder", [False, True])
@pytest.mark.parametrize("old", [None, "old"])
@pytest.mark.parametrize("exchanges", [True, False])
def test_killed_at_any_change(tmp_path, monkeypatch, is_folder, old, exchanges):
    """A file system that cannot exchange folders has the old one or the new one again once somebody looks."""
    if not exchanges:
        monkeypatch.setattr(files, "exchange", lambda *_: False)
    seen, limit = [], 1
    while True:
        (folder := tmp_path / str(limit)).mkdir()
        path = folder / "r.zarr"
        if old is not None:
            put(path, old, is_folder)
        was_killed = kill(lambda path=path: put(path, "new", is_folder), limit)
        if not exchanges:
            settle(path)
        seen.append(get(path))
        put(path, "newer", is_folder)
        assert get(path) == "newer"
        assert [entry.name for entry in folder.iterdir()] == ["r.zarr"]
        if not was_killed:
            break
        limit += 1
    n_old = seen.count(old)
    assert seen == [old] * n_old + ["new"] * (len(seen) - n_old)
    assert n_old >= 4
    assert len(seen) - n_old >= 2


def test_what_a_living_process_writes_stays(tmp_path):
    path = tmp_path / "r.csv"
    with write_beside(path) as part:
        part.write_text("slow")
        put(path, "quick", False)
        settle(path)
        assert part.read_text() == "slow"
        assert get(path) == "quick"
    assert get(path) == "slow"


def test_what_was_removed_while_it_was_written_takes_no_place(tmp_path):
    """As by a process on a machine to which the file system does not tell of locks."""
    put(path := tmp_path / "r.zarr", "old", True)

    def write():
        with write_beside(path) as part:
            shutil.rmtree(part.parent)
            part.mkdir(parents=True)

    with pytest.raises(
        StoreError, match=r"cannot write .*r\.zarr: .*\.part was removed while it was written; write it"
    ):
        write()
    assert get(path) == "old"


def test_others_are_not_removed(tmp_path):
    """Neither a link, nor what has another name, nor what is no folder of a process."""
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (tmp_path / ".r.csv.01234567.part").symlink_to(elsewhere)
    for name in (".r.csv.part", ".r.csv.0123456g.part", ".s.csv.01234567.part", "r.csv.01234567.part"):
        (tmp_path / name).mkdir()
    (tmp_path / ".r.csv.76543210.part").write_text("")
    before = sorted(tmp_path.rglob("*"))
    put(tmp_path / "r.csv", "", False)
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "r.csv"])
    settle(tmp_path / "s.csv")
    assert not (tmp_path / ".s.csv.01234567.part").exists()


@pytest.fixture(params=["path", "file URL", "memory URL"])
def place(request, tmp_path):
    at = {"path": tmp_path, "file URL": f"file://{tmp_path}", "memory URL": f"memory://{uuid.uuid4()}"}
    return f"{at[request.param]}/folder/file"


def test_a_file_is_there_when_it_is_whole(place):
    assert not exists(place)
    with create_file(place) as file:
        file.write(b"a")
        assert not exists(place)
    assert exists(place)
    assert fsspec.open(place).open().read() == b"a"


def test_errors_of_a_library():
    class BrokenError(Exception):
        pass

    there, said = "s3://b/x", r"^cannot write to s3://b/x: BrokenError; check that the bucket exists"
    with pytest.raises(StoreError, match=said), translating_errors("write to", there):
        raise BrokenError
    with pytest.raises(BrokenError), translating_errors("write to", "x"):
        raise BrokenError
    with pytest.raises(StoreError, match=r"^cannot write to x: no room$"), translating_errors("write to", "x"):
        raise OSError("no room")


@pytest.mark.parametrize("was_there", [False, True])
def test_a_file_that_is_not_finished_leaves_what_was_there(place, was_there):
    if was_there:
        with create_file(place) as file:
            file.write(b"old")

    def write():
        with create_file(place) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert exists(place) == was_there
    assert not was_there or fsspec.open(place).open().read() == b"old"


def test_urls_that_cannot_be_opened(monkeypatch):
    for look in (exists, lambda url: create_file(url).__enter__()):
        with pytest.raises(OptionError, match="nope://a: Protocol not known: nope; pass a local path or a URL"):
            look("nope://a")

    def fail(*_, **__):
        raise ImportError("install s3fs")

    monkeypatch.setattr("fsspec.core.url_to_fs", fail)
    with pytest.raises(MissingDependencyError, match="s3://a: install s3fs"):
        exists("s3://a")


def test_the_state_folder_is_the_named_one_or_the_users(tmp_path, monkeypatch):
    monkeypatch.setenv("MGSPMV_STATE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert files.find_state_folder() == tmp_path / "own"
    monkeypatch.delenv("MGSPMV_STATE")
    assert files.find_state_folder() == tmp_path / "xdg" / "mgspmv"
