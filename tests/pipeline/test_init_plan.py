"""Plans: what is kept and what is made, why, and what it takes; nothing is written."""

from __future__ import annotations

import json
from pathlib import Path

from mgspmv.pipeline import plan_pipeline, run_pipeline
from tests.support.definitions import THREE, WEB, list_files, write_definition

RUN = WEB + "[run]\n"


def states(plan):
    return {step.name: (step.state, step.why) for step in plan.steps}


def test_of_what_was_never_made(folder):
    before = list_files(folder)
    plan = plan_pipeline(write_definition(THREE))
    assert list_files(folder).keys() - before.keys() == {str(folder / "p.toml")}
    assert states(plan)["web"] == ("to make", "not made yet")
    assert states(plan)["web/plain"] == ("to make", "needs web, which is made first")
    assert not plan.is_finished
    assert json.loads(json.dumps(plan.to_dict(), allow_nan=False))["steps"][0]["state"] == "to make"
    n = len(plan.steps)
    assert repr(plan) == f"<PipelinePlan: {plan.name}, {n} steps: {n} to make>"
    assert "needs web, which is made first" in plan._repr_html_()


def test_of_another_option():
    run_pipeline(write_definition(RUN))
    plan = plan_pipeline("p.toml", overrides={"run.alpha": 0.5, "run.top": 7})
    step = plan.steps[1]
    assert (step.state, step.why) == ("to make", "alpha changed from 0.85 to 0.5; top changed from 100 to 7")


def test_of_an_option_that_is_no_longer_given():
    run_pipeline(write_definition(RUN + "tol = 1e-3\n"))
    Path("n.txt").write_text("1\n")
    why = "made by another version of the program, or with an option that is no longer given"
    assert states(plan_pipeline(write_definition(RUN)))["web/pagerank"] == ("to make", why)
    run_pipeline("p.toml", overrides={"run.personalization": "n.txt"})
    assert states(plan_pipeline("p.toml"))["web/pagerank"] == ("to make", "personalization is no longer given")


def test_of_a_source_that_changed():
    run_pipeline(write_definition(RUN))
    Path("edges.txt").write_text("1 2\n")
    plan = plan_pipeline("p.toml")
    assert states(plan) == {
        "web": ("to make", "source changed"),
        "web/pagerank": ("unknown", "needs web, which is made first"),
    }


def test_of_what_is_not_there(folder):
    """Which is said before anything is made; of URLs nobody is asked."""
    text = (
        WEB
        + '[matrix.far]\nsource = "https://127.0.0.1:1/x.txt"\n[run]\n[run.a]\n[run.b]\npersonalization = "none.csv"\n'
    )
    found = states(plan_pipeline(write_definition(text)))
    assert found["web"][0] == found["web/a"][0] == found["far"][0] == "to make"
    assert found["web/b"] == ("failing", "none.csv: there is no such file; check the path")
    changes = ({"matrix.web.source": "none.txt"}, {"matrix.web.source": ["edges.txt", "none.txt"]})
    changes += ({"matrix.web.vertices": "none.txt"}, {"matrix.web.update.insert": "none.txt"})
    for overrides in changes:
        found = states(plan_pipeline("p.toml", overrides=overrides))
        assert found["web"] == ("failing", "none.txt: there is no such file; check the path")
        assert found["web/a"] == ("failing", "needs web, which cannot be made")
    assert states(plan_pipeline("p.toml", overrides={"matrix.web.source": "*.csv"}))["web"][0] == "failing"
    assert states(plan_pipeline("p.toml", overrides={"matrix.web.source": ""}))["web"][1].startswith("'': there is no")
    assert not (folder / "out").exists()


def test_on_a_cluster_that_is_not_started_for_it():
    run_pipeline(write_definition(WEB))
    plan = plan_pipeline(write_definition(RUN + '[cluster]\nkind = "address"\naddress = "tcp://127.0.0.1:1"\n'))
    assert plan.steps[1].state == "to make"
