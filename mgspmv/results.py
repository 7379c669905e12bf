"""Ranks and how they were reached: top-k, summaries, and files in Zarr, Parquet and CSV."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mgspmv.display.cards import quote, render_card
from mgspmv.errors import OptionError, ShapeError, StoreDamagedError, hide_secrets
from mgspmv.kernels.highest import select_highest
from mgspmv.model import Event, MatrixInfo, NonFinite, Recovery, Stability, Status, Underflow
from mgspmv.saving import (
    ID_DTYPES,
    MEND,
    RANK_DTYPES,
    check_digest,
    format_csv,
    load_result,
    name_ids,
    open_ranks,
    read_array,
    read_column,
    read_ids,
    read_rank_table,
    save_result,
    write_parquet,
    write_zarr,
)
from mgspmv.scores import BINS, Scaler, Summary, scale_scores, summarize_scores
from mgspmv.validation import to_json
from mgspmv.version import __version__

if TYPE_CHECKING:
    from mgspmv.saved import SavedRanks

BATCH = 2**16
"""Ranks that are streamed at a time, unless the user says otherwise."""

REPR_TOP = 3
"""Highest ranks that are shown of a solution."""


@dataclass(frozen=True, eq=False)
class Solution:
    """The ranks of a graph's vertices and how they were reached.

    Raises
    ------
    ShapeError : `values` is not one-dimensional, or `vertex_ids` has another length
    """

    values: np.ndarray
    """float64 or float32, shape (n,): the ranks, in the order of the store's vertices; or scores made of them, see
    `scale`."""
    status: Status
    """How the iteration ended."""
    iterations: int
    """Iterations made."""
    changes: tuple[float, ...]
    """|x' - x| at each iteration, in the norm of `tol_mode`."""
    seconds: dict[str, float]
    """Seconds by phase: load, compile, product, exchange, residual, ..."""
    error_bound_l1: float
    """||values - exact ranks||_1 is at most this, of the ranks as they were, where they were scaled; infinite where
    nothing is known."""
    vertex_ids: np.ndarray | None
    """int64 or strings (object), shape (n,): the source's names of the vertices; None when they are 0..n-1."""
    options: dict[str, Any]
    """What was asked for, as JSON values: alpha, tol, tol_mode, max_iter, precision, ..."""
    matrix: dict[str, Any]
    """Where the ranks come from, as JSON values: the store's url, digest, shape, nnz, kind; program and hardware."""
    events: tuple[Event, ...] = ()
    """What each iteration did."""
    memory: dict[str, list[int]] = field(default_factory=dict)
    """Bytes, of one element for each worker; empty for ranks that were saved before this was noted.
    `host_peak_bytes`: resident in its process at most since that began, with interpreter and libraries;
    `device_bytes`: what its process holds on its device, if it has one, which is the most since it last gave back;
    `held_bytes`: of matrix and vectors, where the kernels compute;
    `planned_bytes`: on a cluster: what the plan said of the host, or of the device of a worker that has one."""
    stability: Stability | None = None
    """Which vertices are the highest, and what is known of their order, where the run was asked to prove it."""
    resumed_after: int = 0
    """Of the iterations, those that were made by the run whose checkpoint this one went on from; `seconds` and `events`
    are without them."""
    non_finite: NonFinite | None = None
    """Where values became none, where `status` is `non_finite`; None also where none of them did, as numbers on their
    way left the range first."""
    underflow: Underflow | None = None
    """Vertices whose PageRank is 0 because it is below the resolution of the precision; None where none was found."""
    recoveries: tuple[Recovery, ...] = ()
    """How a run on a cluster went on when workers were lost, or when new ones came; `changes` and `events` are those of
    iterations that count, and not of those that were made again."""

    def __post_init__(self) -> None:
        if self.values.ndim != 1:
            raise ShapeError(f"the ranks must be one-dimensional, they have shape {self.values.shape}")
        if self.vertex_ids is not None and len(self.vertex_ids) != len(self.values):
            raise ShapeError(f"there are {len(self.values)} ranks but {len(self.vertex_ids)} vertex ids")

    def __repr__(self) -> str:
        change = f", last change {self.changes[-1]:.3g}" if self.changes else ""
        bound = f", L1 error <= {self.describe_error()}" if math.isfinite(self.error_bound_l1) else ""
        return (
            f"<Solution: {self.status} after {self.iterations} iterations{change}{bound}, "
            f"{len(self.values)} ranks, {sum(self.seconds.values()):.3g} s{self._describe_highest()}>"
        )

    def _describe_highest(self) -> str:
        highest = ", ".join(f"{quote(name)} {rank:.3g}" for name, rank in self.top(REPR_TOP))
        order = "" if self._is_certified(REPR_TOP) else " (order not certified)"
        return f"; highest{order}: {highest}" if highest else ""

    def _repr_html_(self) -> str:
        return render_card(self)

    @property
    def edges_per_s(self) -> float:
        """Stored entries times the iterations that were timed, over their seconds; 0 when nothing was timed."""
        elapsed_s = sum(self.seconds.get(phase, 0.0) for phase in ("product", "exchange", "schedule"))
        n_timed = self.iterations - self.resumed_after
        return float(self.matrix["nnz"]) * n_timed / elapsed_s if elapsed_s else 0.0

    @property
    def scaler(self) -> str:
        """How the values were scaled, `none` for ranks as they are."""
        return str(self.options.get("scaler", "none"))

    def describe_error(self) -> str:
        """The error bound, and that it is not one of the scores where the ranks were scaled."""
        return f"{self.error_bound_l1:.3g}{'' if self.scaler == 'none' else ' before scaling'}"

    def scale(self, scaler: Scaler) -> Solution:
        """The same solution with scores in place of ranks, float64; see `mgspmv.scores.scale_scores` for the formulas.

        No scaler turns the order of two vertices round, though scores can be equal by rounding where ranks were not.
        `error_bound_l1` and `changes` stay those of the ranks; `options["scaler"]` says how they were scaled.

        Raises
        ------
        OptionError : there is no such scaler, or the values are scores already
        """
        values = scale_scores(self.values, scaler)
        if scaler == "none":
            return self
        if self.scaler != "none":
            raise OptionError(
                f"these are scores already, scaled by {self.scaler!r}; scale the solution that they were made of"
            )
        scaled: dict[str, Any] = {"scaler": scaler}
        if self._is_pagerank and (n_zero := int(np.count_nonzero(self.values == 0))):
            scaled["n_zero"] = n_zero  # for `select_highest`
        return replace(self, values=values, options=self.options | scaled)

    def summarize(self, bins: int = BINS) -> Summary:
        """How the values are distributed: moments, percentiles, Gini coefficient, histogram; O(n log n).

        Parameters
        ----------
        bins : of the histogram, whose edges have the same quotients

        Raises
        ------
        OptionError : bins is less than 1
        """
        return summarize_scores(self.values, bins)

    def stream(self, batch_size: int = BATCH) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The ids and values of all vertices, some at a time, in the order of the store's vertices.

        Yields
        ------
        (k,) int64 or strings (object) and (k,) float64 or float32, views where there are arrays to view; k is
        `batch_size` but for the last.

        Raises
        ------
        OptionError : batch_size is less than 1
        """
        if batch_size < 1:
            raise OptionError(f"batch_size must be at least 1, not {batch_size}")
        return self._generate_batches(batch_size)

    def _generate_batches(self, batch_size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        n, ids = len(self.values), self.vertex_ids
        for start in range(0, n, batch_size):
            stop = min(start + batch_size, n)
            yield np.arange(start, stop) if ids is None else ids[start:stop], self.values[start:stop]

    def top(self, k: int = 10) -> list[tuple[Any, float]]:
        """Give the k highest ranks as (vertex id, rank), highest first.

        Equal ranks come in the order of the vertices, NaN comes last; with k > n all n are given. PageRanks of 0 are
        left out: no path leads to these vertices from where jumps lead, and the list is shorter than k instead.

        Raises
        ------
        OptionError : k is less than 1
        """
        where = self.select_highest(k)
        ids = where if self.vertex_ids is None else self.vertex_ids[where]
        return list(zip(ids.tolist(), self.values[where].tolist(), strict=True))

    def judge_order(self, k: int = 10) -> Stability | None:
        """Tell whether the k highest ranks are certified to be those of the k highest vertices, and in which order.

        A gap between two places is certified where it is larger than `error_bound_l1`, or where the run proved it
        (`stop="topk:100"`). Lower `tol`, or pass `stop`, to certify more; equal ranks stay tied.

        Parameters
        ----------
        k : as of `top`; all but one where there are not more, or those above 0

        Returns
        -------
        Stability, whose `is_proven` is of the set and whose `ties` are of the order; None where no bound is known: of
        centralities, of ranks that are not finite, of scores, and of a single vertex.

        Raises
        ------
        OptionError : k is less than 1
        """
        k = min(len(self.select_highest(k)), len(self.values) - 1)
        if k < 1 or self.scaler != "none" or not math.isfinite(self.error_bound_l1):
            return None
        from mgspmv.iterate.stable import judge_order

        judged, proven = judge_order(self.values, k, self.error_bound_l1), self.stability
        if proven is None or not proven.is_proven or k > proven.k:
            return judged
        if k == proven.k:
            return proven
        ties = tuple((first, min(last, k + 1)) for first, last in proven.ties if first <= k)
        return replace(judged, is_proven=not ties or ties[-1][1] <= k, ties=ties)

    def _is_certified(self, k: int) -> bool:
        """Whether nothing is known against the k highest and their order."""
        found = self.judge_order(k)
        return found is None or (found.is_proven and not found.ties)

    def select_highest(self, k: int) -> np.ndarray:
        """int64, (k,) or fewer: the places in `values` of the vertices that `top` gives.

        Raises
        ------
        OptionError : k is less than 1
        """
        if k < 1:
            raise OptionError(f"k must be at least 1, not {k}")
        if not self._is_pagerank:
            return select_highest(self.values, k)
        if self.scaler != "none":  # scalers keep the order, so ranks of 0 have the lowest scores
            k = min(k, len(self.values) - int(self.options.get("n_zero", 0)))
            return select_highest(self.values, k) if k else np.empty(0, np.int64)
        where = select_highest(self.values, k)
        ranked: np.ndarray = where[self.values[where] != 0]
        return ranked

    @property
    def _is_pagerank(self) -> bool:
        """Whether the values are PageRanks, and not those of another iteration, where 0 may be a high value."""
        return bool(self.options.get("method", "power") == "power")

    def digest(self) -> str:
        """SHA-256 of the ranks' little-endian bytes, in hexadecimal: same bits, same digest."""
        values = np.ascontiguousarray(self.values, dtype=self.values.dtype.newbyteorder("<"))
        return hashlib.sha256(values.data).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Give all but ranks, ids and events as JSON values; a float that is not finite becomes a string, its name."""
        summary = {
            "status": self.status.value,
            "n": len(self.values),
            "iterations": self.iterations,
            "change": self.changes[-1] if self.changes else None,
            "changes": self.changes,
            "error_bound_l1": self.error_bound_l1,
            "seconds": self.seconds,
            "edges_per_s": self.edges_per_s,
            "memory": self.memory,
            "digest": self.digest(),
            "stability": self.stability,
            "resumed_after": self.resumed_after,
            "non_finite": self.non_finite,
            "underflow": self.underflow,
            "recoveries": self.recoveries,
            "options": self.options,
            "matrix": self.matrix,
        }
        return {key: to_json(value) for key, value in summary.items()}

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the ranks to `path`, in the format that its suffix names.

        `.zarr`: a group with the arrays `values` and `vertex_ids`, the rest in its attributes; also at a URL.
        `.parquet`: columns `id` and `rank`, the rest in the metadata of its schema under `mgspmv`.
        `.csv`: lines `id,rank` under that header, each rank in the fewest digits that give the same float again;
        the rest is not kept, so that it cannot be loaded again.

        Raises
        ------
        OptionError : another suffix
        StoreExistsError : something is there and `overwrite` is False, or it is not ranks to be overwritten
        StoreError : it cannot be written
        """
        others, schema = {"vertex_ids": name_ids(self.vertex_ids)}, _make_schema(self)
        tables = _generate_tables(self, len(self.values))
        write = {
            ".zarr": lambda url: write_zarr(url, self, **others),
            ".parquet": lambda part: write_parquet(part, schema, tables, self, **others),
            ".csv": lambda part: _write_csv(self, part),
        }
        save_result(path, write, overwrite=overwrite)


