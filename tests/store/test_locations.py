"""Places of stores, and what leads out of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import scipy.sparse as sp
import zarr
from zarr.abc.store import Store
from zarr.storage import LocalStore, MemoryStore

from mgspmv.errors import (
    OptionError,
    StoreDamagedError,
    StoreError,
    StoreExistsError,
    StoreFormatError,
    StoreNotFoundError,
    StoreUnfinishedError,
)
from mgspmv.store.read import open_store
from mgspmv.store.versions import check_target, list_versions
from mgspmv.store.write import drop_versions
from tests.support.arrays import write_store
from tests.support.stores import (
    WatchingStore,
    assert_same_csr,
    find_group,
    make_arrays,
    make_obstore,
    make_scipy,
    read_scipy,
)

# --- places ----------------------------------------------------------------------------------------------------------


def test_nothing_there(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    missing = tmp_path / "none"
    for place in (missing, str(missing), f"file://{missing}", tmp_path / "empty",
                  f"memory://{missing}", MemoryStore(), LocalStore(missing)):  # fmt: skip
        with pytest.raises(StoreNotFoundError, match=r"there is no matrix store at .*; create one with `mgspmv"):
            open_store(place)
    for file in (tmp_path / "file", f"file://{tmp_path}/file"):
        with pytest.raises(StoreNotFoundError, match=r"file is a file, not a matrix store; ingest it first with `mgsp"):
            open_store(file)
    assert not missing.exists()


def test_not_a_matrix_store(tmp_path):
    zarr.open_group(tmp_path / "group", mode="w", attributes={"mgspmv": {"other": 1}})
    zarr.open_group(tmp_path / "plain", mode="w")
    for name in ("group", "plain"):
        with pytest.raises(StoreFormatError, match=f"{name} is a Zarr group but not a matrix store; create"):
            open_store(tmp_path / name)
    zarr.create_array(tmp_path / "array", shape=(3,), dtype="int64")
    (tmp_path / "text").mkdir()
    (tmp_path / "text/zarr.json").write_text("no JSON")
    for name in ("array", "text"):
        with pytest.raises((StoreFormatError, StoreNotFoundError), match=name):
            open_store(tmp_path / name)
    zarr.open_group(tmp_path / "v2", mode="w", zarr_format=2)
    with pytest.raises(StoreNotFoundError):
        open_store(tmp_path / "v2")


@pytest.mark.parametrize("overwrite", [False, True])
def test_foreign_places_are_not_written_to(tmp_path, overwrite):
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/notes.txt").write_text("x")
    zarr.open_group(tmp_path / "group", mode="w", attributes={"mine": 1})
    zarr.open_group(tmp_path / "v2", mode="w", zarr_format=2)
    zarr.create_array(tmp_path / "array", shape=(3,), dtype="int64")
    (tmp_path / "text").mkdir()
    (tmp_path / "text/zarr.json").write_text("no JSON")
    reasons = {
        "file": "exists and is not a Zarr group",
        "folder": "exists and is not a Zarr group",
        "group": "is a Zarr group that mgspmv did not write",
        "v2": "exists and is not a Zarr group",
        "array": "(exists and is not a Zarr group|has a zarr.json that is not of a group)",
        "text": "has a zarr.json that is not of a group",
    }
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for name, reason in reasons.items():
        for place in (tmp_path / name, f"file://{tmp_path / name}"):
            with pytest.raises(StoreExistsError, match=f"{name} {reason}.*; choose another place"):
                check_target(place, overwrite=overwrite)
            with pytest.raises(StoreExistsError):
                write_store(place, make_arrays(make_scipy(3, 3)), overwrite=overwrite)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def make_watched(path: Path) -> Store:
    return WatchingStore(LocalStore(path))


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("open_place", [LocalStore, make_obstore, make_watched], ids=["local", "obstore", "wrapped"])
def test_foreign_things_in_a_zarr_store_are_not_written_to(tmp_path, open_place, overwrite):
    (tmp_path / "versions/v20240101").mkdir(parents=True)
    notes = tmp_path / "versions/v20240101/notes.txt"
    notes.write_text("x")
    place = open_place(tmp_path)
    with pytest.raises(StoreExistsError, match="exists and is not a Zarr group; choose another place"):
        write_store(place, make_arrays(make_scipy(3, 3)), overwrite=overwrite)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [notes]


def test_what_is_no_version_is_left_among_the_versions(tmp_path):
    write_store(tmp_path / "m", make_arrays(make_scipy(3, 3)))
    for name in ("v20240101", "other", ".DS_Store", "v000001-web", "v000001-0123456z"):
        notes = tmp_path / "m/versions" / name / "notes.txt"
        notes.parent.mkdir()
        notes.write_text("x")
        info = write_store(tmp_path / "m", make_arrays(make_scipy(4, 4)), overwrite=True)
        assert info.version.startswith("v00000"), name
        assert notes.read_text() == "x"
    assert info.number == 6


PLACES = {
    "path": lambda path: path,
    "string": str,
    "file URL": lambda path: f"file://{path}",
    "fsspec URL": lambda path: f"memory://{path}",
    "obstore object": make_obstore,
    "memory object": lambda path: MemoryStore(),
    "local object": LocalStore,
}


@pytest.mark.parametrize("make_place", PLACES.values(), ids=PLACES.keys())
def test_places(tiny_chunks, tmp_path, make_place):
    place = make_place(tmp_path / "some folder" / "web.zarr")
    matrix = make_scipy(20, 12, seed=3)
    with pytest.raises(StoreNotFoundError):
        open_store(place)
    write_store(place, make_arrays(make_scipy(5, 5)))
    write_store(place, make_arrays(matrix), overwrite=True)
    with pytest.raises(StoreExistsError):
        write_store(place, make_arrays(matrix))
    stored = open_store(place)
    assert_same_csr(read_scipy(stored), matrix)
    assert_same_csr(read_scipy(stored, rows=(3, 9)), sp.csr_array(matrix[3:9]))
    assert isinstance(place, Store) or stored.info.url == str(place)


@pytest.mark.parametrize(
    "operation", [open_store, lambda url: check_target(url, overwrite=False)], ids=["open", "make"]
)
def test_urls_that_nothing_opens(operation):
    with pytest.raises(OptionError, match=r"nix://a is not a URL that can be opened \(.*nix.*\); pass a path or"):
        operation("nix://a")


# --- what leads out of the store -------------------------------------------------------------------------------------


def replace_by_link(path, secret, *, is_folder):
    """Move what is there to the secret place, where a link leads to it: who follows that reads what was there."""
    moved = secret / path.name
    shutil.move(path, moved)
    path.symlink_to(moved, target_is_directory=is_folder)


LINKS = ["zarr.json", "versions", "versions/zarr.json", "V", "V/zarr.json", "V/indices", "V/indices/zarr.json"]


LINKS += ["V/indices/c", "V/indices/c/0"]


@pytest.mark.parametrize("name", LINKS)
def test_links_that_lead_out_of_a_store_are_refused(planted, name):
    store, secret = planted
    name = name.replace("V", f"versions/{find_group(store).name}")
    replace_by_link(store / name, secret, is_folder=(store / name).is_dir())
    for use in (open_store, list_versions if "indices" not in name else open_store):
        with pytest.raises(StoreError) as caught:
            use(store)
        assert f": {name} is a symbolic link that leads out of the store, to {secret}" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_links_within_a_store_and_to_it_are_followed(planted, tmp_path):
    store, _ = planted
    chunk = find_group(store) / "indices" / "c" / "0"
    chunk.rename(chunk.with_name("kept"))
    chunk.symlink_to("kept")
    (tmp_path / "there").symlink_to(store)
    assert (
        open_store(tmp_path / "there").read_array("indices").tobytes()
        == open_store(store).read_array("indices").tobytes()
    )


@pytest.mark.parametrize("where", ["current", "older"])
def test_attributes_that_name_no_version_are_refused_and_nothing_is_removed(planted, where):
    store, secret = planted
    sound = (store / "zarr.json").read_text()
    for name in ("../../secret", "/etc", "v000009-00000000/../../../secret", "", 7, None, "v1"):
        root = json.loads(sound)
        root["attributes"]["mgspmv"] |= {"current": name} if where == "current" else {"older": [name]}
        (store / "zarr.json").write_text(json.dumps(root))
        for use in (open_store, list_versions, lambda place: drop_versions(place, keep=1)):
            error = StoreUnfinishedError if name is None and where == "current" else StoreDamagedError
            with pytest.raises(error) as caught:
                use(store)
            assert repr(name) in str(caught.value) or name is None
        assert (secret / "v000009-00000000" / "file").read_text() == "mine"


def test_nothing_is_written_or_removed_through_links(planted):
    store, secret = planted
    shutil.rmtree(store / "versions")
    (store / "versions").symlink_to(secret)
    before = sorted(path.name for path in secret.rglob("*"))
    with pytest.raises(StoreError, match="versions is a symbolic link that leads out of the store"):
        write_store(store, make_arrays(make_scipy(5, 5)), overwrite=True)
    assert sorted(path.name for path in secret.rglob("*")) == before


def test_a_version_that_is_a_link_is_not_followed_when_it_is_removed(planted):
    store, secret = planted
    (store / "versions" / "v000002-00000000").symlink_to(secret)
    write_store(store, make_arrays(make_scipy(5, 5, seed=5)), overwrite=True)
    assert (secret / "v000009-00000000" / "file").read_text() == "mine"
    assert open_store(store).info.shape == (5, 5)
