"""Power iteration with products.

    y = A x;   x' = update(y, x) / |update(y, x)|;   stop on |x' - x|

Vectors are whole, in the order of the source, and stay where the products are made: in this process on the host or on
its device, in NumPy or CuPy; on a cluster the products alone are made by workers. What decides, norms and changes, is
summed over them in this process and in fixed chunks, so neither threads nor blocks nor workers change a bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np

from mgspmv.errors import OptionError, ShapeError
from mgspmv.iterate.options import DEFAULT_TOL
from mgspmv.iterate.pagerank import Outcome, sum_seconds
from mgspmv.model import Event, Status, TolMode, check_choice

Norm = Literal["none", "l1", "l2", "max"]
Update = Callable[[Any, Any], Any]
"""Given y = A x and x, (n,) each, gives the next x before it is normalised. It may write into y, and not into x."""

SUM_CHUNK = 1 << 16
"""Elements that are added up at a time on the host; the sums of chunks are added exactly."""


@dataclass(frozen=True)
class PowerOptions:
    """When an iteration stops and how it normalises, checked."""

    tol: float | None = None
    """Stop when the change is below; None is 1e-6, and must be None for `fixed`."""
    tol_mode: TolMode = "l1"
    """Norm of the change: `l1` sum of |x' - x| < tol; `l1_per_node` sum < n * tol, as NetworkX; `linf` largest
    |x' - x| < tol; `fixed` makes exactly max_iter iterations."""
    max_iter: int = 100
    """Most iterations."""
    norm: Norm = "none"
    """What each x' is divided by: its sum of absolutes (`l1`), Euclidean norm (`l2`) or largest absolute (`max`)."""

    def __post_init__(self) -> None:
        check_choice("tol_mode", self.tol_mode, ("l1", "l1_per_node", "linf", "fixed"))
        check_choice("norm", self.norm, get_args(Norm))
        if not hasattr(self.max_iter, "__index__") or self.max_iter < 1:
            raise OptionError(f"max_iter must be an integer of at least 1, not {self.max_iter!r}")
        if self.tol_mode == "fixed" and self.tol is not None:
            raise OptionError("tol_mode='fixed' makes max_iter iterations and has no tolerance; leave tol out")
        if self.tol is not None and not _is_positive(self.tol):
            raise OptionError(f"tol must be a positive number, not {self.tol!r}; tol_mode='fixed' stops by count alone")

    def threshold(self, n: int) -> float:
        """The change over n elements below which the iteration has converged; 0 for `fixed`."""
        if self.tol_mode == "fixed":
            return 0.0
        tol = DEFAULT_TOL if self.tol is None else float(self.tol)
        return tol * n if self.tol_mode == "l1_per_node" else tol

    def judge(self, iteration: int, change: float, threshold: float) -> Status | None:
        """How the iteration ends; None where it goes on."""
        if not math.isfinite(change):
            return Status.NON_FINITE
        if change < threshold:
            return Status.CONVERGED
        if iteration < self.max_iter:
            return None
        return Status.COMPLETED if self.tol_mode == "fixed" else Status.MAX_ITER


@dataclass(frozen=True)
class Products:
    """Products with a square matrix, and the vectors that they are made of, wherever those are."""

    multiply: Callable[[Any], Any]
    """A x, a new (n,) array, of x as `put` gives it."""
    put: Callable[[np.ndarray], Any]
    """A vector of the host where the products are made, in their dtype; it may be the same one."""
    get: Callable[[Any], np.ndarray]
    """Such a vector on the host; it may be the same one."""
    hardware: str
    """What computes."""
    nbytes: int
    """Bytes that this process holds of the matrix."""

    def after(self, others: Products) -> Products:
        """The product of this matrix with another one: A B x."""
        return Products(
            lambda x: self.multiply(others.multiply(x)),
            self.put,
            self.get,
            self.hardware,
            self.nbytes + others.nbytes,
        )


