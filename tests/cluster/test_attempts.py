"""Runs of PageRank that go on when workers are lost, at any moment: with the bits of a run that nothing happened to."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager

import dask
import pytest
from distributed import Client, Status

import mgspmv as mg
import mgspmv.cluster.dask_cluster
from mgspmv.errors import CapacityError, WorkerLostError, WorkerMemoryError, WorkerTimeoutError
from tests.support.clusters import check_left, find_left, start_cluster
from tests.support.hearing import on_both
from tests.support.waiting import HANG_S

pytestmark = pytest.mark.slow

LONG = {"norm": "fixed", "max_iter": 500}
"""Some seconds of supersteps."""
ROUNDS = {"norm": "fixed", "max_iter": 40}
"""The same of rounds."""
TIMEOUT_S = 6.0
RUNS = {"supersteps": LONG, "tasks": ROUNDS}


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return mg.generate("uniform", tmp_path_factory.mktemp("recovery") / "graph.zarr", n_vertices=3000, n_edges=20_000)


@pytest.fixture(scope="module")
def wanted(graph):
    """Solutions of undisturbed runs, by executor."""
    return {executor: mg.pagerank(graph, **options) for executor, options in RUNS.items()}


@contextmanager
def serve(n_workers, **options):
    """A client of a cluster that is hurt again and again; see `test_faults_inside.three`."""
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"}),
        start_cluster(n_workers, **options) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(autouse=True)
def wait_back(monkeypatch):
    """`wait_back(s)` says for how many seconds workers may come back: on a busy machine for long."""

    def wait(seconds):
        monkeypatch.setattr("mgspmv.cluster.dask_cluster.RETURN_S", seconds)

    wait(30.0)
    return wait


@pytest.fixture(scope="module")
def _three():
    with serve(3) as client:
        yield client


@pytest.fixture
def three(_three):
    """Three workers that come back when they are killed, and on which a test must leave nothing."""
    _three.wait_for_workers(3, timeout=HANG_S)
    before = find_left(_three)
    yield _three
    for pid in find_processes(_three).values():
        os.kill(pid, signal.SIGCONT)
    _three.wait_for_workers(3, timeout=HANG_S)
    check_left(_three, before)


def find_processes(client):
    """Process ids of the workers, by their names."""
    nannies = client.cluster.workers
    return {name: nanny.pid for name, nanny in nannies.items() if nanny.pid}


def kill(client, *names):
    processes = find_processes(client)
    for name in names:
        os.kill(processes[name], signal.SIGKILL)


def let_go(client, name):
    """Let a worker not come back when it is killed."""
    client.cluster.workers[name].status = Status.closing_gracefully
    del client.cluster.worker_spec[name]


class Strike:
    """Does something once: at an iteration, or at the n-th time that a phase begins."""

    def __init__(self, action, iteration=None, phase=None, times=1):
        self._action, self._iteration, self._phase, self._left = action, iteration, phase, times
        self.struck_s = self.reached = None
        self.events, self.phases = [], []

    def on_event(self, event):
        self.events.append(event)
        if self._iteration is not None and event.iteration >= self._iteration:
            self._strike()

    def on_progress(self, phase, done, total):
        self.phases.append((phase, done, total))
        if phase == self._phase and (phase == "checkpoint" or not done):
            self._left -= 1
            if self._left == 0:
                self._strike()

    def _strike(self):
        if self.struck_s is None:
            self.struck_s = time.monotonic()
            self._action()

    @property
    def told(self):
        return {"progress": on_both(self.on_event, self.on_progress)}

    def count_loads(self):
        """How many workers loaded rows each time."""
        return [total for phase, done, total in self.phases if phase == "load" and not done]


def check_same(solution, wanted):
    """As if nothing had happened; what did is told by `recoveries`."""
    assert solution.digest() == wanted.digest()
    assert (solution.changes, solution.iterations, solution.status) == (
        wanted.changes,
        wanted.iterations,
        wanted.status,
    )
    assert [event.iteration for event in solution.events] == list(range(1, wanted.iterations + 1))
    assert solution.error_bound_l1 == pytest.approx(wanted.error_bound_l1, rel=1e-6)


def check_recovery(recovery, kind, worker, before, after):
    assert (recovery.kind, recovery.worker) == (kind, worker)
    assert (recovery.workers_before, recovery.workers_after) == (before, after)
    assert recovery.resumed_after <= recovery.iteration
    assert recovery.seconds > 0


@pytest.mark.parametrize("executor", ["supersteps", pytest.param("tasks", marks=pytest.mark.weekly)])
def test_a_worker_that_comes_back_reads_its_rows_and_nobody_else_does(executor, graph, wanted, three):
    strike = Strike(lambda: kill(three, 1), iteration=20)
    solution = mg.pagerank(graph.on(three, executor=executor), **strike.told, **RUNS[executor])
    check_same(solution, wanted[executor])
    [recovery] = solution.recoveries
    check_recovery(recovery, "lost", "1", 3, 3)
    assert solution.seconds["recover"] >= recovery.seconds
    assert recovery.resumed_after == 0
    assert recovery.error.startswith("worker 1 (tcp://")
    assert strike.count_loads() == [3, 1]
    assert [phase for phase, _, _ in strike.phases if phase == "recover"] == ["recover"]
    assert {event.epoch for event in strike.events} == {0, 1}


@pytest.mark.parametrize("executor", ["supersteps", pytest.param("tasks", marks=pytest.mark.weekly)])
def test_it_goes_on_from_the_last_checkpoint(executor, graph, wanted, three, tmp_path):
    strike = Strike(lambda: kill(three, 0), phase="checkpoint")
    options = {"checkpoint": mg.Checkpoint(tmp_path / "c", every_s=0)}
    solution = mg.pagerank(graph.on(three, executor=executor), **options, **strike.told, **RUNS[executor])
    check_same(solution, wanted[executor])
    [recovery] = solution.recoveries
    check_recovery(recovery, "lost", "0", 3, 3)
    assert recovery.resumed_after > 0
    assert solution.resumed_after == 0, "that is of another run"
    again = next(event for event in strike.events if event.epoch == 1)
    assert again.iteration == recovery.resumed_after + 1


def test_who_does_not_come_back_is_done_without(graph, wanted, wait_back):
    wait_back(1.0)
    with serve(3) as client:
        let_go(client, 2)
        with graph.distribute(client) as D:
            strike = Strike(lambda: kill(client, 2), iteration=20)
            solution = mg.pagerank(D, **strike.told, **LONG)
            check_same(solution, wanted["supersteps"])
            [recovery] = solution.recoveries
            check_recovery(recovery, "lost", "2", 3, 2)
            assert (len(D.workers), strike.count_loads()) == (2, [2])
            assert mg.pagerank(D, **ROUNDS).recoveries == ()


def test_the_only_one(graph, wanted):
    with serve(1) as client:
        strike = Strike(lambda: kill(client, 0), iteration=20)
        solution = mg.pagerank(graph.on(client), **strike.told, **LONG)
        check_same(solution, wanted["supersteps"])
        check_recovery(solution.recoveries[0], "lost", "0", 1, 1)


@pytest.mark.parametrize("phase", ["load", "start", "residual"])
def test_at_other_moments(phase, graph, wanted, three, tmp_path):
    strike = Strike(lambda: kill(three, 1), phase=phase)
    options = {"checkpoint": mg.Checkpoint(tmp_path / "c", every_s=0)}
    solution = mg.pagerank(graph.on(three), **options, **strike.told, **ROUNDS)
    check_same(solution, wanted["tasks"])
    [recovery] = solution.recoveries
    check_recovery(recovery, "lost", "1", 3, 3)
    assert recovery.iteration == (40 if phase == "residual" else 0)


def test_while_ranks_are_collected(graph, wanted, three):
    address = next(a for a, worker in three.scheduler_info()["workers"].items() if worker["name"] == 1)
    three.run(die_at_the_end, workers=[address])
    solution = mg.pagerank(graph.on(three), **LONG)
    check_same(solution, wanted["supersteps"])
    [recovery] = solution.recoveries
    check_recovery(recovery, "lost", "1", 3, 3)
    assert recovery.iteration == LONG["max_iter"]


def die_at_the_end():
    """This process, as soon as it is asked for its ranks; the one that takes its place is not told so."""
    from mgspmv.cluster.worker_run import WorkerRun

    WorkerRun.collect = lambda self, address: os.kill(os.getpid(), signal.SIGKILL)


def test_again_while_it_recovers(graph, wanted, three):
    first = Strike(lambda: kill(three, 1), iteration=20)
    second = Strike(lambda: kill(three, 0), phase="load", times=2)
    told = {"progress": on_both(first.on_event, second.on_progress)}
    solution = mg.pagerank(graph.on(three), **told, **LONG)
    check_same(solution, wanted["supersteps"])
    assert [recovery.worker for recovery in solution.recoveries] == ["1", "0"]


def test_a_worker_that_hangs(graph, wanted, three, wait_back):
    wait_back(1.0)
    strike = Strike(lambda: os.kill(find_processes(three)[1], signal.SIGSTOP), iteration=20)
    with pytest.warns(UserWarning, match=r"worker 1 .* does not answer and is left out"):
        solution = mg.pagerank(graph.on(three, timeout=TIMEOUT_S), **strike.told, **LONG)
    check_same(solution, wanted["supersteps"])
    [recovery] = solution.recoveries
    check_recovery(recovery, "silent", "1", 3, 2)
    second = next(event for event in strike.events if event.epoch == 1)
    assert second.iteration == 1


def test_a_worker_that_is_taken_away(graph, wanted, wait_back):
    wait_back(1.0)
    with serve(3) as client:
        address = client.cluster.workers[0].worker_address
        leaving = threading.Thread(target=lambda: client.retire_workers([address], close_workers=True))
        strike = Strike(leaving.start, iteration=20)
        solution = mg.pagerank(graph.on(client), **strike.told, **LONG)
        leaving.join(HANG_S)
        check_same(solution, wanted["supersteps"])
        assert solution.recoveries[0].workers_before == 3


def test_it_goes_on_no_more_often_than_allowed(graph, three, tmp_path):
    """The error says where the run is kept, which goes on from there."""
    first = Strike(lambda: kill(three, 1), iteration=20)
    second = Strike(lambda: kill(three, 1), phase="checkpoint")
    told = {"progress": on_both(first.on_event, second.on_progress)}
    options = {"checkpoint": mg.Checkpoint(tmp_path / "c", every_s=0)}
    with pytest.raises(
        WorkerLostError, match=r"worker 1 .*; the run had resumed 1 times \(recover=1\); the checkpoint"
    ):
        mg.pagerank(graph.on(three, recover=1), **told, **options, **LONG)
    solution = mg.pagerank(graph, checkpoint=mg.Checkpoint(tmp_path / "c", every_s=0, resume=True), **LONG)
    assert solution.resumed_after > 0
    assert solution.digest() == mg.pagerank(graph, **LONG).digest()


def test_too_little_memory_is_left(graph, tmp_path, wait_back):
    wait_back(1.0)
    with serve(2) as client:
        need = graph.plan(workers=2, checkpoint=True).memory_bytes
        let_go(client, 1)
        strike = Strike(lambda: kill(client, 1), phase="checkpoint")
        options = {"checkpoint": mg.Checkpoint(tmp_path / "c", every_s=0)}
        placed = graph.on(client, executor="tasks", host_memory=need + 1000)
        with pytest.raises(CapacityError, match=r"2 workers of that size suffice; the checkpoint of iteration \d+ in"):
            mg.pagerank(placed, **options, **strike.told, **ROUNDS)


def test_nobody_is_left(graph):
    with serve(1) as client:
        let_go(client, 0)
        strike = Strike(lambda: kill(client, 0), iteration=20)
        with pytest.raises(WorkerTimeoutError, match=r"no worker of tcp://.* came back within 6 s"):
            mg.pagerank(graph.on(client, timeout=TIMEOUT_S), **strike.told, **LONG)
        assert time.monotonic() - strike.struck_s < 2 * TIMEOUT_S + HANG_S


def find_no_memory(dask_worker, moment):
    """From now on there is none for its rows, or for its seventh step."""
    from mgspmv.cluster.row_block import RowBlock
    from mgspmv.solvers.steps import LocalSteps

    owner, name, n = (RowBlock, "__init__", 1) if moment == "load" else (LocalSteps, "advance", 7)
    original, calls = getattr(owner, name), []

    def fail(self, *args, **options):
        calls.append(name)
        if len(calls) >= n:
            raise MemoryError
        return original(self, *args, **options)

    setattr(owner, name, fail)


@pytest.mark.parametrize("moment", [pytest.param("load", marks=pytest.mark.weekly), "iterate"])
def test_a_worker_that_has_no_memory_left_is_done_without(moment, graph, wanted):
    with serve(2) as client:
        client.run(find_no_memory, moment=moment, workers=[client.cluster.workers[1].worker_address])
        with pytest.warns(
            UserWarning, match=r"^worker 1 \(.*\) had no memory left, and is left out until it is restarted$"
        ):
            solution = mg.pagerank(graph.on(client), **LONG)
        check_same(solution, wanted["supersteps"])
        [recovery] = solution.recoveries
        check_recovery(recovery, "lost", "1", 2, 1)
        assert f"has no memory left (during {moment if moment == 'load' else 'iteration'}" in recovery.error
        with pytest.raises(WorkerMemoryError, match=r"^worker 1 \(.* has no memory left") as caught:
            mg.pagerank(graph.on(client, recover=0), **LONG)
        assert (caught.value.worker, caught.value.exit_code) == ("1", 6)
