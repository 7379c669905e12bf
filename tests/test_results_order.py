"""Whether the order of the highest ranks is certified: by the error bound, and by what a run proved."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from mgspmv.errors import OptionError
from mgspmv.model import Stability, Status
from mgspmv.results import Solution
from tests.support.commands import invoke


def make_solution(values, bound, stability=None):
    matrix = {"url": "g", "shape": [len(values)] * 2, "nnz": 1, "hardware": "cpu"}
    return Solution(
        np.array(values), Status.CONVERGED, 1, (0.5,), {}, bound, None, {"method": "power"}, matrix, stability=stability
    )


RANKS = [0.1, 0.4, 0.25, 0.15, 0.1]
PROVEN = Stability(3, True, 0.05, 0.01, ((1, 2),))


@pytest.mark.parametrize(
    ("bound", "k", "is_proven", "ties"),
    [
        (0.01, 2, True, ()),
        (0.01, 3, True, ()),
        (0.01, 4, False, ((4, 5),)),
        (0.01, 50, False, ((4, 5),)),
        (0.12, 1, True, ()),
        (0.12, 2, False, ((2, 3),)),
        (0.12, 3, False, ((2, 4),)),
        (1.0, 2, False, ((1, 3),)),
    ],
)
def test_gaps_that_are_larger_than_the_bound_are_certified(bound, k, is_proven, ties):
    found = make_solution(RANKS, bound).check_order(k)
    assert (found.k, found.is_proven, found.ties, found.bound) == (min(k, 4), is_proven, ties, bound)


def test_ranks_of_0_are_no_places():
    found = make_solution([0.0, 0.7, 0.3, 0.0], 0.1).check_order(10)
    assert (found.k, found.is_proven, found.gap, found.ties) == (2, True, 0.3, ())


@pytest.mark.parametrize(
    ("k", "is_proven", "ties"),
    [(3, True, ((1, 2),)), (2, True, ((1, 2),)), (1, False, ((1, 2),)), (4, False, ((1, 5),))],
)
def test_what_a_run_proved_counts(k, is_proven, ties):
    found = make_solution(RANKS, 1.0, PROVEN).check_order(k)
    assert (found.k, found.is_proven, found.ties) == (k, is_proven, ties)


def test_nothing_is_known_without_a_bound():
    assert make_solution(RANKS, math.inf).check_order() is None
    assert make_solution(RANKS, 0.1).scale("minmax").check_order() is None
    assert make_solution([1.0], 0.1).check_order() is None
    assert replace(make_solution(RANKS, 0.1), values=np.zeros(5)).check_order() is None
    with pytest.raises(OptionError, match="k must be at least 1, not 0"):
        make_solution(RANKS, 0.1).check_order(0)


ARCS = "a b\nb c\nc a\nd a\nd b\ne a\n"


@pytest.mark.parametrize(("tol", "is_certified"), [("0.5", False), ("1e-9", True)])
def test_commands_say_it(tol, is_certified, tmp_path):
    (tmp_path / "g.txt").write_text(ARCS, encoding="utf-8")
    store, ranks = str(tmp_path / "g.zarr"), str(tmp_path / "r.parquet")
    invoke("ingest", str(tmp_path / "g.txt"), store)
    out, err = invoke("pagerank", store, "--top", "2", "--tol", tol, "--max-iter", "1000", "-o", ranks)
    said = "--stop topk:2" in out + err
    assert said != is_certified
    out, err = invoke("top", ranks, "-k", "2")
    assert ("not certified: within the error bound" in out + err) != is_certified
    order = json.loads(invoke("--json", "top", ranks, "-k", "2")[0])["order"]
    assert (order["is_proven"] and not order["ties"]) == is_certified
    scaled = ("pagerank", store, "--top", "2", "--tol", tol, "--max-iter", "1000", "--scaler", "max")
    assert json.loads(invoke("--json", *scaled)[0])["order"] == order  # it is that of the ranks
    out, err = invoke("pagerank-batch", store, "--alpha", "0.8", "--tol", tol, "--max-iter", "1000", "--keep-top", "3")
    assert ("order" in out + err) != is_certified
    vectors = json.loads(invoke("--json", "pagerank-batch", store, "--tol", tol, "--max-iter", "1000")[0])["vectors"]
    assert [own["order"]["k"] for own in vectors] == [4]
