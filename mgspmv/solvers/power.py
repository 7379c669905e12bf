"""Power iteration with products.

    y = A x;   x' = update(y, x) / |update(y, x)|;   stop on |x' - x|

The same loop runs in one process on whole vectors, on the host or on a device, and on each worker of a cluster on the
elements of its rows. Vectors of one process are in the order of the source.

A norm, or a change, is one number over all elements: a sum, a root of a sum of squares, or a maximum. Each worker
computes it of its elements, and all combine the numbers of all workers, in the same order, to the same result, so that
they make the same iterations. Sums are of float64, so that their last bits depend on the partition of the elements.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from mgspmv.errors import OptionError, ShapeError
from mgspmv.kernels.select import BoundKernel, bind_kernel
from mgspmv.model import RELATIVE_LIMIT, ChangeNorm, CsrBlock, Event, Normalization
from mgspmv.solvers.options import PowerOptions
from mgspmv.solvers.run import Collected, Execution
from mgspmv.solvers.steps import Times

CHUNK = 1 << 16
"""Elements per chunk on the host, to limit the memory of intermediates."""
Update = Callable[[Any, Any], Any]
"""Function of y = A x and x, (n,) each, that returns the next x, not normalized. It may write into y, not into x."""


@dataclass(frozen=True, eq=False)
class Step:
    """Linear update, which can be computed on any rows: x' = a y + b x + c."""

    of_product: float = 1.0
    """Coefficient a."""
    of_vector: float = 0.0
    """Coefficient b."""
    added: Any = 0.0
    """c: a number, or a vector in the order of the rows."""

    def __call__(self, y: Any, x: Any) -> Any:
        if self.of_product != 1.0:
            y *= self.of_product
        if self.of_vector == 1.0:
            y += x
        elif self.of_vector:
            y += self.of_vector * x
        if not isinstance(self.added, float) or self.added:
            y += self.added
        return y

    def place(self, move: Callable[[Any], Any]) -> Step:
        """Return the step with its vector, if it has one, moved by a function."""
        return self if isinstance(self.added, float) else replace(self, added=move(self.added))


@dataclass(frozen=True)
class PowerTask:
    """Task of a run of power iteration, except its step and start."""

    run: str
    """Run id."""
    options: PowerOptions
    threshold: float
    """Threshold of the change, from `PowerOptions.threshold`."""
    precision: Literal["float64", "float32"]
    """Dtype of vectors and values."""
    weights: bool = True
    """Whether values are used; False takes each stored entry as 1."""
    threads: int | None = None
    """Threads of each process; None for its default."""


def count_alone(elapsed_s: float, n_bytes: int) -> Times:
    """Make the times of an iteration of this process alone."""
    return Times((elapsed_s,), (0.0,), (0.0,), (0,), (n_bytes,))


@dataclass(frozen=True)
class Products:
    """Products with a square matrix, and conversions of their vectors from and to the host."""

    multiply: Callable[[Any], Any]
    """Product A x, a new array, of x as `put` returns it; both (n,), or both the elements of this worker."""
    put: Callable[[np.ndarray], Any]
    """Copy of a host vector where products are computed, in their dtype; may be the vector itself."""
    get: Callable[[Any], np.ndarray]
    """Copy of such a vector on the host; may be the vector itself."""
    hardware: str
    """Description of the hardware."""
    nbytes: int = 0
    """Bytes of the matrix in this process."""
    combine: Callable[[float, Normalization | ChangeNorm], float] = lambda own, of: own
    """Function that combines the norm or change of this process's elements to that of whole vectors."""
    report_times: Callable[[float, int], Times] = count_alone
    """Function that returns the times of the last iteration, from its seconds and the bytes held in this process."""

    def after(self, others: Products) -> Products:
        """Return products of this matrix after another one: A B x."""
        return replace(self, multiply=lambda x: self.multiply(others.multiply(x)), nbytes=self.nbytes + others.nbytes)


