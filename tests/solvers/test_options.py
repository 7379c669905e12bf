"""Options of a run, and which tolerances make sense."""

from __future__ import annotations

import math
import re

import pytest

from mgspmv.errors import OptionError
from mgspmv.solvers.options import PageRankOptions

PRECISIONS = ["exact", "float64", "float32"]
MODES = ["l1", "l1_per_node", "linf", "relative"]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"alpha": 1.0}, "alpha must be at least 0 and less than 1, not 1.0"),
        ({"alpha": -0.1}, "alpha must be at least 0 and less than 1, not -0.1"),
        ({"alpha": math.nan}, "alpha must be at least 0 and less than 1, not nan"),
        ({"alpha": "0.85"}, "alpha must be at least 0 and less than 1, not '0.85'"),
        ({"alpha": None}, "alpha must be at least 0 and less than 1, not None"),
        ({"max_iter": 0}, "max_iter must be an integer of at least 1, not 0"),
        ({"max_iter": 1e3}, "max_iter must be an integer of at least 1, not 1000.0"),
        ({"max_iter": "5"}, "max_iter must be an integer of at least 1, not '5'"),
        ({"max_iter": None}, "max_iter must be an integer of at least 1, not None"),
        ({"norm": "l2"}, "norm must be one of 'l1', 'l1_per_node', 'linf', 'relative', 'fixed', not 'l2'"),
        ({"precision": "float16"}, "precision must be one of 'exact', 'float64', 'float32', not 'float16'"),
        (
            {"norm": "fixed", "tol": 1e-6},
            "norm='fixed' makes max_iter iterations and has no tolerance; leave out tol=",
        ),
        ({"tol": 0.0}, "tol must be a positive number, not 0.0; norm='fixed' needs no tolerance"),
        ({"tol": -1e-6}, "tol must be a positive number, not -1e-06; norm='fixed' needs no tolerance"),
        ({"tol": math.nan}, "tol must be a positive number, not nan; norm='fixed' needs no tolerance"),
        ({"tol": "1e-6"}, "tol must be a positive number, not '1e-6'; norm='fixed' needs no tolerance"),
        ({"tol": math.inf}, "tol must be a positive number, not inf; norm='fixed' needs no tolerance"),
    ],
)
def test_options_that_make_no_sense(option, message):
    with pytest.raises(OptionError) as caught:
        PageRankOptions(**option)
    assert str(caught.value) == message


@pytest.mark.parametrize(("mode", "wanted"), [("l1", 1e-4), ("l1_per_node", 1e-2), ("linf", 1e-4), ("relative", 1e-4)])
def test_threshold(mode, wanted):
    assert PageRankOptions(tol=1e-4, norm=mode).threshold(100, 500) == pytest.approx(wanted, rel=1e-15)


@pytest.mark.parametrize(
    ("mode", "tol", "message"),
    [
        ("l1", 2.0, "tol=2 with norm='l1' is met by any ranks of 1000 vertices; pass less than 2"),
        ("linf", 1.0, "tol=1 with norm='linf' is met by any ranks of 1000 vertices; pass less than 1"),
        (
            "relative",
            1.0,
            "tol=1 with norm='relative' is met by any increase of ranks; pass less than 1",
        ),
        (
            "l1_per_node",
            0.002,
            "tol=0.002 with norm='l1_per_node' is met by any ranks of 1000 vertices; "
            "pass less than 0.002, or norm='l1'",
        ),
    ],
)
def test_vacuous_tolerance_is_refused(mode, tol, message):
    with pytest.raises(OptionError) as caught:
        PageRankOptions(tol=tol, norm=mode).threshold(1000, 5000)
    assert str(caught.value) == message
    PageRankOptions(tol=tol * 0.999, norm=mode).threshold(1000, 5000)


def test_default_tolerance_of_networkx_is_vacuous_on_two_million_vertices():
    options = PageRankOptions(norm="l1_per_node")
    with pytest.raises(OptionError, match=r"met by any ranks of 2000000 vertices; pass less than 1e-06, or"):
        options.threshold(2_000_000, 10_000_000)
    options.threshold(1_999_999, 10_000_000)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_unreachable_tolerance_is_refused_with_one_that_is_accepted(precision, mode):
    n, nnz = 1000, 5000
    unit = 2.0**-24 if precision == "float32" else 2.0**-53
    least = unit if mode in ("l1", "relative") else unit / n
    with pytest.raises(OptionError) as caught:
        PageRankOptions(tol=0.99 * least, norm=mode, precision=precision).threshold(n, nnz)
    wanted = rf"tol=\S+ with norm='{mode}' is below the rounding of precision='{precision}' on 1000 vertices; "
    other = ", or precision='exact'" if precision == "float32" else ""
    where = " where personalization is uniform" if mode == "relative" else ""
    found = re.fullmatch(wanted + rf"pass (\S+), which is always reached{where}{other}", str(caught.value))
    assert found, caught.value
    PageRankOptions(tol=float(found[1]), norm=mode, precision=precision).threshold(n, nnz)
    PageRankOptions(tol=1.01 * least, norm=mode, precision=precision).threshold(n, nnz)


def test_reach_of_exact_shrinks_with_the_edges():
    """10^12 edges round 10^12 contributions."""
    options = PageRankOptions(tol=1.2e-16)
    options.threshold(10**9, 10**5)
    with pytest.raises(OptionError, match="below the rounding of precision='exact'"):
        options.threshold(10**9, 10**12)
