"""A task that calls a worker where a cluster has none, and keeps it.

A cluster that adapts to its tasks starts workers for tasks that wait, and ends workers that have none: neither sees
what workers hold beside their tasks.
"""

from __future__ import annotations

import time
import uuid

from distributed import Client, Future, get_worker, secede

from mgspmv.distribute.spans import enter_default

LOOK_S = 0.2
"""Seconds between two looks at whether a worker is still wanted."""


def call_worker(client: Client) -> Future:
    """Have a task wait for a worker, and stay on it until the future is released."""
    key = f"mgspmv-call-{uuid.uuid4().hex}"
    with enter_default():
        return client.submit(stay, key, key=key, pure=False)


def stay(key: str) -> None:
    """Be a task of this worker until nobody wants that any more; its thread is for other tasks meanwhile."""
    worker = get_worker()
    secede()
    while worker.status.name == "running" and (own := worker.state.tasks.get(key)) and own.state != "cancelled":
        time.sleep(LOOK_S)
