"""The benchmark of batches compares them with single runs and with SciPy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import batch
from benchmarks.batch import LEAST_SAMPLED
from benchmarks.measure import Rounds


@pytest.mark.slow
def test_all_is_checked_and_timed(rmat: str) -> None:
    options = ["--vectors", "20", "--width", "4", "--precision", "both", "--backend", "cpu", "--json", "found.json"]
    assert batch.main(["--store", rmat, *options]) == 0
    records = json.loads(Path("found.json").read_text())["records"]
    assert [(r["precision"], r["width"], r["n_vectors"]) for r in records] == [("float32", 4, 20), ("exact", 4, 20)]
    for r in records:
        assert r["is_same"]
        assert r["n_sampled"] >= LEAST_SAMPLED
        assert min(r["batch_s"], r["singles_by_iterations_s"], r["singles_by_mean_s"], r["single_step_s"]) > 0
        assert 0 < r["scipy_permitted"] < 1e-5


@pytest.mark.slow
def test_workers_take_turns_with_one_process(rmat: str, monkeypatch, capsys) -> None:
    monkeypatch.setattr(batch.batch_workers, "ROUNDS", Rounds(least=1, least_s=0.0))
    options = ["--vectors", "10", "--width", "4", "--precision", "both", "--backend", "cpu", "--json", "found.json"]
    assert batch.main(["--store", rmat, *options, "--workers", "2"]) == 0
    records = json.loads(Path("found.json").read_text())["records"]
    assert [(r["precision"], r["n_workers"], r["n_vectors"]) for r in records] == [("float32", 2, 10), ("exact", 2, 10)]
    for r in records:
        assert r["is_same"]
        assert (r["vectors"], r["widths"]) == ("rows", [4, 4])
        assert min(*r["one_s"], *r["workers_s"], r["ratio"]) > 0
    assert "| exact | 10 |" in capsys.readouterr().out


def test_wrong_ranks_are_an_error(rmat: str, monkeypatch, capsys) -> None:
    def rank(A, personalization, **options):
        if "keep_top" not in options:
            personalization = [dict.fromkeys(own, 1.0) for own in personalization]
        return made(A, personalization, **options)

    made = batch.mg.pagerank_batch
    monkeypatch.setattr(batch.mg, "pagerank_batch", rank)
    command = ["--store", rmat, "--vectors", "12", "--width", "4", "--backend", "cpu", "--json", "found.json"]
    assert batch.main(command) == 1
    assert "wrong ranks: float32; see the tables" in capsys.readouterr().err
    [record] = json.loads(Path("found.json").read_text())["records"]
    assert record["distance"] > 1e-3
    assert record["scipy_distance"] > record["scipy_permitted"]
