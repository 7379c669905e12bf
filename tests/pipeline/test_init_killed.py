"""SIGKILL at any step: the next run goes on, ends with the same, and makes nothing again that was finished."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import ENVIRONMENT
from tests.support.definitions import THREE, digest_output, write_definition
from tests.support.waiting import HANG_S

SCRIPT = Path(__file__).parents[1] / "support" / "killed.py"


@pytest.fixture
def runner():
    """`runner(folder, limit)` runs the pipeline into a folder until it was about to make so many changes."""
    write_definition(THREE.replace('folder = "out"', 'folder = "${FOLDER:-out}"'))
    started: dict[str, subprocess.Popen] = {}

    def run(folder: str, limit: int) -> str:
        if folder not in started:
            command = [sys.executable, str(SCRIPT), "p.toml"]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
            started[folder] = subprocess.Popen(command, env=ENVIRONMENT | {"FOLDER": folder}, **pipes)
        child = started[folder]
        child.stdin.write(f"{limit}\n")
        return child.stdout.readline().strip()

    yield run
    for child in started.values():
        child.stdin.close()
        child.stdout.close()
        child.wait(HANG_S)


def read_steps(folder: str) -> dict[str, dict]:
    steps = Path(folder, ".mgspmv", "steps")
    return {str(path.relative_to(steps)): json.loads(path.read_text()) for path in sorted(steps.rglob("*.json"))}


def find_digests(folder: str) -> dict[str, str]:
    """Of all results, by what they hold now; of stores by what they say of themselves."""
    outputs = [output for record in read_steps(folder).values() for output in record["outputs"]]
    held = {}
    for output in outputs:
        path = Path(output["path"])
        held[str(path.relative_to(folder))] = output["digest"]
        if path.suffix != ".zarr":
            assert digest_output(path) == output["digest"]
    return held


@pytest.mark.slow
def test_killed_at_any_step(runner):
    n_changes, is_success = runner("whole", 0).split()
    assert is_success == "True"
    expected = find_digests("whole")
    assert len(expected) == 3 + 12 * 3
    for stride, more in ((10, 17), (int(n_changes) // 5, 5)):
        folder, finished, n_killed = f"out{stride}", {}, 0
        while (answer := runner(folder, stride)) == "killed":
            n_killed += 1
            steps = read_steps(folder)
            assert {name: steps[name] for name in finished} == finished
            finished = steps
            stride += more  # for later steps take more than the first children get
        assert answer.endswith("True")
        assert n_killed >= 3
        assert find_digests(folder) == expected
        assert {name: read_steps(folder)[name] for name in finished} == finished
        assert not [path for path in Path(folder).rglob("*.part") if ".mgspmv" not in path.parts]
        assert runner(folder, 0) == "0 True"  # nothing is written
