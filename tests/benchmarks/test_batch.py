"""`mgspmv bench batch` checks the ranks of many vectors before it times them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import mgspmv as mg
from benchmarks import batch
from benchmarks.batch import LEAST_SAMPLED, Record
from mgspmv.errors import MgspmvError, OptionError
from tests.support.commands import invoke

RECORD = Record(
    precision="exact", width=16, n_vectors=256, n_sampled=20, batch_s=25.0, steps=400, iterations=5000,
    seconds={"product": 20.0, "enter": 2.5}, singles_by_iterations_s=140.0, singles_by_mean_s=125.0,
    single_step_s=0.02, is_same=True, distance=0.0, scipy_distance=1e-7, scipy_permitted=1e-6, is_right=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("graph") / "rmat.zarr"
    mg.generate("rmat", path, scale=9)
    return str(path)


@pytest.mark.slow
def test_all_is_checked_and_timed(graph, tmp_path):
    path = tmp_path / "found.json"
    options = ["--vectors", "20", "--width", "4", "--precision", "both", "--backend", "cpu", "--output", str(path)]
    invoke("bench", "batch", "--store", graph, *options)
    records = json.loads(path.read_text())["records"]
    assert [(r["precision"], r["width"], r["n_vectors"]) for r in records] == [("float32", 4, 20), ("exact", 4, 20)]
    for r in records:
        assert r["is_right"]
        assert r["is_same"]
        assert r["n_sampled"] >= LEAST_SAMPLED
        assert min(r["batch_s"], r["singles_by_iterations_s"], r["singles_by_mean_s"], r["single_step_s"]) > 0
        assert 0 < r["scipy_permitted"] < 1e-5


def test_wrong_ranks_are_found(graph, monkeypatch):
    def rank(A, personalization, **options):
        if "top" not in options:
            personalization = [dict.fromkeys(own, 1.0) for own in personalization]
        return made(A, personalization, **options)

    made = batch.api.pagerank_batch
    monkeypatch.setattr(batch.api, "pagerank_batch", rank)
    record = batch.run_batch(graph, ["float32"], 12, "cpu", 4, print)[0]
    assert (record.is_same, record.is_right) == (False, False)
    assert record.distance > 1e-3
    assert record.scipy_distance > record.scipy_permitted
    monkeypatch.setattr(batch, "run_batch", lambda *_: [replace(RECORD, is_right=False)])
    _, stderr = invoke("bench", "batch", "--store", graph, "--backend", "cpu", code=MgspmvError.exit_code)
    assert "wrong ranks: exact; see the tables" in stderr


def test_usage(graph, tmp_path):
    _, stderr = invoke("bench", "batch", "--store", graph, "--precision", "float64", code=2)
    assert "--precision must be one of 'float32', 'exact', 'both', not 'float64'" in stderr
    with pytest.raises(OptionError, match="at least 2 vectors, not 1"):
        batch.run_batch(graph, ["exact"], 1, "cpu", None, print)
    mg.ingest((np.array([5, 9]), np.array([9, 5])), tmp_path / "ids.zarr", kind="graph")
    with pytest.raises(OptionError, match="has ids of its own"):
        batch.run_batch(str(tmp_path / "ids.zarr"), ["exact"], 4, "cpu", None, print)
