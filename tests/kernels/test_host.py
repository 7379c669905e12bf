"""Kernels of small blocks by NumPy against those that Numba compiles, bit by bit."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from mgspmv.kernels.cpu import CpuBlock
from mgspmv.kernels.host import SmallBlock
from mgspmv.model import CsrBlock
from tests.support.blocks import make_block
from tests.support.matrices import HARD
from tests.support.pairwise import cover_pairs

PRECISIONS = ["exact", "float64", "float32"]
VALUES = {"pattern": None, "float32": np.float32, "float64": np.float64}


def square(block: CsrBlock) -> CsrBlock:
    """The first rows of a block that has more rows than columns."""
    n = min(block.n_rows, block.n_cols)
    stop = block.indptr[n]
    data = None if block.data is None else np.abs(block.data[:stop])
    return CsrBlock(0, block.n_cols, block.indptr[: n + 1], block.indices[:stop], data)


@cover_pairs(
    dtype=[np.float32, np.float64],
    data=VALUES,
    indices=[np.int32, np.int64],
    columns={"1-D": (), "1 column": (1,), "3 columns": (3,)},
    scalars=[(1.0, 0.0), (0.5, -2.0)],
)
def test_products_have_the_bits_of_compiled_ones(dtype, data, indices, columns, scalars):
    data = dtype if columns and data is not None else data  # compiled products of several vectors convert the values
    for name, hard in HARD.items():
        block = make_block(hard, indices=indices, data=data)
        rng = np.random.default_rng(3)
        x = rng.standard_normal((block.n_cols, *columns)).astype(dtype)
        start = rng.standard_normal((block.n_rows, *columns)).astype(dtype)
        CpuBlock(block).multiply(x, wanted := start.copy(), *scalars)
        SmallBlock(block).multiply(x, found := start.copy(), *scalars)
        assert found.tobytes() == wanted.tobytes(), name


@cover_pairs(
    precision=PRECISIONS,
    data=VALUES,
    is_relative={"relative": True, "absolute": False},
    vectors={"of each": True, "one": False},
    wrong={"right": None, "nan": np.nan, "inf": np.inf, "negative": -0.25, "large": 3.0, "1 / weight overflows": 0.5},
)
def test_steps_have_the_bits_of_compiled_ones(precision, data, is_relative, vectors, wrong):
    for name, hard in HARD.items():
        block = square(make_block(hard, data=data))
        n, rng = block.n_rows, np.random.default_rng(5)
        x = (rng.random(n) / max(n, 1)).astype(np.float32 if precision == "float32" else np.float64)
        weight = np.where(rng.random(n) < 0.3, 0.0, rng.random(n) + 0.5)
        if wrong is not None and n:
            x[n // 2], weight[n // 2] = wrong, 5e-324 if wrong == 0.5 else weight[n // 2]
        shares = [np.where(rng.random(n) < 0.2, 0.0, rng.random(n)) if vectors else np.full(1, 0.3) for _ in range(2)]
        shares = [share / max(n, 1) for share in shares]  # the sum of changes fits in 64 bits
        made = []
        for kernel in (CpuBlock(block, precision), SmallBlock(block, precision)):
            own, z, z_next = x.copy(), np.zeros(block.n_cols, kernel.z_dtype), np.zeros(n, kernel.z_dtype)
            sums = [kernel.scale(own, weight, z[:n]), kernel.check_rows(own, weight, z[:n])]
            sums.append(kernel.step(z, own, z_next, weight, 0.85, 0.125, *shares, is_relative=is_relative))
            sums.append(kernel.check_rows(own, weight, z_next))
            z_next[: n // 3] += z.dtype.type(1)
            sums.append(kernel.check_rows(own, weight, z_next))
            made.append((sums, own.tobytes(), z.tobytes(), z_next.tobytes()))
        assert made[0] == made[1], name


@cover_pairs(data=VALUES, dtype=[np.float32, np.float64], vectors={"of each": True, "one": False})
def test_residuals_are_those_of_compiled_ones(data, dtype, vectors):
    for name, hard in HARD.items():
        block = square(make_block(hard, data=data))
        rng = np.random.default_rng(7)
        z, x = rng.random(block.n_cols), rng.random(block.n_rows).astype(dtype)
        shares = [rng.random(block.n_rows) if vectors else np.full(1, 0.3) for _ in range(2)]
        wanted, found = (kind(block).residual(z, x, 0.85, 0.25, *shares) for kind in (CpuBlock, SmallBlock))
        assert found == wanted, name


def test_one_thread_computes():
    assert SmallBlock(make_block(HARD["ring"]), threads=4).threads == 1


def test_a_small_graph_is_ranked_without_numba(tmp_path):
    program = """
import sys
sys.modules["numba"] = None
import mgspmv as mg
ranks = mg.pagerank(mg.open(sys.argv[1]).on("cpu"))
ranks.save(sys.argv[2])
print(ranks.top(1), ranks.check_order(1).is_proven)
"""
    import mgspmv as mg

    store = tmp_path / "small.zarr"
    mg.generate("rmat", store, scale=6, transpose=True)
    made = subprocess.run(
        [sys.executable, "-c", program, store, tmp_path / "ranks.parquet"], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    assert mg.load_solution(tmp_path / "ranks.parquet").digest() == mg.pagerank(mg.open(store).on("cpu")).digest()
