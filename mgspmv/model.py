"""Data classes and enums that are shared by the modules of mgspmv."""

from __future__ import annotations

import enum
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from mgspmv.environment import find_available_memory, find_free_memory
from mgspmv.errors import OptionError, ShapeError, hide_secrets, shorten
from mgspmv.ingest_report import IngestReport
from mgspmv.validation import check_fields

Kind = Literal["graph", "matrix", "stochastic"]
Duplicates = Literal["sum", "first", "keep", "error"]
SelfLoops = Literal["keep", "drop", "error"]
OrderMethod = Literal["rcm", "degree", "dealt", "none"]
Precision = Literal["exact", "float64", "float32"]
ChangeNorm = Literal["l1", "l1_per_node", "linf", "relative", "fixed"]
Normalization = Literal["none", "l1", "l2", "max"]
Progress = Callable[[str, int, int | None], None]
"""Callback that takes (phase, done, total or None)."""

INT32_LIMIT = 2**31
INT64_LIMIT = 2**63


def index_dtype(n_cols: int) -> np.dtype[Any]:
    """Return the dtype of column indices: int32 if they fit, else int64."""
    return np.dtype(np.int32 if n_cols < INT32_LIMIT else np.int64)


@dataclass(frozen=True)
class IngestOptions:
    """Options of an ingest, as arguments of `mgspmv.ingest`. None stands for the default of the source."""

    kind: Kind | None = None
    duplicates: Duplicates | None = None
    self_loops: SelfLoops = "keep"
    symmetrize: bool = False
    weights: bool | str | None = None
    transpose: bool = False
    dtype: Literal["int64", "float32", "float64"] | None = None
    order: OrderMethod = "none"

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, ("graph", "matrix", "stochastic", None))
        check_choice("duplicates", self.duplicates, ("sum", "first", "keep", "error", None))
        check_choice("self_loops", self.self_loops, ("keep", "drop", "error"))
        check_choice("dtype", self.dtype, ("int64", "float32", "float64", None))
        check_choice("order", self.order, get_args(OrderMethod))


STOCHASTIC_TOLERANCE = 1e-6
"""Largest difference from 1 of the column sums of a left-stochastic matrix."""


@dataclass(frozen=True)
class CooBatch:
    """Entries as their source gives them: `values[k]` at (`rows[k]`, `cols[k]`), or the arc rows[k] -> cols[k]."""

    rows: np.ndarray
    """int32 or int64, shape (k,)."""
    cols: np.ndarray
    """int32 or int64, shape (k,)."""
    values: np.ndarray | None
    """Any real dtype, shape (k,); None for a pattern."""


@dataclass(frozen=True)
class CsrBlock:
    """Rows `row_offset` .. `row_offset + n_rows` of a matrix, in memory: NumPy's arrays, or CuPy's on a device."""

    row_offset: int
    """Global index of the block's first row."""
    n_cols: int
    """Number of columns of the whole matrix."""
    indptr: np.ndarray
    """int64, on a device also int32; shape (n_rows + 1,), starting at 0."""
    indices: np.ndarray
    """int32 or int64, shape (nnz,), global columns, sorted in each row."""
    data: np.ndarray | None
    """float32 or float64, shape (nnz,); None for a pattern, whose entries are all 1."""

    def __post_init__(self) -> None:
        dtypes = (np.int64,) if isinstance(self.indptr, np.ndarray) else (np.int64, np.int32)
        if self.indptr.dtype not in dtypes or self.indptr.ndim != 1 or not len(self.indptr):
            raise ShapeError("indptr must be a one-dimensional int64 array of n_rows + 1 entries")
        first, last = int(self.indptr[0]), int(self.indptr[-1])  # to compare arrays, CuPy imports more libraries
        if first != 0 or last != len(self.indices):
            raise ShapeError(
                f"indptr must run from 0 to the {len(self.indices)} indices of the block, "
                f"it runs from {first} to {last}"
            )
        if self.data is not None and len(self.data) != len(self.indices):
            raise ShapeError(f"the block has {len(self.indices)} indices and {len(self.data)} values")

    @property
    def n_rows(self) -> int:
        return len(self.indptr) - 1

    @property
    def nnz(self) -> int:
        return len(self.indices)

    @property
    def nbytes(self) -> int:
        """Bytes of the block's arrays."""
        return self.indptr.nbytes + self.indices.nbytes + (0 if self.data is None else self.data.nbytes)


