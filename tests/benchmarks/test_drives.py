"""That the benchmark of the drives runs, checks before it times, and fails when ranks are wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import drives
from benchmarks.drives import Row, Run
from benchmarks.graphs import Graph
from mgspmv.distribute.connect import start_local

SCALE, N_WORKERS = 8, 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with start_local(N_WORKERS, 1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("graphs")


@pytest.fixture
def command(cluster: Any, cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of a short run, on workers that all tests share."""

    def start(workers: int, threads: int) -> Any:
        assert (workers, threads) == (N_WORKERS, max(1, drives.default_threads() // N_WORKERS))
        return nullcontext(cluster)

    monkeypatch.setattr(drives, "start_local", start)
    given = {"--scale": SCALE, "--workers": N_WORKERS, "--repeats": 2, "--iterations": 5, "--cache": cache}
    return [str(word) for pair in given.items() for word in pair]


def spoil(monkeypatch: pytest.MonkeyPatch, *spoilt: str) -> None:
    """Let these drives give a first rank that is the next float, or 1 when these are all drives."""
    rank = drives.rank

    def rank_wrongly(matrix: Any, drive: str, *args: Any, **options: Any) -> Any:
        solution = rank(matrix, drive, *args, **options)
        if drive not in spoilt:
            return solution
        values = solution.values.copy()
        values[0] = 1.0 if len(spoilt) == len(drives.DRIVES) else np.nextafter(values[0], 1.0)
        return replace(solution, values=values)

    monkeypatch.setattr(drives, "rank", rank_wrongly)


def make_rows(**elapsed_s: float) -> list[Row]:
    """A row a drive, with one run each, as `add_runs` makes them."""
    rows = [Row(SCALE, 4, 1000, "exact", 5, drive, "2 x 1") for drive in drives.DRIVES]
    runs = {
        d: [Run({"product": s / 4, "exchange": s / 4, "schedule": s / 2}, 3e6, "right")] for d, s in elapsed_s.items()
    }
    return drives.add_runs(rows, runs, "right")


@pytest.mark.parametrize("precision", ["exact", pytest.param("float32", marks=pytest.mark.weekly)])
def test_all_drives_are_right_and_timed(
    precision: str, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, page = tmp_path / "found.json", tmp_path / "page.md"
    options = ["--edge-factors", "2", "4", "--precision", precision, "--json", str(found), "--markdown", str(page)]
    assert drives.main([*command, *options]) == 0
    rows = json.loads(found.read_text())["rows"]
    assert [(row["edge_factor"], row["drive"]) for row in rows] == [(f, d) for f in (2, 4) for d in drives.DRIVES]
    for row in rows:
        assert len(row["runs"]) == 2
        assert all(sum(run["seconds"].values()) > 0 for run in row["runs"])
        assert len({run["digest"] for other in rows for run in other["runs"]}) == 2, "one of each graph"
    printed, written = capsys.readouterr().out, page.read_text()
    for drive in drives.DRIVES:
        assert printed.count(f"  {drive} ") == written.count(f"| {drive} |") == 2


def test_bytes_are_those_of_a_worker_in_an_iteration(command: list[str], cluster: Any, cache: Path) -> None:
    options = drives._parse([*command, "--edge-factors", "4"])
    scheduler, superstep, embedded = (row.runs[0] for row in drives.measure_graph(4, cache, cluster, options))
    assert scheduler.received_bytes == 8 * 2**SCALE, "all of z"
    assert 0 < superstep.received_bytes <= 8 * 2**SCALE / N_WORKERS, "no more than the other worker's slice"
    assert embedded.received_bytes == 0


def test_a_drive_with_other_bits_fails_and_gets_no_time(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(monkeypatch, "scheduler")
    assert drives.main([*command, "--edge-factors", "4"]) == 1
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    [wrong] = [line for line in lines if line[1:2] == ["scheduler"]]
    assert wrong[5:] == ["WRONG:", "exact", "ranks", "have", "other", "bits", "than", "embedded", "ones"]
    [right] = [line for line in lines if line[1:2] == ["superstep"]]
    assert float(right[5]) > 0


def test_the_same_wrong_ranks_of_all_drives_fail(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(monkeypatch, *drives.DRIVES)
    assert drives.main([*command, "--edge-factors", "4"]) == 1
    printed = capsys.readouterr().out
    assert printed.count("WRONG: exact ranks are 1 from SciPy's in L1") == len(drives.DRIVES)


def test_a_drive_that_is_wrong_while_it_is_timed_loses_its_times() -> None:
    rows = make_rows(scheduler=6.0, superstep=2.0, embedded=1.0)
    runs = {row.drive: list(row.runs) for row in rows}
    runs["superstep"].append(replace(runs["superstep"][0], digest="other"))
    again = {row.drive: row for row in drives.add_runs([replace(r, runs=(), ratio=None) for r in rows], runs, "right")}
    assert again["superstep"].remark == "WRONG: other ranks while timed"
    assert again["superstep"].runs == ()
    assert again["scheduler"].ratio is None
    assert again["scheduler"].remark == ""


@pytest.mark.parametrize(("scheduler_s", "judgement"), [(6.0, ["3.00", "3.0 met"]), (5.9, ["2.95", "3.0 NOT MET"])])
def test_the_ratio_is_that_of_scheduler_to_superstep(scheduler_s: float, judgement: list[str]) -> None:
    [(_, [header, scheduler, superstep, _])] = drives.tabulate(
        make_rows(scheduler=scheduler_s, superstep=2.0, embedded=1.0)
    )
    assert list(scheduler[-2:]) == judgement
    assert list(superstep[-2:]) == ["", ""]
    told = dict(zip(header, superstep, strict=True))
    assert (told["median ms"], told["ms / iter."], told["received MB"]) == ("2000.0", "400.0", "3.00")
    assert (told["product"], told["exchange"], told["scheduling"]) == ("25%", "25%", "50%")


def test_iterations_by_scipy_reach_the_reference_ranks(cache: Path) -> None:
    graph = Graph.make(SCALE, cache, 4)
    assert np.abs(graph.iterate(200) - graph.reference).sum() < 2e-9
    assert np.abs(graph.iterate(1) - graph.reference).sum() > 1e-2
