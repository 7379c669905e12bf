"""The batch script of PBS, with `pbs_tmrsh` played: it runs what it is told in an environment that has nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from commands import ENVIRONMENT, invoke

import mgspmv as mg

SCRIPT = Path(__file__).parents[2] / "deploy" / "pbs" / "mgspmv.pbs"


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
        code = process.wait(120)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # as PBS does
        return code, process.stderr.read()


@pytest.mark.exhaustive
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
    assert "wanted a command, such as: qsub -v MGSPMV_COMMAND=" in said
