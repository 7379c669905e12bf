"""What is said where there is no CUDA device; structures and tables as they go to one."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import threading
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import mgspmv as mg
from mgspmv.api import arguments
from mgspmv.errors import BackendError, CapacityError, ClusterError, MissingDependencyError, OptionError
from mgspmv.kernels import context, device
from mgspmv.kernels.device import PieceReader, fetch, read_graph
from mgspmv.kernels.select import choose_backend
from mgspmv.model import CsrBlock
from mgspmv.plan import HELD_PIECES
from tests.support.commands import invoke
from tests.support.played_build import PlayedCupy

NO_CUPY = (
    "backend='cuda' needs CuPy, which is not installed; install mgspmv[cuda12] or mgspmv[cuda13], or use "
    "backend='cpu', or call on('cpu')"
)


@pytest.fixture
def without_cupy(monkeypatch):
    """CuPy cannot be found."""
    monkeypatch.setattr(device, "find_device_problem", lambda: "CuPy is not installed")


@pytest.fixture
def without_device(monkeypatch):
    """CuPy is installed, and CUDA finds nothing."""
    monkeypatch.setattr(device, "find_device_problem", lambda: "CUDA found no device (cudaErrorNoDevice)")


@pytest.fixture
def stencil(tmp_path):
    return mg.generate("stencil2d", tmp_path / "a.zarr", nx=4, ny=5)


def test_cupy_is_missing(without_cupy, stencil):
    with pytest.raises(MissingDependencyError) as caught:
        mg.spmv(stencil.on("cuda"), np.ones(20))
    assert str(caught.value) == NO_CUPY
    assert not device.has_device()


def test_device_is_missing(without_device, stencil):
    with pytest.raises(BackendError) as caught:
        mg.spmv(stencil.on("cuda"), np.ones(20))
    assert str(caught.value) == (
        "backend='cuda' needs a CUDA GPU, but CUDA found no device (cudaErrorNoDevice); use backend='cpu', or call "
        "on('cpu')"
    )


def test_device_that_is_too_old(monkeypatch):
    named = {"name": b"GeForce GTX 1080"}
    runtime = SimpleNamespace(getDeviceCount=lambda: 1, getDeviceProperties=lambda _: named, CUDARuntimeError=OSError)
    old = SimpleNamespace(id=0, compute_capability="61")
    cuda = SimpleNamespace(runtime=runtime, Device=lambda: old)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    device.find_device_problem.cache_clear()
    try:
        with pytest.raises(
            BackendError, match=r"GeForce GTX 1080 has compute capability 6\.1, below 7\.0; use backend='cpu'"
        ):
            device.check_device()
    finally:
        device.find_device_problem.cache_clear()


def test_auto_is_the_cpu_without_a_device(without_device, stencil):
    assert choose_backend("auto") == "cpu"
    np.testing.assert_array_equal(stencil @ np.ones(20), mg.spmv(stencil.on("cpu"), np.ones(20)))


def test_unknown_backend(stencil):
    with pytest.raises(OptionError, match="where must be one of 'auto', 'cpu', 'cuda', not 'gpu'"):
        stencil.on("gpu")
    with pytest.raises(OptionError, match="backend must be one of 'auto', 'cpu', 'cuda', not 'gpu'"):
        stencil.on("tcp://127.0.0.1:8786", backend="gpu")


def test_array_on_a_gpu_is_refused(stencil):
    with pytest.raises(OptionError, match=r"x must be a NumPy array, not a GPU array; pass cupy.asnumpy\(x\)"):
        mg.spmv(stencil, SimpleNamespace(__cuda_array_interface__={}))


def test_a_cluster_whose_workers_have_no_device(client, tmp_path):
    A = mg.generate("rmat", tmp_path / "g.zarr", scale=4)
    none = (
        r"needs a GPU on each of the 4 workers, and worker 0 \(.*\) has none: |needs CuPy, .* installed on worker 0 \("
    )
    for compute in (mg.pagerank, lambda matrix: mg.spmv(matrix, np.ones(16))):
        with pytest.raises((ClusterError, MissingDependencyError), match=none):
            compute(A.on(client, backend="cuda"))
    with A.distribute(client) as D:
        assert (D.backend, D.transport) == ("cpu", "peer")
    with pytest.raises(OptionError, match=r"transport= applies to the workers of a cluster; pass one as where="):
        A.on(transport="peer")


@pytest.mark.slow
def test_the_cpu_needs_no_cupy(tmp_path):
    program = (
        "import sys; sys.modules['cupy'] = None  # an import of it fails\n"
        "import numpy as np, mgspmv as mg\n"
        f"mg.generate('rmat', {str(tmp_path / 'g.zarr')!r}, scale=4)\n"
        f"A = mg.open_matrix({str(tmp_path / 'g.zarr')!r})\n"
        "A @ np.ones(16); mg.pagerank(A); mg.spmv(A.on(kernel='sell'), np.ones(16))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_no_module_imports_cupy_when_it_is_imported():
    for path in Path(mg.__file__).parent.rglob("*.py"):
        assert not re.search(r"^(import|from) (cupy|cupyx|cuda)\b", path.read_text(), re.MULTILINE), path


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
@pytest.mark.parametrize("n", [0, 1, (1 << 22) - 1, 1 << 22, (1 << 23) + 3, (1 << 25) + 5])
def test_arrays_come_to_the_host_in_pieces(dtype, n):
    import cupy

    wanted = np.arange(n).astype(dtype)
    for _ in range(2):  # also from buffers that were used before
        np.testing.assert_array_equal(fetch(cupy.asarray(wanted)), wanted)
    turned = np.arange(3 * n).reshape(3, n).astype(dtype)
    found = fetch(cupy.asarray(turned).T)
    assert found.shape == (n, 3)
    np.testing.assert_array_equal(found, turned.T)


def make_rows(first, stop):
    return CsrBlock(first, 9, np.arange(stop - first + 1), np.zeros(stop - first, np.int32), None)


def test_passes_over_pieces_begin_with_those_that_are_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", PlayedCupy())
    for n in (1, 2, 3, 9):
        begun = []

        def read(first, stop, begun=begun):
            begun.append(first // 10)
            return make_rows(first, stop)

        pieces, n_before = PieceReader(read, range(0, 10 * n + 1, 10)), 0
        for order in (range(n), range(n)[::-1], range(n)):
            for place, (k, block) in enumerate(pieces.each()):
                assert (k, block.row_offset, block.n_rows) == (order[place], 10 * k, 10)
                assert len(begun) <= n_before + HELD_PIECES + place
            n_before = len(begun) - HELD_PIECES
        assert len(begun) == n + 2 * max(0, n - HELD_PIECES)
        assert set(begun) == set(range(n))


def test_what_a_thread_raises_while_it_reads_ahead_is_raised_here(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", PlayedCupy())

    def read(first, stop):
        if first == 20:
            raise CapacityError("full")
        return make_rows(first, stop)

    pieces = PieceReader(read, range(0, 51, 10)).each()
    assert [k for k, _ in islice(pieces, 2)] == [0, 1]
    with pytest.raises(CapacityError, match="full"):
        next(pieces)


@pytest.mark.gpu
@pytest.mark.parametrize("is_reversed", [False, True])
def test_rows_of_a_graph_come_to_the_device_with_their_out_degrees(tmp_path, is_reversed):
    A = mg.generate("rmat", tmp_path / "g.zarr", scale=10)
    if is_reversed:
        mg.transpose(tmp_path / "g.zarr")
        A = mg.open(tmp_path / "g.zarr").T
    for start, stop in ((0, 1024), (100, 700), (512, 512), (700, 1024)):
        indptr, block, degree, ids = read_graph(A.stored, None, rows=(start, stop))
        wanted = A.stored.read_block(start, stop, None)
        np.testing.assert_array_equal(indptr.get(), wanted.indptr)
        np.testing.assert_array_equal(block.indptr.get(), wanted.indptr)
        np.testing.assert_array_equal(block.indices.get(), wanted.indices)
        np.testing.assert_array_equal(degree.get(), A.stored.read_out_degree(start, stop))
        assert (block.row_offset, ids) == (start, None)


@pytest.mark.gpu
def test_kernels_are_waited_for_before_pieces_come():
    import cupy

    with cupy.cuda.Stream(non_blocking=True):
        x = cupy.zeros(1 << 24)
        for _ in range(50):
            x += 1
        assert (fetch(x) == 50).all()


@pytest.mark.parametrize("has_driver", [False, True])
def test_the_context_is_begun_once_and_without_a_driver_not_at_all(has_driver, monkeypatch):
    begun, threads = [], []

    class Driver:
        def __getattr__(self, name):
            return lambda *arguments: begun.append(name) or 0

    def load(name):
        if not has_driver:
            raise OSError(name)
        return Driver()

    class Started(threading.Thread):
        def start(self):
            threads.append(self)
            self.run()

    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.setattr(context.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(context.ctypes, "CDLL", load)
    monkeypatch.setattr(context, "Thread", Started)
    context.begin_context.cache_clear()
    try:
        context.begin_context()
        context.begin_context()
    finally:
        context.begin_context.cache_clear()
    assert len(threads) == 1
    assert begun == (["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"] if has_driver else [])


@pytest.mark.parametrize(("backend", "begins"), [("cpu", False), ("auto", True)])
def test_the_context_is_begun_where_a_device_may_be_used(backend, begins, monkeypatch, tmp_path):
    begun = []
    opened = mg.ingest(([0, 1], [1, 0]), tmp_path / "graph.zarr")
    monkeypatch.setattr(arguments, "begin_context", lambda: begun.append(backend))
    for graph in (([0, 1], [1, 0]), tmp_path / "graph.zarr"):
        arguments.as_matrix(graph, backend=backend)
        assert bool(begun) == begins
        begun.clear()
    assert arguments.as_matrix(opened) is opened
    assert not begun


@pytest.mark.parametrize(("options", "begins"), [((), True), (("--backend", "cpu"), False)])
def test_the_program_begins_it_before_it_imports_others(options, begins, monkeypatch, tmp_path):
    mg.ingest(([0, 1], [1, 0]), tmp_path / "graph.zarr")
    begun = []
    monkeypatch.setattr(context, "begin_context", lambda: begun.append(True))
    monkeypatch.setattr(arguments, "begin_context", lambda: None)
    invoke("pagerank", str(tmp_path / "graph.zarr"), *options)
    assert bool(begun) == begins


class Memory:
    """A place in memory, as CuPy's `MemoryPointer`, of an array of the host."""

    def __init__(self, array, start=0):
        self.array, self.start = array, start

    def __add__(self, offset):
        return Memory(self.array, self.start + offset)


def test_small_arrays_are_copied_together(monkeypatch):
    copied, there = [], SimpleNamespace(nbytes=4)  # an array of the device

    def put(array):
        copied.append(array.copy())
        return SimpleNamespace(data=Memory(copied[-1]))

    cupy = SimpleNamespace(ndarray=lambda shape, dtype, memory: np.ndarray(shape, dtype, memory.array, memory.start))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(device, "put", put)
    arrays = [np.arange(5, dtype=np.int32), there, np.arange(6.0).reshape(2, 3).T, np.zeros((0, 2), np.int64)]
    found = device.put_all(*arrays)
    assert len(copied) == 1
    assert found[1] is there
    for own, array in ((found[k], arrays[k]) for k in (0, 2, 3)):
        assert (own.dtype, own.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(own, array)
        assert (own.ctypes.data - copied[0].ctypes.data) % device.TABLE_BYTES == 0 or own.size == 0
