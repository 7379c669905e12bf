"""Traces of runs: valid in their format, a row for each worker, and durations that add up to the seconds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mgspmv as mg
from mgspmv.errors import OptionError, StoreExistsError
from mgspmv.model import Event
from mgspmv.traces import ITERATING, LAID_OUT, write_trace
from tests.support.traces import add_up, list_rows, read_trace

EVENTS = [
    Event("r1", 0, 1, 0.5, (0.25, 0.5), (0.125, 0.0625), (0.25, 0.0), (8, 16), (100, 200)),
    Event("r1", 0, 2, 0.0, (0.5, 0.25), (0.125, 0.125), (0.0, 0.25), (8, 16), (100, 200)),
    Event("r1", 1, 3, math.nan, (0.5, 0.5), (0.0, 0.0), (0.0, 0.0), (0, 0), (100, 200)),
]
SECONDS = {"product": 1.5, "exchange": 0.25, "schedule": 0.5, "load": 1.0, "start": 0.125, "residual": 2.0}


@pytest.fixture
def trace(tmp_path: Path) -> dict[str, Any]:
    write_trace(tmp_path / "t.json", EVENTS, SECONDS, {"url": 'a "web".zarr', "alpha": 0.85})
    return read_trace(tmp_path / "t.json")


def test_phases_follow_each_other_and_add_up(trace: dict[str, Any]) -> None:
    rows = list_rows(trace)
    assert list(rows) == ["phases", "worker 0", "worker 1"]
    assert [(e["name"], e["ts"] / 1e6, e["dur"] / 1e6) for e in rows["phases"]] == [
        ("load", 0.0, 1.0),
        ("start", 1.0, 0.125),
        ("iterate", 1.125, 2.25),
        ("residual", 3.375, 2.0),
    ]
    assert rows["phases"][2]["args"] == {"product_s": 1.5, "exchange_s": 0.25, "schedule_s": 0.5}
    assert sum(e["dur"] for e in rows["phases"]) / 1e6 == sum(SECONDS.values())


def test_parts_of_iterations_are_those_of_the_events(trace: dict[str, Any]) -> None:
    row = list_rows(trace)["worker 1"]
    assert [(e["name"], e["ts"] / 1e6, e["dur"] / 1e6) for e in row] == [
        ("iteration 1", 1.125, 0.5625),
        ("product", 1.125, 0.5),
        ("exchange", 1.625, 0.0625),
        ("iteration 2", 1.6875, 0.625),
        ("product", 1.6875, 0.25),
        ("wait", 1.9375, 0.25),
        ("exchange", 2.1875, 0.125),
        ("iteration 3", 2.3125, 0.5),
        ("product", 2.3125, 0.5),
    ]
    known = {"exchanged_bytes": 16, "memory_bytes": 200, "change": "0.5", "epoch": 0}
    assert (row[0]["args"], row[1]["args"]) == (known, {"iteration": 1})
    assert [e["args"]["change"] for e in row if e["name"].startswith("iteration")] == ["0.5", "0.0", "nan"]


def test_changes_that_a_logarithm_has_are_counted(trace: dict[str, Any]) -> None:
    counts = [e for e in trace["traceEvents"] if e["ph"] == "C"]
    assert [(e["ts"] / 1e6, e["args"]) for e in counts] == [(1.75, {"log10": math.log10(0.5)})]


def test_a_trace_says_whose_it_is_and_how_it_is_laid_out(trace: dict[str, Any]) -> None:
    assert trace["otherData"] == {"run": "r1", "laid out": LAID_OUT, "url": 'a "web".zarr', "alpha": "0.85"}
    processes = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"]
    assert processes == ["mgspmv run r1"]


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"t\.txt: a trace is JSON"):
        write_trace(tmp_path / "t.txt", EVENTS, SECONDS, {})
    with pytest.raises(OptionError, match="no iteration was noted"):
        write_trace(tmp_path / "t.json", [], SECONDS, {})
    write_trace(tmp_path / "t.json", EVENTS, SECONDS, {})
    with pytest.raises(StoreExistsError, match=r"t\.json exists already"):
        write_trace(tmp_path / "t.json", EVENTS, SECONDS, {})
    write_trace(tmp_path / "t.json", EVENTS[:1], SECONDS, {}, overwrite=True)
    assert len(list_rows(read_trace(tmp_path / "t.json"))["worker 0"]) == 4


def check_trace(solution: mg.Solution | mg.BatchSolution, path: Path) -> None:
    """Of a run: each row has what the solution has."""
    solution.save_trace(path)
    rows = list_rows(read_trace(path))
    n_workers = len(solution.events[0].product_s)
    assert list(rows) == ["phases", *(f"worker {k}" for k in range(n_workers))]
    wanted = {phase: own for phase, own in solution.seconds.items() if phase not in ITERATING}
    wanted["iterate"] = sum(solution.seconds.get(phase, 0.0) for phase in ITERATING)
    assert add_up(rows["phases"]) == pytest.approx(wanted)
    assert sum(add_up(rows["phases"]).values()) == pytest.approx(sum(solution.seconds.values()))
    for k in range(n_workers):
        sums = add_up(rows[f"worker {k}"])
        for part in ("product", "exchange", "wait"):
            assert sums.get(part, 0.0) == pytest.approx(sum(getattr(e, f"{part}_s")[k] for e in solution.events))
    slowest = [max(own) for own in zip(*([e["dur"] / 1e6 for e in rows[f"worker {k}"] if e["name"] == "product"]
               for k in range(n_workers)), strict=True)]  # fmt: skip
    assert sum(slowest) == pytest.approx(solution.seconds["product"])
    ends = [e["ts"] + e["dur"] for k in range(n_workers) for e in rows[f"worker {k}"]]
    phases = {e["name"]: e for e in rows["phases"]}
    assert min(e["ts"] for e in rows["worker 0"]) == phases["iterate"]["ts"]
    assert max(ends) <= (phases["iterate"]["ts"] + phases["iterate"]["dur"]) * 1.05


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> mg.Matrix:
    store = tmp_path_factory.mktemp("traces") / "g.zarr"
    mg.generate("rmat", store, scale=9, edge_factor=8)
    return mg.open_matrix(store)


def test_of_this_process(graph: mg.Matrix, tmp_path: Path) -> None:
    solution = mg.pagerank(graph, stop="topk:5", throw=False)
    check_trace(solution, tmp_path / "t.json")
    said = read_trace(tmp_path / "t.json")["otherData"]
    assert (said["digest"], said["alpha"], said["status"]) == (graph.info.digest, "0.85", str(solution.status))
    with pytest.raises(OptionError, match="no iteration was noted"):
        replace(solution, events=()).save_trace(tmp_path / "u.json")


def test_of_two_workers(graph: mg.Matrix, in_process: Callable[[int], Any], tmp_path: Path) -> None:
    solution = mg.pagerank(graph, client=in_process(2))
    assert len(solution.events[0].product_s) == 2
    check_trace(solution, tmp_path / "t.json")


def test_of_batches(graph: mg.Matrix, in_process: Callable[[int], Any], tmp_path: Path) -> None:
    batch = mg.pagerank_batch(graph, [[1], [2], [5]], width=2, client=in_process(2))
    assert len(batch.events) == batch.options["steps"]
    check_trace(batch, tmp_path / "t.json")
    batch.save(tmp_path / "b.zarr")
    check_trace(mg.load_batch(tmp_path / "b.zarr"), tmp_path / "u.json")
    with pytest.raises(OptionError, match="vectors of a batch share theirs: trace the batch"):
        batch[0].save_trace(tmp_path / "v.json")
