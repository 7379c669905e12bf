"""Check, then time mgspmv beside other programs, in the same run and in turn.

    python -m benchmarks.compare --scales 18 20 22 --threads 2

The float32 pattern product beside SuiteSparse:GraphBLAS and SciPy; whole PageRank beside NetworKit, igraph,
scikit-network and NetworkX (`pip install mgspmv[bench]`); on the same R-MAT graphs. A program that is not installed is
named and left out; one whose result is wrong gets no time, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import products, rankings
from benchmarks.measure import Peer, Rounds, Row, compare, say
from benchmarks.program import add_file_options, make_parser, run_program
from benchmarks.stores import Graph, open_cache
from benchmarks.tables import LEGEND, Setting, format_text, tabulate, write_files
from mgspmv.model import default_threads

TASKS = {"product": ("float32 pattern product", products), "pagerank": ("PageRank", rankings)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparisons that were asked for; 1 when a result was wrong."""
    options = _parse(arguments)
    os.environ["OMP_NUM_THREADS"] = str(options.threads)  # read by each library's OpenMP when it is first imported
    setting = Setting.observe("benchmarks.compare", arguments)
    with open_cache(options.cache) as folder:
        rows = [row for scale in options.scales for row in _compare_at(scale, folder, options)]
    _report(rows, setting, options)
    return int(any(row.is_wrong for row in rows))


def choose_peers(peers: Sequence[Peer], wanted: Sequence[str] | None) -> list[Peer]:
    """Ours and those whose name contains one of `wanted`, in any case; all without it."""
    if wanted is None:
        return list(peers)
    return [p for p in peers if p.is_ours or any(w.lower() in p.name.lower() for w in wanted)]


def _compare_at(scale: int, folder: Path, options: argparse.Namespace) -> list[Row]:
    say(f"making the graph of scale {scale}")
    graph, rounds = Graph.make(scale, folder), Rounds(options.repeats, *options.seconds)
    rows: list[Row] = []
    for key, (title, module) in TASKS.items():
        if options.only in (None, key):
            peers = choose_peers(module.make_peers(), options.peers)
            rows += compare(title, peers, graph, options.threads, rounds, say)
    return rows


def _report(rows: Sequence[Row], setting: Setting, options: argparse.Namespace) -> None:
    tables = tabulate(rows)
    write_files(options, rows, tables, setting, LEGEND)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**30 if sys.platform == "darwin" else 2**20)
    print("\n".join([*setting.lines(), f"memory:   {peak:.1f} GiB at most", "", format_text(tables), "", *LEGEND]))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--scales", type=int, nargs="+", default=[18, 20, 22], help="2^scale vertices (18 20 22)")
    parser.add_argument("--threads", type=int, default=default_threads(), help="of each program (the processors)")
    parser.add_argument("--repeats", type=int, default=9, help="least number of rounds (9)")
    parser.add_argument(
        "--seconds", type=float, nargs=2, default=[5, 150], metavar=("LEAST", "MOST"), help="of all rounds (5 150)"
    )
    parser.add_argument("--only", choices=list(TASKS), help="one task")
    parser.add_argument("--peers", nargs="+", metavar="NAME", help="others than mgspmv to run, by parts of their names")
    add_file_options(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_program(main)
