"""SciPy's files: the same members as SciPy writes."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest
import scipy.sparse as sp

import mgspmv as mg


@pytest.mark.parametrize("kind", ["matrix", "graph"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "bool"])
def test_members_are_those_of_scipy(tmp_path, kind, dtype):
    wanted = sp.random_array((30, 30), density=0.2, rng=1).astype(bool).astype(dtype)
    wanted = sp.csr_array(wanted) if kind == "matrix" else sp.csc_array(wanted)
    wanted.sort_indices()
    sp.save_npz(tmp_path / "wanted.npz", wanted, compressed=False)
    mg.ingest(wanted, tmp_path / "a.zarr", kind=kind)
    mg.export(tmp_path / "a.zarr", tmp_path / "a.npz")
    with np.load(tmp_path / "wanted.npz") as theirs, np.load(tmp_path / "a.npz") as ours:
        assert set(ours) == set(theirs)
        for name in theirs:
            assert ours[name].dtype == theirs[name].dtype, name
            assert np.array_equal(ours[name], theirs[name]), name
    assert zipfile.ZipFile(tmp_path / "a.npz").testzip() is None
    found = sp.load_npz(tmp_path / "a.npz")
    assert type(found) is type(wanted)
    assert found.has_canonical_format
