"""Options of PageRank and of power iteration: tolerances, and the criterion by which a run stops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from mgspmv.errors import OptionError
from mgspmv.kernels.catalogue import Backend
from mgspmv.kernels.select import choose_backend
from mgspmv.model import CHANGE_POINT, ChangeNorm, Normalization, Precision, Status, StepSums, check_choice
from mgspmv.partition import parse_bytes

DEFAULT_TOL = 1e-6
STABLE_TOL = 1e-10
"""Default `tol` with `stop="topk:..."`: the run continues while more iterations may separate two vertices."""
STALL = 20
"""Number of last changes that decide whether changes still shrink."""


@dataclass(frozen=True, kw_only=True)
class StopOptions:
    """Criterion by which an iteration stops, checked."""

    tol: float | None = None
    """Change below which the run stops; None for the default. Must be None for `fixed`."""
    norm: ChangeNorm = "l1"
    """Norm of the change: `l1` sum of |x' - x| < tol; `l1_per_node` sum < n * tol, as NetworkX; `linf` largest
    |x' - x| < tol; `relative` largest |x' - x| / |x'| < tol, 0 where x' is 0; `fixed` makes exactly max_iter
    iterations."""
    max_iter: int = 100
    """Maximum number of iterations."""

    def __post_init__(self) -> None:
        check_choice("norm", self.norm, ("l1", "l1_per_node", "linf", "relative", "fixed"))
        if not hasattr(self.max_iter, "__index__") or self.max_iter < 1:
            raise OptionError(f"max_iter must be an integer of at least 1, not {self.max_iter!r}")
        if self.norm == "fixed" and self.tol is not None:
            raise OptionError("norm='fixed' makes max_iter iterations and has no tolerance; leave out tol=")
        if self.tol is not None and not (_is_real(self.tol) and 0 < float(self.tol) < math.inf):
            raise OptionError(f"tol must be a positive number, not {self.tol!r}; norm='fixed' needs no tolerance")
        # Plain numbers, as results of a NumPy float32 would be float32.
        object.__setattr__(self, "max_iter", int(self.max_iter))
        if self.tol is not None:
            object.__setattr__(self, "tol", float(self.tol))

    def check_status(self, threshold: float, iteration: int, change: float, *, is_wrong: bool = False) -> Status | None:
        """Return the status of a run that ends after `iteration` iterations with this change; None if it continues."""
        is_fixed = self.norm == "fixed"
        if is_wrong:
            return Status.NON_FINITE
        if not is_fixed and change < threshold:
            return Status.CONVERGED
        if iteration < self.max_iter:
            return None
        return Status.COMPLETED if is_fixed else Status.MAX_ITER


@dataclass(frozen=True, kw_only=True)
class PageRankOptions(StopOptions):
    """Checked options of a PageRank run."""

    alpha: float = 0.85
    """Damping factor, 0 <= alpha < 1."""
    precision: Precision = "exact"
    """Arithmetic: `exact`, `float64` or `float32`."""
    stop: str = "change"
    """Stopping criterion: `change`, or `topk:100`, which also stops when the 100 highest vertices are proven."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("precision", self.precision, ("exact", "float64", "float32"))
        if not _is_real(self.alpha) or not 0 <= self.alpha < 1:
            raise OptionError(f"alpha must be at least 0 and less than 1, not {self.alpha!r}")
        if self.top is not None and self.norm == "fixed":
            raise OptionError(
                f"norm='fixed' makes max_iter iterations, stop={self.stop!r} may end earlier; leave out one of them"
            )
        object.__setattr__(self, "alpha", float(self.alpha))

    @property
    def is_relative(self) -> bool:
        """True if changes are relative to the new ranks."""
        return self.norm == "relative"

    @property
    def by_largest(self) -> bool:
        """True if the change is the maximum over vertices, and not the sum."""
        return self.norm in ("linf", "relative")

    @property
    def top(self) -> int | None:
        """Number of highest vertices to be proven; None where the run stops by the change alone.

        Raises
        ------
        OptionError : `stop` is neither `change` nor `topk:` and a number
        """
        if self.stop == "change":
            return None
        kind, _, number = self.stop.partition(":") if isinstance(self.stop, str) else ("", "", "")
        if kind != "topk" or not (number.isascii() and number.isdecimal()) or int(number) < 1:
            raise OptionError(f"stop must be 'change', or 'topk:100' with any number of vertices, not {self.stop!r}")
        return int(number)

    def check_top(self, n: int) -> int | None:
        """Return `top`, checked against n vertices."""
        if self.top is not None and self.top >= n:
            raise OptionError(
                f"stop={self.stop!r} requests the {self.top} highest of {n} vertices; pass less than {n}, or "
                "stop='change'"
            )
        return self.top

    def choose_tol(self, n: int, nnz: int) -> float | None:
        """Return `tol`, or its default: 1e-6; with `topk` 1e-10, or the change that every graph reaches."""
        if self.tol is not None or self.norm == "fixed":
            return self.tol
        if self.top is None:
            return DEFAULT_TOL
        return max(STABLE_TOL, self._sure_change(n, nnz)) / (n if self.norm == "l1_per_node" else 1)

    def threshold(self, n: int, nnz: int) -> float:
        """Return the change, in the norm of the run (`l1` for `l1_per_node`), below which the run has converged.

        Raises
        ------
        OptionError : any two distributions are closer than that, or rounding alone is larger; as for `check_top`
        """
        self.check_top(n)
        tol, per_node = self.choose_tol(n, nnz), n if self.norm == "l1_per_node" else 1
        if tol is None:
            return 0.0
        most = 1.0 if self.by_largest else 2.0  # of two distributions; for `relative` that of an increasing rank
        least, sure = self._least_change(n, nnz), self._sure_change(n, nnz)
        self._check_reach(tol, n, most / per_node, least / per_node, sure / per_node)
        return tol * per_node

    def measure(self, sums: StepSums) -> float:
        """Return |x' - x| in the norm of the run; the sum for `l1_per_node` and `fixed`."""
        return (sums.change_linf if self.by_largest else sums.change_l1) / CHANGE_POINT

    def _least_change(self, n: int, nnz: int) -> float:
        """Return the change caused by rounding alone: half a unit in the last place of the ranks, which sum to 1, or of
        each for `relative`.

        In `exact` also of the edges' contributions, each off by at most 2^-63 with independent signs.
        """
        unit = 2.0**-24 if self.precision == "float32" else 2.0**-53
        rounding = max(unit, math.sqrt(nnz) * 2.0**-63) if self.precision == "exact" else unit
        return rounding / n if self.norm == "linf" else rounding

    def _sure_change(self, n: int, nnz: int) -> float:
        """Bound the change that every graph reaches: if rounding moves a step by D in L1, it is 2 D / (1 - alpha).

        D counts the roundings of z, of each row's sum (of at most min(n, nnz) terms) and of the update. For `relative`
        it is relative to (1 - alpha) / n, the smallest rank with uniform personalization.
        """
        moved = {
            "float32": 4 * 2.0**-24,
            "float64": (min(n, nnz) + 8) * 2.0**-53,
            "exact": (n + nnz) * 2.0**-63 + 8 * 2.0**-53,
        }[self.precision]
        reached = 2.0 * moved / (1.0 - self.alpha)
        return reached * n / (1.0 - self.alpha) if self.is_relative else reached

    def advise(self, status: Status, changes: Sequence[float], n: int, nnz: int) -> str:
        """Return advice in one sentence for a run that ended with these changes.

        Without rounding, changes shrink at least by alpha in each iteration. Where they shrink less than half as fast
        over the last ones, and are within the bound of rounding, more iterations would not help.
        """
        span = min(STALL, len(changes) - 1)
        if status != Status.MAX_ITER or span < STALL // 2:
            return status.advice
        last = max(changes[-span // 2 :])
        if last > self._sure_change(n, nnz) or last <= self.alpha ** (span / 2) * changes[-1 - span]:
            return status.advice
        tol = 2 * last / (n if self.norm == "l1_per_node" else 1)
        finer = "precision='exact' or 'float64', or " if self.precision == "float32" else ""
        return (
            f"The change stays near {last:.2g} because of rounding with precision={self.precision!r}: pass {finer}"
            f"tol={tol:.1g}; more iterations do not help"
        )

    def _check_reach(self, tol: float, n: int, most: float, least: float, sure: float) -> None:
        said = f"tol={tol:g} with norm={self.norm!r}"
        if tol >= most:
            other = ", or norm='l1'" if self.norm == "l1_per_node" else ""
            whose = "increase of ranks" if self.is_relative else f"ranks of {n} vertices"
            raise OptionError(f"{said} is met by any {whose}; pass less than {most:g}{other}")
        if tol < least:
            other = ", or precision='exact'" if self.precision == "float32" else ""
            reason = f"is below the rounding of precision={self.precision!r} on {n} vertices"
            where = " where personalization is uniform" if self.is_relative else ""
            remedy = f"{sure:.2g}, which is always reached{where}" if 1.05 * sure < most else "more, or a smaller alpha"
            raise OptionError(f"{said} {reason}; pass {remedy}{other}")


@dataclass(frozen=True, kw_only=True)
class PowerOptions(StopOptions):
    """Stopping criterion and normalization of an iteration, checked."""

    normalize: Normalization = "none"
    """Norm that each x' is divided by: sum of absolutes (`l1`), Euclidean norm (`l2`) or largest absolute (`max`)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("normalize", self.normalize, get_args(Normalization))
        if self.norm == "relative" and self.tol is not None and self.tol >= 1:
            raise OptionError(f"tol={self.tol:g} with norm='relative' is met by any growing elements; pass less than 1")

    def threshold(self, n: int) -> float:
        """Return the change over n elements below which the iteration has converged; 0 for `fixed`."""
        if self.norm == "fixed":
            return 0.0
        tol = DEFAULT_TOL if self.tol is None else self.tol
        return tol * n if self.norm == "l1_per_node" else tol


@dataclass(frozen=True)
class Task:
    """Task of PageRank, except its vectors."""

    run: str
    """Run id."""
    options: PageRankOptions
    threshold: float
    """Threshold of the change, from `PageRankOptions.threshold`."""
    dtype: str | None = None
    """Dtype of the values; None for a pattern."""
    threads: int | None = None
    """Threads of each process; None for its default."""


@dataclass(frozen=True)
class RankTask(Task):
    """Task of a run that ranks one vector, except its start."""

    kernel: str = "auto"
    """Name of a kernel, or `auto`."""


def describe_end(status: Status, n_iterations: int, change: float, tol: float | None, norm: ChangeNorm) -> str:
    """Describe the end of a run that did not converge, with its last change and the tolerance."""
    after = f"after {n_iterations} iteration{'' if n_iterations == 1 else 's'}"
    if status == Status.NON_FINITE:
        return f"NaN or infinite values {after}"
    unit = " per node" if norm == "l1_per_node" else ""
    return f"{_CHANGES[norm]} {change:.3g} {after} (tol {DEFAULT_TOL if tol is None else tol:.3g}{unit})"


_CHANGES = {"l1": "L1 change", "l1_per_node": "L1 change", "linf": "largest change", "relative": "relative change"}


def _is_real(value: object) -> bool:
    return isinstance(value, Real)


Executor = Literal["auto", "embedded", "tasks", "supersteps"]
TransportChoice = Literal["auto", "nccl", "peer"]
BackendChoice = Literal["auto", "cpu", "cuda"]


class MemoryLimits(NamedTuple):
    """Most bytes to take of each memory; None for no limit, or for no device."""

    device: int | None = None
    host: int | None = None


@dataclass(frozen=True)
class Placement:
    """Place where a matrix computes, and how; set by `Matrix.on`, `Matrix.distribute` and `DistributedMatrix.on`.

    Raises
    ------
    OptionError : an invalid option, or one that does not suit the others
    """

    client: Any = None
    """Client, cluster or address to distribute the matrix on for each call; None where it computes as it is."""
    is_distributed: bool = False
    """Whether workers of a cluster hold the matrix."""
    backend: BackendChoice = "auto"
    """Backend of this process or, with `client`, of its workers."""
    kernel: str = "auto"
    threads: int | None = None
    executor: Executor = "auto"
    device_memory: str | int | None = None
    host_memory: str | int | None = None
    transport: TransportChoice = "auto"
    timeout: float = 30.0
    recover: int = 5

    def __post_init__(self) -> None:
        check_threads(self.threads)
        check_choice("backend", self.backend, ("auto", "cpu", "cuda"))
        check_choice("executor", self.executor, ("auto", "embedded", "tasks", "supersteps"))
        check_choice("transport", self.transport, ("auto", "nccl", "peer"))
        if not isinstance(self.recover, int | np.integer) or isinstance(self.recover, bool) or self.recover < 0:
            raise OptionError(f"recover must be an integer of 0 or more, not {self.recover!r}")
        if self.is_on_cluster and self.executor == "embedded":
            raise OptionError(
                "executor='embedded' computes in this process, not on workers; leave it out, or use the opened matrix "
                "without a cluster"
            )
        if not self.is_on_cluster and self.executor in ("tasks", "supersteps"):
            raise OptionError(
                f"executor={self.executor!r} needs a cluster; pass one as where=, or use a matrix of distribute()"
            )
        if not self.is_on_cluster and self.transport != "auto":
            raise OptionError("transport= applies to the workers of a cluster; pass one as where=")
        if self.is_limited and not self.is_on_cluster and self.backend == "cpu":
            raise OptionError(
                "device_memory= and host_memory= limit what a run on CUDA or on a cluster takes; leave them out with "
                "backend='cpu'"
            )

    @property
    def is_on_cluster(self) -> bool:
        """True if workers of a cluster compute."""
        return self.is_distributed or self.client is not None

    @property
    def computes(self) -> Backend:
        """Backend of this process; `cpu` where workers compute.

        Raises
        ------
        BackendError, MissingDependencyError : CUDA cannot be used here
        OptionError : memory of a device is limited, and this process computes on its host
        """
        backend = "cpu" if self.is_on_cluster else choose_backend(self.backend)
        if self.is_limited and backend == "cpu" and not self.is_on_cluster:
            raise OptionError(
                "device_memory= and host_memory= limit what a run on CUDA takes, and this process computes on its "
                "host; leave them out"
            )
        return backend

    @property
    def is_limited(self) -> bool:
        """True if a limit of memory is given."""
        return self.device_memory is not None or self.host_memory is not None

    @property
    def limits(self) -> MemoryLimits:
        """Most bytes to take, by memory."""
        return MemoryLimits(
            parse_size("device_memory", self.device_memory), parse_size("host_memory", self.host_memory)
        )

    @property
    def chosen_executor(self) -> Executor:
        """The executor; of `auto` the default of the place."""
        if self.executor == "auto":
            return "supersteps" if self.is_on_cluster else "embedded"
        return self.executor


@dataclass(frozen=True)
class Reads:
    """Parts of a matrix that workers read when it is distributed, and uses that they reserve memory for."""

    precision: Precision | None = None
    """Precision for which values are read; None for the default of most runs."""
    weights: bool = True
    """Whether values are read."""
    top: int | None = None
    """Number of highest vertices to be proven; None for none."""
    checkpoint: bool = False
    """Whether checkpoints of the ranks are written."""
    build_layout: bool = True
    """Whether devices are to build the layout for the steps of PageRank on a graph."""


def parse_size(name: str, size: str | int | None) -> int | None:
    """Parse the size in bytes of an argument; None stays None."""
    return None if size is None else parse_bytes(size, name)


def check_threads(threads: int | None) -> None:
    """Raise `OptionError` unless `threads` is None or an integer of at least 1."""
    if threads is not None and not isinstance(threads, int | np.integer):
        raise OptionError(f"threads must be an integer, not {threads!r}")
    if threads is not None and threads < 1:
        raise OptionError(f"threads must be at least 1, not {threads}")
