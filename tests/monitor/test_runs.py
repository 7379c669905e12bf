"""The state of runs, of messages alone."""

from __future__ import annotations

import pickle

import pytest

from mgspmv.monitor import runs as module
from mgspmv.monitor.runs import MOST_POINTS, RUNS_KEPT, Runs
from tests.support.messages import begin, end, iterate, recover


def test_devices_wait_for_the_slowest_and_do_not_say_so():
    runs = hear_all(begin("r", 3))
    for rank, (product_s, exchange_s) in enumerate([(1.0, 2.5), (3.0, 0.5), (2.0, 0.25)]):
        runs.hear(iterate(rank, 1, 1, seconds=(product_s, exchange_s, 0.0)))
    product, exchange, wait = runs.by_id["r"].mean_seconds
    assert product.tolist() == [1.0, 3.0, 2.0]
    assert wait.tolist() == [2.0, 0.0, 0.25]
    assert exchange.tolist() == [0.5, 0.5, 0.0]


# --- runs ------------------------------------------------------------------------------------------------------------


def hear_all(*messages):
    runs = Runs()
    for at, message in enumerate(messages):
        runs.hear(message, float(at))
    return runs


def count(runs, name, **labels):
    return runs.registry.get_sample_value(f"mgspmv_{name}", {"operation": "pagerank"} | labels)


def test_a_run_from_its_begin_to_its_end():
    runs = hear_all(begin())
    run = runs.by_id["r"]
    assert (run.state, run.is_running, run.edges, run.imbalance) == ("start", True, 300, None)
    runs.hear({"kind": "phase", "run": "r", "phase": "queue"}, 1.0)
    assert run.state == "queue"
    for rank in (0, 1):
        runs.hear(iterate(rank, 1, 4), 2.0)
    assert (run.state, run.iterations, run.change) == ("iterate", 4, 0.5**4)
    assert [*run.changes.values()] == [0.5, 0.25, 0.125, 0.0625]
    assert run.iterations_per_s == pytest.approx(1 / 1.75)
    assert run.edges_per_s == pytest.approx(300 / 1.75)
    assert run.exchanged_bytes.tolist() == [40, 40]
    assert run.held_bytes.tolist() == [1000, 1001]
    assert run.used_bytes["host"].tolist() == [5000, 5001]
    assert run.planned_bytes("host").tolist() == [1000, 1001]
    assert run.used_bytes["device"].tolist() == [0, 0]
    runs.hear({"kind": "phase", "run": "r", "phase": "residual"}, 3.0)
    assert run.state == "residual"
    runs.hear(end(), 4.5)
    assert (run.state, run.is_running, run.errors, run.elapsed_s) == ("converged", False, [], 4.5)
    assert run.used_bytes["host"].tolist() == [6000, 6001]
    assert run.seconds == {"product": 2.0, "start": 1.0}


def test_messages_of_the_same_iterations_count_once():
    runs = hear_all(begin(), iterate(0, 1, 4), iterate(0, 5, 4), iterate(1, 1, 4))
    run = runs.by_id["r"]
    assert run.iterations == count(runs, "iterations_total") == 8
    assert len(run.changes) == 8
    assert run.mean_seconds.tolist() == [[1.0, 1.0], [0.5, 0.5], [0.25, 0.25]]


def test_the_curve_of_a_shared_batch_has_the_largest_change_of_a_pass():
    first, second = iterate(0, 1, 3), iterate(1, 1, 5)
    first["change"], second["change"] = [0.5, 0.1, 0.4], [0.3, 0.6, 0.2, 0.1, 0.05]
    for messages in ((first, second), (second, first)):
        run = hear_all(begin(), *messages).by_id["r"]
        assert run.changes == {1: 0.5, 2: 0.6, 3: 0.4, 4: 0.1, 5: 0.05}
        assert (run.iterations, run.change) == (5, 0.05)


def test_messages_of_unknown_runs_change_nothing():
    runs = hear_all(begin())
    version = runs.version
    for message in (iterate(0, 1, 4, "other"), end("other"), {"kind": "phase", "run": "o", "phase": "x"}):
        runs.hear(message)
        assert (runs.version, [*runs.by_id]) == (version, ["r"]), message


