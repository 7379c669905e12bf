"""Records of iterations as messages on a Dask topic, which the scheduler passes to subscribers.

Event loops send them with the other messages of workers: tasks do not wait, and records are also sent while no client
is connected. Messages are plain dicts of columns, not of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
from distributed import get_worker

from mgspmv.cluster.worker_metrics import METRICS, PHASES
from mgspmv.model import Event

TOPIC = "mgspmv"
"""Topic of the messages, for `Client.get_events` and `Client.subscribe_topic` of Dask."""
MOST_GROUPS = 128
"""Maximum groups of iterations in a message: small graphs take tens of thousands of iterations a second."""
SUMMED = {"product_s": np.float64, "exchange_s": np.float64, "wait_s": np.float64, "exchanged_bytes": np.int64}
"""Quantities summed over each group, with their data types."""


def pack_events(
    events: Sequence[Event], ranks: Sequence[int], columns: dict[str, np.ndarray] | None = None
) -> dict[str, Any]:
    """Pack consecutive iterations into a message, in groups of equal length except the last.

    Parameters
    ----------
    ranks : ranks of the workers in the events
    columns : result of `_tabulate`, if already made

    Returns
    -------
    `run`, `epoch`, `ranks`, and `first`, the first iteration; for each group the number of its last `iteration` and its
    `change`; by rank lists of the sums over each group of `product_s`, `exchange_s`, `wait_s` and `exchanged_bytes`;
    and by rank the `held_bytes` after the last one.
    """
    columns = _tabulate(events) if columns is None else columns
    size = -(-len(events) // MOST_GROUPS)
    starts = np.arange(0, len(events), size)
    lasts = [events[min(start + size, len(events)) - 1] for start in starts.tolist()]
    last = events[-1]
    return {
        "kind": "iterations",
        "run": last.run,
        "epoch": last.epoch,
        "ranks": [*ranks],
        "first": events[0].iteration,
        "iteration": [event.iteration for event in lasts],
        "change": [float(event.change) for event in lasts],
        **{name: np.add.reduceat(rows, starts, axis=0).T.tolist() for name, rows in columns.items()},
        "held_bytes": [int(n_bytes) for n_bytes in last.memory_bytes],
    }


def publish_iterations(events: Sequence[Event], rank: int, nnz: int, taken: dict[str, int]) -> None:
    """Count the iterations of a task on this worker, and publish them without waiting.

    Parameters
    ----------
    events : at least one
    rank, nnz : of this worker
    taken : bytes of the run on this worker, by name
    """
    columns = _tabulate(events)
    seconds = np.array([columns[f"{phase}_s"][:, 0] for phase in PHASES])
    METRICS.count_iterations(seconds, len(events) * nnz, int(columns["exchanged_bytes"].sum()))
    get_worker().log_event(TOPIC, pack_events(events, [rank], columns) | {"taken": [taken]})


def _tabulate(events: Sequence[Event]) -> dict[str, np.ndarray]:
    """Return the summed quantities of the events by name, each an array of shape (len(events), n_workers).

    Each is made from a flat stream of numbers, which takes NumPy a fifth of the instructions of a list of tuples.
    """
    return {
        name: np.fromiter(chain.from_iterable(map(attrgetter(name), events)), dtype).reshape(len(events), -1)
        for name, dtype in SUMMED.items()
    }
