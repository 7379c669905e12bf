"""Detection of vertices whose rank is 0 by underflow: their in-flow is below the resolution of a precision.

A rank is 0 where no path leads to a vertex from the targets of jumps; where iterations have not reached it yet; or
where the contributions x / w of all in-neighbors are rounded to 0. The last case is found by one more step, from a
start that is above 0 only at vertices with such small contributions: the vertices with rank 0 that it reaches lost
their in-flow. Vertices that are reached only through these have rank 0 too, and are not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from mgspmv.iterate.options import PageRankOptions
from mgspmv.iterate.start import Start
from mgspmv.model import FIXED_POINT, Precision

Step = Callable[[PageRankOptions, Start], np.ndarray]
"""Function that runs one step with these options and vectors, and returns the (n,) ranks."""


def find_resolution(precision: Precision, n: int, nnz: int, *, on_device: bool) -> float:
    """Return the unit that the contribution of an edge is rounded to near 0.

    Parameters
    ----------
    on_device : where `float32` is summed in fixed point
    """
    if precision == "float32" and on_device:
        return 2.0**-27 / max(n, nnz)
    return {"exact": 1.0 / FIXED_POINT, "float64": 2.0**-1074, "float32": 2.0**-149}[precision]


def find_lost(
    x: np.ndarray,
    start: Start,
    options: PageRankOptions,
    read_weight: Callable[[], np.ndarray],
    least: float,
    resolution: float,
    step: Step,
) -> np.ndarray:
    """Find rows whose rank is 0 although jumps, or edges from vertices with a rank above 0, lead to them.

    Nothing is read, and no step made, where no rank is 0; no step where no contribution is below the resolution.

    Parameters
    ----------
    x : (n,) ranks at the end of a run
    start : of the run, in the order of `x`
    read_weight : gives the (n,) out-weights
    least : least value of an entry; 0 where some are 0
    resolution : as in `find_resolution`

    Returns
    -------
    int64, ascending.
    """
    is_zero = x == 0
    if not is_zero.any():
        return np.empty(0, np.int64)
    is_lost = is_zero & (start.personalization > 0)
    probe = _make_probe(x, start.take_weight(read_weight), least, resolution) if options.alpha else None
    if probe is not None:
        once = PageRankOptions(options.alpha, None, "fixed", 1, options.precision)
        is_lost |= is_zero & (step(once, replace(start, x=probe.astype(start.x.dtype))) > 0)
    return np.flatnonzero(is_lost)


def _make_probe(x: np.ndarray, weight: np.ndarray, least: float, resolution: float) -> np.ndarray | None:
    """Make a start, (n,), with equal contributions of all vertices whose contributions underflow; None for none."""
    is_faint = (x > 0) & (weight > 0)
    is_faint[is_faint] = x[is_faint] / weight[is_faint] * least < resolution / 2
    if not is_faint.any():
        return None
    probe = np.where(is_faint, weight / weight[is_faint].max(), 0.0)
    normalized: np.ndarray = probe / probe.sum()
    return normalized
