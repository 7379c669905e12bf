"""Pipelines: what a definition may say, and that it does what it says, twice."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import zarr

import mgspmv as mg
from mgspmv.errors import (
    ConvergenceError,
    DanglingError,
    OptionError,
    PipelineError,
    StoreDamagedError,
    StoreExistsError,
)
from mgspmv.pipeline import Pipeline, read_pipeline, run_pipeline
from mgspmv.results import load_solution

QUICKSTART = """
[source]
generate = "rmat"
scale = 8
edge_factor = 8
seed = 1

[ingest]
store = "out/g.zarr"
kind = "graph"

[pagerank]
alpha = 0.85
tol = 1e-8

[results]
top = 3
save = ["out/ranks.parquet"]
"""

FILE = """
[source]
path = "edges.txt"

[ingest]
store = "g.zarr"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "edges.txt").write_text("# a cycle with a chord\n1 2\n2 3\n3 1\n1 3\n")
    return tmp_path


def write(text: str) -> str:
    with open("p.toml", "w") as file:
        file.write(text)
    return "p.toml"


def problems_of(text: str) -> list[str]:
    with pytest.raises(PipelineError) as caught:
        read_pipeline(write(text))
    return [line.removeprefix("p.toml: ") for line in str(caught.value).splitlines()]


def test_run_and_run_again(folder):
    events, phases = [], set()
    first = run_pipeline(
        write(QUICKSTART), on_event=events.append, on_progress=lambda phase, done, total: phases.add(phase)
    )
    assert not first.is_reused
    assert first.failure is None
    assert first.info.shape == (256, 256)
    assert len(first.top) == 3
    assert first.top == first.solution.top(3)
    assert first.saved == ["out/ranks.parquet"]
    assert len(events) == first.solution.iterations
    assert phases
    assert {"ingest", "product", "save"} <= set(first.seconds)
    second = run_pipeline("p.toml")
    assert second.is_reused
    assert second.solution.digest() == first.solution.digest()
    assert load_solution("out/ranks.parquet").digest() == first.solution.digest()
    assert sorted(entry.name for entry in (folder / "out").iterdir()) == ["g.zarr", "ranks.parquet"]


def test_the_reversed_graph_is_ranked():
    text = FILE + "transpose = true\n[pagerank]\nreverse = true\ntol = 1e-14\n"
    result = run_pipeline(write(text))
    expected = nx.pagerank(nx.DiGraph([(2, 1), (3, 2), (1, 3), (3, 1)]), tol=1e-15, max_iter=200)
    assert dict(result.top) == pytest.approx(expected, abs=1e-13)
    assert result.solution.matrix["reversed"] is True
    with pytest.raises(PipelineError, match=r"reverse: this needs the transpose; set transpose = true in \[ingest\]$"):
        read_pipeline(write(text.replace("transpose = true", "")))


def test_ranks_of_a_file_are_those_of_networkx():
    result = run_pipeline(write(FILE + "[pagerank]\ntol = 1e-14\n"))
    expected = nx.pagerank(nx.DiGraph([(1, 2), (2, 3), (3, 1), (1, 3)]), tol=1e-15)
    assert dict(result.top) == pytest.approx(expected, abs=1e-13)


def test_vectors_are_files_of_weights():
    with open("p.txt", "w") as file:
        file.write("1 3\n2 1\n")
    np.save("start.npy", [1.0, 0.0, 0.0])
    more = '[pagerank]\ntol = 1e-14\npersonalization = "p.txt"\ndangling = "uniform"\nnstart = "start.npy"\n'
    result = run_pipeline(write(FILE + more))
    graph = nx.DiGraph([(1, 2), (2, 3), (3, 1), (1, 3)])
    assert dict(result.top) == pytest.approx(nx.pagerank(graph, personalization={1: 3, 2: 1}, tol=1e-15), abs=1e-13)


def test_changes_are_followed():
    before = run_pipeline(write(FILE + "[pagerank]\ntol = 1e-14\n")).solution
    before.save("before.zarr")
    more = '[pagerank]\ntol = 1e-12\nnstart = "before.zarr"\nfollow_changes = true\n'
    result = run_pipeline(write(FILE + more))
    assert result.solution.followed.residual_before < 1e-12
    assert result.solution.iterations == 1


