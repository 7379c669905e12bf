"""The vectors that a PageRank run starts with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mgspmv.errors import DanglingError
from mgspmv.iterate.options import PageRankOptions
from mgspmv.iterate.pagerank import Rows
from mgspmv.iterate.vectors import Weights, make_distribution
from mgspmv.kernels.cpu import CpuBlock
from mgspmv.model import check_choice
from mgspmv.store import StoredMatrix

Distribute = Callable[[str, Weights | None], np.ndarray]


@dataclass(frozen=True, eq=False)
class Start:
    """Vectors over all vertices; vectors of one element hold for all."""

    x: np.ndarray
    """(n,) float32 or float64: the first ranks."""
    weight: np.ndarray
    """(n,) float64: out-weights, 0 for dangling vertices."""
    dangling: np.ndarray
    """(n,) or (1,) float64: d, where the rank of dangling vertices goes."""
    personalization: np.ndarray
    """(n,) or (1,) float64: p."""

    def cut(self, kernel: CpuBlock) -> Rows:
        """The part that belongs to a block, as views."""
        own = slice(kernel.block.row_offset, kernel.block.row_offset + kernel.block.n_rows)
        d, p = (v if len(v) == 1 else v[own] for v in (self.dangling, self.personalization))
        return Rows(kernel, self.x[own], self.weight[own], d, p)


def make_start(
    stored: StoredMatrix,
    vertex_ids: np.ndarray | None,
    options: PageRankOptions,
    personalization: Weights | None = None,
    dangling: Weights | str | None = None,
    nstart: Weights | None = None,
    *,
    use_weights: bool,
) -> Start:
    """Make the vectors of a run from what the user gave; see `mgspmv.api.pagerank`.

    Raises
    ------
    OptionError, ShapeError : a vector that is no distribution over the vertices
    DanglingError : dangling="error" and a vertex without out-edges
    """
    n = stored.info.shape[0]

    def distribute(name: str, weights: Weights | None) -> np.ndarray:
        return np.array([1.0 / n]) if weights is None else make_distribution(name, weights, n, vertex_ids)

    weight = _read_out_weight(stored, use_weights)
    p = distribute("personalization", personalization)
    d = _choose_dangling(dangling, weight, vertex_ids, p, distribute)
    x = np.empty(n, np.float32 if options.precision == "float32" else np.float64)
    x[:] = (1.0 - options.alpha) * p if _is_dropped(dangling) and nstart is None else distribute("nstart", nstart)
    return Start(x, weight, d, p)


def _read_out_weight(stored: StoredMatrix, use_weights: bool) -> np.ndarray:
    if stored.info.kind == "stochastic":
        return (stored.read_array("out_degree") > 0).astype(np.float64)
    return stored.read_array("out_weight") if use_weights else stored.read_array("out_degree").astype(np.float64)


def _is_dropped(dangling: Weights | str | None) -> bool:
    return isinstance(dangling, str) and dangling == "drop"


def _choose_dangling(
    dangling: Weights | str | None,
    weight: np.ndarray,
    vertex_ids: np.ndarray | None,
    p: np.ndarray,
    distribute: Distribute,
) -> np.ndarray:
    if dangling is None:
        return p
    if not isinstance(dangling, str):
        return distribute("dangling", dangling)
    check_choice("dangling", dangling, ("uniform", "drop", "error"))
    if dangling == "error":
        _refuse_dangling(weight, vertex_ids)
    return np.zeros(1) if dangling == "drop" else distribute("dangling", None)


def _refuse_dangling(weight: np.ndarray, vertex_ids: np.ndarray | None) -> None:
    places = np.flatnonzero(weight == 0)
    if len(places):
        label = places[0] if vertex_ids is None else vertex_ids[places[0]]
        raise DanglingError(
            f"{len(places)} of {len(weight)} vertices have no out-edges, or only ones of weight 0, first {label}, "
            "and dangling='error'; give them edges or choose another rule"
        )
