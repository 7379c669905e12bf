"""cuGraph on several workers, with a stand-in by NumPy in threads of this process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from distributed import Client

import mgspmv as mg
from benchmarks import cugraph_workers, scaling
from benchmarks.graphs import count_out_arcs
from benchmarks.machines import Host
from benchmarks.rank_checks import iterate_ranks
from mgspmv.errors import BackendError
from mgspmv.model import CsrBlock
from tests.support.clusters import start_cluster
from tests.support.waiting import HANG_S

pytestmark = pytest.mark.slow
N_WORKERS = 2


class Played:
    """pylibcugraph of several threads, each a rank: the arcs of all of them are one graph."""

    def __init__(self) -> None:
        self.own, self.barrier = threading.local(), threading.Barrier(N_WORKERS)
        self.given: dict[int, tuple[Any, ...]] = {}
        self.told: list[bool] = []
        self.problem: Exception | None = None
        self.goes_on = threading.Event()
        """What a rank waits for whose other one failed."""

    def hang(self, *_: Any) -> None:
        self.goes_on.wait(HANG_S)
        raise RuntimeError("left alone")

    def init(self, rank: int, n: int, unique_id: Any, device: int) -> None:
        assert (n, unique_id, device) == (N_WORKERS, "id", 0)
        self.own.rank = rank
        if self.problem is not None:
            if rank == 1:
                raise self.problem
            self.hang()

    def make_graph(self, handle: Any, properties: Any, sources: Any, destinations: Any, **options: Any) -> Any:
        assert handle == f"raft {self.own.rank}"
        told = options.pop("vertices_array", None)
        assert options == {"store_transposed": True, "do_expensive_check": False}
        [sources], [destinations] = sources, destinations
        assert sources.dtype == destinations.dtype == np.int32
        self.told.append(told is not None)
        self.given[self.own.rank] = (sources, destinations, None if told is None else told[0])
        self.barrier.wait(HANG_S)
        arcs = [np.concatenate([self.given[rank][k] for rank in range(N_WORKERS)]) for k in (0, 1)]
        vertices = np.concatenate([self.given[r][2] for r in range(N_WORKERS)]) if told else np.unique(arcs)
        self.barrier.wait(HANG_S)
        return SimpleNamespace(arcs=arcs, vertices=vertices)

    def rank(self, handle: Any, graph: Any, *more: Any, fail_on_nonconvergence: bool) -> Any:
        (sources, destinations), k, n = graph.arcs, more[6], int(graph.vertices.max()) + 1
        order = np.lexsort((sources, destinations))
        indptr = np.searchsorted(destinations[order], np.arange(n + 1)).astype(np.int64)
        block = CsrBlock(0, n, indptr, sources[order], None)
        ranks = iterate_ranks(np, block, count_out_arcs(np, block), np.isin(np.arange(n), graph.vertices), k)
        own = graph.vertices[self.own.rank :: N_WORKERS][::-1]
        return own, ranks[own].astype(np.float32), False


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    play = Played()
    plc, comms, rmm = ModuleType("pylibcugraph"), ModuleType("pylibcugraph.comms"), ModuleType("rmm")
    plc.__dict__.update(
        __version__="26.10.00",
        ResourceHandle=lambda handle: handle,
        GraphProperties=SimpleNamespace,
        MGGraph=play.make_graph,
        pagerank=play.rank,
    )
    comms.__dict__.update(
        cugraph_comms_create_unique_id=lambda: "id",
        cugraph_comms_init=play.init,
        cugraph_comms_get_raft_handle=lambda: SimpleNamespace(getHandle=lambda: f"raft {play.own.rank}"),
        cugraph_comms_shutdown=lambda: None,
    )
    rmm.mr = SimpleNamespace(  # type: ignore[attr-defined]  # a played module
        get_current_device_resource=lambda: "plain",
        set_current_device_resource=lambda _: None,
        CudaAsyncMemoryResource=lambda: "pool",
    )
    for module in (plc, comms, rmm):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(cugraph_workers, "choose_machine", lambda _: Host())
    monkeypatch.setattr(cugraph_workers, "time_iteration", lambda *_: 1e-3 * (1 + len(play.told)))

    def read_block(stored: Any, *rows: Any) -> CsrBlock:
        block: CsrBlock = stored.read_block(*rows)
        return block

    monkeypatch.setattr(cugraph_workers, "read_block", read_block)
    yield play
    play.goes_on.set()


@pytest.fixture(scope="module")
def client():
    with start_cluster(N_WORKERS, processes=False) as cluster, Client(cluster) as client:
        yield client


@pytest.fixture
def graph(tmp_path):
    path = str(tmp_path / "g.zarr")
    mg.generate("rmat", path, scale=7, duplicates="keep")
    return path


def test_ranks_are_those_of_all_arcs(played, client, graph):
    with mg.open_matrix(graph) as A:
        run = cugraph_workers.run_cugraph(client, N_WORKERS, A.stored, 10)
        wanted = mg.pagerank(A, tol_mode="fixed", max_iter=10).values
    np.testing.assert_allclose(run.ranks, wanted, rtol=1e-6)
    assert sorted(played.told) == [False, False, True, True]
    assert run.iteration_s == pytest.approx(3e-3, abs=2e-3)


def test_a_worker_that_fails_ends_it_though_others_wait(played, client, graph):
    played.problem = RuntimeError("A nccl error occurred: no network")
    wanted = "cuGraph on 2 workers: BackendError: cuGraph cannot connect the devices: A nccl error occurred: no network"
    with mg.open_matrix(graph) as A, pytest.raises(BackendError, match=wanted):
        cugraph_workers.run_cugraph(client, N_WORKERS, A.stored, 10)
    assert not played.goes_on.is_set()


def test_who_does_not_answer_is_not_waited_for(played, client, graph, monkeypatch):
    monkeypatch.setattr(cugraph_workers, "WAIT_S", 1.0)
    monkeypatch.setattr(sys.modules["pylibcugraph.comms"], "cugraph_comms_init", played.hang)
    with mg.open_matrix(graph) as A, pytest.raises(BackendError, match="cuGraph on 2 workers: no answer within 1 s"):
        cugraph_workers.run_cugraph(client, N_WORKERS, A.stored, 10)


def test_what_cugraph_is_not_asked_for(graph, tmp_path, monkeypatch):
    with mg.open_matrix(graph) as A:
        assert cugraph_workers.find_refusal(A.stored) is None
        monkeypatch.setattr(cugraph_workers, "INT32_LIMIT", 100)
        assert "fewer than 2^31 arcs with 32-bit vertices" in str(cugraph_workers.find_refusal(A.stored))
    monkeypatch.undo()
    weighted = str(tmp_path / "w.zarr")
    mg.generate("rmat", weighted, scale=5, weights=True)
    with mg.open_matrix(weighted) as A:
        assert "without weights" in str(cugraph_workers.find_refusal(A.stored))
    assert scaling.find_peer("cpu", graph) == (False, "left out, cuGraph needs a GPU")
