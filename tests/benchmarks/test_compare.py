"""The benchmark against other programs checks results before it times them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import compare, products, rankings
from benchmarks.stores import Graph

ONE_ROUND = ["--repeats", "1", "--seconds", "0", "0"]


@pytest.fixture(autouse=True)
def keep_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark sets it for the libraries that it imports; later tests get it back."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return Graph.make(8, tmp_path_factory.mktemp("graphs"))


class Nonsense(rankings.RankingPeer):
    """Ranks that sum to 1 and are not right."""

    name, beside, floor = "nonsense", rankings.OURS, 1.0

    def prepare(self, graph: Graph, threads: int) -> None:
        self.runs, self._n = 0, graph.n

    def run(self) -> Any:
        self.runs += 1
        return np.full(self._n, 1.0 / self._n)


def test_all_installed_peers_are_right_and_timed(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    command = ["--scales", "8", *ONE_ROUND, "--threads", "2", "--json", str(found)]
    assert compare.main(command) == 0
    rows = json.loads(found.read_text())["rows"]
    names = [peer.name for module in (products, rankings) for peer in module.make_peers()]
    assert [row["name"] for row in rows] == names
    for row in rows:
        assert len(row["seconds"]) == 1 or row["remark"].startswith("left out: "), row
        assert row["seconds"] or not row["name"].startswith(("mgspmv", "SciPy")), row


def test_a_wrong_row_fails_the_whole_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(rankings, "make_peers", lambda: [rankings.OurRanking(rankings.OURS), Nonsense()])
    assert compare.main(["--scales", "8", *ONE_ROUND, "--only", "pagerank"]) == 1
    line = next(line for line in capsys.readouterr().out.splitlines() if "nonsense" in line)
    assert line.split()[:4] == ["8", "nonsense", "1", "WRONG:"]
