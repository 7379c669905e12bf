"""How soon ranks of changed graphs are there: from the start, from the ranks before, and when changes are followed.

Half of the changed edges are gone, half are new. All ranks are checked beside a power iteration in float64 that uses no
kernel of the project, before there are times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import PurePath
from typing import Any, Literal

import numpy as np
import scipy.sparse
from zarr.storage import MemoryStore

from benchmarks.methods import is_right, rank_plainly
from benchmarks.spmv_tables import format_setting
from mgspmv import api
from mgspmv.api import Matrix
from mgspmv.errors import OptionError
from mgspmv.results import Solution

MAX_ITER = 400
NEAR = 1000
"""How far off the targets of new edges at the end are, at most."""
EDGES_EACH = 16
"""Changed edges of each vertex where few vertices change, about."""

Changes = Literal["random", "few", "end"]
CHANGES: tuple[Changes, ...] = ("random", "few", "end")
WARM: Mapping[str, Mapping[str, Any]] = {
    "warm": {},
    "followed": {"follow_changes": True},
    "followed, extrapolation": {"follow_changes": True, "method": "extrapolation"},
}
PHASES = ("product", "exchange", "follow")
LEGEND = (
    "Iterations until the change in L1 is below {tol:g}, from ranks to that tolerance; where changes are followed, "
    "with what was read before that, in iterations that read as much; as a share of the iterations from the start. "
    "In brackets ms of iterating and following, the least of the rounds. Of the edges {share:g} changed, half of them "
    "gone and half new: at random; of few vertices; of the last vertices, to near ones."
)


@dataclass(frozen=True)
class Record:
    """What a run did on a changed graph."""

    graph: str
    changes: Changes
    run: str
    """`cold`, or a key of `WARM`."""
    iterations: int
    equivalents: float
    """Iterations in which as much is read as was read to follow changes."""
    elapsed_s: float
    """Least of the rounds."""
    is_right: bool

    @property
    def work(self) -> float:
        """In iterations."""
        return self.iterations + self.equivalents


def run_warm(
    stores: Sequence[str],
    rounds: int,
    share: float = 1e-5,
    tol: float = 1e-10,
    threads: int | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[Record]:
    """Check and time all runs on each store with each kind of changes, in turn in each round.

    Parameters
    ----------
    share : of the edges that changes; at least one is gone and one is new

    Raises
    ------
    OptionError : a store of another kind than `graph`; not enough edges to change so many
    """
    records = []
    asked: dict[str, Any] = {"tol": tol, "max_iter": MAX_ITER, "backend": "cpu", "threads": threads}
    for store in stores:
        with api.open_matrix(store) as A:
            arcs, is_pattern = read_arcs(A), A.is_pattern
            before = replace(api.pagerank(A, **asked), vertex_ids=None)
        for changes in CHANGES:
            with store_arcs(change_arcs(arcs, share, changes), is_pattern) as changed:
                found = _run(PurePath(store).stem, changes, changed, before, rounds, asked)
            records += found
            for r in found:
                say(f"{r.graph}, {r.changes}, {r.run}: {r.work:.3g} iterations, {1e3 * r.elapsed_s:.3g} ms")
    return records


def _run(
    graph: str, changes: Changes, changed: Matrix, before: Solution, rounds: int, asked: Mapping[str, Any]
) -> list[Record]:
    wanted = rank_plainly(changed)
    runs = {"cold": {}, **{run: {"nstart": before, **options} for run, options in WARM.items()}}
    made: dict[str, list[Solution]] = {run: [] for run in runs}
    for _ in range(rounds):
        for run, options in runs.items():
            made[run].append(api.pagerank(changed, **asked, **options))
    return [_record(graph, changes, run, solutions, wanted) for run, solutions in made.items()]


def _record(graph: str, changes: Changes, run: str, solutions: Sequence[Solution], wanted: np.ndarray) -> Record:
    solution, elapsed_s = solutions[0], min(sum(s.seconds.get(p, 0.0) for p in PHASES) for s in solutions)
    equivalents = 0.0 if solution.followed is None else solution.followed.equivalents
    done = (solution.iterations, equivalents, elapsed_s)
    return Record(graph, changes, run, *done, is_right=is_right(solution, wanted))


def read_arcs(A: Matrix) -> scipy.sparse.coo_array:
    """(n, n): the arc i -> j at (i, j), float64.

    Raises
    ------
    OptionError : the store is of another kind than `graph`
    """
    if A.kind != "graph":
        raise OptionError(f"{A.info.url} is a store of kind {A.kind!r}; pass stores of kind 'graph'")
    return A.to_scipy().T.tocoo().astype(np.float64)


def change_arcs(arcs: scipy.sparse.coo_array, share: float, changes: Changes, seed: int = 0) -> scipy.sparse.coo_array:
    """Take some arcs away, and put as many new ones there, with weights that others have.

    Parameters
    ----------
    changes : `random`; `few`, from few vertices; `end`, from the last ones to near ones
    """
    rng, n, nnz = np.random.default_rng(seed), arcs.shape[0], arcs.nnz
    m = max(1, round(share * nnz / 2))
    if 2 * m > nnz:
        raise OptionError(f"of {nnz} edges {2 * m} cannot change; pass a smaller share, or a larger graph")
    sources = rng.permutation(n) if changes == "few" else np.arange(n)[::-1]
    if changes != "random":
        degree = np.bincount(arcs.row, minlength=n)[sources]
        enough = int(np.searchsorted(np.cumsum(degree), max(m, EDGES_EACH))) + 1
        sources = sources[: max(enough, 2 * m // EDGES_EACH)]
    can_go = np.flatnonzero(np.isin(arcs.row, sources))
    gone = rng.choice(can_go, m, replace=False)
    stays = np.ones(nnz, np.bool_)
    stays[gone] = False
    new_rows = rng.choice(sources, m)
    near = np.abs(new_rows - rng.integers(1, min(NEAR, n) + 1, m))
    new_cols = np.minimum(near, n - 1) if changes == "end" else rng.integers(0, n, m)
    rows, cols = np.concatenate([arcs.row[stays], new_rows]), np.concatenate([arcs.col[stays], new_cols])
    data = np.concatenate([arcs.data[stays], arcs.data[gone]])
    return scipy.sparse.coo_array((data, (rows, cols)), shape=arcs.shape)


def store_arcs(arcs: scipy.sparse.coo_array, is_pattern: bool) -> Matrix:
    """A graph of these arcs, in memory."""
    store = MemoryStore()
    api.ingest(arcs, store, kind="graph", ignore_weights=is_pattern)
    return api.open_matrix(store)


def format_report(setting: Mapping[str, str], records: Sequence[Record], share: float, tol: float) -> str:
    """A table, below what it was measured on."""
    runs = list(dict.fromkeys(r.run for r in records))
    lines = [*format_setting(setting), "", f"| graph | changes | {' | '.join(runs)} |"]
    lines.append("|---" * (len(runs) + 2) + "|")
    for graph, changes in dict.fromkeys((r.graph, r.changes) for r in records):
        own = {r.run: r for r in records if (r.graph, r.changes) == (graph, changes)}
        cells = [_format_cell(own[run], own["cold"]) for run in runs]
        lines.append(f"| {graph} | {changes} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", LEGEND.format(tol=tol, share=share), ""])


def _format_cell(record: Record, cold: Record) -> str:
    if not record.is_right:
        return "wrong"
    followed = f" + {record.equivalents:.1f}" if record.equivalents else ""
    part = "" if record.run == "cold" else f": {record.work / cold.work:.0%}"
    return f"{record.iterations}{followed}{part} ({1e3 * record.elapsed_s:.3g})"


def to_json(setting: Mapping[str, str], records: Sequence[Record]) -> dict[str, Any]:
    """All that was found, as JSON values."""
    return {"setting": dict(setting), "records": [asdict(r) for r in records]}
