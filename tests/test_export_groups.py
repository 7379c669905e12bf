"""Groups of anndata and binsparse as these programs see them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

import mgspmv as mg

anndata = pytest.importorskip("anndata")
binsparse = pytest.importorskip("binsparse")
to_scipy = pytest.importorskip("binsparse.conversions.scipy").to_scipy

EDGES = {
    "numbers": ("0 1 0.5\n2 1 2\n", {"n_vertices": 3}, ["0", "1", "2"], {("0", "1"): 0.5, ("2", "1"): 2.0}),
    "integers": ("7 -5 0.5\n900 -5 2\n", {}, ["-5", "7", "900"], {("7", "-5"): 0.5, ("900", "-5"): 2.0}),
    "names": ("ann bob 0.5\nçé bob 2\n", {}, ["ann", "bob", "çé"], {("ann", "bob"): 0.5, ("çé", "bob"): 2.0}),
}


@pytest.fixture(params=EDGES)
def graph(request, tmp_path):
    text, options, names, arcs = EDGES[request.param]
    (tmp_path / "list").write_text(text)
    mg.ingest(tmp_path / "list", tmp_path / "a.zarr", **options)
    return tmp_path / "a.zarr", names, arcs


def test_names_in_anndata(graph, tmp_path):
    store, names, arcs = graph
    mg.export(store, tmp_path / "x.zarr", format="anndata")
    found = anndata.read_zarr(tmp_path / "x.zarr")
    assert found.obs_names.tolist() == found.var_names.tolist() == names
    frame = found.to_df()
    assert {(i, j): frame.loc[i, j] for i in names for j in names if frame.loc[i, j]} == arcs


@pytest.mark.filterwarnings("ignore::UserWarning")  # anndata's own, of what it will write one day
def test_other_ways_to_read_an_anndata(graph, tmp_path):
    store, *_ = graph
    mg.export(store, tmp_path / "x.zarr", format="anndata")
    group = zarr.open_group(str(tmp_path / "x.zarr"), mode="r")
    wanted = anndata.read_zarr(tmp_path / "x.zarr").X.toarray()
    assert (anndata.io.read_elem(group["X"]).toarray() == wanted).all()
    assert (anndata.io.sparse_dataset(group["X"])[:2].toarray() == wanted[:2]).all()
    assert (anndata.io.read_elem(group).X.toarray() == wanted).all()
    copy = tmp_path / "copy.zarr"
    with anndata.settings.override(zarr_write_format=3):
        anndata.read_zarr(tmp_path / "x.zarr").write_zarr(copy)
    theirs = zarr.open_group(str(copy), mode="r")
    assert set(group) <= set(theirs)
    for name in ("", "X", "X/data", "X/indices", "obs", "obs/_index", "var"):
        ours = dict(group[name].attrs) if name else dict(group.attrs)
        known = dict(theirs[name].attrs) if name else dict(theirs.attrs)
        assert {key: ours[key] for key in known} == known, name


@pytest.mark.parametrize("kind", ["matrix", "graph"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "bool"])
def test_binsparse_is_as_its_program_writes_it(tmp_path, kind, dtype):
    """But for the values of a pattern, of which there is one."""
    wanted = sp.random_array((30, 30), density=0.2, rng=1).astype(bool).astype(dtype)
    wanted = sp.csr_array(wanted) if kind == "matrix" else sp.csc_array(wanted)
    wanted.sort_indices()
    binsparse.save_binsparse(binsparse.conversions.scipy.from_scipy(wanted), tmp_path / "theirs.zarr")
    mg.ingest(wanted, tmp_path / "a.zarr", kind=kind)
    mg.export(tmp_path / "a.zarr", tmp_path / "ours.zarr", format="binsparse")
    ours, theirs = (zarr.open_group(str(tmp_path / f"{name}.zarr"), mode="r") for name in ("ours", "theirs"))
    header, known = (group.attrs["binsparse"]["binsparse"] for group in (ours, theirs))
    if dtype == "bool":
        assert header["data_types"].pop("values") == "iso[bint8]"
        known["data_types"].pop("values")
    assert header == known
    assert set(ours) == set(theirs)
    for name in theirs:
        assert ours[name].dtype == theirs[name].dtype
        assert np.array_equal(np.broadcast_to(ours[name][:], theirs[name].shape), theirs[name][:])
    found = to_scipy(binsparse.load_binsparse(tmp_path / "ours.zarr"))
    assert found.dtype == dtype
    assert (found != wanted).nnz == 0
