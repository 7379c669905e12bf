"""Ranks of one vector, and their provenance: look-up by id, tables, top-k, summaries, plots, and files."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mgspmv.display.frames import Columns, Tabular, TopRanks, quote, render_card
from mgspmv.environment import __version__
from mgspmv.errors import OptionError, ShapeError, UnknownIdError, hide_secrets
from mgspmv.kernels.highest import check_places, select_highest
from mgspmv.lookup import ArrayLookup
from mgspmv.model import Event, MatrixInfo, NonFinite, Recovery, Stability, Status, Underflow, check_choice
from mgspmv.saving import ARRAYS, load_result, save_result
from mgspmv.scores import BINS, Scaler, Summary, scale_scores, summarize_scores
from mgspmv.validation import to_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BATCH = 2**16
"""Default number of ranks streamed at a time."""

ROWS_AT_ONCE = 2**18
"""Number of rows of a table, or of a vector, prepared per write."""
REPR_TOP = 3
"""Number of highest ranks in the repr of a solution."""


class Ranks(Tabular):
    """Base class of the ranks of one vector and of many."""

    __pydantic_config__ = {"arbitrary_types_allowed": True}  # noqa: RUF012

    def _repr_html_(self) -> str:
        return render_card(self)

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the results to `path`, in the format of its suffix.

        `.zarr`: a group with the arrays `values` (of a batch with `keep_top`: `top_ids` and `top_ranks`) and
        `vertex_ids`, the rest in its attributes; also at a URL.
        `.parquet`: columns `id` and `rank`, the rest in the metadata of its schema under `mgspmv`.
        `.csv`: lines `id,rank` under that header, each rank in the fewest digits that give the same float again;
        the rest is not saved, so a CSV file cannot be loaded again.

        Tables of a batch have a column `vector` before these, and a row for each rank that was kept (of the highest,
        for each above 0), vector after vector.

        Raises
        ------
        OptionError : another suffix
        StoreExistsError : the path exists and `overwrite` is False, or it does not hold ranks
        StoreError : it cannot be written

        Examples
        --------
        >>> import mgspmv as mg
        >>> mg.pagerank([("alice", "bob"), ("bob", "alice")]).save("ranks.csv")
        >>> print(open("ranks.csv").read(), end="")
        id,rank
        "alice",0.5
        "bob",0.5
        """
        save_result(self, path, overwrite=overwrite)