def load_solution(path: str | os.PathLike[str]) -> Solution:
    """Read ranks that `Solution.save` wrote as `.zarr` or `.parquet`; the bits are as they were.

    Raises
    ------
    OptionError : another suffix; CSV holds the ranks only
    StoreNotFoundError : there is nothing at this path
    StoreFormatError : not a solution, or one of another format version
    StoreUnfinishedError : its writing was never finished
    MissingChunkError, ChecksumError, StoreDamagedError : it is not what was written
    """
    return load_result(path, {".zarr": _read_zarr, ".parquet": _read_parquet})


def describe_matrix(
    info: MatrixInfo, hardware: str, transport: str | None = None, *, is_reversed: bool = False
) -> dict[str, Any]:
    """What a solution says of where it comes from, as JSON values.

    Parameters
    ----------
    hardware : what computed
    transport : how slices went from worker to worker; None in one process
    is_reversed : whether it is the graph with every arc turned round
    """
    return {
        "url": hide_secrets(str(info.url)),
        "digest": info.digest,
        "shape": list(info.shape),
        "nnz": info.nnz,
        "kind": info.kind,
        **({"reversed": True} if is_reversed else {}),
        "program": f"mgspmv {__version__}",
        "hardware": hardware,
        **({} if transport is None else {"transport": transport}),
    }


