"""Detached runs at the command line: nothing that happens to who started them ends them; the same command goes on."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from distributed import Client

from mgspmv.cli import detaching
from mgspmv.cli.detaching import name_key
from mgspmv.detached import end_run, find_own_place, find_run, list_runs
from tests.support.clusters import find_left
from tests.support.commands import ENVIRONMENT, PROGRAM, TINY_RMAT, invoke, invoke_json
from tests.support.waiting import HANG_S, wait_for

pytestmark = pytest.mark.slow
ENDLESS = ("--tol-mode", "fixed", "--max-iter", "100000000", "--threads", "1")
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("graphs") / "g.zarr"
    invoke("generate", "rmat", str(path), "--scale", "13", "--edge-factor", "8")
    return path


@pytest.fixture(autouse=True)
def folder(graph, tmp_path, monkeypatch):
    """The folder that commands run in; no run is left when the test ends."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.setenv("MGSPMV_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
    monkeypatch.setattr(detaching, "SETTLE_S", 0.2)
    Path("g.zarr").symlink_to(graph)
    yield tmp_path
    for run in list_runs():
        if run.is_live and run.is_here:
            end_run(run, HANG_S)


def detach(*args: str) -> str:
    """Start a run; its id."""
    answer = invoke_json(*args, "--detach")
    assert answer["state"] in ("running", "ended")
    return answer["run"]


def ask(run: str) -> dict:
    [described] = invoke_json("status", run)["runs"]
    return described


def await_iteration(run: str, name: str = "iteration", least: int = 1) -> None:
    assert wait_for(lambda: ask(run)[name] >= least, HANG_S), ask(run)


def begin(*args: str, **options) -> subprocess.Popen:
    """Start the program, in the environment of this test."""
    return subprocess.Popen([*PROGRAM, *args], env=os.environ, text=True, **options)


# --- from the start to the answer ------------------------------------------------------------------------------------


def test_a_run_ends_with_the_answer_of_the_command():
    wanted = invoke_json("pagerank", "g.zarr")
    run = detach("pagerank", "g.zarr", "-o", "ranks.zarr")
    answer = invoke_json("attach", run)
    assert (answer["digest"], answer["changes"], answer["saved"]) == (
        wanted["digest"],
        wanted["changes"],
        ["ranks.zarr"],
    )
    stdout, _ = invoke("attach", run[:5])
    assert "status            converged" in stdout
    assert "saved             ranks.zarr\n" in stdout
    described = ask("last")
    assert (described["run"], described["state"], described["exit_code"]) == (run, "ended", 0)
    assert described["iteration"] == wanted["iterations"]
    assert not find_own_place(find_run(run).asked.key).exists()
    log = [json.loads(line) for line in Path(described["folder"], "log.jsonl").read_text().splitlines()]
    assert "pagerank" in [line.get("call") for line in log]


def test_what_is_said_of_it():
    stdout, stderr = invoke("pagerank", "g.zarr", *ENDLESS, "--detach")
    run = list_runs()[0].asked.run
    assert f"run {run} goes on by itself, as process " in stdout
    assert f"  mgspmv attach {run}   shows it, and gives its answer\n" in stdout
    assert stderr == ""
    assert f" {run}   running " in (listed := invoke("status")[0])
    assert " pagerank g.zarr --tol-mode fixed" in listed
    fields = invoke("status", run)[0]
    assert f"in          {os.getcwd()}\n" in fields
    assert "checkpoint  none yet, they go to " in fields
    stdout, stderr = invoke("pagerank", "g.zarr", *ENDLESS, "--top", "3", "--detach", code=4)
    assert f"error: run {run} on " in stderr
    assert stdout == ""
    await_iteration(run)
    stdout, _ = invoke("cancel", run)
    assert stdout.startswith(f"run {run} is cancelled; to begin again:\n  cd ")
    assert f"cd {os.getcwd()} && mgspmv pagerank g.zarr --tol-mode fixed" in stdout
    assert invoke("cancel", run)[0] == f"run {run} is cancelled already\n"
    assert "error       " not in invoke("status", run)[0]
    assert "interrupted; after " in invoke("attach", run, code=130)[1]


