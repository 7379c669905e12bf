"""Groups of anndata and binsparse, written by these packages or by hand, and plain CSR arrays.

Each group is read in whole batches and in batches of a few entries.
"""

from __future__ import annotations

import json
import pickle
import shutil
import warnings
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import numcodecs
import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from zarr.storage import LocalStore

import mgspmv as mg
from mgspmv.errors import CapacityError, OptionError, SourceError, SourceNotFoundError
from mgspmv.ingest import zarr_groups
from mgspmv.ingest.open import GROUP_OPTIONS, open_source
from mgspmv.ingest.zarr_groups import BATCH_ENTRIES, GroupSource
from tests.support.arrays import read_entries
from tests.support.memory import measure_peak
from tests.support.pairwise import cover_pairs
from tests.support.stores import make_scipy

anndata = pytest.importorskip("anndata")
binsparse = pytest.importorskip("binsparse")
from_scipy = pytest.importorskip("binsparse.conversions.scipy").from_scipy


SMALL_BATCH = 7


@contextmanager
def small_batches():
    """Make batches of 7 entries."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zarr_groups, "BATCH_ENTRIES", SMALL_BATCH)
        yield


def read(source, **options):
    """Return the matrix as SciPy builds it, whether it is a pattern, and the layout; entries of a pattern are 1."""
    matrix, is_pattern, layout = read_batches(source, **options)
    with small_batches():
        again, is_again, same = read_batches(source, **options)
    assert (again.shape, is_again, same.provenance) == (matrix.shape, is_pattern, layout.provenance)
    for one, other in zip(sort_entries(again), sort_entries(matrix), strict=True):
        np.testing.assert_array_equal(one, other)
    return matrix, is_pattern, layout


def sort_entries(matrix):
    """Return rows, columns and values; entries at one place keep their order."""
    order = np.lexsort((matrix.col, matrix.row))
    return matrix.row[order], matrix.col[order], matrix.data[order]


def read_batches(source, **options):
    rows, cols, values, layout = read_entries(open_source(source, **options))
    held = np.ones(len(rows)) if values is None else values
    return sp.coo_array((held, (rows, cols)), shape=layout.shape), values is None, layout


def agree(found, wanted):
    assert found.shape == wanted.shape
    assert found.nnz == wanted.nnz
    np.testing.assert_array_equal(found.toarray(), wanted.toarray())
    return True


MATRIX = make_scipy(23, 17, seed=4)


def write_anndata(path, matrix, zarr_format=2, **parts):
    with warnings.catch_warnings(), anndata.settings.override(zarr_write_format=zarr_format):
        warnings.simplefilter("ignore")
        anndata.AnnData(matrix, **parts).write_zarr(path)
    return path


@cover_pairs(zarr_format=[2, 3], form=["csr", "csc"], dtype=["float32", "float64", "int32"])
def test_anndata(tmp_path, form, zarr_format, dtype):
    matrix = (MATRIX * 64).astype(dtype).asformat(form)
    path = write_anndata(tmp_path / "a.zarr", matrix, zarr_format)
    assert (path / "zarr.json").exists() == (zarr_format == 3)
    for place in (path, f"{path}/", path / "X"):
        found, is_pattern, layout = read(place)
        assert agree(found, matrix)
        assert not is_pattern
        assert found.dtype == np.dtype("int64" if dtype == "int32" else dtype)
    assert layout.provenance["name"] == f"{path}/X"
    assert layout.provenance["format"] == f"anndata {form}_matrix"
    assert layout.provenance["header"] == {"shape": [23, 17], "entries": matrix.nnz, "zarr_format": zarr_format}
    with small_batches():
        assert mg.ingest(path).info.digest == mg.ingest(matrix).info.digest


def test_groups_inside_an_anndata(tmp_path):
    graph = sp.csr_array(make_scipy(23, 23, seed=9))
    path = write_anndata(tmp_path / "a.zarr", MATRIX, layers={"raw": MATRIX * 2}, obsp={"near": sp.csr_matrix(graph)})
    assert agree(read_batches(path / "layers/raw")[0], MATRIX * 2)
    info = mg.ingest(path / "obsp/near", tmp_path / "s.zarr", kind="graph").info
    assert info.digest == mg.ingest(graph, kind="graph").info.digest


@pytest.mark.filterwarnings("ignore:zarr v3 autosharding")
def test_anndata_of_truth_is_a_pattern(tmp_path):
    matrix = MATRIX.copy()
    matrix.data[::3] = 0
    path = tmp_path / "a.zarr"
    anndata.io.write_elem(zarr.open_group(path, mode="w"), "m", sp.csr_matrix(matrix.astype(bool)))
    found, is_pattern, _ = read(path / "m", format="anndata")
    assert is_pattern
    assert found.nnz == np.count_nonzero(matrix.data)
    np.testing.assert_array_equal(found.toarray(), matrix.toarray() != 0)


def test_zip_files(tmp_path):
    path = write_anndata(tmp_path / "a.zarr", MATRIX, layers={"raw": MATRIX * 2})
    shutil.make_archive(tmp_path / "inner.zarr", "zip", path)
    shutil.make_archive(tmp_path / "outer", "zip", tmp_path, "a.zarr")
    assert agree(read_batches(tmp_path / "inner.zarr.zip")[0], MATRIX)
    assert agree(read_batches(tmp_path / "inner.zarr.zip/layers/raw")[0], MATRIX * 2)
    assert agree(read_batches(f"file://{tmp_path}/inner.zarr.zip/X", format="anndata")[0], MATRIX)
    assert agree(read_batches(tmp_path / "outer.zip/a.zarr")[0], MATRIX)


def test_urls_stores_and_groups(tmp_path):
    path = write_anndata(tmp_path / "a.zarr", MATRIX)
    url = f"memory://{tmp_path.name}/a.zarr"
    copied = zarr.open_group(url, mode="w", zarr_format=2)
    anndata.io.write_elem(copied, "X", sp.csr_matrix(MATRIX))
    for place in (f"{url}/X", f"file://{path}"):
        assert agree(read_batches(place)[0], MATRIX)
    for place in (
        LocalStore(path),
        zarr.open_group(path, mode="r"),
        zarr.open_group(path / "X", mode="r"),
        copied["X"],
    ):
        assert agree(read_batches(place)[0], MATRIX)
        assert agree(read_batches(place, format="anndata")[0], MATRIX)


@pytest.mark.parametrize("path", ["none.zarr", "a.zarr/none", "a.zip", "b.zip/none", "file:///none.zarr"])
def test_no_group(tmp_path, path):
    zarr.open_group(tmp_path / "a.zarr", mode="w")
    with zarr.storage.ZipStore(tmp_path / "b.zip", mode="w") as store:
        zarr.open_group(store, mode="w")
    place = path.replace("file:none", f"file://{tmp_path}/none") if ":" in path else tmp_path / path
    with pytest.raises(SourceNotFoundError) as caught:
        open_source(place)
    assert str(caught.value) == f"{place}: there is no Zarr group; check the path"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.zarr", "b.zip"]


def write_csr(path, matrix, zarr_format=3, chunks=5, attributes=None, **arrays):
    """Plain arrays, with some of them exchanged, or left out where they are None."""
    group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
    given = {"indptr": matrix.indptr, "indices": matrix.indices, "data": matrix.data} | arrays
    for name, array in given.items():
        if array is not None:
            array = np.asarray(array)
            made = group.create_array(name, shape=array.shape, dtype=array.dtype, chunks=(chunks,) * array.ndim)
            made[...] = array
    group.attrs.update({"shape": list(matrix.shape)} if attributes is None else attributes)
    return path


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_plain_arrays(tmp_path, zarr_format):
    for chunks in (1, 5, 7, 100, 10**6):
        found, is_pattern, layout = read(write_csr(tmp_path / "a.zarr", MATRIX, zarr_format, chunks))
        assert agree(found, MATRIX)
        assert not is_pattern
        assert layout.provenance["format"] == "csr"


def test_number_of_columns(tmp_path):
    path = write_csr(tmp_path / "a.zarr", MATRIX, attributes={})
    assert agree(read_batches(path, n_cols=17)[0], MATRIX)
    assert read_batches(path, n_cols=40)[0].shape == (23, 40)
    with pytest.raises(SourceError) as caught:
        open_source(path)
    assert str(caught.value) == f"{path}: the group does not state its number of columns; pass n_cols="
    with pytest.raises(OptionError, match="n_cols must be 0 or more, not -1"):
        open_source(path, n_cols=-1)
    zarr.open_group(path).attrs["shape"] = [23, 17]
    assert agree(read_batches(path, n_cols=17)[0], MATRIX)
    with pytest.raises(OptionError, match=r"n_cols=18 contradicts the shape of .*a.zarr, \(23, 17\); leave it out"):
        open_source(path, n_cols=18)


def test_zeros_and_duplicates_stay(tmp_path):
    matrix = sp.csr_array(
        (np.array([3.0, 0.0, 2.0, 1.0]), np.array([1, 1, 0, 1]), np.array([0, 3, 3, 4])), shape=(3, 2)
    )
    found, _, _ = read(write_csr(tmp_path / "a.zarr", matrix))
    assert list(zip(found.row, found.col, found.data, strict=True)) == [(0, 1, 3), (0, 1, 0), (0, 0, 2), (2, 1, 1)]


def test_missing_chunks_hold_the_fill_value(tmp_path):
    path = write_csr(tmp_path / "a.zarr", MATRIX)
    (path / "data/c/1").unlink()
    found, _, _ = read(path)
    wanted = MATRIX.copy()
    wanted.data[5:10] = 0
    np.testing.assert_array_equal(found.toarray(), wanted.toarray())


def test_long_and_empty_lines(tmp_path):
    """More entries in a row than in a batch, and more rows without one."""
    dense = np.zeros((60, 50))
    dense[20], dense[21, 3], dense[59, 1] = 1 + np.arange(50), 7, 8
    path = write_csr(tmp_path / "a.zarr", sp.csr_array(dense))
    assert max(len(b.rows) for b in GroupSource(path).batches()) == 52
    with small_batches():
        assert max(len(b.rows) for b in GroupSource(path).batches()) == SMALL_BATCH
    assert agree(read(path)[0], sp.csr_array(dense))


def make_listed(matrix):
    """By columns: what the package writes and does not make of SciPy's matrices."""
    by_columns = sp.csc_array(matrix)
    entries = by_columns.tocoo()
    cols, rows = np.asarray(entries.col), np.asarray(entries.row)
    return binsparse.COOCMatrix(matrix.shape, matrix.nnz, indices_0=cols, indices_1=rows, values=entries.data)


