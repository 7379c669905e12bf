"""The order in which vectors enter passes."""

from __future__ import annotations

import numpy as np

import mgspmv as mg
from mgspmv.model import FIXED_POINT
from mgspmv.solvers import batch
from mgspmv.solvers.batch import LEAST_RETURNED, order_by_iterations


def test_those_of_the_most_iterations_are_first():
    shares = [0.0, 0.5, 0.9, 1.0, 0.5, LEAST_RETURNED]
    masses = [int(share * FIXED_POINT) for share in shares]
    assert order_by_iterations([0.85] * 6, masses) == [2, 1, 4, 0, 5, 3]
    assert order_by_iterations([0.5, 0.5, 0.5, 0.99, 0.9, 0.99], masses) == [2, 4, 5, 1, 0, 3]


def test_long_vectors_first_take_fewer_passes(tmp_path, monkeypatch):
    """With the same ranks: dangling vertices return the rank to the vertices of the vector."""
    rng, n = np.random.default_rng(0), 40
    arcs = np.concatenate([rng.integers(0, n, (2, 300)), [np.arange(n), np.arange(n) + n]], axis=1)
    A = mg.ingest((arcs[0], arcs[1]), tmp_path / "graph.zarr", kind="graph")  # half of the vertices are dangling
    vectors = [{k: 1.0, n + k: 9.0 * (k == n - 1)} for k in range(n)]

    def rank():
        return mg.pagerank_batch(A, vectors, width=4)

    ordered = rank()
    monkeypatch.setattr(batch, "order_by_iterations", lambda alphas, masses: list(range(len(masses))))
    given = rank()
    assert ordered.iterations[-1] > 1.5 * ordered.iterations[-2]
    assert ordered.options["steps"] < given.options["steps"]
    assert (ordered.digest(), ordered.changes) == (given.digest(), given.changes)
