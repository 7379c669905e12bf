"""Norms of vectors and of their changes in power iteration, combined from the parts of several workers.

Each is one number over all elements: a sum, a root of a sum of squares, or a maximum. Each worker computes it of its
elements, and all combine the numbers of all workers, in the same order, to the same result. Sums are of float64, so
that their last bits depend on the partition of the elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from mgspmv.model import RELATIVE_LIMIT, ChangeNorm

Normalization = Literal["none", "l1", "l2", "max"]

CHUNK = 1 << 16
"""Elements per chunk on the host, to limit the memory of intermediates."""


def find_norm(x: Any, norm: Normalization) -> float:
    """Compute the norm of these elements, not finite where one is not, or where it is too large for a float.

    Sums of squares are scaled against overflow and underflow.

    Parameters
    ----------
    x : (n,) float32 or float64, of NumPy, or of CuPy on a device
    """
    if norm == "l1":
        return _sum(lambda c: abs(_widen(x[c])), x)
    largest = _find_largest(abs(x[c]) for c in _cut(x))
    if norm == "max" or largest == 0 or not math.isfinite(largest):
        return largest
    scale = math.ldexp(1.0, math.frexp(largest)[1] - 1)
    root = scale * math.sqrt(_sum(lambda c: (x[c].astype(np.float64) / scale) ** 2, x))
    return root if math.isfinite(root) else math.nan


def find_change(new: Any, x: Any, norm: ChangeNorm) -> float:
    """Compute |x' - x| of these elements, not finite where one is not: for `linf` the largest, for `relative` the
    largest |x' - x| / |x'|, up to `RELATIVE_LIMIT` and 0 where x' is 0; else the sum. Parameters as for `find_norm`."""
    if norm == "linf":
        return _find_largest(abs(_widen(new[c]) - x[c]) for c in _cut(new))
    if norm == "relative":
        largest = _find_largest(_compare(_widen(new[c]), x[c]) for c in _cut(new))
        return largest if math.isnan(largest) else min(largest, RELATIVE_LIMIT)
    return _sum(lambda c: abs(_widen(new[c]) - x[c]), new)


def combine(parts: Sequence[float], of: Normalization | ChangeNorm) -> float:
    """Combine the norms, or changes, of all parts to that of all elements; not finite where one is not."""
    if of in ("max", "linf", "relative"):
        return float(np.max(parts))
    if of != "l2":
        return _add_up(parts)
    root = math.hypot(*parts)
    return root if math.isfinite(root) else math.nan


def _sum(find: Callable[[slice], Any], x: Any) -> float:
    """Sum the results of a function of each chunk of x, NaN where the sum is not finite."""
    if not isinstance(x, np.ndarray):
        from mgspmv.kernels.dense import sum_vector

        return _add_up(float(sum_vector(find(c).astype(np.float64))) for c in _cut(x))
    with np.errstate(over="ignore", invalid="ignore"):  # reported as non_finite
        return _add_up(float(find(c).sum()) for c in _cut(x))


def _add_up(numbers: Iterable[float]) -> float:
    """Sum numbers, rounded once; NaN where the sum is not finite."""
    try:
        total = math.fsum(numbers)
    except OverflowError:
        return math.nan
    return total if math.isfinite(total) else math.nan


def _compare(new: Any, x: Any) -> Any:
    """Return |x' - x| / |x'|, 0 where x' is 0."""
    size = abs(new)
    return abs(new - x) * (size != 0) / (size + (size == 0))


def _widen(x: Any) -> Any:
    """Convert an array on the host to float64; one on a device, where memory may be short, is returned unchanged."""
    return x.astype(np.float64, copy=False) if isinstance(x, np.ndarray) else x


def _cut(x: Any) -> Iterator[slice]:
    """Return the slices of the chunks of a vector; on a device all of it is one chunk."""
    step = CHUNK if isinstance(x, np.ndarray) else max(1, len(x))
    return (slice(k, k + step) for k in range(0, len(x), step))


def _find_largest(chunks: Iterator[Any]) -> float:
    """Return the largest element, NaN if any is NaN; 0 for none."""
    return float(np.max([0.0, *(float(chunk.max()) for chunk in chunks)]))
