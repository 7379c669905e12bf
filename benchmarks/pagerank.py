"""Check, then time iterations of PageRank on large graphs, on a GPU compared with those of cuGraph.

    python -m benchmarks.pagerank --json found.json > found.md
    python -m benchmarks.pagerank --list
    python -m benchmarks.pagerank --only web --only rmat24 --precision float32 --rounds 10

Tables are Markdown. Ranks that are wrong get no time, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from benchmarks.ceilings import Ceilings
from benchmarks.cugraph import CugraphIterations, load_cugraph
from benchmarks.graphs import GRAPHS, REAL_GRAPHS, count_out_arcs, find_isolated, read_graph
from benchmarks.iterations import Iterations, make_ours, time_iteration
from benchmarks.machines import Machine, choose_machine
from benchmarks.matrices import DATA_VARIABLE, REAL, find_real
from benchmarks.measure import say
from benchmarks.program import (
    add_backend_option,
    add_json_option,
    add_precision_option,
    add_size_options,
    choose_backend,
    choose_precisions,
    end,
    make_parser,
    print_names,
    run_program,
    write_json,
)
from benchmarks.rank_checks import N_CHECKED, PEER_TOLERANCE, TOLERANCES, Comparison, compare_ranks, iterate_ranks
from benchmarks.rank_records import PEERS, PREPARATIONS, Record
from benchmarks.rank_tables import format_report
from benchmarks.spmv import HOST_SHARE, Say
from benchmarks.tables import Setting
from mgspmv.errors import MgspmvError, MissingDependencyError, OptionError
from mgspmv.model import CsrBlock, Precision

ROUNDS = 5


@dataclass(frozen=True)
class Case:
    """A graph of the benchmark."""

    name: str
    family: str
    load: Callable[[Machine], CsrBlock]
    """Makes or reads it, where the machine has its arrays."""


@dataclass(frozen=True)
class Contender:
    """What is timed."""

    name: str
    make: Callable[[Machine, CsrBlock, Any], Iterations]
    """Called with the machine, the graph and its out-weights."""
    tolerance: float
    """Largest relative difference of a rank that is permitted."""
    is_peer: bool = False
    keeps_isolated: bool = True
    """Whether vertices without arcs count."""


# --- the command line ------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Time what was asked for; 1 when ranks were wrong."""
    options = _parse(arguments)
    if options.list:
        print_names(graphs=list(list_graphs()))
        return 0
    backend = choose_backend(options.backend)
    cases = find_cases(options.only, backend, options.size)
    machine = choose_machine(backend)
    peers, peer = find_peers(machine)
    own = make_own(choose_precisions(options.precision))
    setting = Setting.observe("benchmarks.pagerank", arguments, machine).note(cuGraph=peer)
    bench = Bench(machine, [*peers, *own], options.rounds or ROUNDS, say)
    for case in cases:
        bench.run(case)
        write_json(options.json, bench.to_dict(setting))  # after each: an interrupted run leaves what it found
    if not bench.records:
        raise OptionError("nothing was timed: every graph was left out")
    report = format_report(setting, bench.records, bench.left_out, bench.ceilings.find_copy_rate())
    return end(report, "ranks", [f"{r.contender} on {r.graph}" for r in bench.records if r.is_wrong])


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a graph of --list; repeatable")
    add_precision_option(parser)
    add_backend_option(parser)
    add_size_options(parser, f"times each is timed; the least counts ({ROUNDS})")
    parser.add_argument("--list", action="store_true", help="name the graphs, and run nothing")
    add_json_option(parser)
    return parser.parse_args(arguments)


# --- what is run -----------------------------------------------------------------------------------------------------


def find_cases(names: Iterable[str], backend: str, size: int | None) -> list[Case]:
    """The graphs of these names; all but the greatest where none is named.

    Parameters
    ----------
    size : arcs of each made graph, about; default as on the list, on the host 256 times fewer

    Raises
    ------
    OptionError : no graph has that name; it is too large for the host
    """
    everything = [name for name, recipe in GRAPHS.items() if not recipe.by_name_only] + list(REAL_GRAPHS)
    return [_make_case(name, backend, size) for name in list(names) or everything]


