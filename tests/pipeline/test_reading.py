"""Definitions: what they may say, variables, overrides, and that all that is wrong is named at once."""

from __future__ import annotations

import re

import pytest

from mgspmv.errors import PipelineError
from mgspmv.pipeline.reading import read_pipeline
from tests.support.definitions import THREE, WEB, write_definition

PLACE = re.compile(r"^p\.toml(, as overridden)?: ")
"""Where a problem is."""
RUN = WEB + "[run]\nalpha = 0.85\ntol = 1e-8\n"


def problems_of(text: str, overrides=None) -> list[str]:
    with pytest.raises(PipelineError) as caught:
        read_pipeline(write_definition(text), overrides)
    lines = str(caught.value).splitlines()
    assert all(PLACE.match(line) for line in lines)
    return [PLACE.sub("", line) for line in lines]


def list_names(text: str, overrides=None) -> list[str]:
    definition = read_pipeline(write_definition(text), overrides)
    lanes = definition.list_steps()
    return [step.name for lane in lanes.values() for step in lane]


class TestSteps:
    @pytest.mark.parametrize(
        ("more", "names"),
        [
            ("", []),
            ("[run]\n", ["web/pagerank"]),
            ("[run]\nalpha = [0.8]\n", ["web/pagerank/alpha=0.8"]),
            ('[batch.b]\nalpha = [0.5, 0.6]\nprecision = ["exact"]\n', ["web/b/precision=exact"]),
        ],
    )
    def test_of_one_matrix(self, more, names):
        assert list_names(WEB + more) == ["web", *names]

    def test_each_run_of_each_graph(self):
        names = list_names(THREE)
        assert len(names) == 15
        assert names[:5] == ["web", "web/damping/alpha=0.5", "web/damping/alpha=0.85", "web/plain", "web/warm"]

    def test_lists_are_grids(self):
        text = RUN + '[run.a]\nprecision = ["exact", "float64"]\npersonalization = ["uniform", "sets/sports.csv"]\n'
        assert list_names(text)[1:] == [
            f"web/a/personalization={p},precision={precision}"
            for p in ("uniform", "sports")
            for precision in ("exact", "float64")
        ]

    def test_runs_share_what_they_do_not_say(self):
        text = WEB + "[run]\nalpha = 0.5\ntol = 1e-3\n[run.a]\nalpha = 0.6\n[run.b]\n"
        runs = read_pipeline(write_definition(text)).pipeline.runs
        assert [(run.alpha, run.tol, run.max_iter) for run in runs.values()] == [(0.6, 1e-3, 100), (0.5, 1e-3, 100)]

    def test_matrices_of_runs_and_products(self):
        text = WEB + '[matrix.a]\nsource = "x"\nkind = "matrix"\n[run]\n[product.y]\nx = "x.npy"\n'
        assert list_names(text) == ["web", "web/pagerank", "web/y", "a", "a/y"]
        assert list_names(text, {"product.y.matrix": "a", "run.matrix": ["web", "web"]}) == [
            "web",
            "web/pagerank",
            "a",
            "a/y",
        ]

    @pytest.mark.parametrize(
        ("store", "results", "targets"),
        [
            ("out/web.zarr", "s3://bucket/ranks/", ["out/web.zarr", "s3://bucket/ranks/web/pagerank"]),
            ("file:///data/web.zarr", "file:///data/ranks/", ["/data/web.zarr", "/data/ranks/web/pagerank"]),
        ],
    )
    def test_where_things_go(self, store, results, targets):
        """URLs of local files are paths."""
        text = WEB + f"store = '{store}'\n[run]\n[output]\nfolder = '{results}'\n"
        definition = read_pipeline(write_definition(text))
        [lane] = definition.list_steps().values()
        assert [step.target for step in lane] == targets


