"""Spans: what Dask's scheduler has of them after our tasks, which are all in one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, span

import mgspmv as mg


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
def test_all_tasks_are_in_one_span(in_process: Callable[[int], Any], tmp_path: Path, executor: Any) -> None:
    client = in_process(2)
    mg.generate("rmat", tmp_path / "g.zarr", scale=7, edge_factor=4)
    mg.export(tmp_path / "g.zarr", tmp_path / "g.parquet")
    with span(f"mine-{executor}"):
        graph = mg.ingest(tmp_path / "g.parquet", tmp_path / "i.zarr", transpose=True, client=client)
        ranks = mg.pagerank(graph.on(client, executor=executor))
    assert ranks.status.is_success
    [(name, (n_spans, groups))] = list_spans(client, f"mine-{executor}").items()
    assert (name, n_spans) == (("mgspmv",), 1)
    step = "superstep" if executor == "supersteps" else "step"
    assert {"mgspmv-ingest", "mgspmv-load", "mgspmv-begin", f"mgspmv-{step}", "mgspmv-collect"} <= groups
