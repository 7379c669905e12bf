"""Batches whose vectors workers share out: the bits of one process, on workers that hold all rows each."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import numpy as np
import pytest
from distributed import Client

import mgspmv as mg
from mgspmv.cluster import executors, iterations, vector_shares
from mgspmv.cluster.agent import FreeMemory
from mgspmv.cluster.dask_cluster import Cluster
from mgspmv.cluster.vector_shares import deal_vectors, join_passes
from mgspmv.errors import CapacityError, ConvergenceError, WorkerLostError
from mgspmv.model import Event
from mgspmv.solvers.vectors import Query
from tests.support.clusters import start_cluster
from tests.support.hearing import on_both, on_events, on_phases
from tests.support.placed import call_placed
from tests.support.waiting import HANG_S, wait_for

N = 60


@pytest.fixture(autouse=True)
def shared(monkeypatch):
    """Hosts share out vectors, too."""
    monkeypatch.setattr(vector_shares, "may_share", lambda matrix: True)


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """A weighted graph of 60 vertices with names, some of them dangling."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("named")
    source, target = rng.integers(0, N, (2, 400))
    source, target = source[source % 11 > 0], target[source % 11 > 0]
    lines = [f"v{i:02},v{j:02},{w:.3f}" for i, j, w in zip(source, target, rng.random(400) + 0.1, strict=False)]
    (folder / "arcs.csv").write_text("\n".join(lines))
    return mg.ingest(folder / "arcs.csv", folder / "graph.zarr", kind="graph", ids="string", duplicates="sum")


@pytest.fixture(scope="module")
def dealt(tmp_path_factory):
    """A graph without values, whose rows are not in the order of the source."""
    edges = np.random.default_rng(1).zipf(1.4, (2, 9000)).clip(1, 700) - 1
    path = tmp_path_factory.mktemp("dealt") / "graph.zarr"
    return mg.ingest((edges[0], edges[1]), path, kind="graph", n_vertices=700, order="degree")


def draw(A, n_vectors, seed=0):
    """Vectors of some vertices each, by their ids, and a uniform one."""
    rng = np.random.default_rng(seed)
    ids = np.arange(A.shape[0]) if A.vertex_ids is None else A.vertex_ids
    drawn = [rng.choice(A.shape[0], size, replace=False) for size in rng.integers(1, 6, n_vectors - 1)]
    return [*({ids[v]: float(w) for v, w in zip(own, rng.random(len(own)), strict=True)} for own in drawn), None]


def check_same(batch, wanted):
    """The same bits, the same way there, and the same bounds, as each worker adds up all rows."""
    assert batch.labels == wanted.labels
    assert batch.digest() == wanted.digest()
    assert (batch.statuses, batch.changes) == (wanted.statuses, wanted.changes)
    assert batch.top() == wanted.top()
    assert batch.error_bounds_l1.tolist() == wanted.error_bounds_l1.tolist()
    of_passes = {"executor": "supersteps", "vectors": "shared", "steps": len(batch.events)}
    assert batch.options == wanted.options | of_passes | {"width": batch.options["width"]}
    assert batch.matrix["transport"] == "local"


@pytest.mark.parametrize(
    ("n_workers", "precision"), [(2, "exact"), (2, "float64"), (3, "exact"), (3, "float32"), (7, "exact")]
)
def test_each_vector_has_the_bits_of_one_process(n_workers, precision, named, dealt, in_process):
    for A in (named, dealt):
        with A.distribute(in_process(n_workers)) as D:
            for n_vectors, more in ((13, {}), (13, {"keep_top": 5}), (4, {}), (4, {"keep_top": 100})):
                vectors, alphas = draw(A, n_vectors), np.linspace(0.0, 0.95, n_vectors)
                options = {"alpha": alphas, "precision": precision, "width": 4, "max_iter": 60, "throw": False} | more
                batch = mg.pagerank_batch(D, vectors, **options)
                check_same(batch, mg.pagerank_batch(A, vectors, **options))
                n_used = min(n_workers, n_vectors)
                assert batch.matrix["hardware"] == f"{n_used} workers of 1 thread"
                assert [n_bytes > 0 for n_bytes in batch.memory["held_bytes"]] == [k < n_used for k in range(n_workers)]
                assert batch.options["width"] == min(4, 2 if n_vectors <= 2 * n_workers else 4)


