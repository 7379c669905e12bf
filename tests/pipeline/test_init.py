"""Running pipelines: what is made, what is kept, what fails, and what is left when it ends early."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import zarr
from scipy.io import mmread

import mgspmv as mg
from mgspmv.errors import PipelineBusyError, SourceError, SourceNotFoundError, StepsFailedError
from mgspmv.pipeline import RunInterrupted, plan_pipeline, run_pipeline
from mgspmv.pipeline.records import Records
from mgspmv.report import load_run, render_report
from mgspmv.report.record import RunRecord, read_record
from mgspmv.results import load_solution
from tests.support.definitions import THREE, WEB, find_digests, find_states, list_files, write_definition, write_sources

RUN = WEB + "[run]\ntol = 1e-14\ntop = 2\n"


def run(text=None, **options):
    return run_pipeline("p.toml" if text is None else write_definition(text), **options)


def read_ranks(name="web/pagerank"):
    solution = load_solution(f"out/{name}/ranks.parquet")
    return dict(zip(solution.ids.tolist(), solution.values.tolist(), strict=True))


def fail(text=None, **options) -> StepsFailedError:
    with pytest.raises(StepsFailedError) as caught:
        run(text, **options)
    return caught.value


class TestWhereItIsStarted:
    def test_it_is_kept_from_anywhere_and_when_it_is_moved(self, folder, monkeypatch):
        (folder / "a").mkdir()
        write_sources(folder / "a")
        mg.ingest("a/edges.txt", "a/own.zarr")
        (folder / "a/new.txt").write_text("1 8\n")
        text = RUN + '[matrix.own]\nopen = "own.zarr"\n[matrix.own.update]\ninsert = "new.txt"\n'
        (folder / "a/ids.txt").write_text("1\n3\n")
        name = write_definition(text + '[run.some]\nmatrix = "web"\npersonalization = "ids.txt"\n', "a/p.toml")
        made = run_pipeline(name)
        assert set(find_states(made).values()) == {"made"}
        assert set(find_digests(made)) >= {"a/out/web.zarr", "a/own.zarr", "a/out/web/some/ranks.parquet"}
        written = json.loads((folder / "a/out/web/some/record.json").read_text())
        assert written["outputs"][0]["path"] == "out/web/some/ranks.parquet"
        assert (written["matrix"]["url"], written["options"]["personalization"]) == ("out/web.zarr", "ids.txt")
        (folder / "a").rename(folder / "b")
        for place, name in ((folder, "b/p.toml"), (folder / "b", "p.toml"), (folder, str(folder / "b/p.toml"))):
            monkeypatch.chdir(place)
            kept = run_pipeline(name)
            assert set(find_states(kept).values()) == {"kept"}
            for path in find_digests(kept):
                assert Path(path).exists()


class TestWhatIsMade:
    def test_ranks_are_those_of_networkx(self):
        record = run(RUN)
        expected = nx.pagerank(nx.DiGraph([(1, 2), (2, 3), (3, 1), (1, 3)]), tol=1e-15)
        assert read_ranks() == pytest.approx(expected, abs=1e-13)
        assert find_states(record) == {"web": "made", "web/pagerank": "made"}
        assert record.is_success
        ranks = record.steps[1].record
        assert [row[0] for row in ranks.top] == [3, 1]
        assert ranks.result["status"] == "converged"
        assert ranks.inputs == {"matrix": mg.open_matrix("out/web.zarr").info.digest}
        assert ranks.provenance["matrix"]["source"]["sha256"]
        assert ranks.provenance["versions"]["mgspmv"] == mg.__version__
        assert json.loads(Path("out/web/pagerank/record.json").read_text())["key"] == ranks.key
        [kept] = Path("out/.mgspmv/runs").glob("*.json")
        assert find_states(read_record(RunRecord, json.loads(kept.read_text()), "")) == find_states(record)
        assert ranks.comparison == {}
        assert not Path("out/web/pagerank/comparison.json").exists()

    def test_vectors_are_files(self):
        Path("p.txt").write_text("1 3\n2 1\n")
        np.save("start.npy", [1.0, 0.0, 0.0])
        run(RUN + 'personalization = "p.txt"\ndangling = "uniform"\nnstart = "start.npy"\n')
        graph = nx.DiGraph([(1, 2), (2, 3), (3, 1), (1, 3)])
        assert read_ranks() == pytest.approx(nx.pagerank(graph, personalization={1: 3, 2: 1}, tol=1e-15), abs=1e-13)

    def test_the_reversed_graph(self):
        record = run(RUN + "reverse = true\n", overrides={"matrix.web.transpose": True})
        expected = nx.pagerank(nx.DiGraph([(2, 1), (3, 2), (1, 3), (3, 1)]), tol=1e-15, max_iter=200)
        assert read_ranks() == pytest.approx(expected, abs=1e-13)
        assert record.steps[1].record.matrix["reversed"] is True

    def test_string_ids(self):
        Path("edges.txt").write_text("07 bob\nbob cy\ncy 07\n07 cy\n")
        Path("p.csv").write_text("name,weight\nbob,1\n")
        more = {"matrix.web.ids": "string", "run.top": 3}
        run(RUN + 'personalization = "p.csv"\n', overrides=more)
        rows = json.loads(Path("out/web/pagerank/top.json").read_text())
        assert {row["id"] for row in rows} == {"07", "bob", "cy"}
        lines = Path("out/web/pagerank/top.csv").read_text().splitlines()
        assert lines[0] == "place,id,rank"
        assert [line.split(",")[1] for line in lines[1:]] == [row["id"] for row in rows]

    def test_scores(self):
        run(RUN)
        plain = load_solution("out/web/pagerank/ranks.parquet")
        record = run(RUN + '[output]\nscaler = "l2norm"\n')
        scaled = load_solution("out/web/pagerank/ranks.parquet")
        assert scaled.digest() == plain.scale("l2norm").digest()
        assert record.steps[1].record.comparison["l1"] is None
        assert record.steps[1].record.comparison["spearman"] == pytest.approx(1.0)

    def test_products(self):
        Path("a.mtx").write_text("%%MatrixMarket matrix coordinate real general\n2 3 3\n1 1 2\n1 3 -1\n2 2 4\n")
        np.save("x.npy", [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        zarr.create_array("in.zarr", data=np.array([1.0, -1.0]))
        run(
            'folder = "out"\n[matrix.a]\nsource = "a.mtx"\ntranspose = true\n'
            '[product.y]\nx = "x.npy"\nalpha = [1.0, 2.0]\n'
            '[product.z]\nx = "in.zarr"\ntranspose = true\nformat = "zarr"\nbeta = 0.5\ny = "y.npy"\n',
            throw=False,
        )
        a = mmread("a.mtx").toarray()
        x = np.load("x.npy")
        assert np.load("out/a/y/alpha=1.0/y.npy").tolist() == (a @ x).tolist()
        assert np.load("out/a/y/alpha=2.0/y.npy").tolist() == (2 * a @ x).tolist()
        assert not Path("out/a/z").exists()
        np.save("y.npy", [10.0, 20.0, 30.0])
        record = run()
        expected = a.T @ [1.0, -1.0] + 0.5 * np.load("y.npy")
        assert zarr.open_array("out/a/z/y.zarr", mode="r")[...].tolist() == expected.tolist()
        assert list(find_states(record).values()) == ["kept", "kept", "kept", "made"]
        assert list(find_states(run()).values()) == ["kept"] * 4

    def test_batches(self):
        Path("seeds.csv").write_text("vector,vertex\na,1\nb,2\n")
        text = WEB + '[batch.topics]\npersonalization = "seeds.csv"\nkeep_top = 2\ntol = 1e-12\n'
        text += '[output]\nformats = ["csv", "zarr"]\n'
        run(text)
        with mg.open_matrix("out/web.zarr") as A:
            expected = mg.pagerank(A, personalization={2: 1.0}, tol=1e-12).top(2)
        batch = mg.load_batch("out/web/topics/ranks.zarr")
        assert batch.top()["b"] == expected
        head, *rows = csv.reader(Path("out/web/topics/ranks.csv").read_text().splitlines())
        assert head == ["vector", "id", "rank"]
        assert [(int(row[1]), float(row[2])) for row in rows if row[0] == "b"] == expected
        assert len(rows) == 4
        [record] = [step.record for step in run().steps[1:]]
        assert [own["pace"] for own in record.result["vectors"]] == ["fastest", "slowest"]
        assert [tuple(own["changes"]) for own in record.result["vectors"]] == list(batch.changes)
        top = Path("out/web/topics/top.csv").read_text().splitlines()
        assert top[0] == "vector,place,id,rank"
        assert find_states(run())["web/topics"] == "kept"

    def test_formats(self):
        run(RUN + '[output]\nformats = ["zarr", "parquet", "csv"]\n')
        solution = load_solution("out/web/pagerank/ranks.zarr")
        assert solution.digest() == load_solution("out/web/pagerank/ranks.parquet").digest()
        rows = [line.split(",") for line in Path("out/web/pagerank/ranks.csv").read_text().splitlines()]
        assert [(int(name), float(rank)) for name, rank in rows[1:]] == list(
            zip(solution.ids.tolist(), solution.values.tolist(), strict=True)
        )
        assert find_states(run())["web/pagerank"] == "kept"
        run(RUN)
        assert sorted(path.name for path in Path("out/web/pagerank").iterdir()) == [
            "comparison.json",
            "ranks.parquet",
            "record.json",
            "top.csv",
            "top.json",
        ]


class TestKept:
    def test_a_finished_pipeline_writes_nothing(self, folder):
        first = run(THREE)
        before = list_files(folder)
        second = run()
        assert list_files(folder) == before
        assert set(find_states(second).values()) == {"kept"}
        assert find_digests(second) == find_digests(first)

    def test_sources_are_not_read_again(self, folder, monkeypatch):
        run(RUN)
        monkeypatch.setattr("mgspmv.pipeline.steps.compute_checksum", lambda path: pytest.fail(f"{path} is read"))
        assert set(find_states(run()).values()) == {"kept"}

    def test_another_place(self, folder):
        run(RUN)
        shutil.move("out", "moved")
        (folder / "data").mkdir()
        shutil.move("edges.txt", "data/e.txt")
        record = run(overrides={"folder": "moved", "matrix.web.source": "data/e.txt"})
        assert set(find_states(record).values()) == {"kept"}

    def test_a_source_that_makes_the_same_matrix(self):
        run(RUN)
        Path("edges.txt").write_text("1 3\n1 2\n3 1\n2 3\n")
        assert find_states(run()) == {"web": "made", "web/pagerank": "kept"}

    def test_another_option_makes_what_depends_on_it(self):
        run(THREE)
        record = run(overrides={"run.plain.max_iter": 99})
        assert [name for name, state in find_states(record).items() if state == "made"] == [
            "web/plain",
            "rmat/plain",
            "ring/plain",
        ]
        plan = plan_pipeline("p.toml", overrides={"run.plain.max_iter": 98})
        assert [step.why for step in plan.steps if step.state != "kept"] == ["max_iter changed from 99 to 98"] * 3

    def test_every_option_that_ranks_depend_on_counts(self):
        """One that did not would let ranks of other options pass for those that are asked for."""
        run(RUN)
        others = {
            "alpha": 0.5,
            "tol": 1e-6,
            "norm": "linf",
            "max_iter": 99,
            "precision": "float64",
            "weight": False,
            "dangling": "uniform",
            "top": 1,
        }
        for name, value in others.items():
            plan = plan_pipeline("p.toml", overrides={f"run.{name}": value})
            states = {step.name: step.state for step in plan.steps}
            assert states["web"] == "kept", name
            assert states["web/pagerank"] != "kept", name

    def test_threads_and_limits_do_not_count(self):
        run(RUN)
        record = run(overrides={"limits.threads": 1, "limits.memory": "4GB"})
        assert set(find_states(record).values()) == {"kept"}

    @pytest.mark.parametrize("name", ["ranks.parquet", "top.csv"])
    @pytest.mark.parametrize("damage", ["gone", "cut"])
    def test_damaged_results_are_made_again(self, name, damage):
        first, path = run(RUN), Path("out/web/pagerank", name)
        content = path.read_bytes()
        path.unlink() if damage == "gone" else path.write_bytes(content[:-3])
        plan = plan_pipeline("p.toml")
        assert plan.steps[1].why == f"out/web/pagerank/{name} is missing or was changed"
        second = run()
        assert find_states(second) == {"web": "kept", "web/pagerank": "made"}
        new = {path: digest for path, digest in find_digests(second).items() if "comparison" not in path}
        assert new == find_digests(first)

    def test_a_damaged_store_is_made_again(self, folder):
        first = run(RUN)
        next(folder.glob("out/web.zarr/versions/*/indices/c/0")).unlink()
        second = run()
        assert find_states(second) == {"web": "made", "web/pagerank": "kept"}
        assert find_digests(second) == find_digests(first)

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"x": 3}', '{"key": "k"}'])
    def test_notes_that_cannot_be_read_are_as_if_they_were_not_there(self, text):
        run(RUN)
        kept = Path("out/.mgspmv")
        for note in (kept / "sources.json", kept / "begun/web.json"):
            note.parent.mkdir(exist_ok=True)
            note.write_text(text.replace("x", os.path.abspath("edges.txt")))
        assert set(find_states(run()).values()) == {"kept"}
        Path("edges.txt").write_text("1 2\n2 1\n")
        assert find_states(run()) == {"web": "made", "web/pagerank": "made"}

    def test_records_of_another_program_do_not_count(self, monkeypatch):
        run(RUN)
        monkeypatch.setattr("mgspmv.pipeline.steps.__version__", "99")
        assert set(find_states(run()).values()) == {"made"}
        Path("out/.mgspmv/steps/web/pagerank.json").write_text('{"mgspmv_step": 99}')
        assert find_states(run())["web/pagerank"] == "made"


class TestComparison:
    def test_with_the_ranks_that_are_replaced(self):
        run(RUN)
        before = load_solution("out/web/pagerank/ranks.parquet")
        Path("edges.txt").write_text("1 2\n2 3\n3 1\n1 3\n3 2\n4 1\n")
        record = run().steps[1].record
        now = load_solution("out/web/pagerank/ranks.parquet")
        found = json.loads(Path("out/web/pagerank/comparison.json").read_text())
        assert found == record.comparison
        assert (found["n_common"], found["n_new"], found["n_gone"]) == (3, 1, 0)
        assert found["l1"] == pytest.approx(np.abs(now.values[:3] - before.values).sum() + now.values[3])
        assert set(found["before"]) == {"key", "ended"}

    def test_not_where_nobody_wants_it(self):
        run(RUN)
        record = run(RUN + "[output]\ncompare = false\n", overrides={"run.tol": 1e-12})
        assert record.steps[1].record.comparison == {}
        run(RUN + '[output]\nformats = ["csv"]\n')
        assert run(overrides={"run.tol": 1e-9}).steps[1].record.comparison == {}

    def test_ranks_of_other_vertices_start_nothing(self):
        run(RUN + 'nstart = "previous"\n')
        Path("edges.txt").write_text("a b\nb a\nb c\n")
        record = run().steps[1].record
        assert record.result["start"] == "uniform"
        assert record.comparison["n_common"] == 0


class TestCheckpoints:
    """Of a run that was broken off: here, because it made too few iterations."""

    KEPT = Path("out", ".mgspmv", "checkpoints")

    def break_off(self):
        assert fail(RUN + "checkpoint = true\n", overrides={"run.max_iter": 5}).exit_code == 5
        assert len(list(self.KEPT.iterdir())) == 1

    def test_it_goes_on(self):
        whole = run(RUN, overrides={"folder": "whole"}).steps[1].record
        self.break_off()
        record = run(RUN + "checkpoint = true\n").steps[1].record
        assert (record.result["resumed_after"], whole.result["resumed_after"]) == (5, 0)
        assert [record.result[name] for name in ("digest", "changes")] == [
            whole.result[name] for name in ("digest", "changes")
        ]
        assert record.key == whole.key
        assert not list(self.KEPT.iterdir())

    def test_what_is_of_something_else_is_not_gone_on_with(self):
        self.break_off()
        record = run(RUN + "checkpoint = true\n", overrides={"run.alpha": 0.5}).steps[1].record
        assert (record.result["status"], record.result["resumed_after"]) == ("converged", 0)


class TestFailures:
    def test_a_matrix_that_fails_fails_its_runs_and_nothing_else(self):
        Path("ring.mtx").unlink()
        error = fail(THREE)
        states = find_states(error.record)
        assert {name: state for name, state in states.items() if state != "made"} == {
            "ring": "failed",
            **{f"ring/{name}": "skipped" for name in ("damping/alpha=0.5", "damping/alpha=0.85", "plain", "warm")},
        }
        assert isinstance(error.__cause__, SourceNotFoundError)
        assert error.exit_code == 3
        assert str(error) == "ring: ring.mtx: there is no such file; check the path"
        assert error.record.steps[-1].error == "needs ring, which failed"
        write_sources(Path("."))
        assert [name for name, state in find_states(run()).items() if state == "made"] == [
            "ring",
            "ring/damping/alpha=0.5",
            "ring/damping/alpha=0.85",
            "ring/plain",
            "ring/warm",
        ]

    def test_what_did_not_converge_says_how_far_it_came(self):
        run(RUN)
        before, steps = list_files("out/web/pagerank"), list_files("out/.mgspmv/steps")
        error = fail(overrides={"run.max_iter": 2})
        [said] = str(error).splitlines()
        assert said.startswith("web/pagerank: PageRank did not converge: L1 change")
        assert " after 2 iterations (tol " in said
        assert said.endswith("; for its convergence so far, run: mgspmv report out")
        assert list_files("out/web/pagerank") == before
        assert list_files("out/.mgspmv/steps") == steps
        newest = load_run("out")
        assert newest == read_record(RunRecord, error.record.to_dict(), "")
        step = newest.steps[1]
        assert (step.state, step.record.outputs, step.record.top) == ("failed", [], [])
        assert (step.record.result["status"], len(step.record.result["changes"])) == ("max_iter", 2)
        assert step.record.options["max_iter"] == 2
        assert step.record.seconds["product"] > 0
        text = render_report(newest)
        assert "web: convergence" in text
        assert " after 2 iterations (tol " in text
        assert find_states(run()) == {"web": "kept", "web/pagerank": "kept"}

    def test_an_error_of_the_program_fails_its_step(self, monkeypatch):
        def break_off(*given, **options):
            raise ZeroDivisionError("division by zero")

        with monkeypatch.context() as patch:
            patch.setattr("mgspmv.pipeline.make_steps.write_top", break_off)
            assert str(fail(RUN)) == "web/pagerank: ZeroDivisionError: division by zero"
        assert find_states(run()) == {"web": "kept", "web/pagerank": "made"}

    def test_a_source_that_changes_while_it_is_read(self, monkeypatch):
        from mgspmv.pipeline import make_steps

        def ingest(source, store, **options):
            info = mg.ingest(source, store, **options).info
            Path(source).write_text("1 2\n")
            return info

        with monkeypatch.context() as patch:
            patch.setattr(make_steps, "ingest", ingest)
            error = fail(RUN)
        assert isinstance(error.__cause__, SourceError)
        assert "source changed while web was made from it; run the pipeline again" in str(error)
        assert set(find_states(run()).values()) == {"made"}
        assert mg.open_matrix("out/web.zarr").nnz == 1

    def test_memory_that_no_matrix_is_made_in(self):
        assert "web: memory must be at least 1GiB" in str(fail(RUN, overrides={"limits.memory": "1MB"}))


class TestEndsEarly:
    def test_two_runs_of_one_folder(self):
        run(RUN)
        with Records(Path("out")).hold():
            with pytest.raises(PipelineBusyError, match="another run is using out; wait until it ends"):
                run(overrides={"run.tol": 1e-9})
            assert set(find_states(run()).values()) == {"kept"}  # nothing is to be done
        assert find_states(run(overrides={"run.tol": 1e-9}))["web/pagerank"] == "made"

    def test_an_interrupted_run_says_what_is_kept(self, monkeypatch):
        ranked = []

        def interrupt(matrix, **options):
            ranked.append(matrix)
            if len(ranked) == 7:  # of rmat/plain
                os.kill(os.getpid(), signal.SIGINT)
            return mg.pagerank(matrix, **options)

        with monkeypatch.context() as patch:
            patch.setattr("mgspmv.pipeline.make_steps.pagerank", interrupt)
            with pytest.raises(RunInterrupted) as caught:
                run(THREE)
        states = find_states(caught.value.record)
        assert states["rmat/plain"] == "failed"
        assert states["ring"] == "skipped"
        assert "web, web/damping/alpha=0.5" in str(caught.value)
        assert str(caught.value).endswith("run it again to resume")
        record = run()
        kept = [name for name, state in find_states(record).items() if state == "kept"]
        assert kept == [name for name, state in states.items() if state == "made"]


def test_on_a_cluster(in_process):
    """To the bits of this process; matrices are made by the workers, and what they hold is let go of."""
    Path("seeds.csv").write_text("vector,vertex\na,1\nb,2\nc,3\n")
    text = THREE.replace("[run.damping]\nalpha = [0.5, 0.85]\n", "").replace('nstart = "previous"', "tol = 1e-7")
    text += '[batch.topics]\nmatrix = "web"\npersonalization = "seeds.csv"\ntop = 2\n'
    text += '[batch.dampings]\nmatrix = "ring"\nalpha = [0.5, 0.85]\n'
    client = in_process(2)
    there = run(text, overrides={"cluster.ingest": True}, client=client)
    here = run(text, overrides={"folder": "here"})
    assert [digest for _, digest in sorted(find_digests(there).items())] == [
        digest for _, digest in sorted(find_digests(here).items())
    ]
    assert {step.name for step in there.steps if "exchange" in step.record.seconds} == {
        step.name for step in there.steps if step.kind in ("pagerank", "batch")
    }
    assert set(find_states(run(text)).values()) == {"kept"}