class PowerLoop(Execution):
    """Loop of iterations to the end. All processes with the same norms and changes make the same iterations.

    Parameters
    ----------
    x : the start, or this worker's elements of it; it is not normalized

    Attributes
    ----------
    x : after the last iteration, where `products` are computed
    iteration : iterations made
    status : at the end; None before that
    """

    def __init__(self, products: Products, update: Update, x: np.ndarray, task: PowerTask) -> None:
        self._products, self._update, self._task, self._options = products, update, task, task.options
        self.x = products.put(x)
        self.iteration = 0

    def describe(self) -> str:
        return self._products.hardware

    def start(self) -> None:
        """Do nothing: the first iteration needs no preparation."""

    def collect(self) -> Collected:
        return Collected(self._products.get(self.x))

    def advance(self, n: int | None = None) -> Iterator[Event]:
        """Iterate as `Execution.advance` does.

        Raises
        ------
        OptionError, ShapeError : `update` does not return a new vector like y
        """
        last = self._options.max_iter if n is None else self.iteration + n
        while self.status is None and self.iteration < last:
            began = time.perf_counter()
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # reported as non_finite
                change = self._step()
            self.iteration += 1
            made = self._task.threshold, self.iteration, change
            self.status = self._options.check_status(*made, is_wrong=not math.isfinite(change))
            held = self._products.nbytes + 3 * self.x.nbytes
            times = self._products.report_times(time.perf_counter() - began, held)
            yield Event(self._task.run, 0, self.iteration, change, **vars(times))

    def _step(self) -> float:
        """Make one iteration; return the change."""
        products, options, x = self._products, self._options, self.x
        new = _check_update(self._update(products.multiply(x), _protect(x)), x)
        if options.normalize != "none":
            length = products.combine(find_norm(new, options.normalize), options.normalize)
            new = _divide(new, length)
            if not math.isfinite(length):  # not divided, so that the first such element can be named
                self.x = new
                return math.nan
        self.x = new
        return products.combine(find_change(new, x, options.norm), options.norm)


def compile_product(kernel: BoundKernel, dtype: str) -> None:
    """Compile the product, or load it from Numba's cache, so that no iteration is timed with it."""
    b, nothing = kernel.block, np.empty(0, dtype)
    empty = CsrBlock(0, b.n_cols, b.indptr[:1], b.indices[:0], None if b.data is None else b.data[:0])
    bind_kernel(empty, kernel.precision).multiply(nothing, nothing)


def normalize(x: np.ndarray, norm: Normalization) -> np.ndarray:
    """Divide a whole vector by its norm, which is not `none`; a norm that is 0 or not finite leaves it unchanged."""
    divided: np.ndarray = _divide(x, find_norm(x, norm))
    return divided


def _divide(x: Any, length: float) -> Any:
    return x if length in (0.0, 1.0) or not math.isfinite(length) else x / x.dtype.type(length)


def _protect(x: Any) -> Any:
    """Return x for `update`: a read-only view of a NumPy array, as writing to it would hide the change."""
    if not isinstance(x, np.ndarray):
        return x
    view = x.view()
    view.flags.writeable = False
    return view


def _check_update(new: Any, x: Any) -> Any:
    """Check the array that `update` returned, and convert it to the dtype of x."""
    if not isinstance(new, type(x)):
        raise OptionError(
            f"update returned a {type(new).__name__}, expected an array of {type(x).__module__}; return an "
            "array such as y + x"
        )
    if new.shape != x.shape:
        raise ShapeError(f"update returned an array of shape {new.shape}; return one of shape {x.shape}, like y and x")
    if new.dtype.kind not in "biuf":
        raise OptionError(f"update returned {new.dtype}; return real numbers")
    if np.may_share_memory(new, x) if isinstance(x, np.ndarray) else new.data.ptr == x.data.ptr:
        raise OptionError("update returned x or its previous result; return a new array, or y, which it may modify")
    if isinstance(new, np.ndarray):
        return np.require(new, x.dtype, ("C", "W"))
    return new.astype(x.dtype, order="C", copy=False)


# --- norms, and changes ---------------------------------------------------------------------------------------------


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
        from mgspmv.kernels.cuda_products import sum_vector

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
