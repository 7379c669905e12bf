"""The CPU kernels against SciPy, and the fixed point against Python's integers and fractions."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from mgspmv.kernels import cpu
from mgspmv.kernels.cpu import CpuBlock
from mgspmv.kernels.host import SERIAL_NNZ
from mgspmv.model import CHANGE_POINT, FIXED_POINT, CsrBlock, RowCheck, StepSums
from tests.support.blocks import make_block, to_scipy
from tests.support.matrices import HARD, naming
from tests.support.pairwise import cover_pairs
from tests.support.waiting import HANG_S

FINE, COARSE = 2**62, 2**61
"""Units of ranks and changes, as integers."""


def random_block(n_rows, n_cols, nnz, *, data=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    rows, cols = np.sort(rng.integers(0, n_rows, nnz)), rng.integers(0, n_cols, nnz)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n_rows))]).astype(np.int64)
    cols = cols[np.lexsort((cols, rows))].astype(np.int32)
    return CsrBlock(0, n_cols, indptr, cols, None if data is None else rng.random(nnz).astype(data))


LARGE = 4 * SERIAL_NNZ
"""Entries enough for several threads."""


# --- products --------------------------------------------------------------------------------------------------------


@cover_pairs(
    dtype=[np.float32, np.float64],
    has_values={"values": True, "pattern": False},
    indices=[np.int32, np.int64],
    columns={"1-D": (), "1 column": (1,), "3 columns": (3,)},
)
def test_product_of_hard_matrices(dtype, has_values, indices, columns):
    for name, hard in HARD.items():
        block = make_block(hard, indices=indices, data=dtype if has_values else None)
        rng = np.random.default_rng(3)
        x = rng.standard_normal((block.n_cols, *columns)).astype(dtype)
        y = np.full((block.n_rows, *columns), np.nan, dtype)
        CpuBlock(block).multiply(x, y)
        matrix, wide = to_scipy(block), x.astype(np.float64)
        unit = np.finfo(dtype).eps / 2
        rounding = unit * np.abs(matrix @ wide) + (unit * has_values + block.nnz * 2.0**-53) * (abs(matrix) @ abs(wide))
        assert y.dtype == dtype
        assert (np.abs(y - matrix @ wide) <= rounding).all(), name


@cover_pairs(dtype=[np.float32, np.float64], columns={"1-D": (), "3 columns": (3,)})
def test_alpha_and_beta(dtype, columns):
    for alpha, beta, name in product((1.0, 0.0, -1.5), (0.0, 1.0, -0.25), ("empty rows", "unsorted", "wide", "tall")):
        block = make_block(HARD[name], data=dtype)
        rng = np.random.default_rng(4)
        x, old = (rng.standard_normal((n, *columns)).astype(dtype) for n in (block.n_cols, block.n_rows))
        y = old.copy() if beta else np.full_like(old, np.nan)
        CpuBlock(block).multiply(x, y, alpha, beta)
        wanted = alpha * (to_scipy(block) @ x.astype(np.float64)) + beta * old.astype(np.float64)
        atol = 1e-15 if dtype == np.float64 else 1e-7
        with naming(name, alpha, beta):
            np.testing.assert_allclose(y, wanted, rtol=2 * np.finfo(dtype).eps, atol=atol)


def test_sums_of_float32_are_made_in_float64():
    block = CsrBlock(0, 3, np.array([0, 3]), np.arange(3, dtype=np.int32), np.array([1e8, 1, -1e8], np.float32))
    CpuBlock(block).multiply(np.ones(3, np.float32), y := np.empty(1, np.float32))
    assert y[0] == 1


@pytest.mark.parametrize("columns", [(), (3,)], ids=["1-D", "3 columns"])
@pytest.mark.parametrize("data", [None, np.float32, np.float64], ids=["pattern", "float32", "float64"])
def test_threads_give_the_same_bits(data, columns):
    block = random_block(5000, 3000, LARGE, data=data)
    dtype = data or np.float64
    x = np.random.default_rng(6).standard_normal((3000, *columns)).astype(dtype)
    products = []
    for threads in (1, 2, 3):
        y = np.full((5000, *columns), np.nan, dtype)
        CpuBlock(block, threads=threads).multiply(x, y)
        products.append(y)
    assert CpuBlock(block, threads=3).threads == 3
    for other in products[1:]:
        np.testing.assert_array_equal(other, products[0])


def test_failure_in_another_thread_is_raised():
    def fail_but_in_the_first(counter, bounds):
        counter[0] += 1
        if counter[0] > 1:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        CpuBlock(random_block(10, 10, LARGE), threads=2)._run(lambda c, b: fail_but_in_the_first(c, b))


@pytest.mark.slow
def test_threads_work_after_a_fork():
    """A child has none of its parent's threads, and must not wait for them."""
    script = f"""
import os, warnings
import numpy as np
from mgspmv.kernels.cpu import CpuBlock
from mgspmv.model import CsrBlock
n = {LARGE}
block = CsrBlock(0, n, np.arange(n + 1, dtype=np.int64), np.arange(n, dtype=np.int32), None)
def multiply():
    y = np.zeros(n)
    CpuBlock(block, threads=2).multiply(np.ones(n), y)
    return y.sum() == n
assert multiply()
warnings.simplefilter("ignore", DeprecationWarning)
child = os.fork()
if child == 0:
    os._exit(0 if multiply() else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=HANG_S)


# --- exact fixed point -----------------------------------------------------------------------------------------------


def round_half_even(value):
    return round(Fraction(value))


def rows_of(block):
    for i in range(block.n_rows):
        yield i, range(int(block.indptr[i]), int(block.indptr[i + 1]))


def multiply_exactly(block, z):
    """A z in units of 2^-62, as a step with no damping and no jumps makes it."""
    x, zero = np.zeros(block.n_rows), np.zeros(1)
    kernel = CpuBlock(block, "exact")
    kernel.step(z, x, np.zeros(block.n_rows, z.dtype), np.ones(block.n_rows), 1.0, 0.0, zero, zero)
    return [int(rank * FIXED_POINT) for rank in x]


@cover_pairs(data={"pattern": None, "float32": np.float32, "float64": np.float64}, indices=[np.int32, np.int64])
def test_exact_sums_are_those_of_integers(data, indices):
    """Each contribution is rounded once, and none of the sums, which are small enough for a float64."""
    for name in HARD.keys() - {"mixed signs"}:
        block = make_block(HARD[name], indices=indices, data=data)
        z = np.random.default_rng(7).integers(0, 2**40 // max(1, block.nnz), block.n_cols)
        products = z[block.indices]
        if data is not None:
            z = z * 0.3
            products = block.data.astype(np.float64) * z[block.indices]
        contribution = [round_half_even(product) for product in products.tolist()]
        wanted = [sum(contribution[k] for k in row) for _, row in rows_of(block)]
        assert multiply_exactly(block, z) == wanted, name


def test_exact_rounds_halves_to_even():
    block = CsrBlock(0, 1, np.arange(7), np.zeros(6, np.int32), np.array([0.5, 1.5, 2.5, -0.5, 0.49, 2.51]))
    assert multiply_exactly(block, np.ones(1)) == [0, 2, 2, 0, 0, 3]


# --- the PageRank step -----------------------------------------------------------------------------------------------

PRECISIONS = ["exact", "float64", "float32"]


def bind(block, precision, threads=None):
    """The kernel, with float32 values for float32, and an empty z for its columns."""
    if block.data is not None and precision == "float32":
        block = CsrBlock(block.row_offset, block.n_cols, block.indptr, block.indices, block.data.astype(np.float32))
    kernel = CpuBlock(block, precision, threads)
    return kernel, np.empty(block.n_cols, kernel.z_dtype)


def rank_dtype(precision):
    return np.float32 if precision == "float32" else np.float64


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("has_values", [True, False], ids=["values", "pattern"])
def test_scale_divides_by_weights_and_sums_dangling_mass(precision, has_values):
    kernel, z = bind(make_block(HARD["ring"], data=np.float64 if has_values else None), precision)
    x = np.array([0.1, 0.2, 0.3, 0.05, 0.15, 0.1, 0.1], rank_dtype(precision))
    weight = np.array([3.0, 0.0, 7.0, 0.0, 1.0, 2.0, 1e-3 if has_values else 1.0])
    sums = kernel.scale(x, weight, z)
    quotients = [float(a) / w if w else 0.0 for a, w in zip(x, weight, strict=True)]
    unit = FINE if precision == "exact" else 1
    wanted = [round_half_even(q * unit) if z.dtype == np.int64 else z.dtype.type(q * unit) for q in quotients]
    assert z.tolist() == wanted
    dangling = sum(round_half_even(Fraction(float(a)) * FINE) for a, w in zip(x, weight, strict=True) if not w)
    assert sums == StepSums(0, 0, dangling, 0)


@cover_pairs(precision=PRECISIONS, has_values={"values": True, "pattern": False}, threads=[1, 3])
def test_checks_of_rows(precision, has_values, threads):
    """The sum in fixed point, and every row of which something was changed, however little."""
    rng, n = np.random.default_rng(2), 300
    kernel = CpuBlock(random_block(n, n, LARGE, data=np.float64 if has_values else None), precision, threads)
    x = rng.random(n).astype(rank_dtype(precision)) * 2
    weight = np.where(rng.random(n) < 0.2, 0.0, rng.random(n) + 0.1)
    z = np.empty(n, kernel.z_dtype)
    kernel.scale(x, weight, z)
    total = sum(round_half_even(Fraction(float(rank)) * COARSE) for rank in x) % 2**64
    dangling = sum(round_half_even(Fraction(float(rank)) * FINE) for rank in x[weight == 0]) % 2**64
    assert kernel.check_rows(x, weight, z) == RowCheck(total, 0, dangling)
    has_out = np.flatnonzero(weight)
    for vector, bit in ((z, 0), (x, 0 if precision != "exact" else 30), (weight, 40)):
        if has_values or vector is not x:
            raw = vector.view(f"uint{8 * vector.itemsize}")
            raw[has_out[[3, 50]]] ^= raw.dtype.type(1 << bit)
            assert kernel.check_rows(x, weight, z).n_off == 2
            raw[has_out[[3, 50]]] ^= raw.dtype.type(1 << bit)
    assert kernel.check_rows(x, weight, z) == RowCheck(total, 0, dangling)
    for wrong in (np.nan, np.inf, -1e-30, 2.5):
        changed = x.copy()
        changed[np.flatnonzero(weight == 0)[1]] = wrong
        assert kernel.check_rows(changed, weight, z).n_off == 1


@cover_pairs(
    precision=PRECISIONS,
    has_values={"values": True, "pattern": False},
    n_dangling={"dangling of each": 6, "one dangling": 1},
    n_personalization={"personalization of each": 6, "one personalization": 1},
)
def test_step_is_the_formula(precision, has_values, n_dangling, n_personalization):
    kernel, z = bind(make_block(HARD["empty rows"], data=np.float64 if has_values else None), precision)
    matrix, n, alpha, mass = to_scipy(kernel.block), 6, 0.85, 0.2
    rng = np.random.default_rng(11)
    x = (lambda v: v / v.sum())(rng.random(n)).astype(rank_dtype(precision))
    weight = np.array([1.0, 2.0, 0.0, 4.0, 5.0, 3.0])
    d, p = (rng.random(k) / k for k in (n_dangling, n_personalization))
    kernel.scale(x, weight, z)
    old, z_next = x.astype(np.float64), np.empty_like(z)
    sums = kernel.step(z, x, z_next, weight, alpha, mass, d, p)
    used = z.astype(np.float64) / (FIXED_POINT if precision == "exact" else 1)
    np.testing.assert_allclose(
        x, alpha * (matrix @ used + mass * d) + (1 - alpha) * p, rtol=2 * np.finfo(x.dtype).eps, atol=1e-18
    )
    changes = np.abs(x.astype(np.float64) - old)
    assert sums.change_l1 == sum(round_half_even(Fraction(c) * COARSE) for c in changes)
    assert sums.change_linf == max(round_half_even(Fraction(c) * COARSE) for c in changes)
    start, parts = old.astype(x.dtype), [min(c / r, 2.0) for c, r in zip(changes, x.astype(np.float64), strict=True)]
    relative = kernel.step(z, start, np.empty_like(z), weight, alpha, mass, d, p, is_relative=True)
    assert start.tobytes() == x.tobytes()
    assert relative == replace(sums, change_linf=max(round_half_even(Fraction(part) * COARSE) for part in parts))
    again = np.empty_like(z)
    assert kernel.scale(x, weight, again) == StepSums(0, 0, sums.dangling, 0)
    np.testing.assert_array_equal(z_next, again)


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [(0.5, 0.0, 0.0), (0.0, 0.25, 1.0), (1.0, 0.5, 1.0), (1.0, 0.375, 5 / 3), (1.0, 0.25, 2.0), (1.0, 5e-324, 2.0)],
)
def test_relative_changes(old, new, wanted):
    """Of ranks that vanish 0; and no more than 2, also where the ratio overflows, or the rank does not fit float32."""
    block = CsrBlock(0, 1, np.array([0, 0]), np.empty(0, np.int32), None)
    for precision in PRECISIONS:
        kernel, z = bind(block, precision)
        x = np.array([old], rank_dtype(precision))
        arguments = (z, x, z, np.ones(1), 0.0, 0.0, np.zeros(1), np.array([new]))
        sums = kernel.step(*arguments, is_relative=True)
        is_lost = precision == "float32" and new == 5e-324
        assert sums.change_linf == (0 if is_lost else round(wanted * CHANGE_POINT)), precision
        assert sums.change_l1 == round(abs(x[0] - old) * CHANGE_POINT), precision


@pytest.mark.parametrize("precision", PRECISIONS)
def test_step_with_threads_gives_the_same_bits_and_sums(precision):
    n, results = 5000, []
    for threads in (1, 2, 3):
        kernel, z = bind(random_block(n, n, LARGE, seed=1), precision, threads)
        rng = np.random.default_rng(12)
        x = (rng.random(n) / n).astype(rank_dtype(precision))
        weight = np.where(rng.random(n) < 0.2, 0.0, 50.0 + rng.random(n))
        kernel.scale(x, weight, z)
        z_next = np.empty_like(z)
        sums = kernel.step(z, x, z_next, weight, 0.85, 0.1, np.array([1 / n]), rng.random(n) / n, is_relative=True)
        results.append((sums, x.tobytes(), z_next.tobytes()))
        assert kernel.threads == threads
    assert results[0] == results[1] == results[2]
    assert results[0][0].dangling > 0


@pytest.mark.parametrize("precision", PRECISIONS)
def test_step_counts_ranks_that_are_none(precision):
    block = CsrBlock(0, 3, np.array([0, 0, 0, 0]), np.empty(0, np.int32), None)
    for wrong in (math.nan, math.inf, -0.5, 2.5):
        kernel, z = bind(block, precision)
        x, weight = np.full(3, 1 / 3, rank_dtype(precision)), np.array([1.0, 0.0, 2.0])
        p = np.array([0.3, wrong / 0.15, 0.4])
        sums = kernel.step(np.zeros_like(z), x, z, weight, 0.85, 0.0, np.zeros(1), p)
        with naming(wrong):
            assert sums.n_wrong == 1
            assert 0 <= sums.change_l1 <= 2 * CHANGE_POINT
            assert sums.dangling == 0


@pytest.mark.parametrize("weight", [math.nan, 5e-324])
@pytest.mark.parametrize("data", [None, np.float64], ids=["pattern", "values"])
def test_exact_step_counts_ranks_that_cannot_be_divided(data, weight):
    """Two contributions that are not finite would cancel in 64 bits, and no rank would look wrong."""
    kernel, z = bind(make_block(HARD["only self loops"], data=data), "exact")
    sums = kernel.scale(np.full(3, 1 / 3), np.array([1.0, weight, 2.0]), z)
    assert sums.n_wrong == 1


RESIDUALS = ["empty rows", "one dense row", "star", "self loops", "duplicates"]


def make_residual(name, dtype):
    """A block, the arguments of its residual, and the residual as a fraction."""
    block, alpha, mass, rng = make_block(HARD[name]), 0.85, 0.125, np.random.default_rng(13)
    x, z, d, p = (rng.random(block.n_rows) / block.n_rows for _ in range(4))
    x, exact = x.astype(dtype), Fraction(0)
    for i, row in rows_of(block):
        product = sum(Fraction(float(block.data[k])) * Fraction(float(z[block.indices[k]])) for k in row)
        step = Fraction(alpha) * (product + Fraction(mass) * Fraction(d[i])) + (1 - Fraction(alpha)) * Fraction(p[i])
        exact += abs(step - Fraction(float(x[i])))
    return block, (z, x, alpha, mass, d, p), exact


@pytest.mark.parametrize("name", RESIDUALS)
def test_residual_is_a_bound_and_a_tight_one(name):
    for dtype in (np.float32, np.float64):
        block, arguments, exact = make_residual(name, dtype)
        found = CpuBlock(block).residual(*arguments)
        assert exact <= Fraction(found) <= exact * (1 + Fraction(1, 10**12))
        if dtype == np.float32:  # and what rounding the values did
            rounded = CsrBlock(0, block.n_cols, block.indptr, block.indices, block.data.astype(np.float32))
            found = CpuBlock(rounded).residual(*arguments)
            moved = 0.85 * (to_scipy(block) @ arguments[0]).sum() * 2.0**-24
            assert exact <= Fraction(found) <= exact + 3 * Fraction(moved)


def test_residual_counts_its_own_rounding():
    """Ranks that are right to the last bit still have a bound above 0."""
    block = make_block(HARD["ring"], data=None)
    x = np.full(7, 1 / 7)
    found = CpuBlock(block).residual(x, x, 0.85, 0.0, np.zeros(1), np.full(1, 1 / 7))
    assert 0 < found < 1e-14


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("has_values", [True, False], ids=["values", "pattern"])
def test_compile_leaves_nothing_to_compile_in_a_run(precision, has_values):
    kernel, z = bind(make_block(HARD["star"], data=np.float64 if has_values else None), precision)
    n, one = kernel.block.n_rows, np.ones(1)
    x, weight, z64 = np.full(n, 1 / n, rank_dtype(precision)), np.ones(n), np.zeros(n)
    kernel.compile()
    dispatchers = (cpu._multiply, cpu._step)
    before = [len(f.signatures) for f in dispatchers]
    kernel.scale(x, weight, z)
    kernel.step(z, x, np.empty_like(z), weight, 0.85, 0.0, one / n, np.full(n, 1 / n))
    plain = CpuBlock(kernel.block, "float64")
    plain.scale(x, weight, z64)
    plain.residual(z64, x, 0.85, 0.0, one, one)
    assert [len(f.signatures) for f in dispatchers] == before
