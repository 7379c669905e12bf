"""Out-weights given by users in place of the stored ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from mgspmv.errors import OptionError
from mgspmv.model import Precision
from mgspmv.solvers.vectors import Weights, make_vector

ROUNDING = 1e-6
"""Relative amount by which an out-weight may be less than the sum of the stored edges, as sums in float32 are."""


def make_out_weight(given: Weights, stored: np.ndarray, vertex_ids: np.ndarray | None) -> np.ndarray:
    """Make the out-weights of a run.

    Parameters
    ----------
    given : (n,) array in the order of the source's vertices, or a mapping of their ids; missing ids weigh 0
    stored : (n,) float64: sum of the stored out-edges of each vertex
    vertex_ids : (n,) ascending ids of the store, None for 0..n-1

    Returns
    -------
    (n,) float64, each at least `stored`, up to rounding. Larger ones belong to vertices with edges that leave the
    stored part: their share of the rank is lost, like the rank of dropped dangling vertices.

    Raises
    ------
    ShapeError : an array of another length
    OptionError : an unknown id; a weight that is negative, not finite, or less than the sum of the stored out-edges
    """
    weight = make_vector("out_weight", given, len(stored), vertex_ids, is_signed=False)
    is_less = weight < stored * (1.0 - ROUNDING)
    if is_less.any():
        place = int(is_less.argmax())
        raise OptionError(
            f"out_weight of vertex {_name(place, vertex_ids)} is {weight[place]:.9g}, less than the sum of its stored "
            f"out-edges, {stored[place]:.9g}; pass at least that sum, or the vertex passes on more rank than it has"
        )
    return weight


def measure_shares(weight: np.ndarray, stored: np.ndarray) -> tuple[float, float]:
    """Return the least (at most 1) and the largest (at least 1) column sum of A / w over vertices with out-weights: a
    step grows L1 distances at most by alpha times the largest."""
    has_out = weight > 0
    shares = stored[has_out] / weight[has_out]
    return float(shares.min(initial=1.0)), float(shares.max(initial=1.0))


def describe_overflow(weight: np.ndarray, vertex_ids: np.ndarray | None, precision: Precision) -> str | None:
    """Describe the out-weight that made ranks overflow, and the remedy; None where out-weights do not explain it.

    Parameters
    ----------
    weight : (n,) out-weights, in the order of the source
    """
    if not (is_finite := np.isfinite(weight)).all():
        vertex = _name(int(is_finite.argmin()), vertex_ids)
        return (
            f"The weights of the out-edges of vertex {vertex} sum to more than the largest float64 (1.8e308); scale "
            "the weights down, or pass weight=False"
        )
    least = weight.min(where=weight > 0, initial=np.inf)
    if least * float(np.finfo(np.float32 if precision == "float32" else np.float64).max) >= 1.0:
        return None
    vertex = _name(int((weight == least).argmax()), vertex_ids)
    return (
        f"The weights of the out-edges of vertex {vertex} sum to {least:.3g}, and a rank divided by that overflows "
        f"with precision={precision!r}; scale the weights up, or pass weight=False"
    )


def _name(place: int, vertex_ids: np.ndarray | None) -> Any:
    return place if vertex_ids is None else vertex_ids[place]
