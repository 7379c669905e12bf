"""Versions of a store: the old one or the new one, whatever happens between."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from zarr.storage import LocalStore, MemoryStore

from mgspmv.errors import (
    MissingChunkError,
    OptionError,
    StoreDamagedError,
    StoreError,
    StoreNotFoundError,
    StoreUnfinishedError,
)
from mgspmv.model import MatrixInfo
from mgspmv.store.read import open_store
from mgspmv.store.versions import list_versions
from mgspmv.store.write import begin_version, drop_versions
from tests.support.arrays import CsrArrays, write_store
from tests.support.stores import (
    STRING_IDS,
    Crash,
    CrashingStore,
    WatchingStore,
    assert_same_csr,
    change_json,
    find_group,
    forget_records,
    list_version_names,
    make_arrays,
    make_scipy,
    make_transpose,
    read_scipy,
)

# --- versions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [False, True])
def test_naming_the_version_is_the_last_write(tiny_chunks, again):
    watched = WatchingStore()
    matrix = make_scipy(6, 6)
    if again:
        write_store(watched, make_arrays(matrix))
        watched.calls.clear()
    arrays = make_arrays(matrix, "graph", ids=STRING_IDS)
    info = write_store(watched, arrays, transpose=make_transpose(matrix), overwrite=again)
    changes = [call for call in watched.calls if call[0] != "get" and ".naming-" not in call[1]]
    last_set = max(k for k, (operation, _) in enumerate(changes) if operation == "set")
    assert changes[last_set] == ("set", "zarr.json")
    assert ("set", f"versions/{info.version}/zarr.json") in changes[:last_set]
    if again:
        assert watched.keys("set").count("zarr.json") == 1
        assert all(operation == "set" for operation, _ in changes[: last_set + 1])
        assert len(changes) > last_set + 1
    else:
        assert len(changes) == last_set + 1


def count_writes(arrays: CsrArrays, transpose: CsrArrays, old: CsrArrays | None) -> int:
    watched = WatchingStore()
    if old is not None:
        write_store(watched, old)
        watched.calls.clear()
    write_store(watched, arrays, transpose=transpose, overwrite=True)
    return len(watched.keys("set")) + len(watched.keys("delete"))


@pytest.mark.parametrize(
    "stays_down", [pytest.param(False, id="one write fails", marks=pytest.mark.slow), pytest.param(True, id="it dies")]
)
@pytest.mark.parametrize("had_version", [False, True], ids=["new store", "overwriting"])
def test_a_crash_at_any_write_leaves_the_old_version_or_none(tiny_chunks, had_version, stays_down):
    old, new = make_scipy(3, 3, 0.5, seed=1), make_scipy(6, 6, seed=2)
    arrays, transpose = make_arrays(new, "graph"), make_transpose(new)
    n_writes = count_writes(arrays, transpose, make_arrays(old) if had_version else None)
    seen = set()
    for at in range(1, n_writes + 1):
        place = MemoryStore()
        if had_version:
            write_store(place, make_arrays(old))
        crashing = CrashingStore(place, at=at, stays_down=stays_down)
        try:
            write_store(crashing, arrays, transpose=transpose, overwrite=True)
        except (Crash, StoreError):
            pass
        else:  # it could not clean up
            assert ("set", "crash") in crashing.calls
            assert open_store(place).info.shape == new.shape
        try:
            stored = open_store(place)
        except (StoreNotFoundError, StoreUnfinishedError) as error:
            assert not had_version
            seen.add(type(error))
        else:
            found = read_scipy(stored)
            is_new = found.shape == new.shape
            assert_same_csr(found, new if is_new else old)
            seen.add("new" if is_new else "old")
        assert write_store(place, arrays, transpose=transpose, overwrite="new" in seen or had_version).shape == (6, 6)
        assert_same_csr(read_scipy(open_store(place)), new)
        assert list_version_names(place) == [open_store(place).info.version]
    unfinished = {StoreUnfinishedError} if stays_down else set()  # else what was begun can be removed
    assert seen == ({"old", "new"} if had_version else {StoreNotFoundError, "new"} | unfinished)


def test_a_write_that_fails_after_it_came_through_harms_nothing(tiny_chunks):
    old, new = make_scipy(4, 4, seed=1), make_scipy(6, 6, seed=2)

    class LosingAnswers(WatchingStore):
        async def set(self, key: str, value: Any) -> None:
            await super().set(key, value)
            if key == "zarr.json":
                raise Crash("no answer")

    place = MemoryStore()
    write_store(place, make_arrays(old))
    info = write_store(LosingAnswers(place), make_arrays(new), overwrite=True)
    assert open_store(place).info.version == info.version
    assert_same_csr(read_scipy(open_store(place)), new)
    assert list_version_names(place) == [info.version]


def test_an_error_leaves_what_others_began_meanwhile():
    with begin_version(place := MemoryStore()) as other:
        with pytest.raises(RuntimeError), begin_version(place):
            raise RuntimeError
        assert list_version_names(place) == [other.name]


@pytest.mark.parametrize("loses", ["zarr.json", None], ids=["without its zarr.json", "whole"])
def test_leftovers_go_with_the_next_overwrite(tiny_chunks, tmp_path, loses):
    write_store(tmp_path / "m", make_arrays(make_scipy(4, 4)))
    leftover = tmp_path / "m/versions/v000009-00000000"
    shutil.copytree(find_group(tmp_path / "m"), leftover)
    if loses:
        (leftover / loses).unlink()
    info = write_store(tmp_path / "m", make_arrays(make_scipy(5, 5)), overwrite=True)
    assert info.version.startswith("v000010-")
    assert sorted(path.name for path in (tmp_path / "m/versions").iterdir()) == [info.version, "zarr.json"]


def test_a_version_that_another_ingest_swept_away_is_not_named(tiny_chunks):
    place = MemoryStore()
    first, second = make_arrays(make_scipy(4, 4, seed=1)), make_arrays(make_scipy(6, 6, seed=2))

    def overtake(phase: str, done: int, total: int | None) -> None:
        if done == total:
            write_store(place, second, overwrite=True)

    with pytest.raises(StoreError, match=r"now holds version v000002-.*; another writer changed it, and this"):
        write_store(place, first, on_progress=overtake)
    assert open_store(place).info.shape == (6, 6)
    assert list_version_names(place) == [open_store(place).info.version]


def test_a_reader_of_a_dropped_version_gets_an_error_and_no_zeros(tiny_chunks, tmp_path):
    write_store(tmp_path / "m", make_arrays(make_scipy(20, 20, seed=1)))
    reader = open_store(tmp_path / "m")
    write_store(tmp_path / "m", make_arrays(make_scipy(20, 20, seed=2)), overwrite=True)
    with pytest.raises(StoreDamagedError, match="are missing; open it again if it was replaced since it was opened"):
        reader.read_block(0, 20, np.float64)


def test_chunks_that_go_while_reading_are_an_error_and_no_zeros(tiny_chunks, tmp_path):
    write_store(tmp_path / "m", make_arrays(make_scipy(20, 20)))
    reader = open_store(tmp_path / "m")
    for name in ("indptr", "indices", "data"):
        shutil.move(find_group(tmp_path / "m") / name / "c" / "1", tmp_path / "away")
        with pytest.raises(MissingChunkError, match=rf"m: .*/{name}, elements 7 to 14 are missing; open it again if"):
            reader.read_block(0, 20, np.float64)
        shutil.move(tmp_path / "away", find_group(tmp_path / "m") / name / "c" / "1")
    assert reader.read_block(0, 20, np.float64).nnz == reader.info.nnz


# --- several versions ------------------------------------------------------------------------------------------------


def add_version(place: Any, matrix: sp.csr_array, keep: int | None = None) -> MatrixInfo:
    """A version beside the ones that are there."""
    base = open_store(place).info.version
    write_store(elsewhere := MemoryStore(), make_arrays(matrix))
    made = open_store(elsewhere)
    with begin_version(place, base=base, keep=keep) as version:
        for name in made.group.array_keys():
            version.write_array(name, made.read_array(name))
        version.commit(version.describe(replace(made.info, provenance={})))
    return open_store(place).info


@pytest.fixture(params=["local", "memory"])
def several(request, tmp_path):
    """A store of three versions, their matrices, and what they say of themselves."""
    place = LocalStore(tmp_path / "m") if request.param == "local" else MemoryStore()
    matrices = [make_scipy(5, k, seed=k) for k in (4, 5, 6)]
    infos = [write_store(place, make_arrays(matrices[0]))]
    infos += [add_version(place, matrix) for matrix in matrices[1:]]
    return place, matrices, infos


def test_versions_are_listed_and_opened(several):
    place, matrices, infos = several
    assert list_versions(place) == infos
    assert [info.number for info in infos] == [1, 2, 3]
    for info, matrix in zip(infos, matrices, strict=True):
        for version in (info.version, info.number):
            stored = open_store(place, version)
            assert stored.info == info
            assert_same_csr(read_scipy(stored), matrix)
    assert open_store(place).info == infos[-1]


def test_a_version_that_there_is_not(several):
    place, _, infos = several
    names = ", ".join(info.version for info in infos)
    for version in (0, 4, "v000002", "v000002-00000000", "2", ""):
        with pytest.raises(StoreError) as caught:
            open_store(place, version)
        assert str(caught.value) == f"{infos[0].url} has no version {version!r}; it has {names}"


def test_a_version_of_the_time_before_that_was_noted(tmp_path):
    write_store(tmp_path / "m", make_arrays(make_scipy(3, 3)))
    change_json(
        find_group(tmp_path / "m") / "zarr.json", lambda document: document["attributes"]["mgspmv"].pop("created")
    )
    forget_records(tmp_path / "m")
    assert open_store(tmp_path / "m").info.created is None


@pytest.mark.parametrize("keep", [1, 2])
def test_versions_are_dropped_on_request(several, keep):
    place, _, infos = several
    for all_of_them in (3, 9):
        assert drop_versions(place, keep=all_of_them) == []
        assert list_versions(place) == infos
    assert drop_versions(place, keep=keep) == [info.version for info in infos[:-keep]]
    assert list_versions(place) == infos[-keep:]
    assert list_version_names(place) == [info.version for info in infos[-keep:]]
    assert drop_versions(place, keep=keep) == []


def test_the_current_version_is_never_dropped(several):
    place, _, infos = several
    for keep in (0, -1, True, 1.5, "1"):
        with pytest.raises(OptionError, match="keep must be at least 1, not"):
            drop_versions(place, keep=keep)
        assert list_versions(place) == infos


def test_what_is_no_store_has_no_versions(tmp_path):
    for function in (list_versions, lambda place: drop_versions(place, keep=1)):
        with pytest.raises(StoreNotFoundError):
            function(tmp_path / "none")
    with begin_version(tmp_path / "begun"):
        pass
    with pytest.raises(StoreUnfinishedError):
        list_versions(tmp_path / "begun")


def test_names_of_versions_go_before_their_arrays(several):
    """So that a drop that is interrupted leaves no version that is not whole."""
    place, _, infos = several
    calls = WatchingStore(place)
    drop_versions(calls, keep=1)
    changes = [call for call in calls.calls if call[0] != "get" and ".naming-" not in call[1]]
    assert changes[0] == ("set", "zarr.json")
    assert {operation for operation, _ in changes[1:]} == {"delete"}
    assert zarr.open_group(place, mode="r").attrs["mgspmv"]["current"] == infos[-1].version


def test_a_drop_that_is_interrupted(several):
    place, matrices, infos = several
    for at in (1, 2, 4):  # a mark is written and removed
        is_named = at == 4
        with pytest.warns(match="leftovers could not be removed") if is_named else pytest.raises(Crash):
            drop_versions(CrashingStore(place, at=at, stays_down=True), keep=1)
        assert list_versions(place) == (infos[-1:] if is_named else infos)
        assert_same_csr(read_scipy(open_store(place)), matrices[-1])
    assert len(list_version_names(place)) > 1
    assert drop_versions(place, keep=1) == []
    assert list_version_names(place) == [infos[-1].version]
    info = add_version(place, matrices[0])
    assert list_versions(place) == [infos[-1], info]
    assert list_version_names(place) == [infos[-1].version, info.version]


def test_what_was_never_named_is_no_version(several):
    """Though it is whole: a process that was killed before its last write leaves that."""
    place, matrices, infos = several
    killed = begin_version(place, base=infos[-1].version, keep=None)  # which is never left
    version = killed.__enter__()
    del killed  # and its lock is gone
    group = zarr.open_group(place, mode="r", path=f"versions/{infos[0].version}")
    for name, array in group.arrays():
        version.write_array(name, array[:])
    version.group.attrs["mgspmv"] = dict(group.attrs["mgspmv"])
    leftover = version.name
    assert leftover in list_version_names(place)
    assert list_versions(place) == infos
    for version in (4, leftover):
        with pytest.raises(StoreError, match="has no version"):
            open_store(place, version)
    info = add_version(place, matrices[1])
    assert info.number == 5
    assert list_version_names(place) == [other.version for other in [*infos, info]]


def test_a_version_from_one_that_is_not_current_is_refused(several):
    place, _, infos = several
    message = f"holds version {infos[-1].version}, not {infos[0].version} as at the start; another"
    with pytest.raises(StoreError, match=message), begin_version(place, base=infos[0].version):
        pytest.fail("it began")
    assert list_versions(place) == infos
    assert list_version_names(place) == [info.version for info in infos]


def test_an_overwrite_drops_all_versions(several):
    place, matrices, _ = several
    info = write_store(place, make_arrays(matrices[0]), overwrite=True)
    assert list_versions(place) == [info]
    assert list_version_names(place) == [info.version]
    assert info.number == 4


def test_an_address_is_of_its_version_as_long_as_that_is_there(several, tmp_path):
    place, matrices, infos = several
    if not isinstance(place, LocalStore):
        pytest.skip("a store in memory has no address")
    addresses = [open_store(place, info.number).address() for info in infos]
    for address, matrix in zip(addresses, matrices, strict=True):
        assert_same_csr(read_scipy(pickle.loads(pickle.dumps(address)).open()), matrix)
    drop_versions(place, keep=2)
    with pytest.raises(
        StoreError, match=f"now holds version {infos[2].version}, not the opened version {infos[0].version}"
    ):
        addresses[0].open()
    assert addresses[1].open().info.version == infos[1].version
