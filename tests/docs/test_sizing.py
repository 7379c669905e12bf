"""The page about sizing says what the planner says, and what was measured."""

from __future__ import annotations

import re

import numpy as np
import pytest

import mgspmv as mg
from mgspmv.ingest.sorter import _entry_bytes
from mgspmv.model import CooBatch
from mgspmv.partition import plan_rows
from tests.support.sizing_tables import (
    EDGES,
    GIGA,
    PAGE,
    SCRATCH_BYTES,
    EvenRows,
    count_vertices,
    describe,
    find_fewest,
    make_tables,
    plan,
    put_tables,
    read_measured,
)

SCALING = "measured/h200-scaling.md"


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text()


def find_numbers(page, pattern):
    found = re.search(pattern, page)
    assert found, f"the page does not say {pattern!r}"
    return [float(number) for number in found.groups()]


# --- the tables ------------------------------------------------------------------------------------------------------


def test_tables_are_those_of_the_planner(page):
    assert put_tables(page, make_tables()) == page, "run python -m tests.support.sizing_tables, and read what changed"


def test_a_table_that_says_something_else_is_seen(page):
    tables = make_tables()
    other = page.replace(tables["bytes"], tables["bytes"].replace("13.2", "13.3"))
    assert other != page
    assert put_tables(other, tables) == page


def test_measured_numbers_are_found_by_page_heading_row_and_column():
    assert read_measured(SCALING, ("R-MAT, scale 26", "float32"), ("2",), "cuGraph ms") == 4.905
    graphs = ("Six made graphs", "Iterations")
    assert read_measured("measured/h200-pagerank.md", graphs, ("web",), "G edges/s", 1) == 206.2


def test_stored_graphs_are_planned_as_those_that_are_not_there(tmp_path):
    made = mg.generate("rmat", tmp_path / "a.zarr", scale=10, seed=1, duplicates="keep")
    with mg.open_matrix(tmp_path / "a.zarr") as A:
        stored = A.plan(device_memory="78GB", workers=4, threads=16)
    described = plan(made.nnz, 4, "exact", gpu_gb=80, n_vertices=made.shape[0])
    ours, theirs = ([p.device_bytes for p in planned.workers] for planned in (described, stored))
    assert sum(ours) == pytest.approx(sum(theirs), rel=0.02)
    assert describe(made.shape[0], made.nnz, None).nbytes == made.nbytes


def test_even_rows_are_row_pointers():
    indptr = np.arange(0, 801, 8)
    info = describe(100, 800, None)
    assert plan_rows(info, EvenRows(100, 800), 3) == plan_rows(info, indptr, 3)


# --- what the text says ----------------------------------------------------------------------------------------------


def test_the_rule_in_short_is_that_of_the_planner(page):
    edge, vertex, loading = find_numbers(page, r"([\d.]+) bytes x edges  \+  (\d+) bytes x vertices  \+  ([\d.]+) GB")
    for n_edges in EDGES[1:]:
        said = edge * n_edges + vertex * count_vertices(n_edges) + 1e9 * loading
        planned = plan(n_edges, 1, "exact", gpu_gb=10**6).workers[0].device_bytes
        assert planned <= said <= 1.12 * planned


def test_gpus_hold_what_is_promised(page):
    assert len(find_fewest(16 * GIGA, "exact", None, 141).workers) == 1
    [n_small] = find_numbers(page, r"what fills (\d+) GPUs of 80 GB, not the edges")
    for precision in ("float32", "exact"):
        own = find_fewest(64 * GIGA, precision, None, 80).workers
        assert len(own) == n_small
        assert all(2 * w.vector_bytes > w.device_bytes for w in own)


def test_plans_count_no_less_than_was_taken(page):
    """With all that CUDA and NCCL took, of which the page leaves 2 GB."""
    [said] = find_numbers(page, r"on four, ([\d.]+) GB were taken at most")
    for scale, n_workers in ((26, 1), (26, 2), (26, 4), (28, 4)):
        n_edges, n = 1 << scale + 4, 1 << scale
        for precision in ("exact", "float32"):
            made = plan(n_edges, n_workers, precision, gpu_gb=141, n_vertices=n)
            table = (f"R-MAT, scale {scale}", precision)
            peak = read_measured(SCALING, table, (str(n_workers),), "load peak GB")
            assert peak <= max(w.device_bytes for w in made.workers) / 1e9 + 2
            assert scale == 26 or round(peak, 1) == said


def test_predictions_are_near_what_was_measured():
    for scale, n_workers in ((26, 1), (26, 2), (28, 4)):
        made = plan(1 << scale + 4, n_workers, "float32", gpu_gb=141, n_vertices=1 << scale)
        took = read_measured(SCALING, (f"R-MAT, scale {scale}", "float32"), (str(n_workers),), "iteration ms")
        assert made.seconds_per_iteration == pytest.approx(took / 1e3, rel=0.05)


def test_random_edges_and_webs_cost_what_is_said():
    graphs = ("Six made graphs", "Iterations")
    for at in range(2):
        rmat, uniform, web = (
            read_measured("measured/h200-pagerank.md", graphs, (name,), "G edges/s", at)
            for name in ("rmat24", "uniform24", "web")
        )
        assert 2 < rmat / uniform < 3
        assert 1.25 < rmat / web < 1.5


def test_workers_received_a_third_of_what_a_plan_counts():
    received = read_measured("benchmarks.md", ("Drives on a cluster",), ("16", "superstep"), "received MB")
    most = plan(1 << 24, 4, "exact", n_vertices=1 << 20).workers[0].exchange_bytes
    assert 1e6 * received / most == pytest.approx(1 / 3, rel=0.05)


def test_entries_in_files_take_what_is_said():
    rows = np.zeros(2, np.int32)
    assert _entry_bytes(CooBatch(rows, rows, None)) == SCRATCH_BYTES
    assert _entry_bytes(CooBatch(rows, rows, np.zeros(2))) == 2 * SCRATCH_BYTES


def test_compression_leaves_what_is_said(page, tmp_path):
    [said] = find_numbers(page, r"On disk R-MAT 16 has ([\d.]+) of that")
    info = mg.generate("rmat", tmp_path / "a.zarr", scale=16, seed=1)
    on_disk = sum(path.stat().st_size for path in (tmp_path / "a.zarr").rglob("*") if path.is_file())
    assert on_disk / info.nbytes == pytest.approx(said, abs=0.05)
