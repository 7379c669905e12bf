"""`mgspmv report`."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sp

import mgspmv as mg
from mgspmv.report.record import RunRecord, StepOutcome
from tests.support.commands import invoke, invoke_json


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    step = StepOutcome("web", "matrix", "failed", 1.0, None, "no such file")
    run = RunRecord("nightly", "n.toml", {}, "2026-03-04T01:02:03+00:00", 1.5, "0.1.0", [step])
    runs = tmp_path / "out" / ".mgspmv" / "runs"
    runs.mkdir(parents=True)
    (runs / "2026.json").write_text(json.dumps(run.to_dict()))
    return tmp_path


def test_of_a_pipeline(folder):
    out, err = invoke("report", "out")
    assert out.startswith("report.html: nightly, 1 failed, ")
    assert err == ""
    text = (folder / "report.html").read_text()
    assert text.startswith("<!doctype html>")
    assert "no such file" in text
    answer = invoke_json("report", "out/.mgspmv/runs/2026.json", "-o", "pages/r.html")
    assert answer == {
        "report": "pages/r.html",
        "bytes": len(text.encode()),
        "run": "nightly",
        "steps": {"made": 0, "kept": 0, "failed": 1, "skipped": 0},
    }
    assert (folder / "pages" / "r.html").read_text() == text


def test_of_ranks(folder):
    mg.ingest(sp.coo_array(np.eye(5, k=1)), "g.zarr", kind="graph")
    invoke("pagerank", "g.zarr", "-o", "ranks.parquet")
    out, _ = invoke("report", "ranks.parquet", "-o", "r.html")
    assert out.startswith("r.html: ranks.parquet, 1 made, ")
    text = (folder / "r.html").read_text()
    for name in ("steps", "convergence", "time", "memory", "ranks", "highest"):
        assert f'id="{name}"' in text


def test_nothing_is_overwritten_unasked(folder):
    (folder / "report.html").write_text("mine")
    _, err = invoke("report", "out", code=4)
    assert err == "error: report.html exists already; choose another name or pass --overwrite\n"
    assert (folder / "report.html").read_text() == "mine"
    invoke("report", "out", "--overwrite")
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    _, err = invoke("report", "out", "-o", "out", "--overwrite", code=2)
    assert err == "error: out is a folder; name a file in it, such as out/report.html\n"


def test_what_is_no_run(folder):
    _, err = invoke("report", "none", code=4)
    assert err.startswith("error: none does not exist; pass the record of a run")
    _, err = invoke("report", ".", code=2)
    assert err.startswith("error: . has no records of runs in .mgspmv/runs")
    assert not (folder / "report.html").exists()
