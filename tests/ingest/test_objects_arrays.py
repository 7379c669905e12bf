import sys

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp

from mgspmv.errors import BackendError, OptionError
from mgspmv.ingest.objects import convert_arrays, to_host
from mgspmv.kernels import device
from tests.support.foreign import CUDA, DeviceArray, GradientTensor, SparseMatrix, Tensor, make_cupy

EDGES = np.array([[0, 1, 2], [1, 2, 0]])


@pytest.fixture
def cupy(monkeypatch):
    """Module in place of CuPy, with a device."""
    monkeypatch.setitem(sys.modules, "cupy", make_cupy())
    monkeypatch.setattr(device, "find_device_problem", lambda: None)


def test_arrays_on_the_host():
    for array in (EDGES, Tensor(EDGES), Tensor(EDGES.astype(np.float32))):
        found = to_host(array)
        assert isinstance(found, np.ndarray)
        assert (found == EDGES).all()
    for other in ([1, 2], "text", None, pa.array([1])):
        assert to_host(other) is other
    matrix = sp.csr_array(np.eye(2))
    assert to_host(SparseMatrix(matrix)) is matrix


@pytest.mark.parametrize("array", [DeviceArray(EDGES), Tensor(EDGES, CUDA)], ids=["interface", "dlpack"])
def test_arrays_on_a_device(array, cupy):
    assert (to_host(array) == EDGES).all()


@pytest.mark.skipif(device.has_device(), reason="there is a device")
@pytest.mark.parametrize("array", [DeviceArray(EDGES), Tensor(EDGES, CUDA)], ids=["interface", "dlpack"])
def test_arrays_on_a_device_without_cupy(array):
    name = type(array).__name__
    with pytest.raises(BackendError, match=rf"a tests {name} is on a CUDA device, but .*; install mgspmv\[cuda12\] or"):
        to_host(array)


def test_an_array_that_is_not_exported():
    with pytest.raises(OptionError, match=r"a tests GradientTensor cannot be read \(Can't export .*\); convert it to"):
        to_host(GradientTensor(EDGES))


def test_edge_indexes_and_pairs():
    pairs = [(0, 1), (1, 2), (2, 0)]
    for obj in (EDGES, EDGES.astype(np.uint8), Tensor(EDGES), (EDGES[0], EDGES[1]), pairs):
        src, dst = convert_arrays(obj, None)
        assert np.array_equal([src, dst], EDGES)
    assert convert_arrays([("a", "b", 2.0), ("b", "a", 3)], "graph") == (["a", "b"], ["b", "a"], [2.0, 3])
    assert [len(side) for side in convert_arrays(np.empty((2, 0), int), None)] == [0, 0]


def test_arrays_that_are_matrices():
    for array in (EDGES.astype(float), EDGES > 1, np.ones((3, 3), int), np.asmatrix(EDGES), np.ma.array(EDGES)):
        assert convert_arrays(array, None) is array
    for kind in ("matrix", "stochastic"):
        for array in (EDGES, np.eye(2, dtype=int), EDGES.T):
            assert convert_arrays(array, kind) is array


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        (
            np.eye(2, dtype=int),
            r"shape \(2, 2\) may be an edge index of two arcs or a matrix; pass the tuple",
        ),
        (EDGES.T, r"shape \(3, 2\) may be a matrix or a list of 3 arcs; pass the edge index edges\.T"),
        ([(0, 1), (1, 2, 0.5)], "found tuples of 2 and 3 elements; make all alike"),
        ([(0, 1, 2, 3)], "found tuples of 4 elements"),
    ],
)
def test_ambiguous_arrays(obj, message):
    for kind in (None, "graph"):
        with pytest.raises(OptionError, match=message):
            convert_arrays(obj, kind)


@pytest.mark.gpu
def test_arrays_of_cupy():
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    edges = cupy.array(EDGES)
    assert (to_host(edges) == EDGES).all()
    assert np.array_equal(convert_arrays(edges, None), EDGES)
    assert np.array_equal(convert_arrays((edges[0], edges[1]), None), EDGES)
    found = to_host(csr_matrix(cupy.eye(3)))
    assert sp.issparse(found)
    assert (found.toarray() == np.eye(3)).all()
