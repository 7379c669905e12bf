"""`mgspmv bench pagerank` on the host, beside a cuGraph that is played: what it prints, what it catches and refuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mgspmv.bench import cugraph, pagerank, targets
from mgspmv.bench.cugraph import CugraphIterations
from mgspmv.bench.graphs import GRAPHS, count_out_arcs
from mgspmv.bench.iterations import Iterations, StepIterations
from mgspmv.bench.machines import Host
from mgspmv.bench.pagerank import Bench, Contender, Record, count_bytes, find_cases, make_own, time_iteration
from mgspmv.bench.rank_checks import iterate_ranks
from mgspmv.bench.rank_tables import format_report
from mgspmv.errors import BackendError, MissingDependencyError, OptionError
from mgspmv.model import CsrBlock
from tests.support.commands import invoke

QUICK = ("bench", "pagerank", "--backend", "cpu", "--size", "5000", "--rounds", "8")
SETTING = {"command": "mgspmv bench pagerank", "date": "today", "device": "a played one"}


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates are not measured and nothing is flushed, so that tests are quick."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MGSPMV_TEST_DATA", raising=False)
    monkeypatch.setattr("mgspmv.bench.machines._find_cache_bytes", lambda: 1 << 16)
    rates = type("Rates", (), {"copy_bytes_per_s": 1e10, "gathers_per_s": 1e8})
    monkeypatch.setattr("mgspmv.bench.ceilings.measure_rates", rates)


# --- a run -----------------------------------------------------------------------------------------------------------


def test_tables_and_records_of_a_run() -> None:
    stdout, stderr = invoke(*QUICK, "--output", "found.json")
    found = json.loads(Path("found.json").read_text(), parse_constant=pytest.fail)
    graphs = ["rmat22", "rmat24", "uniform24", "grid", "web", "rmat23-undirected"]
    lines = stdout.splitlines()
    assert [line.split(":")[0] for line in lines[1:7]] == ["command", "date", "host", "system", "versions", "cuGraph"]
    assert lines[6] == "cuGraph:  left out, cuGraph needs a GPU"
    assert [x for x in lines if x.startswith("### ")] == [
        "### Iterations",
        "### Preparation",
        "### Errors",
        "### Targets",
    ]
    assert [line.split(" | ")[0][2:] for line in lines if line.startswith("| ") and "graph |" not in line][
        1:7
    ] == graphs
    assert "- none on the host: they are for a device, beside cuGraph" in lines
    assert not any("wanted" in line for line in lines)
    assert "- cnr-2000: there is no graphs/cnr-2000.txt.gz in the folder that MGSPMV_TEST_DATA names" in lines
    assert [(r["graph"], r["contender"]) for r in found["records"]] == [
        (g, c) for g in graphs for c in ("float32", "exact")
    ]
    for record in found["records"]:
        assert f"{record['graph']} {record['contender']}: " in stderr
        assert record["edges_per_s"] == pytest.approx(record["n_edges"] / record["iteration_s"])
        assert record["prepare_iterations"] == pytest.approx(record["prepare_s"] / record["iteration_s"])
        bytes_moved = count_bytes(record["n_vertices"], record["n_edges"], record["contender"])
        assert record["limit_share"] == pytest.approx(bytes_moved / 1e10 / record["iteration_s"])
        assert "ratio" not in record
        assert record["error"] < (1e-6 if record["contender"] == "float32" else 1e-12)
    assert set(found["left_out"]) == {"cnr-2000", "mdual"}
    assert found["copy_bytes_per_s"] == 1e10


def test_some_graphs_and_one_precision() -> None:
    stdout, _ = invoke(*QUICK, "--only", "web", "--only", "grid", "--precision", "exact")
    assert "| web |" in stdout
    assert "| grid |" in stdout
    assert "rmat" not in stdout
    assert "float32" not in stdout.replace("old and new", "").partition("- ms:")[0]


@pytest.mark.parametrize("command", [("pagerank", "--only", "mdual"), ("spmv", "--matrix", "xenon1")])
def test_what_leaves_everything_out_fails(command, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("MGSPMV_TEST_DATA", str(tmp_path))
    stdout, stderr = invoke("bench", *command, "--backend", "cpu", code=2)
    assert "in the folder that MGSPMV_TEST_DATA names" in stdout
    assert "error: nothing was timed: every " in stderr


def test_a_file_that_cannot_be_written(tmp_path) -> None:
    (tmp_path / "found.json").symlink_to(tmp_path / "none" / "found.json")
    _, stderr = invoke(*QUICK, "--only", "grid", "--output", str(tmp_path / "found.json"), code=4)
    assert f"error: cannot write {tmp_path / 'found.json'}: No such file or directory" in stderr


def test_a_list_of_graphs() -> None:
    stdout, _ = invoke("bench", "pagerank", "--list")
    assert "rmat27" in stdout
    assert "about 2,281,701,376 arcs on a device; only by name" in stdout
    assert "about 268,435,456 arcs on a device; 1,048,576 on the host" in stdout
    assert "graphs/cnr-2000.txt.gz, not in $MGSPMV_TEST_DATA" in stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--only", "road"], "there is no graph 'road' in the benchmark; `mgspmv bench pagerank --list` names them"),
        (["--precision", "float64"], "--precision must be one of 'float32', 'exact', 'both', not 'float64'"),
        (["--output", "no/such/found.json"], "--output no/such/found.json: wanted a file in a folder that is there"),
        (["--backend", "rocm"], "--backend must be one of 'auto', 'cpu', 'cuda', not 'rocm'"),
    ],
)
def test_wrong_options(options: list[str], message: str) -> None:
    stdout, stderr = invoke(*QUICK, *options, code=2)
    assert stderr.startswith(f"error: {message}")
    assert stdout == ""


def test_the_greatest_graph_is_for_a_device_and_by_name() -> None:
    with pytest.raises(OptionError, match="rmat27 has 2,281,701,376 arcs, for a device; add --backend cuda, or --size"):
        find_cases(["rmat27"], "cpu", None)
    assert "rmat27" not in [case.name for case in find_cases([], "cuda", None)]
    [case] = find_cases(["rmat27"], "cpu", 17 << 8)
    assert case.load(Host()).nnz == 17 << 8


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


def report(bench: Bench) -> str:
    return format_report(SETTING, bench.records, bench.left_out, 1e10)


def test_an_iteration_is_what_more_of_them_take_more() -> None:
    [record] = run_bench(play("float32")[0]).records
    assert record.iteration_s == pytest.approx(0.25)
    assert record.prepare_s == 0.5
    assert record.prepare_iterations == pytest.approx(2)


def test_what_is_run_and_closed() -> None:
    contender, made = play("float32")
    run_bench(contender)
    [played] = made
    assert played.advanced == [5] * 4 + [25] * 4
    assert played.is_closed


@pytest.mark.parametrize(("name", "relative"), [("float32", 1.5e-4), ("exact", 2e-9), ("cugraph", 1.5e-4)])
def test_wrong_ranks_get_no_time(name: str, relative: float) -> None:
    def spoil(ranks: np.ndarray) -> None:
        ranks[77] *= 1 + relative

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
    assert f"- web, {name}: WRONG: 1 of" in report(bench)
    assert "| web | " in report(bench)
    assert " WRONG |" in report(bench)


def test_ranks_that_are_wrong_by_less_than_a_precision_permits_are_right() -> None:
    def spoil(ranks: np.ndarray) -> None:
        ranks[77] *= 1 + 0.9e-4

    assert run_bench(play("float32", spoil)[0]).records[0].problem is None


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
    assert "- web, cugraph: it converged within 5 iterations" in report(bench)


def test_more_iterations_that_take_no_longer_have_no_time(monkeypatch) -> None:
    monkeypatch.setattr(Clock, "per_iteration", 0.0)
    [record] = run_bench(play("float32")[0]).records
    assert record.problem == "25 iterations took no longer than 5: 7000 and 7000 ms"


def test_the_ratio_is_to_the_faster_peer() -> None:
    bench = run_bench(play("cugraph", is_peer=True)[0], play("float32")[0])
    assert bench.records[1].ratio == pytest.approx(1)
    slow, fast, own = (replace(bench.records[k], iteration_s=s) for k, s in ((0, 0.4), (0, 0.2), (1, 0.1)))
    fast = replace(fast, contender="cugraph-compact", prepare_s=3.0)
    table = format_report(SETTING, [slow, fast, own], {}, 1e10)
    assert next(line.split(" | ")[3:5] for line in table.splitlines() if line.startswith("| web")) == ["200", "100"]
    assert "| web | 3 | 500 |" in table


def test_vertices_without_arcs_are_left_out_for_one_peer() -> None:
    def make(machine: Any, block: CsrBlock, weight: Any) -> Iterations:
        played = Played(block, weight, lambda _: None, False)
        is_there = (weight > 0) | (np.diff(block.indptr) > 0)
        played._ranks = iterate_ranks(np, block, weight, is_there, 10)
        return played

    compact = Contender("cugraph-compact", make, 1e-4, is_peer=True, keeps_isolated=False)
    bench = run_bench(play("cugraph", is_peer=True)[0], compact, play("exact")[0], graph="rmat22")
    assert [r.problem for r in bench.records] == [None] * 3
    assert bench.records[0].n_isolated > 10
    assert [r.peer_error is None for r in bench.records] == [True, True, False]
    # A graph without such vertices is not run a second time.
    bench = run_bench(play("cugraph", is_peer=True)[0], compact, play("exact")[0], graph="grid")
    assert [r.contender for r in bench.records] == ["cugraph", "exact"]


def test_what_cannot_be_made_or_does_not_fit_is_named_and_the_others_go_on() -> None:
    def refuse(*_: Any) -> Iterations:
        raise BackendError("cuGraph has no wish to")

    def fill(*_: Any) -> Iterations:
        raise MemoryError("0 bytes")

    contenders = (Contender("cugraph", refuse, 1.0, is_peer=True), Contender("float32", fill, 1.0), play("exact")[0])
    bench = run_bench(*contenders)
    assert [r.problem for r in bench.records] == ["cuGraph has no wish to", "does not fit into memory", None]
    text = report(bench)
    assert "- web, cugraph: cuGraph has no wish to" in text
    assert "float32, preparation in iterations: wanted at most 25, found ; not timed: web: NOT MET" in text


def test_the_program_fails_when_ranks_are_wrong(monkeypatch) -> None:
    class Wrong(StepIterations):
        def ranks(self) -> np.ndarray:
            return super().ranks() * 1.001

    def make(machine: Any, block: CsrBlock, weight: Any, precision: Any) -> Iterations:
        return (Wrong if precision == "float32" else StepIterations)(machine, block, weight, precision)

    monkeypatch.setattr(pagerank, "make_ours", make)
    stdout, stderr = invoke(*QUICK, "--only", "grid", code=1)
    assert stderr.endswith("error: wrong ranks: float32 on grid; see the tables\n")
    assert "WRONG" in stdout


# --- this project's own ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["float32", "exact"])
def test_steps_begin_anew_after_each_preparation(precision: Any) -> None:
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


def test_bytes_of_an_iteration() -> None:
    assert count_bytes(10, 100, "float32") == 4 * 100 + 4 * 10 * 4
    assert count_bytes(10, 100, "exact") == 4 * 100 + 4 * 10 * 8


# --- targets ---------------------------------------------------------------------------------------------------------


def make_record(graph: str, contender: str = "float32", ratio: float | None = 3.0, **more: Any) -> Record:
    values: dict[str, Any] = {
        "n_vertices": 1000,
        "n_isolated": 0,
        "n_edges": 60_000_000,
        "prepare_s": 0.1,
        "iteration_s": 0.01,
        "prepare_iterations": 10.0,
        "edges_per_s": 6e9,
        "limit_share": 0.5,
        "error": 1e-7,
        "ratio": ratio,
    }
    return Record(graph, "any", contender, contender.startswith("cu"), **values | more)


def judge(*records: Record) -> dict[str, tuple[str, bool]]:
    return {t.name: (t.found, t.is_met) for t in targets.judge_targets(records)}


def test_ratios_are_judged_one_by_one_and_in_the_mean_of_the_large() -> None:
    large = [make_record("a", ratio=2.0), make_record("b", ratio=3.2)]
    real = make_record("c", ratio=2.1, n_edges=3_000_000)
    found = judge(*large, real)
    assert found["float32, each graph beside cuGraph"] == ("2.00 (a)", True)
    assert found["float32, geometric mean of the large"] == ("2.53, of 2", True)
    slow = replace(real, ratio=1.99)
    found = judge(*large, slow)
    assert found["float32, each graph beside cuGraph"] == ("1.99 (c)", False)
    assert found["float32, geometric mean of the large"] == ("2.53, of 2", True)
    found = judge(large[0], replace(large[1], ratio=3.1), real)
    assert found["float32, geometric mean of the large"] == ("2.49, of 2", False)


def test_exact_has_targets_of_its_own() -> None:
    found = judge(make_record("a", "exact", 1.4), make_record("b", "exact", 2.4))
    assert found["exact, each graph beside cuGraph"] == ("1.40 (a)", True)
    assert found["exact, geometric mean of the large"] == ("1.83, of 2", True)
    assert "float32, each graph beside cuGraph" not in found


def test_what_was_not_timed_meets_no_target() -> None:
    wrong = make_record("b", ratio=None, prepare_iterations=None, edges_per_s=None, problem="wrong", is_wrong=True)
    found = judge(make_record("a"), wrong)
    assert found["float32, each graph beside cuGraph"] == ("3.00 (a); not timed: b", False)
    assert found["float32, geometric mean of the large"] == ("3.00, of 1; not timed: b", False)
    assert found["float32, preparation in iterations"] == ("10.0 (a); not timed: b", False)


def test_preparation_is_judged_by_the_longest() -> None:
    name = "float32, preparation in iterations"
    records = make_record("a"), make_record("b", prepare_iterations=25.0)
    assert judge(*records)[name] == ("25.0 (b)", True)
    assert judge(*records, make_record("c", prepare_iterations=25.1))[name] == ("25.1 (c)", False)


def test_the_greatest_graph_is_judged_by_its_rate_and_needs_no_cugraph() -> None:
    name = "float32, edges per second of rmat27 beside rmat24"
    greatest = make_record("rmat27", ratio=None, edges_per_s=3.6e9)
    assert judge(make_record("rmat24"), greatest)[name] == ("60%", True)
    assert judge(make_record("rmat24"), replace(greatest, edges_per_s=3.5e9))[name] == ("58%", False)
    assert judge(make_record("rmat24"), greatest)["float32, each graph beside cuGraph"] == ("3.00 (rmat24)", True)
    assert name not in judge(greatest)


def test_the_table_has_means_and_a_line_for_each_target() -> None:
    records = [
        record
        for graph, ratio in (("a", 2.0), ("b", 4.5))
        for record in (
            make_record(graph, "cugraph", None),
            make_record(graph, "float32", ratio),
            make_record(graph, "exact", ratio / 2),
        )
    ]
    text = format_report(SETTING, records, {}, 4.25e12)
    assert "| geometric mean from 50,000,000 edges |  |  |  |  | **3.00** |  |  |  | **1.50** |  |  |" in text
    assert "- float32, each graph beside cuGraph: wanted at least 2.0, found 2.00 (a): met" in text
    assert "- exact, each graph beside cuGraph: wanted at least 1.4, found 1.00 (a): NOT MET" in text
    assert "4,250 GB/s in this run" in text
    assert "not compared" not in text


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


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pylibcugraph", None)


@pytest.mark.parametrize("keep_isolated", [True, False])
def test_cugraphs_ranks_are_put_in_the_order_of_the_graph(keep_isolated: bool, played: list[str]) -> None:
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


def test_cugraph_in_a_run(played: list[str]) -> None:
    class Device(Host):
        backend = "cuda"

    peers, found = pagerank.find_peers(Device())
    assert found == "pylibcugraph 26.10.00"
    bench = Bench(Host(), [*peers, *make_own(["float32"])], 2, say=lambda _: None)
    [case] = find_cases(["rmat22"], "cpu", 5000)
    bench.run(case)
    assert [r.contender for r in bench.records] == ["cugraph", "cugraph-compact", "float32"]
    assert [r.problem for r in bench.records] == [None] * 3
    peer_s = min(r.iteration_s or 0 for r in bench.records[:2])
    assert bench.records[2].ratio == pytest.approx(peer_s / (bench.records[2].iteration_s or 0))


def test_what_cugraph_raises_is_said(played: list[str], monkeypatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("non-success value returned from cugraph_pagerank: CUGRAPH_UNKNOWN_ERROR")

    monkeypatch.setattr(sys.modules["pylibcugraph"], "pagerank", fail)
    iterations = CugraphIterations(Host(), GRAPHS["grid"].make(np, 500))
    iterations.prepare()
    with pytest.raises(BackendError, match="fail of cuGraph failed: non-success value returned from cugraph_pagerank"):
        iterations.advance(5)


def test_cugraph_cannot_do_2_to_the_31_arcs(monkeypatch) -> None:
    monkeypatch.setattr(cugraph, "INT32_LIMIT", 1000)
    with pytest.raises(
        BackendError, match=r"cuGraph takes fewer than 2\^31 arcs with 32-bit vertices and this graph has"
    ):
        CugraphIterations(Host(), GRAPHS["grid"].make(np, 5000))


def test_a_missing_cugraph_is_named(missing: None) -> None:
    class Device(Host):
        backend = "cuda"

    with pytest.raises(MissingDependencyError, match=r"cuGraph is not installed \(.*\); install pylibcugraph-cu12 or"):
        cugraph.load_cugraph()
    peers, found = pagerank.find_peers(Device())
    assert peers == []
    assert found.startswith("left out, cuGraph is not installed (")
