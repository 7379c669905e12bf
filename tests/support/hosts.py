"""Hosts of our own on this machine: network namespaces on a bridge, whose links can be cut and slowed.

Where namespaces cannot be made, for want of root or of `ip`, all hosts are this machine, and their links stay as they
are. What a run that was killed left behind is removed by the next one.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO, TypeVar

MOST_NETWORKS = 64
"""At the same time on this machine, of whoever runs them."""
MOST_HOSTS = 60
NAMESPACES = Path("/run/netns")
CLONE_NEWNET = 0x40000000
T = TypeVar("T")
BURST_BYTES = 4096
"""That pass a slow link at once."""
QUEUE_MS = 2000
"""Longest that a packet waits at a slow link before it is dropped."""


@dataclass(frozen=True)
class Host:
    """Where processes run."""

    name: str
    address: str
    """IPv4."""
    network: str | None = None
    """Name of the bridge that it is on; None for this machine itself."""

    @property
    def is_own(self) -> bool:
        """Whether it has a link of its own."""
        return self.network is not None

    @property
    def namespace(self) -> str:
        """Also the name of the link's end at the bridge."""
        return f"{self.network}-{self.name}"

    def enter(self) -> None:
        """Let this process, of one thread, be on the host from now on."""
        if not self.is_own:
            return
        with open(NAMESPACES / self.namespace) as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"cannot enter {self.namespace}")

    def do(self, function: Callable[[], T]) -> T:
        """What a function gives there; sockets that it makes stay there."""
        with ThreadPoolExecutor(1, initializer=self.enter) as thread:
            return thread.submit(function).result()

    def cut(self) -> None:
        """Let nothing come or go any more; nobody is told."""
        _ip("link", "set", self.namespace, "nomaster")

    def join(self) -> None:
        """Undo `cut`."""
        _ip("link", "set", self.namespace, "master", str(self.network))

    def slow(self, kbit_per_s: int) -> None:
        """Let no more than this pass, in each direction."""
        shape = ["root", "tbf", "rate", f"{kbit_per_s}kbit", "burst", f"{BURST_BYTES}", "latency", f"{QUEUE_MS}ms"]
        _run("tc", "qdisc", "replace", "dev", self.namespace, *shape)
        _run("tc", "-n", self.namespace, "qdisc", "replace", "dev", "eth0", *shape)

    def hasten(self) -> None:
        """Undo `slow`, once or several times."""
        with suppress(OSError):
            _run("tc", "qdisc", "del", "dev", self.namespace, "root")
            _run("tc", "-n", self.namespace, "qdisc", "del", "dev", "eth0", "root")


class Network(AbstractContextManager["Network"]):
    """Hosts that reach each other, and that this machine reaches; they go with the context, and all that runs on them.

    Parameters
    ----------
    is_split : whether each has a namespace and an address of its own
    """

    def __init__(self, is_split: bool) -> None:
        self._is_split = is_split
        self._lock: IO[str] | None = None
        self._number = 0
        self._hosts: list[Host] = []

    def __enter__(self) -> Network:
        if self._is_split:
            self._number, self._lock = _claim_number()
            _remove(self._bridge)
            _ip("link", "add", self._bridge, "type", "bridge")
            _ip("address", "add", f"{self.address}/24", "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._lock is not None:
            _remove(self._bridge)
            self._lock.close()

    def add_host(self, name: str) -> Host:
        """One more host; `name` is short, and of no other one."""
        if not self._is_split:
            return Host(name, "127.0.0.1")
        host = Host(name, self._find_address(2 + len(self._hosts)), self._bridge)
        self._hosts.append(host)
        space = host.namespace
        _ip("netns", "add", space)
        _ip("link", "add", space, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("-n", space, "address", "add", f"{host.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", space, "link", "set", device, "up")
        _ip("link", "set", space, "up", "master", self._bridge)
        return host

    @property
    def address(self) -> str:
        """Of this machine, as hosts reach it."""
        return self._find_address(1) if self._is_split else "127.0.0.1"

    @property
    def _bridge(self) -> str:
        return _name_bridge(self._number)

    def _find_address(self, k: int) -> str:
        assert k <= MOST_HOSTS
        return f"10.213.{self._number}.{k}"


@cache
def why_not_split() -> str:
    """Why hosts cannot have namespaces of their own here; empty where they can."""
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            return f"needs the program {program} (Debian: apt install iproute2)"
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    try:
        with Network(is_split=True) as network:
            network.add_host("a").slow(1000)
    except OSError as error:
        return f"network namespaces cannot be made here ({error})"
    return ""


def _claim_number() -> tuple[int, IO[str]]:
    """A number that no other network on this machine has, and the file that says so until it is closed."""
    folder = Path(tempfile.gettempdir(), "mgspmv-chaos")
    folder.mkdir(exist_ok=True)
    for number in range(MOST_NETWORKS):
        lock = open(folder / f"{number}.lock", "w")  # noqa: SIM115 (the caller closes it)
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return number, lock
        lock.close()
    raise OSError(f"all {MOST_NETWORKS} networks of hosts are taken, by runs that have not ended")


def _name_bridge(number: int) -> str:
    return f"mgc{number}"


def _remove(bridge: str) -> None:
    """End what runs on the hosts of a bridge, and remove them and it, as far as they are there."""
    spaces = [path.name for path in NAMESPACES.glob(f"{bridge}-*")] if NAMESPACES.is_dir() else []
    for device in (*spaces, bridge):
        if Path("/sys/class/net", device).exists():  # or it would stay as long as what was killed is not gone
            _ip("link", "delete", device)
    for space in spaces:
        for pid in _ip("netns", "pids", space).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        _ip("netns", "delete", space)


def _ip(*arguments: str) -> str:
    return _run("ip", *arguments)


def _run(*command: str) -> str:
    """What a command prints.

    Raises
    ------
    OSError : it failed
    """
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout
