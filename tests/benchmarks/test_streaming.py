"""`mgspmv bench streaming`: a GPU with less and less room, timed beside what was predicted."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import mgspmv as mg
from benchmarks import streaming
from benchmarks.streaming import SHARES, SKIPPED, Record, list_cases
from mgspmv.errors import MgspmvError, OptionError
from tests.support.commands import invoke

RECORD = Record(
    precision="exact", case="host, most", held="host", predicted_s=0.05, iteration_s=0.04, streamed_bytes=2_000_000_000,
    upload_bytes_per_s=55e9, store_bytes_per_s=0.0, gathers_per_s=3e11, load_s=1.5, device_bytes=3_000_000_000,
    peak_bytes=2_900_000_000, edges=1 << 30, digest="aa", is_right=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("graph") / "rmat.zarr"
    mg.generate("rmat", path, scale=12)
    return str(path)


def test_cases_have_the_memory_that_their_names_say(graph):
    A = mg.open_matrix(graph)
    held = []
    precision = "exact"
    for case, limits in list_cases(graph, precision):
        if limits:
            worker = A.plan(precision=precision, **limits, backend="cpu").workers[0]
            held.append((case, worker.held))
            assert worker.streaming is not None
            assert worker.device_bytes <= limits["device_memory"]
            assert worker.streaming.streamed_bytes > 0
        else:
            held.append((case, "device"))
    assert held == [(case, case.partition(",")[0]) for case in SHARES]


def test_usage(graph):
    for options, message in (
        (["--precision", "float64"], "--precision must be one of 'float32', 'exact', 'both', not 'float64'"),
        (["--case", "host"], "--case must be one of 'device', 'host, some', 'host, most', 'store', not 'host'"),
    ):
        _, stderr = invoke("bench", "streaming", "--store", graph, *options, code=2)
        assert message in stderr
    with pytest.raises(OptionError, match=f"iterations must be more than {SKIPPED}, which do not count, not {SKIPPED}"):
        streaming.run_streaming(graph, ["exact"], SKIPPED, print)


@pytest.mark.gpu
def test_all_cases(graph, tmp_path):
    path = tmp_path / "found.json"
    invoke("bench", "streaming", "--store", graph, "--iterations", "8", "--output", str(path))
    records = json.loads(path.read_text())["records"]
    assert [(r["precision"], r["case"]) for r in records] == [(p, c) for p in ("float32", "exact") for c in SHARES]
    for r in records:
        assert r["is_right"]
        assert r["held"] == r["case"].partition(",")[0]
        assert (r["streamed_bytes"] > 0) == (r["held"] == "host")
        assert min(r["predicted_s"], r["iteration_s"], r["load_s"]) > 0


@pytest.mark.gpu
def test_the_command_fails_where_ranks_are_wrong(graph, monkeypatch):
    monkeypatch.setattr(streaming, "run_streaming", lambda *_: [replace(RECORD, is_right=False)])
    _, stderr = invoke("bench", "streaming", "--store", graph, code=MgspmvError.exit_code)
    assert "wrong ranks: exact, host, most; see the tables" in stderr
