"""Sources that are in memory: SciPy and NumPy matrices, SciPy's .npz files, and graphs of NetworkX and igraph."""

from __future__ import annotations

import copy
import hashlib
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np

from mgspmv.display.numbers import format_bytes
from mgspmv.errors import CapacityError, OptionError, SourceError, SourceNotFoundError
from mgspmv.ingest.source import Layout, Source
from mgspmv.ingest.values import INT64_MAX, choose_value_dtype
from mgspmv.ingest.vector_files import NPY_DAMAGE
from mgspmv.ingest.vertex_vectors import is_class
from mgspmv.model import CooBatch, free_memory
from mgspmv.os_errors import source_error

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
            yield self._make_batch(rows, cols, data)

    def layout(self) -> Layout:
        """Return the shape; rows and columns are already numbers."""
        n_rows, n_cols = self._matrix.shape
        return Layout((int(n_rows), int(n_cols)), provenance={"name": self.name, "format": type(self._matrix).__name__})

    def _make_batch(self, rows: np.ndarray, cols: np.ndarray, data: np.ndarray) -> CooBatch:
        if self._dtype is None:
            return CooBatch(rows[data], cols[data], None)
        return CooBatch(rows, cols, data.astype(self._dtype, copy=False))


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
        with self.path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        layout.provenance.update(format="npz", size=self.path.stat().st_size, sha256=digest)
        return replace(layout, stated=partial(SourceError, source=self.name))


@dataclass(frozen=True)
class _Graph:
    """Graph of a library."""

    name: str
    format: str
    """Library and class."""
    nodes: list[Any]
    n_edges: int
    attributes: Callable[[], Iterable[str]]
    """Function that yields the names of the attributes of all edges, repeated."""
    edges: Callable[[str | None], Iterable[tuple[Any, ...]]]
    """Function that yields (tail, head) of all edges, or (tail, head, weight) given the attribute of the weights."""
    is_undirected: bool
    has_parallel: bool
    """Whether two edges are between the same nodes."""


