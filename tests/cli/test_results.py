"""Commands about results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mgspmv.results import load_solution
from tests.support.commands import TINY_RMAT, invoke, invoke_json


def test_top():
    invoke(*TINY_RMAT)
    ranks = invoke_json("pagerank", "r.zarr", "-o", "r.parquet", "-o", "ranks.zarr", "--top", "5")
    for path in ("r.parquet", "ranks.zarr"):
        answer = invoke_json("top", path, "-k", "5")
        assert answer["top"] == ranks["top"]
    stdout, _ = invoke("top", "r.parquet", "-k", "2")
    assert [line.split()[:2] for line in stdout.splitlines()[3:5]] == [
        [str(place), str(entry["id"])] for place, entry in enumerate(ranks["top"][:2], 1)
    ]


def test_a_summary():
    invoke(*TINY_RMAT)
    invoke("pagerank", "r.zarr", "-o", "ranks.zarr")
    answer = invoke_json("summary", "ranks.zarr")
    told = answer.pop("summary")
    assert answer == {"status": "converged", "scaler": "none"}
    ranks = load_solution("ranks.zarr").values
    assert (told["n"], told["n_non_finite"], told["max"]) == (64, 0, ranks.max())
    assert told["percentiles"]["99.9"] == pytest.approx(np.percentile(ranks, 99.9), rel=1e-15)
    few = invoke_json("summary", "ranks.zarr", "--bins", "3")["summary"]["histogram"]
    assert (len(few["counts"]), sum(few["counts"])) == (3, 64)
    shown, _ = invoke("summary", "ranks.zarr")
    for title in ("vertices ", "mean ", "99.9% are at most ", "Gini coefficient   0.", "from "):
        assert title in shown
    invoke("pagerank", "r.zarr", "--scaler", "log", "-o", "log.zarr")
    assert "Gini coefficient   none" in invoke("summary", "log.zarr")[0]


def test_a_summary_of_ranks_that_are_not_finite():
    Path("tiny.txt").write_text("1 2 5e-324\n2 3 1\n3 1 1\n")
    invoke("ingest", "tiny.txt", "t.zarr")
    invoke("pagerank", "t.zarr", "--precision", "float64", "--scaler", "max", "-o", "t.parquet", code=5)
    answer = invoke_json("summary", "t.parquet")
    assert (answer["status"], answer["summary"]["n"]) == ("non_finite", 3)
    assert answer["summary"]["n_non_finite"] > 0
