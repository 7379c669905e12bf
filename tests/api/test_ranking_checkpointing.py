"""Runs that go on from a checkpoint: as if they had never been broken off, wherever they go on."""

from __future__ import annotations

import errno
import json
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from zarr.storage import MemoryStore

import mgspmv as mg
import mgspmv.checkpoints
from mgspmv.checkpoints import Checkpoints
from mgspmv.cluster import executors
from mgspmv.errors import CheckpointError, OptionError
from tests.support.hearing import on_phases

N = 300
P = {vertex: 1 + vertex % 3 for vertex in range(0, N, 2)}

KINDS = {
    "plain": {},
    "float64": {"precision": "float64"},
    "float32": {"precision": "float32", "tol": 1e-5},
    "vectors": {"personalization": P, "dangling": {1: 2, 7: 1}, "nstart": {5: 1}},
    "dropped": {"dangling": "drop", "alpha": 0.9},
    "relative": {"norm": "relative", "tol": 1e-4},
    "linf": {"norm": "linf"},
    "per node": {"norm": "l1_per_node", "tol": 1e-9},
    "fixed": {"norm": "fixed", "max_iter": 30},
    "pattern": {"weight": False},
    "out-weights": {"out_weight": dict.fromkeys(range(N), 30.0)},
}


def make_arcs():
    rng = np.random.default_rng(3)
    return rng.integers(0, N - 9, 3000), rng.integers(0, N, 3000), rng.random(3000)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("graph") / "g.zarr")
    mg.ingest(make_arcs(), path, n_vertices=N, transpose=True)
    return path


@pytest.fixture
def graph(store):
    with mg.open_matrix(store) as opened:
        yield opened


def run_until(A, place, iteration, *, resume=False, **options):
    """A run that ends before it converges, and is kept."""
    kept = mg.Checkpoint(place, every_s=0, resume=resume)
    solution = mg.pagerank(A, **options | {"max_iter": iteration, "throw": False}, checkpoint=kept)
    assert solution.iterations == iteration
    return solution


def check_same(solution, whole, resumed_after):
    assert solution.digest() == whole.digest()
    assert (solution.changes, solution.iterations, solution.status) == (whole.changes, whole.iterations, whole.status)
    assert solution.error_bound_l1 == pytest.approx(whole.error_bound_l1, rel=1e-6)
    assert solution.resumed_after == resumed_after
    assert len(solution.events) == whole.iterations - resumed_after
    assert [event.iteration for event in solution.events] == list(range(resumed_after + 1, whole.iterations + 1))


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS.keys())
def test_it_is_as_if_it_had_never_ended(graph, tmp_path, options):
    whole = mg.pagerank(graph, **options)
    run_until(graph, tmp_path / "c", 4, **options)
    solution = mg.pagerank(graph, **options, checkpoint=mg.Checkpoint(tmp_path / "c", resume=True))
    check_same(solution, whole, 4)
    assert {event.epoch for event in solution.events} == {1}
    check_same(
        mg.pagerank(graph, **options, checkpoint=mg.Checkpoint(tmp_path / "c", resume=True)), whole, whole.iterations
    )


def test_the_reversed_graph(graph, tmp_path):
    whole = mg.pagerank(graph.T)
    run_until(graph.T, tmp_path, 4)
    check_same(mg.pagerank(graph.T, checkpoint=mg.Checkpoint(tmp_path, resume=True)), whole, 4)
    with pytest.raises(CheckpointError, match=r"its matrix is .*, transposed"):
        mg.pagerank(graph, checkpoint=mg.Checkpoint(tmp_path, resume=True))


def test_a_graph_that_is_renumbered(store, tmp_path):
    with mg.reorder(store, tmp_path / "r.zarr", method="degree") as A, mg.open_matrix(store) as B:
        run_until(A, tmp_path / "c", 4)
        check_same(mg.pagerank(A, checkpoint=mg.Checkpoint(tmp_path / "c", resume=True)), mg.pagerank(B), 4)
        with pytest.raises(CheckpointError, match="its matrix is"):
            mg.pagerank(B, checkpoint=mg.Checkpoint(tmp_path / "c", resume=True))


def test_a_place_in_memory(graph):
    place = MemoryStore()
    run_until(graph, place, 4)
    check_same(mg.pagerank(graph, checkpoint=mg.Checkpoint(place, resume=True)), mg.pagerank(graph), 4)


