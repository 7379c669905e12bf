"""SSH servers of the tests' own on hosts, and an `ssh` that knows them and has the keys for them."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support.commands import ENVIRONMENT
from tests.support.hosts import Host
from tests.support.waiting import wait_for

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin") or "sshd"
"""A path, which it asks for."""
needs_sshd = pytest.mark.external("sshd", "ssh", "ssh-keygen")


@dataclass(frozen=True)
class Fleet:
    """Hosts with SSH servers, and an `ssh` that knows them."""

    folder: Path
    lines: list[str]
    """Of a file of hosts."""
    config: str
    """Of SSH's client."""

    def write(self, *lines: str) -> str:
        """A file of hosts."""
        path = self.folder / "hosts.txt"
        path.write_text("\n".join(lines or self.lines) + "\n")
        return str(path)

    def list_left(self) -> list[str]:
        """Command lines of what an SSH server started here and is still there."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("STARTED_BY_TEST") == str(self.folder):
                    found.append(" ".join(process.cmdline()))
            except psutil.Error:
                continue
        return found

    def write_program(self, name: str, *lines: str) -> str:
        """A program for `--remote-python`, with Python for its last line."""
        path = self.folder / name
        path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
        path.chmod(0o755)
        return str(path)

    def set_config(self, patch: pytest.MonkeyPatch, config: str) -> None:
        """Let `ssh` have this configuration in place of the user's."""
        (self.folder / "config").write_text(config)
        programs = self.folder / "bin"
        programs.mkdir(exist_ok=True)
        found = os.environ["PATH"].removeprefix(f"{programs}:")
        ssh = shutil.which("ssh", path=found)
        (programs / "ssh").write_text(f'#!/bin/sh\nexec {ssh} -F {self.folder}/config "$@"\n')
        (programs / "ssh").chmod(0o755)
        patch.setenv("PATH", f"{programs}:{found}")
        patch.setitem(ENVIRONMENT, "PATH", os.environ["PATH"])


@contextmanager
def serve_ssh(folder: Path, hosts: Sequence[Host], environment: Mapping[str, str] | None = None) -> Iterator[Fleet]:
    """Servers on hosts, which let in one key.

    Parameters
    ----------
    environment : of what they start, beside what mgspmv needs to be found
    """
    for name in ("host", "own", "other"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    shutil.copy(folder / "own.pub", folder / "authorized")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    given = {"STARTED_BY_TEST": folder, "PYTHONPATH": ENVIRONMENT["PYTHONPATH"]}
    given |= {"MGSPMV_CACHE": os.environ["MGSPMV_CACHE"], **(environment or {})}
    lines, known = [], []
    with ExitStack() as stack:
        for host in hosts:
            port = find_free_port()
            stack.callback(_end, _start_sshd(folder, host, port, given))
            lines.append(f"{getpass.getuser()}@{host.address}:{port}")
            known.append(f"[{host.address}]:{port} {(folder / 'host.pub').read_text()}")
            assert wait_for(lambda own=(host.address, port): _answers(own)), "the SSH server does not listen"
        (folder / "known").write_text("".join(known))
        config = f"IdentityFile {folder}/own\nUserKnownHostsFile {folder}/known\n"
        yield Fleet(folder, lines, f"{config}IdentitiesOnly yes\nGlobalKnownHostsFile /dev/null\n")


def find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _start_sshd(folder: Path, host: Host, port: int, environment: Mapping[str, object]) -> subprocess.Popen[bytes]:
    config = folder / f"sshd-{host.name}"
    config.write_text(
        f"ListenAddress {host.address}:{port}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\n"
        "StrictModes no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n"
        f"PidFile none\nSetEnv {' '.join(f'{name}={value}' for name, value in environment.items())}\n"
    )
    return subprocess.Popen([SSHD, "-D", "-e", "-f", config], stderr=subprocess.DEVNULL, preexec_fn=host.enter)


def _answers(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, 1).close()
    except OSError:
        return False
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()
