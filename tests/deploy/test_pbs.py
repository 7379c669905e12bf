"""The batch script of PBS, with a stand-in for `pbs_tmrsh` that runs commands in an empty environment."""

from __future__ import annotations

import os
import re
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
OPTIONS = {
    "N": r"[A-Za-z][\w.+-]{0,229}",
    "A": r"\S+",
    "P": r"\S+",
    "q": r"\S+",
    "r": "[yn]",
    "j": "oe|eo|n",
    "m": "n|[abej]+",
}
"""Of `qsub`, with what each takes; beside them there is `-l`."""
SIZE = r"[1-9]\d*([kmgtp]?[bw])?"
COUNT = r"[1-9]\d*"
CHUNK = {"ncpus": COUNT, "ngpus": COUNT, "mpiprocs": COUNT, "ompthreads": COUNT, "mem": SIZE, "vmem": SIZE}
"""What a chunk of `select` may ask for."""
RESOURCES = {
    "place": r"(free|pack|scatter|vscatter)(:(excl|exclhost|shared))?(:group=\w+)?",
    "walltime": r"(\d+:[0-5]\d:|[0-5]?\d:)?[0-5]\d|[1-9]\d*",
}
"""What a job as a whole may ask for, beside `select`."""
FLAWS = {
    "option": ("#PBS -r y", "#PBS -y y", "-y"),
    "word": ("#PBS -N mgspmv", "#PSB -N mgspmv", "#PSB"),
    "place": ("scatter:excl", "scater:excl", "scater"),
    "walltime": ("walltime=01:00:00", "walltime=soon", "soon"),
    "memory": ("mem=64gb", "mem=64GiB", "64GiB"),
    "resource of a chunk": ("ncpus=16", "ncpu=16", "ncpu"),
    "too late": ("set -euo pipefail", "set -euo pipefail\n#PBS -r n", "after the first command"),
}
"""What is right, what is wrong, and a word that is said of it."""


def list_faults(text: str) -> list[str]:
    """Return faults in a script's directives that PBS would refuse or ignore."""
    faults, is_begun = [], False
    for line in text.splitlines()[1:]:
        is_begun |= bool(line) and not line.startswith("#")
        if not re.match(r"#\w", line):
            continue
        directive = re.fullmatch(r"#PBS -(\w) (\S+)", line)
        if directive is None:
            faults.append(f"{line!r} is no directive")
        elif is_begun:
            faults.append(f"{line!r} is after the first command")
        elif directive[1] == "l":
            faults += [fault for each in directive[2].split(",") for fault in list_faults_of(each)]
        else:
            faults += match(f"-{directive[1]}", OPTIONS.get(directive[1]), directive[2])
    return faults


def list_faults_of(resource: str) -> list[str]:
    """The same of one resource of a job."""
    name, _, value = resource.partition("=")
    if name != "select":
        return match(name, RESOURCES.get(name), value)
    faults = []
    for chunk in value.split("+"):
        first, *rest = chunk.split(":")
        asked = rest if "=" not in first else [first, *rest]
        faults += [] if "=" in first else match("chunks", COUNT, first)
        for each in asked:
            name, _, amount = each.partition("=")
            faults += match(name, CHUNK.get(name), amount)
    return faults


def match(name: str, pattern: str | None, value: str) -> list[str]:
    if pattern is None:
        return [f"{name} is not known"]
    return [] if re.fullmatch(pattern, value) else [f"{name} takes no {value!r}"]


def test_its_directives_are_those_of_pbs():
    text = SCRIPT.read_text()
    assert text.count("\n#PBS -") == 6
    assert list_faults(text) == []
    for right, wrong, message in FLAWS.values():
        at = text.index(right, 0 if right.startswith(("#", "set")) else text.index("\n#PBS"))
        [fault] = list_faults(text[:at] + wrong + text[at + len(right) :])
        assert message in fault


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
    assert "wanted a command, such as: qsub -v MGSPMV_COMMAND=" in said
