"""Workers that die, hang or are busy; schedulers that go away; interrupts: an error in bounded time, and a cluster that
serves the next run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress

import numpy as np
import pytest
from distributed import Client

import mgspmv as mg
from mgspmv.errors import OptionError, SchedulerNotFoundError, WorkerLostError, WorkerTimeoutError
from tests.support.clusters import check_left, find_held, find_left, start_cluster
from tests.support.hearing import on_events, on_phases
from tests.support.waiting import HANG_S, wait_for

pytestmark = pytest.mark.slow

ENDLESS = {"norm": "fixed", "max_iter": 10**6}
TIMEOUT_S = 6.0


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return mg.generate("rmat", tmp_path_factory.mktemp("faults") / "graph.zarr", scale=12, edge_factor=8)


@pytest.fixture(scope="module")
def wanted(graph):
    return mg.pagerank(graph).digest()


@pytest.fixture
def three():
    """A client of three worker processes that a test may hurt, and the processes by the workers' names."""
    with start_cluster(3) as cluster, Client(cluster, set_as_default=False) as client:
        yield client, find_processes(client)
        for pid in find_processes(client, 1.0).values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def find_processes(client, wait_s=10.0):
    workers = {address: worker["name"] for address, worker in client.scheduler_info()["workers"].items()}
    pids = {}
    for address, name in workers.items():
        with suppress(Exception):
            pids[name] = client.sync(ask_pid, client, address, callback_timeout=wait_s)
    return pids


async def ask_pid(client, address):
    return (await client.run(os.getpid, workers=[address]))[address]


class Strike:
    """Does something once, when the run has made some iterations, and notes when."""

    def __init__(self, action, iteration=5):
        self._action, self._iteration = action, iteration
        self.struck_at = None

    def __call__(self, event):
        if self.struck_at is None and event.iteration >= self._iteration:
            self.struck_at = time.monotonic()
            self._action()

    @property
    def seconds_since(self):
        return time.monotonic() - self.struck_at


def check_serves(client, graph, wanted, n_workers=3):
    assert wait_for(lambda: len(client.run(os.getpid, on_error="ignore")) == n_workers), "that answer"
    solution = mg.pagerank(graph.on(client))
    assert solution.digest() == wanted
    assert solution.matrix["hardware"] == f"{n_workers} workers of 1 thread"


@pytest.mark.parametrize("executor", ["supersteps", pytest.param("tasks", marks=pytest.mark.weekly)])
def test_a_worker_that_dies_ends_the_run(executor, graph, wanted, three):
    client, processes = three
    left = find_left(client)
    strike = Strike(lambda: os.kill(processes[1], signal.SIGKILL))
    with pytest.raises(WorkerLostError, match=r"worker 1 \(tcp://.*\) left the cluster \(during iteration") as caught:
        mg.pagerank(graph.on(client, executor=executor, recover=0), **ENDLESS, progress=on_events(strike))
    assert strike.seconds_since < HANG_S
    assert caught.value.worker == "1"
    assert caught.value.phase.startswith("iteration")
    check_serves(client, graph, wanted)
    caught = None  # its traceback holds what the run held
    check_left(client, left)


@pytest.mark.parametrize(
    ("how", "executor"),
    [
        (signal.SIGKILL, "supersteps"),
        pytest.param(signal.SIGSTOP, "supersteps", marks=pytest.mark.weekly),
        pytest.param(signal.SIGKILL, "tasks", marks=pytest.mark.weekly),
    ],
)
def test_a_worker_that_is_lost_ends_other_iterations_too(how, executor, graph, three):
    client, processes = three
    left = find_left(client)
    strike = Strike(lambda: os.kill(processes[1], how))
    error = WorkerLostError if how == signal.SIGKILL else WorkerTimeoutError
    placed = graph.on(client, executor=executor, timeout=TIMEOUT_S)
    phase = "product" if executor == "tasks" else "iteration"
    with pytest.raises(error, match=rf"worker 1 \(tcp://.*during {phase}") as caught:
        mg.eigenvector_centrality(placed, **ENDLESS, progress=on_events(strike))
    assert strike.seconds_since < HANG_S
    assert caught.value.worker == "1"
    os.kill(processes[1], signal.SIGCONT) if how == signal.SIGSTOP else client.wait_for_workers(3, timeout=HANG_S)
    short = {"norm": "fixed", "max_iter": 3}
    wanted = mg.eigenvector_centrality(graph, **short).values
    found = mg.eigenvector_centrality(graph.on(client, executor=executor), **short).values
    np.testing.assert_allclose(found, wanted, rtol=1e-13)
    caught = None  # its traceback holds what the run held
    check_left(client, left)


@pytest.mark.parametrize("executor", ["supersteps", pytest.param("tasks", marks=pytest.mark.weekly)])
def test_a_worker_that_hangs_ends_the_run_in_time(executor, graph, wanted, three):
    client, processes = three
    left = find_left(client)
    strike = Strike(lambda: os.kill(processes[1], signal.SIGSTOP))
    placed = graph.on(client, executor=executor, timeout=TIMEOUT_S, recover=0)
    with pytest.raises(WorkerTimeoutError, match=r"worker 1 \(tcp://.*during iteration") as caught:
        mg.pagerank(placed, **ENDLESS, progress=on_events(strike))
    assert strike.seconds_since < TIMEOUT_S + HANG_S
    assert caught.value.worker == "1"
    with pytest.warns(UserWarning, match=r"worker 1 \(tcp://.*\) does not answer and is left out"):
        solution = mg.pagerank(graph.on(client, timeout=TIMEOUT_S))
    assert solution.digest() == wanted
    assert solution.matrix["hardware"] == "2 workers of 1 thread"
    os.kill(processes[1], signal.SIGCONT)
    check_serves(client, graph, wanted)
    caught = None  # its traceback holds what the run held
    check_left(client, left)


