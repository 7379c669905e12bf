"""The benchmark of monitoring compares runs with and without it."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import mgspmv as mg
from benchmarks import counting, monitoring
from mgspmv.cluster.connect import start_local
from mgspmv.cluster.worker_metrics import TOPIC

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


@pytest.mark.slow
def test_both_ways_are_counted_and_only_one_publishes(command: list[str], cluster: Any, tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    with Client(cluster, set_as_default=False) as client:
        before = len(client.get_events(TOPIC))
        asked = [*command, "--json", str(found), "--readers", "1"]
        assert monitoring.main(asked) in (0, 1), "too short to be judged"
        kinds = [message["kind"] for _, message in client.get_events(TOPIC)][before:]
        assert kinds.count("begin") == kinds.count("end") == 5, "two of them to compile"
        assert kinds.count("iterations") >= 5
        with monitoring.silenced(client):
            mg.pagerank(mg.open_matrix(tmp_path / f"rmat-{SCALE}-16.zarr").on(client))
        assert len(client.get_events(TOPIC)) == before + len(kinds)
    on, off = json.loads(found.read_text())["rows"]
    assert (on["way"], off["way"]) == ("on", "off")
    assert len(on["runs"]) == len(off["runs"]) == 3
    assert len({run["digest"] for row in (on, off) for run in row["runs"]}) == 1
    for ratio in (on["ratio"], on["clock"]):
        assert ratio["low"] <= ratio["median"] <= ratio["high"]
    assert all(run["n_messages"] for run in on["runs"])
    assert not any(run["n_messages"] for run in off["runs"])
