"""Checks of a cluster: a real one of two workers, and workers that say what they should not."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from mgspmv.cluster.dask_cluster import Cluster, DeviceInfo, WorkerInfo
from mgspmv.doctor import Finding, run_check
from mgspmv.doctor import cluster as module
from mgspmv.doctor.cluster import make_checks
from mgspmv.exchange.peer_comm import Member
from tests.support.waiting import HANG_S

GPU = DeviceInfo(None, "NVIDIA H200", "a", 100, None)


@pytest.fixture
def find(in_process):
    """`find(*stores)` is what all checks find, by name."""

    def find_all(*stores: str) -> dict[str, list[Finding]]:
        checks = make_checks(Cluster(in_process(2), HANG_S), stores, HANG_S)
        found = {name: run_check(name, check, HANG_S) for name, check in checks.items()}
        json.dumps([asdict(finding) for findings in found.values() for finding in findings], allow_nan=False)
        return found

    return find_all


def test_all_is_well(find, tmp_path):
    (tmp_path / "x").write_bytes(b"x")
    found = find(str(tmp_path / "x"))
    assert {finding.status for finding in found["workers"]} == {"ok"}
    assert {finding.status for finding in found["worker-links"]} == {"ok"}
    assert found["worker-links"][0].values["workers"] == 2
    assert [finding.status for finding in found["worker-stores"]] == ["ok", "ok"]
    assert len({finding.where for finding in found["worker-stores"]}) == 2


def test_a_path_that_workers_do_not_have(find, tmp_path):
    found = find(str(tmp_path / "x"))["worker-stores"]
    assert [finding.status for finding in found] == ["wrong", "wrong"]
    assert list(tmp_path.iterdir()) == []


def test_while_another_run_has_the_workers(find, in_process, tmp_path):
    with Cluster(in_process(2), HANG_S).lease(lambda: None):
        found = find(str(tmp_path))
    assert [f.found for f in found["worker-stores"]] == [
        "another run is using the workers; check again when it has ended"
    ]


def test_versions_that_differ(find, in_process, monkeypatch):
    client = in_process(2)
    told = client.get_versions(packages=[*module.CHECKED])
    first = next(iter(told["workers"]))
    told["workers"][first]["packages"] |= {"numpy": "1.0", "zarr": None}
    monkeypatch.setattr(client, "get_versions", lambda packages: told)
    [found] = find()["workers"]
    assert found.status == "wrong"
    assert "has numpy 1.0, not " in found.found
    assert "has zarr not installed, not " in found.found


def test_workers_that_are_silent_or_limited(find, monkeypatch):
    describe = Cluster.describe_workers
    missing = Member("third", "tcp://10.0.0.9:1")

    def describe_more(self):
        described = {member: told | {"memory_limit": 1 << 30} for member, told in describe(self).items()}
        return described | {missing: {}}

    monkeypatch.setattr(Cluster, "describe_workers", describe_more)
    silent, limited = find()["workers"]
    assert (silent.status, silent.found) == ("wrong", f"workers {missing} are not running, or do not answer")
    assert (limited.status, len(limited.values["limited"])) == ("warning", 2)


@pytest.mark.parametrize(
    ("devices", "problems", "statuses"),
    [
        ([GPU, replace(GPU, id="b")], [None, None], ["ok", "ok"]),
        ([GPU, GPU], [None, None], ["warning"]),
        ([GPU, DeviceInfo("CuPy is not installed")], [None, None], ["warning"]),
        ([GPU, replace(GPU, id="b")], [None, "our kernel does not run: OSError: no"], ["ok", "wrong"]),
        ([DeviceInfo("CuPy is not installed")] * 2, [], ["skipped"]),
    ],
    ids=["well", "shared", "one without", "a wrong kernel", "none"],
)
def test_gpus_of_workers(devices, problems, statuses, find, monkeypatch):
    join = Cluster.join

    def join_with_devices(self, **given):
        workers: list[WorkerInfo] = join(self, **given)
        return [replace(worker, device=device) for worker, device in zip(workers, devices, strict=True)]

    monkeypatch.setattr(Cluster, "join", join_with_devices)
    monkeypatch.setattr(module, "_run", lambda reached, members, task: problems[: len(members)])
    found = find()
    assert [finding.status for finding in found["worker-gpus"]] == statuses


def test_links_that_fail(find, in_process, monkeypatch):
    check, gone = module.find_unreachable, "tcp://127.0.0.1:1"

    async def check_one_more(addresses, limit_s, dask_worker):
        is_cut = await check([gone], 0.5, dask_worker) == [gone]
        return [addresses[0]] if is_cut and await check(addresses, limit_s, dask_worker) == [] else []

    monkeypatch.setattr(module, "find_unreachable", check_one_more)
    [found] = find()["worker-links"]
    assert found.status == "wrong"
    assert len(found.values["cut"]) == 2
    assert found.found.startswith("no connection from ")
