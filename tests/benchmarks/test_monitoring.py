"""That the benchmark of being watched runs, and says when it costs too much."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import monitoring
import pytest
from distributed import Client

import mgspmv as mg
from mgspmv.distribute.connect import start_local
from mgspmv.distribute.publish import TOPIC

SCALE = 6


@pytest.fixture(scope="module")
def cluster() -> Any:
    with start_local(1, 1) as started:
        yield started


@pytest.fixture
def command(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(monitoring, "start_local", lambda workers, threads: nullcontext(cluster))
    monkeypatch.setattr(monitoring, "can_count", lambda pid: False)
    given = {"--scale": SCALE, "--workers": 1, "--repeats": 3, "--iterations": 50, "--cache": tmp_path}
    return [str(word) for pair in given.items() for word in pair]


def test_both_ways_are_counted_and_only_one_publishes(
    command: list[str], cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tmp_path / "found.json"
    with Client(cluster, set_as_default=False) as client:
        before = len(client.get_events(TOPIC))
        assert monitoring.main([*command, "--json", str(found)]) in (0, 1), "too short to be judged"
        kinds = [message["kind"] for _, message in client.get_events(TOPIC)][before:]
        assert kinds.count("begin") == kinds.count("end") == 4, "one of them to compile"
        assert kinds.count("iterations") >= 4
        with monitoring.silenced(client):
            mg.pagerank(mg.open_matrix(tmp_path / f"rmat-{SCALE}-16.zarr"), client=client)
        assert len(client.get_events(TOPIC)) == before + len(kinds)
    on, off = json.loads(found.read_text())["rows"]
    assert (on["way"], off["way"]) == ("on", "off")
    assert len(on["runs"]) == len(off["runs"]) == 3
    assert len({run["digest"] for row in (on, off) for run in row["runs"]}) == 1
    assert on["interval"][0] <= on["ratio"] <= on["interval"][1]
    assert "counted in processor seconds" in capsys.readouterr().out


@pytest.mark.parametrize(("counted", "code", "judgement"), [(1.0, 0, "1.02 met"), (1.03, 1, "1.02 NOT MET")])
def test_what_costs_too_much_fails(
    counted: float, code: int, judgement: str, command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    count = monitoring._run

    def pretend(D: Any, way: str, *rest: Any) -> Any:
        return replace(count(D, way, *rest), counted=counted if way == "on" else 1.0)

    monkeypatch.setattr(monitoring, "_run", pretend)
    assert monitoring.main(command) == code
    assert judgement in capsys.readouterr().out


def test_other_ranks_fail(command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(monitoring, "_run", lambda D, way, *rest: monitoring.Run(1.0, 1.0, way))
    assert monitoring.main(command) == 1
    assert "WRONG: the ranks differ" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("n", "places"), [(3, (0, 2)), (6, (0, 5)), (8, (0, 7)), (9, (1, 7)), (20, (5, 14)), (100, (39, 60))]
)
def test_intervals_are_those_of_tables(n: int, places: tuple[int, int]) -> None:
    assert monitoring.find_interval([float(k) for k in range(n)]) == places


@pytest.mark.parametrize(
    ("said", "counted"), [("1234,,instructions:u,100,100.00,,", 1234), ("<not supported>,,instructions:u,0", None)]
)
def test_instructions_are_read_where_they_are_counted(
    said: str, counted: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "perf"
    program.write_text(f"#!/bin/sh\ntrap 'echo \"{said}\" >&2; exit 0' INT\nsleep 5 > /dev/null 2>&1 & wait\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert monitoring.can_count(os.getpid()) == (counted is not None)
    if counted is not None:
        with monitoring.count_instructions([1, 2]) as found:
            pass
        assert found == [counted]


def test_without_perf_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert not monitoring.can_count(os.getpid())
