"""Out-weights that users give: what is refused, and the ranks, by a linear system and by graphs that were cut."""

from __future__ import annotations

import numpy as np
import pytest

import mgspmv as mg
from mgspmv.errors import OptionError
from mgspmv.solvers.options import PageRankOptions
from mgspmv.solvers.pagerank import make_inputs, make_out_weight
from tests.support.played import PlayedDevice, run_played

N = 40
FIXED = {"norm": "fixed", "max_iter": 300}
PRECISIONS = ["exact", "float64", "float32"]
CLOSE = {"exact": 1e-13, "float64": 1e-13, "float32": 5e-6}


def refuse() -> np.ndarray:
    """Where given out-weights are to be taken."""
    raise AssertionError("those of the store were read")


def make_graph(source, **options):
    return mg.ingest(source, **{"kind": "graph", **options})


@pytest.fixture(scope="module")
def arcs():
    """(N, N): weights of the arcs i -> j; 4 vertices have none."""
    rng = np.random.default_rng(5)
    drawn = rng.random((N, N)) * (rng.random((N, N)) < 0.15)
    drawn[[3, 11, 29, 38]] = 0
    return drawn


@pytest.fixture(scope="module", params=["none", "rcm"])
def graph(arcs, request):
    return make_graph(arcs, order=request.param)


def solve(arcs, weight, alpha=0.85):
    """Ranks where a vertex gives arcs / weight of its own, and all of it to everybody where weight is 0."""
    share = np.divide(arcs, weight[:, None], out=np.full(arcs.shape, 1 / N), where=weight[:, None] > 0)
    return np.linalg.solve(np.eye(N) - alpha * share.T, np.full(N, (1 - alpha) / N))


def distance(solution, wanted):
    return np.abs(solution.values - wanted).sum()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_more_than_the_edges_weigh_is_lost(arcs, graph, precision):
    weight = arcs.sum(axis=1) * np.linspace(1.0, 3.0, N)
    weight[11] = 2.5  # no stored edge, and no dangling vertex either
    solution = mg.pagerank(graph, out_weight=weight, precision=precision, **FIXED)
    wanted = solve(arcs, weight)
    assert wanted.sum() < 0.9
    assert distance(solution, wanted) <= min(CLOSE[precision], solution.error_bound_l1 + 1e-14)
    assert solution.options["out_weight"] == "vector"
    assert distance(mg.pagerank(graph, precision=precision, **FIXED), wanted) > 0.1


@pytest.mark.parametrize("use_weights", [True, False])
def test_what_the_store_has_gives_the_same_bits(arcs, graph, use_weights):
    weight = arcs.sum(axis=1) if use_weights else (arcs > 0).sum(axis=1)
    asked = {"weight": use_weights, "tol": 1e-9}
    given, wanted = mg.pagerank(graph, out_weight=weight, **asked), mg.pagerank(graph, **asked)
    assert wanted.options["out_weight"] == "store"
    if use_weights:  # NumPy adds in another order
        assert distance(given, wanted.values) < 1e-14
    else:
        assert (given.digest(), given.changes) == (wanted.digest(), wanted.changes)
        assert given.error_bound_l1 == wanted.error_bound_l1


def test_a_mapping_of_ids(tmp_path):
    (tmp_path / "arcs.txt").write_text("b a\na b\na c\n")
    A = make_graph(tmp_path / "arcs.txt", ids="string")
    by_name = mg.pagerank(A, out_weight={"a": 4, "b": 1})
    assert by_name.digest() == mg.pagerank(A, out_weight=np.array([4.0, 1.0, 0.0])).digest()
    with pytest.raises(OptionError, match=r"^out_weight of vertex b is 0, less than the sum of its stored"):
        mg.pagerank(A, out_weight={"a": 4})
    with pytest.raises(OptionError, match="out_weight has the id 'd', which no vertex has"):
        mg.pagerank(A, out_weight={"d": 4})


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (np.nan, r"^out_weight must be finite and not negative; vertex 7 has nan$"),
        (np.inf, r"^out_weight must be finite and not negative; vertex 7 has inf$"),
        (-1.0, r"^out_weight must be finite and not negative; vertex 7 has -1.0$"),
        (0.0, r"^out_weight of vertex 7 is 0, less than the sum of its stored out-edges, \S+; pass at least that "),
        (
            1e-3,
            r"^out_weight of vertex 7 is 0.001, less than the sum .* out-edges, \S+; pass .* it has$",
        ),
    ],
)
def test_weights_that_are_refused(arcs, graph, weight, message):
    given = arcs.sum(axis=1) + 1
    given[7] = weight
    with pytest.raises(OptionError, match=message):
        mg.pagerank(graph, out_weight=given)