@dataclass(frozen=True)
class MatrixInfo:
    """Information of a store about its matrix, read without loading the matrix.

    Examples
    --------
    >>> import mgspmv as mg
    >>> info = mg.ingest(([0, 1, 2], [1, 2, 0]), "web.zarr").info
    >>> info.kind, info.shape, info.nnz, info.is_pattern
    ('graph', (3, 3), 3, True)
    >>> info.digest == mg.open("web.zarr").info.digest
    True
    """

    url: str
    """Local path or URL of the store."""
    kind: Kind
    """Meaning of rows: in a `graph`, row i holds the in-edges of vertex i."""
    shape: tuple[int, int]
    """(n_rows, n_cols)."""
    nnz: int
    """Number of stored entries."""
    dtype: Literal["int64", "float32", "float64"] | None
    """Dtype of the stored values; None for a pattern."""
    index_dtype: Literal["int32", "int64"]
    """Dtype of the column indices."""
    duplicates: Duplicates
    """Rule for duplicate entries, applied when the store was created and to each update."""
    vertex_ids: Literal["int64", "string"] | None
    """Dtype of the stored vertex ids; None when they are 0..n-1."""
    min_weight: float | None
    """Least stored value; None for a pattern or an empty matrix."""
    has_transpose: bool
    """Whether the store holds the transpose too."""
    version: str
    """Name of the group of this version."""
    format_version: int
    """Version of the storage format."""
    digest: str
    """SHA-256 over the arrays' digests: same matrix, same digest; empty for a matrix that is not in a store."""
    nbytes: int
    """Bytes of the arrays, uncompressed."""
    order: OrderMethod | None = None
    """Method that renumbered the stored rows and columns, such as `rcm`; None if in the order of the source."""
    created: str | None = None
    """Time at which the version was written, UTC in ISO 8601; None for versions written before it was recorded."""
    provenance: dict[str, Any] = field(default_factory=dict)
    """Source, size, checksum, options, program version, time."""

    @classmethod
    def from_json(cls, values: Any, url: str) -> MatrixInfo:
        """Return the information in the attributes of a version.

        Raises
        ------
        KeyError, TypeError, ValueError : a field is missing, or has the wrong type or range
        """
        own = values | {"url": url, "shape": tuple(values["shape"])}
        info = check_fields(cls, own)
        for name, value in vars(info).items():
            is_finite = not isinstance(value, float) or math.isfinite(value)
            if repr(own.get(name, value)) != repr(value) or not is_finite:  # pydantic converts "1", 1.0, True to 1
                raise ValueError(f"{name} is {shorten(repr(own[name]))}")
        n_rows, n_cols = info.shape
        for size in (n_rows, n_cols, info.nnz, info.nbytes, info.format_version):
            if not 0 <= size < INT64_LIMIT:
                raise ValueError(f"a number of rows, columns, entries or bytes, or of the format, is {size}")
        if n_rows != n_cols and (info.kind != "matrix" or info.order is not None or info.vertex_ids is not None):
            what = "a matrix with ids or an order" if info.kind == "matrix" else f"a {info.kind}"
            raise ValueError(f"the shape is {n_rows} x {n_cols}, and {what} must be square")
        if info.index_dtype == "int32" and n_cols > INT32_LIMIT:
            raise ValueError(f"int32 indices cannot address {n_cols} columns")
        str(info.ingest_report)  # formats, and so checks, every field
        return info

    @property
    def is_pattern(self) -> bool:
        """True if all entries are 1 and no values are stored."""
        return self.dtype is None

    @property
    def number(self) -> int:
        """Number of the version; later versions have higher numbers."""
        return find_version_number(self.version)

    @property
    def ingest_report(self) -> IngestReport | None:
        """Report of the ingest or generator that made the store; None for a store without a report.

        Later updates, orders and cuts do not change it; entries inserted by an update have a report in `provenance`.
        """
        report = self.provenance.get("report")
        if report is None or isinstance(report, IngestReport):  # that of a matrix in memory, which was not written
            return report
        return check_fields(IngestReport, report)

    def __repr__(self) -> str:
        return f"<MatrixInfo: {describe_entries(self)}, {self.version} of {hide_secrets(self.url)}>"

    def _repr_html_(self) -> str:
        from mgspmv.display.frames import render_card

        return render_card(self)


