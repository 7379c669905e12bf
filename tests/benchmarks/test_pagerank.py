"""The benchmark of iterations checks ranks before it times them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import pagerank
from benchmarks.graphs import GRAPHS
from benchmarks.iterations import Iterations, StepIterations
from mgspmv.errors import OptionError
from mgspmv.model import CsrBlock

QUICK = ("--backend", "cpu", "--size", "1000", "--rounds", "3")


def test_all_graphs_are_right_and_timed() -> None:
    assert pagerank.main([*QUICK, "--json", "found.json"]) == 0
    found = json.loads(Path("found.json").read_text(), parse_constant=pytest.fail)
    graphs = [name for name, recipe in GRAPHS.items() if not recipe.by_name_only]
    keys = [(r["graph"], r["contender"]) for r in found["records"]]
    assert keys == [(graph, precision) for graph in graphs for precision in ("float32", "exact")]
    for record in found["records"]:
        if "iteration_s" not in record:  # of a busy machine
            assert "took no longer than 5" in record["problem"]
        else:
            assert record["edges_per_s"] == pytest.approx(record["n_edges"] / record["iteration_s"])
        assert record["error"] < (1e-6 if record["contender"] == "float32" else 1e-12)
    assert set(found["left_out"]) == {"cnr-2000", "mdual"}


def test_wrong_options() -> None:
    for name, message in (
        ("road", "there is no graph 'road'; `python -m benchmarks.pagerank --list` names them"),
        ("rmat27", "rmat27 has 2,281,701,376 arcs, for a device; add --backend cuda, or --size"),
        ("mdual", "nothing was timed: every graph was left out"),
    ):
        with pytest.raises(OptionError, match=message):
            pagerank.main(["--backend", "cpu", "--only", name])


def test_the_program_fails_when_ranks_are_wrong(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    class Wrong(StepIterations):
        def ranks(self) -> np.ndarray:
            return super().ranks() * 1.001

    def make(machine: Any, block: CsrBlock, weight: Any, precision: Any) -> Iterations:
        return (Wrong if precision == "float32" else StepIterations)(machine, block, weight, precision)

    monkeypatch.setattr(pagerank, "make_ours", make)
    assert pagerank.main([*QUICK, "--only", "grid"]) == 1
    assert capsys.readouterr().err.endswith("error: wrong ranks: float32 on grid; see the tables\n")
