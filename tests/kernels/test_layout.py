"""Which layout suits a matrix."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mgspmv.kernels.column_sorted_blocks import Survey
from mgspmv.kernels.layout import EVEN_ROWS, LEAST_FILL, choose_layout

GRID = Survey(longest=5, n_places=5000, near=1.0)
"""Of 1000 rows of about 5 entries."""


@pytest.mark.parametrize(
    ("nnz", "survey", "wanted"),
    [
        (4900, GRID, ("sell-slices", "none")),
        (4000, GRID, ("sell-slices", "none")),  # just full enough
        (3999, GRID, ("column-sorted-blocks", "none")),
        (4900, replace(GRID, near=0.51), ("sell-slices", "none")),
        (4900, replace(GRID, near=0.5), ("column-sorted-blocks", "none")),  # not near, but even
        (5000, replace(GRID, longest=20), ("sell-slices", "none")),  # just even
        (4999, replace(GRID, longest=20), ("column-sorted-blocks", "none")),  # not even, but near
        (4999, replace(GRID, longest=20, near=0.5), ("column-sorted-blocks", "degree")),
        (5000, replace(GRID, longest=20, near=0.5), ("column-sorted-blocks", "none")),
        (5000, replace(GRID, longest=900, near=0.0), ("column-sorted-blocks", "degree")),
        (0, Survey(0, 0, 0.0), ("column-sorted-blocks", "none")),
    ],
)
def test_layout(nnz, survey, wanted):
    assert (EVEN_ROWS, LEAST_FILL) == (4, 0.8)
    assert choose_layout(nnz, 1000, survey) == wanted
