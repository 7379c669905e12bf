"""Peers of whole PageRank: from the graph in memory, as each library holds it, to the ranks, as each gives them.

Damping 0.85, the rank of vertices without out-arcs spread uniformly, L1 change below 1e-6 where a library can be told
so. An iteration shrinks L1 distances to the solution by 0.85 or better, so such ranks are within 1e-6 * 0.85 / 0.15.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

import mgspmv as mg
from benchmarks.measure import Peer, Verdict
from benchmarks.stores import ALPHA, Graph

TOL_L1 = 1e-6
PERMITTED_L1 = TOL_L1 * ALPHA / (1.0 - ALPHA)
TIGHT_TOL_L1 = 1e-10

OURS, OURS_ONE, OURS_TIGHT = "mgspmv", "mgspmv, 1 thread", "mgspmv, tol 1e-10"


class RankingPeer(Peer):
    """Checked against ranks that SciPy computed by another algorithm."""

    permitted_l1 = PERMITTED_L1

    def check(self, values: np.ndarray, graph: Graph) -> Verdict:
        return self.judge(float(np.abs(values - graph.reference).sum()))

    def judge(self, error: float) -> Verdict:
        return Verdict(error <= self.permitted_l1, error)


class OurRanking(RankingPeer):
    """`mg.pagerank` of the opened store with its block in memory, error bound included."""

    is_ours = True

    def __init__(self, name: str, *, is_parallel: bool = True, precision: Any = "exact", tol: float = TOL_L1) -> None:
        self.name, self.is_parallel, self._precision, self._tol = name, is_parallel, precision, tol

    def prepare(self, graph: Graph, threads: int) -> None:
        self._matrix, self._threads = mg.open_matrix(graph.store), threads

    def run(self) -> mg.Solution:
        return self._rank(self._matrix)

    def read(self, result: mg.Solution) -> np.ndarray:
        return result.values

    def count_iterations(self, result: mg.Solution) -> int:
        return result.iterations

    def _rank(self, matrix: mg.Matrix) -> mg.Solution:
        return mg.pagerank(matrix.on(threads=self._threads), alpha=ALPHA, tol=self._tol, precision=self._precision)


class OurRankingFromFile(OurRanking):
    """The same from the store on disk: opened, read, checked and ranked anew in every run."""

    def prepare(self, graph: Graph, threads: int) -> None:
        self._store, self._threads = graph.store, threads

    def run(self) -> mg.Solution:
        with mg.open_matrix(self._store) as matrix:
            return self._rank(matrix)


class NetworKitRanking(RankingPeer):
    """Stops at an L1 change of at most 1e-6; spreads sinks, as it needs more iterations to the same ranks without."""

    name, is_parallel, beside, floor = "NetworKit", True, OURS, 1.0

    def prepare(self, graph: Graph, threads: int) -> None:
        import networkit as nk

        nk.setNumberOfThreads(threads)
        arcs = graph.arcs.tocoo()
        places = arcs.row.astype(np.uint64), arcs.col.astype(np.uint64)
        self._centrality, self._graph = nk.centrality, nk.GraphFromCoo(places, n=graph.n, directed=True)

    def run(self) -> tuple[list[float], int]:
        sinks = self._centrality.SinkHandling.DistributeSinks
        algorithm = self._centrality.PageRank(self._graph, ALPHA, TOL_L1, distributeSinks=sinks)
        algorithm.norm = self._centrality.Norm.L1_NORM
        algorithm.run()
        return algorithm.scores(), algorithm.numberOfIterations()

    def read(self, result: tuple[list[float], int]) -> np.ndarray:
        return np.array(result[0])

    def count_iterations(self, result: tuple[list[float], int]) -> int:
        return result[1]


class IGraphRanking(RankingPeer):
    """PRPACK, the default: Gauss-Seidel to 1e-10, which cannot be changed, so beside ours to 1e-10."""

    name, is_parallel, beside, floor = "igraph", True, OURS_TIGHT, 1.0

    def prepare(self, graph: Graph, threads: int) -> None:
        import igraph

        arcs = graph.arcs.tocoo()
        places = np.column_stack([arcs.row, arcs.col]).astype(np.int64)
        self._graph = igraph.Graph(n=graph.n, edges=places, directed=True)

    def run(self) -> list[float]:
        return self._graph.pagerank(damping=ALPHA)


class ScikitNetworkRanking(RankingPeer):
    """The solver `RH`, a sum of powers without a tolerance: given as many as the permitted error takes."""

    name, beside, floor = "scikit-network, RH", OURS_ONE, 1.0

    def prepare(self, graph: Graph, threads: int) -> None:
        from sknetwork.ranking import PageRank

        self._n_iter = graph.count_terms(PERMITTED_L1)
        self._ranking, self._arcs = PageRank(ALPHA, solver="RH", n_iter=self._n_iter), sp.csr_matrix(graph.arcs)

    def run(self) -> np.ndarray:
        return self._ranking.fit_predict(self._arcs)

    def count_iterations(self, result: np.ndarray) -> int:
        return self._n_iter


class ScikitNetworkDefaultRanking(RankingPeer):
    """The default solver, to an L1 change of 1e-6. With vertices without out-arcs it answers another question.

    It solves s x = alpha P x + b sum(x), with b the jump to each vertex: 1 / n to one without out-arcs, (1 - alpha) / n
    to others, and s such that x sums to 1. So it is checked against that.
    """

    name, beside, floor = "scikit-network, piteration (*)", OURS_ONE, 1.0

    def prepare(self, graph: Graph, threads: int) -> None:
        from sknetwork.ranking import PageRank

        self._ranking = PageRank(ALPHA, solver="piteration", n_iter=100, tol=TOL_L1)
        self._arcs = sp.csr_matrix(graph.arcs)

    def run(self) -> np.ndarray:
        return self._ranking.fit_predict(self._arcs)

    def check(self, values: np.ndarray, graph: Graph) -> Verdict:
        jump = np.where(graph.out_degree > 0, 1.0 - ALPHA, 1.0) / graph.n
        step = ALPHA * graph.step(values) + jump
        return self.judge(float(np.abs(step / step.sum() - values).sum()) * ALPHA / (1.0 - ALPHA))


class NetworkXRanking(RankingPeer):
    """Stops at an L1 change below n tol, so tol is 1e-6 / n. It takes some 400 bytes an arc."""

    name, beside, floor, largest_scale = "NetworkX", OURS_ONE, 1.0, 18

    def prepare(self, graph: Graph, threads: int) -> None:
        import networkx as nx

        arcs = graph.arcs.tocoo()
        self._rank, self._graph = nx.pagerank, nx.DiGraph()
        self._graph.add_nodes_from(range(graph.n))
        self._graph.add_edges_from(zip(arcs.row.tolist(), arcs.col.tolist(), strict=True))

    def run(self) -> dict[int, float]:
        return self._rank(self._graph, alpha=ALPHA, tol=TOL_L1 / len(self._graph))

    def read(self, result: dict[int, float]) -> np.ndarray:
        return np.array([result[vertex] for vertex in range(len(result))])


def make_peers() -> list[Peer]:
    """All peers of PageRank, in the order they take turns."""
    return [
        OurRanking(OURS),
        OurRanking("mgspmv, float32", precision="float32"),
        OurRankingFromFile("mgspmv, from file"),
        NetworKitRanking(),
        OurRanking(OURS_TIGHT, tol=TIGHT_TOL_L1),
        IGraphRanking(),
        OurRanking(OURS_ONE, is_parallel=False),
        ScikitNetworkRanking(),
        ScikitNetworkDefaultRanking(),
        NetworkXRanking(),
    ]
