"""Tests of the largest absolute eigenvalue of a square matrix by products: whether it is 0, and an upper bound.

Both use products alone, so they run wherever products are computed, with the same result.
"""

from __future__ import annotations

import math

import numpy as np

from mgspmv.solvers.power import Products

MOST_PEELED = 1000
"""Most products in the search for a cycle."""
FAINT = 1e-6
"""Share of the largest element above which elements are searched first."""
FIRST_PEELED = 32
"""Most products in the search among these elements."""
BOUND_STEPS = 10
"""Steps of power iteration that tighten the bound, of two products each."""


def has_cycle(products: Products, x: np.ndarray) -> bool:
    """Return whether a cycle is found among the vertices where x is not 0.

    Vertices without an in-edge from the set are removed from the set until none is left to remove: a nonempty rest has
    a cycle. Where x is an eigenvector of a nonzero eigenvalue, elements that are not faint have such in-edges, so that
    one or two products suffice; without cycles it takes as many as the longest path has vertices. A set that is still
    shrinking after `MOST_PEELED` products counts as acyclic.

    Parameters
    ----------
    x : (n,) after some iterations with x' = x + A x
    """
    size = np.abs(x)
    return _keeps(products, size > FAINT * size.max(), FIRST_PEELED) or _keeps(products, size > 0, MOST_PEELED)


def _keeps(products: Products, is_in: np.ndarray, most: int) -> bool:
    """Return whether repeated removal of vertices without in-edges from the set ends, in `most` products, nonempty."""
    # Random numbers, as sums of ones with negative weights may cancel to 0.
    numbers = 1.0 + np.random.default_rng(0).random(len(is_in))
    for _ in range(most):
        reached = products.get(products.multiply(products.put(np.where(is_in, numbers, 0.0)))) != 0
        left = is_in & reached
        if not left.any() or np.array_equal(left, is_in):
            return bool(left.any())
        is_in = left
    return False


def bound_radius(products: Products, n: int) -> float:
    """Bound the largest absolute eigenvalue of a nonnegative matrix from above.

    For every x > 0 it is at most the largest of (A x)_i / x_i (Collatz, Wielandt), and at most the root of the largest
    of (A A x)_i / x_i. x is 1 everywhere at first, and then (1 + A + A A) x.

    Returns
    -------
    0 for a matrix without elements; infinite where products overflow.
    """
    x, least = products.put(np.ones(n)), math.inf
    for _ in range(BOUND_STEPS):
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # non-finite bounds end the loop
            once = products.multiply(x)
            twice = products.multiply(once)
            bounds = float((once / x).max()), math.sqrt(float((twice / x).max()))
        if not all(map(math.isfinite, bounds)):
            break
        least = min(least, *bounds)
        x = x + once + twice
        x /= x.max()
        if not float(x.min()) > 0.0:  # elements that underflowed cannot be divided by
            break
    return least
