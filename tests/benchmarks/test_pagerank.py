"""`mgspmv bench pagerank` on the host, with a stand-in for cuGraph, checks ranks before it times them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import cugraph, pagerank
from benchmarks.cugraph import CugraphIterations
from benchmarks.graphs import GRAPHS, count_out_arcs
from benchmarks.iterations import Iterations, StepIterations
from benchmarks.machines import Host
from benchmarks.pagerank import Bench, Contender, find_cases, time_iteration
from benchmarks.rank_checks import iterate_ranks
from mgspmv.errors import BackendError, MissingDependencyError, OptionError
from mgspmv.model import CsrBlock
from tests.support.commands import invoke

QUICK = ("bench", "pagerank", "--backend", "cpu", "--size", "5000", "--rounds", "8")


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates are not measured and nothing is flushed, so that tests are quick."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MGSPMV_TEST_DATA", raising=False)
    monkeypatch.setattr("benchmarks.machines._find_cache_bytes", lambda: 1 << 16)
    rates = type("Rates", (), {"copy_bytes_per_s": 1e10, "gathers_per_s": 1e8})
    monkeypatch.setattr("benchmarks.ceilings.measure_rates", rates)


# --- a run -----------------------------------------------------------------------------------------------------------


def test_all_graphs_are_right_and_timed() -> None:
    invoke(*QUICK, "--output", "found.json")
    found = json.loads(Path("found.json").read_text(), parse_constant=pytest.fail)
    graphs = [name for name, recipe in GRAPHS.items() if not recipe.by_name_only]
    keys = [(r["graph"], r["contender"]) for r in found["records"]]
    assert keys == [(graph, precision) for graph in graphs for precision in ("float32", "exact")]
    for record in found["records"]:
        assert record["edges_per_s"] == pytest.approx(record["n_edges"] / record["iteration_s"])
        assert record["error"] < (1e-6 if record["contender"] == "float32" else 1e-12)
    assert set(found["left_out"]) == {"cnr-2000", "mdual"}


def test_nothing_to_time_is_an_error(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("MGSPMV_TEST_DATA", str(tmp_path))
    for command in (("pagerank", "--only", "mdual"), ("spmv", "--matrix", "xenon1")):
        stdout, stderr = invoke("bench", *command, "--backend", "cpu", code=2)
        assert "in the folder that MGSPMV_TEST_DATA names" in stdout
        assert "error: nothing was timed: every " in stderr


def test_wrong_options() -> None:
    for options, message in (
        (["--only", "road"], "there is no graph 'road' in the benchmark; `mgspmv bench pagerank --list` names them"),
        (["--precision", "float64"], "--precision must be one of 'float32', 'exact', 'both', not 'float64'"),
        (["--output", "no/such/found.json"], "--output no/such/found.json: wanted a file in a folder that is there"),
        (["--backend", "rocm"], "--backend must be one of 'auto', 'cpu', 'cuda', not 'rocm'"),
    ):
        stdout, stderr = invoke(*QUICK, *options, code=2)
        assert stderr.startswith(f"error: {message}")
        assert stdout == ""
    Path("found.json").symlink_to("none/found.json")
    _, stderr = invoke(*QUICK, "--only", "grid", "--output", "found.json", code=4)
    assert "error: cannot write found.json: No such file or directory" in stderr
    with pytest.raises(OptionError, match="rmat27 has 2,281,701,376 arcs, for a device; add --backend cuda, or --size"):
        find_cases(["rmat27"], "cpu", None)


# --- contenders that are played --------------------------------------------------------------------------------------


class Played:
    """Right ranks; `spoil` changes them. Time passes only as `seconds` says."""

    def __init__(self, block: CsrBlock, weight: Any, spoil: Callable[[np.ndarray], None], has_stopped: bool) -> None:
        self._ranks = iterate_ranks(np, block, weight, np.ones(block.n_rows, bool), 10)
        self.has_stopped, self.is_closed = has_stopped, False
        spoil(self._ranks)
        self.advanced: list[int] = []

    def prepare(self) -> float:
        self.advanced = []
        return 0.5

    def advance(self, k: int) -> None:
        self.advanced.append(k)

    def ranks(self) -> np.ndarray:
        assert self.advanced == [10]
        return self._ranks

    def close(self) -> None:
        self.is_closed = True


class Clock(Host):
    """What is advanced takes `per_iteration` seconds for each iteration, and 7 besides."""

    per_iteration = 0.25

    def clock(self, run: Any) -> float:
        run()
        return 7 + run.args[0] * self.per_iteration


def play(
    name: str, spoil: Callable[[np.ndarray], None] = lambda _: None, has_stopped: bool = False, **more: Any
) -> tuple[Contender, list[Played]]:
    made: list[Played] = []

    def make(machine: Any, block: CsrBlock, weight: Any) -> Iterations:
        made.append(Played(block, weight, spoil, has_stopped))
        return made[-1]

    return Contender(name, make, {"exact": 1e-9}.get(name, 1e-4), **more), made


def run_bench(*contenders: Contender, graph: str = "web") -> Bench:
    bench = Bench(Clock(), contenders, 3, say=lambda _: None)
    [case] = find_cases([graph], "cpu", 5000)
    bench.run(case)
    return bench


def test_wrong_ranks_get_no_time() -> None:
    for name, relative in (("float32", 1.5e-4), ("exact", 2e-9), ("cugraph", 1.5e-4)):

        def spoil(ranks: np.ndarray, factor: float = 1 + relative) -> None:
            ranks[77] *= factor

        contender, made = play(name, spoil, is_peer=name == "cugraph")
        bench = run_bench(contender, *([play("float32")[0]] if name == "cugraph" else []))
        record = bench.records[0]
        assert bench.records[-1].ratio is None
        assert record.is_wrong
        assert record.iteration_s is None
        assert record.error == pytest.approx(relative, rel=1e-3)
        assert "ranks are wrong after 10 iterations: that of vertex 77 is" in str(record.problem)
        assert made[0].advanced == [10]
        assert made[0].is_closed


def test_ranks_are_compared_with_cugraphs_too() -> None:
    def up(ranks: np.ndarray) -> None:
        ranks[77] *= 1 + 0.8e-4

    def down(ranks: np.ndarray) -> None:
        ranks[77] *= 1 - 0.8e-4

    bench = run_bench(play("cugraph", up, is_peer=True)[0], play("float32", down)[0])
    peer, own = bench.records
    assert peer.problem is None
    assert own.is_wrong
    assert own.error == pytest.approx(0.8e-4, rel=1e-3)
    assert own.peer_error == pytest.approx(1.6e-4, rel=1e-3)
    assert "as cuGraph has it" in str(own.problem)


def test_a_run_that_converged_has_no_time() -> None:
    peer, _ = play("cugraph", has_stopped=True, is_peer=True)
    bench = run_bench(peer, play("float32")[0])
    stopped, own = bench.records
    assert stopped.problem == "it converged within 5 iterations, so that the time of one is not known"
    assert not stopped.is_wrong
    assert stopped.iteration_s is None
    assert own.iteration_s is not None
    assert own.ratio is None


def test_what_cannot_be_made_or_does_not_fit_is_named_and_the_others_go_on() -> None:
    def refuse(*_: Any) -> Iterations:
        raise BackendError("cuGraph has no wish to")

    def fill(*_: Any) -> Iterations:
        raise MemoryError("0 bytes")

    contenders = (Contender("cugraph", refuse, 1.0, is_peer=True), Contender("float32", fill, 1.0), play("exact")[0])
    bench = run_bench(*contenders)
    assert [r.problem for r in bench.records] == ["cuGraph has no wish to", "does not fit into memory", None]


def test_the_program_fails_when_ranks_are_wrong(monkeypatch) -> None:
    class Wrong(StepIterations):
        def ranks(self) -> np.ndarray:
            return super().ranks() * 1.001

    def make(machine: Any, block: CsrBlock, weight: Any, precision: Any) -> Iterations:
        return (Wrong if precision == "float32" else StepIterations)(machine, block, weight, precision)

    monkeypatch.setattr(pagerank, "make_ours", make)
    _, stderr = invoke(*QUICK, "--only", "grid", code=1)
    assert stderr.endswith("error: wrong ranks: float32 on grid; see the tables\n")


# --- this project's own ----------------------------------------------------------------------------------------------


def test_steps_begin_anew_after_each_preparation() -> None:
    for precision in ("float32", "exact"):
        host = Host()
        block = GRAPHS["rmat22"].make(np, 5000)
        weight = count_out_arcs(np, block)
        steps = StepIterations(host, block, weight, precision)
        for k in (3, 10):
            assert steps.prepare() > 0
            steps.advance(k - 1)
            steps.advance(1)
            wanted = iterate_ranks(np, block, weight, np.ones(block.n_rows, bool), k)
            assert steps.ranks().dtype == np.float64
            assert np.max(abs(steps.ranks() - wanted) / wanted) < (1e-5 if precision == "float32" else 1e-12)
        assert time_iteration(host, steps, 2) != 0
        steps.close()


# --- cuGraph, played by NumPy ----------------------------------------------------------------------------------------


class PlayedGraph:
    """What pylibcugraph would hold: vertices that have arcs, or those it was told of, in an order of its own."""

    def __init__(
        self, handle: Any, properties: Any, sources: Any, destinations: Any, weights: Any, **options: Any
    ) -> None:
        told = options.pop("vertices_array", None)
        assert options == {"store_transposed": True, "renumber": True, "do_expensive_check": False}
        assert (weights, sources.dtype, destinations.dtype) == (None, np.int32, np.int32)
        assert (properties.is_symmetric, properties.is_multigraph) == (False, False)
        vertices = np.unique(np.concatenate([sources, destinations])) if told is None else told
        self.vertices = vertices[::-1]
        self.sources, self.destinations = sources, destinations


def play_pagerank(
    handle: Any, graph: Any, a: Any, b: Any, c: Any, d: Any, *more: Any, fail_on_nonconvergence: bool
) -> Any:
    alpha, tol, k, do_expensive_check = more
    assert (a, b, c, d, alpha, tol) == (None, None, None, None, 0.85, 1e-30)
    assert not do_expensive_check
    assert not fail_on_nonconvergence
    n = int(graph.vertices.max()) + 1
    order = np.lexsort((graph.sources, graph.destinations))
    indptr = np.searchsorted(graph.destinations[order], np.arange(n + 1)).astype(np.int64)
    block = CsrBlock(0, n, indptr, graph.sources[order], None)
    is_there = np.isin(np.arange(n), graph.vertices)
    ranks = iterate_ranks(np, block, count_out_arcs(np, block), is_there, k)
    return graph.vertices, ranks[graph.vertices].astype(np.float32), k >= 50


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """pylibcugraph and rmm, and the memory resources that were set."""
    resources = ["plain"]
    plc, rmm = ModuleType("pylibcugraph"), ModuleType("rmm")
    plc.__dict__.update(
        __version__="26.10.00",
        ResourceHandle=object,
        GraphProperties=SimpleNamespace,
        SGGraph=PlayedGraph,
        pagerank=play_pagerank,
    )
    rmm.mr = SimpleNamespace(  # type: ignore[attr-defined]  # a played module
        get_current_device_resource=lambda: resources[-1],
        set_current_device_resource=resources.append,
        CudaAsyncMemoryResource=lambda: "pool",
    )
    monkeypatch.setitem(sys.modules, "pylibcugraph", plc)
    monkeypatch.setitem(sys.modules, "rmm", rmm)
    return resources


def test_cugraphs_ranks_are_put_in_the_order_of_the_graph(played: list[str], monkeypatch) -> None:
    for keep_isolated in (True, False):
        del played[1:]
        block = GRAPHS["rmat22"].make(np, 16 << 8)
        iterations = CugraphIterations(Host(), block, keep_isolated)
        assert iterations.prepare() > 0
        iterations.advance(10)
        weight = count_out_arcs(np, block)
        is_there = np.ones(256, bool) if keep_isolated else (weight > 0) | (np.diff(block.indptr) > 0)
        wanted = iterate_ranks(np, block, weight, is_there, 10)
        assert iterations.ranks().dtype == np.float64
        np.testing.assert_allclose(iterations.ranks(), wanted, rtol=1e-6)
        assert not iterations.has_stopped
        iterations.advance(50)
        assert iterations.has_stopped
        assert played == ["plain", "pool"]
        iterations.close()
        assert played == ["plain", "pool", "plain"]

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("non-success value returned from cugraph_pagerank: CUGRAPH_UNKNOWN_ERROR")

    monkeypatch.setattr(sys.modules["pylibcugraph"], "pagerank", fail)
    iterations = CugraphIterations(Host(), GRAPHS["grid"].make(np, 500))
    iterations.prepare()
    with pytest.raises(BackendError, match="fail of cuGraph failed: non-success value returned from cugraph_pagerank"):
        iterations.advance(5)


def test_graphs_that_cugraph_cannot_rank(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pylibcugraph", None)
    with pytest.raises(MissingDependencyError, match=r"cuGraph is not installed \(.*\); install pylibcugraph-cu12 or"):
        cugraph.load_cugraph()
    monkeypatch.setattr(cugraph, "INT32_LIMIT", 1000)
    with pytest.raises(BackendError, match=r"cuGraph takes fewer than 2\^31 arcs with 32-bit vertices and this graph"):
        CugraphIterations(Host(), GRAPHS["grid"].make(np, 5000))
