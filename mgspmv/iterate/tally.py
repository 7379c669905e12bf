"""Norms of vectors and of their changes, which decide in power iteration, from the parts of several workers.

Each is one number over all elements, a sum or a largest one. Who has some of the elements makes a tally of these, and
everybody combines the tallies of all, in any order, to the same number. Sums are of float64, so that their last bits
depend on how the elements are divided between workers, but not on threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from mgspmv.model import RELATIVE_LIMIT, TolMode, default_threads

Norm = Literal["none", "l1", "l2", "max"]

CHUNK = 1 << 16
"""Elements that are looked at at a time on the host."""


@dataclass(frozen=True)
class Tally:
    """Of some elements, a sum or the largest of what they are measured by, as the run needs."""

    sum: float = 0.0
    """Of squares over 4^exponent, so that none overflows or vanishes."""
    largest: float = 0.0
    """The largest, NaN where one is not finite."""
    exponent: int = 0

    @classmethod
    def combine(cls, tallies: Sequence[Tally]) -> Tally:
        """Add tallies: the sum is rounded once, and so the same in any order."""
        largest = float(np.max([0.0, *(t.largest for t in tallies)]))
        exponent = max((t.exponent for t in tallies if t.sum), default=0)
        total = _add_up(math.ldexp(t.sum, 2 * (t.exponent - exponent)) for t in tallies)
        return cls(total, largest, exponent)

    @property
    def root(self) -> float:
        """Square root of the sum; NaN where it is too large for a float."""
        try:
            return math.ldexp(math.sqrt(self.sum), self.exponent)
        except OverflowError:
            return math.nan

    def pack(self) -> dict[str, Any]:
        """For a message to another process."""
        return asdict(self)

    @classmethod
    def unpack(cls, message: dict[str, Any]) -> Tally:
        """What `pack` packed."""
        return cls(message["sum"], message["largest"], message["exponent"])


def tally_norm(x: Any, norm: Norm, threads: int | None = None) -> Tally:
    """Of these elements, what `read_norm` makes the norm of all of.

    Parameters
    ----------
    x : (n,) float32 or float64, of NumPy, or of CuPy on a device
    threads : that sum on the host
    """
    if norm == "max":
        return Tally(largest=_find_largest(abs(x[c]) for c in _cut(x)))
    if norm == "l1":
        return Tally(_sum(lambda c: abs(_widen(x[c])), x, threads))
    largest = _find_largest(abs(x[c]) for c in _cut(x))
    if largest == 0 or not math.isfinite(largest):
        return Tally(0.0 if largest == 0 else math.nan)
    exponent = math.frexp(largest)[1] - 1
    scale = math.ldexp(1.0, exponent)
    return Tally(_sum(lambda c: (x[c].astype(np.float64) / scale) ** 2, x, threads), exponent=exponent)


def read_norm(tally: Tally, norm: Norm) -> float:
    """The norm of the elements that were tallied. No sum of squares overflows or vanishes on its way."""
    if norm == "max":
        return tally.largest
    return tally.sum if norm == "l1" else tally.root


def tally_change(new: Any, x: Any, tol_mode: TolMode, threads: int | None = None) -> Tally:
    """Of these elements, what `read_change` makes the change of all of; parameters as for `tally_norm`."""
    if tol_mode == "linf":
        return Tally(largest=_find_largest(abs(_widen(new[c]) - x[c]) for c in _cut(new)))
    if tol_mode == "relative":
        largest = _find_largest(_compare(_widen(new[c]), x[c]) for c in _cut(new))
        return Tally(largest=largest if math.isnan(largest) else min(largest, RELATIVE_LIMIT))
    return Tally(_sum(lambda c: abs(_widen(new[c]) - x[c]), new, threads))


def read_change(tally: Tally, tol_mode: TolMode) -> float:
    """|x' - x| of the elements that were tallied, not finite where one is not: for `linf` the largest, for `relative`
    the largest |x' - x| / |x'|, counted up to `RELATIVE_LIMIT` and 0 where x' is 0; else the sum."""
    return tally.largest if tol_mode in ("linf", "relative") else tally.sum


def _sum(find: Callable[[slice], Any], x: Any, threads: int | None) -> float:
    """Sum of what is found of each chunk of x, NaN where that is not finite; the same for any number of threads."""
    if not isinstance(x, np.ndarray):
        from mgspmv.kernels.dense import sum_vector

        return _add_up(float(sum_vector(find(c).astype(np.float64))) for c in _cut(x))

    def sum_chunk(chunk: slice) -> float:
        with np.errstate(over="ignore", invalid="ignore"):  # it ends the iteration, which says so
            return float(find(chunk).sum())

    if len(x) <= CHUNK:
        return _add_up(map(sum_chunk, _cut(x)))
    with ThreadPoolExecutor(threads or default_threads()) as pool:
        return _add_up(pool.map(sum_chunk, _cut(x)))


def _add_up(numbers: Iterable[float]) -> float:
    """Their sum, rounded once; NaN where it is not finite."""
    try:
        total = math.fsum(numbers)
    except OverflowError:
        return math.nan
    return total if math.isfinite(total) else math.nan


def _compare(new: Any, x: Any) -> Any:
    """|x' - x| / |x'|, 0 where x' is 0."""
    size = abs(new)
    return abs(new - x) * (size != 0) / (size + (size == 0))


def _widen(x: Any) -> Any:
    """On the host in float64; on a device, where there may be no room for it, as it is."""
    return x.astype(np.float64, copy=False) if isinstance(x, np.ndarray) else x


def _cut(x: Any) -> Iterator[slice]:
    """Where the chunks of a vector are: on a device all of it is one."""
    step = CHUNK if isinstance(x, np.ndarray) else max(1, len(x))
    return (slice(k, k + step) for k in range(0, len(x), step))


def _find_largest(chunks: Iterator[Any]) -> float:
    """The largest element, NaN where there is one; 0 of none."""
    return float(np.max([0.0, *(float(chunk.max()) for chunk in chunks)]))
