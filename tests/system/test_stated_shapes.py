"""Files of a few bytes that state large shapes, in every format: refused before anything is written."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

import mgspmv as mg
from mgspmv.errors import CapacityError, StoreError

HUGE = 10**14


def write_text(name: str, text: str) -> str:
    Path(name).write_text(text)
    return name


def write_npz() -> str:
    sp.save_npz("a.npz", sp.coo_array(([1.0], ([0], [1])), shape=(HUGE, HUGE)))
    return "a.npz"


def write_anndata() -> str:
    group = zarr.open_group("a.zarr", mode="w")
    group.attrs.put({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [HUGE, HUGE]})
    write_pointers(group)
    group.create_array("indices", shape=(0,), dtype="i4", chunks=(1,))
    group.create_array("data", shape=(0,), dtype="f8", chunks=(1,))
    return "a.zarr"


def write_binsparse() -> str:
    types = {"indices_0": "int64", "indices_1": "int64", "values": "float64"}
    header = {
        "version": "0.1",
        "format": "COO",
        "shape": [HUGE, HUGE],
        "number_of_stored_values": 1,
        "data_types": types,
    }
    group = zarr.open_group("b.zarr", mode="w", attributes={"binsparse": header | {"data_types": types}})
    for name, value in (("indices_0", 0), ("indices_1", 1), ("values", 1.5)):
        group.create_array(name, data=np.array([value]))
    return "b.zarr"


def write_csr() -> str:
    group = zarr.open_group("c", mode="w", attributes={"shape": [HUGE, HUGE]})
    write_pointers(group)
    group.create_array("indices", shape=(0,), dtype="i4", chunks=(1,))
    return "c"


def write_pointers(group: zarr.Group) -> None:
    """Write pointers of 0, of which no chunk is written."""
    group.create_array("indptr", shape=(HUGE + 1,), dtype="i8", chunks=(1 << 18,), fill_value=0)


SOURCES = {
    "Matrix Market": lambda: write_text("a.mtx", f"%%MatrixMarket matrix coordinate real general\n{HUGE} 3 1\n1 1 2\n"),
    "an edge list": lambda: write_text("e.txt", f"# A graph\n# Nodes: {HUGE} Edges: 1\n0\t1\n"),
    "npz": write_npz,
    "anndata": write_anndata,
    "binsparse": write_binsparse,
    "CSR in Zarr": write_csr,
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_shape_must_fit_on_the_disk(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = SOURCES[name]()
    with pytest.raises(StoreError, match=r"new.zarr would take 800 TB .* of disk are free"):
        mg.ingest(source, "new.zarr", kind="matrix")
    assert not os.path.exists("new.zarr")


def test_entries_of_a_group_that_no_disk_has_room_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    group = zarr.open_group("c", mode="w", attributes={"shape": [2, 2]})
    group.create_array("indptr", data=np.array([0, 0, HUGE]))
    group.create_array("indices", shape=(HUGE,), dtype="i4", chunks=(1 << 18,), fill_value=0)
    with pytest.raises(CapacityError, match=r"c states 100,000,000,000,000 entries, which take 400 TB .*scratch="):
        mg.ingest("c", "new.zarr")