def test_out_weights_are_a_file():
    """Of 1, half of whose edges lead elsewhere."""
    with open("w.txt", "w") as file:
        file.write("1 4\n2 1\n3 1\n")
    more = '[pagerank]\ntol = 1e-14\ntol_mode = "relative"\nout_weight = "w.txt"\n'
    ranks = dict(run_pipeline(write(FILE + more)).top)
    share = np.array([[0, 0, 1], [0.25, 0, 0], [0.25, 1, 0]])
    expected = np.linalg.solve(np.eye(3) - 0.85 * share, np.full(3, 0.05))
    assert [ranks[k] for k in (1, 2, 3)] == pytest.approx(expected.tolist(), abs=1e-13)


def test_string_ids_in_weights():
    with open("edges.txt", "w") as file:
        file.write("ann bob\nbob cy\ncy ann\nann cy\n")
    with open("p.csv", "w") as file:
        file.write("name,weight\nbob,1\n")
    result = run_pipeline(write(FILE + '[pagerank]\ntol = 1e-14\npersonalization = "p.csv"\n'))
    graph = nx.DiGraph([("ann", "bob"), ("bob", "cy"), ("cy", "ann"), ("ann", "cy")])
    assert dict(result.top) == pytest.approx(nx.pagerank(graph, personalization={"bob": 1}, tol=1e-15), abs=1e-13)


def test_ranks_are_scaled():
    plain = run_pipeline(write(FILE))
    scaled = run_pipeline(write(FILE + '[results]\nscaler = "l2norm"\nsave = ["r.parquet"]\n'))
    lengths = np.linalg.norm(plain.solution.values)
    wanted = {name: rank / lengths for name, rank in plain.top}
    assert dict(scaled.top) == pytest.approx(wanted, rel=1e-14)
    assert load_solution("r.parquet").scaler == scaled.solution.scaler == "l2norm"
    with pytest.raises(PipelineError, match=r"results\.scaler: input should be 'none', 'minmax', .* not 'l3norm'"):
        read_pipeline(write(FILE + '[results]\nscaler = "l3norm"\n'))


def test_dangling_rule_is_given_on():
    with open("edges.txt", "w") as file:
        file.write("1 2\n")
    with pytest.raises(DanglingError):
        run_pipeline(write(FILE + '[pagerank]\ndangling = "error"\n'))


def test_overrides():
    pipeline = read_pipeline(write(FILE), {"pagerank.alpha": 0.5, "results.top": 2})
    assert pipeline.pagerank.alpha == 0.5
    assert pipeline.results.top == 2
    with pytest.raises(PipelineError, match=r"cannot set 'alpha'; name a key as SECTION\.KEY"):
        read_pipeline("p.toml", {"alpha": 0.5})
    with pytest.raises(PipelineError, match=r"pagerank\.alhpa: unknown key; did you mean 'alpha'\?"):
        read_pipeline("p.toml", {"pagerank.alhpa": 0.5})
    write("source = 3\n" + FILE.replace("[source]", ""))
    with pytest.raises(PipelineError, match="source is not a section"):
        read_pipeline("p.toml", {"source.path": "x"})


def test_a_checked_definition_runs_too():
    pipeline = read_pipeline(write(FILE))
    assert isinstance(pipeline, Pipeline)
    assert run_pipeline(pipeline).solution.iterations > 1