def test_what_is_kept_is_the_last_state(graph, tmp_path):
    told = []
    solution = mg.pagerank(graph, checkpoint=tmp_path, progress=on_phases(lambda *said: told.append(said)))
    assert told == [("checkpoint", solution.iterations, None)]  # of a run that is over before it is time for one
    restored = Checkpoints(tmp_path).restore()
    assert restored.x.tobytes() == solution.values.tobytes()
    assert restored.reached.changes == solution.changes
    assert (restored.reached.status, restored.reached.run) == ("converged", solution.events[0].run)
    assert solution.seconds["checkpoint"] > 0
    assert "checkpoint" not in mg.pagerank(graph).seconds


OTHERS = {
    "alpha": ({"alpha": 0.9}, "it has alpha=0.85, not alpha=0.9"),
    "precision": ({"precision": "float64"}, "it has precision='exact', not precision='float64'"),
    "norm": ({"norm": "linf"}, "it has norm='l1', not norm='linf'"),
    "personalization": ({"personalization": P}, "it has another personalization"),
    "dangling": ({"dangling": {3: 1}}, "it has another dangling"),
    "out_weight": ({"out_weight": dict.fromkeys(range(N), 1000.0)}, "it has another out_weight"),
    "nstart": ({"nstart": P}, "it has another nstart"),
    "weight": ({"weight": False}, r"its matrix is [0-9a-f]{64}, not [0-9a-f]{64}, pattern"),
    "max_iter": ({"max_iter": 4}, "it has iteration 5, but this run ends after 4"),
    "tol": ({"tol": 0.5}, "it has iteration 5, but this run with tol=0.5 ends after 1"),
}


@pytest.mark.parametrize(("options", "said"), OTHERS.values(), ids=OTHERS.keys())
def test_another_run_is_refused(graph, tmp_path, options, said):
    run_until(graph, tmp_path, 5)
    message = f"is of another run: {said}; pass the same arguments, or leave out resume=True"
    with pytest.raises(CheckpointError, match=message):
        mg.pagerank(graph, **options, checkpoint=mg.Checkpoint(tmp_path, resume=True))
    assert Checkpoints(tmp_path).restore().reached.iteration == 5


def test_a_longer_run_and_a_finer_one(graph, tmp_path):
    run_until(graph, tmp_path, 5)
    mg.pagerank(graph, checkpoint=mg.Checkpoint(tmp_path, resume=True))
    finer = {"tol": 1e-12, "max_iter": 200}
    whole = mg.pagerank(graph, **finer)
    coarse = mg.pagerank(graph).iterations
    check_same(mg.pagerank(graph, **finer, checkpoint=mg.Checkpoint(tmp_path, resume=True)), whole, coarse)


def test_threads_may_differ(graph, tmp_path):
    run_until(graph.on("cpu", threads=2), tmp_path, 4)
    found = mg.pagerank(graph.on("cpu", threads=1), checkpoint=mg.Checkpoint(tmp_path, resume=True))
    check_same(found, mg.pagerank(graph), 4)


def test_what_makes_no_sense_is_refused(graph, tmp_path):
    with pytest.raises(OptionError, match="checkpoints have only ranks, but stop='topk:5' needs more state to resume"):
        mg.pagerank(graph, checkpoint=tmp_path / "c", stop="topk:5")
    assert not (tmp_path / "c").exists()
    with pytest.raises(OptionError, match=r"must be a path, URL or Zarr store, not None; .* leave out checkpoint="):
        mg.Checkpoint(None)
    with pytest.raises(OptionError, match="every_s must be 0 or more seconds, not -1"):
        mg.Checkpoint(tmp_path, every_s=-1)
    with pytest.raises(OptionError, match="every_s must be a finite number, not 'often'"):
        mg.Checkpoint(tmp_path, every_s="often")


