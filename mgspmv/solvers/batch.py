"""PageRank of many vectors in one pass over the matrix at a time.

Vectors are the columns of a pass, and each has a separate damping, personalization, dangling mass and end. A finished
vector leaves its column to the next waiting one; when none waits, the pass becomes narrower. The grouping does not
affect the vectors: each has the same iterations as in a separate run of `mgspmv.solvers.pagerank`.

On a cluster every worker does the same with its own rows: sums are those of all workers, so that all make the same
decisions.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mgspmv.errors import CapacityError
from mgspmv.exchange.exchange import GatheringExchange
from mgspmv.kernels.operands import WIDTHS, Terms, fit_width, narrow_widths
from mgspmv.kernels.select import BoundMany
from mgspmv.model import FIXED_POINT, Event, Status, StepSums
from mgspmv.solvers.options import Task
from mgspmv.solvers.run import Collected, Execution, bound_error
from mgspmv.solvers.steps import Times, bound_mass_rounding, time_step
from mgspmv.solvers.vectors import Query

MEMORY_SHARE = 0.5
"""Share of the free memory that the vectors of a pass may take, unless the user sets a width."""
RESIDUAL_WIDTH = 16
"""Most vectors whose errors are bounded in one pass."""

LEAST_RETURNED = 0.3
"""Share of rank that returns to p in a step if no dangling vertex passes it on, as seen in R-MAT graphs."""
KEEP_BYTES = 48
"""Most bytes per vertex while ranks are put in the order of the source and the highest are selected."""


@dataclass(frozen=True, eq=False)
class FinishedVectors:
    """Results of finished vectors on some rows."""

    numbers: tuple[int, ...]
    """Numbers of the vectors."""
    ranks: np.ndarray
    """(n_vectors, k): ranks of all these rows, in their order; or the highest of them, in descending order."""
    sources: np.ndarray | None
    """(n_vectors, k) int64: numbers in the source of the vertices with the highest ranks; None where all ranks are
    kept."""


@dataclass(frozen=True)
class BatchTask(Task):
    """Task of a batch, except its vectors, each of which has a separate `alpha`."""

    width: int | None = None
    """Most vectors in a pass; None for the fastest width that fits in memory."""
    top: int | None = None
    """Number of highest ranks to keep of each vector; None for all ranks."""
    drops: bool = False
    """Whether the rank of dangling vertices is dropped, so that the first x is (1 - alpha) p; else it is p."""


Keep = Callable[[FinishedVectors], None]
"""Receiver of the results of vectors; `FinishedVectors.ranks` may be overwritten afterwards."""


@dataclass(frozen=True, eq=False)
class ManyRows:
    """Kernel of a block, and the arrays on its rows that all vectors share; arrays are where the block is."""

    kernel: BoundMany
    weight: Any
    """(n_rows,) float64 out-weights; 0 for dangling vertices."""
    dangling: Any
    """d, float64: (n_rows,), (1,) or, for p of each vector, (0,)."""
    n_dangling: int
    """Number of dangling vertices among the rows."""

    @property
    def start(self) -> int:
        return self.kernel.block.row_offset

    @property
    def stop(self) -> int:
        return self.start + self.kernel.block.n_rows


@dataclass(frozen=True)
class Ending:
    """End of a vector: status, changes and error bound."""

    status: Status
    changes: tuple[float, ...]
    """|x' - x| of each iteration, in the norm of the run."""
    error_bound_l1: float
    """Bound on ||ranks - exact ranks||_1; infinite where ranks are not finite."""


