"""Bits that flip on workers, or on the way from one to another: each is noticed, and it is said on whom."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import mgspmv as mg
from mgspmv.distribute.integrity import (
    RankCheck,
    Report,
    RoundReport,
    check_agreement,
    check_given,
    check_made,
    check_ranks,
    check_reports,
)
from mgspmv.errors import ClusterError, CorruptionError, WorkerCorruptionError
from mgspmv.exchange.links import Member
from mgspmv.iterate.balance import Balance
from mgspmv.model import Digests, Event, RowCheck, Status, StepSums

MEMBERS = (Member("a", "tcp://1"), Member("b", "tcp://2"))
EVENT = Event("", 0, 7, 0.5, (), (), (), (), ())
SAME = (Digests((1, 2), (1, 3)), Digests((3, 4), (2, 4)))
HALF = RowCheck(2**60)
BALANCE = Balance(0.5, 1.0, 1.0, 1.0, 1.0, 1.0)


def make_reports(digests=SAME, rows=(HALF, HALF), slack=1e-15):
    return [
        Report([EVENT], None, (of_one,), RankCheck(own, slack, 0.0, BALANCE))
        for of_one, own in zip(digests, rows, strict=True)
    ]


# --- what is compared ------------------------------------------------------------------------------------------------


def test_supersteps_that_went_well():
    check_reports(make_reports(), MEMBERS, "iterations 1 to 7")
    check_reports([Report([EVENT], Status.NON_FINITE)] * 2, MEMBERS, "iterations 1 to 7")
    check_reports([Report([], None)] * 2, MEMBERS, "connect")


def test_what_was_sent_and_what_is_held():
    changed = (replace(SAME[0], held=(1, 9)), SAME[1])
    with pytest.raises(WorkerCorruptionError) as caught:
        check_reports(make_reports(changed), MEMBERS, "iterations 1 to 7")
    assert str(caught.value).startswith(
        "after iteration 7 worker a (tcp://1) does not hold what worker b (tcp://2) sent it: memory, a processor or a "
    )
    assert (caught.value.worker, caught.value.phase) == ("a", "iterations 1 to 7")
    assert isinstance(caught.value, ClusterError)
    assert isinstance(caught.value, CorruptionError)
    changed = (SAME[0], replace(SAME[1], sent=(3, 5)))
    with pytest.raises(WorkerCorruptionError, match=r"worker b \(tcp://2\) does not hold what it made itself: "):
        check_reports(make_reports(changed), MEMBERS, "iterations 1 to 7")


def test_each_matrix_is_compared():
    reports = [replace(report, digests=report.digests * 2) for report in make_reports()]
    check_reports(reports, MEMBERS, "")
    reports[1] = replace(reports[1], digests=(SAME[1], Digests((3, 4), (5, 4))))
    with pytest.raises(WorkerCorruptionError, match=r"worker b \(tcp://2\) does not hold what worker a"):
        check_reports(reports, MEMBERS, "")


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
    check_agreement([Report([EVENT], None)] * 2)
    for other in (Report([], None), Report([EVENT], Status.CONVERGED), Report([replace(EVENT, change=0.25)], None)):
        with pytest.raises(ClusterError, match="the workers do not agree on the changes of this superstep; one of"):
            check_agreement([Report([EVENT], None), other])


def test_rounds():
    ranks = RankCheck(HALF, 0.0)
    reports = [RoundReport(np.zeros(1), StepSums(), 0.0, 0, (1, 2), made, ranks) for made in (3, 4)]
    check_given(reports, (1, 2), MEMBERS, 7, "iteration 7")
    check_made(reports, (3, 4), MEMBERS, 7, "iteration 7")
    with pytest.raises(WorkerCorruptionError, match=r"^after iteration 7 worker a .* does not hold what worker b"):
        check_given(reports, (1, 3), MEMBERS, 7, "iteration 7")
    with pytest.raises(WorkerCorruptionError, match=r"^the slice that came from worker b .* after iteration 7 "):
        check_made(reports, (3, 5), MEMBERS, 7, "iteration 7")


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
    from mgspmv.exchange.columns import Columns
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
        "slot": (PeerTransport, "exchange_columns", after(lambda transport: flip(transport._sent))),
        "given z": (RelayTransport, "give", give_another),
        "made z": (RowsSession, "_report_round", change_report),
        "columns": (Columns, "gather", after(lambda columns: in_front(columns._held))),
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
    "z": ("superstep", 5, r"^after iteration 4 worker 3 \(tcp:.* does not hold what worker 0 \(tcp:.* sent it: "),
    "own z": ("superstep", 5, r"^after iteration 4 (worker 3 .* does not hold what it made itself|the ranks of 1 )"),
    "slot": (
        "superstep",
        5,
        r"^after iteration 4 worker \d .* does not hold what (worker 3 .* sent it|it made itself)",
    ),
    "given z": ("scheduler", 4, r"^after iteration 4 worker 3 \(tcp:.* does not hold what worker 0 \(tcp:.* sent it: "),
    "made z": ("scheduler", 5, r"^the slice that came from worker 3 .* after iteration 4 is not what it sent: "),
}


OFTEN = ("x", "weight before", "z", "slot", "given z", "made z")


@pytest.mark.parametrize("place", [f if f in OFTEN else pytest.param(f, marks=pytest.mark.slow) for f in FAULTS])
def test_a_bit_that_flips(place, graph, client):
    drive, call, message = FAULTS[place]
    wanted = mg.pagerank(graph).digest()
    hurt_last(client, place.removesuffix(" in rounds"), call)
    with pytest.raises(WorkerCorruptionError, match=message) as caught:
        mg.pagerank(graph, client=client, drive=drive)
    assert caught.value.phase in ("iterations 4 to 4", "iterations 5 to 5", "iteration 4", "iteration 5")
    assert mg.pagerank(graph, client=client, drive=drive).digest() == wanted


def test_a_bit_that_flips_in_power_iteration(graph, client):
    hurt_last(client, "columns", 3)
    with pytest.raises(WorkerCorruptionError, match=r"^after iteration 3 worker 3 .* does not hold what worker 0 "):
        mg.eigenvector_centrality(graph, client=client)
    assert mg.eigenvector_centrality(graph, client=client).status is Status.CONVERGED


@pytest.mark.parametrize(
    ("place", "precision"), [("z", "float32"), pytest.param("slot", "exact", marks=pytest.mark.slow)]
)
def test_a_bit_that_flips_in_many_vectors(place, precision, graph, client, monkeypatch):
    monkeypatch.setattr("mgspmv.distribute.batch.MOST_FIRST", 1)
    monkeypatch.setattr("mgspmv.distribute.batch.choose_length", lambda events: 1)
    vectors, (_, call, message) = [[v] for v in range(0, 400, 80)], FAULTS[place]
    wanted = mg.pagerank_batch(graph, vectors, precision=precision)
    hurt_last(client, place, call)
    message = message.replace("iteration", "pass")
    with pytest.raises(WorkerCorruptionError, match=message) as caught:
        mg.pagerank_batch(graph, vectors, client=client, precision=precision)
    assert caught.value.phase == "passes 4 to 4"
    again = mg.pagerank_batch(graph, vectors, client=client, precision=precision)
    assert [own.digest() for own in again] == [own.digest() for own in wanted]


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