def iterate_power(
    products: Products,
    update: Update,
    x: np.ndarray,
    options: PowerOptions,
    emit: Callable[[Event], None],
    *,
    run: str = "",
) -> Outcome:
    """Iterate from x to the end.

    Parameters
    ----------
    x : (n,) the start, which is not normalised
    emit : gets an event for each iteration

    Raises
    ------
    OptionError, ShapeError : what `update` gives is no new vector like y
    """
    threshold, status, iteration, events = options.threshold(len(x)), None, 0, []
    x = products.put(x)
    with np.errstate(
        over="ignore", divide="ignore", invalid="ignore"
    ):  # what is not finite ends the iteration, and is said
        while status is None:
            began, iteration = time.perf_counter(), iteration + 1
            new = _divide(_check_update(update(products.multiply(x), _protect(x)), x), options.norm)
            change = measure_change(new, x, options.tol_mode)
            status, x = options.judge(iteration, change, threshold), new
            elapsed_s, held = time.perf_counter() - began, products.nbytes + 3 * x.nbytes
            events.append(Event(run, 0, iteration, change, (elapsed_s,), (0.0,), (0.0,), (0,), (held,)))
            emit(events[-1])
    return Outcome(products.get(x), status, math.inf, products.hardware, sum_seconds(events))


def measure_change(new: Any, x: Any, tol_mode: TolMode) -> float:
    """|x' - x|: the largest element for `linf`, else the sum; not finite where an element is not."""
    if tol_mode == "linf":
        return _find_largest(abs(new[c] - x[c]) for c in _cut(new))
    return _add_up(float(_sum(abs(new[c] - x[c]))) for c in _cut(new))


def find_norm(x: Any, norm: Norm) -> float:
    """A norm of x, as float64; 1 for `none`. No sum of squares overflows or vanishes on its way."""
    if norm == "none":
        return 1.0
    if norm == "l1":
        return _add_up(float(_sum(abs(x[c]))) for c in _cut(x))
    largest = _find_largest(abs(x[c]) for c in _cut(x))
    if norm == "max" or largest == 0 or not math.isfinite(largest):
        return largest
    scale = math.ldexp(1.0, math.frexp(largest)[1] - 1)
    squares = (float(_sum((x[c].astype(np.float64) / scale) ** 2)) for c in _cut(x))
    return scale * math.sqrt(_add_up(squares))


def normalize(x: np.ndarray, norm: Norm) -> np.ndarray:
    """x over its norm; zeros stay zeros."""
    divided: np.ndarray = _divide(x, norm)
    return divided


def _divide(x: Any, norm: Norm) -> Any:
    length = find_norm(x, norm)
    return x if length in (0.0, 1.0) else x / x.dtype.type(length)


def _cut(x: Any) -> Iterator[slice]:
    """Where the chunks of a vector are: fixed ones on the host, all of it on a device, which adds in a fixed order."""
    step = SUM_CHUNK if isinstance(x, np.ndarray) else max(1, len(x))
    return (slice(k, k + step) for k in range(0, len(x), step))


def _sum(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return x.sum(dtype=np.float64)
    from mgspmv.kernels.dense import sum_vector

    return sum_vector(x.astype(np.float64))


def _find_largest(chunks: Iterator[Any]) -> float:
    """The largest element, NaN where there is one."""
    return float(np.max([float(chunk.max()) for chunk in chunks]))


def _add_up(sums: Iterator[float]) -> float:
    """The exact sum, rounded once; NaN where that of one chunk is not finite."""
    found = list(sums)
    return math.fsum(found) if all(map(math.isfinite, found)) else math.nan


def _is_positive(number: object) -> bool:
    return isinstance(number, Real) and 0 < float(number) < math.inf


def _protect(x: Any) -> Any:
    """x as it is given to the user: of NumPy it cannot be written, which would look like no change."""
    if not isinstance(x, np.ndarray):
        return x
    view = x.view()
    view.flags.writeable = False
    return view


def _check_update(new: Any, x: Any) -> Any:
    """What `update` gave, in the dtype of x."""
    if not isinstance(new, type(x)):
        raise OptionError(
            f"update gave a {type(new).__name__}, and its arguments are arrays of {type(x).__module__}; give such an "
            "array, as y + x"
        )
    if new.shape != x.shape:
        raise ShapeError(f"update gave an array of shape {new.shape}; give one of {x.shape}, as y and x are")
    if new.dtype.kind not in "biuf":
        raise OptionError(f"update gave {new.dtype}; give real numbers")
    if _is_same(new, x):
        raise OptionError("update gave x, or the array that it gave before; give a new one, or y, which it may change")
    if isinstance(new, np.ndarray):
        return np.require(new, x.dtype, ("C", "W"))
    return new.astype(x.dtype, order="C", copy=False)


def _is_same(new: Any, x: Any) -> bool:
    if isinstance(x, np.ndarray):
        return np.may_share_memory(new, x)
    return bool(new.data.ptr == x.data.ptr)
