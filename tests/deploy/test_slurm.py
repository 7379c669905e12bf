"""The batch script of Slurm, queued by a real one: requeued in the middle it goes on to the ranks of a run alone."""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support.commands import invoke, invoke_json
from tests.support.slurm import Slurm, needs_slurm, start_slurm
from tests.support.waiting import HANG_S, wait_for

SCRIPT = Path(__file__).parents[2] / "deploy" / "slurm" / "mgspmv.sbatch"
RANKED = ("pagerank", "web.zarr", "--norm", "fixed", "--max-iter")
KEPT = (
    *("-o", "ranks.zarr", "--overwrite", "--checkpoint", "run.zarr"),
    *("--checkpoint-every", "0", "--resume", "--json"),
)
FLAWS = {
    "unknown option": ("--exclusive", "--exclusively", "unrecognized option"),
    "no number": ("--nodes=2", "--nodes=two", "is not a valid node count"),
    "no time": ("--time=01:00:00", "--time=soon", "Invalid"),
    "too many nodes": ("--nodes=2", "--nodes=3", "Requested node configuration is not available"),
}
"""What is right, what is wrong, and what Slurm says then."""
pytestmark = needs_slurm


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with start_slurm(tmp_path_factory.mktemp("slurm")) as started:
        yield started


@pytest.fixture
def web(tmp_path, monkeypatch) -> Path:
    """A folder with a graph, which is the current one."""
    monkeypatch.chdir(tmp_path)
    invoke("generate", "rmat", "web.zarr", "--scale", "9", "--edge-factor", "8", "--quiet")
    return tmp_path


def list_left(folder: Path) -> list[str]:
    """Processes that have a file of the job's folder among their words."""
    lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if f"{folder}/.mgspmv-" in line]


def await_end(slurm: Slurm, job: int, folder: Path) -> tuple[str, str]:
    """How a job ended, and what it said."""
    said = folder / f"mgspmv-{job}.out"
    has_ended = wait_for(lambda: slurm.find(job)["JobState"] in ("COMPLETED", "FAILED", "TIMEOUT"), HANG_S)
    assert has_ended, f"{slurm.find(job)}\n{said.read_text()}"
    assert not list(folder.glob(".mgspmv-*"))
    assert wait_for(lambda: not list_left(folder)), list_left(folder)
    return slurm.find(job)["JobState"], said.read_text()


def has_checkpoint() -> bool:
    with suppress(OSError):  # older ones go
        return any('"mgspmv_state"' in path.read_text() for path in Path().glob("run.zarr/states/s*/zarr.json"))
    return False


def check_gone_on(said: str, n_iterations: int) -> None:
    """Fail unless it went on from a checkpoint, on both nodes, to the ranks of a run alone."""
    [answer] = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert 0 < answer["resumed_after"] < answer["iterations"] == n_iterations
    assert answer["matrix"]["hardware"].startswith("2 workers of ")
    assert answer["digest"] == invoke_json(*RANKED, str(n_iterations))["digest"]


def test_a_job_that_is_requeued_goes_on(slurm, web):
    job = slurm.submit(SCRIPT, *RANKED, "4000", *KEPT, cwd=web)
    assert wait_for(has_checkpoint, HANG_S), (web / f"mgspmv-{job}.out").read_text()
    slurm.ask("scancel", "--batch", "--signal=USR1", str(job))  # as Slurm does by itself before the time is over
    assert wait_for(lambda: slurm.find(job)["Restarts"] == "1", HANG_S), slurm.find(job)
    state, said = await_end(slurm, job, web)
    assert state == "COMPLETED", said
    assert "the job is requeued and resumes" in said
    check_gone_on(said, 4000)


@pytest.mark.weekly
def test_a_job_whose_time_is_over_goes_on(slurm, web):
    options = ("--time=1", "--signal=B:USR1@20")
    job = slurm.submit(*options, SCRIPT, *RANKED, "60000", *KEPT, cwd=web)
    assert wait_for(lambda: slurm.find(job)["Restarts"] != "0", HANG_S), slurm.find(job)
    slurm.ask("scontrol", "update", f"JobId={job}", "TimeLimit=10")
    state, said = await_end(slurm, job, web)
    assert state == "COMPLETED", said
    check_gone_on(said, 60000)


def test_a_job_that_fails_ends_with_the_exit_code_of_its_command(slurm, web):
    job = slurm.submit("--nodes=1", SCRIPT, "pagerank", "none.zarr", cwd=web)
    state, said = await_end(slurm, job, web)
    assert (state, slurm.find(job)["ExitCode"]) == ("FAILED", "4:0"), said
    assert "none.zarr" in said


def test_a_job_without_a_command_says_what_is_wanted(slurm, tmp_path):
    job = slurm.submit(SCRIPT, cwd=tmp_path)
    state, said = await_end(slurm, job, tmp_path)
    assert (state, slurm.find(job)["ExitCode"]) == ("FAILED", "2:0"), said
    assert "expected a command, such as: sbatch mgspmv.sbatch pagerank" in said


def check_directives(slurm: Slurm, text: str, folder: Path) -> str:
    """What Slurm says of a script that it is not to queue."""
    (folder / "script").write_text(text)
    command = ["sbatch", "--test-only", folder / "script"]
    done = subprocess.run(command, env=slurm.environment, capture_output=True, text=True, timeout=HANG_S)
    return done.stderr if done.returncode else ""


def test_its_directives_are_valid(slurm, tmp_path):
    text = SCRIPT.read_text()
    assert check_directives(slurm, text, tmp_path) == ""
    for right, wrong, message in FLAWS.values():
        assert text.count(f"#SBATCH {right}\n") == 1
        assert message in check_directives(slurm, text.replace(f"#SBATCH {right}\n", f"#SBATCH {wrong}\n"), tmp_path)
