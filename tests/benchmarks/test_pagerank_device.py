"""The benchmark of iterations on a CUDA device: its graphs, its reference, cuGraph where it is installed."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from benchmarks import pagerank
from benchmarks.cugraph import CugraphIterations
from benchmarks.graphs import GRAPHS, count_out_arcs, find_isolated
from benchmarks.iterations import make_ours
from benchmarks.machines import Device
from benchmarks.rank_checks import PEER_TOLERANCE, TOLERANCES, compare_ranks, iterate_ranks
from mgspmv.kernels.device import has_device
from mgspmv.model import Precision

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_device(), reason="there is no CUDA device")]
needs_cugraph = pytest.mark.skipif(find_spec("pylibcugraph") is None, reason="cuGraph is not installed")


@pytest.fixture(scope="module")
def device() -> Device:
    return Device()


def test_graphs_and_their_references_are_those_of_the_host(device: Device) -> None:
    for name in GRAPHS:
        made, wanted = (GRAPHS[name].make(xp, 200_000) for xp in (device.xp, np))
        for own, other in ((made.indptr, wanted.indptr), (made.indices, wanted.indices)):
            assert own.dtype == other.dtype
            assert (device.get(own) == other).all(), name
        weights = [count_out_arcs(xp, block) for xp, block in ((device.xp, made), (np, wanted))]
        assert (device.get(weights[0]) == weights[1]).all()
        isolated = [find_isolated(*x) for x in ((device.xp, made, weights[0]), (np, wanted, weights[1]))]
        assert (device.get(isolated[0]) == isolated[1]).all()
        ranks = iterate_ranks(device.xp, made, weights[0], ~isolated[0], 10)
        np.testing.assert_allclose(
            device.get(ranks), iterate_ranks(np, wanted, weights[1], ~isolated[1], 10), rtol=1e-12
        )


@pytest.mark.parametrize("precision", ["float32", "exact"])
def test_our_ranks(precision: Precision, device: Device) -> None:
    for name in ("rmat22", "grid", "web", "rmat27"):
        block = GRAPHS[name].make(device.xp, 200_000)
        weight = count_out_arcs(device.xp, block)
        iterations = make_ours(device, block, weight, precision)
        for k in (10, 3):  # and prepared a second time
            assert iterations.prepare() > 0
            iterations.advance(k)
            wanted = device.get(iterate_ranks(device.xp, block, weight, device.xp.ones(block.n_rows, bool), k))
            assert compare_ranks(iterations.ranks(), wanted, TOLERANCES[precision], "float64").problem is None
        iterations.advance(2)
        wanted = device.get(iterate_ranks(device.xp, block, weight, device.xp.ones(block.n_rows, bool), 5))
        assert compare_ranks(iterations.ranks(), wanted, TOLERANCES[precision], "float64").problem is None
        assert not iterations.has_stopped
        iterations.close()


@needs_cugraph
@pytest.mark.parametrize("keep_isolated", [True, False])
def test_cugraphs_ranks(keep_isolated: bool, device: Device) -> None:
    for name in ("rmat22", "grid", "web"):
        block = GRAPHS[name].make(device.xp, 200_000)
        weight = count_out_arcs(device.xp, block)
        is_counted = ~find_isolated(device.xp, block, weight) | keep_isolated
        iterations = CugraphIterations(device, block, keep_isolated)
        for k in (10, 3):
            assert iterations.prepare() > 0
            iterations.advance(k)
            assert not iterations.has_stopped
            wanted = device.get(iterate_ranks(device.xp, block, weight, is_counted, k))
            assert compare_ranks(iterations.ranks(), wanted, PEER_TOLERANCE, "float64").problem is None
        iterations.close()


def test_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert pagerank.main(["--backend", "cuda", "--size", "200000", "--rounds", "2"]) == 0
    stdout = capsys.readouterr().out
    for name, recipe in GRAPHS.items():
        assert recipe.by_name_only or f"| {name} |" in stdout
    [version] = [line for line in stdout.splitlines() if line.startswith("cuGraph:")]
    assert ("pylibcugraph 2" in version) == (find_spec("pylibcugraph") is not None)