class TestStoreThatIsThere:
    @pytest.mark.parametrize(
        ("change", "difference"),
        [
            (("seed = 1", "seed = 2"), r"made from rmat\(.*seed=1.* and is to be from rmat\(.*seed=2"),
            (('kind = "graph"', 'kind = "graph"\nsymmetrize = true'), "symmetrize was False and is to be True"),
            (('kind = "graph"', ""), "kind was 'graph' and is to be None"),
        ],
    )
    def test_another_generator_or_option(self, change, difference):
        run_pipeline(write(QUICKSTART))
        with pytest.raises(StoreExistsError, match=f"{difference}.*set overwrite = true in \\[ingest\\]"):
            run_pipeline(write(QUICKSTART.replace(*change)))

    def test_options_of_edge_lists(self):
        text = FILE + 'n_vertices = 9\nids = "int"\n'
        run_pipeline(write(text))
        assert run_pipeline(write(text)).is_reused
        with pytest.raises(StoreExistsError, match="n_vertices was 9 and is to be 8"):
            run_pipeline(write(text.replace("9", "8")))

    def test_what_the_store_does_not_depend_on(self):
        text = FILE + 'memory = "64GiB"\nthreads = 1\nscratch = "."\nresume = true\n'
        run_pipeline(write(text))
        for change in (("64GiB", "65GiB"), ("threads = 1", "threads = 2"), ('scratch = "."', ""), ("true", "false")):
            assert run_pipeline(write(text.replace(*change))).is_reused
        with pytest.raises(OptionError, match="memory must be at least 1GiB"):
            run_pipeline(write(text.replace("64GiB", "2MiB")), overrides={"ingest.overwrite": True})

    def test_groups_have_no_checksum(self):
        group = zarr.open_group("plain", mode="w")
        group.create_array("indptr", data=np.array([0, 1, 2]))
        group.create_array("indices", data=np.array([1, 0]))
        text = FILE.replace("edges.txt", "plain") + 'kind = "graph"\nformat = "csr"\nn_cols = 2\n'
        assert run_pipeline(write(text)).info.nnz == 2
        with pytest.raises(
            StoreExistsError, match="whether it was made from plain as it is now cannot be told, for a Za"
        ):
            run_pipeline("p.toml")

    def test_changed_file(self):
        run_pipeline(write(FILE))
        with open("edges.txt", "a") as file:
            file.write("2 1\n")
        with pytest.raises(StoreExistsError, match=r"another edges\.txt, with another checksum"):
            run_pipeline("p.toml")
        result = run_pipeline("p.toml", overrides={"ingest.overwrite": True})
        assert (result.is_reused, result.info.nnz) == (False, 5)
        assert run_pipeline("p.toml").is_reused

    def test_store_of_a_part(self):
        run_pipeline(write(FILE))
        mg.subgraph("g.zarr", "g.zarr", vertices=[1, 2], overwrite=True)
        with pytest.raises(StoreExistsError, match="it is a part of what was made"):
            run_pipeline("p.toml")

    def test_updated_store(self):
        run_pipeline(write(FILE))
        mg.update("g.zarr", delete=((1,), (2,)))
        with pytest.raises(StoreExistsError, match="it was updated since it was made"):
            run_pipeline("p.toml")
        assert run_pipeline("p.toml", overrides={"ingest.overwrite": True}).info.nnz == 4
        assert run_pipeline("p.toml").is_reused

    def test_changed_list_of_vertices(self):
        with open("v.txt", "w") as file:
            file.write("1\n2\n3\n4\n")
        text = FILE + 'vertices = "v.txt"\n'
        assert run_pipeline(write(text)).info.shape == (4, 4)
        assert run_pipeline("p.toml").is_reused
        with open("v.txt", "a") as file:
            file.write("5\n")
        with pytest.raises(StoreExistsError, match=r"another v\.txt"):
            run_pipeline("p.toml")

    def test_damaged_store_is_not_passed_over(self, folder):
        run_pipeline(write(FILE))
        next(folder.glob("g.zarr/versions/*/indices/c/0")).unlink()
        with pytest.raises(StoreDamagedError):
            run_pipeline("p.toml")