class TestPaths:
    def test_they_are_relative_to_the_file(self, folder):
        """All keys that are paths, and no others."""
        paths = {
            "folder": "out",
            "cluster.tls": "tls",
            "output.folder": "results",
            "matrix.web.source": ["a.txt", "b/*.txt"],
            "matrix.web.vertices": "ids.txt",
            "matrix.web.store": "w.zarr",
            "matrix.web.scratch": "scratch",
            "matrix.web.update": {"insert": "new.txt", "delete": ["old.txt", "older.txt"], "vertices": "ids.txt"},
            "matrix.own.open": "own.zarr",
            "run.a": dict.fromkeys(("personalization", "nstart", "dangling", "out_weight"), "x.csv"),
            "batch.b": {"personalization": "seeds.csv", "dangling": "d.csv", "out_weight": "w.csv"},
            "product.y": {"x": ["x.npy"], "y": "y.npy"},
        }
        (folder / "sub").mkdir()
        for name in ("x.csv", "d.csv"):
            (folder / "sub" / name).touch()
        definition = read_pipeline(write_definition("", "sub/p.toml"), paths)

        def join(value):
            if isinstance(value, dict):
                return {key: join(own) for key, own in value.items()}
            return [join(own) for own in value] if isinstance(value, list) else f"sub/{value}"

        expected = read_pipeline(write_definition(""), {key: join(value) for key, value in paths.items()}).pipeline
        assert definition.pipeline == expected
        assert definition.written.model_dump()["matrix"]["web"]["source"] == ["a.txt", "b/*.txt"]
        [web, *_] = definition.list_steps()["web"]
        assert (web.target, web.written.store, str(definition.folder)) == ("sub/w.zarr", "w.zarr", "sub/out")

    @pytest.mark.parametrize("path", ["/data/x.txt", "s3://bucket/x.txt", "file:///x.txt", "-", ""])
    def test_others_stay(self, folder, path):
        (folder / "sub").mkdir()
        definition = read_pipeline(write_definition(WEB, "sub/p.toml"), {"matrix.web.source": path})
        assert definition.pipeline.matrix["web"].source == path

    def test_words_are_no_paths(self, folder):
        words = {"personalization": "uniform", "nstart": "previous", "dangling": "drop"}
        (folder / "sub").mkdir()
        definition = read_pipeline(write_definition(WEB, "sub/p.toml"), {"run": words, "cluster.tls": "temporary"})
        assert definition.pipeline.run == definition.written.run
        assert definition.pipeline.cluster == definition.written.cluster

    def test_a_pattern_in_a_folder_that_looks_like_one(self, folder):
        """Only what the definition says is a pattern."""
        (folder / "[ab]").mkdir()
        (folder / "[ab]" / "c[1].txt").write_text("1 2\n")
        name = write_definition(WEB, "[ab]/p.toml")
        paths = [
            read_pipeline(name, {"matrix.web.source": path}).pipeline.matrix["web"].source
            for path in ("*.txt", "c[1].txt")
        ]
        assert paths == ["[[]ab]/*.txt", "[ab]/c[1].txt"]

    def test_without_a_folder_it_is_beside_the_file(self, folder):
        (folder / "sub").mkdir()
        assert str(read_pipeline(write_definition(WEB.replace('folder = "out"', ""), "sub/p.toml")).folder) == "sub/p"


class TestVariables:
    def test_they_are_replaced(self, monkeypatch):
        monkeypatch.setenv("DATA", "/data")
        monkeypatch.setenv("EMPTY", "")
        monkeypatch.delenv("NOWHERE", raising=False)
        text = WEB.replace("edges.txt", "${DATA}/${NOWHERE:-web}${EMPTY:-.mtx}${EMPTY}${NOWHERE:-}$$1 $x")
        definition = read_pipeline(write_definition(text))
        assert definition.pipeline.matrix["web"].source == "/data/web.mtx$1 $x"
        assert definition.tables["matrix"]["web"]["source"] in text, "as it is written"

    def test_what_is_not_set_is_named_with_all_else(self, monkeypatch):
        monkeypatch.delenv("NOWHERE", raising=False)
        assert problems_of(RUN.replace("edges.txt", "${NOWHERE}/x").replace("alpha", "alhpa")) == [
            "matrix.web.source: the environment variable NOWHERE is not set; set it, or write ${NOWHERE:-DEFAULT}",
            "run.alhpa: unknown key; did you mean 'alpha'?",
        ]


class TestOverrides:
    def test_keys_and_tables_that_are_not_there_are_made(self):
        pipeline = read_pipeline(
            write_definition(RUN), {"run.alpha": 0.5, "run.a.top": 7, "limits.threads": 1, "output.formats": ["csv"]}
        ).pipeline
        assert (pipeline.runs["a"].alpha, pipeline.runs["a"].top, pipeline.limits.threads) == (0.5, 7, 1)
        assert pipeline.output.formats == ["csv"]

    def test_what_cannot_be_set(self):
        assert problems_of(RUN, {"folder.x": 1, "run..y": 2, "run.alhpa": 0.5}) == [
            "folder.x: cannot be set: folder is 'out', not a table",
            "run..y: not a valid key; join tables and key by dots, such as run.alpha",
            "run.alhpa: unknown key; did you mean 'alpha'?",
        ]

    def test_what_comes_of_them_is_said_to(self):
        with pytest.raises(PipelineError) as caught:
            read_pipeline(write_definition(WEB + "[run]\ntol = -1.0\n"), {"run.alpha": 2.0})
        assert str(caught.value).splitlines() == [
            "p.toml, as overridden: run.alpha: alpha must be at least 0 and less than 1, not 2.0",
            "p.toml: run.tol: tol must be a positive number, not -1.0; norm='fixed' needs no tolerance",
        ]


