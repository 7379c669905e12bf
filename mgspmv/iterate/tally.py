"""What decides in power iteration: norms of vectors and their changes, exact, and so the same however they are cut.

Each is one number over all elements, a sum or a largest one. Who has some of the elements makes a tally of these;
tallies are added in any order, and the number is rounded once, from the tally of all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mgspmv.kernels.exact_sums import UNIT_BITS, sum_changes, sum_sizes, sum_squares, to_units
from mgspmv.model import RELATIVE_LIMIT, TolMode

Norm = Literal["none", "l1", "l2", "max"]

CHUNK = 1 << 16
"""Elements that are looked at at a time on the host."""


@dataclass(frozen=True)
class Tally:
    """Of some elements, a sum or the largest of what they are measured by, as the run needs."""

    units: int = 0
    """Exact sum, in units of 2^-2200; of a device's elements, what it summed to in a fixed order."""
    largest: float = 0.0
    """The largest, NaN where one is not finite."""

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.units + other.units, float(np.maximum(self.largest, other.largest)))

    @property
    def total(self) -> float:
        """The sum, rounded once; NaN where an element is not finite, or where it is too large for a float."""
        if math.isnan(self.largest):
            return math.nan
        try:
            return self.units / (1 << UNIT_BITS)
        except OverflowError:
            return math.nan

    @property
    def root(self) -> float:
        """Of the sum, likewise. The sum itself may be too large for a float, or too small."""
        if math.isnan(self.largest) or not self.units:
            return self.largest
        exponent = (self.units.bit_length() - 1) & ~1
        try:
            return math.ldexp(math.sqrt(self.units / (1 << exponent)), (exponent - UNIT_BITS) // 2)
        except OverflowError:
            return math.nan

    def pack(self) -> dict[str, Any]:
        """For a message to another process."""
        return {"units": self.units.to_bytes((self.units.bit_length() + 7) // 8, "little"), "largest": self.largest}

    @classmethod
    def unpack(cls, message: dict[str, Any]) -> Tally:
        """What `pack` packed."""
        return cls(int.from_bytes(message["units"], "little"), message["largest"])


def tally_norm(x: Any, norm: Norm, threads: int | None = None) -> Tally:
    """Of these elements, what `read_norm` makes the norm of all of.

    Parameters
    ----------
    x : (n,) float32 or float64, of NumPy, or of CuPy on a device
    threads : that sum on the host
    """
    if norm == "max":
        return Tally(largest=_find_largest(abs(x[c]) for c in _cut(x)))
    if not isinstance(x, np.ndarray):
        return _tally_norm_on_device(x, norm)
    return _hold_sum((sum_sizes if norm == "l1" else sum_squares)(x, threads))


def read_norm(tally: Tally, norm: Norm) -> float:
    """The norm of the elements that were tallied. No sum of squares overflows or vanishes on its way."""
    if norm == "max":
        return tally.largest
    return tally.total if norm == "l1" else tally.root


def tally_change(new: Any, x: Any, tol_mode: TolMode, threads: int | None = None) -> Tally:
    """Of these elements, what `read_change` makes the change of all of; parameters as for `tally_norm`."""
    if tol_mode == "linf":
        return Tally(largest=_find_largest(abs(_widen(new[c]) - x[c]) for c in _cut(new)))
    if tol_mode == "relative":
        largest = _find_largest(_compare(_widen(new[c]), x[c]) for c in _cut(new))
        return Tally(largest=largest if math.isnan(largest) else min(largest, RELATIVE_LIMIT))
    if isinstance(new, np.ndarray):
        return _hold_sum(sum_changes(new, x, threads))
    return _hold_float(_sum_on_device(abs(new - x)))


def read_change(tally: Tally, tol_mode: TolMode) -> float:
    """|x' - x| of the elements that were tallied, not finite where one is not: for `linf` the largest, for `relative`
    the largest |x' - x| / |x'|, counted up to `RELATIVE_LIMIT` and 0 where x' is 0; else the sum."""
    return tally.largest if tol_mode in ("linf", "relative") else tally.total


def _hold_sum(units: int | None) -> Tally:
    return Tally(largest=math.nan) if units is None else Tally(units)


def _hold_float(total: float, exponent: int = 0) -> Tally:
    """total * 2^exponent."""
    return _hold_sum(to_units(total, exponent) if math.isfinite(total) else None)


def _tally_norm_on_device(x: Any, norm: Norm) -> Tally:
    """Squares are made of elements that are brought to about 1."""
    if norm == "l1":
        return _hold_float(_sum_on_device(abs(x)))
    largest = _find_largest(iter([abs(x)]))
    if largest == 0 or not math.isfinite(largest):
        return Tally(largest=0.0 if largest == 0 else math.nan)
    exponent = math.frexp(largest)[1] - 1
    scale = math.ldexp(1.0, exponent)
    return _hold_float(_sum_on_device((x.astype(np.float64) / scale) ** 2), 2 * exponent)


def _sum_on_device(x: Any) -> float:
    from mgspmv.kernels.dense import sum_vector

    return float(sum_vector(x.astype(np.float64)))


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
