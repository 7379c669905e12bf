"""Who has the name of a cluster, whoever dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mgspmv.errors import ClusterError, OptionError, StoreError
from mgspmv.launching.serving import Asked, describe
from mgspmv.launching.state import claim, end_processes, find_cluster, find_folder, list_clusters, read_cluster, tell
from mgspmv.processes import Process
from tests.support.waiting import HANG_S


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("MGSPMV_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def other():
    """A process that is not this one."""
    command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as started:
        started.stdout.readline()
        yield Process.find(started.pid)
        started.kill()


OWN = Asked("one")


def test_a_name_is_had_while_the_context_lasts(state):
    own = describe(OWN)
    with claim(own):
        assert (read_cluster("one"), find_cluster("one").state) == (own, "starting")
        assert own.folder.stat().st_mode & 0o777 == 0o700
        ready = replace(own, scheduler="tcp://127.0.0.1:1")
        tell(ready, {"address": ready.scheduler})
        assert (find_cluster("one"), ready.state) == (ready, "running")
        assert ready.scheduler_file.read_text() == '{"address": "tcp://127.0.0.1:1"}'
        with claim(replace(own, name="two")):
            assert [cluster.name for cluster in list_clusters()] == ["one", "two"]
        with pytest.raises(ClusterError, match=r"^a cluster 'one' is running on this machine already, at tcp://127"):
            claim(own).__enter__()
    assert list_clusters() == []


def test_a_name_of_a_process_that_is_gone_is_free(other):
    with claim(replace(describe(OWN), process=other)):
        pass
    left = replace(describe(OWN), process=replace(other, birth="another boot"))
    left.folder.mkdir(parents=True)
    (left.folder / "said").touch()
    tell(left)
    assert find_cluster("one").state == "lost"
    with claim(own := describe(OWN)):
        assert read_cluster("one") == own
        assert not (own.folder / "said").exists()


def test_a_process_takes_over_from_the_one_that_started_it(other):
    parent = replace(describe(OWN), process=Process.find(os.getppid()))
    with claim(parent):
        (parent.folder / "said").touch()
        with claim(own := describe(OWN)):
            assert (own.folder / "said").exists()
            with claim(replace(own, name="two")):
                assert read_cluster("one") == own
        assert list_clusters() == []
    theirs = replace(describe(OWN), process=other)
    with claim(parent):
        tell(theirs)
    assert read_cluster("one") == theirs, "it is not the starter's any more"


def test_what_cannot_be_read_is_not_there(state):
    place = find_folder("one")
    place.mkdir(parents=True)
    for text in ("", "{}", "[1]", '{"name": "one"}'):
        (place / "cluster.json").write_text(text)
        assert (read_cluster("one"), list_clusters()) == (None, []), text
    with claim(own := describe(OWN)):
        assert read_cluster("one") == own


def test_what_is_no_name():
    for name in ("", ".", "..", "a/b", ".lock", "-x", "é", "a" * 65, "a\n"):
        with pytest.raises(OptionError, match="a cluster cannot be named"):
            find_folder(name)


def test_a_folder_that_cannot_be_written(state):
    state.write_text("")
    with pytest.raises(StoreError, match=r"^clusters cannot be kept in .*; name another folder by MGSPMV_STATE$"):
        claim(describe(OWN)).__enter__()


SLEEPS = "import os, time\nwhile os.getppid() == {pid}: time.sleep(0.05)"
"""A process that ends soon after the one above it, as workers do."""
BELOW = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.{on_sigterm})
below = subprocess.Popen([sys.executable, "-c", sys.argv[1].format(pid=os.getpid())])
print(below.pid, flush=True)
below.wait()
"""


@pytest.mark.parametrize(("on_sigterm", "is_clean"), [("SIG_DFL", True), ("SIG_IGN", False)])
def test_processes_that_end_and_that_do_not(on_sigterm, is_clean):
    command = [sys.executable, "-c", BELOW.format(on_sigterm=on_sigterm), SLEEPS]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as started:
        below = Process.find(int(started.stdout.readline()))
        assert below.is_there
        assert end_processes(Process.find(started.pid), HANG_S if is_clean else 0.3) == is_clean
        assert not below.is_there
        assert started.wait() == (-signal.SIGTERM if is_clean else -signal.SIGKILL)


def test_another_process_of_the_same_number_is_left_alone():
    assert end_processes(replace(Process.find(os.getpid()), birth="another boot"), 0.5)
