"""What products tell of the largest absolute eigenvalue of a square matrix: whether it is 0, and a bound from above.

Both take products alone, so they are made wherever products are, and come out alike there.
"""

from __future__ import annotations

import math

import numpy as np

from mgspmv.iterate.power import Products

MOST_PEELED = 1000
"""Most products by which it is looked for a cycle."""
FAINT = 1e-6
"""Share of the largest element, above which elements are looked at first."""
FIRST_PEELED = 32
"""Most products on these."""
BOUND_STEPS = 10
"""Steps of power iteration by which the bound is made tighter; of two products each."""


def has_cycle(products: Products, x: np.ndarray) -> bool:
    """Whether a cycle is found among the vertices where x is not 0.

    From a set of vertices those are taken away that have no in-edge from the set, until none is: what stays, if any,
    has a cycle. Where x is an eigenvector of an eigenvalue other than 0, elements that are not faint have such
    in-edges, so that one product or two are enough; without cycles there are as many as the longest path has vertices.
    A set that is still shrinking after `MOST_PEELED` products is one in which no cycle was found.

    Parameters
    ----------
    x : (n,) after some iterations with x' = x + A x
    """
    size = np.abs(x)
    return _keeps(products, size > FAINT * size.max(), FIRST_PEELED) or _keeps(products, size > 0, MOST_PEELED)


def _keeps(products: Products, is_in: np.ndarray, most: int) -> bool:
    """Whether some stay of a set of vertices."""
    # Different numbers, so that sums with negative weights are not 0 by chance.
    numbers = 1.0 + np.random.default_rng(0).random(len(is_in))
    for _ in range(most):
        reached = products.get(products.multiply(products.put(np.where(is_in, numbers, 0.0)))) != 0
        left = is_in & reached
        if not left.any() or np.array_equal(left, is_in):
            return bool(left.any())
        is_in = left
    return False


def bound_radius(products: Products, n: int) -> float:
    """A number that the largest absolute eigenvalue of a matrix without negative elements does not exceed.

    For every x > 0 it is at most the largest of (A x)_i / x_i (Collatz, Wielandt), and at most the root of the largest
    of (A A x)_i / x_i. x is 1 everywhere at first, and then (1 + A + A A) x.

    Returns
    -------
    0 where there are no elements; infinite where products leave the range of floats.
    """
    x, least = products.put(np.ones(n)), math.inf
    for _ in range(BOUND_STEPS):
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # it ends the search
            once = products.multiply(x)
            twice = products.multiply(once)
            bounds = float((once / x).max()), math.sqrt(float((twice / x).max()))
        if not all(map(math.isfinite, bounds)):
            break
        least = min(least, *bounds)
        x = x + once + twice
        x /= x.max()
        if not float(x.min()) > 0.0:  # too small to be divided by
            break
    return least
