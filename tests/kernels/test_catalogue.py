"""The table of kernels, and that each has all its parts."""

from __future__ import annotations

import numpy as np

from mgspmv.kernels.catalogue import BACKENDS, KERNELS, SPARSE_KERNELS
from mgspmv.kernels.features import find_features, rank_kernels
from tests.support.blocks import make_random
from tests.support.matrices import naming


def test_every_kernel_is_described():
    for name, kernel in KERNELS.items():
        with naming(name):
            assert name == kernel.name
            assert kernel.summary
            assert kernel.literature or kernel.backends == ("cpu",)
            assert kernel.step_backends or kernel.backends
            assert set(kernel.step_backends) | set(kernel.backends) <= set(BACKENDS)


def test_every_kernel_of_products_has_its_parts():
    block = make_random([3, 1, 2], 4)
    for kernel in SPARSE_KERNELS:
        if "cuda" in kernel.backends:
            with naming(kernel.name):
                stem = kernel.name.replace("-", "_")
                assert kernel.launcher.__name__ == stem
                made = kernel.build(block, np.dtype(np.float64))
                assert kernel.bind_reference(block, made).func.__name__ == stem


def test_what_auto_takes_is_a_kernel_of_products():
    found = find_features(make_random([3, 1, 2], 4), np.float32)
    assert set(rank_kernels(found)) <= {k.name for k in SPARSE_KERNELS if "cuda" in k.backends}
