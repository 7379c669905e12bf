"""Lets Dask workers that share a GPU have it as if each had one of its own, on a host of its own.

A preload of workers (`distributed.worker.preload`). NCCL connects them then, by sockets, and aborts as between hosts:
what one GPU shows of ranks that do not come, much slower than several.
"""

from __future__ import annotations

import os
from typing import Any

from mgspmv.cluster import agent


def dask_setup(worker: Any) -> None:
    """Called by Dask before the worker joins."""
    name = f"process {os.getpid()}"
    os.environ["NCCL_HOSTID"] = name  # else NCCL refuses a GPU that two ranks have
    agent.device_id = lambda: name
