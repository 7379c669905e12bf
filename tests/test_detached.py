"""The folder of a detached run: what it says, whoever dies and whatever is torn."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from mgspmv.detached import (
    KEPT_S,
    SILENT_S,
    START_S,
    Asked,
    End,
    Progress,
    Stage,
    begin_run,
    end_run,
    find_own_place,
    find_run,
    forget_old,
    list_runs,
    read_run,
    write,
)
from mgspmv.errors import OptionError, RunBusyError, StoreError
from mgspmv.processes import Process, find_birth, find_state_folder
from tests.support.waiting import HANG_S


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("MGSPMV_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def ask(run="1f0c9a2e", key="k", age_s=0.0, **fields) -> Asked:
    given = {"command": "pagerank", "args": ("pagerank", "g.zarr"), "cwd": "/data", "host": platform.node()}
    return Asked(run=run, key=key, began=time.time() - age_s, version="0.1.0", **given | fields)


@pytest.fixture
def process():
    """A process in a session of its own, which ends at SIGINT."""
    command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "start_new_session": True}
    with subprocess.Popen(command, **options) as started:
        started.stdout.readline()
        yield started
        started.kill()


def tell_process(folder: Path, pid: int) -> None:
    write(folder, Process(pid, find_birth(pid)))


def find_state(folder: Path) -> str:
    return read_run(folder).state


def test_the_folder_is_named_by_the_environment(state, monkeypatch):
    assert find_state_folder() == state
    monkeypatch.delenv("MGSPMV_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", "/x")
    assert find_state_folder() == Path("/x/mgspmv")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/h")
    assert find_own_place("k") == Path("/h/.local/state/mgspmv/checkpoints/k")


def test_only_the_user_may_read(state):
    folder = begin_run(ask())
    assert [stat.S_IMODE(path.stat().st_mode) for path in (state, state / "runs", folder)] == [0o700] * 3


def test_what_is_told_is_read_again():
    asked = ask(checkpoint="c.zarr")
    folder = begin_run(asked)
    told = Progress(time.time(), True, {"": Stage("iterate", iteration=7, change=1e-3, kept=5)}, None, 0)
    end = End(0, time.time(), "ranks", {"digest": "d"})
    for value in (Process(1, None), told, end):
        write(folder, value)
    run = read_run(folder)
    assert (run.asked, run.process, run.progress, run.end) == (asked, Process(1, None), told, end)
    assert run.stage == told.stages[""]


def test_states(process):
    folder = begin_run(ask())
    assert find_state(folder) == "starting"
    tell_process(folder, process.pid)
    assert find_state(folder) == "starting"
    write(folder, Progress(time.time(), is_on=True))
    assert find_state(folder) == "running"
    process.kill()
    process.wait()
    assert find_state(folder) == "lost"


@pytest.mark.parametrize(("code", "wanted"), [(0, "ended"), (5, "ended"), (130, "cancelled"), (7, "failed")])
def test_states_of_what_has_ended(code, wanted):
    folder = begin_run(ask())
    write(folder, End(code, time.time(), "", {}))
    assert find_state(folder) == wanted


def test_a_process_that_never_came():
    assert find_state(begin_run(ask(age_s=START_S + 1))) == "lost"


def test_a_process_that_nobody_asked_how_it_ended(process):
    folder = begin_run(ask())
    tell_process(folder, process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{process.pid}").exists()
    assert find_state(folder) == "lost"


def test_a_folder_that_was_removed():
    folder = begin_run(ask())
    run = read_run(folder)
    shutil.rmtree(folder)
    assert (run.state, run.look_again().state) == ("starting", "lost")


def test_another_process_with_the_same_number(process):
    """It is not taken for the run, and not ended with it."""
    folder = begin_run(ask())
    write(folder, Process(process.pid, "another boot 17"))
    assert find_state(folder) == "lost"
    end_run(read_run(folder), 0.1)
    assert process.poll() is None


def test_another_host_is_known_by_what_it_writes():
    folder = begin_run(ask(host="elsewhere", age_s=SILENT_S + 9))
    assert find_state(folder) == "lost"
    write(folder, Progress(time.time(), is_on=True))
    run = read_run(folder)
    assert run.state == "running"
    with pytest.raises(OptionError, match="is on elsewhere, where alone it can be cancelled"):
        end_run(run, 1)


@pytest.mark.parametrize("name", ["process", "progress", "end", "asked"])
def test_torn_files_are_not_there(name):
    folder = begin_run(ask())
    for content in (b"", b'{"at": 1, "is', b"[]", b'{"at": "x"}', b"\xff\xfe"):
        (folder / f"{name}.json").write_bytes(content)
        run = read_run(folder)
        if name == "asked":
            assert run is None, content
            assert list_runs() == [], content
        else:
            found = (run.state, run.process, run.progress, run.end)
            assert found == ("starting", None, Progress(), None), content


def test_readers_never_see_half_a_file():
    folder = begin_run(ask())
    stages = {f"step {k}": Stage("iterate", iteration=k) for k in range(300)}
    write(folder, Progress(1.0, True, stages))
    ends = threading.Event()

    def write_on():
        while not ends.is_set():
            write(folder, Progress(1.0, True, stages))

    writer = threading.Thread(target=write_on)
    writer.start()
    try:
        assert all(len(read_run(folder).progress.stages) == 300 for _ in range(50))
    finally:
        ends.set()
        writer.join(HANG_S)


def test_runs_are_found_by_their_beginning():
    folders = [begin_run(ask(run, key=run, age_s=age)) for run, age in (("ab12", 30), ("ab34", 10), ("cd56", 20))]
    assert [run.asked.run for run in list_runs()] == ["ab34", "cd56", "ab12"]
    assert find_run("c").folder == folders[2]
    assert find_run("ab1").folder == folders[0]
    assert find_run("last").folder == folders[1]
    with pytest.raises(OptionError, match="several detached runs begin with 'ab': ab34, ab12"):
        find_run("ab")
    for name in ("x", ""):
        with pytest.raises(OptionError, match=f"there is no detached run '{name}'"):
            find_run(name)


def test_there_are_none():
    assert list_runs() == []
    with pytest.raises(OptionError, match="there is no detached run 'last'"):
        find_run("last")


def test_the_same_is_not_computed_twice_at_a_time():
    folder = begin_run(ask())
    with pytest.raises(RunBusyError, match=r"run 1f0c9a2e on .* computes the same; `mgspmv attach 1f0c9a2e` shows it"):
        begin_run(ask("2"))
    begin_run(ask("3", key="another"))
    write(folder, End(0, time.time(), "", {}))
    assert begin_run(ask("2")).name == "2"


def test_several_begin_the_same_at_the_same_time():
    begun, all_are_here = [], threading.Barrier(8)

    def begin(name):
        all_are_here.wait(HANG_S)
        with suppress(RunBusyError):
            begun.append(begin_run(ask(name)))

    threads = [threading.Thread(target=begin, args=(f"r{k}",)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert len(begun) == len(list_runs()) == 1


def test_a_folder_that_cannot_be_written(state):
    state.write_text("")
    with pytest.raises(StoreError, match=r"detached runs cannot be kept in .*; name another folder by MGSPMV_STATE"):
        begin_run(ask())


def test_old_runs_are_forgotten():
    old = KEPT_S + 9
    for name in ("lone", "both"):
        find_own_place(name).mkdir(parents=True)
    for run, key, age in (("a", "lone", old), ("b", "both", old), ("c", "both", 9), ("d", "other", old)):
        folder = begin_run(ask(run, key=key, age_s=START_S + 9, has_own_place=True))
        write(folder, replace(ask(run, key=key, age_s=age, has_own_place=True)))
    write(folder, End(0, time.time() - 9, "", {}))
    forget_old()
    assert {run.asked.run for run in list_runs()} == {"c", "d"}
    assert (find_own_place("lone").exists(), find_own_place("both").exists()) == (False, True)


def test_a_run_is_interrupted(process):
    folder = begin_run(ask())
    tell_process(folder, process.pid)
    end_run(read_run(folder), HANG_S)
    assert process.wait() in (-signal.SIGINT, 1, 130)


def test_what_does_not_end_is_killed(monkeypatch):
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE, start_new_session=True) as process:
        process.stdout.readline()
        folder = begin_run(ask())
        tell_process(folder, process.pid)
        run = end_run(read_run(folder), 0.2)
    assert process.returncode == -signal.SIGKILL
    assert run.state == "cancelled"
    assert run.end.payload["error"]["message"] == "it did not end within 0.2 s of an interrupt, and was killed"


def test_a_birth_is_of_one_process(process):
    assert find_birth(process.pid) == find_birth(process.pid) != find_birth(os.getpid())
    process.kill()
    process.wait()
    assert find_birth(process.pid) is None
    assert find_birth(2**22 + 1) is None