def describe_entries(info: MatrixInfo) -> str:
    """Describe kind, shape, entries and values in one line."""
    values = "pattern" if info.is_pattern else info.dtype
    return f"{info.kind} of shape {info.shape}, {info.nnz} entries, {values}"


def find_version_number(name: str) -> int:
    """Return the number in the name of a version or state, such as 12 for `v000012-1f0c9a2e`."""
    return int(name[1:].partition("-")[0])


class Status(enum.StrEnum):
    """Outcome of an iteration.

    Examples
    --------
    >>> import mgspmv as mg
    >>> ranks = mg.pagerank(([0, 1, 2, 2], [1, 2, 0, 1]), max_iter=2, throw=False)
    >>> ranks.status == "max_iter", ranks.status.is_success, ranks.status.advice
    (True, False, 'Increase max_iter= or tol=')
    """

    CONVERGED = "converged"
    """The change fell below the tolerance."""
    COMPLETED = "completed"
    """The fixed number of iterations was completed."""
    STABLE = "stable"
    """The set of highest vertices is proven."""
    MAX_ITER = "max_iter"
    """`max_iter` was reached first."""
    NON_FINITE = "non_finite"
    """A rank became NaN or infinite."""

    @property
    def is_success(self) -> bool:
        """True if the iteration reached its goal."""
        return self in (Status.CONVERGED, Status.COMPLETED, Status.STABLE)

    @property
    def advice(self) -> str:
        """Explanation of the outcome; after a failure, what to do about it."""
        return _ADVICE[self]


_ADVICE = {
    Status.CONVERGED: "the change fell below the tolerance",
    Status.COMPLETED: "the fixed number of iterations was completed",
    Status.STABLE: "the set of highest vertices is proven",
    Status.MAX_ITER: "Increase max_iter= or tol=",
    Status.NON_FINITE: "Check the store for non-finite or huge weights with `mgspmv verify`",
}


@dataclass(frozen=True)
class Stability:
    """Proof that k vertices are the highest ones, and ties in their order.

    Examples
    --------
    >>> import mgspmv as mg
    >>> ranks = mg.pagerank([("alice", "bob"), ("carol", "bob"), ("bob", "alice")], stop="topk:1")
    >>> ranks.status.value, ranks.stability.k, ranks.stability.is_proven
    ('stable', 1, True)
    """

    k: int
    is_proven: bool
    """Whether the k highest of the ranks reached belong to the k highest vertices."""
    gap: float
    """Difference of the ranks at places k and k + 1."""
    bound: float
    """Largest amount by which these two ranks can still approach each other."""
    ties: tuple[tuple[int, int], ...]
    """First and last place, from 1, of each run of places whose order is not proven. Place k + 1, if included, stands
    for all places after k."""


RECOVERIES = ("lost", "silent")
"""Kinds of recoveries."""


