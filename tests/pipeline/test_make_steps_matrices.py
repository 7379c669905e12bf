"""Matrices of pipelines: made once, changed by what is new, and never by the same twice."""

from __future__ import annotations

import shutil

import pytest

import mgspmv as mg
from mgspmv.errors import StepsFailedError, StoreDamagedError
from mgspmv.pipeline import make_steps, plan_pipeline, run_pipeline
from tests.support.definitions import WEB, find_states, write_definition

UPDATE = (
    WEB
    + """
duplicates = "sum"
[matrix.web.update]
insert = "${DAY}/added.txt"
delete = "${DAY}/removed.txt"
[run]
"""
)


GENERATED = 'folder = "out"\n[matrix.web]\ngenerate = "rmat"\nparameters = {scale = 5, seed = 1}\n'


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.fixture(autouse=True)
def folder(folder):
    (folder / "edges.txt").write_text("1 2 1.0\n2 3 1.0\n3 1 1.0\n1 3 1.0\n")
    for day, added, removed in (("mon", "3 2 1.0\n", "1 2\n"), ("tue", "3 2 0.5\n4 1 2.0\n", "2 3\n")):
        (folder / day).mkdir()
        (folder / day / "added.txt").write_text(added)
        (folder / day / "removed.txt").write_text(removed)
    return folder


@pytest.fixture
def night(monkeypatch):
    def run(day, text=UPDATE, **options):
        monkeypatch.setenv("DAY", day)
        return run_pipeline(write_definition(text), **options)

    return run


def read_entries(store="out/web.zarr"):
    with mg.open_matrix(store) as A:
        found, ids = A.to_scipy().tocoo(), A.vertex_ids
        pairs = zip(ids[found.coords[1]].tolist(), ids[found.coords[0]].tolist(), strict=True)
        return dict(zip(pairs, found.data.tolist(), strict=True))


MONDAY = {(2, 3): 1.0, (3, 1): 1.0, (1, 3): 1.0, (3, 2): 1.0}
TUESDAY = {(3, 1): 1.0, (1, 3): 1.0, (3, 2): 1.5, (4, 1): 2.0}


class TestUpdates:
    def test_night_after_night(self, night):
        assert night("mon").is_success
        assert read_entries() == MONDAY
        assert list(find_states(night("mon")).values()) == ["kept", "kept"]
        assert read_entries() == MONDAY
        record = night("tue")
        assert list(find_states(record).values()) == ["made", "made"]
        assert read_entries() == TUESDAY
        assert len(mg.list_versions("out/web.zarr")) == 3
        assert record.steps[0].record.seconds.keys() == {"update"}
        assert record.steps[1].record.comparison["n_new"] == 1
        assert list(find_states(night("tue")).values()) == ["kept", "kept"]

    def test_a_night_without_changes(self, night, folder):
        (folder / "wed").mkdir()
        (folder / "wed" / "added.txt").write_text("# nothing today\n")
        (folder / "wed" / "removed.txt").write_text("")
        night("mon")
        before = mg.open_matrix("out/web.zarr").info
        record = night("wed")
        assert record.is_success
        assert mg.open_matrix("out/web.zarr").info == before
        assert list(find_states(night("wed")).values()) == ["kept", "kept"]
        assert night("tue").is_success
        assert read_entries() == TUESDAY
        assert [info.number for info in mg.list_versions("out/web.zarr")] == [1, 2, 3]

    def test_a_new_program_does_not_begin_from_the_source_again(self, night, monkeypatch):
        night("mon")
        night("tue")
        monkeypatch.setattr("mgspmv.pipeline.steps.__version__", "99")
        assert list(find_states(night("tue")).values()) == ["made", "made"]
        assert read_entries() == TUESDAY
        assert len(mg.list_versions("out/web.zarr")) == 3

    def test_without_updates_it_is_the_source_again(self, night):
        night("mon")
        text = UPDATE.split("[matrix.web.update]")[0]
        night("mon", text, throw=True)
        assert len(read_entries()) == 4
        assert (1, 2) in read_entries()

    def test_what_is_lost_is_said(self, night, folder):
        night("mon")
        night("tue")
        shutil.rmtree(folder / "out/web.zarr")
        with pytest.raises(
            StepsFailedError, match=r"is missing or damaged, and had 1 updates that its source does not contain"
        ):
            night("tue")
        assert night("tue", overrides={"matrix.web.overwrite": True}).is_success
        assert read_entries()[(1, 2)] == 1.0

    @pytest.mark.parametrize("when", ["before", "after"])
    @pytest.mark.parametrize(("day", "entries"), [("mon", MONDAY), ("tue", TUESDAY)])
    def test_killed_at_an_update(self, night, monkeypatch, day, entries, when):
        """None is lost, and none made twice: weights would be summed."""

        def die(store, **options):
            if when == "after":
                mg.update(store, **options)
            raise Killed

        if day == "tue":
            night("mon")
        with monkeypatch.context() as patch:
            patch.setattr(make_steps, "update", die)
            with pytest.raises(Killed):
                night(day)
        with monkeypatch.context() as patch:
            patch.setattr(make_steps, "ingest", lambda *_, **__: pytest.fail("ingested again"))
            night(day)
        assert read_entries() == entries

    def test_killed_at_the_ingest(self, night, monkeypatch):
        def die(*given, **options):
            mg.ingest(*given, **options)
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(make_steps, "ingest", die)
            with pytest.raises(Killed):
                night("mon")
        with monkeypatch.context() as patch:
            patch.setattr(make_steps, "ingest", lambda *_, **__: pytest.fail("ingested again"))
            night("mon")
        assert read_entries() == MONDAY


