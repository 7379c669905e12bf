"""Checkpoints at the command line: whatever ends a run, the next one goes on and ends with the same ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mgspmv.checkpoints import Checkpoints
from mgspmv.results import load_solution
from tests.support.commands import ENVIRONMENT, PROGRAM, TINY_RMAT, invoke, invoke_json
from tests.support.waiting import HANG_S, wait_for

SCRIPT = Path(__file__).parents[1] / "support" / "killed_ranking.py"


@pytest.fixture
def runner():
    """`runner(*args)` gives what runs a command until it was about to make so many changes."""
    started = []

    def begin(*args: str):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        child = subprocess.Popen([sys.executable, str(SCRIPT), *args], env=ENVIRONMENT, bufsize=1, **pipes)
        started.append(child)

        def run(limit: int) -> str:
            child.stdin.write(f"{limit}\n")
            return child.stdout.readline().strip()

        return run

    yield begin
    for child in started:
        child.stdin.close()
        child.stdout.close()
        child.wait()


def list_options(*more: str) -> list[str]:
    return ["pagerank", "r.zarr", "--checkpoint", "c.zarr", "--checkpoint-every", "0", "--overwrite", *more]


def test_a_run_goes_on_where_it_was():
    invoke(*TINY_RMAT)
    whole = invoke_json("pagerank", "r.zarr")
    answer = invoke_json(*list_options("--max-iter", "5"), code=5)
    assert answer["resumed_after"] == 0
    stdout, stderr = invoke(*list_options("--resume", "-o", "ranks.zarr"))
    assert "resuming after iteration 5 from the checkpoint in c.zarr\n" in stderr
    assert "resumed after     5 iterations of an earlier run\n" in stdout
    solution = load_solution("ranks.zarr")
    assert (solution.digest(), solution.iterations) == (whole["digest"], whole["iterations"])
    assert (list(solution.changes), solution.resumed_after) == (whole["changes"], 5)
    assert len(solution.events) == solution.iterations - 5
    again = invoke_json(*list_options("--resume", "-o", "ranks.zarr"))
    assert (again["digest"], again["resumed_after"]) == (whole["digest"], whole["iterations"])
    assert again["edges_per_s"] == 0


def test_without_a_checkpoint_it_begins():
    invoke(*TINY_RMAT)
    _, stderr = invoke(*list_options("--resume"))
    assert "no checkpoint in c.zarr; starting from the first iteration\n" in stderr
    _, stderr = invoke(*list_options("--resume", "--quiet"))
    assert stderr == ""


def test_another_run_is_refused_in_a_line():
    invoke(*TINY_RMAT)
    invoke(*list_options("--alpha", "0.9"))
    _, stderr = invoke(*list_options("--resume"), code=4)
    assert "c.zarr is of another run: it has --alpha 0.9, not --alpha 0.85; pass the same arguments" in stderr
    _, stderr = invoke("pagerank", "r.zarr", "--resume", code=2)
    assert "--resume needs the place of the checkpoints; add --checkpoint" in stderr
    _, stderr = invoke("pagerank", "r.zarr", "--checkpoint-every", "3", code=2)
    assert "--checkpoint-every needs the place of the checkpoints; add --checkpoint" in stderr


def test_plan_counts_the_copy():
    invoke(*TINY_RMAT)
    assert invoke_json("plan", "r.zarr")["workers"][0]["copy_bytes"] == 0
    assert invoke_json("plan", "r.zarr", "--checkpoint")["workers"][0]["copy_bytes"] == 3 * 8 * 64
    assert "host memory of a worker for --checkpoint" in invoke("plan", "r.zarr", "--checkpoint")[0]


def find_reached() -> int:
    """Iterations of the last state that is whole."""
    restored = Checkpoints("c.zarr").restore() if Path("c.zarr", "zarr.json").exists() else None
    return 0 if restored is None else restored.reached.iteration


@pytest.mark.slow
def test_killed_again_and_again(runner):
    invoke(*TINY_RMAT)
    whole = invoke_json("pagerank", "r.zarr")
    run, seen, limit = runner(*list_options("--resume", "-o", "ranks.zarr")), [], 60
    while (answer := run(limit)) == "killed":
        seen.append(find_reached())
        limit += 70
    assert answer.endswith("000")
    assert len(seen) >= 3
    assert seen == sorted(seen)
    assert seen[-1] > seen[0] > 0
    assert load_solution("ranks.zarr").digest() == whole["digest"]
    assert len([path for path in Path("c.zarr", "states").iterdir() if path.is_dir()]) == 2


@pytest.mark.slow
def test_a_killed_cluster():
    invoke(*TINY_RMAT)
    asked = ["--norm", "fixed", "--max-iter", "4000"]
    whole = invoke_json("pagerank", "r.zarr", *asked)
    command = list_options(*asked, "--cluster", "local", "--workers", "2")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    child = subprocess.Popen([*PROGRAM, *command], env=ENVIRONMENT, start_new_session=True, **quiet)

    def has_states() -> bool:
        assert child.poll() is None
        return len(list(Path("c.zarr", "states").glob("s*/zarr.json"))) > 1

    assert wait_for(has_states, HANG_S)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    answer = invoke_json(*list_options(*asked, "--resume"))
    assert 0 < answer["resumed_after"] < answer["iterations"] == 4000
    assert (answer["digest"], answer["changes"]) == (whole["digest"], whole["changes"])
