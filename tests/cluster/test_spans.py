"""Spans: what Dask's scheduler has of them after our tasks, which are in the ones of their phases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, span

import mgspmv as mg


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> mg.Matrix:
    return mg.generate("rmat", tmp_path_factory.mktemp("spans") / "g.zarr", scale=7, edge_factor=4)


def list_spans(client: Client, outer: str) -> dict[tuple[str, ...], tuple[int, set[str]]]:
    """Below the span of this name: how many there are of each name, and what their tasks are called."""

    def find(dask_scheduler: Any) -> dict[tuple[str, ...], tuple[int, set[str]]]:
        named = dask_scheduler.extensions["spans"].spans_search_by_name
        return {
            name[1:]: (len(own), {group.name for each in own for group in each.groups})
            for name, own in named.items()
            if name[0] == outer and len(name) > 1
        }

    found: dict[tuple[str, ...], tuple[int, set[str]]] = client.run_on_scheduler(find)
    return found


@pytest.mark.parametrize("executor", ["supersteps", "tasks"])
def test_phases_of_a_run(graph: mg.Matrix, in_process: Callable[[int], Any], executor: Any) -> None:
    client = in_process(2)
    with span(f"mine-{executor}"):
        ranks = mg.pagerank(graph.on(client, executor=executor))
    assert ranks.status.is_success
    found = list_spans(client, f"mine-{executor}")
    phases = {name[2] for name in found if name[:2] == ("mgspmv", "pagerank") and len(name) == 3}
    assert phases == {"start", "iterate", "residual", "collect"}
    step = "superstep" if executor == "supersteps" else "step"
    assert found["mgspmv", "pagerank", "iterate"] == (1, {f"mgspmv-{step}-iterate"})
    assert found["mgspmv", "pagerank", "collect"] == (1, {"mgspmv-collect-collect"})
    assert found["mgspmv", "distribute", "load"] == (1, {"mgspmv-load"})


def test_making_has_its_phases(graph: mg.Matrix, in_process: Callable[[int], Any], tmp_path: Path) -> None:
    client = in_process(2)
    mg.export(graph.info.url, tmp_path / "g.parquet")
    with span("mine-making"):
        mg.ingest(tmp_path / "g.parquet", tmp_path / "i.zarr", transpose=True, client=client)
    found = list_spans(client, "mine-making")
    phases = {name[1:] for name in found if name[0] == "mgspmv" and len(name) == 3}
    assert {phase for call, phase in phases if call == "ingest"} == {
        "start", "read", "number", "exchange", "sort", "add up columns", "write",
        "transpose", "sort the transpose", "write the transpose",
    }  # fmt: skip
    assert all(n_spans == 1 for name, (n_spans, _) in found.items() if len(name) == 3)
    assert found["mgspmv", "ingest", "write the transpose"] == (1, {"mgspmv-write-write-the-transpose"})
    assert found["mgspmv", "ingest", "transpose"] == (1, {"mgspmv-group-transpose-transpose"})
