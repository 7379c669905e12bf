"""Arrays of devices and of other libraries, edge indexes and lists of pairs, as arrays that readers take."""

from __future__ import annotations

from typing import Any

import numpy as np

from mgspmv.errors import BackendError, OptionError
from mgspmv.ingest.vertex_vectors import is_class, name_type
from mgspmv.model import Kind

_CUDA = (2, 13)
"""Types of CUDA devices in DLPack: device memory and managed memory."""


def to_host(array: Any) -> Any:
    """Return an array of NumPy in place of one on a CUDA device, or of a library with DLPack; other objects unchanged.

    Arrays of cuDF become arrays of Arrow, and sparse matrices of CuPy those of SciPy.

    Raises
    ------
    OptionError : an array that its library does not export
    BackendError : an array on a CUDA device, which CuPy is to copy, but cannot
    """
    if isinstance(array, np.ndarray) or is_class(array, "pyarrow"):
        return array
    if is_class(array, "cudf"):
        return array if is_class(array, "cudf", "DataFrame") else array.to_arrow()
    if is_class(array, "cupyx") and hasattr(array, "get"):
        return array.get()
    try:
        if hasattr(array, "__dlpack_device__"):
            device = int(array.__dlpack_device__()[0])
            return _copy_from_device(array, by_dlpack=True) if device in _CUDA else np.from_dlpack(array)
        return _copy_from_device(array) if hasattr(array, "__cuda_array_interface__") else array
    except BackendError:
        raise
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise OptionError(
            f"a {name_type(array)} cannot be read ({error}); convert it to an array of NumPy or CuPy"
        ) from error


def _copy_from_device(array: Any, *, by_dlpack: bool = False) -> np.ndarray:
    from mgspmv.kernels.device import find_device_problem, get

    if (problem := find_device_problem()) is not None:
        raise BackendError(
            f"a {name_type(array)} is on a CUDA device, but {problem}; install mgspmv[cuda12] or mgspmv[cuda13], or "
            "copy it to the host"
        )
    if by_dlpack:
        import cupy

        array = cupy.from_dlpack(array)
    return get(array)


def convert_arrays(obj: Any, kind: Kind | None) -> Any:
    """Return arrays on the host in place of other arrays, and a tuple of arrays in place of arcs in another form.

    Arcs are an edge index, which is an integer array of shape (2, E), or a list of pairs. Other objects are unchanged.

    Parameters
    ----------
    kind : requested kind; with `matrix` and `stochastic` all arrays are matrices

    Raises
    ------
    OptionError : an integer array of shape (2, 2), which may be a matrix or an edge index, or of shape (E, 2); pairs
        and triples in one list; see `to_host`
    BackendError : see `to_host`
    """
    if isinstance(obj, tuple):
        return tuple(map(to_host, obj))
    if isinstance(obj, list) and obj and all(isinstance(arc, tuple) for arc in obj):
        return _split_pairs(obj)
    array = to_host(obj)
    is_index = isinstance(array, np.ndarray) and not isinstance(array, np.matrix | np.ma.MaskedArray)
    if not is_index or kind in ("matrix", "stochastic") or array.dtype.kind not in "iu" or array.ndim != 2:
        return array
    if array.shape == (2, 2):
        raise OptionError(
            "an integer array of shape (2, 2) may be an edge index of two arcs or a matrix; pass the tuple "
            "(edges[0], edges[1]) of sources and targets, or a matrix as scipy.sparse.csr_array(A)"
        )
    if array.shape[1] == 2:
        raise OptionError(
            f"an integer array of shape {array.shape} may be a matrix or a list of {len(array)} arcs; pass the edge "
            "index edges.T, of shape (2, E), or a matrix as scipy.sparse.csr_array(A)"
        )
    return (array[0], array[1]) if len(array) == 2 else array


def _split_pairs(pairs: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    lengths = sorted({len(arc) for arc in pairs})
    if lengths not in ([2], [3]):
        raise OptionError(
            "expected a list of pairs (source, target), or one of triples (source, target, weight), found tuples of "
            f"{' and '.join(map(str, lengths))} elements; make all alike"
        )
    return tuple(map(list, zip(*pairs, strict=True)))
