"""`mgspmv doctor`: what it says to people and programs, and how it ends."""

from __future__ import annotations

import json
import subprocess

import pytest

from mgspmv import doctor
from mgspmv.doctor import Finding
from tests.support.commands import invoke, invoke_json, start
from tests.support.waiting import HANG_S


def make(status, name, where=""):
    remedy = f"Do {name}." if status in ("warning", "wrong") else ""
    return Finding(status, f"{name} found.", remedy, {"n": 1}, name, where)


FOUND = [
    make("ok", "packages"),
    make("warning", "limits"),
    make("wrong", "worker-gpus", "worker 3"),
    make("skipped", "gpus"),
    make("wrong", "worker-links"),
]


@pytest.fixture
def finding(monkeypatch):
    """`finding(found)` is what all checks find; gives the arguments with which they are asked for."""
    given = {}

    def set_found(found):
        def examine(reach, stores, timeout, on_check, warm):
            given.update(reach=reach, stores=stores, timeout=timeout, warm=warm)
            return found

        monkeypatch.setattr(doctor, "examine", examine)
        return given

    return set_found


def test_what_people_see(finding):
    finding(FOUND)
    stdout, stderr = invoke("doctor", code=1)
    lines = [" ".join(line.split()) for line in stdout.splitlines()]
    assert "check finding and remedy" in lines
    assert [line for line in lines if "found." in line] == [
        "worker-gpus wrong worker-gpus found. (worker 3)",
        "worker-links wrong worker-links found.",
        "limits warning limits found.",
    ]
    for name in ("worker-gpus", "worker-links", "limits"):
        assert f"Do {name}." in lines
    assert lines[-1] == "1 ok, 1 warning, 2 wrong, 1 not checked"
    assert stderr == "error: checks failed: worker-gpus on worker 3, worker-links\n"


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
    assert answer["error"]["type"] == "MgspmvError"
    assert answer["findings"][2] == {
        "status": "wrong",
        "found": "worker-gpus found.",
        "remedy": "Do worker-gpus.",
        "values": {"n": 1},
        "name": "worker-gpus",
        "where": "worker 3",
    }
    finding(FOUND[:1])
    assert "error" not in invoke_json("doctor")


def test_what_is_asked_for(finding):
    given = finding([])
    invoke("doctor")
    assert given == {"reach": None, "stores": [], "timeout": 30.0, "warm": False}
    invoke("doctor", "a.zarr", "s3://bucket/b.zarr", "--wait", "5", "--scheduler", "tcp://10.0.0.1:8786")
    assert given["stores"] == ["a.zarr", "s3://bucket/b.zarr"]
    assert given["timeout"] == 5.0
    assert callable(given["reach"])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--workers", "2"], "--workers is the size of a started cluster"),
        (["--wait", "0"], "Invalid value for '--wait': "),
    ],
)
def test_usage(args, message):
    assert message in invoke("doctor", *args, code=2)[1]


def test_a_scheduler_that_nobody_is(monkeypatch):
    monkeypatch.setattr(doctor, "CHECKS", {})
    stdout, stderr = invoke("doctor", "--scheduler", "tcp://127.0.0.1:9", "--wait", "0.5", code=1)
    assert "no Dask scheduler answers at tcp://127.0.0.1:9" in stdout
    assert stderr == "error: checks failed: workers\n"


@pytest.mark.slow
def test_a_running_cluster(cluster, client):
    answer = invoke_json("doctor", "--scheduler", cluster.scheduler_address)
    told = {finding["name"]: finding for finding in answer["findings"]}
    assert told["worker-links"]["values"]["workers"] == 4
    assert told["workers"]["status"] == "ok"


@pytest.mark.slow
def test_workers_that_are_started():
    with start(
        "doctor", "--cluster", "local", "--workers", "2", "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        stdout, stderr = process.communicate(timeout=HANG_S)
    told = {finding["name"]: finding for finding in json.loads(stdout)["findings"]}
    assert told["worker-links"]["values"]["workers"] == 2, stderr
    assert {"packages", "limits", "folders", "gpus"} <= told.keys()
