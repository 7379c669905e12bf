"""The benchmark of scaling compares the ranks of all numbers of workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import scaling
from benchmarks.scaling import SKIPPED, find_permitted
from mgspmv.plan import WorkerPlan


@pytest.mark.slow
def test_ranks_of_one_worker_and_of_two_are_the_same_and_timed() -> None:
    command = ["--scale", "9", "--workers", "1,2", "--iterations", str(SKIPPED + 3), "--backend", "cpu"]
    assert scaling.main([*command, "--json", "found.json"]) == 0
    records = json.loads(Path("found.json").read_text())["records"]
    one, one_single, two, two_single = records
    assert [(r["n_workers"], r["precision"]) for r in (one, two_single)] == [(1, "exact"), (2, "float32")]
    assert one["digest"] == two["digest"]
    assert all(0 < single["difference"] < 1e-5 for single in (one_single, two_single))
    for r in records:
        assert min(r["load_s"], r["few_s"], r["write_s"], r["iteration_s"], r["product_s"]) > 0
        assert (r["received_bytes"] > 0) == (r["n_workers"] > 1)


def test_what_loading_may_take_is_that_of_the_worker_with_most():
    told = {"start": 0, "stop": 10, "nnz": 7, "load_bytes": 5, "id_bytes": 6, "exchange_bytes": 7}
    workers = [WorkerPlan(block_bytes=b, vector_bytes=v, **told) for b, v in ((1000, 300), (2000, 200), (100, 900))]
    assert find_permitted(workers) == 1.1 * 2000 + 200 + 2 * 10**9