OPTIONS = {
    "defaults": {},
    "dangling uniform": {"dangling": "uniform"},
    "dangling dropped": {"dangling": "drop"},
    "dangling by name": {"dangling": {"v00": 1.0, "v33": 2.0}},
    "dangling by array": {"dangling": np.arange(1.0, N + 1)},
    "linf": {"norm": "linf", "tol": 1e-7},
    "fixed": {"norm": "fixed", "max_iter": 7},
    "weights left out": {"weight": False},
    "out-weights": {"out_weight": 30 + np.arange(float(N))},
    "threads": {"threads": 2},
    "a wide pass": {"width": 64},
    "default width": {"width": None},
    "more than there are": {"keep_top": 100},
    "default alpha": {"alpha": 0.85},
}


def test_options(named, in_process):
    vectors = draw(named, 6)
    with named.distribute(in_process(2)) as D:
        for options in OPTIONS.values():
            options = {"width": 4, "max_iter": 200, "alpha": 0.6} | options
            batch, wanted = (call_placed(mg.pagerank_batch, A, vectors, **options) for A in (D, named))
            check_same(batch, wanted)


def test_one_vector_or_one_worker_is_not_shared(named, in_process):
    for n_workers, n_vectors in ((1, 4), (2, 1)):
        vectors = draw(named, 5)[:n_vectors]
        batch = mg.pagerank_batch(named.on(in_process(n_workers)), vectors)
        assert (batch.options["vectors"], batch.matrix["transport"]) == ("rows", "peer")
        assert batch.digest() == mg.pagerank_batch(named, vectors).digest()


def test_hosts_compute_their_rows(named, in_process, monkeypatch):
    monkeypatch.undo()
    batch = mg.pagerank_batch(named.on(in_process(2)), draw(named, 4))
    assert batch.options["vectors"] == "rows"


def test_passes_are_joined_by_number(dealt, in_process, monkeypatch):
    vectors, seen, told = draw(dealt, 23), [], []
    options = {"width": 4, "alpha": np.linspace(0.3, 0.9, 23)}
    wanted = mg.pagerank_batch(dealt, vectors, **options)
    with dealt.distribute(in_process(3)) as D:
        batch = mg.pagerank_batch(D, vectors, **options, progress=on_both(seen.append, lambda *said: told.append(said)))
        check_same(batch, wanted)
        assert tuple(seen) == batch.events
        assert [event.iteration for event in seen] == list(range(1, len(seen) + 1))
        assert len(seen) < len(wanted.events) / 2
        for event in seen:
            lengths = (event.product_s, event.exchange_s, event.wait_s, event.exchanged_bytes, event.memory_bytes)
            assert [len(each) for each in lengths] == [3] * 5
            assert max(event.exchanged_bytes) == 0
        assert seen[0].change == max(changes[0] for changes in batch.changes[-12:])
        assert batch.memory["held_bytes"] == list(seen[0].memory_bytes)
        assert [phase for phase, *_ in told[:5]] == ["load"] * 4 + ["start"]
        assert [done for phase, done, _ in told if phase == "vectors"][-1] == 23
        assert {"queue", "start", "compile", "product", "residual", "keep"} <= set(batch.seconds)
        # What is kept goes to the client vector by vector, a pass at a time, and errors are bounded by twos.
        monkeypatch.setattr(iterations, "KEPT_BYTES", 1)
        monkeypatch.setattr(vector_shares, "SUPERSTEP_S", 0.0)
        monkeypatch.setattr("mgspmv.solvers.batch.RESIDUAL_WIDTH", 2)
        check_same(mg.pagerank_batch(D, vectors, **options), wanted)


def test_copies_stay_on_the_workers_until_the_matrix_is_closed(named, in_process):
    client, vectors, told = in_process(2), draw(named, 6), []
    with named.distribute(client) as D:
        for _ in range(2):
            mg.pagerank_batch(D, vectors, progress=on_phases(lambda *said: told.append(said)))
        assert [done for phase, done, _ in told if phase == "load"] == [0, 1, 2]  # by the first one
        assert mg.pagerank(D).digest() == mg.pagerank(named).digest()
        keys = [*D.row_block_keys, *(block.future.key for block in D.held.copies)]
        assert (len(keys), sorted(list_held(client))) == (4, sorted(keys))
        D.redistribute()
        assert (D.held.copies, sorted(list_held(client))) == ([], sorted(D.row_block_keys))
        check_same(mg.pagerank_batch(D, vectors), mg.pagerank_batch(named, vectors))
    assert list_held(client) == []


