"""A Slurm of the tests' own on this machine: its controller, and two nodes that are both this machine, on other ports.

It needs neither root nor anything in /etc: all of it runs as this user, by a configuration in a folder.
"""

from __future__ import annotations

import getpass
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.commands import ENVIRONMENT
from tests.support.waiting import HANG_S, wait_for

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol")
_FOUND = {name: shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") for name in PROGRAMS}
needs_slurm = pytest.mark.external(*PROGRAMS)
REQUEUE_S = 5
"""Seconds that a job waits which is queued again; Slurm's own default is two minutes."""
_CONFIG = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire={requeue_s}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
KillWait=2
MailProg=/bin/true
NodeName=n[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports[1]}-{ports[2]}] CPUs=2 RealMemory=4000
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=closed Nodes=ALL MaxTime=INFINITE State=DOWN
"""


@dataclass(frozen=True)
class Slurm:
    """One that runs."""

    folder: Path
    environment: dict[str, str]
    """Of its commands and of those that use it."""

    def ask(self, *command: str) -> str:
        """What one of its commands says."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=HANG_S)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def submit(self, *words: str | Path, cwd: Path) -> int:
        """Queue a job by `sbatch`."""
        command = ["sbatch", "--parsable", *map(str, words)]
        done = subprocess.run(command, env=self.environment, cwd=cwd, capture_output=True, text=True, timeout=HANG_S)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    def find(self, job: int) -> dict[str, str]:
        """What it knows of a job, by names as `JobState` and `Restarts`."""
        return dict(re.findall(r"([\w/]+)=(\S*)", self.ask("scontrol", "--oneliner", "show", "job", str(job))))

    def list_jobs(self) -> list[str]:
        """Those that wait, run, or have ended and are being cleared away."""
        return self.ask("squeue", "--noheader", "--format=%i %j %T").splitlines()


@contextmanager
def start_slurm(folder: Path) -> Iterator[Slurm]:
    """Start it with all nodes idle, and end it with all of its jobs."""
    first = _find_free_ports(3)
    host = socket.gethostname().partition(".")[0]
    ports = range(first, first + 3)
    config = _CONFIG.format(folder=folder, host=host, user=getpass.getuser(), ports=ports, requeue_s=REQUEUE_S)
    (folder / "slurm.conf").write_text(config)
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(secrets.token_bytes(128))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = ENVIRONMENT | {"SLURM_CONF": f"{folder}/slurm.conf", "PATH": path}
    files = {"key-file": "key", "pid-file": "pid", "seed-file": "seed", "log-file": "log", "socket": "socket"}
    commands = [
        [_FOUND["munged"], "-F", "--force", *(f"--{name}={folder}/munge.{end}" for name, end in files.items())],
        [_FOUND["slurmctld"], "-D"],
        [_FOUND["slurmd"], "-D", "-N", "n1"],
        [_FOUND["slurmd"], "-D", "-N", "n2"],
    ]
    slurm = Slurm(folder, environment)
    with ExitStack() as stack:
        for command in commands:
            daemon = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(_end, daemon)
            if command is commands[0]:
                assert wait_for((folder / "munge.socket").exists), _read_logs(folder)
        assert wait_for(lambda: _count_idle(slurm) == 2, HANG_S), _read_logs(folder)
        yield slurm
        for job in slurm.list_jobs():
            slurm.ask("scancel", job.split()[0])
        assert wait_for(lambda: not slurm.list_jobs()), slurm.list_jobs()


def _count_idle(slurm: Slurm) -> int:
    command = ["sinfo", "--noheader", "--Node", "--partition=main", "--format=%T"]
    done = subprocess.run(command, env=slurm.environment, capture_output=True, text=True)
    return done.stdout.split().count("idle")


def _find_free_ports(count: int) -> int:
    """The first of so many free ones in a row."""
    while True:
        with ExitStack() as stack:
            first = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            try:
                for port in range(first + 1, first + count):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except (OSError, OverflowError):
                continue
            return int(first)


def _end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(20)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def _read_logs(folder: Path) -> str:
    return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-2000:]}" for path in folder.glob("*.log"))
