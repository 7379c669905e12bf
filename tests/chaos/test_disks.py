"""Disks that are full or read-only, and flipped bits."""

from __future__ import annotations

import errno
import os

import pytest

import mgspmv as mg
from tests.support.chaos import disks
from tests.support.chaos.disks import Disk, flip, list_chunks, why_no_disks

on_disks = pytest.mark.skipif(bool(why_no_disks()), reason=why_no_disks() or "it can be done")


@on_disks
def test_a_disk_that_is_full(tmp_path):
    with Disk(tmp_path / "disk", is_own=True) as disk:
        disk.fill()
        with pytest.raises(OSError) as caught:
            (disk.folder / "file").write_bytes(bytes(10_000))
        assert caught.value.errno == errno.ENOSPC
        disk.empty()
        (disk.folder / "file").write_bytes(bytes(10_000))
    assert not any((tmp_path / "disk").iterdir())


@on_disks
def test_a_disk_that_is_read_only(tmp_path):
    with Disk(tmp_path / "disk", is_own=True) as disk:
        disk.forbid()
        disk.fill()
        disk.empty()
        with pytest.raises(OSError) as caught:
            (disk.folder / "file").write_text("a")
        assert caught.value.errno == errno.EROFS
        disk.permit()
        (disk.folder / "file").write_text("a")


@on_disks
def test_what_a_killed_process_left_behind_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(disks.os, "getpid", lambda: 2**22 + 1)  # more than there are
    Disk(tmp_path / "left", is_own=True).__enter__()
    assert os.path.ismount(tmp_path / "left")
    monkeypatch.undo()
    with Disk(tmp_path / "disk", is_own=True):
        assert not os.path.ismount(tmp_path / "left")
        assert os.path.ismount(tmp_path / "disk")


def test_without_disks_it_is_a_folder(tmp_path):
    with Disk(tmp_path / "disk", is_own=False) as disk:
        (disk.folder / "file").write_text("a")
    assert (tmp_path / "disk" / "file").exists()


def test_a_flipped_bit_is_flipped_once(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(4))
    flip(path, 0.5, 3)
    assert path.read_bytes() == b"\0\0\x08\0"
    flip(path, 0.5, 3)
    flip(path, 0.99, 0)
    assert path.read_bytes() == b"\0\0\0\x01"


def test_chunks_are_all_of_the_values(tmp_path):
    store = tmp_path / "graph.zarr"
    mg.generate("rmat", store, scale=6)
    chunks = list_chunks(store)
    assert chunks
    for chunk in chunks:
        flip(chunk, 0.7, 2)
        [said] = mg.verify(store)
        assert "are damaged" in said
        flip(chunk, 0.7, 2)
    assert mg.verify(store) == []
