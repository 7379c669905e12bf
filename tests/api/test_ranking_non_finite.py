"""Where values became none: the first vertex in the order of the source, by its id there, with every executor."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

import mgspmv as mg
from mgspmv.errors import ConvergenceError, OptionError
from mgspmv.model import NonFinite, Status

HUGE = 1.5e308
"""Two of it are no float."""
ARCS = {"a": {"b": 1.0}, "b": {"c": 1.0}, "c": {"d": HUGE, "e": HUGE}, "d": {"a": 1.0}, "e": {"b": 1.0, "a": 2.0}}


def make_named(tmp_path, **options):
    """A graph whose vertex c gives d and e what is no number."""
    lines = [f"{i},{j},{weight!r}" for i, given in ARCS.items() for j, weight in given.items()]
    path = tmp_path / "arcs.csv"
    path.write_text("\n".join(lines))
    return mg.ingest(path, tmp_path / "g.zarr", ids="string", duplicates="keep", **options)


SUMMED = r"The weights of the out-edges of vertex c sum to more than the largest float64 \(1\.8e308\); scale the"


@pytest.mark.parametrize(("precision", "order"), [("exact", "degree"), ("float64", "none")])
def test_the_first_vertex_of_the_source_is_named(tmp_path, in_process, precision, order):
    A = make_named(tmp_path, order=order)
    with pytest.raises(
        ConvergenceError,
        match=SUMMED + r".*; vertex d (became nan|left .*) first, in iteration 1$",
    ) as caught:
        mg.pagerank(A, precision=precision)
    found = caught.value.solution.non_finite
    assert (found.vertex, found.iteration) == ("d", 1)
    assert math.isnan(found.value) if precision != "exact" else not 0 <= found.value <= 2
    with A.distribute(in_process(2)) as D:
        for executor in ("tasks", "supersteps"):
            there = mg.pagerank(D.on(executor=executor), precision=precision, throw=False).non_finite
            assert str(there) == str(found)
    with pytest.raises(ConvergenceError, match=f"'all': NaN or infinite values .*{SUMMED}"):
        mg.pagerank_batch(A, {"all": None}, precision=precision)
    assert "-" not in str(found)


@pytest.mark.filterwarnings("error::RuntimeWarning", "error::UserWarning")
def test_weights_beyond_float32_are_refused(tmp_path, in_process):
    message = r"values beyond the range of float32 \(3\.4e38\); pass precision='float64' or weight=False"
    A = make_named(tmp_path)
    for call in (mg.pagerank, mg.katz, mg.pagerank_batch):
        with pytest.raises(OptionError, match=message):
            call(A, precision="float32", **({"personalization": None} if call is mg.pagerank_batch else {}))
    with pytest.raises(OptionError, match=message):
        mg.pagerank(A.on(in_process(2)), precision="float32")
    assert mg.pagerank(A, precision="float32", weight=False).status.is_success


@pytest.mark.parametrize(
    ("weight", "precision", "least"), [(5e-324, "exact", "9.88e-324"), (1e-42, "float32", "2e-42")]
)
def test_out_weights_that_no_rank_can_be_divided_by(weight, precision, least):
    store = zarr.storage.MemoryStore()
    mg.ingest((np.array([7, 7, 9, 8]), np.array([8, 9, 7, 7]), np.array([weight, weight, 1.0, 2.0])), store)
    wanted = f"out-edges of vertex 7 sum to {least}, and a rank divided by that overflows with precision='{precision}'"
    with pytest.raises(ConvergenceError, match=f"{wanted}; scale the weights up"):
        mg.pagerank(mg.open_matrix(store), precision=precision)


@pytest.mark.parametrize("norm", ["none", "l1", "l2", "max"])
def test_power_iteration(norm, in_process, tmp_path):
    """No norm spreads it over all elements."""
    dense = np.array([[1.0, 2.0, 0.0], [0.0, 1e200, 1.0], [0.0, 0.0, 1.0]])
    A, x = mg.ingest(sp.coo_array(dense), tmp_path / "m.zarr", kind="matrix"), np.array([1.0, 1e200, 1.0])
    with pytest.raises(ConvergenceError, match=r"; vertex 1 became inf first, in iteration 1$"):
        mg.power_iteration(A, x=x, normalize=norm)
    for placed in (A, A.on(in_process(2), executor="tasks")):
        solution = mg.power_iteration(placed, x=x, normalize=norm, throw=False)
        assert (solution.status, solution.non_finite) == (Status.NON_FINITE, NonFinite(1, math.inf, 1))
