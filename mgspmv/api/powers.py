"""Products with vectors, power iteration, and helpers shared by the methods built on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np

from mgspmv.api.arguments import Call, MatrixLike, Running, reads_input
from mgspmv.api.matrix import Matrix
from mgspmv.errors import ConvergenceError, OptionError, ShapeError
from mgspmv.kernels.select import choose_backend, multiply_dense
from mgspmv.logs import name_run
from mgspmv.model import ChangeNorm, Event, Normalization, Status, check_choice
from mgspmv.monitor.progress import ProgressOption
from mgspmv.order import invert, permute
from mgspmv.results import Solution
from mgspmv.solvers.options import DEFAULT_TOL, PowerOptions, Reads, describe_end
from mgspmv.solvers.power import PowerLoop, PowerTask, Products, Step, Update, compile_product
from mgspmv.solvers.run import Outcome, run
from mgspmv.solvers.steps import Times
from mgspmv.solvers.vectors import Weights, make_vector
from mgspmv.store.held import name_matrix

if TYPE_CHECKING:
    from mgspmv.cluster.matrix import DistributedMatrix

AnyUpdate = Step | Update


# --- products --------------------------------------------------------------------------------------------------------


@reads_input("matrix", predicts=False)
def spmv(
    A: MatrixLike,
    x: Any,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    y: Any = None,
    precision: Literal["float32", "float64"] | None = None,
    progress: ProgressOption = None,
) -> Any:
    """Compute y = alpha * A @ x + beta * y.

    Parameters
    ----------
    A : matrix or graph
        Matrix of shape (n_rows, n_cols), opened, distributed, or in another form of the page "Tables and arrays": a
        sparse or dense matrix as it is, others as graphs, for which this is the pull product. `A.on` sets where it is
        computed, and with which kernel. Rows that do not fit in device memory are streamed in pieces, from the host or
        the store, and are multiplied by csr-split.
    x : array
        (n_cols,) or (n_cols, k), real.
    alpha : float, default 1.0
        Factor of A @ x.
    beta : float, default 0.0
        Factor of y.
    y : array, optional
        (n_rows,) or (n_rows, k), real; needed unless beta is 0, when it is not read. It is not changed.
    precision : {"float32", "float64"}, optional
        Default float32 when both A's values and x are float32, else float64; sums are made in float64 by csr-rows and
        csr-serial, and in `precision` by the others. Of integers alone (A's values int64 or a pattern; x, alpha and,
        unless beta is 0, y and beta whole) the product is exact without it, or raises, as float64 holds all integers
        below 2^53; with `float64`, or x in float64, it is rounded.
    progress : callable or bool, optional
        Called with the `Phase` of loading where `A.on(client)` distributes A for this product.

    Returns
    -------
    (n_rows,) or (n_rows, k) of `precision`, bit-identical at each run and for any number of threads and workers.

    Raises
    ------
    ShapeError : x or y does not fit the matrix
    OptionError : complex numbers; a product of integers that may reach 2^53; an invalid option
    BackendError, MissingDependencyError : `cuda` and no device; or no CuPy
    FormatError : the kernel does not support this matrix; the message says why and names others
    CapacityError : the matrix does not fit in free memory
    ClusterError : a worker is lost, or silent for too long

    Examples
    --------
    >>> import mgspmv as mg
    >>> import scipy.sparse
    >>> A = scipy.sparse.csr_array([[1.0, 2.0], [0.0, 3.0]])
    >>> mg.spmv(A, [1.0, 1.0])
    array([3., 3.])
    >>> mg.spmv(A, [1.0, 1.0], alpha=2.0, beta=1.0, y=[10.0, 10.0])
    array([16., 16.])
    """
    if isinstance(A, Matrix):
        return A.multiply(x, alpha=alpha, beta=beta, y=y, precision=precision, progress=progress)
    return A.multiply(x, alpha=alpha, beta=beta, y=y, precision=precision)


def gemv(
    A: Any, x: Any, b: Any = None, *, kernel: str = "auto", backend: Literal["auto", "cpu", "cuda"] = "auto"
) -> np.ndarray:
    """Compute y = A x + b for a dense A in memory.

    Parameters
    ----------
    A : array
        (n_rows, n_cols), real.
    x : array
        (n_cols,), real.
    b : array, optional
        (n_rows,), real; added to the product.
    kernel : str, default "auto"
        `auto`, or `dense-rows` (a thread a row), `dense-block` (a thread block a row) or `dense-tiles` (tiles over a
        grid); their sums are made in a fixed order, the same on each backend. `auto` on the CPU is NumPy's product.
    backend : {"auto", "cpu", "cuda"}, default "auto"
        As for `spmv`.

    Returns
    -------
    (n_rows,) float32 when all operands are, else float64.

    Raises
    ------
    ShapeError : arrays that do not fit each other
    OptionError : complex numbers; no kernel of that name
    BackendError, MissingDependencyError : `cuda` and no device; or no CuPy

    Examples
    --------
    >>> import mgspmv as mg
    >>> mg.gemv([[1.0, 2.0], [0.0, 3.0]], [1.0, 1.0], b=[0.5, 0.5])
    array([3.5, 3.5])
    """
    return multiply_dense(A, x, b, kernel, choose_backend(backend))


# --- power iteration -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PowerCall(Call):
    """One call: the checked arguments of `power_iteration`, and the events of its iterations."""

    operation: str = "power iteration"
    """Name of the computation."""
    normalize: Normalization = "none"
    tol: float | None = None
    norm: ChangeNorm = "l1"
    max_iter: int = 100
    weight: bool | str | None = True
    precision: Literal["float64", "float32"] = "float64"
    throw: bool = True

    def __post_init__(self) -> None:
        check_choice("precision", self.precision, ("float64", "float32"))
        _ = self.options  # raises for invalid options, before a cluster is started
        self.check_kernel(self.operation)

    @property
    def weights(self) -> bool:
        """True if stored values are used."""
        return bool(self.weight)

    @property
    def options(self) -> PowerOptions:
        """Stopping criterion and normalization."""
        return PowerOptions(tol=self.tol, norm=self.norm, max_iter=self.max_iter, normalize=self.normalize)

    @cached_property
    def task(self) -> PowerTask:
        """Task of the run, independent of its placement."""
        options = self.options
        threshold = options.threshold(self.A.shape[0])
        return PowerTask(name_run(), options, threshold, self.precision, self.weights, self.place.threads)


@reads_input("matrix")
def power_iteration(
    A: MatrixLike,
    update: Update | None = None,
    x: Weights | None = None,
    *,
    normalize: Normalization = "none",
    **running: Unpack[Running],
) -> Solution:
    """Iterate x' = update(A x, x) with a matrix, with an optional user-defined update.

        y = A x;   x' = update(y, x) / |update(y, x)|;   stop on |x' - x|

    Parameters
    ----------
    A : matrix or graph
        Square, in any form, as for `spmv`; `A.T` too.
    update : callable, optional
        Called with (y, x), both (n,) in the order of the source and of `precision`; gives the next x before it is
        normalized. Arrays are NumPy's, or CuPy's where this process computes on a device. It may write into y, and not
        into x. Default: y, which with `normalize` is the power method.
    x : mapping, Series, sequence or array, optional
        The start, a vector as in `pagerank`, others 0; not normalized; default 1 / n everywhere.
    normalize : {"none", "l1", "l2", "max"}, default "none"
        Divisor of each x': `l1` the sum of absolute values, `l2` the Euclidean norm, `max` the largest absolute value,
        `none`. A zero vector is unchanged.
    tol : float, optional
        Tolerance: stop when the change is below it; default 1e-6.
    norm : {"l1", "l1_per_node", "linf", "relative", "fixed"}, default "l1"
        Norm of the change: `l1` sum of |x' - x| < tol; `l1_per_node` sum < n * tol; `linf` largest |x' - x| < tol;
        `relative` largest |x' - x| / |x'| < tol, 0 where x' is 0. `fixed` makes exactly max_iter iterations and takes
        no tol.
    max_iter : int, default 100
        Maximum number of iterations; a run that meets the tolerance in the last one has converged.
    weight : bool or str, default True
        None or False takes each stored entry as 1.
    precision : {"float64", "float32"}, default "float64"
        Precision of vectors and values; norms and changes are summed in float64.
    progress : callable or bool, optional
        Called with the `Event` of each iteration and with each `Phase`, as for `pagerank`.
    throw : bool, default True
        Raise an error if the tolerance was not met; False returns the solution with its status.

    Returns
    -------
    Solution with `values` of shape (n,), bit-identical at each run and for any number of threads; in supersteps the
    last bits depend on the number of workers. `error_bound_l1` is infinite: no bound is known for a user's update.

    Raises
    ------
    ShapeError : the matrix is not square; x, or the array that `update` returns, has another shape
    OptionError : an invalid option; `update` does not return an array like y
    BackendError, MissingDependencyError : `cuda` and no device; or no CuPy
    CapacityError : the matrix does not fit in free memory
    ClusterError : a worker is lost, or silent for too long
    ConvergenceError : not converged, with the `solution` attached

    Examples
    --------
    >>> import mgspmv as mg
    >>> import scipy.sparse
    >>> A = scipy.sparse.csr_array([[2.0, 1.0], [1.0, 2.0]])
    >>> mg.power_iteration(A, x={0: 1.0}, normalize="l2").values.round(4)
    array([0.7071, 0.7071])
    >>> mg.power_iteration(A, lambda y, x: 0.1 * y + 1.0).values.round(4)
    array([1.4286, 1.4286])
    """
    if update is not None and not callable(update):
        raise OptionError(f"update must be a function of (y, x), not {update!r}")
    if (norm := running.get("norm")) in ("l2", "max", "none"):
        raise OptionError(f"norm={norm!r} measures no change; pass what x is divided by as normalize={norm!r}")
    if update is not None and A.place.executor == "supersteps":
        raise OptionError(
            "executor='supersteps' makes the steps on the workers, and update is a function of whole vectors in this "
            "process; pass executor='tasks' to on() or distribute(), or leave it out"
        )
    if update is not None and A.place.is_on_cluster:
        A = copy(A)
        A.place = replace(A.place, executor="tasks")
    run = PowerCall(A, operation="power iteration", normalize=normalize, **running)
    check_vertices(run)
    start = make_start(A, "x", x, 1.0 / A.shape[0])
    with open_placement(run) as place:
        outcome = place.iterate(update or Step(), start)
    changes = [event.change for event in run.events]
    grows = normalize == "none" and len(changes) > 1 and not changes[-1] < changes[0]
    advice = dict.fromkeys((Status.MAX_ITER, Status.NON_FINITE), _GROWTH_ADVICE) if grows else {}
    return conclude(run, outcome, {"normalize": normalize}, advice)


_GROWTH_ADVICE = (
    "The last change is not smaller than the first: pass normalize='l2', or an update under which changes shrink"
)


def make_start(A: MatrixLike, name: str, given: Weights | None, default: float) -> np.ndarray:
    """Return the vector given for an argument, or one number everywhere, as (n,) float64."""
    if given is None:
        return np.full(A.shape[0], default)
    return make_vector(name, given, A.shape[0], A.vertex_ids)


def check_vertices(run: PowerCall) -> None:
    """Raise `ShapeError` unless the matrix of a run is square, and `OptionError` if it has no rows."""
    name, (n_rows, n_cols) = name_matrix(run.A.stored), run.A.shape
    if n_rows != n_cols:
        raise ShapeError(f"{name} is a matrix of {n_rows:,} x {n_cols:,}, and {run.operation} needs a square one")
    if n_rows == 0:
        raise OptionError(f"{name} has no rows, so there is nothing to iterate")


@dataclass(frozen=True)
class ProductPlacement:
    """Products of a run, in this process or on a cluster."""

    run: PowerCall
    products: tuple[Products, ...]
    """Products with each matrix, for iterations that this process makes."""
    matrices: tuple[DistributedMatrix, ...] = ()
    """Matrices on the workers of a cluster; empty where this process computes."""

    def iterate(self, update: AnyUpdate, x: np.ndarray) -> Outcome:
        """Iterate from x to the end, and publish the progress on a cluster.

        Parameters
        ----------
        update : of whole vectors in this process, or a `Step`, which can be computed anywhere
        x : (n,) float64, in the order of the source
        """
        loaded = time.perf_counter()
        iterate = self._iterate_on_cluster if self.matrices else self._iterate_here
        outcome = iterate(update, x, self.run.emit)
        self.run.count_loading(outcome, loaded)
        return outcome

    def _iterate_here(self, update: AnyUpdate, x: np.ndarray, emit: Callable[[Event], None]) -> Outcome:
        products = reduce(Products.after, self.products)
        step = update.place(products.put) if isinstance(update, Step) else update
        return run(PowerLoop(products, step, x, self.run.task), emit)

    def _iterate_on_cluster(self, update: AnyUpdate, x: np.ndarray, emit: Callable[[Event], None]) -> Outcome:
        from mgspmv.cluster.attempts import run_power
        from mgspmv.cluster.executors import list_planned
        from mgspmv.monitor.events import publish_run

        run, executor = self.run, self.run.place.chosen_executor
        assert executor in ("supersteps", "tasks")
        with publish_run(self.matrices, run.task, run.operation, executor) as news:
            emit = news.follow(emit)
            if executor == "supersteps":
                assert isinstance(update, Step)
                outcome = run_power(self.matrices, update, x, run.task, emit, news.report(run.report))
            else:
                outcome = replace(self._iterate_here(update, x, emit), transport="client")
                outcome.memory["planned_bytes"] = _sum_by_worker(self.matrices, list_planned)
            news.end(outcome.status, outcome)
        return outcome


@contextmanager
def open_placement(run: PowerCall, *others: MatrixLike) -> Iterator[ProductPlacement]:
    """Open products with the matrix of a run and others, distributed first where the run asks for it; matrices that
    were distributed for the run are released at the end of the context."""
    matrices = (run.A, *others)
    if not run.place.is_on_cluster:
        yield ProductPlacement(run, tuple(_multiply_here(A, run) for A in matrices if isinstance(A, Matrix)))
        return
    reads = Reads(run.precision, run.weights, build_layout=False)
    with ExitStack() as stack:
        held = tuple(stack.enter_context(run.distribute(reads, A)) for A in matrices)
        for D in held:
            D.check_open()
        yield ProductPlacement(run, tuple(_multiply_in_rounds(D, held, run) for D in held), held)


def _multiply_in_rounds(D: DistributedMatrix, held: Sequence[DistributedMatrix], run: PowerCall) -> Products:
    """Return the products of a matrix on a cluster, each a round of tasks.

    Parameters
    ----------
    held : all matrices of the run, for the times of an iteration, of which this process knows only their sum
    """
    held_bytes = _sum_by_worker(held, lambda matrix: matrix.held_bytes)
    n, received = len(held_bytes), len(held) * D.shape[0] * np.dtype(run.precision).itemsize
    rest = ((0.0,) * n, (0.0,) * n, (received,) * n, tuple(held_bytes))
    return Products(
        partial(D.multiply, precision=run.precision, weights=run.weights),
        partial(np.ascontiguousarray, dtype=run.precision),
        np.asarray,
        f"{len(D.workers)} workers on {'hosts' if D.backend == 'cpu' else 'devices'}",
        report_times=lambda elapsed_s, _: Times((elapsed_s,) * n, *rest),
    )


def _sum_by_worker(
    matrices: Sequence[DistributedMatrix], measure: Callable[[DistributedMatrix], Sequence[int]]
) -> list[int]:
    """Sum bytes of matrices by worker; a worker may hold rows of several, or of one."""
    sums: dict[Any, int] = {}
    for matrix in matrices:
        for member, n_bytes in zip(matrix.members, measure(matrix), strict=True):
            sums[member] = sums.get(member, 0) + n_bytes
    return list(sums.values())


def conclude(
    run: PowerCall, outcome: Outcome, asked: Mapping[str, Any], advice: Mapping[Status, str] | None = None
) -> Solution:
    """Return the solution of a run, checked; parameters and errors as in `make_solution` and `check_converged`."""
    solution = make_solution(run, outcome, run.operation, asked)
    check_converged(run, outcome.status, solution, advice)
    return solution


def make_solution(run: PowerCall, outcome: Outcome, method: str, asked: Mapping[str, Any]) -> Solution:
    """Make the solution of a run.

    Parameters
    ----------
    method : name of the computation
    asked : options specific to the method
    """
    tol = None if run.norm == "fixed" else DEFAULT_TOL if run.tol is None else float(run.tol)
    options = {"method": method, **asked, "tol": tol, "norm": run.norm, "max_iter": int(run.max_iter)}
    options |= {
        "weight": run.weights and not run.A.is_pattern,
        "precision": run.precision,
        "executor": run.place.chosen_executor,
    }
    return run.make_solution(outcome, options)


def check_converged(run: PowerCall, status: Status, solution: Any, advice: Mapping[Status, str] | None = None) -> None:
    """Raise `ConvergenceError` if a run with `throw` did not converge.

    Parameters
    ----------
    solution : attached to the error
    advice : by status, in place of the default advice of the status
    """
    if not run.throw or status.is_success:
        return
    end = describe_end(status, len(run.events), run.events[-1].change, run.tol, run.norm)
    said, wrong = (advice or {}).get(status, status.advice), solution.non_finite
    more = "" if wrong is None else f"; {wrong}"
    raise ConvergenceError(f"{run.operation} did not converge: {end}. {said}{more}", solution)


def _multiply_here(A: Matrix, run: PowerCall) -> Products:
    """Return the products of this process, with vectors in the order of the source."""
    dtype, n = run.precision, A.shape[0]
    kernel: Any = A.bind_product(dtype, weights=run.weights)
    if A.place.computes == "cpu":
        compile_product(kernel, dtype)
    there, back = (None, None) if A.order is None else (kernel.put(A.order), kernel.put(invert(A.order)))

    def multiply(x: Any) -> Any:
        y = kernel.zeros(n, dtype)
        kernel.multiply(permute(x, there), y)
        return permute(y, back)

    def put(vector: np.ndarray) -> Any:
        return kernel.put(np.ascontiguousarray(vector, dtype))

    return Products(multiply, put, kernel.get, kernel.describe(), kernel.nbytes)