def list_held(client):
    """Keys of the matrices that the workers hold."""
    held = client.run(lambda dask_worker: [*dask_worker.plugins["mgspmv"].held])
    return [key for own in held.values() for key in own]


def test_memory_decides(named, in_process, monkeypatch):
    """All rows are held where they fit beside a pass; each of two workers has half of the host's memory."""
    vectors, plan = [["v01"]] * 9, named.plan(1, backend="cpu")
    n_bytes = {w: vector_shares.count_bytes(vector_shares.LocalExchange(N), N, "exact", 8, w) for w in (2, 8, 16)}
    block, planned = plan.workers[0].block_bytes, max(w.memory_bytes for w in named.plan(2, backend="cpu").workers)
    most = max(plan.memory_bytes, block + planned)
    for free, more, expected in (
        (block + 2 * n_bytes[8], {}, "shared"),
        (block + 2 * n_bytes[8] - 2, {}, "rows"),
        (block + n_bytes[2], {"width": 2}, "shared"),
        (block + n_bytes[2] - 1, {"width": 2}, "rows"),
        (most, {"width": 2}, "shared" if most >= block + n_bytes[2] else "rows"),
    ):
        with named.distribute(in_process(2)) as D:
            monkeypatch.setattr("mgspmv.cluster.agent.free_memory", lambda free=free: 2 * free)
            batch = mg.pagerank_batch(D, vectors, keep_top=1, **more)
            monkeypatch.setattr("mgspmv.cluster.agent.free_memory", lambda: 1 << 40)
        assert batch.options["vectors"] == expected


def test_a_plan_is_kept_while_there_is_memory(named, in_process, monkeypatch):
    """Workers measure their memory for the first batch of a kind, and when a later one does not fit."""
    vectors, measured, start = draw(named, 6), [], iterations.Batch.start
    wanted = mg.pagerank_batch(named, vectors)
    measure = vector_shares._measure
    monkeypatch.setattr(vector_shares, "_measure", lambda *given: measured.append(1) or measure(*given))
    with named.distribute(in_process(2)) as D:
        for _ in range(2):
            check_same(mg.pagerank_batch(D, vectors), wanted)
        assert len(measured) == 1
        mg.pagerank_batch(D, vectors, width=2)
        assert len(measured) == 2

        def fail_once(self):
            monkeypatch.setattr(iterations.Batch, "start", start)
            raise CapacityError("a vector does not fit")

        monkeypatch.setattr(iterations.Batch, "start", fail_once)
        check_same(mg.pagerank_batch(D, vectors), wanted)
        assert len(measured) == 3

        def fail(self):
            raise CapacityError("a vector does not fit")

        monkeypatch.setattr(iterations.Batch, "start", fail)
        with pytest.raises(CapacityError, match=r"^a vector does not fit$"):
            mg.pagerank_batch(D, vectors)
        assert len(measured) == 4
        monkeypatch.setattr(iterations.Batch, "start", start)
        D.redistribute()
        check_same(mg.pagerank_batch(D, vectors), wanted)
        assert len(measured) == 5


def test_a_batch_is_one_round_of_tasks(named, in_process, monkeypatch):
    """Once its workers hold all rows; with inputs that are sent with the tasks, or ahead of them."""
    vectors, wanted, rounds, sent = draw(named, 6), mg.pagerank_batch(named, draw(named, 6)), [], []
    settle, scatter = Cluster.settle, Cluster.scatter_each
    monkeypatch.setattr(vector_shares, "SUPERSTEP_S", 1e6)
    monkeypatch.setattr(Cluster, "settle", lambda *given: rounds.append(given[3]) or settle(*given))
    monkeypatch.setattr(Cluster, "scatter_each", lambda *given: sent.append(given[3]) or scatter(*given))
    with named.distribute(in_process(2)) as D:
        mg.pagerank_batch(D, vectors)
        for most in (executors.MOST_SENT, 0):
            monkeypatch.setattr(executors, "MOST_SENT", most)
            rounds.clear()
            check_same(mg.pagerank_batch(D, vectors), wanted)
            assert (rounds, sent) == (["start"], [] if most else ["start"])


