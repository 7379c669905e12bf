"""Where centralities have no answer: graphs without cycles, an alpha that does not fit, weights that are negative."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest

import mgspmv as mg
from mgspmv.errors import AcyclicError, ConvergenceError, OptionError
from tests.support.commands import invoke


def make_edges(*edges):
    return tuple(map(np.array, zip(*edges, strict=True)))


def make_path(n, first=0):
    return [(first + k, first + k + 1) for k in range(n - 1)]


ACYCLIC = {
    "path": make_edges(*make_path(6)),
    "star": make_edges(*((k, 0) for k in range(1, 9))),
    "binary tree": make_edges(*((k, (k - 1) // 2) for k in range(1, 63))),
    "small weights": (*make_edges(*make_path(5)), np.array([1e-9, 1e3, 1.0, 0.5])),
    "either sign": (*make_edges((0, 2), (1, 2), (2, 3)), np.array([1.0, -1.0, 2.0])),
    "longer than the first look": make_edges(*make_path(200)),
}
LOOSE = [{"tol": 1e-3}, {"tol": 1e-6, "max_iter": 20000}, {"tol": 1.0, "norm": "l1_per_node"}]


@pytest.mark.parametrize("name", ACYCLIC)
@pytest.mark.parametrize("options", [*LOOSE, {"max_iter": 2}, {"norm": "fixed", "max_iter": 9}, {"throw": False}])
def test_graphs_without_cycles_are_refused(name, options):
    with pytest.raises(AcyclicError, match=r"no cycle was found .* use katz or pagerank, which need no cycle"):
        mg.eigenvector_centrality(mg.ingest(ACYCLIC[name]), **options)


def make_fan(n):
    """A cycle of two that leads into layers of n vertices, so that what is after it is far larger than the cycle."""
    layers = [list(range(2 + n * k, 2 + n * (k + 1))) for k in range(3)]
    between = [(a, b) for one, other in pairwise(layers) for a in one for b in other]
    return [(0, 1), (1, 0), *((1, b) for b in layers[0]), *between]


CYCLIC = {
    "two": [(0, 1), (1, 0)],
    "loop": [(0, 0), (0, 1), (1, 2)],
    "path into a cycle": [*make_path(300), (299, 298)],
    "path out of a cycle": [(1, 0), *make_path(300)],
    "small cycle before a fan": make_fan(60),
    "undirected star": [(k, 0) for k in range(1, 50)] + [(0, k) for k in range(1, 50)],
}


@pytest.mark.parametrize("name", CYCLIC)
def test_graphs_with_cycles_are_not(name):
    A = mg.ingest(make_edges(*CYCLIC[name]))
    found = mg.eigenvector_centrality(A, max_iter=5000, tol=1e-3, throw=False)
    assert np.linalg.norm(found.values) == pytest.approx(1.0)


@pytest.mark.parametrize("executor", ["supersteps", "tasks"])
def test_on_workers(executor, in_process, tmp_path):
    for name, edges in {"tree": ACYCLIC["binary tree"], "cycle": make_edges(*CYCLIC["two"])}.items():
        with mg.ingest(edges, tmp_path / f"{name}.zarr") as A:
            if name == "cycle":
                mg.eigenvector_centrality(A.on(in_process(2), executor=executor))
            else:
                with pytest.raises(AcyclicError):
                    mg.eigenvector_centrality(A.on(in_process(2), executor=executor), tol=1e-2)
            chosen = mg.katz(A.on(in_process(2), executor=executor), alpha=None)
            assert chosen.digest() == mg.katz(A, alpha=None).digest()


def make_random(seed, n=60, m=240, *, weighted=False):
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, n, (2, m))
    return (*ends, rng.random(m) * 10.0 ** rng.integers(-3, 4)) if weighted else tuple(ends)


KATZ = {
    "random": make_random(1),
    "heavy and light": make_random(2, weighted=True),
    "very light": make_random(3, weighted=True),
    "star": make_edges(*CYCLIC["undirected star"]),
    "path": ACYCLIC["path"],
    "loop": make_edges(*CYCLIC["loop"]),
}


@pytest.mark.parametrize("name", KATZ)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_an_alpha_is_chosen_that_fits(name, precision):
    A = mg.ingest(KATZ[name])
    solution = mg.katz(A, alpha=None, precision=precision)
    alpha, dense = solution.options["alpha"], A.to_scipy().toarray()
    radius = np.abs(np.linalg.eigvals(dense)).max()
    assert alpha > 0
    assert alpha * radius < 0.7 * (1 + 1e-4)
    assert alpha * radius > 0.2 or radius < 1e-9  # and not far below
    wanted = np.linalg.solve(np.eye(len(dense)) - alpha * dense, np.ones(len(dense)))
    np.testing.assert_allclose(solution.values, wanted / np.linalg.norm(wanted), rtol=1e-4)
    assert mg.katz(A, alpha=alpha, precision=precision).digest() == solution.digest()


def test_alpha_is_not_chosen_of_negative_weights():
    A = mg.ingest((*make_edges((0, 1), (1, 0)), np.array([1.0, -1.0])))
    with pytest.raises(OptionError, match=r"alpha=None needs weights that are not negative, and the least is -1\.0"):
        mg.katz(A, alpha=None)
    assert mg.katz(A, alpha=None, weight=False).options["alpha"] == pytest.approx(0.7)
    huge = mg.ingest((*make_edges((0, 1), (1, 0)), np.array([1e300, 1e300])))
    with pytest.raises(OptionError, match="leave the range of floats"):
        mg.katz(huge, alpha=None)


def test_an_alpha_that_diverges_is_told_the_bound():
    edges = make_edges((0, 1), (1, 0))
    with pytest.raises(ConvergenceError, match=r"alpha must be below 1 / .*\), as any below 0\.25 is; pass alpha="):
        mg.katz((*edges, np.array([4.0, 4.0])), alpha=0.3)
    with pytest.raises(ConvergenceError, match=r"alpha must be below 1 / \(.*\); pass alpha=None"):
        mg.katz((*edges, np.array([4.0, -4.0])), alpha=0.3)


def test_the_command_chooses_alpha(tmp_path):
    (tmp_path / "g.txt").write_text("0 1\n1 0\n1 2\n", encoding="utf-8")
    store = str(tmp_path / "g.zarr")
    invoke("ingest", str(tmp_path / "g.txt"), store)
    out, err = invoke("katz", store, "--alpha", "auto")
    assert "chosen to fit" in out + err
    options = json.loads(invoke("--json", "katz", store, "--alpha", "auto")[0])["options"]
    assert options["alpha"] == pytest.approx(0.7)
    _, err = invoke("katz", store, "--alpha", "some", code=2)
    assert "--alpha must be a number or auto, not 'some'" in err
    (tmp_path / "path.txt").write_text("0 1\n1 2\n", encoding="utf-8")
    invoke("ingest", str(tmp_path / "path.txt"), str(tmp_path / "p.zarr"))
    _, err = invoke("eigenvector", str(tmp_path / "p.zarr"), "--tol", "0.1", code=3)
    assert "no cycle was found" in err


@pytest.mark.parametrize("seed", range(4))
def test_hits_with_negative_weights_as_networkx(seed):
    rng = np.random.default_rng(seed)
    G = nx.gnp_random_graph(30, 0.2, seed=seed, directed=True)
    weights = (rng.normal(size=G.size()) + 0.4).tolist()
    nx.set_edge_attributes(G, dict(zip(G.edges, weights, strict=True)), "weight")
    A = mg.ingest(G, transpose=True)
    hubs, authorities = mg.hits(A, tol=1e-13, max_iter=20000)
    for own, wanted in zip((hubs, authorities), nx.hits(G, tol=1e-15, max_iter=20000), strict=True):
        names = A.vertex_ids if A.vertex_ids is not None else range(30)
        np.testing.assert_allclose(own.values, [wanted[k] for k in names], rtol=1e-7, atol=1e-9)
        assert math.fsum(own.values) == pytest.approx(1.0)
        assert (own.values < 0).any()


def test_hits_that_sum_to_0_cannot_be_normalized():
    A = mg.ingest((*make_edges((0, 1), (0, 2)), np.array([1.0, -1.0])), transpose=True)
    with pytest.raises(OptionError, match=r"authorities have either sign and sum to 0, .* pass normalized=False"):
        mg.hits(A, nstart={1: 1.0, 2: -0.5})
    assert mg.hits(A, nstart={1: 1.0}, normalized=False).authorities.values.tolist() == pytest.approx(
        [0, 0.5**0.5, -(0.5**0.5)]
    )