def write_binsparse(path, tensor, **exchanged):
    """By the package, with keys of the descriptor exchanged."""
    binsparse.save_binsparse(tensor, path)
    if exchanged:
        group = zarr.open_group(path)
        group.attrs["binsparse"] = group.attrs["binsparse"]["binsparse"] | exchanged
    return path


@pytest.mark.parametrize("form", ["CSR", "CSC", "COO", "COOR", "COOC"])
def test_binsparse(tmp_path, form):
    known = {"CSR": "csr", "CSC": "csc", "COO": "coo", "COOR": "coo"}
    tensor = from_scipy(MATRIX.asformat(known[form])) if form in known else make_listed(MATRIX)
    path = write_binsparse(tmp_path / "b.zarr", tensor, **({"format": "COO"} if form == "COO" else {}))
    found, is_pattern, layout = read(path)
    assert agree(found, MATRIX)
    assert not is_pattern
    assert layout.provenance["format"] == f"binsparse {form}"
    with small_batches():
        assert mg.ingest(path, format="binsparse").info.digest == mg.ingest(MATRIX).info.digest


def make_same(value, dtype):
    tensor = from_scipy(MATRIX)
    return replace(tensor, values=np.broadcast_to(np.array([value], dtype), tensor.values.shape))


@pytest.mark.parametrize(
    ("value", "dtype", "wanted"),
    [(7, "int8", 7), (2.5, "float32", 2.5), (1, "uint8", None), (1.0, "float64", None), (True, "bool", None)],
)
def test_binsparse_of_one_value(tmp_path, value, dtype, wanted):
    path = write_binsparse(tmp_path / "b.zarr", make_same(value, dtype))
    assert zarr.open_group(path).attrs["binsparse"]["binsparse"]["data_types"]["values"].startswith("iso[")
    assert zarr.open_group(path)["values"].shape == (1,)
    found, is_pattern, _ = read(path)
    assert is_pattern == (wanted is None)
    assert agree(found, (MATRIX != 0) * (wanted or 1))