def test_sums_in_float32_are_near_enough(arcs, graph):
    weight = arcs.astype(np.float32).sum(axis=1, dtype=np.float32)
    assert (weight < arcs.sum(axis=1)).any()
    solution = mg.pagerank(graph, out_weight=weight, **FIXED)
    assert distance(solution, solve(arcs, weight.astype(np.float64))) <= min(1e-12, solution.error_bound_l1)
    stored = np.array([1.0, 2.0])
    assert make_out_weight(stored * (1 - 0.99e-6), stored, None).tolist() == (stored * (1 - 0.99e-6)).tolist()
    with pytest.raises(OptionError, match=r"out_weight of vertex 0 is 0\.99999899, less than the sum of its stored"):
        make_out_weight(stored * (1 - 1.01e-6), stored, None)


def test_the_bound_holds_where_columns_sum_to_more_than_1(arcs):
    """With alpha so near to 1 that 1e-6 of rank more is a good part of what a step loses."""
    alpha, weight = 1 - 4e-6, arcs.sum(axis=1) * (1 - 0.9e-6)
    weight[weight == 0] = 1e-9
    closed = arcs.copy()
    closed[[3, 11, 29, 38], 0] = 1e-9
    A = make_graph(closed)
    solution = mg.pagerank(A, alpha=alpha, out_weight=weight, norm="fixed", max_iter=50)
    wanted = solve(closed, weight, alpha)
    off = distance(solution, wanted)
    residual = solution.error_bound_l1 * (1 - alpha / (1 - 0.9e-6))
    assert 1.2 < wanted.sum() < 1.4
    assert residual / (1 - alpha) < off <= solution.error_bound_l1 < 2 * off


@pytest.mark.parametrize("use_weights", [True, False])
def test_a_device_has_the_ranks_of_this_process(arcs, graph, use_weights):
    """Weights that are no counts, also of a pattern."""
    weight = (arcs.sum(axis=1) if use_weights else (arcs > 0).sum(axis=1)) * 1.25 + 0.1
    options = PageRankOptions(tol=1e-9)
    start = make_inputs(graph, options, out_weight=weight, use_weights=use_weights)
    assert not start.is_counted
    block = graph.block("float64" if use_weights else None)
    device, threshold = PlayedDevice(block), options.threshold(N, graph.nnz)
    own = start.take_weight(refuse)
    run = run_played(device, start.on_device(own), options, threshold, lambda event: None, is_counted=False)
    assert device._rules.weight == np.float64
    wanted = mg.pagerank(graph, weight=use_weights, out_weight=weight, tol=1e-9)
    in_order = run.values if graph.order is None else run.values[np.argsort(graph.order)]
    assert in_order.tobytes() == wanted.values.tobytes()
    assert run.error_bound_l1 == wanted.error_bound_l1


@pytest.mark.parametrize("use_weights", [True, False])
def test_out_weights_of_the_reversed_graph_are_those_of_its_arcs(arcs, use_weights):
    """Of a graph that is turned round a vertex gives along what were its in-edges."""
    A, turned = make_graph(arcs, transpose=True), make_graph(arcs.T)
    in_weight = arcs.sum(axis=0) if use_weights else (arcs > 0).sum(axis=0)
    asked = {"weight": use_weights, "out_weight": 1.5 * in_weight}
    assert mg.pagerank(A.T, **asked).digest() == mg.pagerank(turned, **asked).digest()
    with pytest.raises(OptionError, match="less than the sum of its stored out-edges"):
        mg.pagerank(A.T, weight=use_weights, out_weight=0.5 * in_weight)
