"""What iterations did, as messages that a cluster's scheduler has for whoever listens.

Workers give them to their event loops, which send them with whatever else is on its way: nobody waits for that, and it
goes on when the client is gone. Messages are plain dicts on one topic of Dask's, of columns and not of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from distributed import get_worker

from mgspmv.model import Event

TOPIC = "mgspmv"
"""Under which Dask logs the messages; `Client.get_events` and `Client.subscribe_topic` take it."""
MOST_GROUPS = 128
"""Groups of iterations in a message at most: iterations of small graphs come by the ten thousand a second."""


def pack_events(events: Sequence[Event], ranks: Sequence[int]) -> dict[str, Any]:
    """The message of some iterations in a row, in groups of as many each but for the last one.

    Parameters
    ----------
    ranks : of the workers that the events are of

    Returns
    -------
    `run`, `epoch`, `ranks`, and `first`, the first iteration; for each group the number of its last `iteration` and the
    `change` of that; by rank lists of what the iterations of each group took together, `product_s`, `exchange_s`,
    `wait_s` and `exchanged_bytes`; and by rank the `held_bytes` after the last one.
    """
    size = -(-len(events) // MOST_GROUPS)
    starts = np.arange(0, len(events), size)
    lasts = [events[min(start + size, len(events)) - 1] for start in starts.tolist()]

    def add_up(name: str) -> list[list[Any]]:
        rows = np.array([getattr(event, name) for event in events])
        sums: list[list[Any]] = np.add.reduceat(rows, starts, axis=0).T.tolist()
        return sums

    summed = {name: add_up(name) for name in ("product_s", "exchange_s", "wait_s", "exchanged_bytes")}
    last = events[-1]
    return {
        "kind": "iterations",
        "run": last.run,
        "epoch": last.epoch,
        "ranks": [*ranks],
        "first": events[0].iteration,
        "iteration": [event.iteration for event in lasts],
        "change": [float(event.change) for event in lasts],
        **summed,
        "held_bytes": [int(n_bytes) for n_bytes in last.memory_bytes],
    }


def publish_iterations(rank: int, events: Sequence[Event], taken: dict[str, int]) -> None:
    """Send what the iterations of a task did on this worker; does not wait.

    Parameters
    ----------
    rank : of this worker in the run
    taken : bytes that it took so far, of `mgspmv.kernels.device.measure_memory`
    """
    if events:
        get_worker().log_event(TOPIC, pack_events(events, [rank]) | {"taken": [taken]})