def test_binsparse_of_truth_is_a_pattern(tmp_path):
    tensor = from_scipy(MATRIX)
    path = write_binsparse(tmp_path / "b.zarr", replace(tensor, values=tensor.values > 8))
    found, is_pattern, _ = read(path)
    assert is_pattern
    np.testing.assert_array_equal(found.toarray(), MATRIX.toarray() > 8)


SQUARE = sp.csr_array(make_scipy(19, 19, 0.3, seed=2))


def test_binsparse_by_the_specification(tmp_path):
    """The example of the specification, written by hand, with zeros as a fill value."""
    group = zarr.open_group(tmp_path / "b.zarr", mode="w", zarr_format=2)
    arrays = {"pointers_to_1": [0, 1, 3, 3, 5, 6], "indices_1": [3, 1, 4, 1, 2, 3]}
    for name, array in arrays.items():
        group.create_array(name, data=np.array(array, np.uint64))
    for name, array in {"values": [7], "fill_value": [0]}.items():
        group.create_array(name, data=np.array(array, np.int8))
    types = {"pointers_to_1": "uint64", "indices_1": "uint64", "values": "iso[int8]", "fill_value": "int8"}
    header = {"format": "CSR", "shape": [5, 5], "number_of_stored_values": 6, "data_types": types, "fill": True}
    dense = np.zeros((5, 5))
    dense[[0, 1, 1, 3, 3, 4], [3, 1, 4, 1, 2, 3]] = 7
    for version in ("0.1", "0.1.0", "0.1.7"):
        group.attrs["binsparse"] = header | {"version": version}
        found, _, _ = read(tmp_path / "b.zarr")
        assert agree(found, sp.csr_array(dense))
        assert found.dtype == np.int64


