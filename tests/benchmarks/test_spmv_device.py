"""The benchmark on a CUDA device: its matrices, its clock, its ceilings and cuSPARSE."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from benchmarks import ceilings, cusparse, spmv
from benchmarks.checks import check_product, make_reference
from benchmarks.contenders import CusparseContender
from benchmarks.machines import Device, Host, Rounds
from benchmarks.matrices import RECIPES, add_values, make_vector
from mgspmv.kernels.device import has_device
from tests.support.pairwise import cover_pairs

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_device(), reason="there is no CUDA device")]


@pytest.fixture(scope="module")
def device() -> Device:
    return Device()


def test_matrices_have_the_same_bits_as_on_the_host(device: Device) -> None:
    for name, recipe in RECIPES.items():
        made, wanted = (add_values(m.xp, recipe.make(m.xp, 50_000), "float32") for m in (device, Host()))
        for own, other in ((made.indptr, wanted.indptr), (made.indices, wanted.indices), (made.data, wanted.data)):
            assert own.dtype == other.dtype, name
            assert (device.get(own) == other).all(), name


@cover_pairs(algorithm=list(cusparse.ALGORITHMS), dtype=["float32", "float64"], is_pattern=[False, True])
def test_cusparse_beside_scipy(algorithm: str, dtype: str, is_pattern: bool, device: Device) -> None:
    block = RECIPES["rmat22"].make(device.xp, 50_000)
    block = block if is_pattern else add_values(device.xp, block, dtype)
    x, y = make_vector(device.xp, block.n_cols, dtype), device.xp.full(block.n_rows, np.nan, dtype)
    product = CusparseContender(algorithm, block, x, y)
    product.run()
    device.wait()
    assert product.preprocess_s > 0
    assert product.nbytes >= block.nnz * (4 + y.itemsize)
    product.close()
    assert check_product(device, y, make_reference(device, block, x)).problem is None
    data = np.ones(block.nnz) if is_pattern else device.get(block.data)
    arrays = (data, device.get(block.indices), device.get(block.indptr))
    matrix = scipy.sparse.csr_array(arrays, shape=(block.n_rows, block.n_cols))
    assert np.allclose(device.get(y), matrix @ device.get(x), rtol=1e-4, atol=1e-4)
    product.close()


def test_times_are_of_the_device(device: Device) -> None:
    buffer = device.xp.zeros(1 << 28, np.uint8)
    times = {state: device.time(lambda: buffer.fill(1), state, Rounds(5)) for state in ("warm", "cold")}  # type: ignore[arg-type]  # strings, not literals
    nothing = device.time(lambda: None, "warm", Rounds(5))
    for state in times.values():
        assert 1e11 < buffer.nbytes / state.median_s < 1e13
    assert nothing.median_s < 1e-4


def test_ceilings(device: Device) -> None:
    copy = ceilings.measure_copy_rate(device)
    rates = [ceilings.measure_gather_rate(device, n, "float32") for n in (4096, 1 << 28)]
    assert 1e11 < copy < 2e13
    assert rates[0] > 2 * rates[1]
    assert 4 * rates[0] < 1.2 * copy


def test_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert spmv.main(["--backend", "cuda", "--size", "200000", "--rounds", "3"]) == 0
    printed = capsys.readouterr()
    assert "cuSPARSE 1" in printed.out
    for name, recipe in RECIPES.items():
        assert recipe.by_name_only or f"| {name} |" in printed.out
    assert printed.err.count("cusparse-alg2: warm") == 2 * sum(not r.by_name_only for r in RECIPES.values())
