"""How row blocks are cut into items."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgspmv.kernels import rank_products
from mgspmv.kernels.rank_products import cut_items


@given(
    st.lists(st.integers(0, 3) | st.integers(0, 2000), max_size=30),
    st.integers(0, 5),
    st.integers(1, 20),
    st.integers(1, 64),
)
def test_items(n_chunks, n_empty, n_multiprocessors, least):
    block_chunks, n_blocks = np.concatenate([[0], np.cumsum(n_chunks)]).astype(np.int64), len(n_chunks) + n_empty
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_products, "LEAST_ITEM", least)
        made = cut_items(block_chunks, n_blocks, n_multiprocessors)
    assert (made.blocks.dtype, made.bounds.dtype, made.parts.dtype) == (np.int32, np.int64, np.int32)
    assert made.bounds.shape == (len(made.blocks), 2)
    sizes = made.bounds[:, 1] - made.bounds[:, 0]
    assert (np.diff(sizes) <= 0).all()
    assert made.parts.tolist() == np.bincount(made.blocks, minlength=n_blocks).tolist()
    size = max(least, sum(n_chunks) // (4 * n_multiprocessors))
    for block, n in enumerate([*n_chunks, *[0] * n_empty]):
        own = made.bounds[made.blocks == block]
        if n == 0:
            assert len(own) == 1
            assert own[0, 0] == own[0, 1]
            continue
        own = own[np.argsort(own[:, 0])]
        assert (own[0, 0], own[-1, 1]) == (block_chunks[block], block_chunks[block + 1])
        assert (own[1:, 0] == own[:-1, 1]).all()
        lengths = own[:, 1] - own[:, 0]
        assert lengths.min() > 0
        assert lengths.max() - lengths.min() <= 1
        assert len(own) == 1 or size / 2 < lengths.max() <= 1.5 * size + 1
        assert len(own) > 1 or n <= 1.5 * size
