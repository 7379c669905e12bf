"""Peers of the product y = A x: a pattern A in CSR, x and y of float32."""

from __future__ import annotations

from typing import Any

import numpy as np

import mgspmv as mg
from benchmarks.measure import Peer, Verdict
from benchmarks.stores import Graph

OURS, OURS_ONE = "mgspmv", "mgspmv, 1 thread"


def make_vector(n: int) -> np.ndarray:
    """x, uniform in [0, 1), float32."""
    return np.random.default_rng(1).random(n, dtype=np.float32)


class ProductPeer(Peer):
    """Checked row by row against SciPy in float64.

    A float32 sum of k terms of one sign is off by at most k u of itself in whatever order it is made, with u = 2^-24
    (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2).
    """

    def check(self, values: np.ndarray, graph: Graph) -> Verdict:
        ones = graph.pull.astype(np.float64)
        right = ones @ make_vector(graph.n).astype(np.float64)
        error = np.abs(values.astype(np.float64) - right)
        permitted = np.diff(graph.pull.indptr) * 2.0**-24 * right
        return Verdict(bool((error <= permitted).all()), float((error / np.where(right > 0, right, 1.0)).max()))


class OurProduct(ProductPeer):
    """`mg.spmv` of the opened store with its block in memory."""

    is_ours = True

    def __init__(self, name: str, *, is_parallel: bool) -> None:
        self.name, self.is_parallel = name, is_parallel

    def prepare(self, graph: Graph, threads: int) -> None:
        self._matrix, self._x, self._threads = mg.open_matrix(graph.store), make_vector(graph.n), threads

    def run(self) -> np.ndarray:
        return mg.spmv(self._matrix.on(threads=self._threads), self._x)


class GraphBlasProduct(ProductPeer):
    """SuiteSparse:GraphBLAS, `plus_second` of an iso-valued matrix by rows and a full vector, into a vector kept."""

    floor = 0.7

    def __init__(self, name: str, *, is_parallel: bool, beside: str) -> None:
        self.name, self.is_parallel, self.beside = name, is_parallel, beside

    def prepare(self, graph: Graph, threads: int) -> None:
        import graphblas as gb

        self._gb, self._threads = gb, threads
        self._matrix = gb.Matrix.ss.import_csr(
            nrows=graph.n,
            ncols=graph.n,
            indptr=graph.pull.indptr.astype(np.uint64),
            col_indices=graph.pull.indices.astype(np.uint64),
            values=np.array([True]),
            is_iso=True,
            sorted_cols=True,
        )
        self._x = gb.Vector.from_dense(make_vector(graph.n))
        self._y = gb.Vector(gb.dtypes.FP32, graph.n)

    def run(self) -> Any:
        self._gb.ss.config["nthreads"] = self._threads
        self._y << self._gb.semiring.plus_second(self._matrix @ self._x)
        self._y.wait()
        return self._y

    def read(self, result: Any) -> np.ndarray:
        return result.to_dense(fill_value=0)


class SciPyProduct(ProductPeer):
    """SciPy knows no pattern: the matrix has values of 1, float32, and int32 indices."""

    name, beside, floor = "SciPy", OURS_ONE, 1.0

    def prepare(self, graph: Graph, threads: int) -> None:
        self._matrix, self._x = graph.pull.astype(np.float32), make_vector(graph.n)

    def run(self) -> np.ndarray:
        return self._matrix @ self._x


def make_peers() -> list[Peer]:
    """All peers of the product, in the order they take turns."""
    return [
        OurProduct(OURS, is_parallel=True),
        GraphBlasProduct("GraphBLAS", is_parallel=True, beside=OURS),
        OurProduct(OURS_ONE, is_parallel=False),
        GraphBlasProduct("GraphBLAS, 1 thread", is_parallel=False, beside=OURS_ONE),
        SciPyProduct(),
    ]
