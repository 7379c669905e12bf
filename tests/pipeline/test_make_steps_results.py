"""Vectors that products are of, as a definition names them."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

from mgspmv.errors import SourceError
from mgspmv.pipeline.make_steps import read_array


def test_vectors_of_both_formats(tmp_path):
    x = np.arange(6.0).reshape(3, 2)
    np.save(tmp_path / "x.npy", x)
    zarr.save_array(str(tmp_path / "x.zarr"), x)
    for name in ("x.npy", "x.zarr"):
        np.testing.assert_array_equal(read_array(str(tmp_path / name)), x)


def test_what_is_no_array(tmp_path):
    (tmp_path / "x.zarr").mkdir()
    with pytest.raises(SourceError, match=r"not named \.npy, and cannot be read as a Zarr array"):
        read_array(str(tmp_path / "x.zarr"))
