"""What is said where there is no CUDA device; structures and tables as they go to one."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import mgspmv as mg
from mgspmv.errors import BackendError, ClusterError, OptionError
from mgspmv.kernels import device
from mgspmv.kernels.select import choose_backend
from tests.support.commands import invoke

NO_CUPY = (
    "backend='cuda' needs CuPy, which is not installed; install mgspmv[cuda12] or mgspmv[cuda13], or use backend='cpu'"
)


@pytest.fixture
def without_cupy(monkeypatch):
    """CuPy cannot be found."""
    monkeypatch.setattr(device, "_is_installed", lambda: False)


@pytest.fixture
def without_device(monkeypatch):
    """CuPy is installed, and CUDA finds nothing."""
    monkeypatch.setattr(device, "_is_installed", lambda: True)
    monkeypatch.setattr(device, "_find_problem", lambda: "CUDA found none (cudaErrorNoDevice)")


@pytest.fixture
def stencil(tmp_path):
    mg.generate("stencil2d", tmp_path / "a.zarr", nx=4, ny=5)
    return mg.open_matrix(tmp_path / "a.zarr")


def test_cupy_is_missing(without_cupy, stencil):
    with pytest.raises(BackendError) as caught:
        mg.spmv(stencil, np.ones(20), backend="cuda")
    assert str(caught.value) == NO_CUPY
    assert not device.has_device()


def test_device_is_missing(without_device, stencil):
    with pytest.raises(BackendError) as caught:
        mg.spmv(stencil, np.ones(20), backend="cuda")
    assert str(caught.value) == (
        "backend='cuda' needs a CUDA GPU, and CUDA found none (cudaErrorNoDevice); use backend='cpu'"
    )


def test_device_that_is_too_old(monkeypatch):
    named = {"name": b"GeForce GTX 1080"}
    runtime = SimpleNamespace(getDeviceCount=lambda: 1, getDeviceProperties=lambda _: named, CUDARuntimeError=OSError)
    old = SimpleNamespace(id=0, compute_capability="61")
    cuda = SimpleNamespace(runtime=runtime, Device=lambda: old)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(device, "_is_installed", lambda: True)
    device._find_problem.cache_clear()
    try:
        with pytest.raises(
            BackendError, match="GeForce GTX 1080 is of architecture 61, older than 70; use backend='cpu'"
        ):
            device.check_device()
    finally:
        device._find_problem.cache_clear()


def test_auto_is_the_cpu_without_a_device(without_device, stencil):
    assert choose_backend("auto") == "cpu"
    np.testing.assert_array_equal(stencil @ np.ones(20), mg.spmv(stencil, np.ones(20), backend="cpu"))


def test_unknown_backend(stencil):
    with pytest.raises(OptionError, match="backend must be one of 'auto', 'cpu', 'cuda', not 'gpu'"):
        mg.spmv(stencil, np.ones(20), backend="gpu")
    with pytest.raises(OptionError, match="backend must be one of"):
        mg.pagerank(stencil, backend="gpu")


def test_array_on_a_gpu_is_refused(stencil):
    with pytest.raises(OptionError, match=r"x must be an array of NumPy, not one on a GPU; pass cupy.asnumpy\(x\)"):
        mg.spmv(stencil, SimpleNamespace(__cuda_array_interface__={}))


def test_a_cluster_whose_workers_have_no_device(client, tmp_path):
    mg.generate("rmat", tmp_path / "g.zarr", scale=4)
    A = mg.open_matrix(tmp_path / "g.zarr")
    for compute in (mg.pagerank, lambda matrix, **given: mg.spmv(matrix, np.ones(16), **given)):
        with pytest.raises(ClusterError, match=r"needs a GPU on each of the 4 workers, and worker 0 \(.*\) has none: "):
            compute(A, client=client, backend="cuda")
    with A.distribute(client) as D:
        assert (D.backend, D.transport) == ("cpu", "peer")
        with pytest.raises(
            OptionError, match=r"was distributed for backend='cpu', and now backend='cuda' is asked for"
        ):
            mg.pagerank(D, backend="cuda")
    with pytest.raises(OptionError, match=r"how workers send slices to each other; pass client= too, or pass it to d"):
        mg.pagerank(A, transport="peer")


@pytest.mark.slow
def test_the_cpu_needs_no_cupy(tmp_path):
    program = (
        "import sys; sys.modules['cupy'] = None  # an import of it fails\n"
        "import numpy as np, mgspmv as mg\n"
        f"mg.generate('rmat', {str(tmp_path / 'g.zarr')!r}, scale=4)\n"
        f"A = mg.open_matrix({str(tmp_path / 'g.zarr')!r})\n"
        "A @ np.ones(16); mg.pagerank(A); mg.spmv(A, np.ones(16), kernel='sell')"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_no_module_imports_cupy_when_it_is_imported():
    for path in Path(mg.__file__).parent.rglob("*.py"):
        assert not re.search(r"^(import|from) (cupy|cupyx|cuda)\b", path.read_text(), re.MULTILINE), path


def test_command_line_ends_with_one_line(tmp_path):
    if device.has_device():
        pytest.skip("there is a device")
    mg.generate("rmat", tmp_path / "g.zarr", scale=4)
    _, stderr = invoke("pagerank", str(tmp_path / "g.zarr"), "--backend", "cuda", code=2)
    assert stderr.count("\n") == 1
    assert "--backend cuda needs" in stderr


# --- what goes to a device -------------------------------------------------------------------------------------------


class OnDevice:
    """An array at an address."""

    nbytes = 0

    def __init__(self, address: int) -> None:
        self.data = SimpleNamespace(ptr=address)


def test_a_structure_is_packed_in_words_of_64_bits():
    integers = (7, -1, np.int64(2**62), np.int32(-5), np.uint32(2**32 - 1), True)
    floats = (0.85, np.float64(-1 / 3), 2.0**-62, float("inf"))
    packed = device.pack(OnDevice(2**46 + 8), None, *integers, *floats, OnDevice(0))
    assert (packed.shape, packed.nbytes) == ((1,), 8 * 13)
    assert packed.dtype.kind == "V"  # a structure by value, and no array
    words = packed.view(np.int64)
    assert words[:8].tolist() == [2**46 + 8, 0, 7, -1, 2**62, -5, 2**32 - 1, 1]
    assert words[8:12].view(np.float64).tolist() == list(floats)
    assert words[12] == 0


@dataclass(frozen=True)
class Memory:
    """A place in memory, as CuPy's pointers are."""

    buffer: np.ndarray
    offset: int = 0

    def __add__(self, n):
        return Memory(self.buffer, self.offset + n)


