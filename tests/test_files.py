"""Files that have their name once they are whole."""

from __future__ import annotations

import uuid

import fsspec
import pytest

from mgspmv.errors import MissingDependencyError, OptionError, StoreError
from mgspmv.files import create_file, exists, write_beside


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "r.npy"
    path.write_text("old")

    def fail():
        with write_beside(path) as part:
            part.write_text("half")
            raise OSError(28, "No space left on device")

    with pytest.raises(StoreError, match=r"cannot write .*r\.npy: no space left on device"):
        fail()
    assert [entry.name for entry in tmp_path.iterdir()] == ["r.npy"]
    assert path.read_text() == "old"


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


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file/a", f"file://{tmp_path}/file/a"):
        with pytest.raises(StoreError, match=r"cannot write .*/file/a: "), create_file(place):
            pass


def test_urls_that_cannot_be_opened(monkeypatch):
    for look in (exists, lambda url: create_file(url).__enter__()):
        with pytest.raises(OptionError, match="nope://a: Protocol not known: nope; pass a local path or a URL"):
            look("nope://a")

    def fail(*_, **__):
        raise ImportError("install s3fs")

    monkeypatch.setattr("fsspec.core.url_to_fs", fail)
    with pytest.raises(MissingDependencyError, match="s3://a: install s3fs"):
        exists("s3://a")


class ReadOnly(fsspec.AbstractFileSystem):
    """A file system as there are some: it cannot write, and says nothing about it."""

    def _open(self, *_, **__):
        raise NotImplementedError


def test_a_file_system_that_only_reads():
    fsspec.register_implementation("readonly", ReadOnly, clobber=True)
    with pytest.raises(StoreError, match="cannot write readonly://a: nothing can be written there"):
        create_file("readonly://a").__enter__()
