"""Sources and vectors with impossible shapes, types and bytes: a SourceError in one line, or what is there."""

from __future__ import annotations

import base64
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.storage import MemoryStore

import mgspmv as mg
from mgspmv.errors import SourceError
from mgspmv.ingest.vertex_vectors import read_vector, read_weights
from tests.support.commands import invoke
from tests.support.damage import check_ending, edits, observe

MATRIX = sp.csr_array([[0, 1.5, 0], [2, 0, 0.5], [0, 0, -1]])
DIAGONALS = sp.dia_array(([[1, 2, 0], [4, 5, 6]], [0, -1]), shape=(3, 4))


def write_npz(path: Path, matrix: Any, **changed: Any) -> Path:
    """Write a matrix as SciPy does, with other arrays in place of its own."""
    buffer = io.BytesIO()
    sp.save_npz(buffer, matrix)
    buffer.seek(0)
    with np.load(buffer) as arrays:
        np.savez(path, **{**arrays, **changed})
    return path


def write_group(path: Path, zarr_format: Any = 3) -> Path:
    """Write a matrix as a Zarr group of CSR arrays."""
    group = zarr.open_group(path, mode="w", attributes={"shape": [3, 3]}, zarr_format=zarr_format)
    for name in ("indptr", "indices", "data"):
        group.create_array(name, data=getattr(MATRIX, name))
    return path


# --- named cases -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.int8, np.bool_, np.float64])
def test_diagonals_are_read_whatever_their_dtype(tmp_path, dtype):
    path = write_npz(tmp_path / "a.npz", DIAGONALS, data=DIAGONALS.data.astype(dtype))
    found = mg.ingest(path, kind="matrix").to_scipy()
    assert found.toarray().tolist() == DIAGONALS.toarray().astype(dtype).tolist()
    assert found.nnz == DIAGONALS.tocsr().nnz


@pytest.mark.parametrize("layout", ["csr", "csc"])
def test_half_precision_is_read_in_each_format(tmp_path, layout):
    matrix = MATRIX.asformat(layout)
    mg.ingest(write_npz(tmp_path / "a.npz", matrix, data=matrix.data.astype(np.float16)), store := MemoryStore())
    assert mg.open_matrix(store).to_scipy().toarray().tolist() == MATRIX.toarray().tolist()


@pytest.mark.parametrize("layout", ["dia", "coo"])
@pytest.mark.parametrize("shape", [(2**40, 3), (2**62, 2**62), (2**63 - 1, 3), (-1, 3)])
def test_shapes_beyond_any_disk(tmp_path, layout, shape):
    path = write_npz(tmp_path / "a.npz", MATRIX.asformat(layout), shape=np.array(shape))
    with pytest.raises(SourceError, match=r"a\.npz"):
        mg.ingest(path)


def test_columns_of_a_matrix_may_be_any(tmp_path):
    path = write_npz(tmp_path / "a.npz", sp.dia_array(MATRIX), shape=np.array((3, 2**62)))
    info = mg.ingest(path, kind="matrix").info
    assert (info.shape, info.nnz) == ((3, 2**62), 4)


@pytest.mark.parametrize(("bits", "said"), [(4, "Integers with less than 8 bits"), (128, "Integers with more than 64")])
def test_integers_of_odd_widths_in_the_schema_of_arrow(tmp_path, bits, said):
    table = pa.table({"source": pa.array([1, 2], pa.int64()), "target": pa.array([2, 1], pa.int64())})
    pq.write_table(table, path := tmp_path / "a.parquet")
    schema, width = table.schema.serialize().to_pybytes(), (64).to_bytes(4, "little")
    odd = schema.replace(width, bits.to_bytes(4, "little"))
    written, changed = map(base64.b64encode, (schema, odd))
    assert path.read_bytes().count(written) == 1
    path.write_bytes(path.read_bytes().replace(written, changed))
    with pytest.raises(SourceError, match=rf"a\.parquet: not a Parquet file, or damaged .*{said}"):
        mg.ingest(path)


@pytest.mark.parametrize(
    ("zarr_format", "name", "key", "value"),
    [
        (3, "indices", "shape", [2**63]),
        (3, "data", "shape", [2**64]),
        (3, "indptr", "shape", [10**30]),
        (2, "data", "chunks", [0]),
        (2, "indices", "shape", [2**63]),
        (3, "", "attributes", {"shape": [2**64, 3]}),
        (3, "", "attributes", {"shape": [3, -1]}),
        (3, "", "attributes", {"shape": "x"}),
    ],
)
def test_groups_with_impossible_lengths(tmp_path, zarr_format, name, key, value):
    path = write_group(tmp_path / "a.zarr", zarr_format)
    place = path / name / ("zarr.json" if zarr_format == 3 else ".zarray")
    place.write_text(json.dumps(json.loads(place.read_text()) | {key: value}))
    with pytest.raises(SourceError, match=r"a\.zarr"):
        mg.ingest(path, format="csr")


