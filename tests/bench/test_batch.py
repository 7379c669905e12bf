"""`mgspmv bench batch`: many vectors beside single runs, checked before they are timed."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import mgspmv as mg
from mgspmv.bench import batch
from mgspmv.bench.batch import LEAST_SAMPLED, LEGEND, MOST_SEEDS, Record, format_report, make_seeds
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


def test_seeds_are_some_vertices_each():
    seeds = make_seeds(1000, 300)
    assert {len(own) for own in seeds} == set(range(1, MOST_SEEDS + 1))
    assert seeds == make_seeds(1000, 300) != make_seeds(1000, 300, seed=1)
    assert max(len(own) for own in make_seeds(3, 50)) == 3
    assert np.ptp([vertex for own in seeds for vertex in own]) > 900


def test_report():
    wrong = replace(RECORD, precision="float32", batch_s=50.0, is_same=False, distance=2e-6, is_right=False)
    text = format_report({"host": "a machine"}, [RECORD, wrong])
    rows = [line for line in text.splitlines() if line.startswith(("| exact", "| float32"))]
    assert [[cell.strip() for cell in row.strip("|").split("|")] for row in rows] == [
        ["exact", "256", "16", "25", "400", "140", "125", "20.0%", "20", "4", "20", "5.00", "yes", "1e-07 of 1e-06"],
        ["float32", "256", "16", "50", "400", "140", "125", "40.0%, TOO MUCH", "20", "4", "20", "5.00", "2e-06",
         "1e-07 of 1e-06, WRONG"],
    ]  # fmt: skip
    assert all(f"- {line}" in text for line in LEGEND)
    assert "exact, seconds of the batch: product 20, enter 2.5" in text


def test_all_is_checked_and_timed(graph, tmp_path):
    path = tmp_path / "found.json"
    options = ["--vectors", "20", "--width", "4", "--precision", "both", "--backend", "cpu", "--output", str(path)]
    stdout, stderr = invoke("bench", "batch", "--store", graph, *options)
    records = json.loads(path.read_text())["records"]
    assert [(r["precision"], r["width"], r["n_vectors"]) for r in records] == [("float32", 4, 20), ("exact", 4, 20)]
    for r in records:
        assert r["is_right"]
        assert r["is_same"]
        assert r["n_sampled"] >= LEAST_SAMPLED
        assert min(r["batch_s"], r["singles_by_iterations_s"], r["singles_by_mean_s"], r["single_step_s"]) > 0
        assert 0 < r["scipy_permitted"] < 1e-5
    assert "float32: " in stderr
    assert "| yes |" in stdout


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
    stdout, stderr = invoke("bench", "batch", "--store", graph, "--backend", "cpu", code=MgspmvError.exit_code)
    assert "WRONG" in stdout
    assert "wrong ranks: exact; see the tables" in stderr


def test_usage(graph, tmp_path):
    _, stderr = invoke("bench", "batch", "--store", graph, "--precision", "float64", code=2)
    assert "--precision must be one of 'float32', 'exact', 'both', not 'float64'" in stderr
    with pytest.raises(OptionError, match="at least 2 vectors, not 1"):
        batch.run_batch(graph, ["exact"], 1, "cpu", None, print)
    mg.ingest((np.array([5, 9]), np.array([9, 5])), tmp_path / "ids.zarr", kind="graph")
    with pytest.raises(OptionError, match="has ids of its own"):
        batch.run_batch(str(tmp_path / "ids.zarr"), ["exact"], 4, "cpu", None, print)
