"""Stores by the conventions of Zarr and anndata."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support.arrays import write_store
from tests.support.stores import STRING_IDS, find_group, make_arrays, make_scipy, make_transpose


def test_a_version_with_values_is_an_anndata_csr_matrix(tmp_path):
    matrix = make_scipy(6, 6)
    arrays = make_arrays(matrix, "graph", ids=STRING_IDS)
    write_store(tmp_path / "m", arrays, transpose=make_transpose(matrix))
    group = find_group(tmp_path / "m")

    def read_attributes(name: str) -> dict[str, Any]:
        document = json.loads((group / name / "zarr.json").read_text())
        assert document["zarr_format"] == 3
        return {key: value for key, value in document["attributes"].items() if key != "mgspmv"}

    for name in ("", "transpose"):
        expected = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [6, 6]}
        assert read_attributes(name) == expected
    for name in ("indptr", "indices", "data", "out_degree", "out_weight", "transpose/data"):
        assert read_attributes(name) == {"encoding-type": "array", "encoding-version": "0.2.0"}
    assert read_attributes("vertex_ids") == {"encoding-type": "string-array", "encoding-version": "0.2.0"}


@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.float64])
def test_anndata_reads_it(tmp_path, dtype):
    anndata_io = pytest.importorskip("anndata.io")
    matrix = make_scipy(9, 6, dtype=dtype)
    write_store(tmp_path / "m", make_arrays(matrix), transpose=make_transpose(matrix))
    group = zarr.open_group(find_group(tmp_path / "m"), mode="r")
    for found, expected in ((group, matrix), (group["transpose"], matrix.T)):
        read = anndata_io.read_elem(found)
        assert read.dtype == dtype
        assert read.shape == expected.shape
        assert (read.toarray() == expected.toarray()).all()
