"""Clusters that adapt to their tasks, from no workers on."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from distributed import Client

import mgspmv as mg
from tests.support.clusters import check_left, find_left, start_cluster
from tests.support.waiting import wait_for

EDGES = [(1, 2), (2, 3), (3, 1), (1, 3), (3, 5), (5, 1)]

LOOKS = 20
"""Many times as many as the cluster makes before it ends a worker without tasks."""

pytestmark = pytest.mark.slow


@pytest.fixture
def adaptive():
    """A cluster that has a worker only while there are tasks, and looks for them all the time."""
    with start_cluster(0, processes=False) as cluster:
        cluster.adapt(minimum=0, maximum=2, interval="50ms", wait_count=2)
        yield cluster


def count_workers(cluster):
    return len(cluster.scheduler.workers)


def count_looks(cluster):
    """What the cluster wants to have of workers, each time that it looks, from now on."""
    looks, look = [], cluster._adaptive.safe_target

    async def look_once():
        looks.append(await look())
        return looks[-1]

    cluster._adaptive.safe_target = look_once
    return looks


def test_calls_begin_without_workers(adaptive, tmp_path):
    (tmp_path / "edges.csv").write_text("".join(f"{i},{j}\n" for i, j in EDGES))
    wanted = mg.ingest(nx.DiGraph(EDGES), transpose=True)
    ranks = mg.pagerank(wanted)
    with Client(adaptive, set_as_default=False) as client:
        before = find_left(client)
        for k, given in enumerate((client, adaptive, client)):
            assert wait_for(lambda: count_workers(adaptive) == 0)
            A = mg.ingest(tmp_path / "edges.csv", tmp_path / f"{k}.zarr", client=given, transpose=True)
            assert A.info.digest == wanted.info.digest
            assert wait_for(lambda: count_workers(adaptive) == 0)
            with A:
                assert mg.pagerank(A.on(given)).digest() == ranks.digest()
        check_left(client, before)


def test_a_worker_stays_while_a_matrix_is_on_it(adaptive, tmp_path):
    with Client(adaptive, set_as_default=False) as client, mg.ingest(nx.DiGraph(EDGES), tmp_path / "g.zarr") as A:
        with A.distribute(client) as D:
            [worker] = adaptive.scheduler.workers
            looks = count_looks(adaptive)
            assert wait_for(lambda: len(looks) == LOOKS)
            assert [*adaptive.scheduler.workers] == [worker]
            np.testing.assert_array_equal(D @ np.ones(4), A @ np.ones(4))
        assert wait_for(lambda: count_workers(adaptive) == 0)
