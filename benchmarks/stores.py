"""Stored R-MAT graphs that benchmarks share, and their ranks by SciPy alone."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import mgspmv as mg
from mgspmv.kernels.catalogue import Backend

ALPHA = 0.85
EDGE_FACTOR = 16
REFERENCE_L1 = 1e-9
"""L1 distance of the reference ranks to the exact ones is less."""


@contextmanager
def open_cache(folder: Path | None) -> Iterator[Path]:
    """Where stores are kept; without a folder a temporary one."""
    if folder is not None:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="mgspmv-benchmark-") as temporary:
        yield Path(temporary)


@contextmanager
def open_graph(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, str]]]:
    """The store of `add_graph_options`, else an R-MAT graph for as long as the context lasts; and notes about it."""
    with open_cache(None) as folder:
        store = options.store
        if store is None:
            store = str(folder / "graph.zarr")
            mg.generate("rmat", store, scale=options.scale, edge_factor=options.edge_factor)
        yield store, _describe_graph(store)


@contextmanager
def open_multigraph(
    options: argparse.Namespace, n_workers: int, backend: Backend
) -> Iterator[tuple[str, dict[str, str]]]:
    """The same, but workers generate it, and keep arcs that come again."""
    from distributed import Client

    with open_cache(None) as folder:
        if options.store is not None:
            yield options.store, _describe_graph(options.store)
            return
        store, sizes = str(folder / "graph.zarr"), {"scale": options.scale, "edge_factor": options.edge_factor}
        with start_workers(n_workers, backend) as cluster, Client(cluster) as client:
            began = time.perf_counter()
            mg.generate("rmat", store, **sizes, duplicates="keep", client=client)
            elapsed_s = time.perf_counter() - began
        made = f"R-MAT, scale {options.scale}, {options.edge_factor} edges per vertex, duplicates kept; "
        yield store, {"made": f"{made}{elapsed_s:.3g} s by {n_workers} workers", **_describe_graph(store)}


def _describe_graph(store: str) -> dict[str, str]:
    with mg.open_matrix(store) as A:
        return {"graph": f"{A.shape[0]:,} vertices, {A.nnz:,} edges, digest {A.info.digest[:16]}"}


def start_workers(n: int, backend: Backend) -> AbstractContextManager[Any]:
    """A cluster of this machine: a worker for each of n devices, or n processes."""
    from mgspmv.cluster.connect import start_cuda, start_local

    started: AbstractContextManager[Any] = start_cuda(n) if backend == "cuda" else start_local(n)
    return started


@dataclass(frozen=True)
class Graph:
    """The graph that all peers get: no arc is there twice, self loops are kept, every arc counts as 1."""

    store: Path
    """Our store of it."""
    scale: int
    """2^scale vertices."""

    @classmethod
    def make(cls, scale: int, folder: Path, edge_factor: int = EDGE_FACTOR) -> Graph:
        """R-MAT of so many arcs a vertex before duplicates are dropped; what is in `folder` already is used."""
        store = folder / f"rmat-{scale}-{edge_factor}.zarr"
        if not store.exists():
            mg.generate("rmat", store, scale=scale, edge_factor=edge_factor)
        return cls(store, scale)

    @property
    def n(self) -> int:
        return 1 << self.scale

    @cached_property
    def pull(self) -> sp.csr_array:
        """Entry (j, i) for the arc i -> j, bool; what A is in the product A x."""
        with mg.open_matrix(self.store) as A:
            block = A.block(None)
        pattern = np.ones(block.nnz, dtype=bool)
        return sp.csr_array((pattern, block.indices, block.indptr.astype(np.int32)), shape=(self.n, self.n))

    @cached_property
    def arcs(self) -> sp.csr_array:
        """Entry (i, j) for the arc i -> j, bool: the adjacency matrix that other libraries want."""
        return self.pull.T.tocsr()

    @cached_property
    def out_degree(self) -> np.ndarray:
        return np.diff(self.arcs.indptr)

    def step(self, x: np.ndarray) -> np.ndarray:
        """P x, the rank that arrives over arcs; what is on vertices without out-arcs is lost."""
        return self._pull_ones @ (x / np.maximum(self.out_degree, 1))

    def iterate(self, n: int) -> np.ndarray:
        """Ranks after n iterations from uniform ones, with the rank of dangling vertices spread uniformly."""
        x = np.full(self.n, 1.0 / self.n)
        for _ in range(n):
            lost = x[self.out_degree == 0].sum()
            x = ALPHA * (self.step(x) + lost / self.n) + (1.0 - ALPHA) / self.n
        return x

    @cached_property
    def _pull_ones(self) -> sp.csr_array:
        return self.pull.astype(np.float64)

    @cached_property
    def _series(self) -> tuple[np.ndarray, np.ndarray]:
        """Ranks x ~ sum over k of (alpha P)^k 1, and how much each further term changed them, in L1.

        To lose the rank of dangling vertices and to divide by the sum at the end is to spread it uniformly: both
        solve x = alpha P x + c 1 for some c. This is another algorithm than that of any peer but one.
        """
        term = total = ranks = np.full(self.n, 1.0 / self.n)
        changes = [1.0]
        while changes[-1] * ALPHA / (1.0 - ALPHA) > REFERENCE_L1:
            term = ALPHA * self.step(term)
            total = total + term
            before, ranks = ranks, total / total.sum()
            changes.append(float(np.abs(ranks - before).sum()))
        return ranks, np.array(changes[1:])

    @property
    def reference(self) -> np.ndarray:
        """Float64 ranks, computed with SciPy alone."""
        return self._series[0]

    def count_terms(self, error_l1: float) -> int:
        """Products after which the series, cut off there, is within `error_l1` of the ranks."""
        missing = np.cumsum(self._series[1][::-1])[::-1]
        return int(np.argmax(missing <= error_l1))
