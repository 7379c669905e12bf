"""Logs: silent unless somebody listens, and then with the run, the worker and the iteration in fields."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mgspmv as mg
from mgspmv.errors import ConvergenceError
from mgspmv.logs import JsonFormatter, write_log


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> mg.Matrix:
    return mg.generate("rmat", tmp_path_factory.mktemp("logs") / "g.zarr", scale=6, edge_factor=4)


def select(records: list[logging.LogRecord], name: str) -> list[dict[str, Any]]:
    """The records of a logger, with all of their attributes."""
    return [vars(record) for record in records if record.name == f"mgspmv.{name}"]


def test_a_call_and_its_iterations_have_the_id_of_the_run(graph: mg.Matrix, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "mgspmv")
    ranks = mg.pagerank(graph)
    (call,) = select(caplog.records, "calls")
    run = ranks.events[0].run
    assert (call["call"], call["run"], call["levelname"]) == ("pagerank", run, "INFO")
    assert call["elapsed_s"] > 0
    assert call["message"] == f"pagerank ended after {call['elapsed_s']:.3g} s"
    told = [(own["run"], own["iteration"], own["change"]) for own in select(caplog.records, "runs")]
    assert told == [(run, k, change) for k, change in enumerate(ranks.changes, 1)]


def test_iterations_cost_nothing_where_they_are_not_wanted(graph: mg.Matrix, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mgspmv")
    mg.pagerank(graph)
    assert [record.name for record in caplog.records] == ["mgspmv.calls"]


def test_a_call_that_fails_says_why(graph: mg.Matrix, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mgspmv")
    with pytest.raises(ConvergenceError) as caught:
        mg.pagerank(graph, max_iter=2)
    (call,) = select(caplog.records, "calls")
    assert (call["levelname"], call["error_type"]) == ("ERROR", "ConvergenceError")
    assert call["message"] == f"pagerank failed: {caught.value}"
    assert call["run"] == caught.value.solution.events[0].run


def test_workers_have_their_names(
    graph: mg.Matrix, caplog: pytest.LogCaptureFixture, in_process: Callable[[int], Any]
) -> None:
    client = in_process(2)  # a cluster that Dask starts silences the handlers that exist before it
    caplog.set_level(logging.DEBUG, "mgspmv")
    with graph.distribute(client) as D:
        ranks = mg.pagerank(D)
        mg.pagerank_batch(D, [[1], [2]])
    run = ranks.events[0].run
    workers = [own for own in select(caplog.records, "workers") if own["run"] == run]
    told = [own for own in select(caplog.records, "runs") if own["run"] == run]
    assert [(o["iteration"], o["change"]) for o in told] == list(enumerate(ranks.changes, 1))
    assert [o["product_s"] for o in told] == [event.product_s for event in ranks.events]
    ended = [(own["worker"], own["message"]) for own in workers if own["levelname"] == "INFO"]
    assert sorted(ended) == [(name, f"worker {name}: the run ended") for name in sorted(D.workers)]
    batch = {own["run"] for own in select(caplog.records, "workers")} - {run}
    assert batch == {select(caplog.records, "calls")[-1]["run"]}


def test_json_is_strict_and_has_what_is_no_json_as_strings() -> None:
    record = logging.makeLogRecord({"name": "a", "levelname": "INFO", "msg": "%s\nçé", "args": ("x",)})
    record.change, record.path, record.parts = float("nan"), Path("a"), [float("-inf"), {1: 2.0}]
    line = JsonFormatter().format(record)
    assert "\n" not in line
    told = json.loads(line, parse_constant=pytest.fail)
    assert (told["message"], told["change"], told["path"]) == ("x\nçé", "NaN", "a")
    assert told["parts"] == ["-Infinity", {"1": 2.0}]
    try:
        raise ValueError("wrong")
    except ValueError:
        record.exc_info = sys.exc_info()
    assert json.loads(JsonFormatter().format(record))["error"].endswith("ValueError: wrong")


def test_a_record_does_not_keep_what_failed(graph: mg.Matrix, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mgspmv")
    with pytest.raises(ConvergenceError):
        mg.pagerank(graph, max_iter=2)
    kept = [value for record in caplog.records for value in (*vars(record).values(), *(record.args or ()))]
    assert not [value for value in kept if isinstance(value, BaseException)]


def test_a_log_ends_with_its_context_and_goes_on_at_its_end(
    graph: mg.Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    logger = logging.getLogger("mgspmv")
    before = [*logger.handlers], logger.level
    for k, level in enumerate(("debug", "info"), 1):
        with write_log("log.jsonl", level):
            ranks = mg.pagerank(graph)
        assert ([*logger.handlers], logger.level) == before
        mg.pagerank(graph)
        lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
        assert len(lines) == ranks.iterations + k
