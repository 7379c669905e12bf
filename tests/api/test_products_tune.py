"""Kernels that are timed for a user: `mg.spmv(tune=True)` and `mgspmv spmv --tune`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import mgspmv as mg
from mgspmv.errors import OptionError
from mgspmv.kernels import select
from mgspmv.kernels.cpu import CpuBlock, SerialBlock
from tests.support.commands import invoke


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("MGSPMV_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "choices.json"


@pytest.fixture
def serial_is_faster(monkeypatch) -> list[type]:
    """csr-serial always is; what was timed."""
    timed: list[type] = []
    monkeypatch.setattr(select, "time_product", lambda bound, *_: timed.append(type(bound)) or -len(timed))
    return timed


@pytest.fixture
def store(tmp_path) -> Path:
    mg.generate("stencil2d", tmp_path / "a.zarr", nx=20, ny=10, transpose=True)
    return tmp_path / "a.zarr"


def find_kernels(A, **options) -> list[type]:
    return [type(bound) for bound in A.bind_products("float64", **options)]


def test_the_choice_holds_at_once_and_for_others_that_open_the_store(store, cache, serial_is_faster):
    A, x = mg.open_matrix(store), np.arange(200.0)
    plain = mg.spmv(A, x, backend="cpu")
    assert find_kernels(A) == [CpuBlock]
    assert not cache.exists()
    np.testing.assert_array_equal(mg.spmv(A, x, backend="cpu", tune=True), plain)
    assert serial_is_faster == [CpuBlock, SerialBlock]
    assert find_kernels(A) == find_kernels(mg.open_matrix(store)) == [SerialBlock]
    assert find_kernels(A, kernel="csr-rows") == [CpuBlock]
    mg.spmv(mg.open_matrix(store), x, backend="cpu", tune=True)
    assert len(serial_is_faster) == 2
    [key] = json.loads(cache.read_text())
    assert key.startswith(f"{A.info.digest}; rows 0-200; float64; ")


def test_each_block_the_transpose_and_each_dtype_has_a_choice_of_its_own(store, cache, serial_is_faster):
    A = mg.open_matrix(store).load(2)
    mg.spmv(A, np.ones(200), backend="cpu", tune=True)
    assert find_kernels(A) == [SerialBlock] * 2
    assert find_kernels(mg.open_matrix(store)) == [CpuBlock]
    assert find_kernels(A.T.load(2)) == [CpuBlock] * 2
    assert [type(b) for b in A.bind_products("float32")] == [CpuBlock] * 2
    mg.spmv(A.T.load(1), np.ones(200), backend="cpu", tune=True)
    assert len(json.loads(cache.read_text())) == 3
    assert find_kernels(A.T) == [SerialBlock]
    assert find_kernels(mg.open_matrix(store)) == [CpuBlock]


def test_a_choice_that_cannot_be_kept_still_holds_for_the_matrix(store, cache, serial_is_faster):
    cache.parent.write_text("no folder")
    A = mg.open_matrix(store)
    with pytest.warns(UserWarning, match="the choice of a kernel cannot be kept in"):
        mg.spmv(A, np.ones(200), backend="cpu", tune=True)
    mg.spmv(A, np.ones(200), backend="cpu", tune=True)
    assert find_kernels(A) == [SerialBlock]
    assert len(serial_is_faster) == 2


def test_what_tune_does_not_go_with(store, in_process):
    A = mg.open_matrix(store)
    with pytest.raises(OptionError) as caught:
        mg.spmv(A, np.ones(200), tune=True, kernel="csr-rows")
    assert (
        str(caught.value) == "tune=True chooses the kernel by timing, and kernel='csr-rows' names one; leave out either"
    )
    with A.distribute(in_process(1)) as distributed:
        for matrix, options in ((A, {"client": in_process(1)}), (distributed, {})):
            with pytest.raises(OptionError) as caught:
                mg.spmv(matrix, np.ones(200), tune=True, **options)
            assert str(caught.value) == (
                "tune times kernels in this process, and the workers of a cluster would have to; leave out tune=, or "
                "pass kernel="
            )


def test_the_command_keeps_its_choice(store, cache, tmp_path):
    np.save(tmp_path / "x.npy", np.ones(200))
    command = ("spmv", str(store), str(tmp_path / "x.npy"), "-o", str(tmp_path / "y.npy"), "--backend", "cpu")
    invoke(*command)
    assert not cache.exists()
    invoke(*command, "--tune", "--overwrite")
    [kept] = json.loads(cache.read_text()).values()
    assert kept["milliseconds"].keys() == {"csr-rows", "csr-serial"}
    assert kept["kernel"] in kept["milliseconds"]
    _, stderr = invoke(*command, "--tune", "--kernel", "csr-rows", "--overwrite", code=2)
    assert "--tune chooses the kernel by timing, and --kernel csr-rows names one" in stderr
