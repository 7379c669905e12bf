"""Which kernel is bound."""

from __future__ import annotations

import numpy as np
import pytest

from mgspmv.errors import OptionError
from mgspmv.kernels.cpu import SERIAL_NNZ, CpuBlock, SerialBlock
from mgspmv.kernels.select import KERNELS, bind_kernel
from mgspmv.model import CsrBlock

BLOCK = CsrBlock(0, 1, np.array([0, SERIAL_NNZ]), np.zeros(SERIAL_NNZ, np.int32), None)


@pytest.mark.parametrize(("name", "wanted"), [("auto", CpuBlock), ("csr-rows", CpuBlock), ("csr-serial", SerialBlock)])
def test_kernel_by_name(name, wanted):
    kernel = bind_kernel(BLOCK, "exact", kernel=name)
    assert type(kernel) is wanted
    assert (kernel.block, kernel.precision) == (BLOCK, "exact")


def test_auto_is_the_default():
    assert type(bind_kernel(BLOCK, "float64")) is CpuBlock


def test_threads_are_passed_on():
    assert bind_kernel(BLOCK, "float64", threads=5).threads == 5
    assert bind_kernel(BLOCK, "float64", kernel="csr-serial", threads=5).threads == 1


def test_unknown_kernel_names_the_known():
    with pytest.raises(OptionError, match=r"kernel must be 'auto' or one of csr-rows, csr-serial, not 'csr-row'"):
        bind_kernel(BLOCK, "float64", kernel="csr-row")
    assert sorted(KERNELS) == ["csr-rows", "csr-serial"]