@dataclass(frozen=True, eq=False)
class Solution(Ranks):
    """Ranks of a graph's vertices, and how they were computed.

    `s[id]` is the rank of a vertex, `s[[id, ...]]` an array of ranks, and `id in s` tells whether a vertex has this id.
    `len(s)` is the number of vertices. Iteration yields pairs (id, rank) in the order of the vertices, so `dict(s)`
    holds all ranks by id. `numpy.asarray(s)` is `values`.

    Raises
    ------
    ShapeError : `values` is not one-dimensional, or there are not as many ids

    Examples
    --------
    >>> import mgspmv as mg
    >>> ranks = mg.pagerank([("alice", "bob"), ("carol", "bob"), ("bob", "alice")])
    >>> round(ranks["alice"], 4), ranks[["bob", "carol"]].round(4), "dave" in ranks
    (0.4635, array([0.4865, 0.05  ]), False)
    >>> ranks.status, ranks.iterations, ranks.error_bound_l1 < 1e-5
    (<Status.CONVERGED: 'converged'>, 83, True)
    >>> ranks.to_pandas(sort=True)
          id      rank
    0    bob  0.486487
    1  alice  0.463513
    2  carol  0.050000
    """

    values: np.ndarray
    """Ranks in the order of the store's vertices, float64 or float32, shape (n,); or scores computed from them, see
    `scale`."""
    status: Status
    """Reason why the iteration ended."""
    iterations: int
    """Number of completed iterations."""
    changes: tuple[float, ...]
    """|x' - x| per iteration, in the norm of the run."""
    seconds: dict[str, float]
    """Seconds by phase: load, compile, product, exchange, residual, ..."""
    error_bound_l1: float
    """Upper bound of ||values - exact ranks||_1, of the ranks before scaling; infinite if unknown."""
    _ids: np.ndarray | None
    """`ids`, or None when they are 0..n-1."""
    options: dict[str, Any]
    """Options of the call, as JSON values: alpha, tol, norm, max_iter, precision, ..."""
    matrix: dict[str, Any]
    """Origin of the ranks, as JSON values: the store's url, digest, shape, nnz, kind; program and hardware."""
    events: tuple[Event, ...] = ()
    """Measurements of each iteration."""
    memory: dict[str, list[int]] = field(default_factory=dict)
    """Bytes, one element per worker; empty for ranks saved before this was recorded.
    `host_peak_bytes`: peak resident memory of the process, with interpreter and libraries;
    `device_bytes`: memory of the process on its device, if any: the peak since it last released memory;
    `held_bytes`: matrix and vectors, in the memory that the kernels read;
    `planned_bytes`: on a cluster, planned bytes of the host, or of the device if the worker has one."""
    stability: Stability | None = None
    """Highest vertices and proven parts of their order, if the run was asked to prove it."""
    resumed_after: int = 0
    """Number of iterations made by the run whose checkpoint this run resumed from; `seconds` and `events` exclude
    them."""
    non_finite: NonFinite | None = None
    """First value that is not finite, if `status` is `non_finite`; None also if ranks are finite, but intermediate
    numbers left the range first."""
    underflow: Underflow | None = None
    """Vertices whose PageRank is 0 because it is below the resolution of the precision; None if there are none."""
    recoveries: tuple[Recovery, ...] = ()
    """Restarts of a run on a cluster after workers were lost, or with new ones; `changes` and `events` are those of
    iterations that count, without the repeated ones."""

    def __post_init__(self) -> None:
        if self.values.ndim != 1:
            raise ShapeError(f"the ranks must be one-dimensional, they have shape {self.values.shape}")
        if self._ids is not None and len(self._ids) != len(self.values):
            raise ShapeError(f"there are {len(self.values)} ranks but {len(self._ids)} vertex ids")

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[tuple[Any, float]]:
        for ids, values in self.stream():
            yield from zip(ids.tolist(), values.tolist(), strict=True)

    def __getitem__(self, key: Any) -> Any:
        """Return the rank of a vertex by its id, a float, or the ranks of a sequence or array of ids, as an array.

        Raises
        ------
        UnknownIdError : an id that no vertex has, or of another kind than the ids; also a `KeyError`
        """
        if isinstance(key, str | bytes | np.generic) or not (isinstance(key, Sequence) or hasattr(key, "__array__")):
            return self.values[self._find([key])].item()
        return self.values[self._find(list(key) if isinstance(key, Sequence) else np.asarray(key))]

    def __contains__(self, label: Any) -> bool:
        try:
            return self._lookup[0].has(label)
        except UnknownIdError:
            return False

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.values, dtype, copy=copy)

    @cached_property
    def ids(self) -> np.ndarray:
        """Ids of the vertices in the source, int64 or strings (object), in the order of `values`, shape (n,)."""
        return np.arange(len(self.values)) if self._ids is None else self._ids

    @cached_property
    def _lookup(self) -> tuple[ArrayLookup, np.ndarray | None]:
        """Ascending ids, and the positions of these in `values`; None if they are the same."""
        ids, n = self._ids, len(self.values)
        if ids is None or (ids[1:] > ids[:-1]).all():
            return ArrayLookup(n, ids), None
        order = np.argsort(ids)
        return ArrayLookup(n, ids[order]), order

    def _find(self, ids: Any) -> np.ndarray:
        """Return the positions of ids in `values`."""
        lookup, order = self._lookup
        places = lookup.find_all("solution[...]", ids)
        return places if order is None else order[places]

    def __repr__(self) -> str:
        change = f", last change {self.changes[-1]:.3g}" if self.changes else ""
        bound = f", L1 error <= {self.describe_error()}" if math.isfinite(self.error_bound_l1) else ""
        highest = ", ".join(f"{quote(name)} {rank:.3g}" for name, rank in self.top(REPR_TOP))
        found = self.check_order(REPR_TOP)
        order = "" if found is None or (found.is_proven and not found.ties) else " (order not certified)"
        return (
            f"<Solution: {self.status} after {self.iterations} iterations{change}{bound}, {len(self.values)} ranks, "
            f"{sum(self.seconds.values()):.3g} s{f'; highest{order}: {highest}' if highest else ''}>"
        )

    @property
    def edges_per_s(self) -> float:
        """Stored entries times timed iterations, over their seconds; 0 if nothing was timed."""
        elapsed_s = sum(self.seconds.get(phase, 0.0) for phase in ("product", "exchange", "schedule"))
        n_timed = self.iterations - self.resumed_after
        return float(self.matrix["nnz"]) * n_timed / elapsed_s if elapsed_s else 0.0

    @property
    def scaler(self) -> str:
        """Name of the scaler of the values, `none` for ranks as they are."""
        return str(self.options.get("scaler", "none"))

    def describe_error(self) -> str:
        """Format the error bound, with a note that it is of the ranks if they were scaled."""
        return f"{self.error_bound_l1:.3g}{'' if self.scaler == 'none' else ' before scaling'}"

    def scale(self, scaler: Scaler) -> Solution:
        """Return the solution with scores in place of ranks, float64; for formulas see `mgspmv.scores.scale_scores`.

        No scaler reverses the order of two vertices, though scores can be equal by rounding where ranks were not.
        `error_bound_l1` and `changes` remain those of the ranks; `options["scaler"]` names the scaler.

        Raises
        ------
        OptionError : unknown scaler, or the values are scores already

        Examples
        --------
        >>> import mgspmv as mg
        >>> mg.pagerank([("alice", "bob"), ("carol", "bob"), ("bob", "alice")]).scale("max").top(2)
        place  id           rank
            1  bob             1
            2  alice  0.95277693
        """
        values = scale_scores(self.values, scaler)
        if scaler == "none":
            return self
        if self.scaler != "none":
            raise OptionError(
                f"the values are already scores, scaled by {self.scaler!r}; scale the original solution instead"
            )
        scaled: dict[str, Any] = {"scaler": scaler}
        if self._is_pagerank and (n_zero := int(np.count_nonzero(self.values == 0))):
            scaled["n_zero"] = n_zero  # read by `_select_highest`
        return replace(self, values=values, options=self.options | scaled)

    def summary(self, bins: int = BINS) -> Summary:
        """Summarize the distribution of the values: moments, percentiles, Gini coefficient, histogram; O(n log n).

        Parameters
        ----------
        bins : int, default 20
            Number of bins of the histogram, whose edges are in geometric progression.

        Raises
        ------
        OptionError : bins is less than 1

        Examples
        --------
        >>> import mgspmv as mg
        >>> found = mg.pagerank([("alice", "bob"), ("carol", "bob"), ("bob", "alice")]).summary()
        >>> round(found.max, 4), round(found.gini, 4)
        (0.4865, 0.291)
        """
        return summarize_scores(self.values, bins)

    def plot(self, kind: Literal["ranks", "convergence"] = "ranks", ax: Axes | None = None) -> Axes:
        """Draw the distribution of the values, or the change of each iteration, by matplotlib.

        Parameters
        ----------
        kind : {"ranks", "convergence"}, default "ranks"
            `ranks`: how many vertices have at least a value, by values; values that are not finite, and those that are
            not positive on a logarithmic axis, are left out. `convergence`: `changes`, and the tolerance.
        ax : matplotlib Axes, optional
            Axes to draw in; default those of a new figure.

        Returns
        -------
        The axes, for titles and other settings.

        Raises
        ------
        OptionError : another kind
        MissingDependencyError : matplotlib is not installed

        Examples
        --------
        >>> import mgspmv as mg
        >>> edges = [("alice", "bob"), ("carol", "bob"), ("bob", "alice")]
        >>> ax = mg.pagerank(edges).plot("convergence")
        >>> len(mg.pagerank(edges, alpha=0.5).plot("convergence", ax=ax).lines)
        4
        """
        from mgspmv.display.charts import make_axes, plot_changes, plot_distribution

        check_choice("kind", kind, ("ranks", "convergence"))
        axes = make_axes(ax)
        if kind == "ranks":
            plot_distribution(axes, self.values)
        else:
            plot_changes(axes, self.changes, self.options)
        return axes

    def stream(self, batch_size: int = BATCH) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the ids and values of all vertices in batches, in the order of the store's vertices.

        Yields
        ------
        (k,) int64 or strings (object) and (k,) float64 or float32, views where there are arrays to view; k is
        `batch_size` except for the last.

        Raises
        ------
        OptionError : batch_size is less than 1

        Examples
        --------
        >>> import mgspmv as mg
        >>> for ids, ranks in mg.pagerank(([0, 1, 2, 2], [1, 2, 0, 1])).stream(2):
        ...     print(ids, ranks.round(4))
        [0 1] [0.2148 0.3974]
        [2] [0.3878]
        """
        if batch_size < 1:
            raise OptionError(f"batch_size must be at least 1, not {batch_size}")
        n, ids = len(self.values), self._ids
        batches = ((start, min(start + batch_size, n)) for start in range(0, max(n, 1), batch_size))
        return ((np.arange(a, b) if ids is None else ids[a:b], self.values[a:b]) for a, b in batches)

    def top(self, k: int = 10) -> TopRanks:
        """Return the k highest ranks as a sequence of pairs (id, rank), highest first, which is also a table.

        Equal ranks are in the order of the vertices, NaN is last; with k > n all n are returned. PageRanks of 0 are
        left out, as no path leads to these vertices from a target of jumps; the table is then shorter than k.

        Raises
        ------
        OptionError : k is less than 1

        Examples
        --------
        >>> import mgspmv as mg
        >>> ranks = mg.pagerank([("alice", "bob"), ("carol", "bob"), ("bob", "alice")])
        >>> print(ranks.top(2))
        place  id          rank
            1  bob    0.4864867
            2  alice  0.4635133
        >>> ranks.top(1)[0][0]
        'bob'
        """
        where = self._select_highest(k)
        return TopRanks(where if self._ids is None else self._ids[where], self.values[where])

    def check_order(self, k: int = 10) -> Stability | None:
        """Check whether the k highest ranks are certified to belong to the k highest vertices, and in which order.

        A gap between two places is certified if it is larger than `error_bound_l1`, or if the run proved it
        (`stop="topk:100"`). Lower `tol`, or pass `stop`, to certify more; equal ranks stay tied.

        Parameters
        ----------
        k : int, default 10
            As in `top`; all but one if there are not more, or those above 0.

        Returns
        -------
        Stability, whose `is_proven` is of the set and whose `ties` are of the order; None if no bound is known: for
        centralities, ranks that are not finite, scores, and a single vertex.

        Raises
        ------
        OptionError : k is less than 1

        Examples
        --------
        >>> import mgspmv as mg
        >>> edges = [("alice", "bob"), ("carol", "bob"), ("bob", "alice"), ("dave", "alice")]
        >>> found = mg.pagerank(edges, tol=1e-12).check_order(3)
        >>> found.is_proven, found.ties  # carol and dave, places 3 and 4, have equal ranks
        (False, ((1, 2), (3, 4)))
        """
        if k < 1:
            raise OptionError(f"k must be at least 1, not {k}")
        if self.scaler != "none" or not math.isfinite(self.error_bound_l1):
            return None
        highest = self.values[select_highest(self.values, k + 1)]
        n_ranked = int(np.count_nonzero(highest[:k])) if self._is_pagerank else k
        k = min(n_ranked, len(self.values) - 1)
        if k < 1:
            return None
        judged, proven = check_places(highest[: k + 1], self.error_bound_l1), self.stability
        if proven is None or not proven.is_proven or k > proven.k:
            return judged
        if k == proven.k:
            return proven
        ties = tuple((first, min(last, k + 1)) for first, last in proven.ties if first <= k)
        return replace(judged, is_proven=not ties or ties[-1][1] <= k, ties=ties)

    def _select_highest(self, k: int) -> np.ndarray:
        """Return the positions in `values` of the vertices that `top` returns, int64, (k,) or shorter."""
        if k < 1:
            raise OptionError(f"k must be at least 1, not {k}")
        if self._is_pagerank and self.scaler != "none":  # scalers preserve the order: ranks of 0 have the lowest scores
            k = min(k, len(self.values) - int(self.options.get("n_zero", 0)))
        where = select_highest(self.values, k) if k else np.empty(0, np.int64)
        return where[self.values[where] != 0] if self._is_pagerank and self.scaler == "none" else where

    @property
    def _is_pagerank(self) -> bool:
        """True if the values are PageRanks, and not of another iteration, where 0 may be a high value."""
        return bool(self.options.get("method", "power") == "power")

    def digest(self) -> str:
        """Return the SHA-256 of the ranks' little-endian bytes, in hexadecimal: same bits, same digest."""
        values = np.ascontiguousarray(self.values, dtype=self.values.dtype.newbyteorder("<"))
        return hashlib.sha256(values.data).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Return all but ranks, ids and events as JSON values; a non-finite float becomes its name, a string."""
        left_out = {*ARRAYS.values(), "events"}
        own = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in left_out}
        own |= {"status": self.status.value, "n": len(self.values), "edges_per_s": self.edges_per_s}
        own |= {"change": self.changes[-1] if self.changes else None, "digest": self.digest()}
        described: dict[str, Any] = to_json(own)
        return described

    def generate_columns(self) -> Iterator[Columns]:
        """Yield the columns `id` and `rank` in batches, views of `values`."""
        return ({"id": ids, "rank": values} for ids, values in self.stream(ROWS_AT_ONCE))

    @classmethod
    def take_columns(cls, described: dict[str, Any], columns: dict[str, np.ndarray]) -> dict[str, Any]:
        """Return the arrays of a solution from the columns of its table; raise ValueError if the ids are wrong."""
        return {"values": columns["rank"], "vertex_ids": take_ids(described, columns["id"])}


def take_ids(described: dict[str, Any], ids: np.ndarray) -> np.ndarray | None:
    """Return a column of ids, None if metadata states that these are 0..n-1; raise ValueError if they are others."""
    if described["vertex_ids"] is not None:
        return ids
    if not np.array_equal(ids, np.arange(len(ids))):
        raise ValueError("the column id has ids, but the metadata states that they are 0..n-1")
    return None


def load_solution(path: str | os.PathLike[str]) -> Solution:
    """Read ranks that `Solution.save` wrote as `.zarr` or `.parquet`; they are bit-identical.

    Parameters
    ----------
    path : path
        Local path, or URL of a `.zarr` group.

    Raises
    ------
    OptionError : another suffix; CSV holds the ranks only
    StoreNotFoundError : the path does not exist
    StoreFormatError : not a solution, or one of another format version
    StoreUnfinishedError : it was never finished
    MissingChunkError, ChecksumError, StoreDamagedError : it differs from what was written

    Examples
    --------
    >>> import mgspmv as mg
    >>> mg.pagerank([("alice", "bob"), ("carol", "bob"), ("bob", "alice")]).save("ranks.parquet")
    >>> mg.load_solution("ranks.parquet").top(1)[0][0]
    'bob'
    """
    return load_result(path, Solution)


def describe_matrix(
    info: MatrixInfo, hardware: str, transport: str | None = None, *, is_reversed: bool = False
) -> dict[str, Any]:
    """Return the provenance of a solution, as JSON values.

    Parameters
    ----------
    hardware : description of the hardware used
    transport : method of sending slices between workers, `local` for none; None in one process
    is_reversed : whether the graph has every arc reversed
    """
    return {
        "url": hide_secrets(str(info.url)),
        **({"digest": info.digest} if info.digest else {}),
        "shape": list(info.shape),
        "nnz": info.nnz,
        "kind": info.kind,
        **({} if info.ingest_report is None else {"ingest": info.ingest_report.list_lines()}),
        **({"reversed": True} if is_reversed else {}),
        "program": f"mgspmv {__version__}",
        "hardware": hardware,
        **({} if transport is None else {"transport": transport}),
    }


def find_non_finite(
    values: np.ndarray, vertex_ids: np.ndarray | None, status: Status, iteration: int, *, is_rank: bool
) -> NonFinite | None:
    """Find the first invalid value of the last iteration; None if the status is another, or all values are valid.

    Parameters
    ----------
    values : (n,) in the order of the source
    vertex_ids : (n,), None for 0..n-1
    is_rank : whether they must be in 0..2 too
    """
    if status != Status.NON_FINITE:
        return None
    is_right = (values >= 0) & (values <= 2) if is_rank else np.isfinite(values)
    if is_right.all():
        return None
    place = int(is_right.argmin())
    vertex = place if vertex_ids is None else vertex_ids[place]
    return NonFinite(vertex if isinstance(vertex, str) else int(vertex), float(values[place]), iteration)