@dataclass(frozen=True)
class Recovery:
    """Recovery of a run on a cluster with other workers."""

    kind: str
    """`lost`: a worker exited or ran out of memory; `silent`: it did not answer."""
    iteration: int
    """Number of completed iterations at the failure."""
    resumed_after: int
    """Iteration that the run resumed from; later ones were repeated."""
    worker: str | None
    """Name of the lost or silent worker, if known."""
    error: str
    """Message of the error."""
    seconds: float
    """Seconds from the end of the run on the other workers to its next iteration."""
    workers_before: int
    workers_after: int


FIXED_POINT = 2.0**62
"""Scale of ranks in exact fixed point: 1.0 is 2^62, so that a sum of ranks fits an int64."""
CHANGE_POINT = 2.0**61
"""Scale of changes in fixed point: two distributions are at most 2.0 apart."""
FLOAT32_ROUNDING = 2.0**-24 * (1 + 2.0**-23)
"""Maximum rounding error of a float32 of at least 2^-126, relative to the rounded value."""
FLOAT32_LEAST_ROUNDING = 2.0**-150
"""Maximum rounding error of a float32 below 2^-126."""
RELATIVE_LIMIT = 2.0
"""Upper limit of relative changes |x' - x| / x', so that they fit; they are 0 where x' is 0."""


@dataclass(frozen=True)
class StepSums:
    """Sums of a step over rows. Blocks and workers are added exactly, so in any order."""

    change_l1: int = 0
    """Sum of |x' - x|, in units of 2^-61."""
    change_linf: int = 0
    """Largest |x' - x|, in units of 2^-61; if the run requests it, largest |x' - x| / x', see `RELATIVE_LIMIT`."""
    dangling: int = 0
    """Sum of x' over dangling vertices, in units of 2^-62."""
    n_wrong: int = 0
    """Number of ranks that are not finite or not in 0..2."""

    def __add__(self, other: StepSums) -> StepSums:
        return StepSums(
            self.change_l1 + other.change_l1,
            max(self.change_linf, other.change_linf),
            self.dangling + other.dangling,
            self.n_wrong + other.n_wrong,
        )


@dataclass(frozen=True)
class RowCheck:
    """Sums of a check of rows between two steps. Blocks and workers are added exactly."""

    total: int = 0
    """Sum of x, in units of 2^-61, modulo 2^64."""
    n_off: int = 0
    """Number of rows whose z does not match x and out-weight, or whose x is not a rank."""
    dangling: int = 0
    """Sum of x over dangling vertices, in units of 2^-62, modulo 2^64."""

    def __add__(self, other: RowCheck) -> RowCheck:
        total, dangling = self.total + other.total, self.dangling + other.dangling
        return RowCheck(total % 2**64, self.n_off + other.n_off, dangling % 2**64)

    @property
    def sum(self) -> float:
        """Sum of x."""
        return self.total / CHANGE_POINT

    @property
    def mass(self) -> float:
        """Sum of x over dangling vertices."""
        return self.dangling / FIXED_POINT


@dataclass(frozen=True)
class NonFinite:
    """First value of an iteration that became non-finite or left its range.

    Examples
    --------
    >>> import mgspmv as mg
    >>> import scipy.sparse
    >>> A = scipy.sparse.csr_array([[1e200, 0.0], [0.0, 1.0]])
    >>> ranks = mg.power_iteration(A, throw=False)
    >>> print(ranks.non_finite)
    vertex 0 became inf first, in iteration 2
    """

    vertex: int | str
    """Id of the first such vertex, in the order of the source."""
    value: float
    """NaN or infinite; for ranks in fixed point, if products leave its range, a number that is not in 0..2."""
    iteration: int
    """Iteration in which the value appeared."""

    def __str__(self) -> str:
        became = "left the range of 0 to 2" if math.isfinite(self.value) else f"became {self.value:.6g}"
        return f"vertex {self.vertex} {became} first, in iteration {self.iteration}"