def test_a_mistake_that_runs_share_is_said_once_and_of_where_it_is():
    text = WEB + "[run]\nalpha = 1.5\n[run.a]\n[run.b]\ntol = -1.0\n"
    assert [line.partition(":")[0] for line in problems_of(text)] == ["run.alpha", "run.b.tol"]


@pytest.mark.parametrize("value", ["${DATA/x", "${1}", "${}", "${DATA:-${HOME}}"])
def test_what_is_no_variable(value):
    assert problems_of(RUN.replace("edges.txt", value)) == [
        f"matrix.web.source: expected ${{NAME}} or ${{NAME:-DEFAULT}}, not nested, or $$ for a $; got {value!r}"
    ]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("alpha", "alhpa"), "run.alhpa: unknown key; did you mean 'alpha'?"),
        (("source", "zebra"), "matrix.web.zebra: unknown key; known keys: format, n_vertices, vertices, delim"),
        (("[run]", 'kind = "grpah"\n[run]'), "matrix.web.kind: input should be 'graph', 'matrix' or 'stochastic', not"),
        (("0.85", '"0.85"'), "run.alpha: input should be a valid number, not '0.85'"),
        (("0.85", '[0.5, "x"]'), "run.alpha.1: input should be a valid number, not 'x'"),
        (("0.85", "[]"), "run.alpha: list should have at least 1 item"),
        (("0.85", "1.5"), "run.alpha: alpha must be at least 0 and less than 1, not 1.5"),
        (("1e-8", "-1.0"), "run.tol: tol must be a positive number, not -1.0"),
        (("tol =", "top = 0\ntol ="), "run.top: input should be greater than or equal to 1, not 0"),
        (("tol =", 'stop = "top"\ntol ='), "run.stop: stop must be 'change', or 'topk:100'"),
        (
            ("tol =", 'checkpoint = true\nstop = "topk:5"\ntol ='),
            "run: checkpoints have only ranks, but stop='topk:5' needs more state to resume",
        ),
        (
            ("tol =", 'kernel = "csr-row"\ntol ='),
            "run.kernel: there is no kernel 'csr-row' for PageRank; did you mean",
        ),
        (
            ("tol =", 'kernel = "ell"\ntol ='),
            "run.kernel: there is no kernel 'ell' for PageRank; known kernels: auto, csr",
        ),
        (("[run]", '[product.y]\nx = "x"\nkernel = "elll"\n[run]'), "product.y.kernel: there is no kernel 'elll' for"),
        (("tol =", 'dangling = "dorp"\ntol ='), "run.dangling: dangling must be uniform, drop, error or a file"),
        (("tol =", 'matrix = "wbe"\ntol ='), "run.matrix: there is no matrix 'wbe'; did you mean 'web'?"),
        (("tol =", "reverse = true\ntol ="), "run.reverse: this needs the transpose; set transpose = true in [matr"),
        (("tol =", 'personalization = ["a/x.csv", "b/x.csv"]\ntol ='), "run: two combinations have the same label "),
        (
            ("[run]", 'kind = "matrix"\n[run]\nmatrix = "web"'),
            "run.matrix: 'web' is of kind 'matrix' and cannot be ran",
        ),
        (
            ('source = "edges.txt"', ""),
            "matrix.web: no source: set source (a file), generate (the name of a generator) or op",
        ),
        (("source =", 'open = "x.zarr"\nsource ='), "matrix.web: source and open are 2 sources; set only one of them"),
        (
            ("[run]", "parameters = {scale = 3}\n[run]"),
            "matrix.web: parameters: not used with source; remove one or the other",
        ),
        (('source = "edges.txt"', 'generate = "rmta"'), "matrix.web: there is no generator 'rmta'; did you m"),
        (
            ('source = "edges.txt"', 'generate = "rmat"\nparameters = {scael = 3}'),
            "matrix.web: generator rmat has no option 'scael'; did you mean 'scale'?",
        ),
        (
            ('source = "edges.txt"', 'generate = "rmat"\nparameters = {scale = 3}\ncolumns = ["a"]'),
            "matrix.web: columns: not used with generate; remove one or the other",
        ),
        (('source = "edges.txt"', 'open = "x"\norder = "rcm"'), "matrix.web: order: not used with open; remove"),
        (("[run]", "[matrix.web.update]\n[run]"), "matrix.web.update: no files: set insert (entries to add), delete"),
        (("[run]", '[matrix."a/b"]\nsource = "x"\n[run]'), "matrix.a/b: a name consists of letters, digits, - and _,"),
        (
            ("[run]", "[batch.b]\n[run.b]"),
            "batch.b: a run has the same name, and both would write to the same folder; rename one",
        ),
        (("[run]", "[product.y]\n[run]"), "product.y.x: required key is missing"),
        (("[run]", "[product]\ny = 3\n[run]"), "product.y: expected a table, [product.y], got 3"),
        (("[run]", '[product.y]\nx = "x"\ntranspose = true\n[run]'), "product.y.transpose: this needs the transpose"),
        (
            ("[run]", '[limits]\nmemory = "3XB"\n[run]'),
            "limits.memory: the value must be a size such as 141GB, 16GiB or 500MB",
        ),
        (
            ("[run]", '[cluster]\nkind = "address"\n[run]'),
            'cluster: kind = "address" and the address of a scheduler require each other',
        ),
        (("[run]", '[cluster]\nkind = "lokal"\n[run]'), "cluster: cluster must be one of local, cuda, slurm, pbs"),
        (
            ("[run]", '[cluster]\nkind = "address"\naddress = "tcp://x"\noptions = {cores = 1}\n[run]'),
            'cluster: workers, options and tls = "temporary" need a cluster that the pipeline starts; remove them',
        ),
        (
            ("[run]", '[cluster]\nkind = "ssh"\ntls = "temporary"\n[run]'),
            "cluster: temporary certificates exist on this machine only",
        ),
        (
            ("[run]", '[cluster]\nkind = "address"\naddress = "tcp://x"\nworkers = 2\n[run]'),
            'cluster: workers, options and tls = "temporary" need a cluster that the pipeline starts; remove them',
        ),
        (
            ("[run]", '[cluster]\nkind = "address"\naddress = "tls://x"\ntls = "temporary"\n[run]'),
            'cluster: workers, options and tls = "temporary" need a cluster that the pipeline starts; remove them',
        ),
        (("[run]", '[output]\nformats = ["xlsx"]\n[run]'), "output.formats.0: input should be 'zarr', 'parquet' or 'c"),
        (
            ("[run]", '[batch.b]\n[output]\nscaler = "max"\n[run]'),
            'batch.b: batches do not support scaler = "max" in [output]; remove the scaler or the batch',
        ),
        (
            ("tol =", 'nstart = "previous"\n[output]\nscaler = "l2norm"\n[run.a]\ntol ='),
            'run.a.nstart: nstart = "previous" needs unscaled ranks; set scaler = "none" in [output]',
        ),
        (
            ("tol =", 'nstart = "previous"\n[output]\nformats = ["csv"]\n[run.a]\ntol ='),
            'run.a.nstart: nstart = "previous" reads ranks in zarr or parquet; add one of them to formats in [output]',
        ),
        (('"out"', '"s3://bucket"'), "folder: records need a local path; to write results to a URL, set folder"),
    ],
)
def test_what_is_wrong_is_named(change, problem):
    assert change[0] in RUN
    assert problems_of(RUN.replace(*change, 1))[0].startswith(problem)


