"""Units of systemd: valid by its own program, with commands of ours, and systemd gets its messages."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
from collections import defaultdict
from datetime import date, timedelta
from pathlib import Path

import psutil
import pytest

from mgspmv.errors import OptionError
from mgspmv.launching import list_clusters
from tests.support.commands import ENVIRONMENT, PROGRAM, check_words
from tests.support.waiting import HANG_S

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
UNIT = FOLDER / "mgspmv-cluster.service"
TEXT = UNIT.read_text()
NIGHTLY = (FOLDER / "mgspmv-nightly.service").read_text()
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


def verify_all(texts: dict[str, str], folder: Path) -> list[str]:
    """Messages of systemd about units by their file names, each of which may refer to others."""
    for name, text in texts.items():
        (folder / name).write_text(text)
    command = ["systemd-analyze", "verify", *(folder / name for name in texts)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    return [line for line in (done.stdout + done.stderr).splitlines() if "mgspmv" in line]


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


@pytest.mark.parametrize("text", [TEXT, NIGHTLY], ids=["cluster", "nightly"])
def test_gpus_are_visible(text):
    """ProtectClock hides them before systemd 253, by a list of devices."""
    closing = {"PrivateDevices", "ProtectClock", "DevicePolicy", "DeviceAllow"}
    assert not closing & read_unit(text)["Service"].keys()


NIGHTLY_FLAWS = {
    "mgspmv-nightly.timer": ("OnCalendar=*-*-* 02:00:00", "OnCalendar=nightly", "calendar specification"),
    "mgspmv-nightly.service": ("RestartSec=10min", "RestartSec=later", "later"),
    "mgspmv-alert@failed.service": ("ExecStart=/bin/sh", "ExecStart=/bin/not-there", "not-there"),
}


@pytest.mark.external("systemd-analyze")
def test_nightly_units_are_valid(tmp_path):
    names = {name: name.replace("failed", "") for name in NIGHTLY_FLAWS}
    texts = {name: (FOLDER / file).read_text() for name, file in names.items()}
    assert verify_all(texts, tmp_path) == []
    for name, (right, wrong, message) in NIGHTLY_FLAWS.items():
        assert texts[name].count(right) == 1
        assert any(message in line for line in verify_all({**texts, name: texts[name].replace(right, wrong)}, tmp_path))


def read_shell(text: str) -> list[str]:
    """Words of the command of a unit, as systemd passes them to the shell."""
    [command] = read_unit(text)["Service"]["ExecStart"]
    return [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(command)]


def test_nightly_command_is_ours_and_takes_the_day_before(tmp_path):
    shell, option, script = read_shell(NIGHTLY)
    assert (shell, option, script.count(INSTALLED)) == ("/bin/sh", "-c", 1)
    check_words(shlex.split(script.partition(INSTALLED)[2]))
    stub = tmp_path / "mgspmv"
    stub.write_text('#!/bin/sh\necho "$DAY $*"\nexit 3\n')
    stub.chmod(0o755)
    days = [date.today() - timedelta(days=1)]
    done = subprocess.run([shell, option, script.replace(INSTALLED, str(stub))], capture_output=True, text=True)
    days.append(date.today() - timedelta(days=1))  # the test may run at midnight
    assert done.returncode == 3
    assert done.stdout in [f"{day} run /etc/mgspmv/nightly.toml --quiet\n" for day in days]


def test_nightly_failures_are_repeated_and_reported():
    unit, service = (read_unit(NIGHTLY)[name] for name in ("Unit", "Service"))
    assert unit["OnFailure"] == ["mgspmv-alert@%n.service"]
    assert service["RestartPreventExitStatus"] == [str(OptionError.exit_code)]


def test_alert_mails_the_state_of_the_unit(tmp_path):
    """With stand-ins for `systemctl` and `mail`, in the place of %i a name with a dash."""
    for name in ("systemctl", "mail"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name}" "$@"\n[ {name} = systemctl ] || cat\n')
        (tmp_path / name).chmod(0o755)
    words = read_shell((FOLDER / "mgspmv-alert@.service").read_text())
    words = [word.replace("%i", "mgspmv-nightly.service").replace("%H", "host") for word in words]
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "MAILTO": "root"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=HANG_S)
    assert done.stdout.splitlines() == [
        "mail -s mgspmv-nightly.service failed on host root",
        "systemctl status --full --no-pager --lines=50 mgspmv-nightly.service",
    ]


def test_nightly_unit_is_confined_as_the_cluster_is():
    cluster, nightly = (read_unit(text)["Service"] for text in (TEXT, NIGHTLY))
    confining = {
        key for key in cluster if re.match(r"No|Protect|Private|Lock|Restrict[A-Z]|Cap|System|User|Limit", key)
    }
    assert len(confining) > 15
    assert {key: nightly[key] for key in confining} == {key: cluster[key] for key in confining}


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
