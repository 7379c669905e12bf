"""One rule for the types of values, whatever they come in: as they are, as float64 when asked for, or refused."""

from __future__ import annotations

import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import zarr
from hypothesis import given
from hypothesis import strategies as st

import mgspmv as mg
from mgspmv.errors import SourceError
from mgspmv.ingest import objects, tables, zarr_groups
from mgspmv.ingest.source import choose_value_dtype, convert_values

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification")

LEAST, MOST = -(2**63), 2**63 - 1

# --- the rule --------------------------------------------------------------------------------------------------------

STORED = {
    "bool": ([True, False], "int64"),
    "int8": ([-128, 127], "int64"),
    "int64": ([LEAST, MOST], "int64"),
    "uint32": ([0, 2**32 - 1], "int64"),
    "uint64": ([0, MOST], "int64"),
    ">i8": ([LEAST, MOST], "int64"),
    "float16": ([0.5, 1], "float64"),
    "float32": ([0.5, 1], "float32"),
    "float64": ([0.1, 1], "float64"),
}


def test_values_are_stored_as():
    for dtype, (values, stored) in STORED.items():
        found = convert_values(np.array(values, dtype), None, "given")
        assert (found.dtype.name, found.tolist()) == (stored, [*map(np.dtype(stored).type, values)]), dtype


def test_dtypes_that_sources_give():
    for dtype, wanted in (("uint64", "uint64"), ("uint8", "int64"), ("float16", "float32"), ("<f8", "float64")):
        assert choose_value_dtype(np.dtype(dtype), "given") == wanted, dtype
    for dtype in ("complex64", "O", "U1", "M8[s]", "bool"):
        with pytest.raises(SourceError, match=r"^given: .* are not supported; "):
            choose_value_dtype(np.dtype(dtype), "given")


def test_a_number_too_large_for_float32():
    with pytest.raises(SourceError, match=r"^given: the value 1e\+300 does not fit into float32; ingest with dtype="):
        convert_values(np.array([1, 1e300, np.nan]), "float32", "given")


# --- every input -----------------------------------------------------------------------------------------------------

SRC, DST = np.array([0, 0, 1, 1, 2]), np.array([0, 2, 1, 2, 2])
"""Entries (row, column) of a matrix of 3 x 3, by row."""


def make_frame(weights, library=pd):
    return library.DataFrame({"src": SRC, "dst": DST, "weight": weights})


def write_parquet(path, weights):
    pq.write_table(pa.Table.from_pandas(make_frame(weights), preserve_index=False), path / "e.parquet")
    return path / "e.parquet"


def write_two(path, weights):
    """Two files, of which the first holds what is small."""
    (path / "two").mkdir(exist_ok=True)
    table = pa.Table.from_pandas(make_frame(weights), preserve_index=False)
    pq.write_table(table.slice(0, 4), path / "two" / "a.parquet")
    pq.write_table(table.slice(4), path / "two" / "b.parquet")
    return path / "two"


def write_npz(path, weights):
    sp.save_npz(path / "m.npz", make_sparse(weights))
    return path / "m.npz"


def make_sparse(weights):
    return sp.coo_array((weights, (SRC, DST)), shape=(3, 3))


def make_dense(weights):
    dense = np.zeros((3, 3), weights.dtype)
    dense[SRC, DST] = weights
    return dense


def write_group(path, weights, attributes=None, name="c.zarr"):
    matrix = make_sparse(weights).tocsr()
    group = zarr.open_group(path / name, mode="w")
    for label in ("data", "indices", "indptr"):
        group.create_array(label, data=getattr(matrix, label))
    group.attrs.update({"shape": [3, 3]} | (attributes or {}))
    return path / name


def write_anndata(path, weights):
    attributes = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0"}
    return write_group(path, weights, attributes, "a.zarr")


def write_binsparse(path, weights):
    matrix, path = make_sparse(weights).tocsr(), path / "b.zarr"
    group = zarr.open_group(path, mode="w")
    arrays = {"pointers_to_1": matrix.indptr, "indices_1": matrix.indices, "values": matrix.data}
    for label, array in arrays.items():
        group.create_array(label, data=array)
    types = {label: array.dtype.name for label, array in arrays.items()}
    said = {"format": "CSR", "shape": [3, 3], "number_of_stored_values": matrix.nnz, "data_types": types}
    group.attrs["binsparse"] = said | {"version": "0.1"}
    return path