def test_all_problems_come_at_once():
    text = RUN.replace("alpha", "alhpa").replace("[run]", "kind = 3\n[run]\ntop = true")
    assert [line.split(":")[0] for line in problems_of(text)] == ["matrix.web.kind", "run.top", "run.alhpa"]
    text = RUN.replace("0.85", "1.5")
    text += 'dangling = "dorp"\n[output]\nformats = ["xlsx"]\n'
    keys = [line.split(":")[0] for line in problems_of(text)]
    assert keys == ["run.alpha", "run.dangling", "output.formats.0"]


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("nmae", "name"),
        ("cluster.wrokers", "workers"),
        ("matrix.web.sorce", "source"),
        ("matrix.web.update.insret", "insert"),
        ("run.damping.max_itr", "max_iter"),
        ("batch.topics.widht", "width"),
        ("product.y.tranpose", "transpose"),
        ("output.fromats", "formats"),
    ],
)
def test_near_misses_of_every_table(key, meant):
    [said] = problems_of(RUN.replace("[run]", "[run.damping]"), {key: 3, "product.y.x": "x.npy"})
    assert said == f"{key}: unknown key; did you mean {meant!r}?"


def test_no_matrix():
    assert problems_of("") == ["matrix: required key is missing"]
    [said] = problems_of("[matrix]\n")
    assert said.startswith("matrix: dictionary should have at least 1 item")


def test_what_is_no_toml(folder):
    with pytest.raises(PipelineError, match=r"p\.toml: not valid TOML: .*at line 2, column"):
        read_pipeline(write_definition("[matrix]\nsource = \n"))
    with pytest.raises(PipelineError, match=r"none\.toml: there is no such file; check the path$"):
        read_pipeline("none.toml")
    (folder / "b.toml").write_bytes(b"\xff")
    with pytest.raises(PipelineError, match=r"b\.toml: not valid TOML"):
        read_pipeline("b.toml")
