"""cuGraph's PageRank on several GPUs, a worker each: what scaling is measured beside.

Each worker reads arcs of a store, and cuGraph shuffles them to where it wants them.

Source: pylibcugraph 26.10, `comms`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.cugraph import CugraphIterations, load_cugraph
from benchmarks.iterations import time_iteration
from benchmarks.machines import choose_machine
from mgspmv.errors import BackendError
from mgspmv.kernels.device import read_block
from mgspmv.model import INT32_LIMIT
from mgspmv.store.read import StoreAddress
from mgspmv.store.stored_matrix import StoredMatrix

ROUNDS = 5
"""How often runs of iterations are timed; the least counts."""
WAIT_S = 300.0
"""Seconds for all of it: a worker that fails leaves the others waiting inside NCCL."""


@dataclass(frozen=True)
class CugraphRun:
    """What cuGraph did on so many workers."""

    iteration_s: float
    """The less of two: told of all vertices, and of those that have arcs."""
    ranks: np.ndarray
    """(n,) float64: of all vertices, after the iterations that were asked for."""


def find_refusal(stored: StoredMatrix) -> str | None:
    """Why cuGraph is not asked for the ranks of a store, in words; None where it is."""
    info = stored.info
    if info.nnz >= INT32_LIMIT:
        return f"cuGraph takes fewer than 2^31 arcs with 32-bit vertices, and this graph has {info.nnz:,}"
    if not info.is_pattern or info.order is not None or info.kind != "graph":
        return "cuGraph is given graphs without weights, in the order of their source"
    return None


def run_cugraph(client: Any, n: int, stored: StoredMatrix, n_checked: int) -> CugraphRun:
    """Rank a store by cuGraph on the workers of a cluster, each with a device, and time iterations.

    Parameters
    ----------
    client : of a cluster that does nothing else
    n : its workers
    n_checked : iterations after which ranks are given

    Raises
    ------
    BackendError : cuGraph fails, or takes longer than `WAIT_S`; the cluster is of no use after that
    """
    from distributed import as_completed

    client.wait_for_workers(n)
    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
    n_rows = stored.info.shape[0]
    bounds = [n_rows * k // n for k in range(n + 1)]
    try:
        unique_id = client.submit(_make_unique_id, workers=workers[:1], pure=False).result(WAIT_S)
        futures = [
            client.submit(_rank_share, rank, n, unique_id, stored.address(), rows, n_checked, workers=one, pure=False)
            for rank, (one, rows) in enumerate(zip(workers, pairwise(bounds), strict=True))
        ]
        shares = [share for _, share in as_completed(futures, with_results=True, timeout=WAIT_S)]
    except TimeoutError as error:
        raise BackendError(f"cuGraph on {n} workers: no answer within {WAIT_S:g} s") from error
    except Exception as error:  # whatever it does, or a worker that it ends: what was measured without it is kept
        raise BackendError(f"cuGraph on {n} workers: {type(error).__name__}: {error}") from error
    ranks = np.zeros(n_rows)
    for _, vertices, values in shares:
        ranks[vertices] = values
    seconds = [each for each, _, _ in shares]
    return CugraphRun(min(max(of_way) for of_way in zip(*seconds, strict=True)), ranks)


def _make_unique_id() -> Any:
    return _load_comms().cugraph_comms_create_unique_id()


def _rank_share(
    rank: int, n: int, unique_id: Any, address: StoreAddress, rows: tuple[int, int], n_checked: int
) -> tuple[list[float], np.ndarray, np.ndarray]:
    """On all workers at the same time: seconds of an iteration told of all vertices, and of those with arcs; vertices
    and their ranks in the former."""
    comms, machine = _load_comms(), choose_machine("cuda")
    try:
        comms.cugraph_comms_init(rank, n, unique_id, 0)
    except RuntimeError as error:
        raise BackendError(f"cuGraph cannot connect the devices: {error}") from error
    seconds, found = [], None
    for keep_isolated in (True, False):
        handle = comms.cugraph_comms_get_raft_handle().getHandle()
        block = read_block(address.open(), *rows, None)
        iterations = CugraphIterations(machine, block, keep_isolated, handle)
        del block
        iterations.prepare()
        if found is None:
            iterations.advance(n_checked)
            found = iterations.own_ranks()
        timed = time_iteration(machine, iterations, ROUNDS)
        iterations.close()
        if isinstance(timed, str):
            raise BackendError(timed)
        seconds.append(timed)
    comms.cugraph_comms_shutdown()
    assert found is not None
    return seconds, *found


def _load_comms() -> Any:
    """What connects the devices for cuGraph."""
    load_cugraph()
    return importlib.import_module("pylibcugraph.comms")