def test_no_worker_answers(graph):
    with start_cluster(1) as cluster, Client(cluster, set_as_default=False) as client:
        pid = find_processes(client)[0]
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(WorkerTimeoutError, match=r"none of the workers of tcp://.* answered within"):
                graph.distribute(client, timeout=TIMEOUT_S)
        finally:
            os.kill(pid, signal.SIGCONT)


def test_a_worker_that_is_busy_with_something_else_is_named(graph, wanted, three):
    client, _ = three
    address = next(a for a, w in client.scheduler_info()["workers"].items() if w["name"] == 2)
    occupy = []
    strike = Strike(lambda: occupy.append(client.submit(time.sleep, 5 * TIMEOUT_S, workers=[address], pure=False)))
    with pytest.raises(WorkerTimeoutError, match=r"worker 2 .*; it hangs, or other tasks occupy its threads") as caught:
        mg.pagerank(graph.on(client, timeout=TIMEOUT_S, recover=0), **ENDLESS, progress=on_events(strike))
    assert strike.seconds_since < TIMEOUT_S + HANG_S
    assert caught.value.worker == "2"
    occupy[0].result()
    check_serves(client, graph, wanted)


SCRIPT = """
import sys, threading
import mgspmv as mg

def tell(news):
    if isinstance(news, mg.Event) and news.iteration >= 5:
        print("running", flush=True)

if __name__ == "__main__":
    placed = mg.open_matrix(sys.argv[1]).on(sys.argv[2], executor=sys.argv[3], timeout=float(sys.argv[4]))
    mg.pagerank(placed, norm="fixed", max_iter=10**6, progress=tell)
"""


def start_client(tmp_path, store, address, executor="supersteps", timeout_s=5 * TIMEOUT_S):
    """A client in a process of its own, whose run has begun."""
    script = tmp_path / "client.py"
    script.write_text(textwrap.dedent(SCRIPT))
    arguments = [sys.executable, str(script), str(store), address, executor, str(timeout_s)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "running\n", process.stderr.read()
    return process


@pytest.mark.parametrize(
    ("sign", "executor"),
    [
        pytest.param(signal.SIGINT, "supersteps", id="interrupted-superstep"),
        pytest.param(signal.SIGINT, "tasks", id="interrupted-scheduler", marks=pytest.mark.weekly),
        pytest.param(signal.SIGKILL, "supersteps", id="killed-superstep"),
        pytest.param(signal.SIGKILL, "tasks", id="killed-scheduler", marks=pytest.mark.weekly),
    ],
)
def test_a_client_that_ends_leaves_nothing(sign, executor, graph, wanted, tmp_path, cluster, client):
    left = find_left(client)
    process = start_client(tmp_path, graph.info.url, cluster.scheduler_address, executor)
    assert find_held(client)
    process.send_signal(sign)
    process.communicate(timeout=HANG_S)
    assert process.returncode != 0
    assert wait_for(lambda: not find_held(client))
    if sign == signal.SIGINT:
        check_left(client, left)
    with Client(cluster, set_as_default=False) as next_client:  # waits while Dask ends the lease of the killed one
        check_serves(next_client, graph, wanted, n_workers=4)


def test_a_scheduler_that_goes_away_ends_the_run(graph, tmp_path):
    with start_cluster(2) as cluster:
        process = start_client(tmp_path, graph.info.url, cluster.scheduler_address)
    began = time.monotonic()
    _, said = process.communicate(timeout=HANG_S)
    assert time.monotonic() - began < HANG_S
    assert "Error: " in said
    assert SchedulerNotFoundError.__name__ in said or WorkerLostError.__name__ in said


def test_one_run_waits_for_another(graph, wanted, cluster, client):
    """The first has the cluster until the second was seen to wait."""
    second_waits = threading.Event()
    phases, digests = [], {}

    def note(phase, done, total):
        phases.append(phase)
        if phase == "queue":
            second_waits.set()

    def run_second():
        with Client(cluster, set_as_default=False) as own:
            digests["second"] = mg.pagerank(graph.on(own), progress=on_phases(note)).digest()

    second = threading.Thread(target=run_second)

    def hold(event):
        if event.iteration == 1:
            second.start()
            assert second_waits.wait(HANG_S)
            assert phases == ["join", "queue"]

    digests["first"] = mg.pagerank(graph.on(client), progress=on_events(hold)).digest()
    second.join(HANG_S)
    assert digests == {"first": wanted, "second": wanted}


def test_who_is_interrupted_in_the_queue_takes_no_lease(graph, wanted, client):
    interrupt = threading.Timer(1.0, signal.raise_signal, [signal.SIGINT])

    def wait_in_queue(event):
        if event.iteration == 1:
            interrupt.start()
            with pytest.raises(KeyboardInterrupt):
                mg.pagerank(graph.on(client), progress=on_phases(lambda *phase: None))

    mg.pagerank(graph.on(client), norm="fixed", max_iter=2, progress=on_events(wait_in_queue))
    began = time.monotonic()
    check_serves(client, graph, wanted, n_workers=4)
    assert time.monotonic() - began < HANG_S


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), "30"])
def test_time_outs_that_make_no_sense(timeout, graph, client):
    with pytest.raises(OptionError, match="timeout must be a positive number of seconds"):
        graph.distribute(client, timeout=timeout)