def test_limits_and_held_rows_count(named, in_process):
    with named.distribute(in_process(2), host_memory="1GB") as D:
        members = D.members
        free = FreeMemory(host=8 * 10**9, device=6 * 10**9, block_bytes=1000)
        assert vector_shares._divide(D, members, 0, replace(free, device=None)) == (None, 10**9 + 1000)
        assert vector_shares._divide(D, members[:1], 0, free) == (6 * 10**9 + 1000, 10**9)


def test_errors_end_the_batch(named, in_process, monkeypatch):
    vectors = draw(named, 6)
    alphas = [0.1, 0.95, 0.2, 0.95, 0.1, 0.1]
    with named.distribute(in_process(2)) as D:
        options = {"alpha": alphas, "tol": 1e-9, "max_iter": 20}
        with pytest.raises(ConvergenceError, match=r"^2 of 6 vectors did not converge, first 1: ") as raised:
            mg.pagerank_batch(D, vectors, **options)
        check_same(raised.value.solution, mg.pagerank_batch(named, vectors, **options, throw=False))

        def listen(event):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            mg.pagerank_batch(D, vectors, progress=on_events(listen))
        step = iterations.Batch._step

        def fail(self):
            if self.iteration == 3:
                monkeypatch.setattr(iterations.Batch, "_step", step)
                raise ZeroDivisionError("of one worker alone")
            return step(self)

        monkeypatch.setattr(iterations.Batch, "_step", fail)
        with pytest.raises(ZeroDivisionError, match=r"^of one worker alone$"):
            mg.pagerank_batch(D, vectors)
        check_same(mg.pagerank_batch(D, vectors), mg.pagerank_batch(named, vectors))
        monkeypatch.setattr("mgspmv.api.batch_ranking.free_memory", lambda: 100)
        with pytest.raises(CapacityError, match=r"ranks of 6 vectors take 2,880 bytes, and 100 are free"):
            mg.pagerank_batch(D, vectors)


@pytest.mark.slow
def test_a_worker_that_dies_ends_the_batch(tmp_path):
    A, struck = mg.generate("rmat", tmp_path / "graph.zarr", scale=12), []
    with start_cluster(2) as cluster, Client(cluster, set_as_default=False) as client:
        victim, pid = next(iter(client.run(os.getpid).items()))

        def strike(event):
            if event.iteration > 20 and not struck:
                struck.append(True)
                os.kill(pid, signal.SIGKILL)

        vectors = [[1], [2], [3]]
        with A.distribute(client) as D:
            with pytest.raises(WorkerLostError, match=rf"worker \d \({victim}\) left the cluster \(during iterations"):
                mg.pagerank_batch(D, vectors, norm="fixed", max_iter=10**6, progress=on_events(strike))
            assert wait_for(lambda: len(client.scheduler_info(n_workers=-1)["workers"]) == 2, HANG_S)
            D.redistribute()
            check_same(mg.pagerank_batch(D, vectors), mg.pagerank_batch(A, vectors))


def test_vectors_are_dealt_by_damping():
    queries = [Query(k, alpha, 0.1, np.empty(0), np.empty(0)) for k, alpha in enumerate((0.5, 0.9, 0.5, 0.9, 0.9))]
    assert deal_vectors(queries, 2) == ((1, 4, 2), (3, 0))
    assert deal_vectors(queries, 7) == ((1,), (3,), (4,), (0,), (2,))


def test_a_pass_that_a_worker_does_not_make_has_its_memory():
    event, held = Event("run", 0, 3, 0.25, (2.0,), (0.0,), (0.0,), (0,), (70,)), [0, 60, 0]
    joined = join_passes([event, None], held)
    assert (joined.iteration, joined.change, joined.product_s) == (3, 0.25, (2.0, 0.0, 0.0))
    assert (joined.memory_bytes, joined.exchanged_bytes) == ((70, 60, 0), (0, 0, 0))
    held = [0, 0]
    other = replace(event, change=0.5, memory_bytes=(80,))
    assert (join_passes([event, other], held).change, held) == (0.5, [70, 80])