class Pass:
    """Columns that vectors are computed in, on the rows of this process.

    Parameters
    ----------
    rows : of this process
    panels : open z of all rows
    width : columns, one of `mgspmv.kernels.operands.WIDTHS`
    x_dtype : of the ranks
    x : (n_rows, width) ranks; None for zeros

    Attributes
    ----------
    queries : the vector of each column; None for a free one
    """

    def __init__(self, rows: ManyRows, panels: GatheringExchange, width: int, x_dtype: Any, x: Any = None) -> None:
        self._rows, self._panels, self.width = rows, panels, width
        self.x = rows.kernel.zeros_many(rows.stop - rows.start, width, x_dtype) if x is None else x
        kernel = rows.kernel
        self._panel = panels.open(lambda n: kernel.zeros_many(n, width, kernel.z_dtype))
        self._terms: Terms
        self.queries: list[Query | None] = [None] * width

    @property
    def nbytes(self) -> int:
        """Bytes of vectors."""
        return int(self._panel.nbytes + self.x.nbytes)

    def enter(self, columns: np.ndarray, queries: Sequence[Query]) -> None:
        """Assign vectors to columns whose x are theirs. Needs `scale` before the next step."""
        for column, query in zip(columns, queries, strict=True):
            self.queries[column] = query
        self._terms = self._make_terms()

    def enter_at_jump(self, columns: np.ndarray, queries: Sequence[Query], shares: Sequence[float]) -> None:
        """Assign vectors to columns, with a share of their p as first x. Needs `scale` before the next step."""
        put = self._rows.kernel.put
        bases = np.array([share * q.base for q, share in zip(queries, shares, strict=True)])
        if bases.any() or any(self.queries[column] is not None for column in columns):  # else they are 0
            self.x[:, put(columns)] = put(bases)
        rows = np.concatenate([q.rows for q in queries]) - self._rows.start
        weights = np.concatenate([share * q.weights for q, share in zip(queries, shares, strict=True)])
        if len(rows):
            self.x[put(rows), put(np.repeat(columns, [len(q.rows) for q in queries]))] = put(weights)
        self.enter(columns, queries)

    def take(self, columns: np.ndarray, out: Any) -> None:
        """Copy x of columns[j] to out[j]: (len(columns), n_rows)."""
        self._rows.kernel.take(self.x, columns, out)

    def scale(self) -> list[StepSums]:
        """Compute z from x; return the sums over all rows of each x."""
        r = self._rows
        return self._panel.exchange_columns(r.kernel.scale_many(self.x, r.weight, self._panel.slot()))

    def step(self, mass: np.ndarray, *, is_relative: bool = False) -> tuple[list[StepSums], Times]:
        """Make one step of all columns; return its sums over all rows, and its times. `mass` is (width,), of the x
        before, `is_relative` as for `CpuMany`."""

        def multiply() -> list[StepSums]:
            r, z = self._rows, self._panel.z
            vectors = (z, self.x, self._panel.slot(), r.weight, mass, self._terms)
            return r.kernel.step_many(*vectors, is_relative=is_relative)

        return time_step(self._panel, multiply)

    def residual(self, mass: np.ndarray) -> np.ndarray:
        """Bound how far a step would move x of all rows, in L1, (width,); blocks and z must be `float64`."""
        own = self._rows.kernel.residual_many(self._panel.z, self.x, mass, self._terms)
        total: np.ndarray = sum(self._panels.gather(own), np.zeros(self.width))
        return total

    def _make_terms(self) -> Terms:
        """Make the terms of all columns on the rows."""
        r = self._rows
        alpha, base = np.zeros((2, self.width))
        taken = [(column, query) for column, query in enumerate(self.queries) if query is not None]
        numbers, queries = [column for column, _ in taken], [query for _, query in taken]
        alpha[numbers], base[numbers] = [query.alpha for query in queries], [query.base for query in queries]
        columns = np.repeat(numbers, [len(query.rows) for query in queries])
        rows, weights = (np.concatenate(parts) for parts in ([q.rows for q in queries], [q.weights for q in queries]))
        order = np.argsort(rows, kind="stable")
        entries = (r.kernel.put(part[order]) for part in (rows - r.start, columns, weights))
        return Terms(alpha, r.dangling, base, *entries)


@dataclass(eq=False)
class _Seat:
    """Vector that occupies a column of the pass."""

    number: int
    column: int
    mass: float = 0.0
    is_wrong: bool = False
    changes: list[float] = field(default_factory=list)
    status: Status | None = None
    """Status at the end; None before that."""


