"""Matrices of pipelines: made once, changed by what is new, and never by the same twice."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import mgspmv as mg
from mgspmv.errors import StepsFailedError, StoreDamagedError
from mgspmv.partition import parse_bytes
from mgspmv.pipeline import make_matrix as making
from mgspmv.pipeline import plan_pipeline, predict, run_pipeline
from mgspmv.pipeline.definition import MatrixSection
from mgspmv.pipeline.records import Records
from tests.support.commands import ENVIRONMENT
from tests.support.definitions import WEB, find_states, write_definition, write_sources

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


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_sources(tmp_path)
    (tmp_path / "edges.txt").write_text("1 2 1.0\n2 3 1.0\n3 1 1.0\n1 3 1.0\n")
    for day, added, removed in (("mon", "3 2 1.0\n", "1 2\n"), ("tue", "3 2 0.5\n4 1 2.0\n", "2 3\n")):
        (tmp_path / day).mkdir()
        (tmp_path / day / "added.txt").write_text(added)
        (tmp_path / day / "removed.txt").write_text(removed)
    return tmp_path


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
        assert record.steps[0].record.seconds.keys() == {"update", "measure"}
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

    def test_the_ranks_of_the_night_before_are_the_start(self, night):
        text = UPDATE + 'nstart = "previous"\n'
        assert night("mon", text).steps[1].record.result["start"] == "uniform"
        assert night("tue", text).steps[1].record.result["start"] == "previous"

    def test_a_new_program_does_not_begin_from_the_source_again(self, night, monkeypatch):
        night("mon")
        night("tue")
        monkeypatch.setattr("mgspmv.pipeline.identity.__version__", "99")
        assert list(find_states(night("tue")).values()) == ["made", "made"]
        assert read_entries() == TUESDAY
        assert len(mg.list_versions("out/web.zarr")) == 3

    def test_another_source_begins_again(self, night, folder):
        night("mon")
        (folder / "edges.txt").write_text("1 2 1.0\n2 3 1.0\n5 1 1.0\n")
        night("tue")
        assert read_entries() == {(1, 2): 1.0, (5, 1): 1.0, (3, 2): 0.5, (4, 1): 2.0}

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
        with pytest.raises(StepsFailedError, match=r"was changed by 1 updates that are not there any more"):
            night("tue")
        assert night("tue", overrides={"matrix.web.overwrite": True}).is_success
        assert read_entries()[(1, 2)] == 1.0

    @pytest.mark.parametrize("when", ["before", "after"])
    def test_killed_at_the_update(self, night, monkeypatch, when):
        """None is lost, and none made twice: weights would be summed."""
        night("mon")

        def die(store, **options):
            if when == "after":
                mg.update(store, **options)
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(making, "update", die)
            with pytest.raises(Killed):
                making_alone(night, "tue")
        night("tue")
        assert read_entries() == TUESDAY

    @pytest.mark.parametrize("when", ["before", "after"])
    def test_killed_at_the_first_update(self, night, monkeypatch, when):
        def die(store, **options):
            if when == "after":
                mg.update(store, **options)
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(making, "update", die)
            with pytest.raises(Killed):
                making_alone(night, "mon")
        with monkeypatch.context() as patch:
            patch.setattr(making, "ingest", lambda *_, **__: pytest.fail("ingested again"))
            night("mon")
        assert read_entries() == MONDAY

    def test_killed_at_the_ingest(self, night, monkeypatch):
        def die(*given, **options):
            mg.ingest(*given, **options)
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(making, "ingest", die)
            with pytest.raises(Killed):
                making_alone(night, "mon")
        with monkeypatch.context() as patch:
            patch.setattr(making, "ingest", lambda *_, **__: pytest.fail("ingested again"))
            night("mon")
        assert read_entries() == MONDAY


def making_alone(night, day):
    """A run whose threads may not catch what stands for the end of the process."""
    from mgspmv.pipeline import execute

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execute._Run, "run", lambda self, lanes, n: [self._work_on(*lane) for lane in lanes.values()])
        patch.setattr(Records, "write_run", lambda *_: None)
        night(day)


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
        text = UPDATE.replace('path = "edges.txt"', 'open = "web.zarr"').replace('duplicates = "sum"\n', "")
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

    def test_an_order(self, night):
        """Ranks are those of the order of the source, to the bit."""
        night("mon", WEB + "[run]\n")
        record = night("mon", WEB + 'order = "rcm"\n[run]\n')
        assert record.steps[0].record.matrix["order"] == "rcm"
        assert record.steps[1].record.comparison["l1"] == 0.0

    def test_several_files_and_a_list_of_vertices(self, night, folder):
        (folder / "v.txt").write_text("1\n2\n3\n9\n")
        (folder / "more.txt").write_text("9 1 2.0\n")
        text = WEB.replace('"edges.txt"', '["edges.txt", "more.txt"]') + 'vertices = "v.txt"\n[run]\n'
        assert night("mon", text).steps[0].record.matrix["shape"] == [4, 4]
        assert list(find_states(night("mon", text)).values()) == ["kept", "kept"]
        (folder / "v.txt").write_text("1\n2\n3\n9\n8\n")
        assert night("mon", text).steps[0].record.matrix["shape"] == [5, 5]

    def test_of_a_folder_of_files(self, night, folder):
        (folder / "edges").mkdir()
        (folder / "edges/a.csv").write_text("1,2\n")
        text = WEB.replace("edges.txt", "edges/*.csv") + "[run]\n"
        night("mon", text)
        (folder / "edges/b.csv").write_text("2,1\n")
        assert night("mon", text).steps[0].record.matrix["nnz"] == 2

    def test_of_another_store(self, night, folder):
        mg.ingest("edges.txt", "in.zarr")
        text = WEB.replace("edges.txt", "in.zarr") + "[run]\n"
        night("mon", text)
        assert list(find_states(night("mon", text)).values()) == ["kept", "kept"]
        mg.update("in.zarr", delete=((1,), (2,)))
        assert night("mon", text).steps[0].record.matrix["nnz"] == 3

    def test_of_a_group_of_others(self, night, folder):
        import numpy as np
        import zarr

        group = zarr.open_group("plain", mode="w")
        group.create_array("indptr", data=np.array([0, 1, 2]))
        group.create_array("indices", data=np.array([1, 0]))
        text = 'folder = "out"\n[matrix.web]\npath = "plain"\nkind = "graph"\nformat = "csr"\nn_cols = 2\n[run]\n'
        assert night("mon", text).steps[0].record.matrix["nnz"] == 2
        assert list(find_states(night("mon", text)).values()) == ["kept", "kept"]

    def test_that_cannot_be_read(self, night, folder, monkeypatch):
        night("mon", WEB + "[run]\n")

        def find(store):
            raise StoreDamagedError("flipped bits")

        monkeypatch.setattr("mgspmv.pipeline.computing.open_matrix", find)
        record = night("mon", WEB + "[run]\nalpha = 0.5\n", throw=False)
        assert [(step.state, step.error) for step in record.steps] == [("kept", None), ("failed", "flipped bits")]


def test_limits_reach_the_ingest(night, monkeypatch):
    given = {}

    def ingest(*sources, **options):
        given.update(options, taken=psutil.Process().memory_info().rss)
        return mg.ingest(*sources, **options)

    monkeypatch.setattr(making, "ingest", ingest)
    monkeypatch.setattr(predict, "EXPANSION", 10**9)  # the source would like more than the limit
    night("mon", WEB, overrides={"limits.threads": 1, "limits.memory": "2GB", "matrix.web.scratch": "."})
    assert given["threads"] == 1
    assert 1.8e9 < given["memory"] - given["taken"] <= 2e9
    assert given["scratch"] == "."
    assert Path("out/.mgspmv/steps/web.json").exists()


class TestMemoryOfGenerators:
    GENERATED = 'folder = "out"\n[matrix.web]\ngenerate = "rmat"\nparameters = {scale = 20, seed = 1}\n'

    def test_limits_reach_them(self, night, monkeypatch):
        given = {}

        def generate(model, store, **options):
            given.update(options, taken=psutil.Process().memory_info().rss)
            return mg.generate(model, store, **options | {"scale": 5})

        monkeypatch.setattr(making, "generate", generate)
        limits = {"limits.threads": 1, "limits.memory": "850MB", "matrix.web.scratch": "."}
        night("mon", self.GENERATED, overrides=limits | {"matrix.web.symmetrize": True})
        assert (given["threads"], given["scratch"]) == (1, ".")
        assert given["memory"] - given["taken"] == pytest.approx(max(850e6, 2**30 - given["taken"]), rel=0.05)

    def test_what_must_fit_and_cannot(self, night, monkeypatch):
        monkeypatch.setattr(making, "generate", lambda *_, **__: pytest.fail("begun"))
        limits = {"limits.threads": 1, "limits.memory": "900MB", "matrix.web.order": "rcm"}
        with pytest.raises(StepsFailedError, match=r"web: needs 1,\d+,\d+,\d+ bytes and memory in \[limits\] is 900,"):
            night("mon", self.GENERATED, overrides=limits)

    def test_workers_need_none_here(self, in_process, night):
        """But to change a store, which is this process's."""
        cluster = {"cluster.ingest": True, "matrix.web.parameters.scale": 5}
        assert night("mon", self.GENERATED, overrides=cluster, client=in_process(2)).steps[0].predicted_bytes == 0
        section = {"open": "w.zarr", "update": {"insert": "mon/added.txt"}}
        assert predict.predict_matrix(MatrixSection(**section), 1, 2**40, on_workers=True) > predict.BESIDE_BYTES

    @pytest.mark.slow
    @pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from /proc")
    @pytest.mark.parametrize(
        ("more", "limit"),
        [
            pytest.param("symmetrize = true\ntranspose = true\n", "8GB", marks=pytest.mark.weekly),
            ("symmetrize = true\ntranspose = true\n", "800MB"),
            pytest.param('order = "rcm"\n', "8GB", marks=pytest.mark.weekly),
        ],
    )
    def test_they_take_what_is_predicted(self, more, limit):
        write_definition(self.GENERATED + more)
        child = [sys.executable, "-c", CHILD, limit]
        environment = ENVIRONMENT | {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
        done = subprocess.run(child, check=True, capture_output=True, text=True, env=environment)
        taken, predicted = map(int, done.stdout.split())
        assert predicted / 5 <= taken <= predicted <= parse_bytes(limit)


CHILD = """
import sys
from pathlib import Path
from mgspmv.pipeline import run_pipeline

def read_bytes(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field + ":")).split()[1]) * 1024

limits = {"limits.memory": sys.argv[1], "limits.threads": 2}
run_pipeline("p.toml", overrides=limits | {"folder": "tiny", "matrix.web.parameters.scale": 8})
before = read_bytes("VmRSS")
step = run_pipeline("p.toml", overrides=limits).steps[0]
print(read_bytes("VmHWM") - before, step.predicted_bytes)
"""
