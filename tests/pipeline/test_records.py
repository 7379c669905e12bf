"""Results at their place: in object stores, and found again."""

from __future__ import annotations

import uuid

import fsspec
import numpy as np
import pytest
import zarr

from mgspmv.errors import StepsFailedError, StoreError
from mgspmv.pipeline import run_pipeline
from mgspmv.pipeline.records import write_array
from mgspmv.results import load_solution
from tests.support.definitions import WEB, find_states, write_definition

RUN = WEB + '[run]\nnstart = "previous"\n[output]\nformats = ["zarr", "parquet", "csv"]\n'


class TestObjectStores:
    @pytest.fixture
    def url(self):
        return f"memory://{uuid.uuid4().hex}/ranks"

    def test_they_are_compared_with_and_replaced(self, url):
        there = {"output.folder": url}
        run_pipeline(write_definition(RUN), overrides=there)
        ranks = run_pipeline("p.toml", overrides=there | {"run.alpha": 0.5}).steps[1].record
        assert ranks.comparison["n_common"] == 3
        assert ranks.result["start"] == "previous"
        record = run_pipeline("p.toml", overrides=there | {"output.formats": ["parquet"]})
        system = fsspec.filesystem("memory")
        found = {path.rpartition("/")[2] for path in system.ls(f"{url.removeprefix('memory:/')}/web/pagerank", False)}
        assert found == {"comparison.json", "ranks.parquet", "record.json", "top.csv", "top.json"}
        assert record.is_success

    def test_what_is_gone_or_changed_there_is_made_again(self, url):
        there, system = {"output.folder": url}, fsspec.filesystem("memory")
        run_pipeline(write_definition(RUN), overrides=there)
        place = f"{url.removeprefix('memory:/')}/web/pagerank"
        assert set(find_states(run_pipeline("p.toml", overrides=there)).values()) == {"kept"}
        system.pipe_file(f"{place}/top.csv", b"place\n")
        assert find_states(run_pipeline("p.toml", overrides=there))["web/pagerank"] == "made"
        system.rm(f"{place}/ranks.zarr", recursive=True)
        assert find_states(run_pipeline("p.toml", overrides=there))["web/pagerank"] == "made"

    def test_uploads_that_were_broken_off_are_made_again(self, url, monkeypatch):
        def break_off(*given):
            raise OSError("connection lost")

        with monkeypatch.context() as patch:
            patch.setattr(fsspec.get_filesystem_class("memory"), "put_file", break_off)
            with pytest.raises(StepsFailedError, match=r"cannot write to memory://.*: connection lost"):
                run_pipeline(write_definition(RUN), overrides={"output.folder": url})
        assert run_pipeline("p.toml", overrides={"output.folder": url}).is_success
        assert load_solution(f"{url}/web/pagerank/ranks.zarr").status == "converged"

    def test_an_array_cannot_be_opened_before_all_of_it_is_there(self, url, monkeypatch):
        place, array = f"{url}/y.zarr", np.arange(6.0)
        write_array(array, place)
        put_file = (memory := fsspec.get_filesystem_class("memory")).put_file

        def break_off(system, local, *given, **options):
            if local.endswith("zarr.json"):
                raise OSError("connection lost")
            put_file(system, local, *given, **options)

        with monkeypatch.context() as patch:
            patch.setattr(memory, "put_file", break_off)
            with pytest.raises(StoreError, match="connection lost"):
                write_array(array, place)
        with pytest.raises(FileNotFoundError):
            zarr.open_array(place, mode="r")
        write_array(array, place)
        assert zarr.open_array(place, mode="r")[:].tolist() == array.tolist()

    def test_a_protocol_that_is_none(self):
        with pytest.raises(StepsFailedError, match=r"nosuch://x.*Protocol not known"):
            run_pipeline(write_definition(RUN), overrides={"output.folder": "nosuch://x"})
