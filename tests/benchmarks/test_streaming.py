"""The benchmark of streaming limits the memory of a GPU, and compares the ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mgspmv as mg
from benchmarks import streaming
from benchmarks.streaming import SHARES, SKIPPED, list_cases
from mgspmv.errors import OptionError


def test_cases_have_the_memory_that_their_names_say(tmp_path: Path) -> None:
    mg.generate("rmat", tmp_path / "g.zarr", scale=12)
    A = mg.open_matrix(tmp_path / "g.zarr")
    for case, limits in list_cases(str(tmp_path / "g.zarr"), "exact"):
        if limits:
            worker = A.plan(precision="exact", **limits, backend="cpu").workers[0]
            assert worker.held == case.partition(",")[0]
            assert worker.device_bytes <= limits["device_memory"]
    with pytest.raises(OptionError, match=f"iterations must be more than {SKIPPED}, which do not count, not {SKIPPED}"):
        streaming.run_streaming(str(tmp_path / "g.zarr"), ["exact"], SKIPPED, print)


@pytest.mark.gpu
def test_all_cases() -> None:
    assert streaming.main(["--scale", "12", "--iterations", "8", "--json", "found.json"]) == 0
    records = json.loads(Path("found.json").read_text())["records"]
    assert [(r["precision"], r["case"]) for r in records] == [(p, c) for p in ("float32", "exact") for c in SHARES]
    for r in records:
        assert r["held"] == r["case"].partition(",")[0]
        assert (r["streamed_bytes"] > 0) == (r["held"] == "host")
        assert min(r["predicted_s"], r["iteration_s"], r["load_s"]) > 0
