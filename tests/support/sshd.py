"""An SSH server of the tests' own on this machine, which lets in one key."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.commands import ENVIRONMENT
from tests.support.ports import find_free_port, is_open
from tests.support.waiting import wait_for

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin") or "sshd"
"""A path, which it asks for."""
needs_sshd = pytest.mark.external("sshd", "ssh-keygen")


@dataclass(frozen=True)
class Server:
    """One that runs."""

    folder: Path
    connect_options: dict[str, Any]
    """Of `asyncssh.connect`, by which it lets in this user."""

    def list_left(self) -> list[str]:
        """Command lines of what it started and is still there."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("STARTED_BY_TEST") == str(self.folder):
                    found.append(" ".join(process.cmdline()))
            except psutil.Error:
                continue
        return found


@contextmanager
def serve_ssh(folder: Path) -> Iterator[Server]:
    """Start the server, and end it."""
    for name in ("host", "own"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    port = find_free_port()
    given = {"STARTED_BY_TEST": folder, "PYTHONPATH": ENVIRONMENT["PYTHONPATH"]}
    given["MGSPMV_CACHE"] = os.environ["MGSPMV_CACHE"]
    (folder / "sshd").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/own.pub\n"
        "StrictModes no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n"
        f"PidFile none\nSetEnv {' '.join(f'{name}={value}' for name, value in given.items())}\n"
    )
    (folder / "known").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    options = {"port": port, "username": getpass.getuser(), "client_keys": [str(folder / "own")]}
    process = subprocess.Popen([SSHD, "-D", "-e", "-f", folder / "sshd"], stderr=subprocess.DEVNULL)
    try:
        assert wait_for(lambda: is_open(port)), "the SSH server does not listen"
        yield Server(folder, options | {"known_hosts": str(folder / "known")})
    finally:
        process.terminate()
        process.wait()
