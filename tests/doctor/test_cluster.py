"""Checks of a cluster: a real one of two workers, and workers that say what they should not."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict, replace

import pytest
from distributed import Client

from mgspmv.distribute.cluster import Cluster, DeviceInfo, WorkerInfo
from mgspmv.distribute.gathering import Gathered
from mgspmv.doctor import cluster as module
from mgspmv.doctor import device, host, storage
from mgspmv.doctor.checks import examine_machine
from mgspmv.doctor.cluster import Reached, make_cluster_checks
from mgspmv.doctor.findings import Finding, ok, run_check, warn, wrong
from mgspmv.errors import ClusterError, WorkerLostError
from mgspmv.exchange.links import Member
from tests.support.clusters import start_cluster
from tests.support.waiting import HANG_S, wait_for

GPU = DeviceInfo(None, "NVIDIA H200", "a", 100, 1e12, None)


@pytest.fixture
def reached(in_process):
    """A cluster of two workers in this process, of whom nothing is known yet."""
    return Reached(Cluster(in_process(2), HANG_S), HANG_S)


def find(reached: Reached, name: str) -> list[Finding]:
    """The findings of a check, all of which can be sent as JSON."""
    [check] = [check for check in make_cluster_checks(reached) if check.name == name]
    found = run_check(check, HANG_S)
    json.dumps([asdict(finding) for finding in found], allow_nan=False)
    return found


def join(reached: Reached) -> None:
    assert [f.status for f in find(reached, "workers")] == ["ok"]


def test_all_is_well(reached, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "default_threads", lambda: 64)
    monkeypatch.setattr(module, "SLOW_BYTES_PER_S", 0.0)
    monkeypatch.setattr(module, "SLOW_LATENCY_S", 60.0)
    (tmp_path / "x").write_bytes(b"x")
    reached.stores, reached.examine = [str(tmp_path / "x")], lambda limit_s: pytest.fail("all workers are here")
    found = {check.name: run_check(check, HANG_S) for check in make_cluster_checks(reached)}
    assert {name: [f.status for f in findings] for name, findings in found.items()} == {
        "worker-versions": ["ok"],
        "workers": ["ok"],
        "worker-limits": ["ok"],
        "clock-skew": ["ok"],
        "worker-gpus": ["skipped" if reached.workers[0].device.problem else "warning"],  # they would share it
        "all-gather": ["ok"] * len(found["all-gather"]),
        "worker-machines": ["ok"],
        "worker-stores": ["ok"],
    }
    assert found["all-gather"][0].values["bytes_per_s"] > 0
    assert found["worker-machines"][0].values == {"machines": 1, "others": 0}


def test_without_workers():
    with (
        start_cluster(0, processes=False, protocol="tcp://") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        reached = Reached(Cluster(client, 0.5), 0.5, ["x"])
        [workers] = find(reached, "workers")
        assert workers.status == "wrong"
        assert "has no running workers (none came for a task within 0.5 s)" in workers.found
        assert [f.found for f in find(reached, "worker-versions")] == ["no worker answered"]
        for name in ("worker-limits", "clock-skew", "worker-gpus", "all-gather", "worker-machines", "worker-stores"):
            assert [f.found for f in find(reached, name)] == [
                "there are no workers that answer; see what else is said of them"
            ]


def test_while_another_run_has_the_workers(reached, in_process, tmp_path):
    join(reached)
    (tmp_path / "x").write_bytes(b"x")
    reached.stores, reached.examine = [str(tmp_path / "x")], lambda limit_s: []
    with Cluster(in_process(2), HANG_S).lease(lambda: None):
        for name in ("worker-limits", "all-gather", "worker-machines", "worker-stores"):
            assert [f.found for f in find(reached, name)] == [
                "another run has the workers; ask again when it has ended"
            ]


class PlayedClock:
    """The module `time` of a machine on which time passes only as a test says."""

    now = 1024.0

    def time(self) -> float:
        return self.now

    perf_counter = monotonic = time


@pytest.fixture
def clock(monkeypatch):
    played = PlayedClock()
    monkeypatch.setattr(module, "time", played)
    return played


# --- what is told of workers -----------------------------------------------------------------------------------------


def test_versions_that_differ(reached, monkeypatch):
    ask = Cluster.ask_each

    def change(self, members, message, wait_s):
        answers = ask(self, members, message, wait_s)
        first = next(iter(answers))
        return answers | {first: {"packages": answers[first]["packages"] | {"numpy": "1.0", "zarr": None}}}

    monkeypatch.setattr(Cluster, "ask_each", change)
    [found] = find(reached, "worker-versions")
    assert found.status == "wrong"
    assert "has numpy 1.0, not " in found.found
    assert "has zarr not installed, not " in found.found


def test_workers_that_are_paused_or_silent(reached, monkeypatch):
    described = Cluster.describe_workers(reached.cluster)
    first, second = described
    third = Member("third", "tcp://10.0.0.9:1")
    told = described | {third: described[first] | {"status": "running"}}
    told[second] = told[second] | {"status": "paused"}
    monkeypatch.setattr(Cluster, "describe_workers", lambda self: told)
    paused, silent = find(reached, "workers")
    assert (paused.status, paused.found) == ("warning", f"worker {second} is not running")
    assert (silent.status, silent.found) == ("wrong", f"worker {third} does not answer")


def test_limits(reached, monkeypatch):
    join(reached)
    described = {m: w | {"memory_limit": 10**9} for m, w in reached.cluster.describe_workers().items()}
    monkeypatch.setattr(Cluster, "describe_workers", lambda self: described)
    monkeypatch.setattr(module, "default_threads", lambda: 1)
    limited, crowded = find(reached, "worker-limits")
    assert limited.status == crowded.status == "warning"
    assert len(limited.values["limited"]) == 2
    assert "have 2 threads for 1 processors" in crowded.found


@pytest.mark.parametrize(
    ("ahead_s", "status", "words"),
    [(0.0, "ok", " ms at most"), (-7.0, "warning", "7 s behind"), (1e3, "wrong", "ahead")],
)
def test_clocks(reached, monkeypatch, clock, ahead_s, status, words):
    join(reached)
    first, second = reached.members
    monkeypatch.setattr(
        Cluster, "ask_each", lambda _, members, *__: {m: clock.now + (ahead_s if m == second else 0) for m in members}
    )
    [found] = find(reached, "clock-skew")
    assert found.status == status
    assert words in found.found
    assert found.values["skew_s"][str(second)] == ahead_s
    assert status == "ok" or str(first) not in found.found


def test_the_quickest_round_trip_tells_the_clock(reached, monkeypatch, clock):
    """A slow one is wrong by half of its time at most, and does not count."""
    join(reached)
    number = iter(range(100))

    def ask(self, members, message, wait_s):
        there_s, back_s = (0.2, 0.0) if next(number) % 2 == 0 else (0.01, 0.01)
        clock.now += there_s
        told = dict.fromkeys(members, clock.now + 5)
        clock.now += back_s
        return told

    monkeypatch.setattr(Cluster, "ask_each", ask)
    [found] = find(reached, "clock-skew")
    assert list(found.values["skew_s"].values()) == pytest.approx([5, 5])
    assert list(found.values["uncertainty_s"].values()) == pytest.approx([0.01, 0.01])


def test_a_clock_that_is_not_told(reached, monkeypatch):
    join(reached)
    first, second = reached.members
    monkeypatch.setattr(Cluster, "ask_each", lambda self, members, *_: dict.fromkeys(members, OSError("gone")))
    [found] = find(reached, "clock-skew")
    assert (found.status, found.found) == ("wrong", f"workers {first}, {second} did not tell the time")


@pytest.mark.parametrize(
    ("devices", "status", "words"),
    [
        ([GPU, replace(GPU, id="b")], ["ok"], "2 NVIDIA H200, one for each worker"),
        ([DeviceInfo("CUDA found none")] * 2, ["skipped"], "no worker has a GPU: CUDA found none"),
        ([GPU, DeviceInfo("CUDA found none")], ["warning"], "has no GPU, and 1 others have"),
        ([GPU, GPU], ["warning"], "share GPUs"),
        ([GPU, replace(GPU, id="b", name="NVIDIA L4")], ["warning"], "1 NVIDIA H200, 1 NVIDIA L4"),
        ([replace(GPU, nccl_problem="CuPy finds no NCCL"), replace(GPU, id="b")], ["wrong"], "CuPy finds no NCCL"),
    ],
)
def test_gpus(devices, status, words):
    workers = [WorkerInfo(Member(k, f"tcp://10.0.0.{k}:1"), 1, 10**9, device) for k, device in enumerate(devices)]
    reached = Reached(None, 1, workers=workers)
    found = find(reached, "worker-gpus")
    assert [f.status for f in found] == status
    assert words in found[0].found


# --- exchanges -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gathered", "status", "words"),
    [
        (Gathered(None, 1e-4, 1e9, False), "ok", "2 workers in 0.1 ms, each receives 1e+03 MB/s, with the right sums"),
        (Gathered(None, 0.2, 1e9, False), "warning", "2 workers in 200 ms"),
        (Gathered(None, 1e-4, 1e6, False), "warning", "each receives 1 MB/s"),
        (Gathered("the slice of worker 1 did not arrive", 1e-4, 1e9, False), "wrong", "the slice of worker 1 did not"),
    ],
)
def test_gathered(reached, monkeypatch, gathered, status, words):
    join(reached)
    monkeypatch.setattr(module, "gather_on_cluster", lambda *_: [Gathered(None, 1e-5, 2e9, False), gathered])
    found = find(reached, "all-gather")[0]
    assert found.status == status
    assert words in found.found


def test_devices_exchange_by_nccl_too(monkeypatch, in_process):
    workers = [WorkerInfo(Member(k, f"tcp://10.0.0.{k}:1"), 1, 1, replace(GPU, id=str(k))) for k in range(2)]
    reached = Reached(Cluster(in_process(2), HANG_S), HANG_S, workers=workers)
    monkeypatch.setattr(module, "gather_on_cluster", lambda *_: [Gathered(None, 1e-5, 2e9, True)] * 2)
    peer, nccl = find(reached, "all-gather")
    assert peer.values["transport"] == "peer"
    assert nccl.found.startswith("by nccl (runs write directly): 2 workers in ")


@pytest.mark.parametrize(
    "error", [ClusterError("NCCL cannot connect"), WorkerLostError("worker 1 is gone"), MemoryError("of the device")]
)
def test_an_exchange_that_fails(reached, monkeypatch, error):
    join(reached)

    def fail(*_):
        raise error

    monkeypatch.setattr(module, "gather_on_cluster", fail)
    found = find(reached, "all-gather")[0]
    assert found.status == "wrong"
    assert found.found == f"by peer: {error}"


def test_who_does_not_take_part_is_named(reached, in_process):
    """The threads of one worker are taken by a task of somebody else."""
    join(reached)
    go_on = threading.Event()
    busy, idle = reached.members[1], reached.members[0]
    _HELD["go_on"] = go_on
    client = in_process(2)
    future = client.submit(hold, workers=[busy.address], key="held-by-another", pure=False)
    try:
        assert wait_for(lambda: _HELD.get("began"))
        reached.limit_s = 1.0
        [found] = find(reached, "all-gather")
        assert found.status == "wrong"
        assert found.found.startswith(f"by peer: {busy} did not take part within 1 s")
        assert str(idle) not in found.found
    finally:
        go_on.set()
        future.release()
        _HELD.clear()


_HELD: dict = {}


def hold() -> None:
    _HELD["began"] = True
    _HELD["go_on"].wait(HANG_S)


# --- other machines --------------------------------------------------------------------------------------------------


def test_other_machines_make_their_own_checks(reached, monkeypatch):
    join(reached)
    hosts = iter(["here", "there", "there"])
    monkeypatch.setattr(module, "name_host", lambda: next(hosts, "here"))
    monkeypatch.setattr(module, "_run", pretend_to_run(["there", "there"], [[replace_name(ok("well")), BAD]]))
    reached.examine = lambda limit_s: []
    machines, well, bad = find(reached, "worker-machines")
    assert machines.values == {"machines": 1, "others": 1}
    assert (well.name, well.kind, well.status) == ("memory", "host", "ok")
    assert bad.where == f"the machine of worker {reached.members[0]}"


def replace_name(finding: Finding) -> Finding:
    return replace(finding, name="memory", kind="host")


BAD = replace_name(wrong("bad", "meaning", "remedy"))


def pretend_to_run(*answers):
    left = list(answers)
    return lambda reached, members, task, limit_s=None: left.pop(0)


@pytest.mark.slow
def test_a_worker_process_makes_the_checks_of_its_machine(client, monkeypatch):
    own = os.getpid()
    monkeypatch.setattr(module, "name_host", lambda: "here" if os.getpid() == own else "there")
    reached = Reached(Cluster(client, HANG_S), HANG_S, examine=examine_machine)
    join(reached)
    machines, *found = find(reached, "worker-machines")
    assert machines.values == {"machines": 1, "others": 1}
    assert [f.name for f in found if f.kind != "device"] == [c.name for c in (*host.CHECKS, *storage.CHECKS)]
    assert {f.name for f in found if f.kind == "device"} == {c.name for c in device.CHECKS}
    assert {f.where for f in found} == {f"the machine of worker {reached.members[0]}"}


@pytest.mark.parametrize(
    ("first", "status", "words"),
    [
        (ok("well", bytes_per_s=1e9), "ok", "2 workers read x.zarr with 2e+03 MB/s together"),
        (warn("slow", "meaning", "remedy", bytes_per_s=1e3), "warning", "slow"),
        (wrong("x.zarr cannot be read", "meaning", "remedy"), "wrong", "x.zarr cannot be read"),
    ],
)
def test_stores_of_workers(reached, monkeypatch, first, status, words):
    join(reached)
    reached.stores = ["x.zarr"]
    monkeypatch.setattr(module, "_run", pretend_to_run([first, ok("well", bytes_per_s=1e9)]))
    [found] = find(reached, "worker-stores")
    assert found.status == status
    assert words in found.found
    if status != "ok":
        assert found.found.startswith(f"worker {reached.members[0]}: ")
    if status == "wrong":
        assert found.remedy.startswith("The path or URL must lead all workers to the same data.")


def test_many_workers_are_not_all_named():
    assert module._list(["a"]) == "worker a"
    assert module._list(list("abcdefgh")) == "workers a, b, c, d, e and 3 more"
