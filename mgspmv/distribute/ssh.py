"""A cluster of several machines for one run: the scheduler in this process, and workers that SSH starts on hosts.

`ssh` is OpenSSH's own program, so hosts are reached as its configuration says (`~/.ssh/config`, agents, jump hosts), by
keys that it knows, and nobody is asked for a password. What it starts there (`host_workers`) ends when its input does:
when the cluster is closed, and also when this process is killed.

Dask's own `SSHCluster` is not taken: it ends what it started by a signal alone, says of a worker that ends at once
nothing more than that, and shows its configuration to all users of a host in the list of processes.
"""

from __future__ import annotations

import ipaddress
import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import dask
from distributed import LocalCluster

from mgspmv.distribute.connect import serve_at, start_scheduler
from mgspmv.distribute.host_workers import END_S, MARK, Asked, find_versions
from mgspmv.distribute.tls import is_tls_required
from mgspmv.errors import (
    CapacityError,
    ClusterError,
    MgspmvError,
    MissingDependencyError,
    OptionError,
    VersionMismatchError,
)
from mgspmv.os_errors import is_operators, translate_os_error

CONNECT_S = 15
"""Seconds for a host to answer."""
START_S = 120.0
"""Seconds in which all workers must have joined."""
CLOSE_S = END_S + 10.0
"""Seconds that hosts have to end their workers before the connections are cut."""
SAID_LINES = 200
"""The last ones that a host wrote to stderr, which are kept."""
SHOWN_LINES = 3
"""Of these, in an error, where none names an exception."""
_LOOK_S = 0.05
"""Seconds between two looks at whether workers have joined."""
_PROGRAM = "mgspmv.distribute.host_workers"
_LINE = re.compile(
    r"(?:(?P<user>[\w.][\w.+-]*)@)?(?P<host>\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[A-Za-z0-9][\w.-]*)(?::(?P<port>\d{1,5}))?"
)
_EXCEPTION = re.compile(r"[\w.]*(Error|Exception)\b")
_OPTIONS = (
    *("-T", "-a", "-x", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", f"ConnectTimeout={CONNECT_S}"),
    *("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4", "-o", "ControlMaster=no"),
    *("-o", "ClearAllForwardings=yes", "-o", "LogLevel=ERROR"),
)
"""Of ssh: no terminal and nothing forwarded, nobody is asked, hosts must be known, and silence is noticed."""
_ERRORS: dict[str, type[MgspmvError]] = {
    error.__name__: error
    for error in (CapacityError, ClusterError, MissingDependencyError, OptionError, VersionMismatchError)
}
"""That a host may answer with."""


# --- the file of hosts -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Host:
    """A line of a file of hosts."""

    name: str
    """Or address, or what `~/.ssh/config` calls it."""
    user: str | None = None
    """Default as SSH has it."""
    port: int | None = None
    """Of SSH, likewise."""
    workers: int | None = None
    """Default one for each GPU, or as Dask chooses."""
    threads: int | None = None
    """Of each worker; default so many that all have one for each processor."""

    def __str__(self) -> str:
        name = f"[{self.name}]" if ":" in self.name else self.name
        return name if self.port is None else f"{name}:{self.port}"

    @property
    def destination(self) -> list[str]:
        """As arguments of ssh."""
        port = [] if self.port is None else ["-p", str(self.port)]
        return [*port, "--", self.name if self.user is None else f"{self.user}@{self.name}"]


def read_hosts(path: str | Path) -> list[Host]:
    """Read a file of hosts: a line `[user@]host[:port] [workers=N] [threads=N]` for each, and comments after `#`.

    Raises
    ------
    OptionError : it cannot be read, has no hosts, or a line that is none of these, or a host twice
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        if is_operators(error):
            raise translate_os_error(error, path, "read") from error
        raise OptionError(f"{path} is no file of hosts ({error}); name one with a line for each host") from error
    found: dict[str, int] = {}
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            host = _parse_host(words)
            if str(host) in found:
                raise ValueError(f"the host is in line {found[str(host)]} already; workers=N says how many it has")
        except ValueError as error:
            raise OptionError(
                f"{path}, line {number}: {' '.join(words)!r}: {error}; a line is [user@]host[:port] [workers=N] "
                "[threads=N]"
            ) from error
        found[str(host)] = number
        hosts.append(host)
    if not hosts:
        raise OptionError(f"{path} has no hosts; write a line for each, such as gpu-1 or me@10.0.0.2:22 workers=4")
    return hosts


def _parse_host(words: Sequence[str]) -> Host:
    matched = _LINE.fullmatch(words[0])
    if matched is None:
        raise ValueError("this is not a host, with a user before it or a port behind it; write IPv6 in brackets")
    given: dict[str, int] = {}
    for word in words[1:]:
        key, _, value = word.partition("=")
        if key not in ("workers", "threads"):
            raise ValueError(f"{word!r} is neither workers=N nor threads=N")
        if key in given:
            raise ValueError(f"{key}= stands there twice")
        if not (value.isascii() and value.isdigit() and int(value) > 0):
            raise ValueError(f"{key} must be a number from 1 on, not {value!r}")
        given[key] = int(value)
    port = None if matched["port"] is None else int(matched["port"])
    if port is not None and not 1 <= port <= 65535:
        raise ValueError(f"a port is from 1 to 65535, not {port}")
    return Host(matched["host"].strip("[]"), matched["user"], port, **given)


# --- the cluster -----------------------------------------------------------------------------------------------------


@contextmanager
def start_ssh(
    hosts: Sequence[Host], n_workers: int | None = None, threads: int | None = None, python: str | None = None
) -> Iterator[LocalCluster]:
    """A scheduler in this process, and workers on hosts that SSH starts and that have joined it; they end with the
    context.

    Parameters
    ----------
    n_workers : of each host whose line does not say it; default one for each GPU, or without GPUs as Dask chooses
    threads : of each worker, likewise; default so many that a host's workers have one for each of its processors
    python : of the hosts, the path of a program; default that of this process

    Raises
    ------
    MissingDependencyError : there is no `ssh` here, or a host lacks what its GPUs need
    OptionError : a host has no certificates, or wrong ones
    VersionMismatchError : a host has another version of mgspmv or Python
    CapacityError : a host has no memory for so many workers
    ClusterError : a host cannot be reached or did not start its workers
    """
    if shutil.which("ssh") is None:
        raise MissingDependencyError(
            "workers on hosts are started by ssh, which is not installed; install OpenSSH's client (Debian: apt "
            "install openssh-client)"
        )
    address = _choose_address(hosts)
    certificate = dask.config.get("distributed.comm.tls.worker.cert") if is_tls_required() else None
    with ExitStack() as stack:
        cluster = stack.enter_context(start_scheduler(stack.enter_context(serve_at(address))))
        started: list[_HostProcess] = []
        stack.callback(_end, started)
        for host in hosts:
            asked = Asked(
                scheduler=str(cluster.scheduler_address),
                name=f"{host}/worker",
                workers=host.workers or n_workers,
                threads=host.threads or threads,
                certificates=certificate and str(Path(certificate).parent),
            )
            started.append(_HostProcess(host, asked, python or sys.executable))
        _await_joined(started, cluster.scheduler)
        yield cluster


def _await_joined(started: Sequence[_HostProcess], scheduler: Any) -> None:
    deadline = time.monotonic() + START_S
    while True:
        names = [str(worker.name) for worker in list(scheduler.workers.values())]
        waiting = [host for host in started if not host.has_joined(names)]
        if not waiting:
            return
        for host in waiting:
            host.check()
        if time.monotonic() > deadline:
            raise waiting[0].fail(f"its workers have not joined within {START_S:g} s")
        time.sleep(_LOOK_S)


def _end(started: Sequence[_HostProcess]) -> None:
    for host in started:
        host.release()
    deadline = time.monotonic() + CLOSE_S
    for host in started:
        host.end(deadline)


class _HostProcess:
    """The ssh that has the workers of a host.

    It is in a session of its own: Ctrl-C ends this process, which ends it.
    """

    def __init__(self, host: Host, asked: Asked, python: str) -> None:
        self._host, self._name, self._python = host, asked.name, python
        self._n_workers: int | None = None
        self._error: MgspmvError | None = None
        self._said: deque[str] = deque(maxlen=SAID_LINES)
        there = f"exec {shlex.quote(python)} -P -m {_PROGRAM}"
        self._process = subprocess.Popen(
            ["ssh", *_OPTIONS, *host.destination, there],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._input: IO[str] = self._process.stdin
        self._readers = [
            threading.Thread(target=self._read_answer, args=(self._process.stdout,), daemon=True),
            threading.Thread(target=self._said.extend, args=(self._process.stderr,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        with suppress(OSError):  # it has ended, which is noticed
            self._input.write(json.dumps([find_versions(), asdict(asked)]) + "\n")
            self._input.flush()

    def _read_answer(self, output: IO[str]) -> None:
        for line in output:
            _, mark, text = line.partition(MARK)
            if not mark:
                continue
            answer = json.loads(text)
            if "error" in answer:
                kind = _ERRORS.get(answer["kind"], ClusterError)
                self._error = kind(f"{self._host}: {answer['error']}")
            else:
                self._n_workers = int(answer["workers"])

    def has_joined(self, names: Sequence[str]) -> bool:
        """Whether all of its workers are among these."""
        own = [name for name in names if name == self._name or name.rpartition("-")[0] == self._name]
        return self._n_workers is not None and len(own) >= self._n_workers

    def check(self) -> None:
        """Raise if it has ended."""
        if self._process.poll() is None:
            return
        for reader in self._readers:
            reader.join(1.0)
        if self._error is not None:
            raise self._error
        raise self._explain(self._process.returncode)

    def _explain(self, code: int) -> ClusterError:
        """Why it has ended, as ssh and the host say it."""
        said = "".join(self._said)
        if code == 255 and self._n_workers is None:
            return self._explain_ssh(said)
        if f"No module named {_PROGRAM}" in said:
            return self.fail(f"{self._python} there has another version of mgspmv; install the one that is here")
        if "No module named 'mgspmv" in said:
            return self.fail(
                f"{self._python} there has no mgspmv; install it, or name a Python that has it by remote_python="
            )
        if code in (126, 127):
            return self.fail(f"{self._python} cannot be run there; name its Python by remote_python=")
        return self.fail(f"its workers ended with {code}")

    def _explain_ssh(self, said: str) -> ClusterError:
        to = " ".join(part for part in self._host.destination if part != "--")
        if "Host key verification failed" in said or "IDENTIFICATION HAS CHANGED" in said:
            is_other = "IDENTIFICATION HAS CHANGED" in said
            what = "its key is not the one that known_hosts has" if is_other else "its key is not in known_hosts"
            return self.fail(f"{what}; compare the key with the host's own, and take it in by `ssh {to}`")
        if "Permission denied" in said:
            return self.fail(f"it lets in no key of this user; `ssh -o BatchMode=yes {to} true` must work")
        return self.fail(f"it cannot be reached; `ssh -o BatchMode=yes {to} true` must work")

    def fail(self, why: str) -> ClusterError:
        """The error of the host, with what it wrote to stderr last."""
        said = [line.strip() for line in self._said if line.strip()]
        exceptions = [line for line in said if _EXCEPTION.match(line)]  # of a chain the first is the cause
        lines = list(dict.fromkeys([*exceptions[:1], *exceptions[-1:]])) or said[-SHOWN_LINES:]
        return ClusterError(f"{self._host}: {why}" + (f" (said: {' / '.join(lines)})" if lines else ""), phase="start")

    def release(self) -> None:
        """Let its workers end."""
        with suppress(OSError):
            self._input.close()

    def end(self, deadline: float) -> None:
        """Wait until they have, or end the connection."""
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for reader in self._readers:
            reader.join(1.0)
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()


def _choose_address(hosts: Sequence[Host]) -> str:
    """That of this machine by which it reaches the hosts: the first one that other machines reach too."""
    found = [address for host in hosts if (address := _find_route(_find_name(host)))]
    if not found:
        raise ClusterError(
            f"{hosts[0]}: it cannot be reached: no host of that name is known here; write its address, or put it into "
            "~/.ssh/config",
            phase="start",
        )
    return next((address for address in found if not ipaddress.ip_address(address).is_loopback), found[0])


def _find_name(host: Host) -> str:
    """What SSH's configuration has for it."""
    asked = subprocess.run(["ssh", "-G", *host.destination], capture_output=True, text=True)
    names = [line.split()[1] for line in asked.stdout.splitlines() if line.startswith("hostname ")]
    return names[0] if names else host.name


def _find_route(name: str) -> str | None:
    """The own address of a connection there; None for a name that only the jump host knows. Nothing is sent."""
    try:
        kind, _, _, _, address = socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(kind, socket.SOCK_DGRAM) as own:
            own.connect(address)
            return str(own.getsockname()[0])
    except OSError:
        return None
