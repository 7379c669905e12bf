"""Two runs are kept off one place in an object store."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import fsspec
import pytest

from mgspmv.errors import PipelineBusyError, StepsFailedError
from mgspmv.pipeline import lock_objects, run_pipeline
from mgspmv.pipeline.lock_objects import STALE_S, hold_objects
from tests.support.buckets import serve_s3
from tests.support.definitions import WEB, find_states, write_definition, write_sources
from tests.support.waiting import HANG_S

HOLDER = {"pid": 7, "host": "other", "began": "2026-03-04T01:02:03+00:00"}
RANKS = {"output.folder": "memory://ranks"}
LOCK = "memory://ranks/.mgspmv/locks/web"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_sources(tmp_path)
    write_definition(WEB + "[run]\n")
    fsspec.filesystem("memory").store.clear()
    return tmp_path


def hold(place="memory://ranks/web", on_lost=lambda: None):
    """What another pipeline holds."""
    return hold_objects([place], ".mgspmv/locks", HOLDER, "theirs", on_lost)


def list_names():
    return sorted(fsspec.filesystem("memory").store)


def write_lock(url=LOCK, *, age_s=0.0, **more):
    """What a run left, that long ago."""
    renewed = datetime.now(UTC) - timedelta(seconds=age_s)
    system, name = fsspec.url_to_fs(url)
    system.pipe_file(name, json.dumps(HOLDER | {"renewed": renewed.isoformat()} | more).encode())


def read_lock():
    return json.loads(fsspec.filesystem("memory").cat_file(LOCK))


@pytest.mark.parametrize(
    ("place", "overrides"),
    [("memory://ranks/web", RANKS), ("memory://stores/w.zarr", {"matrix.web.store": "memory://stores/w.zarr/"})],
)
def test_what_another_pipeline_writes_is_left_alone(place, overrides):
    with hold(place):
        before = list_names()
        with pytest.raises(PipelineBusyError) as caught:
            run_pipeline("p.toml", overrides=overrides)
        assert list_names() == before
    said, (folder, _, name) = str(caught.value), place.rpartition("/")
    assert said.startswith(f"another run writes {place}: process 7 on other, since 2026-03-04T01:02:03+00:00, last ")
    assert said.endswith(f"; if it is dead, wait 10 minutes, or remove {folder}/.mgspmv/locks/{name}")
    assert run_pipeline("p.toml", overrides=overrides).is_success
    assert not [name for name in list_names() if "locks" in name]


def test_other_places_are_free():
    with hold("memory://ranks/wiki"):
        assert run_pipeline("p.toml", overrides=RANKS).is_success


def test_a_finished_pipeline_needs_nothing():
    run_pipeline("p.toml", overrides=RANKS)
    with hold():
        assert set(find_states(run_pipeline("p.toml", overrides=RANKS)).values()) == {"kept"}


@pytest.mark.parametrize("left", [{"age_s": STALE_S + 1}, {"renewed": "yesterday"}, {"renewed": None}])
def test_what_was_not_renewed_is_nobodys(left):
    write_lock(**left)
    assert run_pipeline("p.toml", overrides=RANKS).is_success


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_what_is_no_lock_is_nobodys(text):
    fsspec.filesystem("memory").pipe_file(LOCK, text.encode())
    assert run_pipeline("p.toml", overrides=RANKS).is_success


def test_what_a_killed_run_of_the_same_folder_left_is_taken_over_at_once():
    run_pipeline("p.toml")
    own = json.loads(Path("out/.mgspmv/lock").read_text())["pipeline"]
    write_lock(pipeline=own)
    assert run_pipeline("p.toml", overrides=RANKS).is_success
    assert json.loads(Path("out/.mgspmv/lock").read_text())["pipeline"] == own
    write_lock(pipeline="another")
    with pytest.raises(PipelineBusyError):
        run_pipeline("p.toml", overrides=RANKS | {"run.alpha": 0.5})


def test_it_is_renewed(monkeypatch):
    monkeypatch.setattr(lock_objects, "RENEW_S", 0.01)
    written = threading.Semaphore(0)
    write = lock_objects._Lock._write

    def note(self, mode="overwrite"):
        write(self, mode)
        written.release()

    monkeypatch.setattr(lock_objects._Lock, "_write", note)
    with hold():
        own = read_lock()
        assert all(written.acquire(timeout=HANG_S) for _ in range(3))
        assert {**read_lock(), "renewed": ""} == {**own, "renewed": ""}


def test_a_run_whose_place_was_taken_over_ends(monkeypatch):
    monkeypatch.setattr(lock_objects, "RENEW_S", 0.01)
    is_lost = threading.Event()

    def lose():
        with hold(on_lost=is_lost.set):
            write_lock(run="other")
            assert is_lost.wait(HANG_S)

    with pytest.raises(PipelineBusyError, match=r"^another run took over memory://ranks/web, for this"):
        lose()
    assert read_lock()["run"] == "other"


def test_where_no_lock_can_be_had_the_run_goes_on_and_says_so(monkeypatch):
    def refuse(*_, **__):
        raise PermissionError("not here")

    monkeypatch.setattr(lock_objects._Lock, "_write", refuse)
    with pytest.warns(UserWarning, match=r"^other runs are not kept from writing to memory://ranks/web meanwhile: "):
        assert run_pipeline("p.toml", overrides=RANKS).is_success


@contextmanager
def look_at_nothing_first(monkeypatch):
    """As of two that look at the same moment."""
    read, asked = lock_objects._Lock._read, []

    def find(self):
        asked.append(self)
        return None if len(asked) == 1 else read(self)

    monkeypatch.setattr(lock_objects._Lock, "_read", find)
    yield


def test_of_two_that_begin_at_once_one_has_it(monkeypatch):
    with hold():
        with look_at_nothing_first(monkeypatch), pytest.raises(PipelineBusyError), hold():
            pass
        assert read_lock()["pid"] == 7


@pytest.mark.external
def test_s3_creates_no_lock_where_there_is_one(monkeypatch):
    with serve_s3():
        place = "s3://bucket/ranks/web"
        with hold(place), look_at_nothing_first(monkeypatch), pytest.raises(PipelineBusyError), hold(place):
            pass
        with hold(place):
            pass
        overrides = {"output.folder": "s3://nobucket/ranks"}
        with (
            pytest.warns(UserWarning, match="meanwhile: cannot write to s3://nobucket"),
            pytest.raises(StepsFailedError),
        ):
            run_pipeline("p.toml", overrides=overrides)


def test_a_place_without_locks_is_told_of_without_its_password():
    said = r"kept from writing to nosuch://me:\*\*\*@x/web meanwhile"
    with pytest.warns(UserWarning, match=said), hold("nosuch://me:hunter2@x/web"):
        pass