def test_what_comes_after_the_end_changes_nothing():
    runs = hear_all(begin(), end(status="failed", error="x"))
    runs.hear(iterate(0, 1, 4))
    runs.hear(end())
    assert (runs.by_id["r"].state, runs.by_id["r"].iterations) == ("failed", 0)


def test_a_restart_goes_on_where_its_checkpoint_was():
    runs = hear_all(begin(), *(iterate(rank, 1, 8) for rank in (0, 1)))
    for rank in (0, 1):
        runs.hear(iterate(rank, 5, 2, epoch=1, seconds=(4.0, 0.0, 0.0)))
    run = runs.by_id["r"]
    assert (run.restarts, run.iterations) == (1, 6)
    assert [*run.changes] == [1, 2, 3, 4, 5, 6]
    assert [*run.rates] == [6]


def test_a_run_goes_on_with_fewer_workers():
    """What the ones before did is theirs, and what they tell too late of iterations that do not count is not heard."""
    runs = hear_all(begin(), *(iterate(rank, 1, 8) for rank in (0, 1)))
    runs.hear(recover(begin()["workers"][:1], 4))
    run = runs.by_id["r"]
    assert (run.n_workers, run.restarts, run.iterations) == (1, 1, 4)
    assert count(runs, "run_restarts_total") == count(runs, "recoveries_total", kind="lost") == 1
    assert run.errors == ["worker w1 (tcp://1) is gone; resumed after iteration 4 on 1 workers"]
    runs.hear(iterate(1, 9, 2))
    assert run.iterations == 4
    runs.hear(iterate(0, 5, 2, epoch=1))
    assert (run.iterations, run.restarts) == (6, 1)
    assert [*run.changes] == [1, 2, 3, 4, 5, 6]
    assert run.mean_seconds.tolist() == [[1.0], [0.5], [0.25]]


def test_imbalance_is_that_of_the_last_messages():
    runs = hear_all(begin(), iterate(0, 1, 4), iterate(0, 5, 4, seconds=(2.0, 0.0, 0.0)))
    assert runs.by_id["r"].imbalance is None, "one worker has said nothing yet"
    runs.hear(iterate(1, 1, 4, seconds=(6.0, 0.0, 0.0)))
    assert runs.by_id["r"].imbalance == 6 / 4
    runs.hear(iterate(1, 5, 4, seconds=(2.0, 0.0, 0.0)))
    assert runs.by_id["r"].imbalance == 1


def test_runs_tell_of_workers_that_are_gone():
    runs = hear_all(begin("a"), begin("b", 1), begin("c"), end("c"))
    version = runs.version
    runs.lose_worker("tcp://1")
    assert runs.by_id["a"].errors == ["worker w1 (tcp://1) left the cluster"]
    assert runs.by_id["a"].is_running
    assert not runs.by_id["b"].errors
    assert not runs.by_id["c"].errors
    assert runs.version > version


def test_the_last_runs_are_kept_and_those_that_go_on():
    runs = hear_all(begin("long"))
    for k in range(RUNS_KEPT + 5):
        runs.hear(begin(f"r{k}"))
        runs.hear(end(f"r{k}"))
    kept = [f"r{k}" for k in range(6, RUNS_KEPT + 5)]
    assert [*runs.by_id] == ["long", *kept]
    assert count(runs, "runs_started_total") == RUNS_KEPT + 6


def test_errors_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "MOST_ERRORS", 3)
    runs = hear_all(begin("r", 5))
    for rank in range(5):
        runs.lose_worker(f"tcp://{rank}")
    assert [error.split()[1] for error in runs.by_id["r"].errors] == ["w2", "w3", "w4"]


def test_hundreds_of_workers_and_many_iterations_are_bounded():
    n, runs = 300, Runs()
    runs.hear(begin("r", n))
    run = runs.by_id["r"]
    messages = [iterate(0, 1 + 500 * superstep, 500) for superstep in range(20)]
    for message in messages:
        for rank in range(n):
            runs.hear(message | {"ranks": (rank,)})  # as of a process: MessagePack has no lists
    assert run.iterations == 10_000
    assert len(run.changes) == MOST_POINTS
    assert [*run.changes][-1] == 10_000
    assert run.mean_seconds.shape == (3, n)
    assert len(pickle.dumps(runs.by_id)) < 2e6