@pytest.mark.parametrize("size", ["9223372036854775808 3", f"3 {2**64}", f"{10**30} {10**30}", "-1 3"])
def test_shapes_of_matrix_market_beyond_int64(tmp_path, size):
    (tmp_path / "a.mtx").write_text(f"%%MatrixMarket matrix coordinate real general\n{size} 1\n1 1 1\n")
    with pytest.raises(SourceError, match=r"a\.mtx, line 2"):
        mg.ingest(tmp_path / "a.mtx")


def test_the_command_line_says_what_is_wrong(tmp_path):
    path = write_npz(tmp_path / "a.npz", DIAGONALS, shape=np.array([2**40, 2**40]))
    _, stderr = invoke("ingest", str(path), str(tmp_path / "s.zarr"), code=3)
    assert stderr.startswith("error: ")
    assert stderr.count("\n") == 1
    assert not (tmp_path / "s.zarr").exists()


# --- fuzz ------------------------------------------------------------------------------------------------------------


def ingest(path: Path) -> str:
    mg.ingest(path, store := MemoryStore())
    assert mg.verify(store) == []
    return "whole"


CALLS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "matrix": (".npz", ingest),
    "diagonals": (".npz", ingest),
    "edges": (".parquet", ingest),
    "vector": (".npy", read_vector),
    "table": (".parquet", read_weights),
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("sources")
    sp.save_npz(folder / "matrix.npz", MATRIX, compressed=False)
    sp.save_npz(folder / "diagonals.npz", DIAGONALS, compressed=False)
    pq.write_table(pa.table({"source": [1, 2], "target": [2, 3], "weight": [1.5, 2.5]}), folder / "edges.parquet")
    np.save(folder / "vector.npy", np.arange(3.0))
    pq.write_table(pa.table({"id": [1, 2], "weight": [1.0, 2.0]}), folder / "table.parquet")
    write_group(folder / "group3.zarr")
    write_group(folder / "group2.zarr", 2)
    return folder


@pytest.mark.fuzz
@given(data=st.data())
def test_flipped_bits_of_sources_are_no_raw_exception(sources, data):
    name = data.draw(st.sampled_from(sorted(CALLS)))
    suffix, call = CALLS[name]
    content = bytearray((sources / f"{name}{suffix}").read_bytes())
    for bit in data.draw(st.lists(st.integers(0, 8 * len(content) - 1), min_size=1, max_size=3)):
        content[bit // 8] ^= 1 << bit % 8
    path = sources / f"damaged{suffix}"
    path.write_bytes(content[: data.draw(st.just(len(content)) | st.integers(0, len(content)))])
    check_ending(observe(lambda: str(call(path))), name)


@pytest.mark.fuzz
@given(data=st.data())
def test_arrays_of_an_npz_are_checked(sources, data):
    matrix = MATRIX.asformat(data.draw(st.sampled_from(["csr", "csc", "coo", "dia", "bsr"])))
    buffer = io.BytesIO()
    sp.save_npz(buffer, matrix)
    buffer.seek(0)
    with np.load(buffer) as loaded:
        arrays = dict(loaded)
    name = data.draw(st.sampled_from(sorted(arrays.keys() - {"format"})))
    number = data.draw(st.sampled_from([0, -1, 3, 4, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63)]))
    dtype = data.draw(
        st.sampled_from(["f2", "f4", "f8", "f16", "i1", "u8", "c8", "?", "S3", "U3", "M8[s]", ">f8", "V8"])
    )
    place = data.draw(st.integers(0, arrays[name].size - 1))
    with np.errstate(all="ignore"):
        match data.draw(st.sampled_from(["number", "dtype", "cut", "shape", "dimension"])):
            case "number":
                arrays[name] = arrays[name].astype(np.int64)
                arrays[name].flat[place] = number
            case "dtype":
                arrays[name] = arrays[name].astype(dtype) if dtype != "V8" else arrays[name].astype("S8").view("V8")
            case "cut":
                arrays[name] = arrays[name].ravel()[:place]
            case "shape":
                arrays["shape"] = np.array(data.draw(st.sampled_from([[number, 3], [3, number], [number], number])))
            case "dimension":
                arrays[name] = np.array([arrays[name]])
    np.savez(sources / "damaged.npz", **arrays)
    check_ending(observe(ingest, sources / "damaged.npz"), "npz")


@pytest.mark.fuzz
@given(data=st.data())
def test_edited_groups_are_no_raw_exception(sources, data):
    path, edit = sources / "damaged.zarr", data.draw(edits)
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(sources / data.draw(st.sampled_from(["group2.zarr", "group3.zarr"])), path)
    files = sorted(file for file in path.rglob("*") if file.name in ("zarr.json", ".zarray", ".zattrs", ".zgroup"))
    file = files[edit.file % len(files)]
    text, said = edit.apply(file.read_bytes())
    file.write_bytes(text)
    check_ending(observe(ingest, path), said)
