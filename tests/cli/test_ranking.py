"""PageRank at the command line."""

from __future__ import annotations

import subprocess
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from mgspmv.results import load_solution
from tests.support.commands import EDGES, TINY_RMAT, invoke, invoke_json, start


def test_pagerank_is_that_of_networkx():
    invoke("ingest", "edges.txt", "g.zarr")
    answer = invoke_json("pagerank", "g.zarr", "--tol", "1e-14", "-o", "r.parquet", "-o", "r.csv", "--top", "3")
    expected = nx.pagerank(nx.DiGraph(EDGES), tol=1e-15, max_iter=200)
    assert {entry["id"]: entry["rank"] for entry in answer["top"]} == pytest.approx(
        {name: expected[name] for name in sorted(expected, key=expected.get)[-3:]}, abs=1e-13
    )
    assert answer["saved"] == ["r.parquet", "r.csv"]
    assert (answer["status"], len(answer["changes"])) == ("converged", answer["iterations"])
    assert dict(load_solution("r.parquet").top(4)) == pytest.approx(expected, abs=1e-13)
    assert Path("r.csv").read_text().startswith("id,rank\n1,")


def test_ranks_of_the_reversed_graph():
    invoke("ingest", "edges.txt", "g.zarr", "--transpose")
    answer = invoke_json("pagerank", "g.zarr", "--reverse", "--tol", "1e-14", "--top", "4")
    expected = nx.pagerank(nx.DiGraph(EDGES).reverse(), tol=1e-15, max_iter=200)
    assert {entry["id"]: entry["rank"] for entry in answer["top"]} == pytest.approx(expected, abs=1e-13)
    assert answer["matrix"]["reversed"] is True
    invoke("ingest", "edges.txt", "h.zarr")
    _, stderr = invoke("pagerank", "h.zarr", "--reverse", code=2)
    assert "h.zarr does not hold the transpose; add it with `mgspmv transpose`" in stderr


def test_options_of_pagerank_are_given_on():
    invoke("ingest", "edges.txt", "g.zarr")
    Path("p.txt").write_text("1 3\n2 1\n")
    Path("d.txt").write_text("5 1\n")
    np.save("s.npy", [1.0, 0, 0, 0])
    vectors = ["--personalization", "p.txt", "--dangling", "d.txt", "--nstart", "s.npy"]
    options = ["--alpha", "0.5", "--tol", "1e-12", "--norm", "linf", "--max-iter", "300", "--precision", "float64"]
    answer = invoke_json("pagerank", "g.zarr", *vectors, *options, "--threads", "1", "--kernel", "csr-serial")
    expected = nx.pagerank(nx.DiGraph(EDGES), 0.5, {1: 3, 2: 1}, dangling={5: 1}, tol=1e-15, max_iter=200)
    assert {entry["id"]: entry["rank"] for entry in answer["top"]} == pytest.approx(expected, abs=1e-11)
    wanted = {"alpha": 0.5, "tol": 1e-12, "norm": "linf", "max_iter": 300, "precision": "float64"}
    assert {name: answer["options"][name] for name in wanted} == wanted
    high = invoke_json("pagerank", "g.zarr", "--stop", "topk:1", "--max-iter", "300")
    assert "host memory of a worker for --stop topk:1  356 B" in invoke("plan", "g.zarr", "--stop", "topk:1")[0]
    assert invoke_json("plan", "g.zarr", "--stop", "topk:1")["workers"][0]["watch_bytes"] == 4 * 89
    assert (high["status"], high["stability"]["k"]) == ("stable", 1)
    assert "the 1 are proven, in this order" in invoke("pagerank", "g.zarr", "--stop", "topk:1")[0]
    fixed = invoke_json("pagerank", "g.zarr", "--norm", "fixed", "--max-iter", "4")
    assert (fixed["status"], fixed["iterations"]) == ("completed", 4)
    invoke("pagerank", "g.zarr", "--norm", "l1_per_node", "--dangling", "drop")


