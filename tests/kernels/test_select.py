"""Which kernel is bound."""

from __future__ import annotations

import numpy as np
import pytest

from mgspmv.errors import FormatError, OptionError
from mgspmv.kernels.cpu import SERIAL_NNZ, CpuBlock, SerialBlock
from mgspmv.kernels.select import BACKENDS, KERNELS, bind_kernel, check_step_kernel, list_kernels
from mgspmv.kernels.twins import TwinBlock
from mgspmv.model import CsrBlock

BLOCK = CsrBlock(0, 1, np.array([0, SERIAL_NNZ]), np.zeros(SERIAL_NNZ, np.int32), None)
SMALL = CsrBlock(0, 3, np.array([0, 2, 3]), np.array([0, 2, 1], np.int32), np.array([1.0, 2.0, 4.0]))
CUDA = "csr-scalar, csr-warp, csr-vector, csr-cached, csr-split, ell, coo, dia, hyb, bsr, sell"


@pytest.mark.parametrize(("name", "wanted"), [("auto", CpuBlock), ("csr-rows", CpuBlock), ("csr-serial", SerialBlock)])
def test_kernel_by_name(name, wanted):
    kernel = bind_kernel(BLOCK, "exact", kernel=name)
    assert type(kernel) is wanted
    assert (kernel.block, kernel.precision) == (BLOCK, "exact")


@pytest.mark.parametrize("name", CUDA.split(", "))
def test_twin_by_name(name):
    kernel = bind_kernel(SMALL, "float64", kernel=name, threads=5)
    assert type(kernel) is TwinBlock
    assert (kernel.block, kernel.precision, kernel.threads) == (SMALL, "float64", 1)
    kernel.multiply(np.array([1.0, 10.0, 100.0]), y := np.empty(2))
    assert y.tolist() == [201, 40]


def test_auto_is_the_default():
    assert type(bind_kernel(BLOCK, "float64")) is CpuBlock


def test_threads_are_passed_on():
    assert bind_kernel(BLOCK, "float64", threads=5).threads == 5
    assert bind_kernel(BLOCK, "float64", kernel="csr-serial", threads=5).threads == 1


def test_unknown_kernel_names_the_known():
    with pytest.raises(OptionError) as caught:
        bind_kernel(BLOCK, "float64", kernel="csr-row")
    assert str(caught.value) == f"kernel must be 'auto' or one of csr-rows, csr-serial, {CUDA}, not 'csr-row'"
    with pytest.raises(OptionError) as caught:
        bind_kernel(BLOCK, "float64", kernel="csr-row", backend="cuda")
    assert str(caught.value) == f"kernel must be 'auto' or one of {CUDA}, not 'csr-row'"


@pytest.mark.parametrize("name", ["csr-rows", "csr-serial"])
def test_kernel_of_another_backend(name):
    with pytest.raises(OptionError) as caught:
        bind_kernel(BLOCK, "float64", kernel=name, backend="cuda")
    assert str(caught.value) == f"kernel {name!r} is not on backend 'cuda'; pass 'auto' or one of {CUDA} there"


def test_unknown_backend():
    with pytest.raises(OptionError, match=r"^backend must be one of 'cpu', 'cuda', not 'gpu'$"):
        bind_kernel(BLOCK, "float64", backend="gpu")


def test_kernel_that_cannot_do_the_matrix():
    lengths = np.ones(50_000, np.int64)
    lengths[0] = 9000
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    block = CsrBlock(0, 9000, indptr, np.zeros(indptr[-1], np.int32), None)
    with pytest.raises(
        FormatError, match=r"the longest row has 9,000 entries, the mean is 1.2; use hyb, sell or csr-s"
    ):
        bind_kernel(block, "float64", kernel="ell")


def test_kernels_that_there_are():
    assert list_kernels("cpu") == ["csr-rows", "csr-serial", *CUDA.split(", ")]
    assert list_kernels("cuda") == CUDA.split(", ")
    assert {name for name, kernel in KERNELS.items() if kernel.needs} == {"ell", "dia", "bsr"}
    for name, kernel in KERNELS.items():
        assert name == kernel.name
        assert kernel.summary
        assert "\n" not in kernel.summary
        assert set(kernel.step_backends) <= set(kernel.backends) <= set(BACKENDS)


# --- steps of PageRank -----------------------------------------------------------------------------------------------


def test_kernels_that_make_steps():
    for name in ("auto", "csr-rows", "csr-serial"):
        check_step_kernel(name, "cpu")
    check_step_kernel("auto", "cuda")
    for name in list_kernels("cuda", for_steps=True):
        check_step_kernel(name, "cuda")


@pytest.mark.parametrize("name", CUDA.split(", "))
def test_twins_make_no_steps(name):
    with pytest.raises(OptionError) as caught:
        check_step_kernel(name, "cpu")
    assert str(caught.value) == (
        f"kernel {name!r} is for products; for PageRank on backend 'cpu' pass 'auto' or one of csr-rows, csr-serial"
    )


def test_unknown_kernel_for_steps_names_those_that_make_them():
    with pytest.raises(OptionError, match=r"^kernel must be 'auto' or one of csr-rows, csr-serial, not 'csr'$"):
        check_step_kernel("csr", "cpu")
    with pytest.raises(
        OptionError, match=r"^kernel 'csr-rows' is not on backend 'cuda'; pass 'auto' or one of .* there$"
    ):
        check_step_kernel("csr-rows", "cuda")