def write_mtx(path, weights):
    field = "unsigned-integer" if weights.dtype.kind == "u" else "integer"
    lines = [f"{i + 1} {j + 1} {w}" for i, j, w in zip(SRC, DST, weights.tolist(), strict=True)]
    text = [f"%%MatrixMarket matrix coordinate {field} general", "3 3 5", *lines]
    (path / "m.mtx").write_text("\n".join(text) + "\n")
    return path / "m.mtx"


FILES = {
    "Parquet": write_parquet,
    "two Parquet files": write_two,
    "npz": write_npz,
    "plain arrays in Zarr": write_group,
    "anndata": write_anndata,
    "binsparse": write_binsparse,
    "Matrix Market": write_mtx,
}
OBJECTS = {
    "pandas": make_frame,
    "pandas nullable": lambda w: make_frame(pd.array(w, dtype="UInt64" if w.dtype.kind == "u" else "Int64")),
    "pandas by Arrow": lambda w: make_frame(pd.array(w, dtype=f"{w.dtype.name}[pyarrow]")),
    "polars": lambda w: make_frame(w, pl),
    "Arrow": lambda w: pa.table({"src": SRC, "dst": DST, "weight": w}),
    "Dask": lambda w: dd.from_pandas(make_frame(w), npartitions=2),
    "arrays of NumPy": lambda w: (SRC, DST, w),
    "arrays of pandas": lambda w: (pd.Series(SRC), pd.Series(DST), pd.Series(w)),
    "arrays of polars": lambda w: (pl.Series(SRC), pl.Series(DST), pl.Series(w)),
    "arrays of Arrow": lambda w: (pa.array(SRC), pa.array(DST), pa.chunked_array([w[:2], w[2:]])),
    "arrays of integers as objects": lambda w: (SRC.astype(object), DST, w),
    "coo": make_sparse,
    "csr": lambda w: make_sparse(w).tocsr(),
    "csc": lambda w: make_sparse(w).tocsc(),
    "dense": make_dense,
}
INPUTS = {name: lambda path, w, make=make: make(w) for name, make in OBJECTS.items()} | FILES


@pytest.fixture
def small_batches(monkeypatch):
    """Have readers give two entries at a time, so that only a late batch holds what is large."""
    for module, name in ((tables, "PART_ROWS"), (objects, "BATCH_ENTRIES"), (zarr_groups, "BATCH_ENTRIES")):
        monkeypatch.setattr(module, name, 2)


def ingest(source, **options):
    A = mg.ingest(source, **({"kind": "matrix"} | options))
    return A.info, A.to_scipy().toarray()


WITHIN = np.array([7, 0, 3, 2**53 + 1, MOST], np.uint64)
BEYOND = np.array([7, 1, 3, 5, 2**63 + 2**11], np.uint64)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("name", INPUTS)
def test_unsigned_weights(tmp_path, name):
    for sign in ("u8", "i8"):
        info, found = ingest(INPUTS[name](tmp_path, WITHIN.astype(sign)))
        assert info.dtype == "int64"
        np.testing.assert_array_equal(found, make_dense(WITHIN.astype(np.int64)))
    source = INPUTS[name](tmp_path, BEYOND)
    for dtype in (None, "float32"):
        with pytest.raises(SourceError, match=r'(9223372036854777856|9223372036854777856\b).*dtype="float64"'):
            ingest(source, dtype=dtype)
    info, found = ingest(INPUTS[name](tmp_path, BEYOND), dtype="float64")
    assert info.dtype == "float64"
    np.testing.assert_array_equal(found, make_dense(BEYOND.astype(np.float64)))
    info, _ = ingest(INPUTS[name](tmp_path, BEYOND), weights=False)
    assert (info.dtype, info.nnz) == (None, 5)


