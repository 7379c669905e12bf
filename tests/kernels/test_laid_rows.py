"""Which layout suits a matrix."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mgspmv.kernels.laid_rows import EVEN_ROWS, LEAST_FILL, choose_layout
from mgspmv.kernels.row_blocks import Survey

GRID = Survey(longest=5, n_places=5000, near=1.0)
"""Of 1000 rows of about 5 entries."""


@pytest.mark.parametrize(
    ("nnz", "survey", "wanted"),
    [
        (4900, GRID, ("row-slices", "none")),
        (4000, GRID, ("row-slices", "none")),  # just full enough
        (3999, GRID, ("row-blocks", "none")),
        (4900, replace(GRID, near=0.51), ("row-slices", "none")),
        (4900, replace(GRID, near=0.5), ("row-blocks", "none")),  # not near, but even
        (5000, replace(GRID, longest=20), ("row-slices", "none")),  # just even
        (4999, replace(GRID, longest=20), ("row-blocks", "none")),  # not even, but near
        (4999, replace(GRID, longest=20, near=0.5), ("row-blocks", "degree")),
        (5000, replace(GRID, longest=20, near=0.5), ("row-blocks", "none")),
        (5000, replace(GRID, longest=900, near=0.0), ("row-blocks", "degree")),
        (0, Survey(0, 0, 0.0), ("row-blocks", "none")),
    ],
)
def test_layout(nnz, survey, wanted):
    assert (EVEN_ROWS, LEAST_FILL) == (4, 0.8)
    assert choose_layout(nnz, 1000, survey) == wanted
