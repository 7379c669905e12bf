"""PageRank by other algorithms than the one tested: SciPy's products by rows of arcs, and a linear system."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp


def sum_arcs(rows, cols, values, shape):
    """SciPy's CSR of entries; those at the same place add up, as in a multigraph."""
    return sp.coo_array((np.asarray(values, np.float64), (np.asarray(rows), np.asarray(cols))), shape=shape).tocsr()


def rank_by_pushing(arcs, *, alpha=0.85, p=None, d=None, tol=1e-14, max_iter=5000):
    """Ranks by power iteration that pushes along arcs: x S, for `arcs[i, j]` the weight of i -> j."""
    n = arcs.shape[0]
    p = np.full(n, 1 / n) if p is None else np.asarray(p) / np.sum(p)
    d = p if d is None else np.asarray(d)
    total = np.asarray(arcs.sum(axis=1), dtype=np.float64).ravel()
    share = sp.diags_array(np.divide(1.0, total, out=np.zeros(n), where=total > 0)) @ arcs.astype(np.float64)
    pull, is_dangling, x = share.T.tocsr(), total == 0, np.full(n, 1 / n)
    for _ in range(max_iter):
        new = alpha * (pull @ x + x[is_dangling].sum() * d) + (1 - alpha) * p
        change, x = np.abs(new - x).sum(), new
        if change < tol:
            return x
    raise AssertionError(f"the oracle did not converge: {change}")


def rank_by_solving(arcs, *, alpha=0.85, p=None, d=None):
    """Ranks as the solution of (I - alpha (S + dangling d)^T) x = (1 - alpha) p, dense."""
    arcs = arcs.toarray() if sp.issparse(arcs) else np.asarray(arcs, np.float64)
    n = len(arcs)
    p = np.full(n, 1 / n) if p is None else np.asarray(p) / np.sum(p)
    d = p if d is None else np.asarray(d)
    total = arcs.sum(axis=1, keepdims=True)
    follow = np.where(total > 0, arcs / np.where(total > 0, total, 1), d)
    return np.linalg.solve(np.eye(n) - alpha * follow.T, (1 - alpha) * p)
