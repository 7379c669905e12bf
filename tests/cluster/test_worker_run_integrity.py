"""Bits that flip on workers, or on the way from one to another: each is noticed by what the ranks must sum to."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import mgspmv as mg
from mgspmv.errors import WorkerCorruptionError

rank = partial(mg.pagerank, alpha=0.5)
"""Of few iterations."""


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """With weights, so that z is of floats."""
    rng = np.random.default_rng(3)
    arcs = rng.integers(0, 400, 4000), rng.integers(0, 400, 4000), rng.random(4000)
    store = tmp_path_factory.mktemp("integrity") / "graph.zarr"
    return mg.ingest(arcs, store, n_vertices=410, kind="graph", duplicates="sum")


@pytest.fixture(autouse=True)
def _short_supersteps(monkeypatch):
    """Of an iteration each, so that it is known which one an error names."""
    monkeypatch.setattr("mgspmv.cluster.executors.choose_length", lambda events: 1)


def hurt(dask_worker, place, call):
    """Flip a bit in the middle of a run, once, when something is called for so many times."""
    from mgspmv.cluster.iterations import CsrRanking
    from mgspmv.exchange.peer import ClientExchange, PeerExchange
    from mgspmv.solvers.steps import LocalSteps

    def flip(array, k=3, bit=40):
        raw = array.view(np.uint64)
        raw[k] ^= np.uint64(1 << bit)

    def in_front(array):
        flip(array, len(array) // 10)  # of another worker, by any halo

    def give_another(relay, z):
        z = z.copy()
        in_front(z)
        return original(relay, z)

    def change_report(session, *given):
        report = original(session, *given)
        flip(report.z)
        return report

    def after(change):
        def changed(self, *given):
            found = original(self, *given)
            change(self)
            return found

        return changed

    kind, name, change = {
        "x": (LocalSteps, "advance", after(lambda steps: flip(steps.rows.x))),
        "weight": (LocalSteps, "advance", after(lambda steps: flip(steps.rows.weight))),
        "weight before": (
            LocalSteps,
            "advance",
            lambda s, *given: (flip(s.rows.weight, bit=52), original(s, *given))[1],
        ),
        "z": (PeerExchange, "exchange_columns", after(lambda transport: in_front(transport.z))),
        "own z": (PeerExchange, "exchange_columns", after(lambda transport: flip(transport.z, -2))),
        "given z": (ClientExchange, "give", give_another),
        "made z": (CsrRanking, "_report_round", change_report),
    }[place]
    original, calls = getattr(kind, name), []

    def act(self, *given):
        calls.append(name)
        if len(calls) < call:
            return original(self, *given)
        setattr(kind, name, original)
        return change(self, *given)

    setattr(kind, name, act)


def hurt_last(client, place, call):
    """On worker 3 of 4."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    client.run(hurt, place=place, call=call, workers=[a for a, w in workers.items() if w["name"] == 3])


FAULTS = {
    "x": ("supersteps", 4, r"^after iteration 4 the ranks of 1 vertices changed .* on worker 3 "),
    "x in rounds": ("tasks", 4, r"^after iteration 4 the ranks of 1 vertices changed .* on worker 3 "),
    "weight": ("supersteps", 4, r"^after iteration 4 the ranks of 1 vertices changed .* on worker 3 "),
    "weight before": ("supersteps", 4, r"^after iteration 5 the ranks sum to .*, expected "),
    "weight before in rounds": ("tasks", 4, r"^after iteration 5 the ranks sum to .*, expected "),
    "z": ("supersteps", 5, r"^after iteration 5 the ranks sum to .*, expected "),
    "own z": ("supersteps", 5, r"^after iteration 4 the ranks of 1 vertices changed .* on worker 3 "),
    "given z": ("tasks", 4, r"^after iteration 4 the ranks sum to .*, expected "),
    "made z": ("tasks", 5, r"^after iteration 5 the ranks sum to .*, expected "),
}


OFTEN = ("x", "weight before", "z", "given z", "made z")


@pytest.mark.parametrize("place", [f if f in OFTEN else pytest.param(f, marks=pytest.mark.slow) for f in FAULTS])
def test_a_bit_that_flips(place, graph, client):
    executor, call, message = FAULTS[place]
    wanted = rank(graph).digest()
    hurt_last(client, place.removesuffix(" in rounds"), call)
    with pytest.raises(WorkerCorruptionError, match=message) as caught:
        rank(graph.on(client, executor=executor))
    assert caught.value.phase in ("iterations 4 to 4", "iterations 5 to 5", "iteration 4", "iteration 5")
    assert rank(graph.on(client, executor=executor)).digest() == wanted


@pytest.mark.parametrize("executor", [pytest.param("tasks", marks=pytest.mark.slow), "supersteps"])
def test_nothing_of_such_a_superstep_is_kept(executor, graph, client, tmp_path):
    placed, place = graph.on(client, executor=executor), tmp_path / "c"
    rank(placed, checkpoint=mg.Checkpoint(place, every_s=0), max_iter=3, throw=False)
    resume = mg.Checkpoint(place, every_s=0, resume=True)
    hurt_last(client, "x", 3)
    with pytest.raises(WorkerCorruptionError, match=r"^after iteration 6 .* with resume=True if there is a checkpoint"):
        rank(placed, checkpoint=resume)
    again = rank(placed, checkpoint=resume)
    assert 3 <= again.resumed_after < 6
    assert again.digest() == rank(graph).digest()
