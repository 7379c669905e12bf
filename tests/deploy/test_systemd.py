"""The unit of systemd: valid by its own program, its command one of ours, and what it is told as it should be."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
from collections import defaultdict
from pathlib import Path

import psutil
import pytest

from mgspmv.launching import list_clusters
from tests.support.commands import ENVIRONMENT, PROGRAM, check_words
from tests.support.waiting import HANG_S

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "mgspmv-cluster.service"
TEXT = UNIT.read_text()
INSTALLED = "/opt/mgspmv/bin/mgspmv"
FLAWS = {
    "unknown key": ("KillMode=mixed", "KillMod=mixed", "KillMod"),
    "no number": ("TimeoutStopSec=60", "TimeoutStopSec=soon", "soon"),
    "no command": (f"ExecStart={INSTALLED}", f"ExecStart={INSTALLED}-not-there", "is not executable"),
}
"""What is right, what is wrong, and what systemd says then, in words of any version."""


def verify(text: str, folder: Path) -> str:
    """What systemd says of a unit, with a program that is there in place of the one that is to be installed."""
    path = folder / UNIT.name
    path.write_text(re.sub(rf"{INSTALLED}(?= )", "/bin/true", text))
    done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, timeout=HANG_S)
    said = (done.stdout + done.stderr).splitlines()
    return "\n".join(line for line in said if UNIT.name in line)  # it looks at others of the machine, too


def read_unit(text: str) -> dict[str, dict[str, list[str]]]:
    """Values of a unit by section and key."""
    sections: dict[str, dict[str, list[str]]] = {}
    for line in text.splitlines():
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), defaultdict(list))
        elif line and not line.startswith("#"):
            key, sign, value = line.partition("=")
            assert sign, f"{line!r} is no setting"
            section[key].append(value)
    return sections


@pytest.mark.external("systemd-analyze")
def test_it_is_valid(tmp_path):
    assert verify(TEXT, tmp_path) == ""
    for right, wrong, message in FLAWS.values():
        assert TEXT.count(right) == 1
        assert message in verify(TEXT.replace(right, wrong), tmp_path)


def test_its_command_is_ours():
    [command] = read_unit(TEXT)["Service"]["ExecStart"]
    words = shlex.split(command)
    assert words[:4] == [INSTALLED, "cluster", "start", "--foreground"]
    check_words(words[1:])


def test_gpus_are_visible():
    """ProtectClock hides them before systemd 253, by a list of devices of its own."""
    closing = {"PrivateDevices", "ProtectClock", "DevicePolicy", "DeviceAllow"}
    assert not closing & read_unit(TEXT)["Service"].keys()


@pytest.mark.slow
def test_its_command_tells_when_it_is_ready_and_ends_with_all_it_started(tmp_path, monkeypatch):
    monkeypatch.setenv("MGSPMV_STATE", str(tmp_path / "state"))
    words = shlex.split(read_unit(TEXT)["Service"]["ExecStart"][0])
    command = [*PROGRAM, *words[1:], "--port", "0", "--workers", "1", "--threads", "1", "--backend", "cpu"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(HANG_S)
        environment = os.environ | {"PYTHONPATH": ENVIRONMENT["PYTHONPATH"], "NOTIFY_SOCKET": str(tmp_path / "notify")}
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as served:
            assert systemd.recv(1000).startswith(b"READY=1\nSTATUS=1 workers at tcp://127.0.0.1:")
            [cluster] = list_clusters()
            assert (cluster.name, cluster.state, cluster.pid) == ("service", "running", served.pid)
            started = psutil.Process(served.pid).children(recursive=True)
            served.send_signal(signal.SIGTERM)
            assert systemd.recv(1000) == b"STOPPING=1"
            served.send_signal(signal.SIGTERM)  # who is impatient changes nothing
            _, stderr = served.communicate(timeout=HANG_S)
    assert served.returncode == 0, stderr
    assert "cluster service runs: 1 CPU workers, process " in stderr
    assert started
    assert psutil.wait_procs(started, HANG_S)[1] == []
    assert list_clusters() == []
