"""cuGraph's PageRank, through pylibcugraph: the program that iterations stand beside.

The graph is made from arcs that are on the device, transposed and renumbered, as cuGraph wants it for PageRank; without
weights it computes in float32. Memory is from RMM's pool, so that iterations do not wait for allocations.

Source: pylibcugraph 26.10, `SGGraph`, `MGGraph` and `pagerank`.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from benchmarks.iterations import ALPHA
from benchmarks.machines import Machine
from benchmarks.matrices import find_rows
from mgspmv.errors import BackendError, MissingDependencyError
from mgspmv.model import INT32_LIMIT, CsrBlock

TOL = 1e-30
"""Of the change, so small that only a fixed point of float32 stops an iteration."""


class CugraphIterations:
    """PageRank of cuGraph; each `advance` starts anew, and its ranks are those of this call.

    Parameters
    ----------
    block : in-edges, on the device; those of some vertices, where other devices have the others
    keep_isolated : tell cuGraph of all vertices; else it is given arcs alone, and vertices without arcs are left out of
        its n, and have rank 0 here
    handle : of RAFT, of several devices; None for this one alone

    Raises
    ------
    MissingDependencyError : cuGraph is not installed
    BackendError : the graph has 2^31 arcs or more; or cuGraph fails, here or later
    """

    def __init__(self, machine: Machine, block: CsrBlock, keep_isolated: bool = True, handle: Any = None) -> None:
        if block.nnz >= INT32_LIMIT:
            raise BackendError(
                f"cuGraph takes fewer than 2^31 arcs with 32-bit vertices and this graph has {block.nnz:,}; choose "
                "a smaller one to compare with it"
            )
        self._plc = load_cugraph()
        self._machine, self._n, self._are_several = machine, block.n_cols, handle is not None
        xp, first = machine.xp, block.row_offset
        self._sources: Any = block.indices.astype(np.int32, copy=False)
        self._destinations: Any = (find_rows(xp, block.indptr) + first).astype(np.int32)
        self._vertices: Any = xp.arange(first, first + block.n_rows, dtype=np.int32) if keep_isolated else None
        machine.free()
        self.has_stopped = False
        self._graph: Any = None
        self._found: tuple[Any, Any] | None = None
        self._memory = MemoryPool()
        self._handle: Any = self._plc.ResourceHandle(*([handle] if self._are_several else []))

    def prepare(self) -> float:
        self._graph = self._found = None
        return self._machine.clock(self._build)

    def _build(self) -> None:
        properties = self._plc.GraphProperties(is_symmetric=False, is_multigraph=False)
        arcs = (self._sources, self._destinations)
        more = {} if self._vertices is None else {"vertices_array": self._vertices}
        how = {"store_transposed": True, "do_expensive_check": False}
        if self._are_several:  # which takes lists, and always renumbers
            lists, more = [[one] for one in arcs], {name: [one] for name, one in more.items()}
            self._graph = call_cugraph(self._plc.MGGraph, self._handle, properties, *lists, **how, **more)
        else:
            self._graph = call_cugraph(
                self._plc.SGGraph, self._handle, properties, *arcs, None, renumber=True, **how, **more
            )

    def advance(self, k: int) -> None:
        self._found = None
        arguments = (self._handle, self._graph, None, None, None, None, ALPHA, TOL, k, False)
        vertices, values, *_, has_converged = call_cugraph(self._plc.pagerank, *arguments, fail_on_nonconvergence=False)
        self._found, self.has_stopped = (vertices, values), bool(has_converged)

    def own_ranks(self) -> tuple[np.ndarray, np.ndarray]:
        """Vertices of this device, in an order of cuGraph's own, and their ranks after `advance`."""
        assert self._found is not None
        vertices, values = (self._machine.get(array) for array in self._found)
        return vertices, values

    def ranks(self) -> np.ndarray:
        vertices, values = self.own_ranks()
        ranks = np.zeros(self._n)
        ranks[vertices] = values
        return ranks

    def close(self) -> None:
        # In this order: the pool outlives what was allocated from it.
        self._graph = self._found = self._handle = None
        self._sources = self._destinations = self._vertices = None
        self._machine.wait()
        self._memory.close()
        self._machine.free()


class MemoryPool:
    """RMM's asynchronous pool as the current memory resource, until it is closed."""

    def __init__(self) -> None:
        self._mr = importlib.import_module("rmm").mr
        self._before = self._mr.get_current_device_resource()
        self._mr.set_current_device_resource(self._mr.CudaAsyncMemoryResource())

    def close(self) -> None:
        self._mr.set_current_device_resource(self._before)


def load_cugraph() -> Any:
    """The module pylibcugraph.

    Raises
    ------
    MissingDependencyError : it is not installed, or cannot be loaded
    """
    try:
        return importlib.import_module("pylibcugraph")
    except ImportError as error:
        raise MissingDependencyError(
            f"cuGraph is not installed ({error}); install pylibcugraph-cu12 or pylibcugraph-cu13 to compare with it"
        ) from error


def call_cugraph(function: Any, *arguments: Any, **options: Any) -> Any:
    """Call a function of pylibcugraph; its errors are a BackendError."""
    try:
        return function(*arguments, **options)
    except (RuntimeError, TypeError, ValueError) as error:
        raise BackendError(f"{function.__name__} of cuGraph failed: {error}") from error