@dataclass(frozen=True)
class Underflow:
    """Vertices with rank 0 although jumps, or vertices whose rank is above 0, lead to them."""

    n: int
    """Number of vertices; vertices reached only from these have rank 0 too, and are not counted."""
    first: int | str
    """Id of the first such vertex, in the order of the source."""
    resolution: float
    """Unit of the contribution of an edge near 0: contributions are multiples of it."""
    precision: Precision
    """Precision of the run."""

    def __str__(self) -> str:
        remedy = "" if self.precision == "float64" else "; pass precision='float64' to resolve them"
        return (
            f"{self.n} vertices have rank 0 by underflow, the first is {self.first}: their in-flow is below "
            f"{self.resolution:.2g}, the resolution of precision={self.precision!r}{remedy}"
        )


@dataclass(frozen=True)
class Event:
    """Measurements of one iteration. Progress, dashboard, metrics and history are all made from this one stream.

    Examples
    --------
    >>> import mgspmv as mg
    >>> ranks = mg.pagerank(([0, 1, 2, 2], [1, 2, 0, 1]))
    >>> [(event.iteration, round(event.change, 4)) for event in ranks.events[:2]]
    [(1, 0.2833), (2, 0.2408)]
    """

    run: str
    """Id of the run."""
    epoch: int
    """Number of restarts from a checkpoint so far."""
    iteration: int
    """Index of the iteration, from 1."""
    change: float
    """|x' - x| in the norm of the run."""
    product_s: tuple[float, ...]
    """Seconds in the fused step, per worker."""
    exchange_s: tuple[float, ...]
    """Seconds to exchange slices and sums, per worker."""
    wait_s: tuple[float, ...]
    """Seconds waiting for other workers' products, or for the scheduler if it runs the iterations, per worker."""
    exchanged_bytes: tuple[int, ...]
    """Bytes received, per worker."""
    memory_bytes: tuple[int, ...]
    """Bytes held for block and vectors, per worker."""


EVERY_S = 30.0
"""Default seconds between checkpoints."""


@dataclass(frozen=True)
class RunProgress:
    """Progress of a run, without its vector."""

    iteration: int
    """Number of completed iterations."""
    changes: tuple[float, ...]
    """Change in each iteration, in the norm of the run."""
    epoch: int
    """Number of restarts from a checkpoint."""
    run: str
    """Id of the run in its events."""
    identity: dict[str, Any]
    """Options and inputs that determine the vector, as JSON values; runs with equal identities have equal vectors."""
    status: str | None = None
    """Value of `Status` at the end; None while the run was in progress."""


BEGINNING = RunProgress(0, (), -1, "", {})
"""Progress of a run that does not resume from a checkpoint."""


@dataclass(frozen=True)
class Phase:
    """Progress of a phase of a call, or of the checkpoints of its run.

    Examples
    --------
    >>> import mgspmv as mg
    >>> heard = []
    >>> _ = mg.ingest(([0, 1, 2], [1, 2, 0]), progress=heard.append)
    >>> sorted({phase.name for phase in heard})
    ['number', 'read', 'sort and write']
    """

    name: str
    """Name, such as `load`; `checkpoint`, `resume` and `recover` are of a run."""
    done: int
    """Units done; of `checkpoint` and `resume` the iteration."""
    total: int | None
    """Units in all; None if unknown."""


def default_threads() -> int:
    """Return the default number of threads that read, write and compute: the processors available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory() -> int:
    """Return the bytes this process may still allocate, by the machine and by its control groups."""
    free, free_of_groups = find_available_memory(), find_free_memory()
    return free if free_of_groups is None else min(free, free_of_groups)


def ignore(*told: Any) -> None:
    """Ignore all arguments; a callback that does nothing."""


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raise OptionError unless `value` is one of `choices`."""
    if value not in choices:
        wanted = ", ".join(repr(c) for c in choices if c is not None)
        raise OptionError(f"{name} must be one of {wanted}, not {value!r}")