@cover_pairs(format=["anndata", "binsparse"], kind=["graph", "matrix"], weights=[None, False])
def test_what_was_exported(tmp_path, format, kind, weights):
    info = mg.ingest(SQUARE, tmp_path / "s.zarr", kind=kind, weights=weights).info
    mg.export(tmp_path / "s.zarr", tmp_path / "e.zarr", format=format)
    assert mg.ingest(tmp_path / "e.zarr", kind=kind).info.digest == info.digest


ATTRIBUTES = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [23, 17]}
CSR_FAULTS = {
    "no pointers": ({"indptr": None}, "the array 'indptr' is missing"),
    "no indices": ({"indices": None}, "the array 'indices' is missing"),
    "pointers that are too few": ({"indptr": MATRIX.indptr[:-1]}, "'indptr' has 23 elements, expected 24; write"),
    "no pointer at all": ({"indptr": MATRIX.indptr[:0]}, "'indptr' has 0 elements, expected 24"),
    "values that are too many": ({"data": np.ones(99)}, rf"'data' has 99 elements, expected {MATRIX.nnz}"),
    "pointers from 1": ({"indptr": np.append(1, MATRIX.indptr[1:])}, "'indptr' begins with 1, expected 0"),
    "pointers that end early": (
        {"indptr": np.append(MATRIX.indptr[:-1], MATRIX.indptr[-2])},
        rf"'indptr' ends with {MATRIX.indptr[-2]}, expected {MATRIX.nnz}, the number of indices",
    ),
    "pointers that fall": (
        {"indptr": MATRIX.indptr[[*range(9), 10, 9, *range(11, 24)]]},
        rf"'indptr' does not ascend: element 10 is {MATRIX.indptr[9]} after {MATRIX.indptr[10]}",
    ),
    "pointers beyond the end": ({"indptr": MATRIX.indptr * 9}, r"'indptr' has \d+ as element \d+, which is outside 0"),
    "pointers below 0": ({"indptr": -MATRIX.indptr}, r"'indptr' has -\d+ as element 1, which is outside 0"),
    "an index beyond": ({"indices": MATRIX.indices + (np.arange(MATRIX.nnz) == 8) * 99}, r"has \d+ as element 8, "),
    "an index below 0": ({"indices": MATRIX.indices - 1}, r"'indices' has -1 as element \d+, which is outside 0..16"),
    "an index beyond int64": ({"indices": np.full(MATRIX.nnz, 2**64 - 1, np.uint64)}, "has 18446744073709551615 as "),
    "indices that are no integers": ({"indices": MATRIX.indices * 1.0}, "'indices' has dtype float64, expected int"),
    "two dimensions": ({"indices": MATRIX.indices[None]}, r"'indices' has shape \(1, \d+\), expected one dimension"),
    "no numbers": ({"data": MATRIX.data.astype("S3")}, "values of dtype"),
    "texts": ({"data": MATRIX.data.astype("U3")}, "values of dtype"),
    "complex values": ({"data": MATRIX.data * 1j}, r"complex values \(complex128\) are not supported"),
    "no shape": ({"attributes": {"shape": [3]}}, r"expected a shape of two sizes, found \[3\]"),
    "a shape of texts": ({"attributes": {"shape": ["23", "17"]}}, "expected a shape of two sizes, found"),
    "a shape below 0": ({"attributes": {"shape": [23, -1]}}, "expected a shape of two sizes, found"),
    "too many rows": ({"attributes": {"shape": [24, 17]}}, "'indptr' has 24 elements, expected 25"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification")
@pytest.mark.parametrize("name", CSR_FAULTS)
def test_arrays_that_do_not_fit(tmp_path, name):
    changes, message = CSR_FAULTS[name]
    for form in ("csr", "anndata"):
        attributes = changes.get("attributes", {"shape": [23, 17]}) | (ATTRIBUTES if form == "anndata" else {})
        attributes |= changes.get("attributes", {})
        path = write_csr(tmp_path / "a.zarr", MATRIX, **(changes | {"attributes": attributes}))
        with pytest.raises(SourceError, match=rf"a.zarr: .*{message}"):
            read(path, format=form)


ANNDATA_FAULTS = {
    "dense": (
        np.ones((2, 2)),
        None,
        "X of this AnnData is dense; name a sparse group inside it, such as .*a.zarr/layers/c",
    ),
    "missing": (None, None, "X of this AnnData is missing; name a sparse group"),
    "another group": (
        MATRIX,
        "obs",
        "this group of anndata is a dataframe of version 0.2.0; supported are csr_matrix and",
    ),
}


@pytest.mark.parametrize("name", ANNDATA_FAULTS)
def test_other_parts_of_anndata(tmp_path, name):
    matrix, inner, message = ANNDATA_FAULTS[name]
    path = write_anndata(tmp_path / "a.zarr", matrix)
    with pytest.raises(SourceError, match=message):
        open_source(path / inner if inner else path)


def test_groups_of_another_sort(tmp_path):
    group = zarr.open_group(tmp_path / "a.zarr", mode="w")
    with pytest.raises(SourceError, match=r"a.zarr: this group is not a sparse matrix; expected .*a.zarr/GROUP$"):
        open_source(tmp_path / "a.zarr")
    with pytest.raises(SourceError, match="this group of anndata is a None of version None; supported are csr_matrix"):
        open_source(group, format="anndata")
    with pytest.raises(
        SourceError, match="this is not a group of binsparse: its attribute binsparse is not a JSON object"
    ):
        open_source(group, format="binsparse")
    with pytest.raises(SourceError, match="the array 'indptr' is missing"):
        open_source(group, format="csr", n_cols=3)


@pytest.mark.parametrize("name", ["indptr", "indices", "data"])
def test_chunks_that_do_not_fit_into_memory_are_refused(tmp_path, name):
    path = write_csr(tmp_path / "a.zarr", MATRIX)
    metadata = json.loads((path / name / "zarr.json").read_text())
    metadata["chunk_grid"]["configuration"]["chunk_shape"] = [1 << 50]
    (path / name / "zarr.json").write_text(json.dumps(metadata))
    message = (
        rf"a.zarr: the array '{name}' has chunks of 1,125,899,906,842,624 elements, which take .*B each, but .*B of "
        "memory are free; write it with smaller chunks"
    )
    with pytest.raises(CapacityError, match=message):
        read(path)


def test_chunks_that_fit_just_into_memory_are_read(tmp_path, monkeypatch):
    path = write_csr(tmp_path / "a.zarr", MATRIX)
    monkeypatch.setattr(zarr_groups, "free_memory", lambda: 5 * 8)
    assert agree(read(path)[0], MATRIX)
    monkeypatch.setattr(zarr_groups, "free_memory", lambda: 5 * 8 - 1)
    with pytest.raises(CapacityError, match="chunks of 5 elements, which take 40 B each, but 39 B of memory are free"):
        read(path)


def without(key):
    return lambda header: {name: value for name, value in header.items() if name != key}


def typed(**types):
    return lambda header: header | {"data_types": header["data_types"] | types}


def put(**values):
    return lambda header: header | values


BINSPARSE_FAULTS = {
    "no version": (without("version"), "its attribute binsparse has version None; supported is version 0.1 in"),
    "no shape": (without("shape"), "its attribute binsparse has shape None"),
    "no types": (put(data_types=3), "its attribute binsparse has data_types 3"),
    "another version": (put(version="0.2.0"), "version '0.2.0'; supported is version 0.1 in the formats CSR, CSC, COO"),
    "a much later version": (put(version="0.10"), "version '0.10'; supported is version 0.1"),
    "a vector": (put(format="CVEC"), "format 'CVEC'; supported is"),
    "dense": (put(format="DMATR"), "format 'DMATR'; supported is"),
    "custom": (put(format="custom"), "format 'custom'; supported is"),
    "other arrays": (put(format="COOR"), "the array 'indices_0' is missing"),
    "indices from 1": (put(index_base=1), "index_base 1; supported is .* indices from 0"),
    "a number of entries": (put(number_of_stored_values=5), r"'indices_1' has \d+ elements, but number_of_"),
    "three dimensions": (put(shape=[23, 17, 1]), r"expected a shape of two sizes, found \[23, 17, 1\]"),
    "hermitian": (put(structure="hermitian_lower"), "structure 'hermitian_lower'; supported is .* all entries"),
    "complex": (typed(values="complex[float64]"), "data_types .*; supported is .* real values"),
    "the same and complex": (typed(values="iso[complex[float64]]"), "data_types .*; supported is .* real values"),
    "not the same": (typed(values="iso[float64]"), r"'values' has \d+ elements, expected 1"),
    "no fill value": (put(fill=True), "the array 'fill_value' is missing"),
}  # fmt: skip


@pytest.mark.parametrize("name", BINSPARSE_FAULTS)
def test_binsparse_that_does_not_fit(tmp_path, name):
    change, message = BINSPARSE_FAULTS[name]
    path = write_binsparse(tmp_path / "b.zarr", from_scipy(MATRIX))
    group = zarr.open_group(path)
    group.attrs["binsparse"] = change(group.attrs["binsparse"]["binsparse"])
    with pytest.raises(SourceError, match=f"b.zarr: .*{message}"):
        read(path)


def test_binsparse_whose_fill_value_is_another(tmp_path):
    path = write_binsparse(tmp_path / "b.zarr", replace(from_scipy(MATRIX), fill=True, fill_value=np.nan))
    with pytest.raises(SourceError, match="the fill value is not 0"):
        read(path)


def test_options_suit_plain_arrays_only(tmp_path):
    path = write_anndata(tmp_path / "a.zarr", MATRIX)
    with pytest.raises(
        OptionError, match=r"n_cols= applies to plain CSR arrays, but .* is read as anndata; leave it out"
    ):
        open_source(path, n_cols=3)
    with pytest.raises(
        OptionError, match="delimiter= applies to an edge list, but this source is read as zarr; leave it out"
    ):
        open_source(path, delimiter=",")
    (tmp_path / "e.txt").write_text("0 1\n")
    with pytest.raises(
        OptionError, match="n_cols= applies to plain CSR arrays in Zarr, but this source is read as edge-list"
    ):
        open_source(tmp_path / "e.txt", n_cols=3)
    with pytest.raises(OptionError, match="format='parquet' applies to files, not to a LocalStore; leave it out"):
        open_source(LocalStore(path), format="parquet")
    assert set(GROUP_OPTIONS) == set(GroupSource.__init__.__kwdefaults__) - {"format"}


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("name", ["indptr", "indices", "data"])
def test_damaged_chunks(tmp_path, name, zarr_format):
    path = write_csr(tmp_path / "a.zarr", MATRIX, zarr_format)
    chunk = path / name / ("1" if zarr_format == 2 else "c/1")
    chunk.write_bytes(chunk.read_bytes()[:9])
    for batches in (nullcontext, small_batches):
        with (
            batches(),
            pytest.raises(
                SourceError, match=rf"a.zarr: {name} cannot be read \(.*\); check the path and the connection, or write"
            ),
        ):
            read_batches(path)


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize(
    "codecs",
    [
        {"dtype": "|O", "filters": [{"id": "pickle", "protocol": 5}], "compressor": None},
        {"dtype": "<f8", "filters": [{"id": "pickle", "protocol": 5}], "compressor": None},
        {"dtype": "<f8", "filters": None, "compressor": {"id": "pickle", "protocol": 5}},
        {"dtype": "<f8", "filters": [{"id": "delta", "dtype": "<f8"}, {"id": "pickle"}], "compressor": None},
        {"dtype": "|O", "filters": [{"id": "vlen-utf8"}], "compressor": {"id": "pickle", "protocol": 5}},
    ],
    ids=["objects", "filter", "compressor", "filter behind another", "behind strings"],
)
def test_nothing_is_unpickled(tmp_path, codecs):
    path = write_csr(tmp_path / "a.zarr", MATRIX, 2, chunks=1000, attributes=ATTRIBUTES)
    trap = tmp_path / "trap"
    pickled = numcodecs.Pickle().encode(np.array([Trap(trap)] * MATRIX.nnz, object))
    pickle.loads(pickle.dumps(Trap(trap)))
    assert trap.exists()
    trap.unlink()
    described = json.loads((path / "data/.zarray").read_text()) | codecs | {"fill_value": None}
    (path / "data/.zarray").write_text(json.dumps(described))
    (path / "data/0").write_bytes(pickled)
    with pytest.raises(SourceError, match=r"a.zarr: (data cannot be read|values of dtype)"):
        read(path)
    assert not trap.exists()


def test_a_pickling_codec_of_version_3(tmp_path):
    path = write_csr(tmp_path / "a.zarr", MATRIX, 3, chunks=1000, attributes=ATTRIBUTES)
    described = json.loads((path / "data/zarr.json").read_text())
    described["codecs"] = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "numcodecs.pickle"}]
    (path / "data/zarr.json").write_text(json.dumps(described))
    with pytest.raises(SourceError, match=r"a.zarr: data cannot be read \(.*numcodecs.pickle"):
        read(path)


