"""Runs that are started together take turns on a cluster."""

from __future__ import annotations

import threading
import time

import pytest
from distributed import Client

import mgspmv as mg
from tests.support.hearing import on_both
from tests.support.waiting import HANG_S


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return mg.generate("uniform", tmp_path_factory.mktemp("lease") / "graph.zarr", n_vertices=3000, n_edges=20_000)


@pytest.mark.parametrize("executors", [("supersteps", "supersteps"), ("supersteps", "tasks")], ids="+".join)
def test_runs_that_are_started_together_take_turns(executors, graph, client):
    options = {"norm": "fixed", "max_iter": 30}
    wanted = mg.pagerank(graph, **options).digest()
    started, is_queued, solutions = threading.Barrier(len(executors), timeout=HANG_S), threading.Event(), []

    def run(executor):
        with Client(client.scheduler.address, set_as_default=False) as mine, graph.distribute(mine) as D:
            times, said = [], []

            def on_event(event):
                assert is_queued.wait(HANG_S), "the first ends after the second was seen to wait"
                times.append(time.monotonic())

            def on_progress(phase, done, total):
                said.append(phase)
                if phase == "queue":
                    is_queued.set()

            started.wait()
            solution = mg.pagerank(D.on(executor=executor), **options, progress=on_both(on_event, on_progress))
            solutions.append((times, said, solution))

    threads = [threading.Thread(target=run, args=[executor]) for executor in executors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert [s.digest() for _, _, s in solutions] == [wanted] * len(executors)
    (first, said, _), (second, waited, _) = sorted(solutions, key=lambda each: each[0][0])
    assert first[-1] < second[0]
    assert said == ["start", "residual"]
    assert waited == ["queue", "start", "residual"]