def test_there_are_no_runs():
    assert invoke("status")[0] == "there are no detached runs; --detach makes them\n"
    assert invoke_json("status") == {"runs": []}
    for command in ("status", "attach", "cancel"):
        assert "there is no detached run 'x' in " in invoke(command, "x", code=2)[1]


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["pagerank", "g.zarr", "--alpha", "2"], 2, "alpha must be at least 0 and less than 1"),
        (["pagerank", "g.zarr", "--scheduler", "127.0.0.1:1", "--timeout", "1"], 7, "no Dask scheduler answers at"),
        (["pagerank", "g.zarr", "-o", "-"], 2, "-o - writes ranks to standard output, which a detached run does not"),
        (["run", "none.toml"], 2, "none.toml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_fails_at_once_is_the_answer_of_the_command(monkeypatch, args, code, message):
    monkeypatch.setattr(detaching, "SETTLE_S", 1.0)
    stdout, stderr = invoke(*args, "--detach", code=code)
    assert stdout == ""
    assert message in stderr
    assert list_runs() == []


def test_errors_at_once_are_json_and_secrets_nowhere(monkeypatch):
    monkeypatch.setattr(detaching.shutil, "rmtree", lambda folder: None)  # what had been written is looked at
    asked = ("pagerank", "none.zarr", "--checkpoint", "s3://user:hidden@bucket/c.zarr?token=hidden", "--detach")
    assert invoke_json(*asked, code=4)["error"]["type"] == "StoreNotFoundError"
    described = ask("last")
    assert (described["state"], described["error"]["type"]) == ("failed", "StoreNotFoundError")
    assert described["checkpoint"] == "s3://user:***@bucket/c.zarr?token=***"
    for path in Path(described["folder"]).iterdir():
        assert "hidden" not in path.read_text()


def test_not_converged_is_an_end():
    run = detach("pagerank", "g.zarr", "--max-iter", "2", "-o", "ranks.zarr")
    stdout, stderr = invoke("attach", run, code=5)
    assert "max_iter" in stdout
    assert "error: PageRank ended as max_iter after 2 iterations" in stderr
    assert ask(run)["state"] == "ended"


def test_a_process_that_cannot_begin(monkeypatch):
    monkeypatch.setattr(detaching, "_PROGRAM", "raise SystemExit('there is no room')")
    _, stderr = invoke("pagerank", "g.zarr", "--detach", code=1)
    assert "ended without an answer: there is no room\n" in stderr
    assert ask("last")["state"] == "failed"


def test_the_state_folder_cannot_be_written(monkeypatch):
    Path("file").write_text("")
    monkeypatch.setenv("MGSPMV_STATE", "file")
    assert "name another folder by MGSPMV_STATE" in invoke("pagerank", "g.zarr", "--detach", code=4)[1]


def test_what_makes_commands_the_same():
    given = {"store": "g.zarr", "alpha": 0.85, "scheduler": "a:1", "top": 10, "output": ["r.zarr"]}
    key = name_key("pagerank", given)
    assert key == name_key("pagerank", given | {"scheduler": None, "top": 3})
    others = [given | {"alpha": 0.9}, given | {"store": "h.zarr"}, given | {"output": ["s.zarr"]}]
    assert key not in [name_key("pagerank", other) for other in others] + [name_key("katz", given)]


def test_a_pipeline():
    Path("p.toml").write_text('[matrix.g]\nopen = "g.zarr"\n[run]\n[output]\nfolder = "out"\n')
    run = detach("run", "p.toml")
    stdout, _ = invoke("attach", run)
    assert "g/pagerank" in stdout
    described = ask(run)
    assert described["steps"]["ended"] == described["steps"]["all"] > 0
    assert described["state"] == "ended"


# --- whoever dies ----------------------------------------------------------------------------------------------------


def test_it_goes_on_without_who_started_it():
    command = begin("pagerank", "g.zarr", *ENDLESS, "--detach", **QUIET)
    assert wait_for(lambda: any(run.process for run in list_runs()), HANG_S)
    command.kill()
    command.wait()
    [run] = list_runs()
    assert os.getsid(run.process.pid) == run.process.pid != os.getsid(0)
    await_iteration(run.asked.run)
    os.killpg(run.process.pid, signal.SIGHUP)
    before = ask(run.asked.run)["iteration"]
    await_iteration(run.asked.run, least=before + 1)


def test_an_interrupt_while_it_starts_ends_it():
    command = begin("pagerank", "g.zarr", *ENDLESS, "--detach", **QUIET)
    assert wait_for(lambda: any(run.process for run in list_runs()), HANG_S)
    command.send_signal(signal.SIGINT)
    if command.wait(HANG_S) == 130:  # else it was done
        assert ask("last")["state"] == "cancelled"


def test_a_checkpoint_of_the_user_where_interrupts_were_ignored():
    """As by a shell that starts something in the background."""
    asked = ("pagerank", "g.zarr", *ENDLESS, "--checkpoint", "c.zarr", "--checkpoint-every", "0.1")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        run = detach(*asked)
    finally:
        signal.signal(signal.SIGINT, before)
    await_iteration(run, "checkpoint_iteration")
    cancelled = invoke_json("cancel", run, "--timeout", str(HANG_S))
    assert (cancelled["state"], cancelled["checkpoint"], cancelled["error"]) == ("cancelled", "c.zarr", None)
    assert cancelled["again"].endswith("--checkpoint-every 0.1 --detach --json --resume")
    assert Path("c.zarr").exists()


LONG = ("--tol-mode", "fixed", "--max-iter", "60000", "--threads", "1")
"""Many times what they make until they are struck, however late that is seen on a busy machine."""
OFTEN = ("--checkpoint-every", "0.1")


@pytest.fixture(scope="module")
def wanted(graph) -> dict:
    """What runs of so many iterations end with."""
    return invoke_json("pagerank", str(graph), *LONG)


def test_a_killed_run_goes_on(wanted):
    run = detach("pagerank", "g.zarr", *LONG, *OFTEN)
    await_iteration(run, "checkpoint_iteration")
    os.killpg(find_run(run).process.pid, signal.SIGKILL)
    _, stderr = invoke("attach", run, code=1)
    lost = f"error: run {run} is lost: its process is gone and did not say how it ended; its last checkpoint is of "
    assert stderr.startswith(lost)
    assert ask(run)["state"] == "lost"
    again = detach("pagerank", "g.zarr", *LONG, *OFTEN)
    answer = invoke_json("attach", again)
    assert (answer["digest"], answer["changes"]) == (wanted["digest"], wanted["changes"])
    assert 0 < answer["resumed_after"] < 60000
    assert not find_own_place(find_run(run).asked.key).exists()


def test_a_matrix_that_changed_meanwhile():
    invoke(*TINY_RMAT)
    asked = ("pagerank", "r.zarr", *ENDLESS, "--checkpoint-every", "0.1")
    run = detach(*asked)
    await_iteration(run, "checkpoint_iteration")
    invoke("cancel", run)
    invoke(*TINY_RMAT, "--seed", "2", "--overwrite")
    again = detach(*asked)
    await_iteration(again)
    assert "begins with the first iteration: the checkpoint in " in Path(ask(again)["folder"], "said").read_text()


# --- attach ----------------------------------------------------------------------------------------------------------


def test_several_attach_and_an_interrupt_leaves_it():
    run = detach("pagerank", "g.zarr", *ENDLESS)
    terminal, stderr = pty.openpty()
    waiting = begin("attach", run, "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with begin("attach", run, stdout=subprocess.DEVNULL, stderr=stderr) as process:
        os.close(stderr)
        shown = read_until(terminal, "iterate  change")
        process.send_signal(signal.SIGINT)
        shown += read_until(terminal, "ends it")
        assert process.wait(HANG_S) == 130
    os.close(terminal)
    assert f"interrupted; run {run} goes on; `mgspmv attach {run}` shows it again" in " ".join(shown.split())
    assert ask(run)["state"] == "running"
    assert waiting.poll() is None
    invoke("cancel", run)
    stdout, stderr = waiting.communicate(timeout=HANG_S)
    assert waiting.returncode == 130
    assert json.loads(stdout) == {}
    assert "interrupted; after " in stderr


def read_until(terminal: int, sign: str) -> str:
    shown = ""
    while sign not in shown:
        shown += os.read(terminal, 100_000).decode(errors="replace")
    return shown


# --- clusters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["it starts", "it iterates"])
def test_cancelled_runs_leave_nothing_on_a_cluster(cluster, client, moment):
    left = find_left(client)
    asked = ("pagerank", "g.zarr", "--scheduler", cluster.scheduler_address, *ENDLESS)
    with begin(*asked, "--detach", **QUIET):
        if moment == "it starts":
            assert wait_for(lambda: find_left(client) - left, HANG_S)
        else:
            assert wait_for(lambda: any(run.stage.iteration for run in list_runs()), HANG_S)
        assert invoke_json("cancel", "last")["state"] == "cancelled"
    assert wait_for(lambda: find_left(client) <= left)


def test_a_cluster_knows_its_runs(cluster, client):
    on_cluster = ("--scheduler", cluster.scheduler_address)
    invoke_json("pagerank", "g.zarr", *on_cluster)
    known = invoke_json("status", *on_cluster)["runs"]
    assert (known[0]["operation"], known[0]["state"], known[0]["workers"]) == ("pagerank", "converged", 4)
    assert known[0]["matrix"].endswith("g.zarr")
    assert " converged   pagerank " in invoke("status", *on_cluster)[0]
    assert "leave one of them out" in invoke("status", "last", *on_cluster, code=2)[1]


def test_workers_of_its_own_end_with_it():
    asked = ("pagerank", "g.zarr", "--cluster", "local", "--workers", "1", *ENDLESS)
    assert begin(*asked, "--detach", **QUIET).wait(HANG_S) == 0  # a child of this process would have to be waited for
    run = list_runs()[0].asked.run
    await_iteration(run)
    group = find_run(run).process.pid
    assert invoke_json("cancel", run)["state"] == "cancelled"
    assert wait_for(lambda: not is_there(group))


def is_there(group: int) -> bool:
    """Whether a process group has processes."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def start_foreign():
    """`start_foreign()` starts a cluster of one worker that is nobody's, and gives address and scheduler."""
    started = []

    def start() -> tuple[str, subprocess.Popen]:
        file = Path(f"scheduler-{len(started)}.json").absolute()
        for module, *options in (
            ("dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"),
            ("dask_worker", "--nthreads", "1", "--memory-limit", "0", "--no-dashboard", "--no-nanny"),
        ):
            command = [sys.executable, "-m", f"distributed.cli.{module}", "--scheduler-file", str(file), *options]
            started.append(subprocess.Popen(command, **QUIET))
        assert wait_for(lambda: file.exists() and file.read_text().endswith("}"), HANG_S)
        address = json.loads(file.read_text())["address"]
        with Client(address, set_as_default=False) as client:
            client.wait_for_workers(1, timeout=HANG_S)
        return address, started[-2]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_scheduler_that_dies(wanted, start_foreign):
    address, scheduler = start_foreign()
    run = detach("pagerank", "g.zarr", *LONG, *OFTEN, "--scheduler", address)
    await_iteration(run, "checkpoint_iteration")
    scheduler.kill()
    invoke("attach", run, code=7)
    described = ask(run)
    assert (described["state"], described["error"]["type"]) == ("failed", "SchedulerNotFoundError")
    assert "mgspmv pagerank g.zarr" in described["again"]
    address, _ = start_foreign()
    again = detach("pagerank", "g.zarr", *LONG, *OFTEN, "--scheduler", address)
    answer = invoke_json("attach", again)
    assert (answer["digest"], answer["changes"]) == (wanted["digest"], wanted["changes"])
    assert answer["resumed_after"] > 0
