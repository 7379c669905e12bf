"""Commands that make stores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

import mgspmv
import mgspmv.partition
from mgspmv.errors import CapacityError
from tests.support.commands import invoke, invoke_json


def test_ingest_and_info():
    answer = invoke_json("ingest", "edges.txt", "g.zarr", "--transpose")
    assert answer["store"]["shape"] == [4, 4]
    assert answer["seconds"] > 0
    described = invoke_json("info", "g.zarr")
    assert described == answer["store"]
    assert (described["kind"], described["nnz"], described["has_transpose"]) == ("graph", 5, True)
    stdout, stderr = invoke("info", "g.zarr")
    assert f"digest          {described['digest']}" in stdout
    assert stderr == ""


def test_info_lists_facts_about_sources_as_text(folder):
    (folder / "a.csv").write_text("source,target\n1,2\n")
    (folder / "b.csv").write_text("source,target\n2,3\n")
    invoke("ingest", "a.csv", "b.csv", "g.zarr")
    stdout, _ = invoke("info", "g.zarr")
    assert "source header   columns: source, target\n" in stdout
    first, second = (line.strip() for line in stdout.splitlines() if ".csv, bytes: 18, sha256: " in line)
    assert first.startswith("source files    name: a.csv")
    assert second.startswith("name: b.csv")
    assert not any(sign in stdout for sign in "{[")


def test_update_and_versions(folder):
    invoke("ingest", "edges.txt", "g.zarr", "--transpose")
    (folder / "more.txt").write_text("5 1\n7 2\n")
    (folder / "less.txt").write_text("1 3 0.5\n1 9 0.5\n")
    answer = invoke_json("update", "g.zarr", "--insert", "more.txt", "--delete", "less.txt")
    assert (answer["store"]["nnz"], answer["store"]["shape"]) == (6, [5, 5])
    assert answer["store"]["provenance"]["updates"][0]["missing"] == 1
    options = "--memory", "64GiB", "--threads", "1", "--keep", "3"
    (folder / "again.txt").write_text("5 2\n")
    stdout, stderr = invoke("update", "g.zarr", "--delete", "less.txt", "--insert", "again.txt", *options)
    lines = stdout.splitlines()
    assert lines[0].startswith("g.zarr: graph, 5 x 5, 7 entries, a pattern, made in ")
    assert lines[1] == "1 entries inserted, 0 deleted, 2 missing"
    begins = ["deleted: less.txt, edge-list, 2 ", "inserted: again.txt, edge-list, 1 "]
    assert [line.startswith(begin) for line, begin in zip(lines[2:], begins, strict=True)] == [True, True]
    assert stderr == ""
    listed = invoke_json("versions", "g.zarr")
    assert listed["dropped"] == []
    assert [(v["number"], v["nnz"], v["shape"], v["current"]) for v in listed["versions"]] == [
        (1, 5, [4, 4], False),
        (2, 6, [5, 5], False),
        (3, 7, [5, 5], True),
    ]
    assert listed["versions"][1]["digest"] == answer["store"]["digest"]
    table = invoke("versions", "g.zarr")[0].rstrip().splitlines()
    assert table[-1].split()[:2] == ["3", listed["versions"][2]["version"]]
    assert table[-1].endswith("current")
    assert "current" not in table[-2]
    kept = invoke_json("versions", "g.zarr", "--keep", "1")
    assert kept["dropped"] == [v["version"] for v in listed["versions"][:2]]
    assert kept["versions"] == listed["versions"][2:]
    assert invoke("verify", "g.zarr")[0] == "g.zarr is valid\n"


def test_update_with_nothing_to_change(folder):
    before = invoke_json("ingest", "edges.txt", "g.zarr")["store"]
    (folder / "missing.txt").write_text("1 9\n")
    (folder / "there.txt").write_text((folder / "edges.txt").read_text())
    (folder / "empty.txt").write_text("# nothing today\n")
    said = f"g.zarr: nothing to change; version {before['version']} stays\n"
    for options in (
        ["--insert", "empty.txt"],
        ["--delete", "empty.txt"],
        ["--insert", "empty.txt", "--delete", "empty.txt"],
        ["--insert", "there.txt"],
        ["--delete", "missing.txt"],
    ):
        assert invoke("update", "g.zarr", *options) == (said, ""), options
        answer = invoke_json("update", "g.zarr", *options)
        assert (answer["changed"], answer["store"]) == (False, before)
    (folder / "more.txt").write_text("5 1\n")
    assert invoke_json("update", "g.zarr", "--insert", "more.txt")["changed"] is True
    assert invoke("ingest", "empty.txt", "other.zarr", code=3)[1].startswith("error: empty.txt: this file has no edges")


def test_options_of_update_are_given_on(folder, monkeypatch):
    invoke("ingest", "edges.txt", "g.zarr")
    given = {}

    def record(store, **options):
        given.update(options)
        raise CapacityError("enough")

    monkeypatch.setattr(mgspmv, "update", record)
    words = "--insert i --delete d --self-loops drop --symmetrize --keep 2 "
    words += "--memory 2GiB --format parquet --n-vertices 9 --vertices v --delimiter ; --no-weights --ids int "
    words += "--columns a,b --n-cols 5 --allow-hypersparse "
    words += "--threads 3 --scratch ."
    invoke("update", "g.zarr", *words.split(), code=6)
    assert given == {
        "insert": "i", "delete": "d", "self_loops": "drop", "symmetrize": True,
        "keep": 2, "memory": "2GiB", "format": "parquet", "n_vertices": 9, "vertices": "v",
        "delimiter": ";", "weights": False, "ids": "int", "columns": ["a", "b"], "n_cols": 5,
        "allow_hypersparse": True, "threads": 3, "scratch": ".",
    }  # fmt: skip


def test_what_update_refuses(folder):
    invoke("ingest", "edges.txt", "g.zarr")
    (folder / "names.txt").write_text("a b\n")
    (folder / "none.txt").write_text("1 5\n")
    for args, code, said in (
        (["g.zarr"], 2, "pass --insert, --delete or both"),
        (["g.zarr", "--insert", "edges.txt", "--keep", "0"], 2, "keep must be at least 1"),
        (["g.zarr", "--insert", "names.txt", "--no-header"], 3, "names.txt: the ids are strings, but the store has"),
        (["n.zarr", "--insert", "edges.txt"], 4, "there is no matrix store at n.zarr"),
    ):
        assert said in invoke("update", *args, code=code)[1]
    assert len(invoke_json("versions", "g.zarr")["versions"]) == 1


def test_ingest_in_an_order():
    stdout, stderr = invoke("ingest", "edges.txt", "g.zarr", "--order", "rcm")
    lines = stdout.splitlines()
    assert lines[0].startswith("g.zarr: graph, 4 x 4, 5 entries, a pattern, made in ")
    assert lines[1] == "order: rcm, bandwidth 2, was 2"
    assert [line.startswith("read: edges.txt, edge-list, 5 ") for line in lines[2:]] == [True]
    assert stderr == ""
    invoke("ingest", "edges.txt", "h.zarr")
    reordered = invoke_json("reorder", "h.zarr", "--method", "rcm")["store"]
    assert invoke_json("info", "g.zarr")["digest"] == reordered["digest"]
    answer = invoke_json("generate", "rmat", "r.zarr", "--scale", "5", "--order", "degree")["store"]
    assert (answer["order"], answer["provenance"]["options"]["order"]) == ("degree", "degree")
    for args, said in (
        (["ingest", "a.mtx", "w.zarr", "--order", "dealt"], "must be square; a.mtx has 2 rows and 3 columns"),
        (["generate", "rmat", "w.zarr", "--scale", "5", "--order", "amd"], "order must be one of 'none', 'rcm'"),
    ):
        stdout, stderr = invoke(*args, code=2)
        assert said in stderr
        assert stdout == ""


def test_options_of_ingest_are_given_on():
    with open("w.csv", "w") as file:
        file.write("ann;bob;2;x\nann;bob;3;x\nbob;bob;1;x\n")
    words = "--format edge-list --delimiter ; --ids string --duplicates keep "
    words += "--columns 1,2,3 --self-loops drop --dtype float32"
    stored = invoke_json("ingest", "w.csv", "w.zarr", *words.split())["store"]
    wanted = {"nnz": 2, "dtype": "float32", "vertex_ids": "string", "duplicates": "keep"}
    assert {name: stored[name] for name in wanted} == wanted
    answer = invoke_json("ingest", "edges.txt", "e.zarr", "--n-vertices", "9", "--symmetrize", "--kind", "matrix")
    assert (answer["store"]["shape"], answer["store"]["kind"], answer["store"]["nnz"]) == ([9, 9], "matrix", 8)
    Path("v.txt").write_text("1\n2\n3\n4\n5\n")
    answer = invoke_json("ingest", "edges.txt", "v.zarr", "--vertices", "v.txt", "--format", "edge-list")
    assert answer["store"]["shape"] == [5, 5]
    answer = invoke_json("ingest", "a.mtx", "p.zarr", "--no-weights")
    assert answer["store"]["dtype"] is None
    group = zarr.open_group("plain", mode="w")
    group.create_array("indptr", data=np.array([0, 1, 2]))
    group.create_array("indices", data=np.array([1, 0]))
    answer = invoke_json("ingest", "plain", "c.zarr", "--n-cols", "5", "--format", "csr")
    assert (answer["store"]["shape"], answer["store"]["kind"]) == ([2, 5], "matrix")


@pytest.mark.parametrize(
    ("args", "shape", "nnz"),
    [
        (["rmat", "--scale", "5", "--edge-factor", "3", "--duplicates", "keep", "--seed", "7"], [32, 32], 96),
        (["rmat", "--scale", "5", "--edge-factor", "3", "--duplicates", "keep", "--a", "0.25", "--b", "0.25",
          "--c", "0.25", "--no-scramble", "--weights"], [32, 32], 96),
        (["uniform", "--n-vertices", "10", "--n-edges", "20", "--duplicates", "keep"], [10, 10], 20),
        (["stencil2d", "--nx", "3", "--ny", "4", "--points", "9"], [12, 12], 70),
        (["stencil3d", "--nx", "2", "--ny", "2", "--nz", "2", "--pattern"], [8, 8], 24),
        (["banded", "--n", "5", "--bandwidth", "1"], [5, 5], 13),
    ],
)  # fmt: skip
def test_generate(args, shape, nnz):
    answer = invoke_json("generate", args[0], "m.zarr", *args[1:])["store"]
    assert (answer["shape"], answer["nnz"]) == (shape, nnz)


def test_warnings_of_an_ingest(folder):
    import pandas as pd

    frame = pd.DataFrame({"src": [0, 1], "dst": [1, 2], "weight": [1254192988, 1254203000]})
    frame.to_parquet(folder / "w.parquet", index=False)
    said = "column 3 'weight' looks like times (2009-09-29 .. 2009-09-29)"
    stdout, _ = invoke("ingest", "w.parquet", "w.zarr")
    assert stdout.splitlines()[-1] == f"warning: {said}; pass --no-weights if it is not a weight"
    assert invoke("info", "w.zarr")[0].splitlines()[-1].split(maxsplit=1) == ["warning:", said]
    stdout, _ = invoke("ingest", "w.parquet", "x.zarr", "--no-weights")
    assert "not read: column 3 'weight'" in stdout
    assert "warning" not in stdout
