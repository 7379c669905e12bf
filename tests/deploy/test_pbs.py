"""The batch script of PBS, with a stand-in for `pbs_tmrsh` that runs commands in an empty environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import mgspmv as mg
from tests.support.commands import ENVIRONMENT, invoke
from tests.support.waiting import HANG_S

SCRIPT = Path(__file__).parents[2] / "deploy" / "pbs" / "mgspmv.pbs"
DIRECTIVES = [
    "-N mgspmv",
    "-l select=2:ncpus=16:mem=64gb",
    "-l place=scatter:excl",
    "-l walltime=01:00:00",
    "-r y",
    "-j oe",
]
"""As the manual of `qsub` has them."""


def test_its_directives_come_before_its_first_command():
    lines = SCRIPT.read_text().splitlines()
    begin = next(k for k, line in enumerate(lines) if line and not line.startswith("#"))
    assert [line.removeprefix("#PBS ") for line in lines[:begin] if line.startswith("#PBS")] == DIRECTIVES
    assert not [line for line in lines[begin:] if line.startswith("#PBS")]


def run(folder: Path, command: str) -> tuple[int, str]:
    """The script as PBS runs it, on two nodes that are this machine; its exit code and what it said."""
    (folder / "bin").mkdir()
    shell = folder / "bin" / "pbs_tmrsh"
    shell.write_text('#!/bin/bash\nshift\nexec env --ignore-environment HOME="$HOME" "$@"\n')
    shell.chmod(0o755)
    (folder / "nodes").write_text("n1\nn1\nn2\nn2\n")
    environment = ENVIRONMENT | {
        "PATH": f"{folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PBS_O_WORKDIR": str(folder),
        "PBS_JOBID": "17.played",
        "PBS_NODEFILE": str(folder / "nodes"),
        "NCPUS": "1",
        "MGSPMV_COMMAND": command,
    }
    with subprocess.Popen(
        ["bash", SCRIPT], env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        code = process.wait(HANG_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # as PBS does
        return code, process.stderr.read()


@pytest.mark.weekly
def test_a_command_on_two_nodes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    invoke("generate", "rmat", "web.zarr", "--scale", "9", "--edge-factor", "8", "--quiet")
    code, said = run(tmp_path, "pagerank web.zarr -o ranks.zarr")
    assert code == 0, said
    assert "start on n1 n2, 1 workers on each node" in said
    assert mg.load_solution("ranks.zarr").digest() == mg.pagerank(mg.open_matrix("web.zarr")).digest()
    assert not list(tmp_path.glob(".mgspmv-*"))


def test_without_a_command_it_says_what_is_wanted(tmp_path):
    code, said = run(tmp_path, "")
    assert code == 2
    assert "expected a command, such as: qsub -v MGSPMV_COMMAND=" in said
