"""Time the way from a text of edges to a Parquet table of ranks, compared with other libraries, as whole processes.

    python -m benchmarks.edges_to_ranks
    python -m benchmarks.edges_to_ranks --edges 2000000 --scale 17 --repeats 3

The text has the distinct edges of an R-MAT graph in any order. Caches are warm: each process has run before. Other
libraries get the edges from polars, the fastest parser among theirs. Every table of ranks is checked before anything is
timed; the exit code is 1 if one is wrong.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow.parquet as pq
import scipy.sparse as sp

from benchmarks.ingesting import make_keys
from benchmarks.measure import Rounds, say, take_turns
from benchmarks.program import add_file_options, make_parser, run_program
from benchmarks.rankings import PERMITTED_L1
from benchmarks.stores import ALPHA
from benchmarks.tables import Setting, Table, format_text, write_files

HEADER = ("program", "wall s", "least s", "processor s", "runs", "L1 error", "times as long", "")
LEGEND = (
    "wall s: from the start of the process to its end; medians, as of all columns but least s and L1 error.",
    "L1 error: distance to ranks by SciPy; scikit-network's to the equation that it solves, which treats vertices",
    "without out-edges in another way (see Whole PageRank).",
    "times as long: wall seconds over those of mgspmv in Python.",
)
OURS = "mgspmv, Python"
SCIKIT_NETWORK = "scikit-network"

READ = """
import sys
import numpy as np, polars as pl
edges = pl.read_csv(sys.argv[1], has_header=False, separator=" ", new_columns=["i", "j"])
i, j = edges["i"].to_numpy(), edges["j"].to_numpy()
n = int(max(i.max(), j.max())) + 1
"""
WRITE = """
pl.DataFrame({"id": np.arange(n), "rank": np.asarray(ranks)}).write_parquet(sys.argv[2])
"""
SCRIPTS = {
    OURS: "import sys; import mgspmv as mg; mg.pagerank(sys.argv[1]).save(sys.argv[2], overwrite=True)",
    "mgspmv, command": (
        "import sys; from mgspmv.cli import main; source, output = sys.argv[1:]; "
        "sys.argv = ['mgspmv', 'pagerank', source, '-o', output, '--overwrite', '--quiet']; main()"
    ),
    SCIKIT_NETWORK: f"""{READ}
from scipy.sparse import csr_matrix
from sknetwork.ranking import PageRank
arcs = csr_matrix((np.ones(len(i), bool), (i, j)), shape=(n, n))
ranks = PageRank({ALPHA}, n_iter=100, tol=1e-6).fit_predict(arcs)
{WRITE}""",
    "NetworKit": f"""{READ}
import networkit as nk
graph = nk.GraphFromCoo((i.astype(np.uint64), j.astype(np.uint64)), n=n, directed=True)
sinks = nk.centrality.SinkHandling.DistributeSinks
algorithm = nk.centrality.PageRank(graph, {ALPHA}, 1e-6, distributeSinks=sinks)
algorithm.norm = nk.centrality.Norm.L1_NORM
ranks = algorithm.run().scores()
{WRITE}""",
    "igraph": f"""{READ}
