"""That the benchmark of starting times what it says, and fails when ranks are wrong or iterations late.

The commands are played; tests/cli/test_clusters.py starts clusters.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import mgspmv as mg
from benchmarks import starting


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """How long what is played takes, what it answers, and what was called in which environment."""
    told: dict[str, Any] = {"late_s": 5.0, "digest": None, "calls": []}

    def call(environment: dict[str, str], *words: str) -> dict[str, Any]:
        told["calls"].append((words, environment))
        if words[0] == "cluster":
            return {"scheduler": "tcp://127.0.0.1:1"}
        at = datetime.now(UTC) + timedelta(seconds=told["late_s"])
        lines = [{"time": (at + timedelta(seconds=k)).isoformat(), "iteration": 1, "worker": k} for k in (1, 0)]
        Path(words[words.index("--log") + 1]).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        with mg.open_matrix(words[1]) as A:
            wanted = mg.pagerank(A, tol_mode="fixed", max_iter=20, throw=False).digest()
        return {"digest": told["digest"] or wanted}

    monkeypatch.setattr(starting, "_call", call)
    return told


@pytest.mark.parametrize(
    ("told", "code", "remark"),
    [({}, 0, ""), ({"late_s": 16.0}, 1, "NOT MET"), ({"digest": "another"}, 1, "WRONG RANKS")],
    ids=["right", "late", "wrong"],
)
def test_starts_are_timed_and_judged(
    played: dict[str, Any], tmp_path: Path, told: dict[str, Any], code: int, remark: str
) -> None:
    played |= told
    files = ["--cache", str(tmp_path), "--json", str(tmp_path / "found.json"), "--markdown", str(tmp_path / "found.md")]
    assert starting.main(["--scale", "6", "--workers", "2", "--repeats", "2", *files]) == code
    warm, cold = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert (warm["caches"], warm["wanted_s"], cold["caches"], cold["wanted_s"]) == ("warm", 15.0, "cold", None)
    for row in (warm, cold):
        assert len(row["runs"]) == 2
        assert all(0 <= run["iterated_s"] - played["late_s"] < 5 for run in row["runs"]), "that of the first worker"
    assert f"| {remark} |" in (tmp_path / "found.md").read_text().splitlines()[-6]
    (start, _), (rank, _), (stop, _) = played["calls"][:3]
    assert start == ("cluster", "start", "--backend", "cpu", "--workers", "2")
    assert rank[:2] == ("pagerank", str(tmp_path / "rmat-6-16.zarr"))
    assert "--backend" not in rank
    assert stop == ("cluster", "stop")
    caches = [environment["NUMBA_CACHE_DIR"] for words, environment in played["calls"] if words[1] == "start"]
    assert len(caches) == 5
    assert len(set(caches[:3])) == 1, "warm"
    assert len(set(caches[3:])) == 2, "cold"


def test_workers_share_a_gpu_where_asked(
    played: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--backend", "cuda", "--workers", "4", "--one-device", "--scale", "6", "--repeats", "1"]
    assert starting.main([*given, "--cache", str(tmp_path)]) == 0
    (start, environment), (rank, _) = played["calls"][:2]
    assert start == ("cluster", "start", "--backend", "cpu", "--workers", "4"), "Dask's CUDA workers have one each"
    assert rank[-2:] == ("--log-level", "debug")
    assert rank[rank.index("--backend") + 1] == "cuda"
    assert "own_device.py" in environment["DASK_DISTRIBUTED__WORKER__PRELOAD"]
    assert "4 cuda, one GPU" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        starting.main(["--one-device"])
    assert "--one-device is for --backend cuda" in capsys.readouterr().err