def test_unsigned_weights_on_a_cluster(tmp_path, in_process):
    client = in_process(2)
    for name in ("Parquet", "two Parquet files", "Matrix Market"):
        path = FILES[name](tmp_path, BEYOND)
        with pytest.raises(SourceError, match=r'9223372036854777856.*dtype="float64"'):
            mg.ingest(path, tmp_path / "c", kind="matrix", client=client)
        assert not (tmp_path / "c").exists()
        info = mg.ingest(path, tmp_path / "c", kind="matrix", client=client, dtype="float64", overwrite=True).info
        assert info.digest == ingest(path, dtype="float64")[0].digest, name
        (tmp_path / "c").rename(tmp_path / name)


def test_unsigned_weights_that_are_inserted(tmp_path):
    new = make_frame(BEYOND)
    before = mg.ingest(make_frame(WITHIN), tmp_path / "int64").info.digest
    with pytest.raises(SourceError, match=r'9223372036854777856 does not fit into int64.*dtype="float64"'):
        mg.update(tmp_path / "int64", insert=new)
    assert mg.open_matrix(tmp_path / "int64").info.digest == before
    mg.ingest(make_frame(WITHIN), tmp_path / "float64", dtype="float64")
    info = mg.update(tmp_path / "float64", insert=new).info
    both = pd.concat([make_frame(WITHIN), make_frame(BEYOND)])
    assert info.digest == mg.ingest(both, dtype="float64").info.digest


def test_signs_of_unsigned_weights(tmp_path):
    """Mirror images of a skew-symmetric matrix are negative."""
    head, path = "%%MatrixMarket matrix coordinate unsigned-integer skew-symmetric", tmp_path / "skew.mtx"
    path.write_text(f"{head}\n3 3 2\n2 1 3\n3 1 5\n")
    np.testing.assert_array_equal(ingest(path)[1], [[0, -3, -5], [3, 0, 0], [5, 0, 0]])
    path.write_text(f"{head}\n3 3 2\n2 1 3\n3 1 {2**63}\n")
    with pytest.raises(SourceError, match="9223372036854775808'; to read integers beyond int64"):
        ingest(path)


def test_integers_of_python_beyond_int64():
    for weights in ([1, 1, 1, 1, 2**63], [1, 1, 1, 1, 2**64], [-1, 1, 1, 1, 2**63]):
        with pytest.raises(SourceError, match=r"Arrow cannot convert one of the columns .* and weights to numbers"):
            ingest(make_frame(pd.Series(weights, dtype=object)))
        with pytest.raises(SourceError, match=r"values of dtype object .* pass .astype\('float64'\)"):
            ingest((SRC, DST, np.array(weights, object)))


@pytest.mark.fuzz
@given(
    st.lists(st.integers(0, 2**64 - 1), min_size=5, max_size=5),
    st.sampled_from([None, "float64"]),
    st.sets(st.sampled_from(sorted(INPUTS)), min_size=3, max_size=3),
)
def test_every_input_makes_the_same_store_or_none(tmp_path, weights, dtype, names):
    weights = np.array(weights, np.uint64) | np.uint64(1)  # a dense array holds no zeros
    made = {}
    for name in {"coo"} | names:
        try:
            made[name] = ingest(INPUTS[name](tmp_path, weights), dtype=dtype)[0].digest
        except SourceError as error:
            made[name] = "refused" if "float64" in str(error) else str(error)
    assert len(set(made.values())) == 1, made
    assert (made["coo"] == "refused") == (dtype is None and bool(weights.max() > MOST))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_whole_floats_become_integers(dtype):
    values = np.array([0, -3, 2**24 if dtype == np.float32 else 2**53 - 1], dtype)
    found = convert_values(values, "int64", "x.csv")
    assert found.dtype == np.int64
    assert found.tolist() == values.tolist()


@pytest.mark.parametrize("value", [0.5, 2.0**53, -(2.0**53), np.inf, np.nan])
def test_other_floats_do_not(value):
    with pytest.raises(SourceError, match=r"x\.csv: the value .* is not an integer between -2\^53 and 2\^53"):
        convert_values(np.array([1.0, value]), "int64", "x.csv")
