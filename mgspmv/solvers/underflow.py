"""Detection of vertices whose rank is 0 by underflow: their in-flow is below the resolution of a precision.

A rank is 0 where no path leads to a vertex from the targets of jumps; where iterations have not reached it yet; or
where the contributions x / w of all in-neighbors are rounded to 0. The last case is found by one more step, from a
start that is above 0 only at vertices with such small contributions: the vertices with rank 0 that it reaches lost
their in-flow. Vertices that are reached only through these have rank 0 too, and are not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from mgspmv.model import FIXED_POINT, Precision, Status, Underflow
from mgspmv.solvers.inputs import RunInputs, read_out_weight
from mgspmv.solvers.options import PageRankOptions, RankTask
from mgspmv.solvers.run import Outcome
from mgspmv.store.metadata import MatrixProperties

OneStep = Callable[[RankTask, RunInputs], Outcome]
"""Function that makes a run of one step with these vectors."""


def find_resolution(precision: Precision, n: int, nnz: int, *, on_device: bool) -> float:
    """Return the unit that the contribution of an edge is rounded to near 0.

    Parameters
    ----------
    on_device : where `float32` is summed in fixed point
    """
    if precision == "float32" and on_device:
        return 2.0**-27 / max(n, nnz)
    return {"exact": 1.0 / FIXED_POINT, "float64": 2.0**-1074, "float32": 2.0**-149}[precision]


def add_underflow(
    A: MatrixProperties, outcome: Outcome, start: RunInputs, task: RankTask, step: OneStep, *, on_device: bool
) -> Outcome:
    """Add to the outcome of a run the vertices whose rank is 0 although jumps, or edges from vertices with a rank above
    0, lead to them.

    Nothing is read, and no step made, where no rank is 0; no step where no contribution is below the resolution.

    Parameters
    ----------
    outcome : with ranks in the order of the stored rows
    start : of the run, likewise
    on_device : as in `find_resolution`
    """
    if outcome.status == Status.NON_FINITE:
        return outcome
    began = time.perf_counter()
    found = _find_underflow(A, outcome.values, start, task, step, on_device=on_device)
    outcome.seconds["residual"] += time.perf_counter() - began
    return replace(outcome, underflow=found)


def _find_underflow(
    A: MatrixProperties, x: np.ndarray, start: RunInputs, task: RankTask, step: OneStep, *, on_device: bool
) -> Underflow | None:
    options, use_weights = task.options, task.dtype is not None
    is_zero = x == 0
    if not is_zero.any():
        return None
    is_lost = is_zero & (start.personalization > 0)
    resolution = find_resolution(options.precision, A.shape[0], A.nnz, on_device=on_device)
    least = 1.0 if not use_weights else A.info.min_weight or 0.0
    probe = None
    if options.alpha:
        probe = _make_probe(x, start.take_weight(partial(read_out_weight, A.stored, use_weights)), least, resolution)
    if probe is not None:
        fixed = PageRankOptions(alpha=options.alpha, norm="fixed", max_iter=1, precision=options.precision)
        once = replace(task, options=fixed, threshold=0.0)
        is_lost |= is_zero & (step(once, replace(start, x=probe.astype(start.x.dtype))).values > 0)
    lost = np.flatnonzero(is_lost)
    if not len(lost):
        return None
    first = int(lost[0] if A.order is None else A.order[lost].min())
    vertex = first if A.vertex_ids is None else A.vertex_ids[first]
    return Underflow(len(lost), vertex if isinstance(vertex, str) else int(vertex), resolution, options.precision)


def _make_probe(x: np.ndarray, weight: np.ndarray, least: float, resolution: float) -> np.ndarray | None:
    """Make a start, (n,), with equal contributions of all vertices whose contributions underflow; None for none."""
    is_faint = (x > 0) & (weight > 0)
    is_faint[is_faint] = x[is_faint] / weight[is_faint] * least < resolution / 2
    if not is_faint.any():
        return None
    probe = np.where(is_faint, weight / weight[is_faint].max(), 0.0)
    normalized: np.ndarray = probe / probe.sum()
    return normalized
