"""All checks together."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext

import pytest

from mgspmv.doctor import device, examine, host, storage
from mgspmv.doctor.checks import examine_machine
from mgspmv.doctor.cluster import Reached, make_cluster_checks
from mgspmv.doctor.findings import Check, Finding, ok
from mgspmv.errors import SchedulerNotFoundError
from tests.support.waiting import HANG_S

OF_CLUSTERS = [check.name for check in make_cluster_checks(Reached(None, 1))]


@pytest.fixture
def few(monkeypatch):
    """One check of each kind of a machine."""

    def find():
        return ok("well")

    for module, kind in ((host, "host"), (storage, "storage")):
        monkeypatch.setattr(module, "CHECKS", (Check(f"some-{kind}", kind, find),))
    monkeypatch.setattr(device, "CHECKS", ())


def name_all(found: list[Finding]) -> list[str]:
    return list(dict.fromkeys(finding.name for finding in found))


def test_a_machine(few):
    assert [(f.name, f.kind, f.status) for f in examine_machine(HANG_S)] == [
        ("some-host", "host", "ok"),
        ("some-storage", "storage", "ok"),
    ]


def test_what_is_named_is_read(few, tmp_path):
    (tmp_path / "a").write_bytes(b"x")
    told = []
    found = examine(stores=[str(tmp_path / "a"), str(tmp_path / "b")], timeout=HANG_S, on_check=told.append)
    assert [(f.name, f.status) for f in found[2:]] == [("store", "ok"), ("store", "wrong")]
    assert told == ["some-host", "GPUs", "some-storage", "store", "store"]


def test_a_cluster(few, in_process, tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    found = examine(lambda: nullcontext(in_process(2)), ["a"], timeout=HANG_S)
    assert name_all(found)[2:] == ["store", "scheduler", *OF_CLUSTERS]
    assert {f.kind for f in found if f.name in OF_CLUSTERS} == {"cluster"}
    assert [f.status for f in found if f.status == "wrong"] == []
    [stores] = [f for f in found if f.name == "worker-stores"]
    assert stores.values["store"] == str(tmp_path / "a")  # whatever folder the workers are in


def test_a_cluster_that_does_not_answer(few):
    @contextmanager
    def reach():
        raise SchedulerNotFoundError("no Dask scheduler answers at tcp://10.0.0.9:1")
        yield

    found = examine(reach, timeout=HANG_S)
    assert name_all(found) == ["some-host", "some-storage", "scheduler"]
    assert (found[-1].status, found[-1].kind) == ("wrong", "cluster")
    assert found[-1].found == "no Dask scheduler answers at tcp://10.0.0.9:1"
    assert "--scheduler" in found[-1].remedy


@pytest.mark.slow
def test_a_real_machine():
    """Whatever it has, each check has something to say, and none fails in a way that nobody thought of."""
    found = examine(timeout=HANG_S)
    assert name_all(found) == [check.name for check in (*host.CHECKS, *device.CHECKS, *storage.CHECKS)]
    assert not [f for f in found if "could not be checked" in f.found or "the process that checked it" in f.found]
