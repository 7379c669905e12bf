"""Saved ranks and batches whose description was changed, with and without the right digest of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import zarr

import mgspmv as mg
from mgspmv.errors import StoreDamagedError, StoreFormatError
from mgspmv.validation import seal

ZARR_KEY, PARQUET_KEY = "mgspmv_solution", b"mgspmv"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with ranks and batches."""
    folder = tmp_path_factory.mktemp("saved")
    mg.ingest(sp.csr_array(np.roll(np.eye(5), 1, axis=0) + np.eye(5)[::-1]), folder / "s.zarr", kind="graph")
    with mg.open_matrix(folder / "s.zarr") as matrix:
        made = {"ranks": mg.pagerank(matrix), "batch": mg.pagerank_batch(matrix, alpha=[0.5, 0.8])}
        made["top"] = mg.pagerank_batch(matrix, alpha=[0.5, 0.8], keep_top=2)
    for name, each in made.items():
        for suffix in (".zarr", ".parquet"):
            each.save(folder / f"{name}{suffix}")
    return folder


def change(path: Path, edit: Callable[[dict[str, Any]], Any], *, seals: bool = True) -> None:
    """Edit what a file says of itself."""

    def made_of(told: dict[str, Any]) -> dict[str, Any]:
        edit(told)
        return seal({name: value for name, value in told.items() if name != "sha256"}) if seals else told

    if path.suffix == ".zarr":
        attributes = zarr.open_group(str(path)).attrs
        attributes[ZARR_KEY] = made_of(dict(attributes[ZARR_KEY]))
    else:
        table = pq.read_table(path)
        told = made_of(json.loads(table.schema.metadata[PARQUET_KEY]))
        pq.write_table(table.replace_schema_metadata({PARQUET_KEY: json.dumps(told)}), path)


def copy(saved: Path, name: str, suffix: str, tmp_path: Path) -> Path:
    with_it = (
        mg.load_solution(saved / f"ranks{suffix}") if name == "ranks" else mg.load_batch(saved / f"{name}{suffix}")
    )
    with_it.save(tmp_path / f"r{suffix}")
    return tmp_path / f"r{suffix}"


def drop(*names: str) -> Callable[[dict[str, Any]], Any]:
    return lambda told: [told.pop(name) for name in names]


