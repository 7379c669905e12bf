"""The benchmark of streaming limits the memory of a GPU, and compares the ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import streaming
from benchmarks.streaming import SHARES


@pytest.mark.gpu
def test_all_cases() -> None:
    assert streaming.main(["--scale", "12", "--iterations", "8", "--json", "found.json"]) == 0
    records = json.loads(Path("found.json").read_text())["records"]
    assert [(r["precision"], r["case"]) for r in records] == [(p, c) for p in ("float32", "exact") for c in SHARES]
    for r in records:
        assert r["held"] == r["case"].partition(",")[0]
        assert (r["streamed_bytes"] > 0) == (r["held"] == "host")
        assert min(r["iteration_s"], r["load_s"]) > 0
