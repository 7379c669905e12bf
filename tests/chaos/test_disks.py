"""Disks that are full or read-only, and flipped bits."""

from __future__ import annotations

import errno

import pytest

import mgspmv as mg
from tests.support.chaos.disks import Disk, flip, list_chunks, why_no_disks


@pytest.mark.external("mount")
@pytest.mark.skipif(bool(why_no_disks()), reason=why_no_disks() or "it can be done")
def test_disks_are_full_and_read_only(tmp_path):
    with Disk(tmp_path / "disk", is_own=True) as disk:
        file = disk.folder / "file"
        for strike, heal, code in ((disk.fill, disk.empty, errno.ENOSPC), (disk.forbid, disk.permit, errno.EROFS)):
            strike()
            with pytest.raises(OSError) as caught:
                file.write_bytes(bytes(10_000))
            assert caught.value.errno == code
            heal()
            file.write_bytes(bytes(10_000))
    assert not any((tmp_path / "disk").iterdir())


def test_every_chunk_of_a_store_can_be_damaged(tmp_path):
    store = tmp_path / "graph.zarr"
    mg.generate("rmat", store, scale=6)
    chunks = list_chunks(store)
    assert chunks
    for chunk in chunks:
        flip(chunk, 0.7, 2)
        [message] = mg.verify(store)
        assert "are damaged" in message
        flip(chunk, 0.7, 2)
    assert mg.verify(store) == []