def _read_zarr(url: str) -> Solution:
    from mgspmv.saved import SavedRanks

    group, saved = open_ranks(url, SavedRanks)
    ids = read_ids(url, group, "vertex_ids", saved.vertex_ids)
    return _compose(url, read_array(url, group, "values", RANK_DTYPES), ids, saved)


def _make_schema(solution: Solution) -> Any:
    import pyarrow as pa

    id_type = pa.large_string() if name_ids(solution.vertex_ids) == "string" else pa.int64()
    return pa.schema({"id": id_type, "rank": pa.from_numpy_dtype(solution.values.dtype)})


def _generate_tables(solution: Solution, n_rows: int = BATCH) -> Iterator[Any]:
    """Rows of a file, `n_rows` at a time."""
    import pyarrow as pa

    schema = _make_schema(solution)
    for ids, values in solution.stream(max(1, n_rows)):
        yield pa.table([pa.array(ids, schema.field("id").type), pa.array(values)], schema=schema)


def _read_parquet(path: str) -> Solution:
    from mgspmv.saved import SavedRanks

    table, saved = read_rank_table(path, SavedRanks)
    ids = read_column(path, table, "id", ID_DTYPES)
    values = read_column(path, table, "rank", RANK_DTYPES)
    if saved.vertex_ids is None and not np.array_equal(ids, np.arange(len(ids))):
        raise StoreDamagedError(f"{path}: there are ids, and what it says of them is lost; {MEND}")
    return _compose(path, values, None if saved.vertex_ids is None else ids, saved)


def generate_csv(solution: Solution) -> Iterator[bytes]:
    """The lines of a CSV file of ranks, as `Solution.save` writes them, many at a time."""
    yield b"id,rank\n"  # by hand, as pyarrow quotes the names
    yield from map(format_csv, _generate_tables(solution))


def _write_csv(solution: Solution, path: str) -> None:
    with open(path, "wb") as file:
        file.writelines(generate_csv(solution))


def _compose(path: str, values: np.ndarray, ids: np.ndarray | None, saved: SavedRanks) -> Solution:
    if ids is not None and len(ids) != len(values):
        raise StoreDamagedError(f"{path}: there are {len(values)} ranks but {len(ids)} vertex ids; {MEND}")
    said = {name: value for name, value in saved if name not in ("vertex_ids", "digest")}
    solution = Solution(values=values, vertex_ids=ids, **said)
    check_digest(path, solution, saved.digest)
    return solution


def find_non_finite(
    values: np.ndarray, vertex_ids: np.ndarray | None, status: Status, iteration: int, *, is_rank: bool
) -> NonFinite | None:
    """Where values became none in the last iteration; None where the status is another, or all are some.

    Parameters
    ----------
    values : (n,) in the order of the source
    vertex_ids : of a `Solution`
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