def test_small_arrays_go_by_one_copy(monkeypatch):
    copies, there = [], OnDevice(16)

    def copy(array):
        if array is there:
            return array
        copies.append(array.copy())
        return copies[-1] if array.nbytes > device.TOGETHER_BYTES else SimpleNamespace(data=Memory(copies[-1]))

    def make(shape, dtype, memory):
        return np.ndarray(shape, dtype, memory.buffer, memory.offset)

    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(asarray=copy, ndarray=make))
    arrays = [
        np.arange(5, dtype=np.int32),
        np.arange(6, dtype=np.int64).reshape(3, 2),
        np.empty((0, 2), np.int64),
        np.arange(20, dtype=np.uint8)[::3],
        np.array([1.5]),
    ]
    placed = device.put_all(*arrays)
    assert len(copies) == 1
    for own, array in zip(placed, arrays, strict=True):
        assert (own.dtype, own.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(own, array)
        assert (own.ctypes.data - placed[0].ctypes.data) % 16 == 0  # as kernels load them
    assert [own.dtype for own in device.put_all(np.empty(0, np.int32), np.empty(0))] == [np.int32, np.float64]
    copies.clear()
    large = np.arange(2**18, dtype=np.float64)
    first, kept, moved, last = device.put_all(arrays[0], there, large, arrays[1])
    assert kept is there
    assert len(copies) == 2
    np.testing.assert_array_equal(moved, large)
    np.testing.assert_array_equal(first, arrays[0])
    np.testing.assert_array_equal(last, arrays[1])
