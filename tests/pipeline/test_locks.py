"""Two runs are kept off one folder."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from mgspmv.errors import PipelineBusyError, StoreError
from mgspmv.pipeline.locks import hold


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_holder_is_named():
    with hold(Path("out")), pytest.raises(PipelineBusyError) as caught, hold(Path("out")):
        pass
    assert str(caught.value).startswith(f"another run works in out: process {os.getpid()} on ")
    assert str(caught.value).endswith("; wait for its end, or name another folder")
    with hold(Path("out")), hold(Path("other")):
        pass


def test_a_holder_that_did_not_say_so_yet():
    with hold(Path("out")):
        Path("out/.mgspmv/lock").write_text("")
        with pytest.raises(PipelineBusyError, match="a process that has just begun; wait"), hold(Path("out")):
            pass


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EIO, r"cannot lock .*out/\.mgspmv/lock: input/output error"),
        (errno.EINVAL, r"cannot lock out/\.mgspmv/lock: Invalid argument; name a folder on a local file system"),
    ],
)
def test_file_systems_without_locks(number, said, monkeypatch):
    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(StoreError, match=said), hold(Path("out")):
        pass


def test_folders_that_cannot_be_written_to():
    Path("out").write_text("")
    with pytest.raises(StoreError, match=r"cannot write out/\.mgspmv"), hold(Path("out")):
        pass
