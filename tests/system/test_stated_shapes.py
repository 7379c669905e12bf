"""Files of a few bytes that state large shapes, in every format: refused before anything is written, unless the user
says that the shape is meant."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

import mgspmv as mg
from mgspmv.errors import CapacityError, SourceError, StepsFailedError, StoreError
from mgspmv.ingest import budget
from mgspmv.pipeline import run_pipeline
from tests.support.commands import invoke
from tests.support.definitions import write_definition

FREE_ROWS = 1000
"""In these tests, so that what is allowed is written quickly."""
LARGE, HUGE = 50_000, 10**14


def write_text(name: str, text: str) -> str:
    Path(name).write_text(text)
    return name


def write_npz(n: int) -> str:
    sp.save_npz("a.npz", sp.coo_array(([1.0], ([0], [1])), shape=(n, n)))
    return "a.npz"


def write_anndata(n: int) -> str:
    group = zarr.open_group("a.zarr", mode="w")
    group.attrs.put({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [n, n]})
    write_pointers(group, "indptr", n)
    group.create_array("indices", shape=(0,), dtype="i4", chunks=(1,))
    group.create_array("data", shape=(0,), dtype="f8", chunks=(1,))
    return "a.zarr"


def write_binsparse(n: int) -> str:
    types = {"indices_0": "int64", "indices_1": "int64", "values": "float64"}
    header = {"version": "0.1", "format": "COO", "shape": [n, n], "number_of_stored_values": 1, "data_types": types}
    group = zarr.open_group("b.zarr", mode="w", attributes={"binsparse": header})
    for name, value in (("indices_0", 0), ("indices_1", 1), ("values", 1.5)):
        group.create_array(name, data=np.array([value]))
    return "b.zarr"


def write_csr(n: int) -> str:
    group = zarr.open_group("c", mode="w", attributes={"shape": [n, n]})
    write_pointers(group, "indptr", n)
    group.create_array("indices", shape=(0,), dtype="i4", chunks=(1,))
    return "c"


def write_pointers(group: zarr.Group, name: str, n: int) -> None:
    """Write n + 1 pointers of 0, of which no chunk is written."""
    group.create_array(name, shape=(n + 1,), dtype="i8", chunks=(1 << 18,), fill_value=0)


BANNER = "%%MatrixMarket matrix {} real {}\n"
SOURCES = {
    "Matrix Market": (lambda n: write_text("a.mtx", BANNER.format("coordinate", "general") + f"{n} 3 1\n1 1 2\n"), 2),
    "a symmetric one": (
        lambda n: write_text("a.mtx", BANNER.format("coordinate", "symmetric") + f"%\n{n} {n} 1\n2 1 2\n"),
        3,
    ),
    "an array without columns": (lambda n: write_text("a.mtx", BANNER.format("array", "general") + f"{n} 0\n"), 2),
    "an edge list": (lambda n: write_text("e.txt", f"# A graph\n# Nodes: {n} Edges: 1\n0\t1\n"), 2),
    "npz": (write_npz, None),
    "anndata": (write_anndata, None),
    "binsparse": (write_binsparse, None),
    "CSR in Zarr": (write_csr, None),
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(budget, "FREE_ROWS", FREE_ROWS)
    return tmp_path


@pytest.mark.parametrize("name", SOURCES)
def test_a_large_shape_is_refused_unless_it_is_allowed(name, folder):
    make, line = SOURCES[name]
    source, where = make(LARGE), "" if line is None else f", line {line}"
    before = sorted(os.listdir())
    kind = {"kind": "graph"} if name == "npz" else {}
    with pytest.raises(SourceError, match=rf"{source}{where}.* the shape 50,000 x .*bytes\) .*allow_hypersparse=True"):
        mg.ingest(source, "new.zarr", **kind)
    with pytest.raises(SourceError, match="the shape 50,000 x"):
        mg.ingest(source, **kind)
    assert "pass --allow-hypersparse if it is intended" in invoke("ingest", source, "new.zarr", code=3)[1]
    definition = f'folder = "out"\n[matrix.web]\nsource = "{source}"\nkind = "matrix"\n'
    with pytest.raises(StepsFailedError, match="allow_hypersparse"):
        run_pipeline(write_definition(definition))
    assert sorted({*os.listdir()} - {"p.toml", "out"}) == before
    assert mg.ingest(source, "new.zarr", allow_hypersparse=True, **kind).info.shape[0] == LARGE
    invoke("ingest", source, "new.zarr", "--allow-hypersparse", "--overwrite")
    record = run_pipeline(write_definition(definition + "allow_hypersparse = true\n"))
    assert [step.state for step in record.steps] == ["made"]


@pytest.mark.parametrize("name", SOURCES)
def test_an_allowed_shape_must_fit_on_the_disk(name):
    source = SOURCES[name][0](HUGE)
    with pytest.raises(SourceError, match="the shape 100,000,000,000,000 x"):
        mg.ingest(source, "new.zarr")
    with pytest.raises(StoreError, match=r"new.zarr would take 800 TB .* of disk are free"):
        mg.ingest(source, "new.zarr", allow_hypersparse=True, kind="matrix")
    assert not os.path.exists("new.zarr")


def test_entries_of_a_group_that_no_disk_has_room_for():
    group = zarr.open_group("c", mode="w", attributes={"shape": [2, 2]})
    group.create_array("indptr", data=np.array([0, 0, HUGE]))
    group.create_array("indices", shape=(HUGE,), dtype="i4", chunks=(1 << 18,), fill_value=0)
    with pytest.raises(
        CapacityError, match=r"c states 100,000,000,000,000 entries, and sorting them takes at least 400 TB .*scratch="
    ):
        mg.ingest("c", "new.zarr")


INSERTIONS = {
    "Matrix Market": ("a.mtx", BANNER.format("coordinate", "general") + f"{LARGE} {LARGE} 1\n1 2 1\n"),
    "an edge list": ("e.txt", f"# Nodes: {LARGE} Edges: 1\n0\t2\n"),
}


@pytest.mark.parametrize("name", INSERTIONS)
def test_what_an_update_inserts(name):
    source = write_text(*INSERTIONS[name])
    weights = ([1.0, 1.0],) if name == "Matrix Market" else ()
    before = mg.ingest(([0, 1], [1, 0], *weights), "s.zarr").info
    with pytest.raises(SourceError, match="the shape 50,000 x 50,000 is stated for 3 entries"):
        mg.update("s.zarr", insert=source)
    assert "--allow-hypersparse" in invoke("update", "s.zarr", "--insert", source, code=3)[1]
    assert mg.open_matrix("s.zarr").info == before
    invoke("update", "s.zarr", "--insert", source, "--allow-hypersparse")
    assert mg.open_matrix("s.zarr").shape == (LARGE, LARGE)
    mg.update("s.zarr", insert=source)  # which makes it no larger


def test_what_the_update_of_a_definition_inserts():
    write_text("edges.txt", "0 1\n1 0\n")
    source = write_text(*INSERTIONS["an edge list"])
    definition = f'folder = "out"\n[matrix.web]\nsource = "edges.txt"\nupdate.insert = "{source}"\n'
    with pytest.raises(StepsFailedError, match="the shape 50,000 x 50,000 is stated"):
        run_pipeline(write_definition(definition))
    run_pipeline(write_definition(definition + "update.allow_hypersparse = true\n"))
    assert mg.open_matrix("out/web.zarr").shape == (LARGE, LARGE)


@pytest.mark.parametrize(
    ("source", "options"),
    [
        (lambda: write_text("e.txt", "0 1\n"), {"n_vertices": LARGE}),
        (lambda: sp.coo_array(([1.0], ([0], [1])), shape=(LARGE, LARGE)), {}),
        (lambda: ([0], [1]), {"n_vertices": LARGE}),
        (lambda: write_text("a.mtx", BANNER.format("coordinate", "general") + f"3 {LARGE} 1\n1 1 2\n"), {}),
        (lambda: write_text("e.txt", f"# Nodes: {FREE_ROWS - 1} Edges: 1\n0 1\n"), {}),
        (lambda: write_text("e.txt", f"# Nodes: 7 Edges: 1\n0 {HUGE}\n"), {}),
        (
            lambda: write_text("e.txt", "# Nodes: 10000\n" + "".join(f"{k} {k + 1}\n" for k in range(101))),
            {},
        ),
        (lambda: write_text("a.mtx", BANNER.format("array", "general") + "1500 1\n" + "0\n" * 1500), {}),
    ],
    ids=["by the user", "SciPy", "arrays", "columns, which are not stored", "few", "not used", "entries", "an array"],
)
def test_shapes_that_are_no_fault(source, options):
    info = mg.ingest(source(), "new.zarr", **options).info
    assert mg.ingest("new.zarr", "copy.zarr").info.digest == info.digest  # a store has all of its rows
