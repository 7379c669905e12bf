"""`mgspmv status`: the runs that a cluster knows."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from mgspmv.launching.serving import Asked, describe
from mgspmv.launching.state import claim, tell
from tests.support.commands import invoke, invoke_json


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("MGSPMV_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "150")


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("graphs") / "g.zarr"
    invoke("generate", "rmat", str(path), "--scale", "8", "--edge-factor", "8")
    return str(path)


@pytest.mark.slow
def test_a_cluster_knows_its_runs(graph, cluster, client):
    on_cluster = ("--scheduler", cluster.scheduler_address)
    invoke_json("pagerank", graph, *on_cluster)
    known = invoke_json("status", *on_cluster)["runs"]
    assert (known[0]["operation"], known[0]["state"], known[0]["workers"]) == ("pagerank", "converged", 4)
    assert known[0]["matrix"].endswith("g.zarr")
    assert abs(known[0]["began"] - time.time()) < 3600
    assert " converged   pagerank " in invoke("status", *on_cluster)[0]


@pytest.mark.slow
def test_the_cluster_of_this_machine_is_asked_by_default(graph, cluster, client):
    invoke_json("pagerank", graph, "--scheduler", cluster.scheduler_address)
    own = replace(describe(Asked("one")), scheduler=cluster.scheduler_address)
    with claim(own):
        tell(own)
        assert invoke_json("status")["runs"] == invoke_json("status", "--scheduler", cluster.scheduler_address)["runs"]
        with claim(other := replace(own, name="two")):
            tell(other)
            _, stderr = invoke("status", code=2)
    assert "2 clusters run on this machine (one at tcp://" in stderr
    assert stderr.endswith("; name one by --scheduler ADDRESS\n")


def test_no_cluster():
    assert invoke("status", code=2)[1] == "error: no cluster runs on this machine; name one by --scheduler ADDRESS\n"
