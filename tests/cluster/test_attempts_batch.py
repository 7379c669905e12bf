"""Many vectors on clusters: on any number of workers the bits of one process; what is kept; what goes wrong."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from distributed import Client

import mgspmv as mg
from mgspmv.cluster import iterations
from mgspmv.errors import CapacityError, ClosedError, ClusterError, OptionError, SchedulerNotFoundError, WorkerLostError
from tests.support.clusters import start_cluster
from tests.support.hearing import on_both, on_events, on_phases
from tests.support.placed import call_placed
from tests.support.waiting import HANG_S, wait_for

N = 60
MANY = 7
"""Workers, some of whom get few rows."""


def store_graph(source, path, **options):
    return mg.ingest(source, path, **{"kind": "graph", **options})


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """A weighted graph of 60 vertices with names, some of them dangling."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("named")
    source, target = rng.integers(0, N, (2, 400))
    source, target = source[source % 11 > 0], target[source % 11 > 0]
    lines = [f"v{i:02},v{j:02},{w:.3f}" for i, j, w in zip(source, target, rng.random(400) + 0.1, strict=False)]
    (folder / "arcs.csv").write_text("\n".join(lines))
    return store_graph(folder / "arcs.csv", folder / "graph.zarr", ids="string", duplicates="sum")


@pytest.fixture(scope="module")
def dealt(tmp_path_factory):
    """A graph without values, whose rows are not in the order of the source."""
    rng = np.random.default_rng(1)
    edges = rng.zipf(1.4, (2, 9000)).clip(1, 700) - 1
    path = tmp_path_factory.mktemp("dealt") / "graph.zarr"
    return store_graph((edges[0], edges[1]), path, n_vertices=700, order="degree")


def draw(A, n_vectors, seed=0):
    """Vectors of some vertices each, by their ids, and a uniform one."""
    rng = np.random.default_rng(seed)
    ids = np.arange(A.shape[0]) if A.vertex_ids is None else A.vertex_ids
    drawn = [rng.choice(A.shape[0], size, replace=False) for size in rng.integers(1, 6, n_vectors - 1)]
    return [*({ids[v]: float(w) for v, w in zip(own, rng.random(len(own)), strict=True)} for own in drawn), None]


def check_same(batch, wanted):
    """The same bits and the same way there; bounds are summed by workers, so their last bits may differ."""
    assert batch.labels == wanted.labels
    assert batch.digest() == wanted.digest()
    assert (batch.statuses, batch.changes) == (wanted.statuses, wanted.changes)
    assert batch.top() == wanted.top()
    assert batch.error_bounds_l1 == pytest.approx(wanted.error_bounds_l1, rel=1e-6, abs=1e-18)
    assert batch.options == wanted.options | {"executor": "supersteps", "vectors": "rows"}


@pytest.mark.parametrize(
    ("n_workers", "precision"), [(1, "exact"), (2, "float64"), (3, "exact"), (3, "float32"), (MANY, "exact")]
)
def test_each_vector_has_the_bits_of_one_process(n_workers, precision, named, dealt, in_process):
    for A in (named, dealt):
        vectors, alphas = draw(A, 13), np.linspace(0.0, 0.95, 13)
        with A.distribute(in_process(n_workers)) as D:
            for more in ({}, {"keep_top": 5}):
                options = {"alpha": alphas, "precision": precision, "width": 4, "max_iter": 60, "throw": False} | more
                batch = mg.pagerank_batch(D, vectors, **options)
                check_same(batch, mg.pagerank_batch(A, vectors, **options))
        assert len(set(batch.iterations.tolist())) > 4  # they leave the pass one by one


OPTIONS = {
    "defaults": {},
    "dangling uniform": {"dangling": "uniform"},
    "dangling dropped": {"dangling": "drop"},
    "dangling by name": {"dangling": {"v00": 1.0, "v33": 2.0}},
    "dangling by array": {"dangling": np.arange(1.0, N + 1)},
    "l1_per_node": {"norm": "l1_per_node", "tol": 1e-8, "alpha": 0.5},
    "linf": {"norm": "linf", "tol": 1e-7},
    "relative": {"norm": "relative", "tol": 1e-3},
    "fixed": {"norm": "fixed", "max_iter": 7},
    "weights left out": {"weight": False},
    "out-weights": {"out_weight": 30 + np.arange(float(N))},
    "threads": {"threads": 2},
    "a wide pass": {"width": 64},
    "more than there are": {"keep_top": 100},
    "default alpha": {"alpha": 0.85},
}


@pytest.fixture(scope="module")
def placed(named, _in_process):
    """On threads of this process, so that each option is compiled once."""
    with named.distribute(_in_process(3)) as D:
        yield D


