"""`mgspmv status` and `cancel`: the runs that a cluster knows, and what ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from dataclasses import replace

import psutil
import pytest

import mgspmv as mg
from mgspmv.launching import Launched, register
from tests.support.clusters import check_left, find_held, find_left
from tests.support.commands import invoke, invoke_json, start
from tests.support.waiting import HANG_S, wait_for

ENDLESS = ("--norm", "fixed", "--max-iter", "100000000", "--threads", "1")


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
    own = Launched("one", os.getpid(), psutil.Process().create_time(), scheduler=cluster.scheduler_address)
    with register(own):
        assert invoke_json("status")["runs"] == invoke_json("status", "--scheduler", cluster.scheduler_address)["runs"]
        with register(replace(own, name="two")):
            _, stderr = invoke("status", code=2)
    assert "2 clusters run on this machine (one at tcp://" in stderr
    assert stderr.endswith("; name one by --scheduler ADDRESS\n")


def test_no_cluster():
    assert invoke("status", code=2)[1] == "error: no cluster runs on this machine; name one by --scheduler ADDRESS\n"


def await_running(address: str, least: int = 1) -> str:
    """Wait until a run iterates; its id."""

    def find() -> list[str]:
        runs = invoke_json("status", "--scheduler", address)["runs"]
        return [run["run"] for run in runs if run["is_running"] and run["iterations"] >= least]

    assert wait_for(find, HANG_S)
    return find()[0]


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["supersteps", "tasks"])
def test_a_command_ends_as_by_an_interrupt(graph, cluster, client, executor):
    address, left = cluster.scheduler_address, find_left(client)
    asked = ("pagerank", graph, "--scheduler", address, "--executor", executor, *ENDLESS)
    with start(*asked, stderr=subprocess.PIPE) as process:
        run = await_running(address)
        stdout, _ = invoke("cancel", run[:6], "--scheduler", address)
        assert stdout == f"run {run} is cancelled\n"
        _, stderr = process.communicate(timeout=HANG_S)
    assert process.returncode == 130
    assert "interrupted; after " in stderr
    check_left(client, left)
    again = invoke_json("cancel", run, "--scheduler", address)
    assert (again["state"], again["errors"]) == ("failed", ["KeyboardInterrupt"])


@pytest.mark.slow
def test_one_that_does_not_answer_is_ended_on_the_workers(graph, cluster, client):
    address, left = cluster.scheduler_address, find_left(client)
    with start("pagerank", graph, "--scheduler", address, *ENDLESS, stderr=subprocess.PIPE) as process:
        run = await_running(address)
        held = find_held(client)
        process.send_signal(signal.SIGSTOP)
        stdout, _ = invoke("cancel", run, "--scheduler", address, "--wait", "2")
        said = "its command did not answer within 2 s, and was ended on the workers"
        assert stdout == f"run {run} is cancelled; {said}\n"
        assert [names.count("WorkerRun") for names in held.values()] == [1] * 4
        assert wait_for(lambda: not any("WorkerRun" in names for names in find_held(client).values()))
        [known] = [each for each in invoke_json("status", "--scheduler", address)["runs"] if each["run"] == run]
        assert known["state"] == "abandoned"
        process.send_signal(signal.SIGCONT)
        assert process.wait(HANG_S) in (7, 130)  # whichever it hears of first
        process.stderr.close()
    check_left(client, left)


@pytest.mark.slow
def test_a_thread_is_interrupted_and_no_other_run(graph, in_process):
    client = in_process(2)
    outcomes, A = {}, mg.open_matrix(graph)

    def rank(name: str) -> None:
        try:
            outcomes[name] = mg.pagerank(A.on(client), norm="fixed", max_iter=10**8 if name == "long" else 20)
        except KeyboardInterrupt as error:
            outcomes[name] = error

    threads = [threading.Thread(target=rank, args=(name,)) for name in ("long", "short")]
    threads[0].start()
    run = await_running(client.scheduler.address)
    threads[1].start()
    invoke("cancel", run, "--scheduler", client.scheduler.address)
    for thread in threads:
        thread.join(HANG_S)
    assert isinstance(outcomes["long"], KeyboardInterrupt)
    assert outcomes["short"].iterations == 20


@pytest.mark.slow
def test_a_pipeline_ends_with_its_run(cluster, client, tmp_path):
    (tmp_path / "p.toml").write_text(f"""
folder = "p"
cluster = {{kind = "address", address = "{cluster.scheduler_address}"}}
[matrix.g]
generate = "rmat"
parameters = {{scale = 8, edge_factor = 8, seed = 1}}
[run]
norm = "fixed"
max_iter = 100000000
""")
    with start("run", "p.toml", cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        run = await_running(cluster.scheduler_address)
        invoke("cancel", run, "--scheduler", cluster.scheduler_address)
        _, stderr = process.communicate(timeout=HANG_S)
    assert process.returncode == 130, stderr
    assert "interrupted" in stderr


@pytest.mark.slow
def test_what_cannot_be_cancelled(graph, cluster, client):
    on_cluster = ("--scheduler", cluster.scheduler_address)
    invoke_json("pagerank", graph, *on_cluster)
    run = invoke_json("status", *on_cluster)["runs"][0]["run"]
    assert invoke("cancel", run, *on_cluster)[0] == f"run {run} had ended: converged\n"
    _, stderr = invoke("cancel", "zz", *on_cluster, code=2)
    assert "error: no run of this cluster begins with 'zz'; give one of " in stderr
