"""The benchmark of iterations checks ranks before it times them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import pagerank
from benchmarks.graphs import GRAPHS
from benchmarks.iterations import Iterations, StepIterations
from benchmarks.machines import Host
from benchmarks.pagerank import Bench, Contender, find_cases
from benchmarks.rank_checks import iterate_ranks
from mgspmv.errors import BackendError, OptionError
from mgspmv.model import CsrBlock

QUICK = ("--backend", "cpu", "--size", "5000", "--rounds", "8")


def test_all_graphs_are_right_and_timed() -> None:
    assert pagerank.main([*QUICK, "--json", "found.json"]) == 0
    found = json.loads(Path("found.json").read_text(), parse_constant=pytest.fail)
    graphs = [name for name, recipe in GRAPHS.items() if not recipe.by_name_only]
    keys = [(r["graph"], r["contender"]) for r in found["records"]]
    assert keys == [(graph, precision) for graph in graphs for precision in ("float32", "exact")]
    for record in found["records"]:
        assert record["edges_per_s"] == pytest.approx(record["n_edges"] / record["iteration_s"])
        assert record["error"] < (1e-6 if record["contender"] == "float32" else 1e-12)
    assert set(found["left_out"]) == {"cnr-2000", "mdual"}


def test_wrong_options() -> None:
    for name, message in (
        ("road", "there is no graph 'road'; `python -m benchmarks.pagerank --list` names them"),
        ("rmat27", "rmat27 has 2,281,701,376 arcs, for a device; add --backend cuda, or --size"),
        ("mdual", "nothing was timed: every graph was left out"),
    ):
        with pytest.raises(OptionError, match=message):
            pagerank.main(["--backend", "cpu", "--only", name])


class Played:
    """Right ranks; `spoil` changes them."""

    def __init__(self, block: CsrBlock, weight: Any, spoil: Callable[[np.ndarray], None], has_stopped: bool) -> None:
        self._ranks = iterate_ranks(np, block, weight, np.ones(block.n_rows, bool), 10)
        self.has_stopped = has_stopped
        spoil(self._ranks)

    def prepare(self) -> float:
        return 0.5

    def advance(self, k: int) -> None:
        pass

    def ranks(self) -> np.ndarray:
        return self._ranks

    def close(self) -> None:
        pass


class Clock(Host):
    """What is advanced takes 0.25 seconds for each iteration, and 7 besides."""

    def clock(self, run: Any) -> float:
        return 7 + run.args[0] * 0.25


def play(
    name: str, spoil: Callable[[np.ndarray], None] = lambda _: None, has_stopped: bool = False, **more: Any
) -> Contender:
    def make(machine: Any, block: CsrBlock, weight: Any) -> Iterations:
        return Played(block, weight, spoil, has_stopped)

    return Contender(name, make, {"exact": 1e-9}.get(name, 1e-4), **more)


def run_bench(*contenders: Contender) -> list[Any]:
    bench = Bench(Clock(), contenders, 3, say=lambda _: None)
    bench.run(find_cases(["web"], "cpu", 5000)[0])
    return bench.records


def scale_one(factor: float) -> Callable[[np.ndarray], None]:
    def spoil(ranks: np.ndarray) -> None:
        ranks[77] *= factor

    return spoil


@pytest.mark.parametrize(("name", "relative"), [("float32", 1.5e-4), ("exact", 2e-9), ("cugraph", 1.5e-4)])
def test_wrong_ranks_get_no_time(name: str, relative: float) -> None:
    record, right = run_bench(play(name, scale_one(1 + relative), is_peer=name == "cugraph"), play("float64"))
    assert record.is_wrong
    assert (record.iteration_s, right.iteration_s, right.ratio) == (None, 0.25, None)
    assert record.error == pytest.approx(relative, rel=1e-3)
    assert "ranks are wrong after 10 iterations: that of vertex 77 is" in str(record.problem)


def test_ranks_are_compared_with_cugraphs_too() -> None:
    peer, own = run_bench(play("cugraph", scale_one(1 + 0.8e-4), is_peer=True), play("float32", scale_one(1 - 0.8e-4)))
    assert peer.problem is None
    assert own.is_wrong
    assert own.peer_error == pytest.approx(1.6e-4, rel=1e-3)


def test_what_converged_or_cannot_be_made_has_no_time() -> None:
    def refuse(*_: Any) -> Iterations:
        raise BackendError("cuGraph has no wish to")

    refusing = Contender("cugraph-compact", refuse, 1.0, is_peer=True)
    stopped, refused, own = run_bench(play("cugraph", has_stopped=True, is_peer=True), refusing, play("float32"))
    assert stopped.problem == "it converged within 5 iterations, so that the time of one is not known"
    assert refused.problem == "cuGraph has no wish to"
    assert not stopped.is_wrong
    assert (stopped.iteration_s, own.iteration_s, own.ratio) == (None, 0.25, None)


def test_the_program_fails_when_ranks_are_wrong(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    class Wrong(StepIterations):
        def ranks(self) -> np.ndarray:
            return super().ranks() * 1.001

    def make(machine: Any, block: CsrBlock, weight: Any, precision: Any) -> Iterations:
        return (Wrong if precision == "float32" else StepIterations)(machine, block, weight, precision)

    monkeypatch.setattr(pagerank, "make_ours", make)
    assert pagerank.main([*QUICK, "--only", "grid"]) == 1
    assert capsys.readouterr().err.endswith("error: wrong ranks: float32 on grid; see the tables\n")
