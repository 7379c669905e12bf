"""What a report can be made of, and what is said of what it cannot."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import mgspmv as mg
from mgspmv.errors import OptionError, PipelineError, StoreFormatError, StoreNotFoundError
from mgspmv.report import load_run
from mgspmv.report.record import RunRecord, StepOutcome

RUN = RunRecord(
    "nightly", "nightly.toml", {"run": {"alpha": 0.9}}, "2026-03-04T01:02:03+00:00", 1.5, "0.1.0",
    [StepOutcome("web", "matrix", "failed", 1.0, None, "no such file")],
)  # fmt: skip


def write(path: Path, run: RunRecord) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(run.to_dict()))
    return path


def test_the_record_of_a_run(tmp_path):
    assert load_run(write(tmp_path / "run.json", RUN)) == RUN
    assert load_run(str(tmp_path / "run.json")) == RUN


def test_the_newest_of_a_folder(tmp_path):
    for name in (
        "2026-03-04T010203.000Z",
        "2026-03-05T010203.000Z",
        "2026-03-05T010203.000Z-1",
        "2026-01-01T235959.000Z",
    ):
        write(tmp_path / ".mgspmv" / "runs" / f"{name}.json", replace(RUN, name=name))
    assert load_run(tmp_path).name == "2026-03-05T010203.000Z-1"


@pytest.fixture(scope="module")
def solution(tmp_path_factory):
    store = tmp_path_factory.mktemp("load") / "g.zarr"
    return mg.pagerank(mg.ingest(sp.coo_array(np.eye(6, k=1)), store, kind="graph"))


@pytest.mark.parametrize("suffix", [".parquet", ".zarr"])
def test_saved_ranks_are_a_run_of_one_step(tmp_path, solution, suffix):
    path = tmp_path / f"ranks{suffix}"
    solution.save(path)
    run = load_run(path)
    [step] = run.steps
    assert (run.name, run.file, run.began, run.version) == (f"ranks{suffix}", str(path), "", mg.__version__)
    assert run.elapsed_s == pytest.approx(sum(solution.seconds.values()))
    assert run.is_success
    assert step.record is not None
    assert step.record.top == list(solution.top(20))
    assert step.record.result["changes"] == list(solution.changes)
    assert step.record.seconds == solution.seconds
    assert step.record.key == solution.digest()


def fail(error: type[Exception], message: str, path: Path) -> None:
    with pytest.raises(error, match=message):
        load_run(path)


def test_what_is_no_run(tmp_path, solution):
    fail(StoreNotFoundError, r"none\.json does not exist; pass the record of a run", tmp_path / "none.json")
    fail(StoreNotFoundError, "no ranks found at", tmp_path / "none.parquet")
    fail(PipelineError, r"has no records of runs in \.mgspmv/runs; pass the folder of a pipeline", tmp_path)
    (tmp_path / "a.json").write_text("{")
    fail(PipelineError, r"a\.json is not JSON .*; pass the record of a run", tmp_path / "a.json")
    (tmp_path / "b.json").write_text("[1]")
    fail(PipelineError, "is not a record of a run: it has no 'mgspmv_run'", tmp_path / "b.json")
    (tmp_path / "c.json").write_text(json.dumps(RUN.to_dict() | {"mgspmv_run": 99}))
    fail(PipelineError, "has format version 99, but this program reads version 1", tmp_path / "c.json")
    (tmp_path / "d.json").write_text(json.dumps(RUN.to_dict() | {"colour": 1}))
    fail(PipelineError, r"is not a record of a run .*; run the pipeline again", tmp_path / "d.json")
    solution.save(tmp_path / "e.csv")
    fail(OptionError, "ranks are loaded from .zarr or .parquet, not from .csv", tmp_path / "e.csv")
    mg.ingest(sp.coo_array(np.eye(2)), tmp_path / "g.zarr", kind="graph")
    fail(
        StoreFormatError,
        r"is a matrix store, not ranks\. Run: mgspmv pagerank .*g\.zarr -o ranks",
        tmp_path / "g.zarr",
    )