import igraph
ranks = igraph.Graph(n=n, edges=np.column_stack([i, j]), directed=True).pagerank(damping={ALPHA})
{WRITE}""",
}
"""Programs of Python that get the path of the text and that of the table."""


@dataclass(frozen=True)
class Run:
    """What a process took."""

    wall_s: float
    processor_s: float


@dataclass(frozen=True)
class Row:
    """Runs of a program."""

    program: str
    runs: tuple[Run, ...]
    error_l1: float
    ratio: float

    @property
    def is_wrong(self) -> bool:
        return not self.error_l1 <= PERMITTED_L1


@dataclass(frozen=True)
class Reference:
    """Graph of a text, and its ranks by SciPy."""

    arcs: sp.csr_array
    """Entry (j, i) for the edge i -> j."""
    ranks: np.ndarray

    @classmethod
    def compute(cls, rows: np.ndarray, cols: np.ndarray) -> Reference:
        """Iterate to an L1 change below 1e-12."""
        n = int(max(rows.max(), cols.max())) + 1
        arcs = sp.csr_array((np.ones(len(rows)), (cols, rows)), shape=(n, n))
        made, ranks = cls(arcs, np.zeros(0)), np.full(n, 1.0 / n)
        while (change := float(np.abs((ranks_next := made.iterate(ranks)) - ranks).sum())) > 1e-12:
            ranks = ranks_next
        assert change <= 1e-12
        return cls(arcs, ranks_next)

    def iterate(self, ranks: np.ndarray) -> np.ndarray:
        """Return the next ranks; those of vertices without out-edges are spread uniformly."""
        n = len(ranks)
        spread = ALPHA * float(ranks[self._dangling].sum()) / n + (1.0 - ALPHA) / n
        return ALPHA * self._follow(ranks) + spread

    def measure_error(self, program: str, ranks: np.ndarray) -> float:
        """Measure the L1 distance of ranks from those that the program should have computed."""
        if program != SCIKIT_NETWORK:
            return float(np.abs(ranks - self.ranks).sum())
        jump = np.where(self._dangling, 1.0, 1.0 - ALPHA) / len(ranks)
        step = ALPHA * self._follow(ranks) + jump
        return float(np.abs(step / step.sum() - ranks).sum()) * ALPHA / (1.0 - ALPHA)

    @property
    def _out_degree(self) -> np.ndarray:
        return np.asarray(self.arcs.sum(axis=0)).ravel()

    @property
    def _dangling(self) -> np.ndarray:
        return np.asarray(self._out_degree == 0)

    def _follow(self, ranks: np.ndarray) -> np.ndarray:
        return np.asarray(self.arcs @ (ranks / np.maximum(self._out_degree, 1.0)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Check all programs and time them in turn; 1 if ranks were wrong."""
    options = _parse(arguments)
    setting = Setting.observe("benchmarks.edges_to_ranks", arguments)
    with tempfile.TemporaryDirectory(prefix="mgspmv-benchmark-", dir=options.cache) as name:
        path = Path(name) / "edges.txt"
        say(f"writing {options.edges:,} edges to a file")
        reference = write_edges(path, options.scale, options.edges)
        errors = {program: _check(program, path, reference) for program in options.only or SCRIPTS}
        say(f"timing {', '.join(errors)} in turn")
        able = {program: lambda program=program: run(program, path) for program in errors}
        runs = take_turns(able, Rounds(options.repeats, least_s=0.0, most_s=float("inf")))
        size_mb = path.stat().st_size / 1e6
    ours = median(own.wall_s for own in runs[OURS]) if OURS in runs else float("nan")
    rows = [
        Row(program, tuple(runs[program]), error, median(own.wall_s for own in runs[program]) / ours)
        for program, error in errors.items()
    ]
    title = f"{reference.arcs.nnz:,} edges, {size_mb:.0f} MB of text, to ranks of {len(reference.ranks):,} vertices"
    tables: list[Table] = [(title, [HEADER, *map(_cells, rows)])]
    write_files(options, rows, tables, setting, LEGEND)
    print("\n".join([*setting.lines(), "", format_text(tables), "", *LEGEND]))
    return int(any(row.is_wrong for row in rows))


def write_edges(path: Path, scale: int, n_wanted: int) -> Reference:
    """Write about `n_wanted` distinct edges to a text, and compute their ranks.

    Vertices without edges have no numbers, as a text cannot have them.
    """
    import pyarrow as pa
    import pyarrow.csv as csv

    keys = make_keys(scale, n_wanted)
    ids, numbers = np.unique(np.concatenate([keys >> scale, keys & ((1 << scale) - 1)]), return_inverse=True)
    rows, cols = np.split(np.random.default_rng(3).permutation(len(ids))[numbers], 2)
    form = csv.WriteOptions(include_header=False, delimiter=" ")
    csv.write_csv(pa.table({"i": rows, "j": cols}), path, form)
    return Reference.compute(rows, cols)


def _check(program: str, path: Path, reference: Reference) -> float:
    say(f"checking {program}")
    run(program, path)
    table = pq.read_table(_name_output(path)).sort_by("id")
    assert np.array_equal(table["id"].to_numpy(), np.arange(len(reference.ranks))), program
    return reference.measure_error(program, table["rank"].to_numpy())


def run(program: str, path: Path) -> Run:
    """Run a program in a process of its own; bytecode of modules is cached, as by an installation."""
    words = [sys.executable, "-c", SCRIPTS[program], str(path), str(_name_output(path))]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{program} ended with code {process.returncode}")
    return Run(wall_s, used.ru_utime + used.ru_stime)


def _name_output(path: Path) -> Path:
    return path.with_name("ranks.parquet")


def _cells(row: Row) -> Sequence[str]:
    walls = [own.wall_s for own in row.runs]
    return (
        row.program,
        f"{median(walls):.2f}",
        f"{min(walls):.2f}",
        f"{median(own.processor_s for own in row.runs):.2f}",
        str(len(walls)),
        f"{row.error_l1:.0e}",
        f"{row.ratio:.2f}",
        "WRONG RANKS" if row.is_wrong else "",
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--scale", type=int, default=19, help="2^scale vertices (19)")
    parser.add_argument("--edges", type=int, default=8_000_000, help="about as many edges (8,000,000)")
    parser.add_argument("--repeats", type=int, default=5, help="processes of each program (5)")
    parser.add_argument("--only", action="append", choices=tuple(SCRIPTS), help="program; repeatable (all)")
    add_file_options(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_program(main)
