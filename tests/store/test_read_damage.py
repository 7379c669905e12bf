"""Damaged stores are refused, each by its own error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import zarr

from mgspmv.errors import ChecksumError, MissingChunkError, StoreDamagedError, StoreFormatError, StoreUnfinishedError
from mgspmv.store.read import open_store
from mgspmv.store.stored_matrix import FORMAT_VERSION
from mgspmv.store.write import begin_version
from tests.support.arrays import write_store
from tests.support.stores import ARRAYS, OWN_ARRAYS, change_json, find_group, make_arrays, make_scipy


def read_all(root: Path) -> None:
    stored = open_store(root)
    for name in OWN_ARRAYS:
        stored.read_array(name)
    for name in ("indptr", "indices", "data"):
        stored.transpose().read_array(name)


def test_missing_chunk(damaged, tmp_path):
    for name in ARRAYS:
        chunk = (find_group(damaged) / name / "c" / "0").rename(tmp_path / "away")
        with pytest.raises(
            MissingChunkError, match=rf"web\.zarr: .*/{name} has \d of its \d chunks; ingest again or restore a copy"
        ) as caught:
            open_store(damaged)
        assert caught.value.exit_code == 4
        chunk.rename(find_group(damaged) / name / "c" / "0")


@pytest.mark.parametrize("name", ARRAYS)
def test_flipped_bits(damaged, name):
    chunk = find_group(damaged) / name / "c" / "0"
    sound = chunk.read_bytes()
    message = rf"web\.zarr: .*/{name}, elements 0 to \d are damaged \(.*; ingest again or restore a copy"
    for place in {*range(0, len(sound), len(sound) // 8), *range(len(sound) - 4, len(sound))}:
        bits = bytearray(sound)
        bits[place] ^= 1 << place % 8
        chunk.write_bytes(bits)
        open_store(damaged)
        with pytest.raises(ChecksumError, match=message):
            read_all(damaged)
    chunk.write_bytes(sound)
    read_all(damaged)


def test_truncated_chunk(damaged):
    for name in ARRAYS:
        chunk = find_group(damaged) / name / "c" / "0"
        sound = chunk.read_bytes()
        for length in (0, 1, 3, 4, 5, len(sound) // 2, len(sound) - 1):
            chunk.write_bytes(sound[:length])
            with pytest.raises(ChecksumError, match=f"/{name}, elements 0 to .* are damaged"):
                read_all(damaged)
        chunk.write_bytes(sound + b"x")
        with pytest.raises(ChecksumError, match=f"/{name}, "):
            read_all(damaged)
        chunk.write_bytes(sound)


def test_truncated_array(damaged):
    for name in ARRAYS:
        path = find_group(damaged) / name / "zarr.json"
        sound = path.read_text()
        [length] = json.loads(sound)["shape"]
        for wrong in (length - 1, length + 1):
            path.write_text(json.dumps(json.loads(sound) | {"shape": [wrong]}))
            with pytest.raises(
                StoreDamagedError, match=rf"/{name} has shape \({wrong},\), should have \({length},\); ingest again"
            ):
                open_store(damaged)
        path.write_text(sound)


def test_an_array_of_two_dimensions_is_refused(damaged):
    group = zarr.open_group(find_group(damaged), mode="a")
    del group["data"]
    group.create_array("data", shape=(2, 3), dtype="float64")
    with pytest.raises(StoreDamagedError, match=r"/data has shape \(2, 3\)"):
        open_store(damaged)


def test_array_of_another_dtype(damaged):
    other = {"int64": "float64", "float64": "int64", "int32": "float32", "string": "int64"}

    def change(document: dict[str, Any]) -> None:
        document["data_type"] = other[document["data_type"]]
        document["fill_value"] = 0
        document["codecs"][0] = {"name": "bytes", "configuration": {"endian": "little"}}

    for name in ARRAYS:
        path = find_group(damaged) / name / "zarr.json"
        sound = path.read_bytes()
        change_json(path, change)
        message = rf"/{name} has dtype \w+, should have \w+( or int64)?; ingest again"
        with pytest.raises(StoreDamagedError, match=message):
            open_store(damaged)
        path.write_bytes(sound)


def test_missing_array(damaged, tmp_path):
    for name in ARRAYS:
        array = (find_group(damaged) / name).rename(tmp_path / "away")
        with pytest.raises(StoreDamagedError, match=f"{name.rpartition('/')[2]}") as caught:
            open_store(damaged)
        assert type(caught.value) is StoreDamagedError, name
        assert "missing" in str(caught.value), name
        array.rename(find_group(damaged) / name)


def test_missing_transpose(damaged):
    (find_group(damaged) / "transpose" / "zarr.json").unlink()
    with pytest.raises(StoreDamagedError, match=r"the group versions/v000001-\w+/transpose is missing; open it again"):
        open_store(damaged)


@pytest.mark.parametrize("version", [0, FORMAT_VERSION + 1, "2.0"])
def test_other_format_version_is_named_with_the_remedy(damaged, version):
    change_json(damaged / "zarr.json", lambda document: document["attributes"]["mgspmv"].update(format_version=version))
    with pytest.raises(
        StoreFormatError,
        match=rf"has store format {version}, but this program reads format {FORMAT_VERSION}; "
        "ingest its source again with overwrite=True",
    ):
        open_store(damaged)
    write_store(damaged, make_arrays(make_scipy(3, 3)), overwrite=True)
    assert open_store(damaged).info.shape == (3, 3)


def test_unfinished(tmp_path):
    with begin_version(tmp_path / "m"):
        pass  # and never commit
    with pytest.raises(StoreUnfinishedError, match=r"m was begun and never finished; run its `mgspmv ingest` again"):
        open_store(tmp_path / "m")
    write_store(tmp_path / "m", make_arrays(make_scipy(3, 3)))
    assert open_store(tmp_path / "m").info.shape == (3, 3)
