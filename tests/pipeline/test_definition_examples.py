"""The definitions in pipelines/ do what they say, on small input."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr
from scipy.io import mmwrite
from scipy.sparse import random_array

import mgspmv as mg
from mgspmv.pipeline import run_pipeline
from tests.support.definitions import find_states

PIPELINES = Path(__file__).parents[2] / "pipelines"
TESTED = {"quickstart", "web-graph", "personalized-batch", "nightly-update", "nightly-gpus", "spmv-batch", "multi-gpu"}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    arcs = rng.integers(0, 300, (2000, 2)).tolist()
    (tmp_path / "graph.txt").write_text("# a graph\n" + "".join(f"{i}\t{j}\n" for i, j in arcs))
    return tmp_path


def run(name, **overrides):
    overrides = {key.replace("__", "."): value for key, value in overrides.items()}
    copy = shutil.copy(PIPELINES / f"{name}.toml", ".")
    record = run_pipeline(copy, overrides=overrides)
    again = run_pipeline(copy, overrides=overrides)
    assert set(find_states(again).values()) == {"kept"}
    return record


def test_each_is_tested():
    assert {path.stem for path in PIPELINES.glob("*.toml")} == TESTED


def test_quickstart():
    record = run("quickstart", matrix__rmat18__parameters={"scale": 8, "seed": 1})
    assert [step.name for step in record.steps] == ["rmat18", "rmat18/pagerank"]
    assert len(json.loads(Path("quickstart/rmat18/pagerank/top.json").read_text())) == 10


@pytest.mark.parametrize("form", ["snap", "matrix-market"])
def test_web_graph(form, folder, monkeypatch):
    source = folder / "graph.txt"
    if form == "matrix-market":
        source = folder / "graph.mtx"
        mmwrite(source, random_array((300, 300), density=0.02, rng=np.random.default_rng(1)), field="pattern")
    monkeypatch.setenv("WEB_GRAPH", str(source))
    record = run("web-graph")
    alphas = [step.record.options["alpha"] for step in record.steps[1:6]]
    assert alphas == [0.5, 0.7, 0.8, 0.85, 0.9]
    highest = record.steps[6].record
    assert highest.result["stability"]["is_proven"]
    assert [row[0] for row in highest.top] == [row[0] for row in record.steps[4].record.top]
    assert len(Path("web-graph/web/damping/alpha=0.5/ranks.csv").read_text().splitlines()) == 301


def test_personalized_batch(folder, monkeypatch):
    rows = [f"topic{k},{vertex},1.0" for k in range(20) for vertex in (k, 2 * k + 1)]
    (folder / "seeds.csv").write_text("\n".join(["vector,vertex,weight", *rows, ""]))
    monkeypatch.setenv("GRAPH", "graph.txt")
    record = run("personalized-batch")
    batch = mg.load_batch("personalized/web/topics/ranks.parquet")
    assert (len(batch), batch.top_ids.shape) == (20, (20, 50))
    assert len(record.steps[2].record.result["vectors"]) == 20
    assert Path("personalized/web/everyone/ranks.csv").exists()


def write_updates(folder):
    for day in ("2026-11-22", "2026-11-23"):
        (folder / "updates" / day).mkdir(parents=True)
        (folder / "updates" / day / "added.txt").write_text(f"{day[-2:]} 299\n1000{day[-1]} 5\n")
        (folder / "updates" / day / "removed.txt").write_text("0 1\n1 2\n")


def test_nightly_update(folder, monkeypatch):
    monkeypatch.setenv("BASE", "graph.txt")
    write_updates(folder)
    monkeypatch.setenv("DAY", "2026-11-22")
    first = run("nightly-update").steps[1].record
    assert (first.result["start"], first.comparison) == ("uniform", {})
    monkeypatch.setenv("DAY", "2026-11-23")
    record = run("nightly-update")
    second = record.steps[1].record
    assert second.result["start"] == "previous"
    assert second.result["iterations"] < first.result["iterations"]
    assert second.comparison["n_new"] == 1
    assert second.comparison["spearman"] > 0.9
    assert len(record.steps[0].record.result["updates"]) == 2


@pytest.mark.slow
def test_nightly_gpus(folder, monkeypatch):
    """On processes, with the results of a machine without a cluster."""
    for name, value in {"BASE": "graph.txt", "FOLDER": "there", "DAY": "2026-11-22"}.items():
        monkeypatch.setenv(name, value)
    write_updates(folder)
    first = run("nightly-gpus", cluster__kind="local", cluster__workers=2).steps[1].record
    assert (first.result["start"], first.comparison) == ("uniform", {})
    monkeypatch.setenv("DAY", "2026-11-23")
    second = run("nightly-gpus", cluster__kind="local", cluster__workers=2).steps[1].record
    assert second.result["start"] == "previous"
    assert second.result["iterations"] < first.result["iterations"]
    assert second.comparison["spearman"] > 0.9

    for day in ("2026-11-22", "2026-11-23"):
        monkeypatch.setenv("DAY", day)
        run("nightly-update")
    there, here = (mg.load_solution(f"{name}/web/ranks/ranks.parquet") for name in ("there", "nightly"))
    assert there.digest() == here.digest()


def test_spmv_batch(folder, monkeypatch):
    a = random_array((30, 30), density=0.1, rng=np.random.default_rng(2))
    mmwrite(folder / "a.mtx", a)
    rng = np.random.default_rng(3)
    vectors = {"left": rng.random(30), "right": rng.random((30, 3)), "grid": rng.random(10000)}
    (folder / "vectors").mkdir()
    for name, values in vectors.items():
        np.save(folder / "vectors" / f"{name}.npy", values)
    monkeypatch.setenv("MATRIX", "a.mtx")
    record = run("spmv-batch")
    for side in ("left", "right"):
        found = np.load(f"products/stiffness/forward/x={side}/y.npy")
        np.testing.assert_allclose(found, a @ vectors[side], rtol=1e-13)
    backward = zarr.open_array("products/stiffness/backward/y.zarr", mode="r")[...]
    np.testing.assert_allclose(backward, 0.5 * (a.T @ vectors["left"]), rtol=1e-13)
    with mg.open_matrix("products/laplacian.zarr") as laplacian:
        expected = laplacian.to_scipy() @ vectors["grid"]
    np.testing.assert_allclose(np.load("products/laplacian/smooth/y.npy"), expected, atol=1e-12)
    assert len(record.steps) == 6


@pytest.mark.slow
def test_multi_gpu():
    small = {"cluster__kind": "local", "cluster__workers": 2, "matrix__rmat__parameters": {"scale": 8, "seed": 1}}
    there = run("multi-gpu", **small, batch__two__alpha=[0.5, 0.85])
    names = [step.name for step in there.steps]
    assert names == ["rmat", "rmat/ranks/alpha=0.85", "rmat/ranks/alpha=0.9", "rmat/fast", "rmat/two"]
    with mg.open_matrix("multi-gpu/rmat.zarr") as A:
        here = mg.pagerank(A, tol=1e-8)
        batch = mg.pagerank_batch(A, alpha=[0.5, 0.85])
    assert mg.load_solution("multi-gpu/rmat/ranks/alpha=0.85/ranks.zarr").digest() == here.digest()
    assert mg.load_batch("multi-gpu/rmat/two/ranks.zarr").digest() == batch.digest()
    assert {there.steps[k].record.matrix["transport"] for k in (3, 4)} == {"peer"}