def put(**changed: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda told: told.update(changed)


def put_in(name: str, **changed: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda told: told[name].update(changed)


CASES: list[tuple[str, Callable[[dict[str, Any]], Any], str]] = [
    ("ranks", drop("status"), "status: field required"),
    ("ranks", put(status="rconverged"), "status: input should be 'converged'"),
    ("ranks", put(iterations=2**64), "a number has 65 bits, but at most 64 are allowed"),
    ("ranks", put(changes="x"), "changes: input should be a valid tuple"),
    ("ranks", put(seconds=[1.0]), "seconds: input should be a valid dictionary"),
    ("ranks", put(seconds={"product": "NaN"}), r"seconds\.product: a time is at least 0, not nan"),
    ("ranks", put(events=[{"iteration": 1}]), r"events\.0\.run: field required"),
    ("ranks", put(stability={"k": 1}), r"stability\.is_proven: field required"),
    ("ranks", put(options={"tol": "blosc"}), r"options\.tol: input should be a valid number"),
    ("ranks", put(options={"norm": []}), r"options\.norm: input should be 'l1', 'l1_per_node'"),
    ("ranks", put(options=None), "options: input should be a dictionary or an instance"),
    ("ranks", put_in("matrix", shape=[5]), r"matrix\.shape\.1: field required"),
    ("ranks", put_in("matrix", nnz=None), r"matrix\.nnz: input should be a valid integer"),
    ("ranks", put(digest=None), "digest: input should be a valid string"),
    ("batch", put(labels=[[], "y"]), r"labels\.0"),
    ("batch", put(labels=[]), "there are 0 labels of vectors|cannot reshape"),
    ("batch", put(labels=["a", "b", "c"]), "there are 3 labels of vectors|cannot reshape"),
    ("batch", put(alphas=None), "alphas: input should be a valid list"),
    ("batch", put(changes=[1.0, 2.0]), r"changes\.0: input should be a valid tuple"),
    ("batch", put_in("options", steps="x"), r"options\.steps: input should be a valid integer"),
    ("top", put(top=-1), "-1 ranks of each of 2 vectors"),
    ("top", put(vertex_ids=None), "vertex_ids: the highest ranks have ids"),
]


@pytest.mark.parametrize("suffix", [".zarr", ".parquet"])
@pytest.mark.parametrize(("name", "edit", "said"), CASES)
def test_impossible_fields_are_named(saved, tmp_path, suffix, name, edit, said):
    path = copy(saved, name, suffix, tmp_path)
    change(path, edit)
    with pytest.raises(StoreDamagedError, match=rf"r\{suffix}: .*{said}.*; compute it again or restore a copy"):
        mg.load_solution(path) if name == "ranks" else mg.load_batch(path)


@pytest.mark.parametrize("suffix", [".zarr", ".parquet"])
@pytest.mark.parametrize("source", [[7, 900], ["a", "b"]])
def test_ids_that_the_metadata_denies(tmp_path, suffix, source):
    path, edges = tmp_path / f"r{suffix}", pa.table({"src": source, "dst": source[::-1]})
    for rank, load in ((mg.pagerank, mg.load_solution), (mg.pagerank_batch, mg.load_batch)):
        rank(edges).save(path, overwrite=True)
        change(path, put(vertex_ids=None))
        with pytest.raises(StoreDamagedError, match=r"0\.\.n-1; compute|no column id of int64"):
            load(path)


@pytest.mark.parametrize("suffix", [".zarr", ".parquet"])
@pytest.mark.parametrize("name", ["ranks", "batch"])
def test_options_under_their_former_names(saved, tmp_path, suffix, name):
    path = copy(saved, name, suffix, tmp_path)
    change(path, lambda told: told["options"].update(tol_mode=told["options"].pop("norm")))
    found = mg.load_solution(path) if name == "ranks" else mg.load_batch(path)
    assert found.options["norm"] == "l1"
    assert "tol_mode" not in found.options


@pytest.mark.parametrize("suffix", [".zarr", ".parquet"])
@pytest.mark.parametrize("edit", [put(status="max_iter"), put(resumed_after=3), put_in("options", alpha=0.5)])
def test_plausible_fields_that_were_changed_are_noticed(saved, tmp_path, suffix, edit):
    path = copy(saved, "ranks", suffix, tmp_path)
    change(path, edit, seals=False)
    with pytest.raises(StoreDamagedError, match="does not match its digest, so it was changed after it was written"):
        mg.load_solution(path)


@pytest.mark.parametrize("top", [2**62, 2**31])
def test_more_ranks_of_each_vector_than_there_are(saved, tmp_path, top):
    path = copy(saved, "top", ".parquet", tmp_path)
    change(path, lambda told: told.update(top=top, matrix=told["matrix"] | {"shape": [2**62, 2**62]}))
    with pytest.raises(StoreDamagedError, match=f"{top} ranks of each of 2 vectors exceed the matrix or the memory"):
        mg.load_batch(path)


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        (b"{", StoreDamagedError, "is not JSON"),
        (b"\xff", StoreDamagedError, "is not JSON"),
        (b"[" * 10**5, StoreDamagedError, "it is nested too deep"),
        (b"[]", StoreDamagedError, "it has no fields"),
        (b"{}", StoreFormatError, "of format version None"),
    ],
)
def test_text_that_is_no_description(saved, tmp_path, text, error, said):
    table = pq.read_table(saved / "ranks.parquet").replace_schema_metadata({PARQUET_KEY: text})
    pq.write_table(table, tmp_path / "r.parquet")
    with pytest.raises(error, match=said):
        mg.load_solution(tmp_path / "r.parquet")


@pytest.mark.parametrize(
    "columns",
    [
        {"id": pa.array([0, 1])},
        {"id": pa.array([0, 1]), "rank": pa.array(["a", "b"])},
        {"id": pa.array([0, 1]), "rank": pa.array([0.5, None])},
        {"id": pa.array([[0], [1]]), "rank": pa.array([0.5, 0.5])},
        {"id": pa.array([4, 1]), "rank": pa.array([0.5, 0.5])},
    ],
    ids=["missing", "text", "gap", "lists", "ids of others"],
)
def test_columns_of_others(saved, tmp_path, columns):
    metadata = pq.read_schema(saved / "ranks.parquet").metadata
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), tmp_path / "r.parquet")
    with pytest.raises(StoreDamagedError, match=r"has no column|states that they are 0\.\.n-1"):
        mg.load_solution(tmp_path / "r.parquet")
