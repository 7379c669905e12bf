"""What a scheduler keeps of runs that ended: as much after many as after a few."""

from __future__ import annotations

import dask
import distributed
import numpy as np
import pytest
from distributed import Client

import mgspmv as mg
from mgspmv.monitor.plugin import TRIM_EVERY, trim_spans
from tests.support.clusters import start_cluster
from tests.support.waiting import wait_for

LOG_LENGTH = 50
"""Of each of Dask's logs here, which is 1,000 unless its configuration says otherwise."""


@pytest.fixture(scope="module")
def scheduler():
    """Of one worker in this process, which keeps little of each log."""
    with (
        dask.config.set(
            {"distributed.admin.low-level-log-length": LOG_LENGTH, "distributed.scheduler.events-cleanup-delay": "0s"}
        ),
        start_cluster(1, processes=False, dashboard_address=None) as cluster,
    ):
        yield cluster.scheduler


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return mg.generate("rmat", tmp_path_factory.mktemp("growth") / "g.zarr", scale=5, edge_factor=4, seed=1)


def count(scheduler):
    """How many things of each kind there are."""
    spans = scheduler.extensions["spans"]
    return {
        "spans": len(spans.spans),
        "names of spans": len(spans.spans_search_by_name),
        "tasks": len(scheduler.tasks),
        "task groups": len(scheduler.task_groups),
        "task prefixes": len(scheduler.task_prefixes),
        "clients": len(scheduler.clients),
        "plugins": len(scheduler.plugins),
        "semaphores": len(scheduler.extensions["semaphores"].leases),
    }


def check_bounded(scheduler):
    """What has a limit, which few runs may not reach."""
    spans = scheduler.extensions["spans"].spans.values()
    assert sum(len(span.groups) - len({group.name for group in span.groups}) for span in spans) <= TRIM_EVERY
    assert sum(len(span.metadata["collections"]) for span in spans if span.metadata) <= TRIM_EVERY + len(spans)
    assert len(scheduler.plugins["mgspmv-monitor"].runs.by_id) <= 20
    logs = [*scheduler.get_events().values(), scheduler.transition_log, scheduler.erred_tasks]
    assert max(map(len, logs)) <= LOG_LENGTH
    # Those of clients that left are gone; the others are of the worker, of its address, and of all.
    wait_for(lambda: sum(topic.startswith("Client-") for topic in scheduler.get_events()) <= len(scheduler.clients))


def run_with_a_client_each(graph, scheduler, k):
    mg.pagerank(graph.on(scheduler.address, executor="tasks" if k % 10 == 1 else "supersteps"))


@pytest.mark.slow
def test_200_runs_leave_what_20_leave(graph, scheduler):
    for k in range(20):
        run_with_a_client_each(graph, scheduler, k)
    few = count(scheduler)
    for k in range(20, 200):
        run_with_a_client_each(graph, scheduler, k)
    assert count(scheduler) == few
    assert few["spans"] <= 10
    assert few["tasks"] == few["task groups"] == 0
    check_bounded(scheduler)


def test_all_that_is_computed_has_a_span_once(graph, scheduler):
    with Client(scheduler.address, set_as_default=False) as client:

        def compute_all():
            with graph.distribute(client) as D:
                mg.pagerank(D)
                mg.pagerank_batch(D, [[1], [2]])
                mg.katz(D.on(executor="tasks"), alpha=1e-3)
                mg.katz(D.on(executor="supersteps"), alpha=1e-3)
                D @ np.ones(D.shape[1])
            run_with_a_client_each(graph, scheduler, 1)

        compute_all()
        few = count(scheduler)
        for _ in range(2):
            compute_all()
        assert count(scheduler) == few
        assert [name for name in scheduler.extensions["spans"].spans_search_by_name if name[0] != "mgspmv"] == []
    check_bounded(scheduler)


def test_spans_of_others_stay(scheduler):
    with Client(scheduler.address, set_as_default=False) as client, distributed.span("others") as id:
        for k in range(3):
            client.submit(lambda: 0, key=("own", k)).result()
            wait_for(lambda: not scheduler.task_groups)  # so that the next one makes another group
    span = scheduler.extensions["spans"].spans[id]
    assert len(span.groups) == 3
    trim_spans(scheduler)
    assert len(span.groups) == 3
