"""Pipelines at URLs: what is read and written there, kept there, and what is said when it cannot be."""

from __future__ import annotations

import io
import os

import fsspec
import numpy as np
import pytest
import zarr

import mgspmv as mg
from mgspmv.errors import SourceError, StepsFailedError
from mgspmv.pipeline import plan_pipeline, run_pipeline
from mgspmv.pipeline.steps import fetch
from tests.support.definitions import EDGES, find_digests, find_states, write_definition

WHOLE = """
folder = "out"
[matrix.web]
source = "${URL}/edges.txt"
store = "${URL}/stores/web.zarr"
[run]
[run.damping]
alpha = [0.5]
personalization = "${URL}/sports.csv"
dangling = "${URL}/start.npy"
[run.warm]
nstart = "previous"
[batch.topics]
personalization = "${URL}/seeds.csv"
[product.y]
x = ["${URL}/start.npy", "${URL}/x.zarr"]
format = "zarr"
[output]
folder = "${URL}/ranks"
formats = ["zarr", "parquet", "csv"]
"""


@pytest.fixture
def url(tmp_path, monkeypatch):
    """Of a folder in memory, with what `WHOLE` reads."""
    monkeypatch.chdir(tmp_path)
    place = f"memory://{os.urandom(4).hex()}"
    np.save(start := io.BytesIO(), np.array([1.0, 2.0, 3.0]))
    files = {"edges.txt": EDGES, "sports.csv": "1 2\n2 1\n"}
    files |= {"seeds.csv": "vector,vertex\na,1\nb,2\n", "none.csv": "1\n", "bad.csv": "id,weight\n1,x\n"}
    system = fsspec.filesystem("memory")
    for name, text in files.items():
        system.pipe(f"{place}/{name}", text.encode())
    system.pipe(f"{place}/start.npy", start.getvalue())
    zarr.create_array(f"{place}/x.zarr", data=np.array([4.0, 5.0, 6.0]))
    monkeypatch.setenv("URL", place)
    write_definition(WHOLE)
    return place


def fail(**overrides):
    given = {name.replace("__", "."): value for name, value in overrides.items()}
    with pytest.raises(StepsFailedError) as caught:
        run_pipeline("p.toml", overrides=given)
    return [step.error for step in caught.value.record.steps if step.state == "failed"]


def test_all_of_it(url, tmp_path, monkeypatch):
    """Sources, inputs, stores and results: to the digests of local ones, and nothing is written twice."""
    record = run_pipeline("p.toml")
    there = {path.removeprefix(f"{url}/"): digest for path, digest in find_digests(record).items()}
    system = fsspec.filesystem("memory")
    before = {path: info["created"] for path, info in system.find(url, detail=True).items()}
    assert set(find_states(run_pipeline("p.toml")).values()) == {"kept"}
    assert plan_pipeline("p.toml").is_finished
    assert {path: info["created"] for path, info in system.find(url, detail=True).items()} == before
    for name in ("edges.txt", "sports.csv", "start.npy", "seeds.csv", "x.zarr"):
        with fetch(f"{url}/{name}") as local:
            local.rename(tmp_path / name)
    monkeypatch.setenv("URL", str(tmp_path))
    here = run_pipeline("p.toml", overrides={"folder": "here"})
    assert {path.removeprefix(f"{tmp_path}/"): digest for path, digest in find_digests(here).items()} == there
    assert mg.load_solution(f"{url}/ranks/web/warm/ranks.zarr").status == "converged"


def test_an_input_that_changes(url):
    write_definition(WHOLE.partition("[output]")[0])
    run_pipeline("p.toml")
    zarr.open_array(f"{url}/x.zarr", mode="r+")[0] = 7.0
    fsspec.filesystem("memory").pipe(f"{url}/seeds.csv", b"vector,vertex\na,3\n")
    states = find_states(run_pipeline("p.toml"))
    assert [name for name, state in states.items() if state == "made"] == ["web/topics", "web/y/x=x"]


class TestErrors:
    """Each is one line that says what to do."""

    def test_inputs(self, url):
        write_definition(WHOLE.partition("[output]")[0])
        missing = {"product__y__x": f"{url}/no.zarr", "run__damping__personalization": f"{url}/no.csv"}
        faulty = {"run__warm__personalization": f"{url}/bad.csv", "batch__topics__personalization": f"{url}/none.csv"}
        *damping, warm, topics, product = fail(**missing, **faulty)
        there = "${URL}"  # as the definition has it
        assert [*damping, product] == [
            f"{there}/no.{suffix}: there is no such file; check the path" for suffix in ("csv", "zarr")
        ]
        assert warm == f"{there}/bad.csv, line 2: '1,x': expected weight to be a finite number, found 'x'"
        assert "it needs vector and vertex" in topics

    def test_what_is_wrong_is_said_of_the_url(self, url):
        name = f"{url}/none.csv"
        with pytest.raises(SourceError, match=f"^{name}: bad$"), fetch(name) as local:
            raise SourceError("bad", source=str(local))
