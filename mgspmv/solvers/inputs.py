"""Start vectors and out-weights of a PageRank run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mgspmv.errors import DanglingError, OptionError
from mgspmv.model import STOCHASTIC_TOLERANCE, Precision, check_choice
from mgspmv.order import permute, restore
from mgspmv.solvers.options import PageRankOptions
from mgspmv.solvers.run import MassCheck
from mgspmv.solvers.steps import Rows
from mgspmv.solvers.vectors import Weights, make_distribution, make_vector
from mgspmv.store.stored_matrix import MatrixProperties, StoredMatrix

if TYPE_CHECKING:
    from mgspmv.kernels.rank_steps import RankVectors
    from mgspmv.kernels.select import BoundKernel, BoundMany
    from mgspmv.solvers.batch import ManyRows

ROUNDING = 1e-6
"""Relative amount by which an out-weight may be less than the sum of the stored edges, as sums in float32 are."""


@dataclass(frozen=True, eq=False)
class RunInputs:
    """Start vectors over vertices; a vector of one element holds for all vertices."""

    x: np.ndarray
    """(n,) or (1,) float32 or float64: the first ranks."""
    dangling: np.ndarray
    """(n,) or (1,) float64: d, the distribution of the rank of dangling vertices."""
    personalization: np.ndarray
    """(n,) or (1,) float64: p."""
    out_weight: np.ndarray | None = None
    """(n,) float64: w given by the user; None for the stored out-weights."""
    growth: float = 1.0
    """Largest column sum of A / w, at least 1."""
    shares: tuple[float, float] = (1.0, 1.0)
    """Least (at most 1) and largest (at least 1) column sum of A / w."""

    def cut(self, start: int, stop: int) -> RunInputs:
        """Return the vectors of vertices `start` .. `stop`, as views."""
        x, d, p = (v if len(v) == 1 else v[start:stop] for v in (self.x, self.dangling, self.personalization))
        weight = None if self.out_weight is None else self.out_weight[start:stop]
        return RunInputs(x, d, p, weight, self.growth, self.shares)

    def find_balance(self, alpha: float, n: int) -> MassCheck:
        """Return the expected sum of the ranks, where these vectors are of all n vertices."""
        total = float(self.x[0]) * n if len(self.x) == 1 else float(self.x.sum(dtype=np.longdouble))
        return MassCheck(alpha, 1.0 if self.dangling.any() else 0.0, *self.shares, total, total)

    @property
    def is_counted(self) -> bool:
        """True if the out-weights of a pattern are counts."""
        return self.out_weight is None

    def take_weight(self, read: Callable[[], np.ndarray]) -> np.ndarray:
        """Return the out-weights of the vertices of these vectors: the given ones, or those that `read` returns."""
        return read() if self.out_weight is None else self.out_weight

    def bind_many(self, kernel: BoundMany, stored: OutWeights, *, use_weights: bool, has_device: bool) -> ManyRows:
        """Make the rows of a batch, whose out-weights are the given ones, or the stored ones, which a device keeps."""
        from mgspmv.solvers.batch import ManyRows

        # Received arrays are read-only, and kernels take both.
        if self.out_weight is None and has_device:
            weight = stored.put(use_weights, kernel.put)
        else:
            weight = kernel.put(np.require(self.take_weight(lambda: stored.read(use_weights)), requirements="W"))
        dangling = kernel.put(np.require(self.dangling, requirements="W"))
        return ManyRows(kernel, weight, dangling, n_dangling=int((weight == 0).sum()))

    def bind(self, kernel: BoundKernel, weight: np.ndarray) -> Rows:
        """Make the rows that the owner of a block starts with.

        Parameters
        ----------
        weight : (n_rows,) float64 out-weights of the block's vertices
        """
        # Arrays received over a network may be read-only, and steps write x.
        x = np.full(kernel.block.n_rows, self.x[0]) if len(self.x) == 1 else np.require(self.x, requirements="W")
        put = kernel.put
        vectors = (put(x), put(weight), put(self.dangling), put(self.personalization))
        return Rows(kernel, *vectors, n_dangling=int(np.count_nonzero(weight == 0)))

    def on_device(self, weight: np.ndarray) -> RankVectors:
        """Make the start of a device that has the whole matrix; weight as for `bind`, of all vertices."""
        from mgspmv.kernels.rank_steps import RankVectors

        return RankVectors(self.x, weight, self.dangling, self.personalization)


def make_inputs(
    A: MatrixProperties,
    options: PageRankOptions,
    personalization: Weights | None = None,
    dangling: Weights | str | None = None,
    nstart: Weights | None = None,
    out_weight: Weights | None = None,
    *,
    use_weights: bool,
) -> RunInputs:
    """Make the start vectors of a run, in the order of the stored rows, from the user's arguments; see
    `mgspmv.pagerank`.

    Raises
    ------
    OptionError, ShapeError : a vector that is not a distribution over the vertices; invalid out-weights
    DanglingError : dangling="error" and a vertex without out-edges
    """
    stored, order, n = A.stored, A.order, A.shape[0]  # ids are read where they are needed

    def distribute(name: str, weights: Weights | None) -> np.ndarray:
        if weights is None:
            return np.array([1.0 / n])
        permuted: np.ndarray = permute(make_distribution(name, weights, n, A.vertex_ids), order)
        return permuted

    p = distribute("personalization", personalization)
    off = STOCHASTIC_TOLERANCE if stored.info.kind == "stochastic" else 0.0
    weight, growth, shares = None, 1.0, (1.0 - off, 1.0 + off)
    if out_weight is not None:
        of_edges = restore(read_out_weight(stored, use_weights), order)
        weight = make_out_weight(out_weight, of_edges, A.vertex_ids)
        has_out = weight > 0
        column_sums = of_edges[has_out] / weight[has_out]  # of A / w: a step grows L1 distances at most by the largest
        growth = float(column_sums.max(initial=1.0))
        shares = (float(column_sums.min(initial=1.0)) - off, growth + off)
    if dangling is None:
        d = p
    elif not isinstance(dangling, str):
        d = distribute("dangling", dangling)
    else:
        check_choice("dangling", dangling, ("uniform", "drop", "error"))
        if dangling == "error":
            own = restore(read_out_weight(stored, use_weights), order) if weight is None else weight
            if len(empty := np.flatnonzero(own == 0)):
                raise DanglingError(
                    f"{len(empty)} of {n} vertices have no out-edges, or only ones of weight 0, first "
                    f"{_name(empty[0], A.vertex_ids)}, and dangling='error'; give them edges, or pass "
                    "dangling='uniform' or 'drop'"
                )
        d = np.zeros(1) if dangling == "drop" else distribute("dangling", None)
    is_dropped = isinstance(dangling, str) and dangling == "drop"
    x = (1.0 - options.alpha if is_dropped else 1.0) * p if nstart is None else distribute("nstart", nstart)
    x = x.astype(np.float32 if options.precision == "float32" else np.float64)
    return RunInputs(x, d, p, None if weight is None else permute(weight, order), growth, shares)


def read_out_weight(
    stored: StoredMatrix, use_weights: bool, start: int = 0, stop: int | None = None, threads: int | None = None
) -> np.ndarray:
    """Read out-weights of vertices `start` .. `stop`, float64, 0 for dangling ones; out-degrees without weights.

    Those of a reversed graph are summed from the values of the rows of the original.
    """
    if stored.info.kind == "stochastic":
        return (stored.read_out_degree(start, stop, threads) > 0).astype(np.float64)
    if not use_weights:
        return stored.read_out_degree(start, stop, threads).astype(np.float64)
    if stored.original is None:
        return stored.read_array("out_weight", start, stop, threads)
    from mgspmv.ingest.build import sum_rows  # imported here, as it loads all of ingest

    return sum_rows(stored.original, start, stored.info.shape[0] if stop is None else stop, threads)


class OutWeights:
    """Out-weights of some vertices, for several runs; those of a reversed graph, and those on a device, are cached.

    Parameters
    ----------
    start, stop : range of the vertices
    threads : for reading
    """

    def __init__(self, stored: StoredMatrix, start: int, stop: int, threads: int | None = None) -> None:
        self._read = partial(read_out_weight, stored, start=start, stop=stop, threads=threads)
        self._is_reversed = stored.original is not None
        self._kept: dict[bool, np.ndarray] = {}
        self._on_device: dict[bool, Any] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the cached out-weights."""
        return sum(weight.nbytes for weight in (*self._kept.values(), *self._on_device.values()))

    def put(self, use_weights: bool, put: Callable[[np.ndarray], Any]) -> Any:
        """Return the out-weights of `read` on the device to which `put` copies, cached there."""
        if use_weights not in self._on_device:
            self._on_device[use_weights] = put(self.read(use_weights))
        return self._on_device[use_weights]

    def read(self, use_weights: bool) -> np.ndarray:
        """Return the out-weights of `read_out_weight`, cached for a reversed graph."""
        if use_weights in self._kept:
            return self._kept[use_weights]
        weight = self._read(use_weights)
        if self._is_reversed:
            self._kept[use_weights] = weight
        return weight


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