class GraphSource(Source):
    """Graph of NetworkX or igraph, directed or undirected, with or without parallel edges, as a `Source`.

    An undirected edge stands for both arcs, a self loop for one. Parallel edges are kept separate. Vertices are
    numbered by ascending node, also those without edges; nodes of igraph are the attribute `name`, or else numbers.
    Weights are float64; if some edges have the attribute, those without it weigh 1, as in NetworkX; if none has it the
    graph is a pattern, or, if it has parallel edges, each counts 1, as in NetworkX.

    Parameters
    ----------
    graph : networkx.Graph, DiGraph, MultiGraph or MultiDiGraph, or igraph.Graph
    weights : attribute with the weights; True for `weight`, "auto" for `weight` if an edge has it, False for none

    Raises
    ------
    OptionError : nodes that are neither all integers nor all strings, or of one name; a missing attribute
    SourceError : while reading: a weight that is not a real number
    """

    default_kind = "graph"

    def __init__(self, graph: Any, weights: str | bool = "auto") -> None:
        self._graph = _open_networkx(graph) if is_networkx(graph) else _open_igraph(graph)
        self.name = self._graph.name
        self.is_undirected, self.counts_parallel = self._graph.is_undirected, self._graph.has_parallel
        self._nodes = _sort_nodes(self._graph.nodes)
        if len(set(self._nodes)) < len(self._nodes):
            raise OptionError(f"{self.name}: some have the same name; make names unique, or delete graph.vs['name']")
        self._weight = _choose_attribute(self._graph, weights) if self._graph.n_edges else None

    def batches(self) -> Iterator[CooBatch]:
        """Yield all edges, in at least one batch."""
        number = {node: k for k, node in enumerate(self._nodes)}
        edges = iter(self._graph.edges(self._weight))
        # half a batch, because each edge of an undirected graph becomes two entries
        for _ in range(0, max(1, self._graph.n_edges), BATCH_ENTRIES // 2):
            chunk = list(islice(edges, BATCH_ENTRIES // 2))
            rows, cols = (np.fromiter((number[edge[side]] for edge in chunk), np.int64, len(chunk)) for side in (0, 1))
            yield CooBatch(rows, cols, self._read_weights(chunk) if self._weight else None)

    def layout(self) -> Layout:
        """Return the shape and, unless they are 0..n-1, the nodes."""
        n = len(self._nodes)
        weight = None if self._weight is None else [None, self._weight]
        taken = {"columns": {"weight": weight}, "n_rows": self._graph.n_edges}
        provenance = {"name": self.name, "format": self._graph.format, "weight": self._weight, "taken": taken}
        are_names = n > 0 and isinstance(self._nodes[0], str)
        ids = None if self._nodes == list(range(n)) else np.array(self._nodes, object if are_names else np.int64)
        return Layout((n, n), ids, provenance=provenance)

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


def _open_networkx(graph: Any) -> _Graph:
    kind = type(graph).__name__
    return _Graph(
        f"{kind} of {len(graph)} nodes",
        f"networkx {kind}",
        list(graph),
        graph.number_of_edges(),
        lambda: (name for _, _, data in graph.edges(data=True) for name in data),
        lambda weight: graph.edges(data=weight, default=1.0) if weight else graph.edges(),
        not graph.is_directed(),
        graph.is_multigraph() and any(len(edges) > 1 for near in graph.adj.values() for edges in near.values()),
    )


def _open_igraph(graph: Any) -> _Graph:
    n = graph.vcount()
    nodes: list[Any] = graph.vs["name"] if "name" in graph.vs.attributes() else list(range(n))

    def list_edges(weight: str | None) -> Iterator[tuple[Any, ...]]:
        ends = ((nodes[i], nodes[j]) for i, j in graph.get_edgelist())
        return ends if weight is None else ((*own, w) for own, w in zip(ends, graph.es[weight], strict=True))

    name, has_parallel = f"igraph Graph of {n} vertices", graph.has_multiple()
    of = nodes, graph.ecount(), graph.es.attributes, list_edges
    return _Graph(name, "igraph Graph", *of, not graph.is_directed(), has_parallel)


def _slice_sparse(matrix: Any) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    if matrix.format == "dia":
        yield from _slice_diagonals(matrix)
        return
    coo = matrix.tocoo(copy=False)
    for begin in range(0, max(coo.nnz, 1), BATCH_ENTRIES):
        part = slice(begin, begin + BATCH_ENTRIES)
        yield coo.row[part], coo.col[part], coo.data[part]


def _slice_diagonals(matrix: Any) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield non-zero entries: SciPy's conversion allocates memory for empty rows too and rejects float16."""
    n_rows, n_cols = matrix.shape
    cols = np.arange(min(matrix.data.shape[1], n_cols))
    step = max(1, BATCH_ENTRIES // max(1, len(cols)))
    for begin in range(0, max(1, len(matrix.offsets)), step):
        data = matrix.data[begin : begin + step, : len(cols)]
        rows = cols - matrix.offsets[begin : begin + step, None].astype(np.int64)
        is_entry = (rows >= 0) & (rows < n_rows) & (data != 0)
        yield rows[is_entry], np.nonzero(is_entry)[1], data[is_entry]


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
    try:
        with zipfile.ZipFile(path) as archive:
            keys = [name.removesuffix(".npy") for name in archive.namelist()]
            n_bytes = sum(member.file_size for member in archive.infolist())
        if n_bytes > (room := free_memory()):
            raise CapacityError(
                f"{source} unpacks to {format_bytes(n_bytes)}, but {format_bytes(room)} of memory are free; convert "
                "the matrix to Matrix Market or to a table of edges, which are read in batches"
            )
        matrix = load_npz(path) if "format" in keys else None
    except CapacityError:  # a subclass of MemoryError
        raise
    except FileNotFoundError as error:
        raise SourceNotFoundError("there is no such file; check the path", source=source) from error
    except OSError as error:
        raise source_error(error, source, f"cannot be read: {error.strerror or error}") from error
    except _NPZ_DAMAGE as error:
        raise SourceError(
            f"not a complete .npz file of a sparse matrix ({error}); write it with scipy.sparse.save_npz", source=source
        ) from error
    if matrix is None:
        raise SourceError(
            f"expected the arrays of a sparse matrix, found {', '.join(map(repr, keys)) or 'none'}; "
            "write it with scipy.sparse.save_npz",
            source=source,
        )
    return matrix


def _choose_attribute(graph: _Graph, weights: str | bool) -> str | None:
    """Return the attribute of edges with the weights; None if there is none."""
    if weights is False:
        return None
    wanted = weights if isinstance(weights, str) and weights != "auto" else "weight"
    if wanted in graph.attributes():
        return wanted
    if weights == "auto":
        return None
    found = ", ".join(sorted(map(repr, set(graph.attributes())))) or "none"
    raise OptionError(
        f"{graph.name}: no edge has the attribute {wanted!r} for weights, found {found}; name another of them"
    )


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


def is_igraph(obj: Any) -> bool:
    """Return whether an object is a graph of igraph."""
    return is_class(obj, "igraph", "Graph")