@pytest.mark.parametrize("name", ["zarr.json", "indptr/zarr.json"])
def test_damaged_metadata(tmp_path, name):
    path = write_csr(tmp_path / "a.zarr", MATRIX)
    (path / name).write_text((path / name).read_text()[:-20])
    with pytest.raises(SourceError, match=r"a.zarr: (its metadata|indptr) cannot be read \(JSONDecodeError: "):
        open_source(path)


@pytest.mark.parametrize("name", ["zarr.json", "indices", "indices/c/0"])
def test_links_that_lead_out_of_a_group_are_refused(tmp_path, name):
    path = write_csr(tmp_path / "a.zarr", MATRIX)
    (path / name).rename(tmp_path / "moved")
    (path / name).symlink_to(tmp_path / "moved")
    with pytest.raises(SourceError, match=rf"a.zarr: {name} is a symbolic link that leads out of the store"):
        open_source(path)


@pytest.mark.parametrize("form", ["csr", "COOR"])
def test_memory_does_not_grow_with_the_matrix(tmp_path, form):
    """Of 24 bytes an entry, for 2^21 of them, no more are held than those of some batches, and pointers."""
    n = 1 << 21
    rng = np.random.default_rng(0)
    cols, values = rng.integers(0, 1000, n), rng.random(n)
    options = {"chunks": (1 << 16,), "compressors": None}
    group = zarr.create_group(tmp_path / "a.zarr")
    if form == "csr":
        group.create_array("indptr", data=np.arange(n + 1), **options)
        group.create_array("indices", data=cols, **options)
        group.create_array("data", data=values, **options)
        group.attrs["shape"] = [n, 1000]
    else:
        arrays = {"indices_0": np.arange(n), "indices_1": cols, "values": values}
        for name, array in arrays.items():
            group.create_array(name, data=array, **options)
        header = {"version": "0.1", "format": form, "shape": [n, 1000], "number_of_stored_values": n}
        group.attrs["binsparse"] = header | {"data_types": {name: str(a.dtype) for name, a in arrays.items()}}
    peak = measure_peak(lambda: [len(batch.rows) for batch in GroupSource(tmp_path / "a.zarr").batches()])
    assert peak < 70 * BATCH_ENTRIES + (4 * n if form == "csr" else 0)
