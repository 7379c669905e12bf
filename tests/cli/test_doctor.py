"""`mgspmv doctor`: what it says to people and programs, and how it ends."""

from __future__ import annotations

import json
import subprocess

import pytest

import mgspmv.doctor
import mgspmv.doctor.checks
from mgspmv.doctor.findings import Finding
from tests.support.commands import invoke, invoke_json, start
from tests.support.waiting import HANG_S


def make(status, name, kind, where=""):
    needs = status in ("warning", "wrong")
    said = (f"{name} found.", f"{name} means.", f"Do {name}.") if needs else (f"{name} found.", "", "")
    return Finding(status, *said, {"n": 1}, name, kind, where)


FOUND = [
    make("ok", "memory", "host"),
    make("warning", "open-files", "host"),
    make("wrong", "versions", "host", "the machine of worker 3"),
    make("skipped", "nccl", "device"),
    make("wrong", "all-gather", "cluster"),
]


@pytest.fixture
def finding(monkeypatch):
    """`finding(found)` is what all checks find; gives the arguments with which they are asked for."""
    given = {}

    def set_found(found):
        def examine(reach, stores, timeout, on_check):
            given.update(reach=reach, stores=stores, timeout=timeout)
            return found

        monkeypatch.setattr(mgspmv.doctor, "examine", examine)
        return given

    return set_found


def test_what_people_see(finding):
    finding(FOUND)
    stdout, stderr = invoke("doctor", code=1)
    lines = [" ".join(line.split()) for line in stdout.splitlines()]
    assert [line for line in lines if line.startswith(("host", "device", "storage", "cluster"))] == [
        "host found, what it means, what to do",
        "cluster found, what it means, what to do",
    ]
    assert [line for line in lines if "found." in line] == [
        "versions wrong versions found. (the machine of worker 3)",
        "open-files warning open-files found.",
        "all-gather wrong all-gather found.",
    ]
    for name in ("versions", "open-files", "all-gather"):
        assert f"{name} means." in lines
        assert f"Do {name}." in lines
    assert lines[-1] == "1 ok, 1 warning, 2 wrong, 1 not checked"
    assert stderr == "error: something is wrong: versions on the machine of worker 3, all-gather\n"


def test_nothing_to_do(finding):
    finding([FOUND[0], FOUND[3]])
    assert invoke("doctor") == ("1 ok, 0 warnings, 0 wrong, 1 not checked\n", "")


def test_warnings_alone_do_not_fail(finding):
    finding(FOUND[:2])
    assert invoke("doctor")[0].endswith("1 ok, 1 warning, 0 wrong, 0 not checked\n")


def test_json(finding):
    finding(FOUND)
    answer = invoke_json("doctor", code=1)
    assert answer["counts"] == {"ok": 1, "warning": 1, "wrong": 2, "skipped": 1}
    assert answer["error"]["type"] == "SetupError"
    assert answer["findings"][2] == {
        "status": "wrong",
        "found": "versions found.",
        "meaning": "versions means.",
        "remedy": "Do versions.",
        "values": {"n": 1},
        "name": "versions",
        "kind": "host",
        "where": "the machine of worker 3",
    }
    finding(FOUND[:1])
    assert "error" not in invoke_json("doctor")


def test_what_is_asked_for(finding):
    given = finding([])
    invoke("doctor")
    assert given == {"reach": None, "stores": [], "timeout": 30.0}
    invoke("doctor", "a.zarr", "s3://bucket/b.zarr", "--timeout", "5", "--scheduler", "tcp://10.0.0.1:8786")
    assert given["stores"] == ["a.zarr", "s3://bucket/b.zarr"]
    assert given["timeout"] == 5.0
    assert callable(given["reach"])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--cluster-option", "cores=2"], "--cluster-option says what --cluster starts"),
        (["--cluster", "local", "--scheduler", "a:1"], "give one of them"),
        (["--workers", "2"], "--workers says how many --cluster starts"),
        (["--timeout", "0"], "--timeout must be a positive number of seconds"),
    ],
)
def test_usage(args, message):
    assert message in invoke("doctor", *args, code=2)[1]


def test_a_scheduler_that_nobody_is(monkeypatch):
    monkeypatch.setattr(mgspmv.doctor.checks, "_examine_machine", lambda *_: iter([]))
    stdout, stderr = invoke("doctor", "--scheduler", "tcp://127.0.0.1:9", "--timeout", "0.5", code=1)
    assert "no Dask scheduler answers at tcp://127.0.0.1:9" in stdout
    assert stderr == "error: something is wrong: scheduler\n"


@pytest.mark.slow
def test_a_running_cluster(cluster, client):
    answer = invoke_json("doctor", "--scheduler", cluster.scheduler_address)
    told = {finding["name"]: finding for finding in answer["findings"]}
    assert told["all-gather"]["values"]["workers"] == 4
    assert len(told["clock-skew"]["values"]["skew_s"]) == 4
    assert told["worker-versions"]["status"] == told["workers"]["status"] == "ok"


@pytest.mark.slow
def test_workers_that_are_started():
    with start(
        "doctor", "--cluster", "local", "--workers", "2", "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        stdout, stderr = process.communicate(timeout=HANG_S)
    told = {finding["name"]: finding for finding in json.loads(stdout)["findings"]}
    assert told["all-gather"]["values"]["workers"] == 2, stderr
    assert told["worker-machines"]["values"] == {"machines": 1, "others": 0}
    assert {"open-files", "scratch", "cupy"} <= told.keys()
