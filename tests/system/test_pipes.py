"""Pipes and sockets in the place of files: an error in one line, where to open them would take forever."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import numpy as np
import pytest
import zarr

import mgspmv as mg
from mgspmv.errors import MgspmvError
from mgspmv.pipeline import run_pipeline
from tests.support.commands import invoke
from tests.support.definitions import write_definition

SAID = "is a pipe, a socket or a device, but a file is expected"


def put_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))


def put_linked_pipe(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


SORTS = {"a pipe": os.mkfifo, "a socket": put_socket, "a link to a pipe": put_linked_pipe}


def replace(path: Path, sort: str) -> None:
    path.unlink()
    SORTS[sort](path)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


IN_STORES = ["zarr.json", "versions/zarr.json", "V/zarr.json", "V/indptr/zarr.json", "V/indices/c/0"]


@pytest.mark.parametrize(
    ("name", "sort"),
    [*((name, "a pipe") for name in IN_STORES), ("zarr.json", "a socket"), ("V/indices/c/0", "a link to a pipe")],
)
def test_in_a_store(name, sort):
    version = mg.ingest(([0, 1], [1, 0]), "s.zarr").info.version
    replace(Path("s.zarr", name.replace("V", f"versions/{version}")), sort)
    for command in ("pagerank s.zarr", "verify s.zarr", "ingest s.zarr t.zarr"):
        assert SAID in invoke(*command.split(), code=None)[1], command
    if name == "zarr.json":
        assert SAID in invoke("ingest", "s.zarr", "s.zarr", "--overwrite", code=None)[1]
    assert not os.path.exists("t.zarr")


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("name", ["zarr.json", "indices/zarr.json", "indices/c/0"])
def test_in_a_group(name, sort):
    group = zarr.open_group("c", mode="w", attributes={"shape": [2, 2]})
    group.create_array("indptr", data=np.array([0, 1, 1]))
    group.create_array("indices", data=np.array([1]))
    replace(Path("c", name), sort)
    with pytest.raises(MgspmvError, match=SAID):
        mg.ingest("c", "t.zarr", format="csr")


@pytest.mark.parametrize(
    "name", ["ranks.zarr/zarr.json", "ranks.zarr/*/zarr.json", "ranks.zarr/*/c/0", "ranks.parquet"]
)
def test_in_ranks(name):
    with mg.ingest(([0, 1], [1, 0]), "s.zarr") as matrix:
        ranks = mg.pagerank(matrix)
    path = Path(name).parts[0]
    ranks.save(path)
    replace(next(Path().glob(name)), "a pipe")
    with pytest.raises(MgspmvError, match=SAID):
        mg.load_solution(path)


def test_definitions_and_what_they_name():
    mg.ingest(([0, 1], [1, 0]), "s.zarr")
    os.mkfifo("p.toml")
    assert SAID in invoke("run", "p.toml", code=None)[1]
    os.mkdir("x.zarr")
    os.mkfifo("x.zarr/zarr.json")
    os.unlink("p.toml")
    products = '[matrix.web]\nopen = "s.zarr"\n[product.y]\nx = "x.zarr"\n'
    with pytest.raises(MgspmvError, match=SAID):
        run_pipeline(write_definition(products))


def test_what_an_export_overwrites():
    mg.ingest(([0, 1], [1, 0]), "s.zarr")
    os.mkdir("x.zarr")
    os.mkfifo("x.zarr/zarr.json")
    assert SAID in invoke("export", "s.zarr", "x.zarr", "--format", "binsparse", "--overwrite", code=None)[1]