def test_not_converged_is_saved_and_raised():
    text = FILE + '[pagerank]\nmax_iter = 2\n[results]\nsave = ["r.zarr"]\n'
    with pytest.raises(ConvergenceError) as caught:
        run_pipeline(write(text))
    assert load_solution("r.zarr").digest() == caught.value.solution.digest()
    result = run_pipeline("p.toml", throw=False)
    assert isinstance(result.failure, ConvergenceError)
    assert result.solution.iterations == 2


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("alpha = 0.85", 'stop = "top"'), "pagerank: stop must be 'change' or 'topk:100'"),
        (("alpha", "alhpa"), "pagerank.alhpa: unknown key; did you mean 'alpha'? it can be alpha, tol, tol_mode"),
        (("tol = 1e-8", "tolerance = 1"), "pagerank.tolerance: unknown key; did you mean 'tol'?"),
        (("[results]", "[result]"), "result: unknown key; did you mean 'results'? it can be source, ingest, pagerank"),
        (('kind = "graph"', "zebra = 1"), "ingest.zebra: unknown key; it can be store, overwrite, kind"),
        (('"graph"', '"grpah"'), "ingest.kind: input should be 'graph', 'matrix' or 'stochastic', not 'grpah'"),
        (("0.85", '"0.85"'), "pagerank.alpha: input should be a valid number, not '0.85'"),
        (("0.85", "1.5"), "pagerank: alpha must be at least 0 and less than 1, not 1.5"),
        (("1e-8", "-1.0"), "pagerank: tol must be a positive number, not -1.0"),
        (("top = 3", "top = 0"), "results.top: input should be greater than or equal to 1, not 0"),
        (("top = 3", "top = 3.5"), "results.top: input should be a valid integer, not 3.5"),
        (("ranks.parquet", "ranks.txt"), "results.save: out/ranks.txt: the name must end in .zarr, .parquet, .csv"),
        (('store = "out/g.zarr"', ""), "ingest.store: this is required"),
        (("scale", "scael"), "source: generator rmat has no option 'scael'; did you mean 'scale'?"),
        (("scale = 8", "scale = 99"), "source: scale must be an integer from 1 to 40, not 99"),
        (('"rmat"', '"rmta"'), "source: there is no generator 'rmta'; did you mean 'rmat'?"),
        (("seed", 'path = "x.mtx"\nseed'), "source: path and generate are two sources; leave one out"),
        (("generate =", "genarate ="), "source: give path, a file to read, or generate"),
        (("tol =", 'personalization = "no.txt"\ntol ='), "pagerank.personalization: there is no file 'no.txt'"),
        (
            ("tol =", "follow_changes = true\ntol ="),
            "pagerank: follow_changes begins at the ranks of the graph",
        ),
        (("tol =", 'dangling = "dorp"\ntol ='), "pagerank.dangling: dangling must be uniform, drop, error or a file"),
    ],
)
def test_what_is_wrong_is_named(change, problem):
    assert change[0] in QUICKSTART
    problems = problems_of(QUICKSTART.replace(*change, 1))
    assert problems[0].startswith(problem)


def test_misspelt_source():
    problems = problems_of(FILE.replace("path", "pth"))
    assert problems[0].startswith("source: give path, a file to read, or generate, the name of a generator; ")
    assert problems[0].endswith("unknown key 'pth'; did you mean 'path'?")
    problems = problems_of(FILE.replace("[ingest]", "scale = 3\n[ingest]"))
    assert problems == ["source: beside path there are no other keys; unknown key 'scale'"]


def test_options_of_files_with_a_generator():
    problems = problems_of(QUICKSTART.replace("[pagerank]", "n_vertices = 3\nweights = true\n[pagerank]"))
    assert problems == ["definition: [ingest] n_vertices, weights: this is for files, and the source is a generator"]


def test_all_problems_come_at_once():
    text = QUICKSTART.replace("alpha", "alhpa").replace('"graph"', "3").replace("top = 3", "top = true")
    assert [line.split(":")[0] for line in problems_of(text)] == ["ingest.kind", "pagerank.alhpa", "results.top"]


def test_missing_sections():
    assert problems_of("") == ["source: this is required", "ingest: this is required"]


def test_what_is_no_toml():
    with pytest.raises(PipelineError, match=r"p\.toml: not valid TOML: .*at line 2, column"):
        read_pipeline(write("[source]\npath = \n"))
    with pytest.raises(PipelineError, match=r"none\.toml: cannot read this pipeline: No such file"):
        read_pipeline("none.toml")
    with open("b.toml", "wb") as file:
        file.write(b"\xff")
    with pytest.raises(PipelineError, match=r"b\.toml: not valid TOML"):
        read_pipeline("b.toml")
