"""The kernels of many vectors beside those of one: each column has the bits that it has alone."""

from __future__ import annotations

import numpy as np
import pytest

from mgspmv.kernels.cpu import CpuBlock
from mgspmv.kernels.cpu_many import CpuMany
from mgspmv.kernels.operands import WIDTHS, Terms, fit_width, narrow_widths
from tests.kernels.test_cpu import LARGE, random_block
from tests.support.blocks import cut_rows, make_block
from tests.support.matrices import GRAPHS

X_DTYPES = {"exact": np.float64, "float64": np.float64, "float32": np.float32}

OWN = np.empty(0)
"""The dangling mass goes to p of each vector."""


def make_terms(rng, n_rows, width, dangling):
    """Dampings, and jumps of which some are uniform and others to a few rows; and p of each vector, whole."""
    base = np.where(np.arange(width) % 3 == 1, 1 / n_rows, 0.0)
    p = np.repeat(base[:, None], n_rows, axis=1)
    entries = [(row, c, rng.random()) for c in range(width) if not base[c] for row in rng.choice(n_rows, 2)]
    entries = sorted({(row, c): weight for row, c, weight in entries}.items())
    for (row, c), weight in entries:
        p[c, row] = weight
    rows, columns = (np.array([key[i] for key, _ in entries], np.int64) for i in (0, 1))
    weights = np.array([weight for _, weight in entries])
    return Terms(rng.random(width), dangling, base, rows, columns, weights), p


def check_steps(block, precision, width, *, seed=0, threads=None, dangling=OWN, n_steps=2, is_relative=False):
    """Steps and a residual of all columns beside those of each."""
    rng = np.random.default_rng(seed)
    n, many = block.n_rows, CpuMany(block, precision, threads)
    weight = rng.random(n) * (rng.random(n) < 0.7) + np.bincount(block.indices, minlength=n)[:n]
    weight[rng.random(n) < 0.2] = 0.0
    terms, p = make_terms(rng, n, width, dangling)
    start = rng.random((n, width)) / n
    x = many.zeros_many(n, width, X_DTYPES[precision])
    x[:] = start
    z, z_next = (many.zeros_many(n, width, many.z_dtype) for _ in range(2))
    sums = many.scale_many(x, weight, z)
    ones = [_start_alone(block, precision, threads, x[:, c].copy(), weight) for c in range(width)]
    for c, one in enumerate(ones):
        assert sums[c] == one["sums"]
        assert z[:, c].tobytes() == one["z"].tobytes()
    for _ in range(n_steps):
        mass = np.array([s.dangling / 2.0**62 for s in sums])
        sums = many.step_many(z, x, z_next, weight, mass, terms, is_relative=is_relative)
        z, z_next = z_next, z
        for c, one in enumerate(ones):
            d = p[c] if not len(dangling) else dangling
            vectors, scalars = (one["z"], one["x"], one["next"], weight), (float(terms.alpha[c]), float(mass[c]))
            one["sums"] = one["kernel"].step(*vectors, *scalars, d, p[c], is_relative=is_relative)
            one["z"], one["next"] = one["next"], one["z"]
            assert sums[c] == one["sums"]
            assert x[:, c].tobytes() == one["x"].tobytes()
            assert z[:, c].tobytes() == one["z"].tobytes()
    wide = many.with_precision("float64")
    z = wide.zeros_many(n, width, np.float64)
    wide.scale_many(x, weight, z)
    mass = np.array([s.dangling / 2.0**62 for s in sums])
    residuals = wide.residual_many(z, x, mass, terms)
    for c, one in enumerate(ones):
        plain, own_z, d = CpuBlock(block, "float64", threads), np.zeros(n), p[c] if not len(dangling) else dangling
        plain.scale(one["x"], weight, own_z)
        assert residuals[c] == plain.residual(own_z, one["x"], float(terms.alpha[c]), float(mass[c]), d, p[c])


def _start_alone(block, precision, threads, x, weight):
    kernel = CpuBlock(block, precision, threads)
    z, z_next = np.zeros(block.n_rows, kernel.z_dtype), np.zeros(block.n_rows, kernel.z_dtype)
    return {"kernel": kernel, "x": x, "z": z, "next": z_next, "sums": kernel.scale(x, weight, z)}


@pytest.mark.parametrize("has_values", [True, False], ids=["values", "pattern"])
@pytest.mark.parametrize("precision", X_DTYPES)
def test_each_column_of_hard_graphs_is_as_alone(precision, has_values):
    dtype = np.float32 if precision == "float32" else np.float64
    for name in GRAPHS:
        check_steps(make_block(GRAPHS[name], data=dtype if has_values else None), precision, 4)


