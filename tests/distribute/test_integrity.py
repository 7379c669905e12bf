"""Bits that flip on workers, or on the way from one to another: each is noticed by what the ranks must sum to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import mgspmv as mg
from mgspmv.distribute.integrity import RankCheck, Report, check_ranks, check_reports
from mgspmv.errors import ClusterError, WorkerCorruptionError
from mgspmv.exchange.links import Member
from mgspmv.iterate.balance import Balance
from mgspmv.model import Event, RowCheck, Status

MEMBERS = (Member("a", "tcp://1"), Member("b", "tcp://2"))
EVENT = Event("", 0, 7, 0.5, (), (), (), (), ())
HALF = RowCheck(2**60)
BALANCE = Balance(0.5, 1.0, 1.0, 1.0, 1.0, 1.0)


def make_reports(rows=(HALF, HALF), slack=1e-15):
    return [Report([EVENT], None, RankCheck(own, slack, 0.0, BALANCE)) for own in rows]


# --- what is compared ------------------------------------------------------------------------------------------------


def test_supersteps_that_went_well():
    check_reports(make_reports(), MEMBERS, "iterations 1 to 7")
    check_reports([Report([EVENT], Status.NON_FINITE)] * 2, MEMBERS, "iterations 1 to 7")
    check_reports([Report([], None)] * 2, MEMBERS, "connect")


def test_ranks():
    with pytest.raises(WorkerCorruptionError, match=r"7 the ranks of 3 vertices .* on worker b \(tcp:") as caught:
        check_reports(make_reports(rows=(HALF, RowCheck(2**60, 3))), MEMBERS, "iterations 1 to 7")
    assert caught.value.worker == "b"
    off = (HALF, RowCheck(2**60 + 2**30))
    with pytest.raises(WorkerCorruptionError, match=r"^after iteration 7 the ranks sum to 1\.0000") as caught:
        check_reports(make_reports(rows=off), MEMBERS, "iterations 1 to 7")
    assert (caught.value.worker, caught.value.phase) == (None, "iterations 1 to 7")
    check_reports(make_reports(rows=off, slack=1e-9), MEMBERS, "")
    check_ranks([RankCheck(RowCheck(5, dangling=2**60), 0.0)], 0.25, None, MEMBERS[:1], 7, "")
    with pytest.raises(
        WorkerCorruptionError, match=r"^after iteration 7 the ranks of dangling vertices sum to 0\.25, and"
    ):
        check_ranks([RankCheck(RowCheck(5, dangling=2**60), 0.0)], 0.5, None, MEMBERS[:1], 7, "")


def test_iterations_that_differ():
    check_reports([Report([EVENT], None)] * 2, MEMBERS, "")
    for other in (Report([], None), Report([EVENT], Status.CONVERGED), Report([replace(EVENT, change=0.25)], None)):
        with pytest.raises(ClusterError, match="the workers do not agree on the changes of this superstep; one of"):
            check_reports([Report([EVENT], None), other], MEMBERS, "")


# --- on workers ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """With weights, so that z is of floats."""
    rng = np.random.default_rng(3)
    arcs = rng.integers(0, 400, 4000), rng.integers(0, 400, 4000), rng.random(4000)
    store = tmp_path_factory.mktemp("integrity") / "graph.zarr"
    mg.ingest(arcs, store, n_vertices=410, kind="graph", duplicates="sum")
    return mg.open_matrix(store)


@pytest.fixture(autouse=True)
def _short_supersteps(monkeypatch):
    """Of an iteration each, so that it is known which one an error names."""
    monkeypatch.setattr("mgspmv.distribute.drives.MOST_FIRST", 1)
    monkeypatch.setattr("mgspmv.distribute.drives.choose_length", lambda events: 1)


def hurt(dask_worker, place, call):
    """Flip a bit in the middle of a run, once, when something is called for so many times."""
    from mgspmv.distribute.session import RowsSession
    from mgspmv.exchange.peer import PeerTransport
    from mgspmv.exchange.relay import RelayTransport
    from mgspmv.iterate.pagerank import LocalSteps

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
        "x": (LocalSteps, "step", after(lambda steps: flip(steps.rows[0].x))),
        "weight": (LocalSteps, "step", after(lambda steps: flip(steps.rows[0].weight))),
        "weight before": (LocalSteps, "step", lambda s, m: (flip(s.rows[0].weight, bit=52), original(s, m))[1]),
        "z": (PeerTransport, "exchange_columns", after(lambda transport: in_front(transport.z))),
        "own z": (PeerTransport, "exchange_columns", after(lambda transport: flip(transport.z, -2))),
        "given z": (RelayTransport, "give", give_another),
        "made z": (RowsSession, "_report_round", change_report),
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
    "x": ("superstep", 4, r"^after iteration 4 the ranks of 1 vertices are not .* on worker 3 "),
    "x in rounds": ("scheduler", 4, r"^after iteration 4 the ranks of 1 vertices are not .* on worker 3 "),
    "weight": ("superstep", 4, r"^after iteration 4 the ranks of 1 vertices are not .* on worker 3 "),
    "weight before": ("superstep", 4, r"^after iteration 5 the ranks sum to .* and must sum to "),
    "weight before in rounds": ("scheduler", 4, r"^after iteration 5 the ranks sum to .* and must sum to "),
    "z": ("superstep", 5, r"^after iteration 5 the ranks sum to .* and must sum to "),
    "own z": ("superstep", 5, r"^after iteration 4 the ranks of 1 vertices are not .* on worker 3 "),
    "given z": ("scheduler", 4, r"^after iteration 4 the ranks sum to .* and must sum to "),
    "made z": ("scheduler", 5, r"^after iteration 5 the ranks sum to .* and must sum to "),
}


OFTEN = ("x", "weight before", "z", "given z", "made z")


@pytest.mark.parametrize("place", [f if f in OFTEN else pytest.param(f, marks=pytest.mark.slow) for f in FAULTS])
def test_a_bit_that_flips(place, graph, client):
    drive, call, message = FAULTS[place]
    wanted = mg.pagerank(graph).digest()
    hurt_last(client, place.removesuffix(" in rounds"), call)
    with pytest.raises(WorkerCorruptionError, match=message) as caught:
        mg.pagerank(graph, client=client, drive=drive)
    assert caught.value.phase in ("iterations 4 to 4", "iterations 5 to 5", "iteration 4", "iteration 5")
    assert mg.pagerank(graph, client=client, drive=drive).digest() == wanted


@pytest.mark.parametrize("drive", [pytest.param("scheduler", marks=pytest.mark.slow), "superstep"])
def test_nothing_of_such_a_superstep_is_kept(drive, graph, client, tmp_path):
    asked = {"client": client, "drive": drive, "checkpoint": tmp_path / "c", "checkpoint_every": 0}
    mg.pagerank(graph, **asked, max_iter=3, throw=False)
    hurt_last(client, "x", 3)
    with pytest.raises(WorkerCorruptionError, match=r"^after iteration 6 .* checkpoint by resume=True if there is one"):
        mg.pagerank(graph, **asked, resume=True)
    again = mg.pagerank(graph, **asked, resume=True)
    assert 3 <= again.resumed_after < 6
    assert again.digest() == mg.pagerank(graph).digest()