def _make_case(name: str, backend: str, size: int | None) -> Case:
    if name in REAL_GRAPHS:
        return Case(name, "real", lambda machine: read_graph(machine.xp, name))
    if name not in GRAPHS:
        raise OptionError(f"there is no graph {name!r}; `python -m benchmarks.pagerank --list` names them")
    recipe = GRAPHS[name]
    if recipe.by_name_only and size is None and backend == "cpu":
        raise OptionError(f"{name} has {recipe.size:,} arcs, for a device; add --backend cuda, or --size")
    n = size or (recipe.size if backend == "cuda" else max(1, recipe.size // HOST_SHARE))
    return Case(name, recipe.family, lambda machine: recipe.make(machine.xp, n))


def list_graphs() -> Iterator[tuple[str, str, str]]:
    """Name, structure and arcs of every graph."""
    for recipe in GRAPHS.values():
        said = "; only by name" if recipe.by_name_only else f"; {recipe.size // HOST_SHARE:,} on the host"
        yield recipe.name, recipe.family, f"about {recipe.size:,} arcs on a device{said}"
    for name in REAL_GRAPHS:
        yield name, "real", REAL[name] if find_real(name) else f"{REAL[name]}, not in ${DATA_VARIABLE}"


def find_peers(machine: Machine) -> tuple[list[Contender], str]:
    """cuGraph with all vertices and with those that have arcs; and its version, or why it is not here."""
    if machine.backend == "cpu":
        return [], "left out, cuGraph needs a GPU"
    try:
        found = f"pylibcugraph {load_cugraph().__version__}"
    except MissingDependencyError as error:
        return [], f"left out, {error}"
    return [_make_peer(*peer) for peer in zip(PEERS, (True, False), strict=True)], found


def _make_peer(name: str, keeps_isolated: bool) -> Contender:
    def make(machine: Machine, block: CsrBlock, _: Any) -> Iterations:
        return CugraphIterations(machine, block, keeps_isolated)

    return Contender(name, make, PEER_TOLERANCE, is_peer=True, keeps_isolated=keeps_isolated)


def make_own(precisions: Iterable[Precision]) -> list[Contender]:
    """This project in these precisions."""
    return [Contender(p, partial(make_ours, precision=p), TOLERANCES[p]) for p in precisions]


# --- running ---------------------------------------------------------------------------------------------------------


class Bench:
    """Runs cases on a machine and keeps what it found.

    Parameters
    ----------
    contenders : in this order; peers come first
    rounds : how often runs of iterations are timed; the least counts
    say : told what was found as soon as it is
    """

    def __init__(self, machine: Machine, contenders: Sequence[Contender], rounds: int, say: Say) -> None:
        self._machine, self._contenders, self._rounds, self._say = machine, contenders, rounds, say
        self.ceilings = Ceilings(machine)
        self.records: list[Record] = []
        self.left_out: dict[str, str] = {}
        """Graphs that are not here, and why."""

    def run(self, case: Case) -> None:
        """Check and time every contender on a graph."""
        try:
            self._run(case, case.load(self._machine))
        except (FileNotFoundError, MemoryError) as error:
            self.left_out[case.name] = _describe_error(error)
            self._say(f"{case.name}: left out, {self.left_out[case.name]}")
        self._machine.free()

    def _run(self, case: Case, block: CsrBlock) -> None:
        xp = self._machine.xp
        weight = count_out_arcs(xp, block)
        is_isolated = find_isolated(xp, block, weight)
        n_isolated = int(is_isolated.sum())
        references = {True: self._iterate(block, weight, xp.ones(block.n_rows, bool))}
        if n_isolated and any(not c.keeps_isolated for c in self._contenders):
            references[False] = self._iterate(block, weight, ~is_isolated)
        del is_isolated
        self._machine.free()
        measured = _Measured(references)
        for contender in self._contenders:
            if contender.keeps_isolated not in references:
                continue  # all vertices have arcs, and the two are the same
            shape = (block.n_rows, n_isolated, block.nnz)
            record = Record(case.name, case.family, contender.name, contender.is_peer, *shape)
            record = self._measure(record, contender, block, weight, measured)
            record = self._rate(record, contender, measured)
            self.records.append(record)
            self._say(describe_record(record))

    def _iterate(self, block: CsrBlock, weight: Any, is_counted: Any) -> np.ndarray:
        return self._machine.get(iterate_ranks(self._machine.xp, block, weight, is_counted, N_CHECKED))

    def _measure(
        self, record: Record, contender: Contender, block: CsrBlock, weight: Any, measured: _Measured
    ) -> Record:
        """Check a contender, and time it if it is right."""
        iterations: Iterations | None = None
        try:
            iterations = contender.make(self._machine, block, weight)
            iterations.prepare()
            iterations.advance(N_CHECKED)
            record = measured.check(record, contender, iterations.ranks())
            return record if record.is_wrong else self._time(record, iterations)
        except (MgspmvError, MemoryError) as error:
            return replace(record, problem=_describe_error(error))
        finally:
            if iterations is not None:
                iterations.close()
            del iterations
            self._machine.free()

    def _time(self, record: Record, iterations: Iterations) -> Record:
        prepare_s = median(iterations.prepare() for _ in range(PREPARATIONS))
        seconds = time_iteration(self._machine, iterations, self._rounds)
        if isinstance(seconds, str):
            return replace(record, problem=seconds)
        return replace(record, prepare_s=prepare_s, iteration_s=seconds)

    def _rate(self, record: Record, contender: Contender, measured: _Measured) -> Record:
        """Add what follows from the times."""
        prepare_s, iteration_s = record.prepare_s, record.iteration_s
        if prepare_s is None or iteration_s is None:
            return record
        record = replace(record, edges_per_s=record.n_edges / iteration_s)
        if record.is_peer:
            measured.peer_s = min(iteration_s, measured.peer_s)
            return record
        limit_s = count_bytes(record.n_vertices, record.n_edges, contender.name) / self.ceilings.find_copy_rate()
        return replace(
            record,
            prepare_iterations=prepare_s / iteration_s,
            limit_s=limit_s,
            limit_share=limit_s / iteration_s,
            ratio=_finite(measured.peer_s / iteration_s),
        )

    def to_dict(self, setting: Setting) -> dict[str, Any]:
        """For scripts."""
        return {
            "setting": asdict(setting),
            "copy_bytes_per_s": self.ceilings.find_copy_rate(),
            "records": [record.to_dict() for record in self.records],
            "left_out": self.left_out,
        }


@dataclass
class _Measured:
    """What is known of a graph so far."""

    references: dict[bool, np.ndarray]
    """The ranks in float64, with isolated vertices and without."""
    peer_ranks: np.ndarray | None = None
    """Of the first peer that was right and keeps isolated vertices."""
    peer_s: float = math.inf
    """An iteration of the fastest peer; infinite where there is none."""

    def check(self, record: Record, contender: Contender, ranks: np.ndarray) -> Record:
        """Compare ranks with the reference, and with a peer's."""
        reference = self.references[contender.keeps_isolated]
        found = [compare_ranks(ranks, reference, contender.tolerance, "the iteration in float64")]
        if self.peer_ranks is not None and contender.keeps_isolated:
            found.append(compare_ranks(ranks, self.peer_ranks, PEER_TOLERANCE, "cuGraph"))
        record = _note(record, *found)
        if contender.is_peer and contender.keeps_isolated and not record.is_wrong:
            self.peer_ranks = ranks
        return record


def _note(record: Record, own: Comparison, peer: Comparison | None = None) -> Record:
    problem = own.problem or (peer.problem if peer else None)
    return replace(
        record,
        problem=problem,
        is_wrong=problem is not None,
        error=_finite(own.error),
        peer_error=_finite(peer.error) if peer else None,
    )


def count_bytes(n_vertices: int, n_edges: int, precision: str) -> int:
    """Least bytes of an iteration: 4 an edge, and four vectors once, old and new ranks and old and new z."""
    return 4 * n_edges + 4 * n_vertices * (4 if precision == "float32" else 8)


def describe_record(record: Record) -> str:
    """A line for who waits."""
    head = f"{record.graph} {record.contender}:"
    if record.iteration_s is None or record.prepare_s is None or record.edges_per_s is None:
        return f"{head} {'WRONG: ' if record.is_wrong else ''}{record.problem}"
    parts = [
        f"{record.iteration_s * 1e3:.4g} ms an iteration",
        f"{record.edges_per_s / 1e9:.4g} G edges/s",
        f"prepared in {record.prepare_s * 1e3:.4g} ms",
        f"error {record.error:.2g}",
    ]
    if record.ratio is not None:
        parts.append(f"{record.ratio:.2f} x")
    return f"{head} {', '.join(parts)}"


def _describe_error(error: Exception) -> str:
    said = str(error)
    return "does not fit into memory" if isinstance(error, MemoryError) and not isinstance(error, MgspmvError) else said


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


if __name__ == "__main__":
    run_program(main)
