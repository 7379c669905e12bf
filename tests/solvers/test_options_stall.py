"""Advice where changes no longer fall: more iterations do not help then."""

from __future__ import annotations

import re

import numpy as np
import pytest

import mgspmv as mg
from mgspmv.errors import ConvergenceError
from mgspmv.model import Status


def make_graph(seed):
    """Small graphs at random, of which few do not reach 1e-6 in float32 with alpha 0.99."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(5, 30))
    m = int(n * rng.uniform(1, 6))
    return mg.ingest((rng.integers(0, n, m), rng.integers(0, n, m)))


STALLED = [647, 737]
RUN = {"alpha": 0.99, "precision": "float32", "max_iter": 2000}


@pytest.mark.parametrize("seed", STALLED)
@pytest.mark.parametrize("norm", ["l1", "l1_per_node"])
def test_the_advice_is_followed(seed, norm):
    A = make_graph(seed)
    tol = 1e-6 if norm == "l1" else 1e-6 / A.shape[0]
    with pytest.raises(ConvergenceError, match="pass precision='exact' or 'float64', or tol=") as caught:
        mg.pagerank(A, tol=tol, norm=norm, **RUN)
    assert "ncrease max_iter" not in str(caught.value)
    reached = float(re.search(r"tol=([0-9.e-]+);", str(caught.value))[1])
    assert mg.pagerank(A, tol=reached, norm=norm, **RUN).status == Status.CONVERGED
    assert mg.pagerank(A, **(RUN | {"precision": "exact"})).status == Status.CONVERGED
    with pytest.raises(ConvergenceError, match="pass precision='exact' or 'float64', or tol="):
        mg.pagerank_batch(A, None, tol=tol, norm=norm, **RUN)
