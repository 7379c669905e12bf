"""Which kernel is bound."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

from benchmarks.matrices import RECIPES, add_values
from mgspmv.errors import CapacityError, FormatError, OptionError
from mgspmv.kernels import features, select
from mgspmv.kernels.catalogue import KERNELS
from mgspmv.kernels.cpu import CpuBlock, ReferenceBlock
from mgspmv.kernels.host import SMALL_NNZ, SmallBlock
from mgspmv.kernels.select import LEAST_FLOAT32, bind_kernel, bind_product, check_kernel, find_step_layout
from mgspmv.model import CsrBlock
from tests.support.blocks import to_scipy

BLOCK = CsrBlock(0, 1, np.array([0, SMALL_NNZ + 1]), np.zeros(SMALL_NNZ + 1, np.int32), None)
SMALL = CsrBlock(0, 3, np.array([0, 2, 3]), np.array([0, 2, 1], np.int32), np.array([1.0, 2.0, 4.0]))
REFERENCES = (
    "csr-scalar, csr-warp, csr-vector, csr-cached, csr-split, csr-compact, csr-many, ell, coo, dia, hyb, bsr, "
    "sell, column-sorted-tiles"
)


def test_kernel_by_name():
    for name, threads in (("auto", 2), ("csr-rows", 2), ("csr-serial", 1)):
        kernel = bind_kernel(BLOCK, "exact", kernel=name, threads=2)
        assert type(kernel) is CpuBlock
        assert (kernel.block, kernel.precision, kernel.threads) == (BLOCK, "exact", threads), name


def test_small_blocks_need_no_numba():
    for name, wanted in (("auto", SmallBlock), ("csr-rows", SmallBlock), ("csr-serial", CpuBlock)):
        assert type(bind_kernel(SMALL, "exact", kernel=name)) is wanted, name


def test_twin_by_name():
    for name in REFERENCES.split(", "):
        kernel = bind_kernel(SMALL, "float64", kernel=name, threads=5)
        assert type(kernel) is ReferenceBlock
        assert (kernel.block, kernel.precision, kernel.threads) == (SMALL, "float64", 1)
        kernel.multiply(np.array([1.0, 10.0, 100.0]), y := np.empty(2))
        assert y.tolist() == [201, 40], name


def on_host(name):
    bind_kernel(SMALL, "float64", kernel=name)


def on_device(name):
    bind_kernel(SMALL, "float64", kernel=name, backend="cuda")


def steps_on_host(name):
    check_kernel(name, "cpu", for_steps=True)


def steps_on_device(name):
    check_kernel(name, "cuda", for_steps=True)


ON_HOST, STEPS = f"csr-rows, csr-serial, {REFERENCES}", "csr-split, coo, column-sorted-blocks, sell-slices"
NO_STEPS, NO_PRODUCTS = "does not support PageRank steps on backend", "does not support products on backend"
PASS = "pass kernel='auto' or one of"


@pytest.mark.parametrize(
    ("ask", "name", "message"),
    [
        (on_host, "csr", f"kernel must be 'auto' or one of {ON_HOST}, not 'csr'"),
        (on_device, "csr", f"kernel must be 'auto' or one of {REFERENCES}, not 'csr'"),
        (steps_on_host, "csr", "kernel must be 'auto' or one of csr-rows, csr-serial, not 'csr'"),
        (on_device, "csr-rows", f"kernel 'csr-rows' {NO_PRODUCTS} 'cuda'; {PASS} {REFERENCES}"),
        (on_host, "column-sorted-blocks", f"kernel 'column-sorted-blocks' {NO_PRODUCTS} 'cpu'; {PASS} {ON_HOST}"),
        (steps_on_host, "sell-slices", f"{NO_STEPS} 'cpu'; {PASS} csr-rows, csr-serial"),
        (steps_on_device, "csr-rows", f"{NO_STEPS} 'cuda'; {PASS} {STEPS}"),
        (on_device, "sell-slices", f"{NO_PRODUCTS} 'cuda'; {PASS} {REFERENCES}"),
        (steps_on_host, "sell", f"kernel 'sell' {NO_STEPS} 'cpu'; {PASS} csr-rows, csr-serial"),
        (steps_on_host, "csr-split", f"{NO_STEPS} 'cpu'; {PASS} csr-rows, csr-serial"),
        (steps_on_device, "sell", f"{NO_STEPS} 'cuda'; {PASS} {STEPS}"),
    ],
)
def test_kernels_that_are_not_there(ask, name, message):
    with pytest.raises(OptionError) as caught:
        ask(name)
    assert str(caught.value).endswith(message)


def test_kernels_that_make_steps():
    for name in ("auto", "csr-rows", "csr-serial"):
        steps_on_host(name)
    for name in ("auto", *STEPS.split(", ")):
        steps_on_device(name)


# --- the choice for products -----------------------------------------------------------------------------------------

BAND = RECIPES["band9"].make(np, 2_000_000)
"""For which DIA is chosen on a device."""


class Device:
    """What stands in for a CUDA device: kernels are their twins."""

    def __init__(self) -> None:
        self.refused: dict[str, Exception] = {}

    def bind(self, block, precision, kernel):
        if kernel in self.refused:
            raise self.refused[kernel]
        bound = ReferenceBlock(block, precision, KERNELS[kernel])
        bound.kernel = kernel
        return bound


@pytest.fixture
def device(monkeypatch) -> Device:
    made = Device()
    monkeypatch.setattr("mgspmv.kernels.cuda.CudaBlock", made.bind)
    monkeypatch.setattr(select, "report_full_device", lambda _: nullcontext())
    return made


def choose(block=BAND, dtype="float32", **options):
    return bind_product(block, dtype, backend="cuda", **options).kernel


def test_the_choice_by_features(device):
    assert choose() == "dia"
    assert choose(dtype="float64") == "ell"  # DIA of a pattern has values, here of 8 bytes


def test_the_named_kernel_is_not_chosen(device):
    assert choose(kernel="sell") == "sell"
    with pytest.raises(OptionError, match=r"^kernel must be 'auto' or one of .*, not 'csr'$"):
        choose(kernel="csr")


@pytest.mark.parametrize("error", [FormatError, CapacityError])
def test_what_cannot_be_had_is_left_out(device, error):
    device.refused = {"dia": error("dia")}
    assert choose() == "ell"
    device.refused["ell"] = error("ell")
    assert choose() == "csr-compact"
    device.refused["csr-compact"] = error("csr-compact")
    assert choose() == "csr-vector"


def test_where_nothing_can_be_had_the_last_error_is_raised(device):
    device.refused = {name: CapacityError(f"{name} does not fit") for name in REFERENCES.split(", ")}
    with pytest.raises(CapacityError, match=r"^csr-vector does not fit$"):
        choose()
    with pytest.raises(CapacityError, match=r"^dia does not fit$"):
        choose(kernel="dia")


def test_a_device_with_no_room_for_the_choice(device, monkeypatch):
    def fail(*_):
        raise CapacityError("does not fit")

    monkeypatch.setattr(features, "find_features", fail)
    assert choose() == "csr-split"


@pytest.mark.gpu
def test_the_choice_on_a_device():
    block = add_values(np, RECIPES["band9"].make(np, 20_000_000), "float32")
    x = np.random.default_rng(1).normal(size=block.n_cols).astype(np.float32)
    bound = bind_product(block, "float32", backend="cuda")
    there, y = bound.put(x), bound.zeros(block.n_rows, np.float32)
    bound.multiply(there, y)
    assert bound.kernel == "dia"
    np.testing.assert_allclose(bound.get(y), to_scipy(block) @ x, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("precision", "dtype", "min_weight"),
    [
        ("exact", None, None),
        ("exact", "float64", 5e-324),
        ("exact", "float64", 0.0),
        ("float32", None, None),
        ("float32", None, 5e-324),
        ("float32", "float32", LEAST_FLOAT32),
        ("float32", "float32", None),  # of a matrix without entries
    ],
)
def test_layout_of_steps(precision, dtype, min_weight):
    for name in ("auto", "column-sorted-blocks", "sell-slices", "coo"):
        assert find_step_layout(name, precision, "int32", dtype, min_weight) == name


@pytest.mark.parametrize(
    ("precision", "index_dtype", "min_weight", "problem"),
    [
        ("float64", "int32", 1.0, "adds in fixed point and supports precision='exact' and 'float32'"),
        ("exact", "int64", 1.0, "counts columns in 32 bits, but the matrix has 2^31 or more"),
        (
            "float32",
            "int32",
            0.99 * LEAST_FLOAT32,
            "needs float32 values of at least 1.18e-38, but the smallest is 1.16e-38",
        ),
        ("float32", "int32", 0.0, "needs float32 values of at least 1.18e-38, but the smallest is 0"),
    ],
)
def test_layout_of_steps_that_have_to_take_csr(precision, index_dtype, min_weight, problem):
    dtype = "float32" if precision == "float32" else "float64"
    for name in ("auto", "csr-split"):
        assert find_step_layout(name, precision, index_dtype, dtype, min_weight) is None
    for name in ("column-sorted-blocks", "sell-slices", "coo"):
        with pytest.raises(FormatError) as caught:
            find_step_layout(name, precision, index_dtype, dtype, min_weight)
        assert str(caught.value) == f"kernel {name!r} {problem}; pass kernel='csr-split' or 'auto'"
