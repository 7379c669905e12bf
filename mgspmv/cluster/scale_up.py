"""A task that makes an adaptive cluster without workers start one, and keep it.

An adaptive cluster starts workers for waiting tasks, and ends workers without tasks, even if they hold row blocks,
which are not results of tasks.
"""

from __future__ import annotations

import time
import uuid

from distributed import Client, Future, get_worker, secede

from mgspmv.cluster.spans import enter_span

LOOK_S = 0.2
"""Seconds between two checks whether the worker is still needed."""


def call_worker(client: Client) -> Future:
    """Submit a task that waits for a worker, and occupies it until the future is released."""
    key = f"mgspmv-call-{uuid.uuid4().hex}"
    with enter_span():
        return client.submit(stay, key, key=key, pure=False)


def stay(key: str) -> None:
    """Run on this worker until the task's key is released; its thread is given to other tasks meanwhile."""
    worker = get_worker()
    secede()
    while worker.status.name == "running" and (own := worker.state.tasks.get(key)) and own.state != "cancelled":
        time.sleep(LOOK_S)