def test_out_weights_and_relative_changes():
    invoke("ingest", "edges.txt", "g.zarr")
    plain = invoke_json("pagerank", "g.zarr", "--norm", "relative", "--tol", "1e-3")
    Path("w.txt").write_text("".join(f"{name} {9 if name == 1 else 2}\n" for name in (1, 2, 3, 5)))
    given = invoke_json("pagerank", "g.zarr", "--out-weight", "w.txt")
    assert (plain["options"]["norm"], plain["options"]["out_weight"]) == ("relative", "store")
    assert given["options"]["out_weight"] == "vector"
    assert sum(entry["rank"] for entry in given["top"]) < 0.95
    Path("w.txt").write_text("1 0.5\n")
    _, stderr = invoke("pagerank", "g.zarr", "--out-weight", "w.txt", code=2)
    assert stderr.startswith("error: --out-weight of vertex 1 is 0.5, less than the sum of its stored out-edges, ")


def test_string_ids_and_what_looks_like_markup():
    Path("n.txt").write_text("[red]a :smile:\n:smile: [red]a\n")
    invoke("ingest", "n.txt", "n.zarr", "--ids", "string")
    Path("p.txt").write_text("[red]a 1\n")
    stdout, _ = invoke("pagerank", "n.zarr", "--personalization", "p.txt", "-o", "n.parquet")
    assert "[red]a" in stdout
    assert ":smile:" in stdout
    assert [entry["id"] for entry in invoke_json("top", "n.parquet")["top"]] == ["[red]a", ":smile:"]


def test_scores_in_place_of_ranks():
    invoke(*TINY_RMAT)
    plain = invoke_json("pagerank", "r.zarr", "-o", "plain.zarr")
    scaled = invoke_json("pagerank", "r.zarr", "--scaler", "max", "-o", "r.zarr.parquet", "-o", "r.csv")
    most = plain["top"][0]["rank"]
    wanted = {entry["id"]: entry["rank"] / most for entry in plain["top"]}
    assert {entry["id"]: entry["rank"] for entry in scaled["top"]} == pytest.approx(wanted, rel=1e-15)
    assert scaled["options"]["scaler"] == load_solution("r.zarr.parquet").scaler == "max"
    assert "scaler" not in plain["options"]
    assert scaled["error_bound_l1"] == plain["error_bound_l1"]
    assert max(float(line.split(",")[1]) for line in Path("r.csv").read_text().splitlines()[1:]) == 1.0
    stdout, _ = invoke("pagerank", "r.zarr", "--scaler", "stdscore")
    assert "before scaling" in stdout
    assert "ranks scaled by stdscore" in stdout
    _, stderr = invoke("pagerank", "r.zarr", "--scaler", "maximum", code=2)
    assert stderr.startswith("error: --scaler must be one of 'none', 'minmax', ")


def test_ranks_on_standard_output():
    invoke("ingest", "edges.txt", "g.zarr")
    stdout, stderr = invoke("pagerank", "g.zarr", "-o", "-", "-o", "r.csv")
    assert stdout == Path("r.csv").read_text()
    for shown in ("vertex", "converged", "saved             r.csv\n"):
        assert shown in stderr
    stdout, stderr = invoke("pagerank", "g.zarr", "-o", "-", "--max-iter", "2", code=5)
    assert len(stdout.splitlines()) == 5
    assert stderr.splitlines()[-1].startswith("error: PageRank did not converge: L1 change")


@pytest.mark.slow
def test_nobody_reads_the_ranks():
    invoke("generate", "uniform", "u.zarr", "--n-vertices", "20000", "--n-edges", "40000")
    with start("pagerank", "u.zarr", "-o", "-", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == "id,rank\n"
        process.stdout.close()
        assert "converged" in process.stderr.read()
    assert process.returncode == 141


def test_not_converged_is_written():
    invoke("ingest", "edges.txt", "g.zarr")
    stdout, stderr = invoke("pagerank", "g.zarr", "--max-iter", "2", "-o", "r.zarr", code=5)
    assert "max_iter" in stdout
    assert stderr.startswith("error: PageRank did not converge: L1 change")
    assert stderr.endswith(" after 2 iterations (tol 1e-06). Increase --max-iter or --tol\n")
    assert load_solution("r.zarr").iterations == 2
