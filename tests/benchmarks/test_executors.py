"""The benchmark of the executors checks ranks before it times them, and fails if they are wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import executors
from mgspmv.cluster.connect import start_local

pytestmark = pytest.mark.slow
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
        assert (workers, threads) == (N_WORKERS, max(1, executors.default_threads() // N_WORKERS))
        return nullcontext(cluster)

    monkeypatch.setattr(executors, "start_local", start)
    given = {"--scale": SCALE, "--workers": N_WORKERS, "--repeats": 2, "--iterations": 5, "--cache": cache}
    return [str(word) for pair in given.items() for word in pair]


def spoil(monkeypatch: pytest.MonkeyPatch, *spoilt: str) -> None:
    """Make these executors return a wrong first rank: the next float, or 1 if these are all executors."""
    rank = executors.rank

    def rank_wrongly(matrix: Any, executor: str, *args: Any, **options: Any) -> Any:
        solution = rank(matrix, executor, *args, **options)
        if executor not in spoilt:
            return solution
        values = solution.values.copy()
        values[0] = 1.0 if len(spoilt) == len(executors.EXECUTORS) else np.nextafter(values[0], 1.0)
        return replace(solution, values=values)

    monkeypatch.setattr(executors, "rank", rank_wrongly)


def test_all_executors_are_right_and_timed(command: list[str], tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    assert executors.main([*command, "--edge-factors", "4", "--precision", "exact", "--json", str(found)]) == 0
    rows = json.loads(found.read_text())["rows"]
    assert [row["executor"] for row in rows] == list(executors.EXECUTORS)
    for row in rows:
        assert len(row["runs"]) == 2
        assert all(sum(run["seconds"].values()) > 0 for run in row["runs"])
    assert len({run["digest"] for row in rows for run in row["runs"]}) == 1


def test_an_executor_with_other_bits_fails_and_gets_no_time(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(monkeypatch, "tasks")
    assert executors.main([*command, "--edge-factors", "4"]) == 1
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    [wrong] = [line for line in lines if line[1:2] == ["tasks"]]
    assert wrong[5:] == ["WRONG:", "exact", "ranks", "have", "other", "bits", "than", "embedded", "ones"]
    [right] = [line for line in lines if line[1:2] == ["supersteps"]]
    assert float(right[5]) > 0
