"""Two runs are kept off one output, whichever pipelines they are of."""

from __future__ import annotations

import errno
import fcntl
import shutil
from pathlib import Path

import pytest

import mgspmv as mg
from mgspmv.errors import PipelineBusyError, StoreError
from mgspmv.pipeline import read_pipeline, run_pipeline
from mgspmv.pipeline.locks import hold, hold_targets, remove_lock
from mgspmv.pipeline.steps import list_steps
from tests.support.definitions import WEB, find_states, write_definition, write_sources

RUN = WEB + "[run]\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_sources(tmp_path)
    write_definition(RUN)
    return tmp_path


def hold_of(overrides):
    """What a run with these overrides holds."""
    definition = read_pipeline("p.toml", overrides)
    return hold_targets(list_steps(definition.pipeline, str(definition.folder)), "theirs", lambda: None)


@pytest.mark.parametrize(
    ("theirs", "ours", "what"),
    [
        ({"output.folder": "ranks"}, {"output.folder": "ranks"}, "ranks/web"),
        ({"output.folder": "ranks"}, {"output.folder": "linked"}, "ranks/web"),
        ({"output.folder": "other"}, {}, "other/web"),  # which is the folder of this one
        ({"matrix.web.store": "stores/w.zarr"}, {"matrix.web.store": "stores/../stores/w.zarr"}, "stores/w.zarr"),
        ({"matrix.web.store": "other/web.zarr"}, {}, "other/web.zarr"),
    ],
)
def test_what_another_pipeline_writes_is_left_alone(theirs, ours, what, folder):
    (folder / "linked").symlink_to("ranks")
    ours = ours | {"folder": "other"}
    with hold_of(theirs), pytest.raises(PipelineBusyError) as caught:
        run_pipeline("p.toml", overrides=ours)
    assert str(caught.value).startswith(f"another run writes {folder / what}: process ")
    assert str(caught.value).endswith("; wait for its end, or have this one write elsewhere")
    assert not Path("other/web.zarr").exists()
    assert run_pipeline("p.toml", overrides=ours).is_success


@pytest.mark.parametrize(
    "theirs",
    [{"matrix.web.store": "w.zarr", "output.folder": "ranks"}, {"folder": "other"}, {"output.folder": "memory://b"}],
)
def test_other_places_are_free(theirs):
    ours = {"matrix.web.store": "v.zarr", "matrix.web.kind": "graph", "folder": "third", "output.folder": "r"}
    with hold_of({"matrix.web.store": "memory://b/x.zarr"} | theirs):
        assert run_pipeline("p.toml", overrides=ours).is_success


def test_a_store_that_is_read_only_is_shared():
    mg.ingest("edges.txt", "w.zarr")
    write_definition('folder = "a"\n[matrix.web]\nopen = "w.zarr"\n[run]\n')
    with hold_of({}):
        assert run_pipeline("p.toml", overrides={"folder": "b"}).is_success
    with hold_of({"matrix.web.update.insert": "edges.txt"}):
        change = {"folder": "c", "matrix.web.update.insert": "edges.txt"}
        with pytest.raises(PipelineBusyError, match=r"another run writes .*/w\.zarr: "):
            run_pipeline("p.toml", overrides=change)


def test_a_finished_pipeline_needs_nothing():
    run_pipeline("p.toml")
    with hold_of({}), hold(Path("out")):
        assert set(find_states(run_pipeline("p.toml")).values()) == {"kept"}


def test_who_has_it_and_did_not_say_so_yet(folder):
    with hold_of({}):
        Path("out/.mgspmv/locks/web").write_text("")
        with pytest.raises(PipelineBusyError, match=r"process \? on \?, since \?; wait"), hold_of({}):
            pass


def test_what_is_made_by_another_pipeline_here_is_not_swept_away(folder):
    part = folder / "out/.mgspmv/made/v/.ranks.parquet.01234567.part"
    left = folder / "out/.mgspmv/steps/a/.web.json.01234567.part"
    for path in (part, left):
        path.mkdir(parents=True)
        (path / ".lock").write_text("")
    run_pipeline("p.toml")
    assert (part.exists(), left.exists()) == (True, False)


class TestRemoving:
    def test_a_lock_that_somebody_has_stays(self):
        with hold(Path("out")):
            remove_lock(Path("out/.mgspmv/lock"))
            with pytest.raises(PipelineBusyError), hold(Path("out")):
                pass
        remove_lock(Path("out/.mgspmv/lock"))
        remove_lock(Path("out/.mgspmv/lock"))
        assert not list(Path("out/.mgspmv").iterdir())

    @pytest.mark.parametrize("gone", ["out/.mgspmv/lock", "out"])
    def test_one_that_was_removed_after_it_was_opened_is_made_again(self, gone, monkeypatch):
        """As by a run that ends at that moment; else two would have it."""
        flock = fcntl.flock

        def remove_first(opened, how):
            monkeypatch.setattr(fcntl, "flock", flock)
            shutil.rmtree(gone) if Path(gone).is_dir() else Path(gone).unlink()
            flock(opened, how)

        monkeypatch.setattr(fcntl, "flock", remove_first)
        with hold(Path("out")), pytest.raises(PipelineBusyError, match="another run works in out"), hold(Path("out")):
            pass


class TestFileSystems:
    @pytest.fixture
    def refuse(self, monkeypatch):
        def refuse(number):
            def flock(*_):
                raise OSError(number, "refused")

            monkeypatch.setattr(fcntl, "flock", flock)

        return refuse

    def test_without_locks(self, refuse):
        refuse(errno.ENOLCK)
        with hold_of({}):
            pass
        with pytest.raises(StoreError, match=r"cannot lock out/.mgspmv/lock: refused; name a folder on a local file"):
            run_pipeline("p.toml")

    def test_that_fail(self, refuse):
        refuse(errno.EIO)
        with pytest.raises(StoreError, match=r"cannot lock .*/out/.mgspmv/locks/web: input/output error"), hold_of({}):
            pass

    def test_that_cannot_be_written_to(self):
        Path("ranks").write_text("")
        with pytest.raises(StoreError, match=r"cannot write .*/ranks/.mgspmv/locks/.*: .*; name another place"):
            run_pipeline("p.toml", overrides={"output.folder": "ranks"})
