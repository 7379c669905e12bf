"""That the benchmark of being watched runs, and says when it costs too much."""

from __future__ import annotations

import json
from contextlib import nullcontext
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import mgspmv as mg
from benchmarks import counting, monitoring
from mgspmv.distribute.connect import start_local
from mgspmv.distribute.publish import TOPIC

SCALE = 6


@pytest.fixture(scope="module")
def cluster() -> Any:
    with start_local(1, 1) as started:
        yield started


@pytest.fixture
def command(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(counting, "start_local", lambda workers, threads: nullcontext(cluster))
    monkeypatch.setattr(monitoring, "SETTLE_S", 0.0)
    given = {"--scale": SCALE, "--workers": 1, "--repeats": 3, "--iterations": 50, "--cache": tmp_path}
    given |= {"--count": "seconds", "--readers": 0}
    return [str(word) for pair in given.items() for word in pair]


def test_both_ways_are_counted_and_only_one_publishes(
    command: list[str], cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tmp_path / "found.json"
    with Client(cluster, set_as_default=False) as client:
        before = len(client.get_events(TOPIC))
        asked = [*command, "--json", str(found), "--readers", "1"]
        assert monitoring.main(asked) in (0, 1), "too short to be judged"
        kinds = [message["kind"] for _, message in client.get_events(TOPIC)][before:]
        assert kinds.count("begin") == kinds.count("end") == 5, "two of them to compile"
        assert kinds.count("iterations") >= 5
        with monitoring.silenced(client):
            mg.pagerank(mg.open_matrix(tmp_path / f"rmat-{SCALE}-16.zarr"), client=client)
        assert len(client.get_events(TOPIC)) == before + len(kinds)
    on, off = json.loads(found.read_text())["rows"]
    assert (on["way"], off["way"]) == ("on", "off")
    assert len(on["runs"]) == len(off["runs"]) == 3
    assert len({run["digest"] for row in (on, off) for run in row["runs"]}) == 1
    for ratio in (on["ratio"], on["clock"]):
        assert ratio["low"] <= ratio["median"] <= ratio["high"]
    assert all(run["n_messages"] for run in on["runs"])
    assert not any(run["n_messages"] for run in off["runs"])
    assert "counted in processor seconds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("took", "code", "judgement"),
    [
        (([1.0] * 3, [1.0] * 3), 0, "1.02 met"),
        (([1.03] * 3, [1.0] * 3), 1, "1.02 NOT MET"),
        (([1.01, 1.03, 1.03], [1.0] * 3), 0, "1.02 undecided"),
        (([1.0] * 3, [1.01] * 3), 1, "1 NOT MET"),
        (([1.0] * 3, [0.99, 1.01, 1.01]), 0, "1 met"),
    ],
)
def test_what_costs_too_much_fails(
    took: tuple[list[float], list[float]],
    code: int,
    judgement: str,
    command: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs = [monitoring.Run(elapsed_s, counted, 1, "same") for counted, elapsed_s in zip(*took, strict=True)]
    given = {"on": iter([runs[0], *runs]), "off": repeat(monitoring.Run(1.0, 1.0, 0, "same"))}
    monkeypatch.setattr(monitoring, "_run", lambda D, way, *rest: next(given[way]))
    assert monitoring.main(command) == code
    assert judgement in capsys.readouterr().out


def test_other_ranks_fail(command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(monitoring, "_run", lambda D, way, *rest: monitoring.Run(1.0, 1.0, 0, way))
    assert monitoring.main(command) == 1
    assert "WRONG: the ranks differ" in capsys.readouterr().out


def test_with_off_nothing_is_counted_for_metrics(cluster: Any, tmp_path: Path) -> None:
    mg.generate("rmat", tmp_path / "web.zarr", scale=SCALE)
    with Client(cluster, set_as_default=False) as client, mg.open_matrix(tmp_path / "web.zarr") as A:
        mg.pagerank(A, client=client)
        counted = client.run(_count_iterations)
        with monitoring.silenced(client):
            mg.pagerank(A, client=client)
        assert client.run(_count_iterations) == counted
        mg.pagerank(A, client=client)
        assert client.run(_count_iterations) != counted


def _count_iterations() -> float:
    """That the worker of a process has for `/metrics`."""
    from mgspmv.distribute.worker_metrics import METRICS

    [(_, n)] = METRICS.list_samples()["mgspmv_worker_iterations_total"]
    return n


@pytest.mark.parametrize(
    ("n", "places"), [(3, (0, 2)), (6, (0, 5)), (8, (0, 7)), (9, (1, 7)), (20, (5, 14)), (100, (39, 60))]
)
def test_intervals_are_those_of_tables(n: int, places: tuple[int, int]) -> None:
    assert monitoring.find_interval([float(k) for k in range(n)]) == places


def test_what_cannot_be_counted_is_said_before_anything_is_made(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(monitoring, "open_cache", lambda folder: pytest.fail("begun"))
    assert monitoring.main([*command, "--count", "callgrind"]) == 2
    assert "--count callgrind: there is no valgrind and no callgrind_control" in capsys.readouterr().err
