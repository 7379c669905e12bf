"""Matrices of SciPy and NumPy, SciPy's .npz files, graphs of NetworkX, and arrays of devices and other libraries."""

from __future__ import annotations

import copy
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np

from mgspmv.display import format_bytes
from mgspmv.errors import BackendError, CapacityError, OptionError, SourceError
from mgspmv.ingest.column_names import ColumnChoice
from mgspmv.ingest.files import reading
from mgspmv.ingest.source import Layout, Source, choose_value_dtype
from mgspmv.ingest.streams import hash_file
from mgspmv.ingest.tokens import INT64_MAX
from mgspmv.ingest.vertex_vectors import NPY_DAMAGE, is_class, name_type
from mgspmv.kernels.device import find_device_problem
from mgspmv.model import CooBatch, Kind, free_memory

BATCH_ENTRIES = 2**20

_NPZ_DAMAGE = (*NPY_DAMAGE, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""Exceptions that `scipy.sparse.load_npz` raises on damaged files."""


class ScipySource(Source):
    """SciPy sparse array or matrix of any format, or the non-zeros of a two-dimensional NumPy array, as a `Source`.

    Duplicates and stored zeros are kept. Integers become int64 and float16 becomes float32. A bool matrix is a pattern
    of its True entries, without values.

    Parameters
    ----------
    matrix : sparse or dense, shape (n_rows, n_cols)
    name : name of the source in messages

    Raises
    ------
    OptionError : not two-dimensional
    SourceError : values that are not real, or wider than 64 bits
    SourceError : while reading: indices that do not fit the shape, integers beyond int64
    """

    default_kind = "matrix"

    def __init__(self, matrix: Any, name: str | None = None) -> None:
        if len(matrix.shape) != 2:
            raise OptionError(f"a matrix has two dimensions, but this {type(matrix).__name__} has shape {matrix.shape}")
        self.name = name or f"{type(matrix).__name__} of shape {matrix.shape}"
        if isinstance(matrix, np.ma.MaskedArray):
            raise SourceError("masked arrays are not supported; pass .filled(0)", source=self.name)
        self._dtype = None if matrix.dtype == bool else choose_value_dtype(matrix.dtype, self.name)
        is_half = is_sparse(matrix) and matrix.dtype == np.float16  # SciPy reads float16 but does not convert it
        self._matrix = matrix.astype(np.float32) if is_half else matrix

    def batches(self) -> Iterator[CooBatch]:
        """Yield the stored entries, or the non-zeros of a dense array, in at least one batch."""
        sparse = is_sparse(self._matrix)
        parts = _slice_sparse(check_format(self._matrix, self.name)) if sparse else _slice_dense(self._matrix)
        for rows, cols, data in parts:
            if self._dtype is None:
                yield CooBatch(rows[data], cols[data], None)
            else:
                yield CooBatch(rows, cols, data.astype(self._dtype, copy=False))

    def layout(self) -> Layout:
        """Return the shape; rows and columns are already numbers."""
        n_rows, n_cols = self._matrix.shape
        return Layout((int(n_rows), int(n_cols)), provenance={"name": self.name, "format": type(self._matrix).__name__})


class NpzSource(ScipySource):
    """File written by `scipy.sparse.save_npz`, read as a whole, as a `Source`.

    Parameters
    ----------
    path : the .npz file

    Raises
    ------
    SourceNotFoundError : missing file
    SourceError : damaged .npz archive, or one with other arrays
    SourceError : as in `ScipySource`
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        super().__init__(_load_npz(self.path), name=str(path))

    def layout(self) -> Layout:
        """Return the shape, with the file's size and SHA-256."""
        layout = super().layout()
        layout.provenance.update(format="npz", size=self.path.stat().st_size, sha256=hash_file(self.name))
        return replace(layout, stated=partial(SourceError, source=self.name))


class GraphSource(Source):
    """Graph of NetworkX, directed or undirected, with or without parallel edges, as a `Source`.

    An undirected edge stands for both arcs, a self loop for one. Parallel edges are kept separate. Vertices are
    numbered by ascending node, also those without edges. Weights are float64; if some edges have the attribute, those
    without it weigh 1, as in NetworkX; if none has it the graph is a pattern, or, if it has parallel edges, each counts
    1, as in NetworkX.

    Parameters
    ----------
    graph : networkx.Graph, DiGraph, MultiGraph or MultiDiGraph
    weights : attribute with the weights; True for `weight`, "auto" for `weight` if an edge has it, False for none

    Raises
    ------
    OptionError : nodes that are neither all integers nor all strings; a missing attribute
    SourceError : while reading: a weight that is not a real number
    """

    default_kind = "graph"

    def __init__(self, graph: Any, weights: str | bool = "auto") -> None:
        self._graph, kind = graph, type(graph).__name__
        self.name, self._format = f"{kind} of {len(graph)} nodes", f"networkx {kind}"
        self.is_undirected = not graph.is_directed()
        self.counts_parallel = graph.is_multigraph() and any(
            len(edges) > 1 for near in graph.adj.values() for edges in near.values()
        )
        self._nodes = _sort_nodes(graph)
        self._weight = self._choose_attribute(weights)

    def batches(self) -> Iterator[CooBatch]:
        """Yield all edges, in at least one batch."""
        number = {node: k for k, node in enumerate(self._nodes)}
        edges = iter(self._graph.edges(data=self._weight, default=1.0) if self._weight else self._graph.edges())
        # half a batch, because each edge of an undirected graph becomes two entries
        for _ in range(0, max(1, self._graph.number_of_edges()), BATCH_ENTRIES // 2):
            chunk = list(islice(edges, BATCH_ENTRIES // 2))
            rows, cols = (np.fromiter((number[edge[side]] for edge in chunk), np.int64, len(chunk)) for side in (0, 1))
            yield CooBatch(rows, cols, self._read_weights(chunk) if self._weight else None)

    def layout(self) -> Layout:
        """Return the shape and, unless they are 0..n-1, the nodes."""
        n = len(self._nodes)
        weight = None if self._weight is None else [None, self._weight]
        taken = {"columns": {"weight": weight}, "n_rows": self._graph.number_of_edges()}
        provenance = {"name": self.name, "format": self._format, "weight": self._weight, "taken": taken}
        are_names = n > 0 and isinstance(self._nodes[0], str)
        ids = None if self._nodes == list(range(n)) else np.array(self._nodes, object if are_names else np.int64)
        return Layout((n, n), ids, provenance=provenance)

    def _choose_attribute(self, weights: str | bool) -> str | None:
        """Return the attribute of edges with the weights; None if there is none."""
        if weights is False or not self._graph.number_of_edges():
            return None
        wanted = weights if isinstance(weights, str) and weights != "auto" else "weight"
        attributes = {name for _, _, data in self._graph.edges(data=True) for name in data}
        if wanted in attributes:
            return wanted
        if weights == "auto":
            return None
        found = ", ".join(sorted(map(repr, attributes))) or "none"
        raise OptionError(
            f"{self.name}: no edge has the attribute {wanted!r} for weights, found {found}; name another of them"
        )

    def _read_weights(self, edges: list[tuple[Any, ...]]) -> np.ndarray:
        wrong = tuple(kind for kind in {type(edge[2]) for edge in edges} if not issubclass(kind, Real))
        if wrong:
            tail, head, weight = next(edge for edge in edges if isinstance(edge[2], wrong))
            raise SourceError(
                f"the {self._weight} of edge ({tail!r}, {head!r}) is {weight!r}, which is not a real number; "
                "convert it",
                source=self.name,
            )
        try:
            return np.array([edge[2] for edge in edges], np.float64)
        except OverflowError as error:
            raise SourceError(f"a {self._weight} does not fit into float64 ({error})", source=self.name) from error


def _slice_sparse(matrix: Any) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    if matrix.format == "dia":  # SciPy's conversion allocates memory for empty rows too
        cols = np.arange(min(matrix.data.shape[1], matrix.shape[1]))
        values, lines = matrix.data[:, : len(cols)], cols - matrix.offsets[:, None].astype(np.int64)
        is_entry = (lines >= 0) & (lines < matrix.shape[0]) & (values != 0)
        rows, cols, data = lines[is_entry], np.nonzero(is_entry)[1], values[is_entry]
    else:
        coo = matrix.tocoo(copy=False)
        rows, cols, data = coo.row, coo.col, coo.data
    for begin in range(0, max(len(rows), 1), BATCH_ENTRIES):
        part = slice(begin, begin + BATCH_ENTRIES)
        yield rows[part], cols[part], data[part]


def _slice_dense(matrix: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    n_rows, n_cols = matrix.shape
    step = max(1, BATCH_ENTRIES // max(n_cols, 1))
    for begin in range(0, max(n_rows, 1), step):
        block = np.asarray(matrix[begin : begin + step])
        rows, cols = np.nonzero(block)
        yield rows + begin, cols, block[rows, cols]


def check_format(matrix: Any, source: str) -> Any:
    """Check the indices of compressed formats, which SciPy's compiled conversion trusts, and return a copy.

    Raises
    ------
    SourceError : damaged indices
    """
    if not hasattr(matrix, "check_format"):
        return matrix
    # The check truncates arrays that are too long; the caller's object must not change.
    own = copy.copy(matrix)
    try:
        # SciPy skips its own check where the last pointer is 0, and its check wraps around in int32.
        if (own.indptr[1:] < own.indptr[:-1]).any():
            raise ValueError("indptr must not decrease")
        own.check_format(full_check=True)
    except ValueError as error:
        raise SourceError(f"the index arrays are damaged ({error}); create the matrix again", source=source) from error
    return own


def _load_npz(path: Path) -> Any:
    from scipy.sparse import load_npz

    source = str(path)
    how = "not a complete .npz file of a sparse matrix ({}); write it with scipy.sparse.save_npz"
    with reading(source, how, *_NPZ_DAMAGE):
        with zipfile.ZipFile(path) as archive:
            keys = [name.removesuffix(".npy") for name in archive.namelist()]
            n_bytes = sum(member.file_size for member in archive.infolist())
        if n_bytes > (room := free_memory()):
            raise CapacityError(
                f"{source} unpacks to {format_bytes(n_bytes)}, but {format_bytes(room)} of memory are free; convert "
                "the matrix to Matrix Market or to a table of edges, which are read in batches"
            )
        matrix = load_npz(path) if "format" in keys else None
    if matrix is None:
        raise SourceError(
            f"expected the arrays of a sparse matrix, found {', '.join(map(repr, keys)) or 'none'}; "
            "write it with scipy.sparse.save_npz",
            source=source,
        )
    return matrix


def _sort_nodes(nodes: Iterable[Any]) -> list[int] | list[str]:
    nodes = list(nodes)
    if all(isinstance(node, Integral) and not isinstance(node, bool) for node in nodes):
        numbers = sorted(int(node) for node in nodes)
        if not numbers or (numbers[0] >= -INT64_MAX - 1 and numbers[-1] <= INT64_MAX):
            return numbers
    elif all(isinstance(node, str) for node in nodes):
        return sorted(str(node) for node in nodes)
    raise OptionError(
        "the nodes of a graph must be all strings or all integers that fit into int64; relabel them with "
        "networkx.convert_node_labels_to_integers(graph, label_attribute='label')"
    )


def is_sparse(obj: Any) -> bool:
    """Return whether an object is a SciPy sparse array or matrix."""
    return hasattr(obj, "tocoo") and hasattr(obj, "format") and is_class(obj, "scipy")


def is_networkx(obj: Any) -> bool:
    """Return whether an object is a graph of NetworkX."""
    return hasattr(obj, "is_multigraph") and is_class(obj, "networkx")


# --- arrays of devices and of other libraries, edge indexes and lists of pairs -------------------------------------

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
        lengths = sorted({len(arc) for arc in obj})
        if lengths not in ([2], [3]):
            raise OptionError(
                "expected a list of pairs (source, target), or one of triples (source, target, weight), found tuples "
                f"of {' and '.join(map(str, lengths))} elements; make all alike"
            )
        return tuple(map(list, zip(*obj, strict=True)))
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


# --- arrays on a device -----------------------------------------------------------------------------------------------


class DeviceArraySource(Source):
    """Arcs src[k] -> dst[k] as a `Source`, whose ids are left to be numbered.

    Parameters
    ----------
    arrays : sources, targets and, optionally, weights; CuPy's, of the types that `open_device_arrays` takes
    form : form of the arcs that the user passed
    """

    default_kind = "graph"

    def __init__(self, arrays: tuple[Any, ...], form: str) -> None:
        self._arrays, self.name = arrays, f"{len(arrays[0])} arcs in {form}"

    @property
    def n_stated(self) -> int:
        return len(self._arrays[0])

    def batches(self) -> Iterator[CooBatch]:
        rows, cols, *values = self._arrays
        yield CooBatch(rows, cols, values[0] if values else None)

    def layout(self) -> Layout:
        names, n = ["src", "dst", "weights"][: len(self._arrays)], len(self._arrays[0])
        taken = ColumnChoice(*range(len(names))).describe(names) | {"n_rows": n}
        header = {"columns": names, "rows": n}
        return Layout(
            (0, 0), are_ids=True, provenance={"format": "arrays", "name": self.name, "header": header, "taken": taken}
        )


def open_device_arrays(source: Any) -> DeviceArraySource | None:
    """Open a tuple (src, dst[, weights]) of arrays on the current device, or an edge index of shape (2, E) there.

    None for other objects, and for arrays of other lengths, types or devices, which are read by way of the host, or
    refused there. Kernels that write the arrays are waited for.
    """
    are_apart = isinstance(source, tuple)
    given = source if are_apart else (source,)
    if not all(hasattr(array, "__cuda_array_interface__") for array in given) or find_device_problem() is not None:
        return None
    import cupy

    device = cupy.cuda.Device()
    arrays = tuple(map(cupy.asarray, given))
    if any(array.device != device for array in arrays):
        return None
    if not are_apart:
        if arrays[0].ndim != 2 or len(arrays[0]) != 2 or arrays[0].shape[1] == 2:
            return None
        arrays = tuple(map(cupy.ascontiguousarray, arrays[0]))
    types = [array.dtype.name for array in arrays]
    if len(arrays) not in (2, 3) or any(array.ndim != 1 or len(array) != len(arrays[0]) for array in arrays):
        return None
    are_ids = all(each in ("int32", "int64") for each in types[:2])
    if not are_ids or any(each not in ("int64", "float32", "float64") for each in types[2:]):
        return None
    device.synchronize()
    contiguous = tuple(map(cupy.ascontiguousarray, arrays))
    return DeviceArraySource(contiguous, "arrays" if are_apart else "an edge index")
