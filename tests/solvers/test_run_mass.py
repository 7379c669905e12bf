"""What ranks must sum to: real runs are within rounding of it, and runs whose memory failed are not."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import mgspmv as mg
from mgspmv.errors import CorruptionError
from mgspmv.model import Status
from mgspmv.solvers import pagerank, steps
from mgspmv.solvers.options import PageRankOptions
from mgspmv.solvers.pagerank import make_inputs, read_out_weight
from mgspmv.solvers.run import MassCheck
from mgspmv.solvers.steps import LocalSteps
from tests.support.played import PlayedDevice, run_played

PRECISIONS = ["exact", "float64", "float32"]
N = 60
RAMP = np.arange(1.0, N + 1)
VECTORS = {
    "uniform": {},
    "alpha": {"alpha": 0.99},
    "personalization": {"personalization": RAMP, "nstart": RAMP[::-1]},
    "dangling uniform": {"dangling": "uniform", "personalization": RAMP},
    "dangling dropped": {"dangling": "drop"},
    "dangling dropped of all": {"dangling": "drop", "nstart": RAMP},
    "out-weights": {"out_weight": 40 + RAMP},
    "out-weights, dangling dropped": {"out_weight": 40 + RAMP, "dangling": "drop"},
    "weights left out": {"weight": False},
}
SLACK = {"exact": 1e-12, "float64": 1e-12, "float32": 1e-4}
"""More than what rounding is allowed to do here."""


@pytest.fixture(autouse=True)
def checked(monkeypatch):
    """All sums that runs were checked for: sum, balance and slack; after each iteration."""
    seen, original = [], MassCheck.check

    def check(self, total, slack, iteration):
        seen.append((total, self, slack, iteration))
        original(self, total, slack, iteration)

    monkeypatch.setattr(MassCheck, "check", check)
    monkeypatch.setattr(pagerank, "CHECK_S", 0.0)
    return seen


def make_graph(source, **options):
    return mg.ingest(source, **{"kind": "graph", **options})


def make_arcs(seed=0, dangling=5):
    rng = np.random.default_rng(seed)
    arcs = rng.random((N, N)) * (rng.random((N, N)) < 0.1)
    arcs[rng.permutation(N)[:dangling]] = 0
    return sp.coo_array(arcs)


@pytest.fixture(scope="module")
def graph():
    return make_graph(make_arcs())


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("vectors", VECTORS.values(), ids=VECTORS)
def test_real_runs_are_balanced(graph, vectors, precision, checked):
    checked.clear()
    solution = mg.pagerank(graph, precision=precision, norm="fixed", max_iter=60, **vectors)
    assert [iteration for *_, iteration in checked] == list(range(1, 61))
    alpha = vectors.get("alpha", 0.85)
    for total, balance, slack, _ in checked:
        assert 0 < slack < SLACK[precision]
        assert balance.low - slack / (1 - alpha) <= total <= balance.high + slack / (1 - alpha)
        assert balance.low == balance.high or "out_weight" in vectors
    assert checked[-1][0] == pytest.approx(float(solution.values.astype(float).sum()), abs=1e-13)


@given(
    st.integers(0, 2**32),
    st.integers(-250, 250),
    st.sampled_from(PRECISIONS),
    st.sampled_from([0.0, 0.5, 0.85, 0.999]),
    st.sampled_from(["drop", "uniform", None]),
)
def test_weights_of_any_size_are_balanced(seed, exponent, precision, alpha, dangling):
    """Also those that vanish in float32; those that are too large for it are refused."""
    exponent = min(exponent, 30) if precision == "float32" else exponent
    arcs = make_arcs(seed, dangling=seed % 9)
    units = 10.0 ** np.random.default_rng(seed).integers(min(0, exponent), max(0, exponent) + 1, N)
    A = make_graph(sp.coo_array((arcs.data * units[arcs.row], (arcs.row, arcs.col)), shape=(N, N)))
    asked = {"norm": "fixed", "max_iter": 8, "alpha": alpha, "dangling": dangling, "throw": False}
    mg.pagerank(A, precision=precision, **asked)


def test_stochastic_columns_may_be_a_little_off(checked):
    n = 30
    columns = np.random.default_rng(0).random((n, n)) * (1 + 9e-7)
    A = make_graph(sp.coo_array(columns / columns.sum(axis=0)), kind="stochastic")
    mg.pagerank(A, norm="fixed", max_iter=30)
    balance = checked[-1][1]
    assert balance.low == pytest.approx(1 - 1e-6 * 0.85 / 0.15, abs=1e-7)
    assert balance.high == pytest.approx(1 + 1e-6 * 0.85 / 0.15, abs=1e-7)


class Fault:
    """Changes something once, after so many steps of a run."""

    def __init__(self, monkeypatch, change, after=3):
        self.n_made, self.after, self.change, original = 0, after, change, LocalSteps.advance

        def advance(steps, mass, n):
            made = original(steps, mass, n)
            self.n_made += 1
            if self.n_made == self.after:
                self.change(steps)
            return made

        monkeypatch.setattr(LocalSteps, "advance", advance)


def flip(array, k, bit):
    raw = array.view(np.uint64 if array.itemsize == 8 else np.uint32)
    raw[k] ^= raw.dtype.type(1 << bit)


def find_heaviest(steps):
    """A vertex with much rank and out-edges."""
    rows = steps.rows
    return int((rows.x * (rows.weight > 0)).argmax())


def scale_block(steps):
    steps.rows.x[steps.rows.weight > 0] *= 1 + 2.0**-20


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_flipped_bit_of_a_rank(graph, precision, monkeypatch):
    for bit in (0, 20, 51 if precision != "float32" else 22):
        Fault(monkeypatch, lambda steps, bit=bit: flip(steps.rows.x, find_heaviest(steps), bit))
        with pytest.raises(CorruptionError, match=r"^after iteration 3 the ranks of 1 vertices changed after"):
            mg.pagerank(graph, precision=precision)
        monkeypatch.undo()
        monkeypatch.setattr(pagerank, "CHECK_S", 0.0)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_step_that_computes_wrongly(graph, precision, monkeypatch):
    """Ranks that are scaled together with what is prepared of them."""
    by = {"exact": 2.0**-30, "float64": 2.0**-30, "float32": 2.0**-12}[precision]

    def change(steps):
        x, weight = steps.rows.x, steps.rows.weight
        x[weight > 0] *= x.dtype.type(1 + by)
        steps.scale()

    Fault(monkeypatch, change)
    with pytest.raises(CorruptionError, match=r"^after iteration 3 the ranks sum to 1\.0.*, expected (1\.0|0\.99)"):
        mg.pagerank(graph, precision=precision)


@pytest.mark.parametrize("vectors", VECTORS.values(), ids=VECTORS)
def test_an_out_weight_that_is_flipped(graph, vectors, monkeypatch):
    Fault(monkeypatch, lambda steps: flip(steps.rows.weight, find_heaviest(steps), 3), after=2)
    with pytest.raises(CorruptionError, match=r"^after iteration 2 the ranks of 1 vertices changed after"):
        mg.pagerank(graph, **vectors)


@pytest.mark.parametrize("what", ["data", "indices"])
def test_an_edge_that_is_flipped(what, monkeypatch):
    def change(steps):
        block = steps.rows.kernel.block
        if what == "data":
            flip(block.data, 17, 50)
        else:
            block.indices[40] ^= 1

    Fault(monkeypatch, change)
    with pytest.raises(CorruptionError, match=r"^after iteration 4 the ranks sum to "):
        mg.pagerank(make_graph(make_arcs()))


def test_a_rank_of_a_dangling_vertex_that_is_flipped(graph, monkeypatch):
    def change(steps):
        rows = steps.rows
        flip(rows.x, int((rows.weight == 0).argmax()), 15)

    Fault(monkeypatch, change)
    with pytest.raises(CorruptionError, match=r"^after iteration 3 the ranks of dangling vertices sum to "):
        mg.pagerank(graph)


def test_on_a_device(monkeypatch):
    A = make_graph(make_arcs())
    options = PageRankOptions()
    start, weight = make_inputs(A, options, use_weights=True), read_out_weight(A.stored, True)
    block = A.block("float64")
    asked = (options, options.threshold(N, A.nnz), lambda event: None)

    def run(damage=None):
        device = PlayedDevice(block)
        device.damage = damage
        balance = start.find_balance(options.alpha, N)
        return run_played(device, start.on_device(weight), *asked, balance=balance)

    assert run().status is Status.CONVERGED

    def damage(x):
        x[11] *= 0.5

    monkeypatch.setattr(steps, "STEPS_AT_ONCE", 1)
    with pytest.raises(CorruptionError, match=r"^after iteration 1 the ranks of 1 vertices changed after"):
        run(damage)


def test_ranks_are_looked_at_before_they_are_kept(graph, monkeypatch, tmp_path):
    asked, original = {"checkpoint": mg.Checkpoint(tmp_path / "c", every_s=0, resume=True)}, LocalSteps.advance

    def advance(steps, mass, n):
        made = original(steps, mass, n)
        scale_block(steps)
        return made

    mg.pagerank(graph, **asked, max_iter=3, throw=False)
    with monkeypatch.context() as patch:
        patch.setattr(LocalSteps, "advance", advance)
        with pytest.raises(CorruptionError, match=r"^after iteration 4 the ranks of 5\d vertices changed after"):
            mg.pagerank(graph, **asked)
    again = mg.pagerank(graph, **asked)
    assert again.resumed_after == 3
    assert again.digest() == mg.pagerank(graph).digest()
