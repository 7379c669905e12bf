"""Whole ways from a text to ranks, of this program and of others."""

from __future__ import annotations

import json

import pytest

from benchmarks import edges_to_ranks
from benchmarks.edges_to_ranks import OURS, SCIKIT_NETWORK, SCRIPTS

SMALL = ("--scale", "8", "--edges", "1000", "--repeats", "1")


def test_ranks_are_checked_and_timed(tmp_path, capsys):
    found = tmp_path / "found.json"
    assert edges_to_ranks.main([*SMALL, "--only", OURS, "--json", str(found)]) == 0
    [record] = json.loads(found.read_text())["rows"]
    assert record["program"] == OURS
    assert record["error_l1"] < edges_to_ranks.PERMITTED_L1
    assert record["runs"][0]["processor_s"] > 0
    assert "WRONG" not in capsys.readouterr().out


def test_wrong_ranks_are_found(monkeypatch, capsys):
    monkeypatch.setitem(SCRIPTS, OURS, SCRIPTS[OURS].replace("argv[1])", "argv[1], alpha=0.84)"))
    assert edges_to_ranks.main([*SMALL, "--only", OURS]) == 1
    assert "WRONG RANKS" in capsys.readouterr().out


@pytest.mark.slow
def test_ranks_of_scikit_network_solve_its_equation():
    pytest.importorskip("polars", reason="polars is not installed, which reads the edges")
    pytest.importorskip("sknetwork", reason="scikit-network is not installed")
    assert edges_to_ranks.main([*SMALL, "--only", SCIKIT_NETWORK]) == 0
