"""Imported by the server of `programs.py` before it forks: what each process would spend seconds on of its own.

Nothing here may start a thread, or read what faults are to hurt.
"""

from __future__ import annotations

import distributed.cli.dask_scheduler
import distributed.cli.dask_worker
import distributed.http.scheduler.prometheus
import distributed.http.worker.prometheus  # noqa: F401
from numba.core.registry import cpu_target

import mgspmv.api.batch_ranking
import mgspmv.api.centrality
import mgspmv.api.ranking
import mgspmv.api.stores
import mgspmv.cli.ranking
import mgspmv.cluster.agent
import mgspmv.cluster.dask_cluster
import mgspmv.cluster.executors
import mgspmv.cluster.matrix
import mgspmv.monitor.events
import mgspmv.monitor.plugin
import mgspmv.results  # noqa: F401

cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()
