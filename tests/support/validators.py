"""Validators of files that the extra `test` installs."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

from tests.support.waiting import HANG_S

CONFIG = Path(__file__).parents[2] / "deploy" / "yamllint.yaml"


def run_program(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program of the extra `test`."""
    program = Path(sysconfig.get_path("scripts"), name)
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=HANG_S)


def lint(*paths: Path) -> subprocess.CompletedProcess[str]:
    """Check YAML files; messages are on stdout."""
    return run_program("yamllint", "--strict", "--config-file", CONFIG, *paths)