def fill_disk(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def refuse(*_):
    raise PermissionError(errno.EACCES, "Permission denied")


@pytest.mark.parametrize(
    ("where", "failure", "said"),
    [
        ("_write_slice", fill_disk, "No space left on device"),
        ("Checkpoints.commit", refuse, "Permission denied"),
    ],
)
def test_what_cannot_be_written_does_not_end_a_run(graph, tmp_path, monkeypatch, where, failure, said):
    run_until(graph, tmp_path, 4)
    whole = mg.pagerank(graph)
    owner, _, name = where.rpartition(".")
    monkeypatch.setattr(getattr(mgspmv.checkpoints, owner) if owner else mgspmv.checkpoints, name, failure)
    with pytest.warns(UserWarning, match="the checkpoint of iteration") as warned:
        solution = mg.pagerank(graph, checkpoint=mg.Checkpoint(tmp_path, every_s=0, resume=True))
    check_same(solution, whole, 4)
    [message] = [str(each.message) for each in warned]
    assert message.startswith("the checkpoint of iteration ")
    assert message.endswith(f"{said}; the run continues, and the previous checkpoint is kept")
    monkeypatch.undo()
    assert Checkpoints(tmp_path).restore().reached.iteration == 4
    assert mg.pagerank(graph, checkpoint=mg.Checkpoint(tmp_path, resume=True)).digest() == whole.digest()


def test_it_goes_on_from_each_place_to_each(graph, tmp_path, in_process):
    """One iteration at a time: a process, workers that iterate by themselves, and others that the client directs."""
    places = {"host": {}, "own": {"executor": "supersteps"}, "directed": {"executor": "tasks"}}
    n_workers = {"host": 0, "own": 2, "directed": 3}
    walk = ["host", "host", "own", "own", "directed", "directed", "host", "directed", "own", "host"]
    assert set(pairwise(walk)) == set(product(places, repeat=2))
    whole = mg.pagerank(graph, tol=1e-13)
    keeping = {"tol": 1e-13, "checkpoint": mg.Checkpoint(tmp_path, every_s=0, resume=True), "throw": False}
    for k, name in enumerate(walk):
        placed = graph.on(in_process(n_workers[name]), **places[name]) if n_workers[name] else graph
        solution = mg.pagerank(placed, **keeping, max_iter=k + 1)
        assert (solution.resumed_after, solution.iterations) == (k, k + 1), walk[: k + 1]
        assert solution.changes == whole.changes[: k + 1], walk[: k + 1]
    check_same(mg.pagerank(graph, **keeping), whole, len(walk))


@pytest.mark.parametrize("executor", ["supersteps", "tasks"])
def test_states_are_kept_between_iterations(graph, tmp_path, in_process, executor, monkeypatch):
    monkeypatch.setattr(executors, "SUPERSTEP_S", 0.02)
    client, told = in_process(2), []
    solution = mg.pagerank(
        graph.on(client, executor=executor),
        norm="fixed",
        max_iter=100 if executor == "supersteps" else 20,
        checkpoint=mg.Checkpoint(tmp_path, every_s=0),
        progress=on_phases(lambda phase, done, total: told.append(done) if phase == "checkpoint" else None),
    )
    assert len(told) > 1
    assert told == sorted(told)
    assert told[-1] == solution.iterations
    run = solution.events[0].run
    messages = [message for _, message in client.get_events("mgspmv") if message["run"] == run]
    kept = [message for message in messages if message["kind"] == "checkpoint"]
    assert [message["iteration"] for message in kept] == told
    assert all(message["n_bytes"] == 8 * N and message["seconds"] > 0 for message in kept)
    assert messages[-1]["kind"] == "end"
    assert json.dumps(kept)
    slices = sorted(path.name for path in next(Path(tmp_path, "states").glob("s*")).glob("x*"))
    assert len(slices) == 2


def test_a_place_in_memory_is_not_for_workers(graph, in_process):
    with pytest.raises(OptionError, match="in the memory of this process, where the workers"):
        mg.pagerank(graph.on(in_process(1)), checkpoint=MemoryStore())


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["auto", "csr-split"])
@pytest.mark.parametrize("weights", [True, False])
def test_devices_go_on_where_hosts_were(graph, tmp_path, kernel, weights):
    host, device = graph.on("cpu"), graph.on("cuda", kernel=kernel)
    whole, kept = mg.pagerank(host, weight=weights), mg.Checkpoint(tmp_path, resume=True)
    run_until(host, tmp_path, 4, weight=weights)
    run_until(device, tmp_path, 9, weight=weights, resume=True)
    check_same(mg.pagerank(host, weight=weights, checkpoint=kept), whole, 9)
    run_until(device, tmp_path, 4, weight=weights)
    check_same(mg.pagerank(device, weight=weights, checkpoint=kept), whole, 4)
    check_same(mg.pagerank(device, weight=weights, checkpoint=kept), whole, whole.iterations)


@pytest.mark.gpu
def test_floats_of_a_device_go_on(graph, tmp_path):
    device, options = graph.on("cuda"), {"precision": "float32", "tol": 1e-5}
    whole = mg.pagerank(device, **options)
    run_until(device, tmp_path, 4, **options)
    check_same(mg.pagerank(device, **options, checkpoint=mg.Checkpoint(tmp_path, resume=True)), whole, 4)
