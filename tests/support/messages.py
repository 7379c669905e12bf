"""Messages as runs send them."""

from __future__ import annotations

from mgspmv.cluster.worker_metrics import pack_events
from mgspmv.model import Event


def begin(run="r", n_workers=2, *, operation="pagerank", client="c"):
    workers = [
        {
            "name": f"w{rank}",
            "address": f"tcp://{rank}",
            "rows": 10,
            "nnz": 100 * (rank + 1),
            "host_bytes": 1000 + rank,
            "device_bytes": 0,
        }
        for rank in range(n_workers)
    ]
    matrix = {"url": "/data/web.zarr", "shape": [20, 20], "nnz": 300}
    said = {"operation": operation, "executor": "supersteps", "client": client, "transport": "peer", "backend": "cpu"}
    said |= {"matrix": matrix, "workers": workers, "options": {"alpha": 0.85}, "threshold": 1e-6}
    return {"kind": "begin", "run": run} | said


def iterate(rank, first, n, run="r", *, epoch=0, seconds=(1.0, 0.5, 0.25)):
    """A worker's message of n iterations, each of these seconds."""
    events = [
        Event(run, epoch, i, 0.5**i, *((s,) for s in seconds), (10,), (1000 + rank,)) for i in range(first, first + n)
    ]
    return pack_events(events, [rank]) | {"taken": [{"host_peak_bytes": 5000 + rank}]}


def checkpoint(iteration, seconds=0.5, n_bytes=2_000_000, run="r"):
    told = {"iteration": iteration, "seconds": seconds, "n_bytes": n_bytes, "error": None}
    return {"kind": "checkpoint", "run": run} | told


def miss(iteration, error="OSError: no room", run="r"):
    return checkpoint(iteration, 0.5, 0, run) | {"error": error}


def end(run="r", status="converged", error=None):
    seconds, memory = {"product": 2.0, "start": 1.0}, {"host_peak_bytes": [6000, 6001]}
    told = {"status": status, "error": error, "seconds": seconds, "memory": memory, "transport": "peer"}
    return {"kind": "end", "run": run} | told


def recover(workers, resumed_after, run="r", *, epoch=1, kind="lost"):
    """A run goes on with these workers, which are as of `begin`."""
    told = {"kind": kind, "iteration": resumed_after + 2, "resumed_after": resumed_after, "worker": "w1"}
    told |= {"error": "worker w1 (tcp://1) is gone", "seconds": 4.5, "workers_before": 2, "workers_after": len(workers)}
    places = {"transport": "peer", "backend": "cpu", "workers": workers}
    return {"kind": "recovery", "run": run, "epoch": epoch, "recovery": told, **places}