class TestStores:
    def test_one_that_is_there_is_used(self, night, folder):
        mg.ingest("edges.txt", "web.zarr")
        text = 'folder = "out"\n[matrix.web]\nopen = "web.zarr"\n[run]\n'
        record = night("mon", text)
        assert record.steps[0].record.outputs == []
        assert list(find_states(night("mon", text)).values()) == ["kept", "kept"]
        mg.update("web.zarr", delete=((1,), (2,)))
        record = night("mon", text)
        assert list(find_states(record).values()) == ["made", "made"]
        assert record.steps[1].record.comparison["spearman"] is not None

    def test_one_that_is_there_is_updated(self, night):
        mg.ingest("edges.txt", "web.zarr", duplicates="sum")
        text = UPDATE.replace('source = "edges.txt"', 'open = "web.zarr"').replace('duplicates = "sum"\n', "")
        night("mon", text)
        assert read_entries("web.zarr") == MONDAY
        mg.update("web.zarr", delete=((3,), (1,)))
        night("mon", text)
        assert (3, 1) not in read_entries("web.zarr")
        assert read_entries("web.zarr")[(3, 2)] == 1.0

    def test_of_others_is_not_replaced(self, night, folder):
        (folder / "out").mkdir()
        mg.generate("rmat", "out/web.zarr", scale=3)
        with pytest.raises(StepsFailedError, match=r"out/web.zarr holds a matrix that this pipeline did not make") as e:
            night("mon", WEB)
        assert e.value.exit_code == 4
        assert night("mon", WEB, overrides={"matrix.web.overwrite": True}).is_success
        assert mg.open_matrix("out/web.zarr").nnz == 4

    def test_that_was_changed_by_hand(self, night):
        night("mon", WEB)
        mg.reorder("out/web.zarr", method="degree")
        assert "was changed since" in plan_pipeline("p.toml").steps[0].why
        with pytest.raises(StepsFailedError, match="or that was changed since; set overwrite = true"):
            night("mon", WEB)

    def test_several_files_and_a_list_of_vertices(self, night, folder):
        (folder / "v.txt").write_text("1\n2\n3\n9\n")
        (folder / "more.txt").write_text("9 1 2.0\n")
        text = WEB.replace('"edges.txt"', '["edges.txt", "more.txt"]') + 'vertices = "v.txt"\n[run]\n'
        assert night("mon", text).steps[0].record.matrix["shape"] == [4, 4]
        assert list(find_states(night("mon", text)).values()) == ["kept", "kept"]
        (folder / "v.txt").write_text("1\n2\n3\n9\n8\n")
        assert night("mon", text).steps[0].record.matrix["shape"] == [5, 5]

    def test_of_another_store(self, night, folder):
        mg.ingest("edges.txt", "in.zarr")
        text = WEB.replace("edges.txt", "in.zarr") + "[run]\n"
        night("mon", text)
        assert list(find_states(night("mon", text)).values()) == ["kept", "kept"]
        mg.update("in.zarr", delete=((1,), (2,)))
        assert night("mon", text).steps[0].record.matrix["nnz"] == 3

    def test_that_cannot_be_read(self, night, folder, monkeypatch):
        night("mon", WEB + "[run]\n")

        def find(store):
            raise StoreDamagedError("flipped bits")

        monkeypatch.setattr("mgspmv.pipeline.make_steps.open_matrix", find)
        record = night("mon", WEB + "[run]\nalpha = 0.5\n", throw=False)
        assert [(step.state, step.error) for step in record.steps] == [("kept", None), ("failed", "flipped bits")]


@pytest.mark.parametrize("text", [WEB, GENERATED], ids=["ingest", "generate"])
def test_limits_reach_what_makes_it(night, monkeypatch, text):
    given = {}

    def make(model, store, **options):
        given.update(options)
        return mg.ingest("edges.txt", store).info

    for name in ("ingest", "generate"):
        monkeypatch.setattr(make_steps, name, make)
    night("mon", text, overrides={"limits.threads": 1, "limits.memory": "2GB", "matrix.web.scratch": "."})
    assert (given["threads"], given["memory"], given["scratch"]) == (1, "2GB", ".")