def test_options(named, placed):
    for name, options in OPTIONS.items():
        vectors = draw(named, 6)
        options = {"width": 4, "max_iter": 200, "alpha": 0.3} | options
        batch, wanted = (call_placed(mg.pagerank_batch, A, vectors, **options) for A in (placed, named))
        check_same(batch, wanted)
        assert batch.matrix["hardware"] == "3 workers of 1 thread", name
        assert batch.matrix["transport"] == "peer", name
        assert "transport" not in wanted.matrix, name


def test_a_client_distributes_for_one_batch(named, client, tmp_path):
    told = []
    vectors = {"a": ["v01"], "b": ["v02", "v03"], "c": None}
    batch = mg.pagerank_batch(named.on(client), vectors, progress=on_phases(lambda *said: told.append(said)))
    check_same(batch, mg.pagerank_batch(named, vectors))
    assert batch.matrix["hardware"] == "4 workers of 1 thread"
    assert [phase for phase, *_ in told[:6]] == ["join", *["load"] * 5]
    assert told[6] == ("start", 0, None)
    assert told[-1] == ("vectors", 3, 3)
    assert {"load", "queue", "start", "compile", "product", "exchange", "residual", "keep"} <= set(batch.seconds)
    batch.save(tmp_path / "ranks.zarr")
    loaded = mg.load_batch(tmp_path / "ranks.zarr")
    assert (loaded.digest(), loaded.memory) == (batch.digest(), batch.memory)


def test_passes_are_those_of_one_process(dealt, in_process, monkeypatch):
    vectors, seen, wanted_seen, told = draw(dealt, 23), [], [], []
    options = {"width": 4, "alpha": np.linspace(0.3, 0.9, 23)}
    wanted = mg.pagerank_batch(dealt, vectors, **options, progress=on_events(wanted_seen.append))
    with dealt.distribute(in_process(3)) as D:
        batch = mg.pagerank_batch(D, vectors, **options, progress=on_both(seen.append, lambda *said: told.append(said)))
        check_same(batch, wanted)
        assert [(e.iteration, e.change) for e in seen] == [(e.iteration, e.change) for e in wanted_seen]
        assert [done for phase, done, _ in told if phase == "vectors"][-1] == 23
        for event in seen:
            lengths = (event.product_s, event.exchange_s, event.wait_s, event.exchanged_bytes, event.memory_bytes)
            assert [len(each) for each in lengths] == [3] * 5
            assert min(event.exchanged_bytes) > 0
        assert min(seen[-1].exchanged_bytes) < min(seen[0].exchanged_bytes)  # by then the pass is narrower
        assert batch.memory["held_bytes"] == list(seen[0].memory_bytes)
        assert batch.memory["planned_bytes"] == [w.memory_bytes for w in D.plan.workers]
        # What is kept goes to the client vector by vector, and errors are bounded by twos.
        monkeypatch.setattr(iterations, "KEPT_BYTES", 1)
        monkeypatch.setattr("mgspmv.solvers.batch.RESIDUAL_WIDTH", 2)
        check_same(mg.pagerank_batch(D, vectors, **options), wanted)


def test_the_width_is_what_all_workers_have_room_for(named, in_process, monkeypatch):
    vectors = [["v01"]] * 9
    with named.distribute(in_process(2)) as D:
        assert mg.pagerank_batch(D, vectors).options["width"] == 16
        needed = []

        def look(*given):
            needed.extend(bytes_by_width for _, bytes_by_width in given[3])
            return choose_width(*given)

        choose_width = iterations.choose_width
        monkeypatch.setattr(iterations, "choose_width", look)
        mg.pagerank_batch(D, vectors)
        most = max(own[4] for own in needed)
        # Both workers are on this host and have half of what is free each, and of that a half is for a pass.
        monkeypatch.setattr(iterations, "free_memory", lambda: 2 * 2 * most)
        assert mg.pagerank_batch(D, vectors, keep_top=1).options["width"] == 4
        monkeypatch.setattr(iterations, "free_memory", lambda: 400)
        with pytest.raises(
            CapacityError, match=r"a pass of 2 vectors needs [\d,]+ bytes on worker 0 .*, but may take 100,"
        ):
            mg.pagerank_batch(D, vectors, keep_top=1)
        assert mg.pagerank_batch(D, vectors, width=8).options["width"] == 8
        monkeypatch.setattr("mgspmv.api.batch_ranking.free_memory", lambda: 100)
        with pytest.raises(
            CapacityError, match=r"ranks of 9 vectors take 4,320 bytes, and 100 are free; pass keep_top=k"
        ):
            mg.pagerank_batch(D, vectors)


