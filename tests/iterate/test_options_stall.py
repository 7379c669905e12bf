"""Advice where changes no longer fall: more iterations do not help then."""

from __future__ import annotations

import re

import numpy as np
import pytest
from zarr.storage import MemoryStore

import mgspmv as mg
from mgspmv.errors import ConvergenceError
from mgspmv.iterate.options import PageRankOptions
from mgspmv.model import Status


def make_graph(seed):
    """Small graphs at random, of which few do not reach 1e-6 in float32 with alpha 0.99."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(5, 30))
    m = int(n * rng.uniform(1, 6))
    mg.ingest((rng.integers(0, n, m), rng.integers(0, n, m)), place := MemoryStore())
    return mg.open_matrix(place)


STALLED = [646, 647, 737, 951]
RUN = {"alpha": 0.99, "precision": "float32", "max_iter": 2000}


@pytest.mark.parametrize("seed", STALLED)
@pytest.mark.parametrize("tol_mode", ["l1", "l1_per_node"])
def test_the_advice_is_followed(seed, tol_mode):
    A = make_graph(seed)
    tol = 1e-6 if tol_mode == "l1" else 1e-6 / A.shape[0]
    with pytest.raises(ConvergenceError, match="pass precision='exact' or 'float64', or tol=") as caught:
        mg.pagerank(A, tol=tol, tol_mode=tol_mode, **RUN)
    assert "raise max_iter" not in str(caught.value)
    reached = float(re.search(r"tol=([0-9.e-]+);", str(caught.value))[1])
    assert mg.pagerank(A, tol=reached, tol_mode=tol_mode, **RUN).status == Status.CONVERGED
    assert mg.pagerank(A, **(RUN | {"precision": "exact"})).status == Status.CONVERGED
    with pytest.raises(ConvergenceError, match="pass precision='exact' or 'float64', or tol="):
        mg.pagerank_batch(A, None, tol=tol, tol_mode=tol_mode, **RUN)


FALLING = [0.99**k for k in range(1, 200)]


@pytest.mark.parametrize(
    ("options", "changes", "is_stalled"),
    [
        (RUN, [*FALLING, *[3e-6] * 30], True),
        (RUN, [*FALLING, *[1e-4] * 30], False),  # no rounding is that large
        (RUN, [1e-5 * change for change in FALLING], False),
        (RUN, [3e-6] * 5, False),
        ({**RUN, "precision": "exact"}, [3e-6] * 30, False),
        ({**RUN, "precision": "float64", "tol": 1e-14}, [2e-14] * 30, True),
        ({"alpha": 0.85, "precision": "float32"}, [1e-6 * 0.84**k for k in range(30)], False),
    ],
)
def test_changes_that_stay_are_told_from_those_that_fall(options, changes, is_stalled):
    said = PageRankOptions(**options).advise(Status.MAX_ITER, changes, 20, 60)
    assert said.startswith("changes stay near") == is_stalled
    assert ("or 'float64'" in said) == (is_stalled and options["precision"] == "float32")


def test_other_ends_have_their_own_advice():
    options = PageRankOptions(**RUN)
    assert options.advise(Status.NON_FINITE, [3e-6] * 50, 20, 60) == Status.NON_FINITE.advice