@pytest.mark.parametrize("width", [pytest.param(w, marks=[pytest.mark.weekly] if w > 16 else []) for w in WIDTHS])
def test_each_width(width):
    check_steps(random_block(300, 300, 4000, data=None), "float32", width)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_nothing(threads):
    check_steps(random_block(5000, 5000, LARGE, data=None), "exact", 4, threads=threads)


@pytest.mark.parametrize("shared", [np.full(1, 1 / 300), np.zeros(1), np.linspace(0, 1, 300) / 150])
def test_dangling_mass_may_go_to_the_same_vertices_for_all(shared):
    check_steps(random_block(300, 300, 4000, data=None), "exact", 4, dangling=shared)


def test_changes_may_be_relative():
    check_steps(random_block(300, 300, 4000, data=None), "exact", 4, is_relative=True)
    check_steps(make_block(GRAPHS["empty rows"], data=None), "exact", 4, is_relative=True, n_steps=3)


def test_indices_of_64_bits():
    block = make_block(GRAPHS["dense"], indices=np.int64, data=None)
    check_steps(block, "exact", 4)


def test_blocks_of_rows_make_their_rows():
    whole = random_block(300, 300, 4000, data=None)
    rng = np.random.default_rng(3)
    weight, z = rng.random(300), np.rint(rng.random((300, 4)) * 2.0**50).astype(np.int64)
    terms, _ = make_terms(rng, 300, 4, OWN)
    x, z_next, mass = np.ones((300, 4)) / 300, np.zeros((300, 4), np.int64), np.full(4, 0.25)
    sums = CpuMany(whole, "exact").step_many(z, x, z_next, weight, mass, terms)
    cut_x, cut_next = np.ones((300, 4)) / 300, np.zeros((300, 4), np.int64)
    parts = []
    for start, stop in ((0, 7), (7, 8), (8, 300)):
        own = (terms.rows >= start) & (terms.rows < stop)
        cut = Terms(
            terms.alpha, terms.dangling, terms.base, terms.rows[own] - start, terms.columns[own], terms.weights[own]
        )
        kernel = CpuMany(cut_rows(whole, start, stop), "exact")
        parts.append(kernel.step_many(z, cut_x[start:stop], cut_next[start:stop], weight[start:stop], mass, cut))
    assert (cut_x.tobytes(), cut_next.tobytes()) == (x.tobytes(), z_next.tobytes())
    assert [a + b + c for a, b, c in zip(*parts, strict=True)] == sums


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_columns_are_taken(dtype):
    kernel = CpuMany(random_block(5000, 5000, LARGE, data=None), threads=2)
    x = np.random.default_rng(4).random((5000, 8)).astype(dtype)
    out = np.zeros((2, 5000), dtype)
    kernel.take(x, np.array([6, 1]), out)
    assert out.tolist() == x[:, [6, 1]].T.tolist()
    wide = np.zeros((5000, 4), dtype)
    kernel.take(x, np.array([3, 0]), wide[:, 1:3].T)
    assert wide.tolist() == np.stack([out[0] * 0, x[:, 3], x[:, 0], out[0] * 0], axis=1).tolist()


def test_wrong_ranks_are_counted_in_their_column():
    kernel = CpuMany(random_block(300, 300, 4000, data=None), "exact")
    x = np.full((300, 4), 1 / 300)
    x[5, 1], x[6, 1], x[7, 2] = np.nan, -1.0, 3.0
    sums = kernel.scale_many(x, np.ones(300), np.zeros((300, 4), np.int64))
    assert [s.n_wrong for s in sums] == [0, 2, 1, 0]


def test_widths():
    assert [fit_width(n) for n in (1, 2, 3, 16, 17, 64, 500)] == [2, 2, 4, 16, 32, 64, 64]
    assert narrow_widths(8) == (8, 4, 2)
    assert CpuMany.best_width in WIDTHS


def test_compiling_makes_every_kernel_of_a_run():
    from mgspmv.kernels import cpu_many

    kernel = CpuMany(make_block(GRAPHS["dense"], data=None), "float32")
    kernel.compile_many((4, 2), 4)
    before = [len(k.signatures) for k in vars(cpu_many).values() if hasattr(k, "signatures")]
    check_steps(kernel.block, "float32", 4)
    assert [len(k.signatures) for k in vars(cpu_many).values() if hasattr(k, "signatures")] == before
