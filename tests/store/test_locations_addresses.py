"""Stores that other processes open."""

from __future__ import annotations

import dataclasses
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from zarr.abc.store import Store
from zarr.storage import FsspecStore, LocalStore, MemoryStore, WrapperStore

from mgspmv.errors import OptionError, StoreError, StoreNotFoundError
from mgspmv.store.read import StoreAddress, open_store
from tests.support.arrays import write_store
from tests.support.stores import (
    WatchingStore,
    assert_same_csr,
    make_arrays,
    make_obstore,
    make_scipy,
    make_transpose,
    read_scipy,
)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_alone_are_those_of_the_block(tiny_chunks, dtype):
    matrix = make_scipy(23, 31)
    write_store(place := MemoryStore(), make_arrays(matrix))
    stored = open_store(place)
    for rows in ((0, 23), (0, 0), (23, 23), (5, 6), (4, 19)):
        values = stored.read_values(*rows, dtype, threads=3)
        assert values.dtype == dtype, rows
        assert values.tobytes() == matrix[rows[0] : rows[1]].data.astype(dtype).tobytes(), rows
        assert values.tobytes() == stored.read_block(*rows, dtype).data.tobytes(), rows
        assert stored.read_values(*rows, None) is None, rows


def test_values_alone_read_their_chunks_only(tiny_chunks):
    matrix = make_scipy(40, 30)
    write_store(place := MemoryStore(), make_arrays(matrix))
    stored = open_store(watched := WatchingStore(place))
    watched.calls.clear()
    stored.read_values(9, 12, np.float64)
    read = {key.partition("-")[2].partition("/")[2] for key in watched.chunks_read()}
    first, last = matrix.indptr[[9, 12]]
    assert read == {"indptr/c/1", *(f"data/c/{k}" for k in range(first // 7, -(-last // 7)))}


ADDRESSED = {
    "path": lambda path: path,
    "string": str,
    "relative path": lambda path: path.relative_to(Path.cwd()),
    "relative string": lambda path: os.path.join(".", path.relative_to(Path.cwd())),
    "file URL": lambda path: f"file://{path}",
    "local object": LocalStore,
    "relative local object": lambda path: LocalStore(path.relative_to(Path.cwd())),
}


@pytest.mark.parametrize("make_place", ADDRESSED.values(), ids=ADDRESSED.keys())
def test_an_address_of_a_path_leads_there_from_any_folder(monkeypatch, tmp_path, make_place):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    path = tmp_path / "here" / "some folder" / "web.zarr"
    place = make_place(path)
    matrix = make_scipy(20, 12)
    write_store(path, make_arrays(matrix))
    stored = open_store(place)
    address = stored.address()
    assert address == StoreAddress(str(path), stored.info.version, stored.info.digest, False)
    sent = pickle.dumps(address)
    assert len(sent) < 1000
    monkeypatch.chdir(tmp_path / "there")
    again = pickle.loads(sent).open()
    assert again.info == dataclasses.replace(stored.info, url=str(path))
    assert_same_csr(read_scipy(again), matrix)


KEPT = {
    "obstore object": make_obstore,
    "fsspec object": lambda path: FsspecStore.from_url(f"file://{path}"),
    "wrapped object": lambda path: WrapperStore(LocalStore(path)),
}


@pytest.mark.parametrize("make_place", KEPT.values(), ids=KEPT.keys())
def test_an_address_of_a_zarr_store_is_that_store(tmp_path, make_place):
    matrix = make_scipy(20, 12)
    write_store(tmp_path / "web.zarr", make_arrays(matrix))
    place = make_place(tmp_path / "web.zarr")
    address = open_store(place).address()
    assert address.place is place
    assert_same_csr(read_scipy(pickle.loads(pickle.dumps(address)).open()), matrix)


@pytest.mark.parametrize("which", ["matrix", "transpose", "matrix of the transpose"])
def test_an_address_of_a_transpose(tmp_path, which):
    matrix = make_scipy(8, 5)
    write_store(tmp_path / "m", make_arrays(matrix), transpose=make_transpose(matrix))
    stored = open_store(tmp_path / "m")
    named = {"matrix": stored, "transpose": stored.transpose()}.get(which, stored.transpose().transpose())
    address = named.address()
    assert address.is_transpose is (which == "transpose")
    again = address.open()
    assert again.info == dataclasses.replace(named.info, url=str(tmp_path / "m"))
    assert_same_csr(read_scipy(again), sp.csr_array(matrix.T) if which == "transpose" else matrix)


def make_obstore_in_memory(path: Path) -> Store:
    return zarr.storage.ObjectStore(pytest.importorskip("obstore.store").MemoryStore())


IN_MEMORY = {
    "object": lambda path: MemoryStore(),
    "URL": lambda path: f"memory://{path}",
    "fsspec object": lambda path: FsspecStore.from_url(f"memory://{path}"),
    "obstore object": make_obstore_in_memory,
    "wrapped object": lambda path: WatchingStore(MemoryStore()),
    "twice wrapped object": lambda path: WrapperStore(WatchingStore(MemoryStore())),
    "wrapped fsspec object": lambda path: WrapperStore(FsspecStore.from_url(f"memory://{path}")),
}


@pytest.mark.parametrize("make_place", IN_MEMORY.values(), ids=IN_MEMORY.keys())
def test_a_store_in_memory_has_no_address(tmp_path, make_place):
    place = make_place(tmp_path)
    matrix = make_scipy(5, 5)
    write_store(place, make_arrays(matrix), transpose=make_transpose(matrix))
    stored = open_store(place)
    for named in (stored, stored.transpose()):
        with pytest.raises(OptionError) as caught:
            named.address()
        assert str(caught.value).endswith(
            " is in the memory of this process, where the workers of a cluster cannot reach it; "
            "use a path or URL that all of them can reach"
        )


@pytest.mark.parametrize("is_same", [True, False], ids=["by the same", "by another"])
def test_a_store_that_was_replaced_is_not_taken_for_the_one_that_was_opened(tmp_path, is_same):
    matrix = make_scipy(8, 5)
    write_store(tmp_path / "m", make_arrays(matrix), transpose=make_transpose(matrix))
    stored = open_store(tmp_path / "m")
    addresses = [stored.address(), stored.transpose().address()]
    other = matrix if is_same else make_scipy(8, 5, seed=1)
    info = write_store(tmp_path / "m", make_arrays(other), transpose=make_transpose(other), overwrite=True)
    for address in addresses:
        with pytest.raises(StoreError) as caught:
            address.open()
        assert type(caught.value) is StoreError
        assert str(caught.value) == (
            f"{tmp_path / 'm'} now holds version {info.version}, not the opened version {stored.info.version}; it was "
            "replaced, or this machine has another store at this path: open it again"
        )
    assert open_store(tmp_path / "m").address().open().info == info


def test_another_file_of_the_same_version_is_not_taken_for_it(tmp_path):
    """As where each machine has a disk of its own, and the names of two versions are the same by chance."""
    write_store(tmp_path / "m", make_arrays(make_scipy(8, 5)))
    address = open_store(tmp_path / "m").address()
    with pytest.raises(StoreError, match="or this machine has another store at this path"):
        dataclasses.replace(address, digest="0" * 64).open()
    with pytest.raises(StoreNotFoundError, match="there is no matrix store at"):
        dataclasses.replace(address, place=str(tmp_path / "none")).open()
