"""The pages about sizing show what the planner computes, and plans agree with measurements."""

from __future__ import annotations

import re

import pytest

import mgspmv as mg
from benchmarks.sizing_model import (
    APPENDIX,
    EDGES,
    PAGE,
    TABLES,
    count_vertices,
    describe,
    find_rates,
    make_pages,
    make_tables,
    plan,
    read_measured,
)

SCALING = "measured/h200-scaling.md"


@pytest.fixture(scope="module")
def page():
    return PAGE.read_text()


def find_numbers(page, pattern):
    found = re.search(pattern, page)
    assert found, f"the page does not say {pattern!r}"
    return [float(number) for number in found.groups()]


def test_tables_are_those_of_the_planner():
    assert make_pages() == {page: page.read_text() for page in TABLES}, (
        "run python -m benchmarks.sizing_model, and read what changed"
    )


def test_each_table_is_on_one_page():
    assert sorted(name for names in TABLES.values() for name in names) == sorted(make_tables())


def test_stored_graphs_are_planned_as_those_that_are_not_there(tmp_path):
    A = mg.generate("rmat", tmp_path / "a.zarr", scale=10, seed=1, duplicates="keep")
    made, stored = A.info, A.plan(device_memory="78GB", workers=4, threads=16)
    described = plan(made.nnz, 4, "exact", gpu_gb=80, n_vertices=made.shape[0])
    ours, theirs = ([p.device_bytes for p in planned.workers] for planned in (described, stored))
    assert sum(ours) == pytest.approx(sum(theirs), rel=0.02)
    assert describe(made.shape[0], made.nnz, None).nbytes == made.nbytes


def test_the_rule_in_short_is_that_of_the_planner(page):
    edge, vertex, loading = find_numbers(page, r"([\d.]+) bytes x edges  \+  (\d+) bytes x vertices  \+  ([\d.]+) GB")
    for n_edges in EDGES[1:]:
        said = edge * n_edges + vertex * count_vertices(n_edges) + 1e9 * loading
        planned = plan(n_edges, 1, "exact", gpu_gb=10**6).workers[0].device_bytes
        assert planned <= said <= 1.12 * planned


def test_plans_count_no_less_than_was_taken():
    """With all that CUDA and NCCL took, for which the page leaves 2 GB, and pieces and tables beyond what vectors take
    where memory is free."""
    (said,) = find_numbers(APPENDIX.read_text(), r"on one, ([\d.]+) GB were taken at most")
    peaks = {}
    for n_workers in (1, 2):
        for precision in ("exact", "float32"):
            made = plan(1 << 30, n_workers, precision, gpu_gb=141, n_vertices=1 << 26)
            peak = peaks[n_workers, precision] = read_measured(
                SCALING, ("Memory",), (str(n_workers), precision), "load peak GB"
            )
            assert peak <= 2 + max(w.device_bytes + w.piece_bytes for w in made.workers) / 1e9
    assert max(peaks.values()) == said


def test_predictions_are_near_what_was_measured():
    for scale, n_workers in ((26, 1), (26, 2), (28, 4)):
        made = plan(1 << scale + 4, n_workers, "float32", gpu_gb=141, n_vertices=1 << scale)
        took = read_measured(SCALING, (f"R-MAT, scale {scale}", "float32"), (str(n_workers),), "iteration ms")
        rates = find_rates(1 << scale, "float32")
        assert max(map(rates.predict_seconds, made.workers)) == pytest.approx(took / 1e3, rel=0.05)
