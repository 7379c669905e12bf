"""Plans: what is kept and what is made, why, and what it takes; nothing is written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import mgspmv as mg
from mgspmv.pipeline import plan_pipeline, run_pipeline
from mgspmv.pipeline.definition import RunSection
from mgspmv.pipeline.preflight import predict_iterations
from tests.support.definitions import THREE, WEB, list_files, write_definition, write_sources

RUN = WEB + "[run]\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_sources(tmp_path)
    return tmp_path


def states(plan):
    return {step.name: (step.state, step.why) for step in plan.steps}


def test_of_what_was_never_made(folder):
    before = list_files(folder)
    plan = plan_pipeline(write_definition(THREE))
    assert list_files(folder).keys() - before.keys() == {str(folder / "p.toml")}
    assert states(plan)["web"] == ("to make", "not made yet")
    assert states(plan)["web/plain"] == ("to make", "needs web, which is made first")
    assert (plan.steps[1].predicted_bytes, plan.steps[1].predicted_s) == (None, None)
    assert plan.steps[1].outputs[0] == "out/web/damping/alpha=0.5/ranks.parquet"
    assert not plan.is_finished
    assert json.loads(json.dumps(plan.to_dict(), allow_nan=False))["steps"][0]["state"] == "to make"
    n = len(plan.steps)
    assert repr(plan) == f"<PipelinePlan: {plan.name}, {n} steps: {n} to make>"
    assert "needs web, which is made first" in plan._repr_html_()


def test_of_another_option():
    run_pipeline(write_definition(RUN))
    plan = plan_pipeline("p.toml", overrides={"run.alpha": 0.5, "run.top": 7})
    step = plan.steps[1]
    assert (step.state, step.why) == ("to make", "alpha was 0.85 and is to be 0.5; top was 100 and is to be 7")
    with mg.open_matrix("out/web.zarr") as A:
        assert step.predicted_bytes > A.plan(backend="cpu").memory_bytes
    assert step.predicted_s > 0
    assert step.inputs["matrix"] == mg.open_matrix("out/web.zarr").info.digest


def test_of_an_option_that_is_no_longer_given():
    run_pipeline(write_definition(RUN + "tol = 1e-3\n"))
    Path("n.csv").write_text("id,label\n")
    why = "another version of the program, or an option that is no longer given, made it"
    assert states(plan_pipeline(write_definition(RUN)))["web/pagerank"] == ("to make", why)
    run_pipeline("p.toml", overrides={"matrix.web.labels": "n.csv"})
    assert states(plan_pipeline("p.toml"))["web/pagerank"] == ("to make", "labels is no longer given")


def test_of_a_source_that_changed():
    run_pipeline(write_definition(RUN))
    Path("edges.txt").write_text("1 2\n")
    plan = plan_pipeline("p.toml")
    assert states(plan) == {
        "web": ("to make", "source changed"),
        "web/pagerank": ("unknown", "needs web, which is made first"),
    }
    assert plan.steps[0].predicted_s > 0  # as long as before


def test_of_what_is_not_there(folder):
    """Which is said before anything is made; of URLs nobody is asked."""
    text = (
        WEB
        + '[matrix.far]\npath = "https://127.0.0.1:1/x.txt"\n[run]\n[run.a]\n[run.b]\npersonalization = "none.csv"\n'
    )
    found = states(plan_pipeline(write_definition(text)))
    assert found["web"][0] == found["web/a"][0] == found["far"][0] == "to make"
    assert found["web/b"] == ("failing", "none.csv: there is no such file; check the path")
    changes = ({"matrix.web.path": "none.txt"}, {"matrix.web.path": ["edges.txt", "none.txt"]})
    changes += ({"matrix.web.vertices": "none.txt"}, {"matrix.web.update.insert": "none.txt"})
    for overrides in changes:
        found = states(plan_pipeline("p.toml", overrides=overrides))
        assert found["web"] == ("failing", "none.txt: there is no such file; check the path")
        assert found["web/a"] == ("failing", "needs web, which cannot be made")
    assert states(plan_pipeline("p.toml", overrides={"matrix.web.path": "*.csv"}))["web"][0] == "failing"
    assert states(plan_pipeline("p.toml", overrides={"matrix.web.path": ""}))["web"][1].startswith("'': there is no")
    assert not (folder / "out").exists()


def test_of_products_and_batches():
    Path("seeds.csv").write_text("vector,vertex\na,1\n")
    np.save("x.npy", np.ones(3))
    run_pipeline(write_definition(WEB))
    text = WEB + '[product.y]\nx = "x.npy"\n[batch.b]\nseeds = "seeds.csv"\n'
    batch, product = plan_pipeline(write_definition(text)).steps[1:]
    assert product.outputs == ["out/web/y/y.npy"]
    assert product.predicted_s > 0
    assert batch.predicted_bytes > 0
    assert batch.predicted_s is None


def test_on_a_cluster_that_is_not_started_for_it():
    run_pipeline(write_definition(WEB))
    plan = plan_pipeline(write_definition(RUN + '[cluster]\nkind = "address"\naddress = "tcp://127.0.0.1:1"\n'))
    assert (plan.steps[1].state, plan.steps[1].predicted_s) == ("to make", None)


class TestPredictions:
    @pytest.mark.parametrize(
        ("section", "iterations"),
        [
            ({"alpha": 0.5, "tol": 0.001}, 10),
            ({"alpha": 0.85, "tol": 1e-6, "max_iter": 50}, 50),
            ({"tol_mode": "fixed", "max_iter": 7}, 7),
            ({"alpha": 0.0}, 1),
            ({"alpha": 0.5, "tol": 5.0}, 1),
        ],
    )
    def test_iterations(self, section, iterations):
        assert predict_iterations(RunSection(**section), None) == iterations