class Batch(Execution):
    """Iteration of all vectors to their ends, pass by pass.

    Parameters
    ----------
    rows : of this process
    queries : the vectors, with those of their entries that are in these rows
    width : most vectors in a pass
    panels : of all processes that make the same passes
    order : (n_rows,) source's number of each row, ascending where it is None; only `top` needs it
    keep : takes the result of each finished vector
    is_full : whether enough results are waiting for `advance` to end early

    Attributes
    ----------
    iteration : passes over the matrix with a step in each, so far
    first_bytes : bytes of the matrix and of the first pass, after `start`
    seconds : of phases other than products and exchanges
    """

    def __init__(
        self,
        rows: ManyRows,
        queries: Sequence[Query],
        task: BatchTask,
        width: int,
        panels: GatheringExchange,
        order: np.ndarray | None,
        keep: Keep,
        is_full: Callable[[], bool] = lambda: False,
    ) -> None:
        self._rows, self._queries, self._task, self._options = rows, queries, task, task.options
        self._panels, self._keep, self._is_full = panels, keep, is_full
        self._numbers = None if order is None or task.top is None else rows.kernel.put(order)
        self._n_dangling = rows.n_dangling
        self._x_dtype = np.dtype(np.float32 if task.options.precision == "float32" else np.float64)
        self._residual_width = min(width, RESIDUAL_WIDTH)
        self._waiting = deque(range(len(queries)))
        self._seats: list[_Seat] = []
        self._left: list[_Seat] = []
        self._wide: Pass | None = None
        self._endings: dict[int, Ending] = {}
        self._width, self.iteration = width, 0
        self.seconds = dict.fromkeys(("compile", "enter", "residual", "keep"), 0.0)
        self.first_bytes = 0

    def start(self) -> None:
        with self._time("compile"):
            widths, is_relative = narrow_widths(self._width), self._options.is_relative
            self._rows.kernel.compile_many(widths, self._residual_width, is_relative=is_relative)
        with self._time("enter"):
            own = np.append(self._sum_dangling(), self._n_dangling)
            *masses, self._n_dangling = sum(self._panels.gather(own), np.zeros_like(own)).tolist()
            if not len(self._rows.dangling):
                self._waiting = deque(order_by_iterations([query.alpha for query in self._queries], masses))
            self._pass = Pass(self._rows, self._panels, self._width, self._x_dtype)
            self._seat_waiting()
        self.first_bytes = self.held_bytes

    def _sum_dangling(self) -> np.ndarray:
        """Return p of each vector over the dangling vertices of these rows, (len(queries),) int64 in fixed point."""
        kernel, queries = self._rows.kernel, self._queries
        sums = np.array([int(query.base * FIXED_POINT) * self._n_dangling for query in queries], np.int64)
        rows = np.concatenate([query.rows for query in queries]) - self._rows.start
        weights = np.concatenate([query.weights for query in queries])
        numbers = np.repeat(np.arange(len(queries)), [len(query.rows) for query in queries])
        is_dangling = kernel.get(self._rows.weight[kernel.put(rows)]) == 0
        np.add.at(sums, numbers, np.where(is_dangling, weights * FIXED_POINT, 0.0).astype(np.int64))
        return sums

    @property
    def status(self) -> Status | None:  # type: ignore[override]
        """Completed when all vectors have ended and their results were passed to `keep`; None before that."""
        return None if self._seats else Status.COMPLETED

    def describe(self) -> str:
        return self._rows.kernel.describe()

    def collect(self) -> Collected:
        endings = [self._endings[k] for k in range(len(self._queries))]
        return Collected(endings, seconds=self.seconds, width=self._width)

    @property
    def held_bytes(self) -> int:
        """Bytes of the matrix and of the pass."""
        return int(self._rows.kernel.block.nbytes + self._pass.nbytes)

    @property
    def n_ended(self) -> int:
        """Vectors that have ended."""
        return len(self._queries) - len(self._waiting) - len(self._seats)

    def advance(self, n: int | None = None) -> Iterator[Event]:
        """Make n passes or fewer, up to the end; yield the event of each step, with the largest change of a vector."""
        last = math.inf if n is None else self.iteration + n
        while self._seats and self.iteration < last and not self._is_full():
            self.iteration += 1
            event = self._step()
            for seat in self._seats:
                made = self._task.threshold, len(seat.changes), seat.changes[-1]
                seat.status = self._options.check_status(*made, is_wrong=seat.is_wrong)
            self._release([seat for seat in self._seats if seat.status is not None])
            if not self._seats:
                self._bound_errors()
            yield event

    def _step(self) -> Event:
        mass = np.zeros(self._pass.width)
        for seat in self._seats:
            mass[seat.column] = seat.mass
        sums, times = self._pass.step(mass, is_relative=self._options.is_relative)
        for seat in self._seats:
            own = sums[seat.column]
            seat.mass, seat.is_wrong = own.dangling / FIXED_POINT, seat.is_wrong or own.n_wrong > 0
            seat.changes.append(self._options.measure(own))
        greatest = max(seat.changes[-1] for seat in self._seats)
        times = replace(times, memory_bytes=(self.held_bytes,))
        return Event(self._task.run, 0, self.iteration, greatest, **vars(times))

    # --- entering and leaving ---

    def _release(self, ended: Sequence[_Seat]) -> None:
        """Take the ranks of finished vectors, and fill their columns or narrow the pass."""
        if not ended:
            return
        rest = deque(ended)
        while rest:
            some = [rest.popleft() for _ in range(min(len(rest), self._residual_width - len(self._left)))]
            with self._time("residual"):
                columns, free = np.array([seat.column for seat in some]), len(self._left)
                self._pass.take(columns, self._find_wide().x[:, free : free + len(some)].T)
            self._left += some
            if len(self._left) == self._residual_width:
                self._bound_errors()
        self._seats = [seat for seat in self._seats if seat.status is None]
        with self._time("enter"):
            if self._waiting:
                self._seat_waiting()
            elif self._seats and fit_width(len(self._seats)) < self._pass.width:
                self._narrow(fit_width(len(self._seats)))
            # A free column continues with the vector that left it; its results are not read.

    def _seat_waiting(self) -> None:
        """Assign waiting vectors to free columns."""
        taken = {seat.column for seat in self._seats}
        free = [c for c in range(self._pass.width) if c not in taken][: len(self._waiting)]
        new = [_Seat(self._waiting.popleft(), column) for column in free]
        queries = [self._queries[seat.number] for seat in new]
        shares = [1.0 - query.alpha if self._task.drops else 1.0 for query in queries]
        self._pass.enter_at_jump(np.array(free), queries, shares)
        sums = self._pass.scale()
        for seat in new:
            own = sums[seat.column]
            seat.mass, seat.is_wrong = own.dangling / FIXED_POINT, own.n_wrong > 0
        self._seats += new

    def _narrow(self, width: int) -> None:
        """Continue in a pass of fewer columns."""
        x = self._rows.kernel.zeros_many(self._rows.stop - self._rows.start, width, self._x_dtype)
        self._pass.take(np.array([seat.column for seat in self._seats]), x[:, : len(self._seats)].T)
        del self._pass  # before the next one is made, so that both are never in memory
        self._pass = Pass(self._rows, self._panels, width, self._x_dtype, x)
        for column, seat in enumerate(self._seats):
            seat.column = column
        queries = [self._queries[seat.number] for seat in self._seats]
        self._pass.enter(np.arange(len(self._seats)), queries)
        self._pass.scale()

    # --- errors ---

    def _bound_errors(self) -> None:
        """Bound the errors of the vectors that have left, and pass their results to `keep`."""
        if not self._left:
            return
        with self._time("residual"):
            bounds = self._find_bounds()
        with self._time("keep"):
            for seat, bound in zip(self._left, bounds, strict=True):
                assert seat.status is not None
                self._endings[seat.number] = Ending(seat.status, tuple(seat.changes), bound)
            ended, kernel, top = tuple(seat.number for seat in self._left), self._rows.kernel, self._task.top
            vectors, vertices = self._find_wide().x[:, : len(ended)].T, None
            if top is None:
                ranks = kernel.get(vectors)
            else:
                vertices, ranks = kernel.select_highest(vectors, top, self._numbers)
                vertices = vertices if self._numbers is not None else vertices + self._rows.start
            self._keep(FinishedVectors(ended, ranks, vertices))
        self._left = []

    def _find_wide(self) -> Pass:
        """Return the pass in which errors are bounded, whose first columns are the ranks of the vectors that left."""
        if self._wide is None:
            wide = replace(self._rows, kernel=self._rows.kernel.with_precision("float64"))
            self._wide = Pass(wide, self._panels, self._residual_width, self._x_dtype)
        return self._wide

    def _find_bounds(self) -> list[float]:
        wide, queries = self._find_wide(), [self._queries[seat.number] for seat in self._left]
        wide.enter(np.arange(len(queries)), queries)
        wide.scale()
        mass = np.zeros(self._residual_width)
        mass[: len(queries)] = [seat.mass for seat in self._left]
        residuals = wide.residual(mass)[: len(queries)]
        rounding = bound_mass_rounding(self._n_dangling)
        bounds = [bound_error(r + q.alpha * rounding, q.alpha) for q, r in zip(queries, residuals, strict=True)]
        is_wrong = [seat.status == Status.NON_FINITE for seat in self._left]
        return [math.inf if wrong else bound for wrong, bound in zip(is_wrong, bounds, strict=True)]

    @contextmanager
    def _time(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - began


def order_by_iterations(alphas: Sequence[float], masses: Sequence[int]) -> list[int]:
    """Return the numbers of vectors in the order of the iterations that they are expected to take, most first, so that
    few vectors are left at the end.

    A step shrinks the error by alpha times the share of rank that returns to p, where dangling vertices pass it on to
    p; if p is on these alone, it is the solution.

    Parameters
    ----------
    masses : p of each vector over all dangling vertices, in fixed point

    Examples
    --------
    >>> from mgspmv.model import FIXED_POINT
    >>> from mgspmv.solvers.batch import order_by_iterations
    >>> half = int(0.5 * FIXED_POINT)
    >>> order_by_iterations([0.85, 0.85, 0.9, 0.85], [int(FIXED_POINT), 0, 0, half])
    [3, 2, 1, 0]
    """
    shares = np.array(masses) / FIXED_POINT
    rates = np.where(shares > 1.0 - 1e-9, 0.0, np.array(alphas) * np.maximum(shares, LEAST_RETURNED))
    return np.argsort(-rates, kind="stable").tolist()  # type: ignore[no-any-return]


def count_bytes(panels: GatheringExchange, n_rows: int, precision: str, z_itemsize: int, width: int) -> int:
    """Count bytes of vectors that a batch of this width holds where kernels compute: for each row x of the pass, two
    copies of the ranks whose errors are bounded, the out-weight, and buffers of selection; z, also in float64."""
    rank, bounded = 4 if precision == "float32" else 8, min(width, RESIDUAL_WIDTH)
    of_row = width * rank + bounded * 2 * rank + 8 + KEEP_BYTES
    return n_rows * of_row + panels.n_elements * (width * z_itemsize + bounded * 8)


def choose_width(
    asked: int | None, n_vectors: int, fastest: int, memories: Sequence[tuple[int, dict[int, int]]], where: str = ""
) -> int:
    """Choose the requested width; else the fastest, or the widest that fits in memory.

    Parameters
    ----------
    memories : of each kind the free bytes, and the bytes that a pass needs by width
    where : suffix of messages that names the worker
    """
    chosen = fit_width(n_vectors)
    if asked is not None:
        return min(asked, chosen)
    chosen = min(chosen, fastest)
    for free_bytes, needed in memories:
        share = int(MEMORY_SHARE * free_bytes)
        fitting = [w for w in WIDTHS if w <= chosen and needed[w] <= share]
        if not fitting:
            raise CapacityError(
                f"a pass of {WIDTHS[0]} vectors needs {needed[WIDTHS[0]]:,} bytes{where}, but may take {share:,}, half "
                f"of the free memory per process; free some, use more workers, or pass width={WIDTHS[0]} to take more"
            )
        chosen = fitting[-1]
    return chosen
