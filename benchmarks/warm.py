"""Time PageRank of changed graphs that begins with the ranks before, compared with runs from uniform ranks.

    python -m benchmarks.warm graphs/*.zarr

Half of the changed edges are deleted, half are new. Tables are Markdown. All ranks are checked against a power
iteration in float64 that uses no kernel of the project; wrong ones get no time, and the exit code is 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import PurePath
from typing import Any, Literal

import numpy as np
import scipy.sparse
from zarr.storage import MemoryStore

import mgspmv as mg
from benchmarks.measure import say
from benchmarks.program import add_json_option, end, make_parser, parse_count, run_program, write_json
from benchmarks.stores import ALPHA
from benchmarks.tables import Setting, format_setting
from mgspmv.api.matrix import Matrix
from mgspmv.errors import OptionError
from mgspmv.results import Solution

MAX_ITER = 400
NEAR = 1000
"""How far off the targets of new edges at the end are, at most."""
EDGES_EACH = 16
"""Changed edges of each vertex where few vertices change, about."""

Changes = Literal["random", "few", "end"]
CHANGES: tuple[Changes, ...] = ("random", "few", "end")
RUNS = ("cold", "warm")
PHASES = ("product", "exchange")
LEGEND = (
    "Iterations until the change in L1 is below {tol:g}; from ranks to that tolerance, as a share of the iterations "
    "from the start. In brackets ms of iterating, the least of the rounds. Of the edges {share:g} changed, half of "
    "them deleted and half new: at random; of few vertices; of the last vertices, to near ones."
)


@dataclass(frozen=True)
class Record:
    """What a run did on a changed graph."""

    graph: str
    changes: Changes
    run: str
    """One of `RUNS`."""
    iterations: int
    elapsed_s: float
    """Least of the rounds."""
    is_right: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Time what was asked for; 1 when ranks were wrong."""
    options = _parse(arguments)
    setting = Setting.observe("benchmarks.warm", arguments)
    records = run_warm(options.stores, options.rounds, options.share, options.tol, options.threads, say)
    write_json(options.json, {"setting": asdict(setting), "records": [asdict(r) for r in records]})
    wrong = [f"{r.run} on {r.graph}, {r.changes}" for r in records if not r.is_right]
    return end(format_report(setting, records, options.share, options.tol), "ranks", wrong)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("stores", nargs="+", metavar="STORE", help="stored graphs")
    parser.add_argument("--share", type=float, default=1e-5, help="of the edges, that changes; at least two do (1e-5)")
    parser.add_argument("--tol", type=float, default=1e-10, help="of all runs, in L1 (1e-10)")
    parser.add_argument("--rounds", type=parse_count, default=5, help="times each is timed; the least counts (5)")
    parser.add_argument("--threads", type=parse_count, help="(the processors)")
    add_json_option(parser)
    return parser.parse_args(arguments)


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
    asked: dict[str, Any] = {"tol": tol, "max_iter": MAX_ITER}
    for store in stores:
        with mg.open_matrix(store) as A:
            arcs, is_pattern = read_arcs(A), A.is_pattern
            before = replace(mg.pagerank(A.on("cpu", threads=threads), **asked), _ids=None)
        for changes in CHANGES:
            with store_arcs(change_arcs(arcs, share, changes), is_pattern) as changed:
                placed = changed.on("cpu", threads=threads)
                found = _run(PurePath(store).stem, changes, placed, before, rounds, asked)
            records += found
            for r in found:
                say(f"{r.graph}, {r.changes}, {r.run}: {r.iterations} iterations, {1e3 * r.elapsed_s:.3g} ms")
    return records


def _run(
    graph: str, changes: Changes, changed: Matrix, before: Solution, rounds: int, asked: Mapping[str, Any]
) -> list[Record]:
    wanted = rank_plainly(changed)
    made: dict[str, list[Solution]] = {run: [] for run in RUNS}
    for _ in range(rounds):
        for run in RUNS:
            made[run].append(mg.pagerank(changed, **asked, nstart=before if run == "warm" else None))
    return [_record(graph, changes, run, solutions, wanted) for run, solutions in made.items()]


def _record(graph: str, changes: Changes, run: str, solutions: Sequence[Solution], wanted: np.ndarray) -> Record:
    solution, elapsed_s = solutions[0], min(sum(s.seconds.get(p, 0.0) for p in PHASES) for s in solutions)
    is_right = float(np.abs(solution.values - wanted).sum()) <= solution.error_bound_l1 + 1e-13
    return Record(graph, changes, run, solution.iterations, elapsed_s, is_right)


def rank_plainly(A: Matrix) -> np.ndarray:
    """(n,) float64: ranks by SciPy's products, after so many iterations that no more change them."""
    arcs = A.to_scipy()
    n, total = arcs.shape[0], np.asarray(arcs.sum(axis=0), np.float64).ravel()
    share = np.divide(1.0, total, out=np.zeros(n), where=total > 0)
    follow, is_dangling = scipy.sparse.csr_array(arcs @ scipy.sparse.diags_array(share)), total == 0
    x = np.full(n, 1 / n)
    for _ in range(MAX_ITER):
        x, before = ALPHA * (follow @ x + x[is_dangling].sum() / n) + (1 - ALPHA) / n, x
        if np.abs(x - before).sum() < 1e-15:
            break
    return x


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
    mg.ingest(arcs, store, kind="graph", weights=False if is_pattern else None)
    return mg.open_matrix(store)


def format_report(setting: Setting, records: Sequence[Record], share: float, tol: float) -> str:
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
    part = "" if record.run == "cold" else f": {record.iterations / cold.iterations:.0%}"
    return f"{record.iterations}{part} ({1e3 * record.elapsed_s:.3g})"


if __name__ == "__main__":
    run_program(main)
