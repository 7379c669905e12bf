"""Vertices with rank 0 although a path leads to them: told apart from those that none leads to."""

from __future__ import annotations

import json

import numpy as np
import pytest

import mgspmv as mg
from mgspmv.model import Underflow
from tests.support.commands import invoke

N_HUBS, N_LEAVES = 10, 999


def make_chain(weight=None):
    """Hubs 0..9, each with an edge to the next one and to 999 leaves of its own; 20 vertices that none leads to."""
    hubs = np.repeat(np.arange(N_HUBS - 1), N_LEAVES + 1)
    leaves = N_HUBS + np.arange((N_HUBS - 1) * N_LEAVES).reshape(-1, N_LEAVES)
    targets = np.concatenate([np.arange(1, N_HUBS)[:, None], leaves], axis=1).ravel()
    strangers = leaves[-1, -1] + 1 + np.arange(20)
    src, dst = np.append(hubs, strangers), np.append(targets, np.roll(strangers, 1))
    return (src, dst) if weight is None else (src, dst, np.full(len(src), weight))


@pytest.fixture(scope="module")
def chain():
    return mg.ingest(make_chain())


RUN = {"personalization": {0: 1}, "dangling": "drop", "norm": "relative"}


@pytest.mark.parametrize(("precision", "n"), [("exact", 1000), ("float64", 0), ("float32", 0)])
def test_each_precision_has_its_resolution(chain, precision, n):
    solution = mg.pagerank(chain, precision=precision, **RUN)
    wanted = Underflow(n, 6, 2.0**-62, "exact") if n else None
    assert solution.underflow == wanted
    zeros = np.flatnonzero(solution.values == 0)
    assert len(zeros) == (20 if wanted is None else 20 + 4 * (N_LEAVES + 1))  # hubs 6 to 9, leaves of 5 to 8


@pytest.mark.parametrize("executor", ["supersteps", "tasks"])
def test_workers_tell_the_same(chain, executor, in_process, tmp_path):
    with mg.ingest(make_chain(), tmp_path / "g.zarr") as A:
        found = mg.pagerank(A.on(in_process(3), executor=executor), **RUN)
        assert found.underflow == Underflow(1000, 6, 2.0**-62, "exact")
        assert found.digest() == mg.pagerank(chain, **RUN).digest()
        with A.distribute(in_process(2)) as D:
            assert mg.pagerank(D.on(executor=executor), **RUN).underflow == found.underflow


def test_jumps_that_float32_has_no_number_for():
    A = mg.ingest((np.array([0, 1]), np.array([1, 0])))
    solution = mg.pagerank(A, personalization=np.array([1.0, 1e-60]), alpha=0, precision="float32")
    assert solution.underflow == Underflow(1, 1, 2.0**-149, "float32")


def test_what_iterations_have_not_reached_is_not_lost():
    ends = np.arange(300)
    solution = mg.pagerank(mg.ingest((ends, ends + 1)), personalization={0: 1})
    assert np.count_nonzero(solution.values == 0) > 100
    assert solution.underflow is None


def test_it_is_saved_and_shown(tmp_path):
    src, dst = make_chain()
    np.savetxt(tmp_path / "g.txt", np.stack([src, dst], axis=1), fmt="%d")
    (tmp_path / "p.txt").write_text("0 1\n", encoding="utf-8")
    store, ranks = str(tmp_path / "g.zarr"), str(tmp_path / "r.parquet")
    invoke("ingest", str(tmp_path / "g.txt"), store)
    run = ("pagerank", store, "--personalization", str(tmp_path / "p.txt"), "--dangling", "drop")
    run += ("--norm", "relative", "--overwrite")
    out, err = invoke(*run, "-o", ranks)
    assert "rank 0" in out + err
    assert "--precision float64" in out + err
    assert mg.load_solution(ranks).underflow == Underflow(1000, 6, 2.0**-62, "exact")
    mg.load_solution(ranks).save(tmp_path / "r.zarr")
    assert mg.load_solution(tmp_path / "r.zarr").underflow.n == 1000
    found = json.loads(invoke("--json", *run, "-o", ranks)[0])["underflow"]
    assert (found["n"], found["first"], found["precision"]) == (1000, 6, "exact")
    said = str(mg.load_solution(ranks).underflow)
    assert said == (
        "1000 vertices have rank 0 by underflow, the first is 6: their in-flow is below 2.2e-19, the resolution of "
        "precision='exact'; pass precision='float64' to resolve them"
    )
