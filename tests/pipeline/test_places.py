"""Pipelines in object stores: what is read and written there, kept there, and what is said when it cannot be."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
import zarr

import mgspmv as mg
from mgspmv.errors import SourceError, StepsFailedError, StoreError
from mgspmv.pipeline import plan_pipeline, run_pipeline
from mgspmv.pipeline.outputs import read_stamp
from mgspmv.pipeline.places import explain_failures, fetch, fetch_input
from tests.support.buckets import serve_s3
from tests.support.definitions import EDGES, find_digests, find_states, write_definition, write_sources

WHOLE = """
folder = "out"
[matrix.web]
path = "${URL}/edges.txt"
store = "${URL}/stores/web.zarr"
labels = "${URL}/names.csv"
[run]
[run.damping]
alpha = [0.5]
personalization = "${URL}/sports.csv"
dangling = "${URL}/start.npy"
[run.warm]
nstart = "previous"
[batch.topics]
seeds = "${URL}/seeds.csv"
[product.y]
x = ["${URL}/start.npy", "${URL}/x.zarr"]
format = "zarr"
[output]
folder = "${URL}/ranks"
formats = ["zarr", "parquet", "csv"]
"""


@pytest.fixture(scope="module")
def s3():
    with serve_s3() as system:
        yield system


@pytest.fixture
def url(s3, tmp_path, monkeypatch):
    """Of a folder in a bucket, with what `WHOLE` reads."""
    monkeypatch.chdir(tmp_path)
    folder = f"bucket/{os.urandom(4).hex()}"
    np.save(start := io.BytesIO(), np.array([1.0, 2.0, 3.0]))
    files = {"edges.txt": EDGES, "names.csv": "id,label\n3,three\n", "sports.csv": "1 2\n2 1\n"}
    files |= {"seeds.csv": "vector,vertex\na,1\nb,2\n", "none.csv": "1\n", "bad.csv": "id,weight\n1,x\n"}
    for name, text in files.items():
        s3.pipe(f"{folder}/{name}", text.encode())
    s3.pipe(f"{folder}/start.npy", start.getvalue())
    zarr.create_array(f"s3://{folder}/x.zarr", data=np.array([4.0, 5.0, 6.0]))
    monkeypatch.setenv("URL", f"s3://{folder}")
    write_definition(WHOLE)
    return f"s3://{folder}"


@pytest.fixture
def asked(monkeypatch):
    """What is asked of an S3: names of its operations."""
    from s3fs import S3FileSystem

    names, call = [], S3FileSystem._call_s3

    async def note(self, method, *given, **options):
        names.append(method)
        return await call(self, method, *given, **options)

    monkeypatch.setattr(S3FileSystem, "_call_s3", note)
    return names


def fail(**overrides):
    given = {name.replace("__", "."): value for name, value in overrides.items()}
    with pytest.raises(StepsFailedError) as caught:
        run_pipeline("p.toml", overrides=given)
    return [step.error for step in caught.value.record.steps if step.state == "failed"]


@pytest.mark.external
def test_all_of_it(url, asked, tmp_path):
    """Sources, inputs, stores and results: to the digests of local ones, and nothing is written twice."""
    record = run_pipeline("p.toml")
    assert record.is_success
    assert "put_object" in asked
    there = {path.removeprefix(f"{url}/"): digest for path, digest in find_digests(record).items()}
    asked.clear()
    assert set(find_states(run_pipeline("p.toml")).values()) == {"kept"}
    assert plan_pipeline("p.toml").is_finished
    assert set(asked) <= {"head_object", "list_objects_v2", "get_object"}
    assert len(asked) < 200
    for name in ("edges.txt", "names.csv", "sports.csv", "start.npy", "seeds.csv", "x.zarr"):
        with fetch(f"{url}/{name}") as local:
            local.rename(tmp_path / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("URL", str(tmp_path))
        here = run_pipeline("p.toml", overrides={"folder": "here"})
    assert {path.removeprefix(f"{tmp_path}/"): digest for path, digest in find_digests(here).items()} == there
    assert mg.load_solution(f"{url}/ranks/web/warm/ranks.zarr").status == "converged"
    labelled = [row for row in record.steps[1].record.top if row[0] == 3]
    assert labelled[0][2] == "three"


@pytest.mark.external
def test_an_input_that_changes(url, s3):
    write_definition(WHOLE.partition("[output]")[0])
    run_pipeline("p.toml")
    zarr.open_array(f"{url}/x.zarr", mode="r+")[0] = 7.0
    s3.pipe(f"{url.removeprefix('s3://')}/seeds.csv", b"vector,vertex\na,3\n")
    states = find_states(run_pipeline("p.toml"))
    assert [name for name, state in states.items() if state == "made"] == ["web/topics", "web/y/x=x"]


@pytest.mark.external
def test_ranks_to_start_from(url):
    write_definition('folder = "starts"\n[matrix.web]\npath = "${URL}/edges.txt"\n[run]\n')
    there = {"output.folder": url, "output.formats": ["zarr", "parquet"]}
    cold = run_pipeline("p.toml", overrides=there).steps[1].record.result["iterations"]
    starts = {f"run.{suffix}.nstart": f"{url}/web/pagerank/ranks.{suffix}" for suffix in ("zarr", "parquet")}
    warm = run_pipeline("p.toml", overrides=starts).steps[1:]
    assert [step.record.result["iterations"] < cold for step in warm] == [True, True]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
class TestErrors:
    """Each is one line that says what to do."""

    @pytest.mark.external
    def test_no_bucket(self, url):
        nowhere = "s3://no-such-bucket/x"
        assert fail(matrix__web__path=nowhere) == [f"{nowhere}: there is no such file; check the path"]
        [error] = fail(matrix__web__store=f"{nowhere}.zarr")
        assert error == (
            f"cannot write {nowhere}.zarr: The specified bucket does not exist; check that the bucket is there, "
            "the connection, and the credentials and what they allow"
        )
        errors = fail(output__folder=nowhere)
        assert len(errors) == 5
        assert errors[0] == (
            f"cannot write to {nowhere}/web/damping/alpha=0.5: The specified bucket does not exist; check that the "
            "bucket is there, the connection, and the credentials and what they allow"
        )

    @pytest.mark.external
    def test_inputs(self, url):
        there = "${URL}"  # as the definition has it
        write_definition(WHOLE.partition("[output]")[0])
        missing = {"product__y__x": f"{url}/no.zarr", "run__damping__personalization": f"{url}/no.csv"}
        faulty = {"run__warm__personalization": f"{url}/bad.csv", "batch__topics__seeds": f"{url}/none.csv"}
        *damping, warm, topics, product = fail(**missing, **faulty)
        assert [*damping, product] == [
            f"{there}/no.{suffix}: there is no such file; check the path" for suffix in ("csv", "zarr")
        ]
        assert warm == f"{there}/bad.csv, line 2: '1,x': wanted a number as weight, found 'x'"
        assert "it needs vector and vertex" in topics

    @pytest.mark.external
    def test_no_credentials(self, url, monkeypatch, tmp_path):
        from s3fs import S3FileSystem

        with monkeypatch.context() as patch:
            patch.setenv("HOME", str(tmp_path))
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                patch.delenv(name)
            S3FileSystem.clear_instance_cache()
            said, how = "Unable to locate credentials", "check the address, the connection and the credentials"
            there = "${URL}"  # as the definition has it
            assert fail() == [f"{there}/stores/web.zarr cannot be reached: {said}; {how}"]
            assert plan_pipeline("p.toml").steps[0].state == "failing"
            [error] = fail(matrix__web__store="web.zarr")
            assert error == f"{there}/edges.txt: cannot be read: {said}; {how}, and ingest again"
            write_sources(tmp_path)
            write_definition('folder = "here"\n[matrix.web]\npath = "edges.txt"\n[run]\n')
            [error] = fail(output__folder=url)
            assert error.startswith(f"cannot write to {there}/web/pagerank: {said}; check that the bucket is there")
            with pytest.raises(StoreError, match=f"^cannot look for .*: {said}; check that the bucket is there"):
                read_stamp(f"{url}/web/pagerank/top.csv")
        S3FileSystem.clear_instance_cache()

    def test_errors_of_a_library(self):
        class BrokenError(Exception):
            pass

        there, said = "s3://b/x", r"^cannot write to s3://b/x: BrokenError; check that the bucket is there"
        with pytest.raises(StoreError, match=said), explain_failures("write to", there):
            raise BrokenError
        with pytest.raises(BrokenError), explain_failures("write to", "x"):
            raise BrokenError
        with pytest.raises(StoreError, match=r"^cannot write to x: no room$"), explain_failures("write to", "x"):
            raise OSError("no room")

    @pytest.mark.external
    def test_what_is_wrong_is_said_of_the_url(self, url):
        name = f"{url}/none.csv"
        with pytest.raises(SourceError, match=f"^{name}: bad$"), fetch_input(name) as local:
            raise SourceError("bad", source=local)
        assert not Path(local).exists()