def test_what_is_refused(named, placed, client, in_process, monkeypatch):
    for options, message in (
        ({"width": 3}, "width must be one of"),
        ({"keep_top": 0}, "keep_top must be an integer of at least 1, not 0"),
        ({"executor": "tasks"}, "executor='tasks' does not compute batches, whose passes workers make in lockstep"),
        ({"kernel": "csr-rows"}, "pagerank_batch chooses its kernel, but kernel='csr-rows' was passed to on"),
    ):
        for matrix, where in ((placed, {}), (named, {"client": client})):
            with pytest.raises(OptionError, match=message):
                call_placed(mg.pagerank_batch, matrix, [["v01"]], **where, **options)
    for options, message in (
        ({"transport": "ucx"}, "transport must be one of 'auto', 'nccl', 'peer', not 'ucx'"),
        ({"transport": "peer"}, "transport= applies to the workers of a cluster; pass one as where="),
    ):
        with pytest.raises(OptionError, match=message):
            mg.pagerank_batch(named.on(**options), [["v01"]])
    for computes, message in (
        ("cpu", "limit what a run on CUDA takes, and this process computes on its host"),
        ("cuda", "are for the rows of workers"),
    ):
        monkeypatch.setattr("mgspmv.solvers.options.choose_backend", lambda backend, computes=computes: computes)
        with pytest.raises(OptionError, match=f"device_memory= and host_memory= {message}"):
            mg.pagerank_batch(named.on(host_memory="1GB"), [["v01"]])
    monkeypatch.undo()
    closed = named.distribute(in_process(2))
    closed.close()
    with pytest.raises(ClosedError, match="was closed; distribute it again"):
        mg.pagerank_batch(closed, [["v01"]])
    with pytest.raises(ClusterError, match="transport='nccl' needs a GPU on each worker"):
        mg.pagerank_batch(named.on(client, backend="cpu", transport="nccl"), [["v01"]])
    with start_cluster(1, processes=False) as cluster:
        own = Client(cluster, set_as_default=False)
        left = named.distribute(own)
        own.close()
        for matrix in (left, named.on(own)):
            with pytest.raises(SchedulerNotFoundError):
                mg.pagerank_batch(matrix, [["v01"]])


def test_rows_that_come_by_are_refused(named, placed, monkeypatch):
    from mgspmv.plan import WorkerPlan

    monkeypatch.setattr(WorkerPlan, "streams", property(lambda self: True))
    with pytest.raises(
        CapacityError, match=r"the \d+ rows of worker 0 .* do not fit in the memory of its GPU.*backend='cpu'"
    ):
        mg.pagerank_batch(placed, [["v01"]])


def fail_in(dask_worker, step):
    """Let a pass of this worker fail, once."""
    from mgspmv.solvers.batch import Batch

    step_once = Batch._step

    def fail(self):
        if self.iteration == step:
            Batch._step = step_once
            raise ZeroDivisionError("of this worker alone")
        return step_once(self)

    Batch._step = fail


def compute_wrongly(dask_worker):
    from dataclasses import replace

    from mgspmv.solvers.batch import Batch

    step_once = Batch._step

    def change(self):
        Batch._step = step_once
        event = step_once(self)
        return replace(event, change=event.change / 2)

    Batch._step = change


def test_errors_of_a_worker_end_the_batch(named, client):
    """And of the listener; the cluster takes the next one."""
    last = list(client.scheduler_info(n_workers=-1)["workers"])[-1]
    vectors, wanted = draw(named, 5), mg.pagerank_batch(named, draw(named, 5))
    client.run(fail_in, step=4, workers=[last])
    with pytest.raises(ZeroDivisionError, match=r"^of this worker alone$"):
        mg.pagerank_batch(named.on(client), vectors)
    client.run(compute_wrongly, workers=[last])
    with pytest.raises(ClusterError, match=r"^the workers do not agree on the changes of this superstep; one of them"):
        mg.pagerank_batch(named.on(client), vectors)

    def listen(event):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mg.pagerank_batch(named.on(client), vectors, progress=on_events(listen))
    check_same(mg.pagerank_batch(named.on(client), vectors), wanted)


@pytest.mark.slow
def test_a_worker_that_dies_ends_the_batch(tmp_path):
    A, struck = mg.generate("rmat", tmp_path / "graph.zarr", scale=12), []
    with start_cluster(2) as cluster, Client(cluster, set_as_default=False) as client:
        victim, pid = next(iter(client.run(os.getpid).items()))

        def strike(event):
            if event.iteration > 20 and not struck:
                struck.append(True)
                os.kill(pid, signal.SIGKILL)

        with pytest.raises(WorkerLostError, match=rf"worker \d \({victim}\) left the cluster \(during iterations"):
            mg.pagerank_batch(A.on(client), [[1], [2]], norm="fixed", max_iter=10**6, progress=on_events(strike))
        assert wait_for(lambda: len(client.scheduler_info(n_workers=-1)["workers"]) == 2, HANG_S)
        check_same(mg.pagerank_batch(A.on(client), [[1], [2]]), mg.pagerank_batch(A, [[1], [2]]))
