"""`mgspmv pagerank-batch`: a table of seeds in, ranks of each vector out."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mgspmv as mg
from mgspmv.cli.results import SHOWN_VECTORS
from tests.support.commands import invoke, invoke_json

EDGES = [(1, 2), (1, 5), (2, 1), (5, 9), (9, 1), (9, 2)]
SEEDS = "vector,vertex,weight\nbirds,1,3\nbirds,2,1\nfish,9,5\n"


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("edges.txt").write_text("".join(f"{a} {b}\n" for a, b in EDGES))
    Path("seeds.csv").write_text(SEEDS)
    invoke("ingest", "edges.txt", "g.zarr")


def test_ranks_are_those_of_networkx():
    options = ["--alpha", "0.85", "--alpha", "0.6", "--tol", "1e-13", "--max-iter", "500", "-o", "r.zarr"]
    answer = invoke_json("pagerank-batch", "g.zarr", "--personalization", "seeds.csv", *options)
    for described, alpha, p in zip(answer["vectors"], (0.85, 0.6), ({1: 3, 2: 1}, {9: 5}), strict=True):
        wanted = nx.pagerank(nx.DiGraph(EDGES), alpha, p, tol=1e-15, max_iter=500)
        assert {entry["id"]: entry["rank"] for entry in described["top"]} == pytest.approx(wanted, abs=1e-12)
        assert (described["status"], described["alpha"]) == ("converged", alpha)
    assert [v["label"] for v in answer["vectors"]] == ["birds", "fish"]
    assert answer["saved"] == ["r.zarr"]
    assert mg.load_batch("r.zarr")["fish"].options["tol"] == 1e-13


def test_only_the_highest_are_written():
    pq.write_table(pa.table({"vector": [4, 4, 6], "vertex": [1, 2, 9]}), "seeds.parquet")
    words = "--personalization seeds.parquet --keep-top 2 --dangling uniform --no-weight --precision float32 "
    words += "--width 2 --threads 1 -o r.parquet"
    answer = invoke_json("pagerank-batch", "g.zarr", *words.split())
    table = pq.read_table("r.parquet").to_pydict()
    assert table["vector"] == [4, 4, 6, 6]
    assert table["id"] == [entry["id"] for v in answer["vectors"] for entry in v["top"]]
    with mg.open_matrix("g.zarr") as A:
        for label, p in ((4, [1, 2]), (6, [9])):
            alone = mg.pagerank(A, personalization=dict.fromkeys(p, 1), dangling="uniform", precision="float32")
            assert mg.load_batch("r.parquet").top()[label] == alone.top(2)
    for name, value in {"top": 2, "dangling": "uniform", "weight": False, "precision": "float32", "width": 2}.items():
        assert answer["options"][name] == value


@pytest.mark.parametrize("options", [[], ["--keep-top", "2"]], ids=["all", "top"])
def test_ranks_on_standard_output(options):
    stdout, stderr = invoke(
        "pagerank-batch", "g.zarr", "--personalization", "seeds.csv", *options, "-o", "-", "-o", "r.parquet"
    )
    rows = pq.read_table("r.parquet").to_pylist()
    wanted = [f'"{row["vector"]}",{row["id"]},' for row in rows]
    header, *lines = stdout.splitlines()
    assert header == "vector,id,rank"
    assert [line[: len(begin)] for line, begin in zip(lines, wanted, strict=True)] == wanted
    assert [float(line.rpartition(",")[2]) for line in lines] == [row["rank"] for row in rows]
    assert "saved    r.parquet" in stderr


def test_options_are_given_on():
    Path("w.txt").write_text("1 3\n2 1\n5 1\n9 4\n")
    options = ["--out-weight", "w.txt", "--norm", "relative", "--tol", "1e-4", "--dangling", "drop"]
    answer = invoke_json("pagerank-batch", "g.zarr", "--personalization", "seeds.csv", *options)
    out_weight = {1: 3, 2: 1, 5: 1, 9: 4}
    with mg.open_matrix("g.zarr") as A:
        asked = {"out_weight": out_weight, "norm": "relative", "tol": 1e-4, "dangling": "drop"}
        alone = mg.pagerank(A, personalization={9: 1}, **asked)
    assert answer["vectors"][1]["iterations"] == alone.iterations
    assert [(entry["id"], entry["rank"]) for entry in answer["vectors"][1]["top"]] == alone.top()
    _, stderr = invoke("pagerank-batch", "g.zarr", "--reverse", code=2)
    assert "does not hold the transpose" in stderr


def test_for_people():
    stdout, stderr = invoke("pagerank-batch", "g.zarr", "--personalization", "seeds.csv", "-o", "r.zarr")
    assert stderr == ""
    for shown in ("vector", "birds", "fish", "converged", "2, up to 2 in each of", "time ", "saved    r.zarr\n"):
        assert shown in stdout
    Path("many.csv").write_text("vector,vertex\n" + "".join(f"v{k},1\n" for k in range(SHOWN_VECTORS + 3)))
    stdout, _ = invoke("pagerank-batch", "g.zarr", "--personalization", "many.csv")
    assert "3 vectors; see --json, or -o" in stdout
    assert f"v{SHOWN_VECTORS - 1}" in stdout
    assert f"v{SHOWN_VECTORS}" not in stdout


def test_the_highest_of_each_vector():
    personalized = ("pagerank-batch", "g.zarr", "--personalization", "seeds.csv")
    answer = invoke_json(*personalized, "--top", "2")
    assert [len(vector["top"]) for vector in answer["vectors"]] == [2, 2]
    lines = invoke(*personalized, "--top", "2")[0].splitlines()[3:7]
    assert [line.split()[-2] for line in lines] == [str(e["id"]) for v in answer["vectors"] for e in v["top"]]
    assert [line.split()[0] for line in lines[::2]] == ["birds", "fish"]


def test_what_is_refused():
    for options, message, code in (
        (["-o", "r.txt"], "the name must end in .zarr, .parquet, .csv; its suffix is .txt", 2),
        (["--personalization", "none.csv"], "there is no such file", 3),
        (["--backend", "gpu"], "backend must be one of", 2),
        ([*["--alpha", "0.1"] * 3, "--personalization", "seeds.csv"], "3 values of alpha but 2", 2),
    ):
        _, stderr = invoke("pagerank-batch", "g.zarr", *options, code=code)
        assert message in stderr
    invoke("pagerank-batch", "g.zarr", "-o", "r.zarr")
    _, stderr = invoke("top", "r.zarr", code=4)
    assert "holds the ranks of a batch of vectors; read it with load_batch" in stderr
