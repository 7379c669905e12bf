"""Sparse matrix-vector products and PageRank on matrices too large for one GPU.

import mgspmv as mg

web = mg.ingest("web.mtx.gz", "web.zarr", kind="graph")
ranks = mg.pagerank(web)
ranks.top(10)
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mgspmv.api import (
        Checkpoint,
        Matrix,
        drop_versions,
        eigenvector_centrality,
        export,
        gemv,
        generate,
        hits,
        ingest,
        katz,
        list_versions,
        load_batch,
        load_solution,
        open,
        open_matrix,
        pagerank,
        pagerank_batch,
        power_iteration,
        reorder,
        spmv,
        stationary,
        subgraph,
        transpose,
        update,
        verify,
    )
    from mgspmv.batch_results import BatchSolution
    from mgspmv.cluster.matrix import DistributedMatrix
    from mgspmv.ingest_report import IngestReport
    from mgspmv.model import Event, MatrixInfo, Phase, Status
    from mgspmv.monitor.progress import show_progress
    from mgspmv.pipeline import plan_pipeline, run_pipeline
    from mgspmv.plan import Plan
    from mgspmv.results import Solution
    from mgspmv.version import __version__ as __version__

_HOMES = {
    "BatchSolution": "mgspmv.batch_results",
    "DistributedMatrix": "mgspmv.cluster.matrix",
    "IngestReport": "mgspmv.ingest_report",
    "Event": "mgspmv.model",
    "MatrixInfo": "mgspmv.model",
    "Phase": "mgspmv.model",
    "Status": "mgspmv.model",
    "show_progress": "mgspmv.monitor.progress",
    "Plan": "mgspmv.plan",
    "plan_pipeline": "mgspmv.pipeline",
    "run_pipeline": "mgspmv.pipeline",
    "Solution": "mgspmv.results",
    "__version__": "mgspmv.version",
}
"""Modules of names that are not in `mgspmv.api`."""

__all__ = [
    "BatchSolution",
    "Checkpoint",
    "DistributedMatrix",
    "Event",
    "IngestReport",
    "Matrix",
    "MatrixInfo",
    "Phase",
    "Plan",
    "Solution",
    "Status",
    "drop_versions",
    "eigenvector_centrality",
    "export",
    "gemv",
    "generate",
    "hits",
    "ingest",
    "katz",
    "list_versions",
    "load_batch",
    "load_solution",
    "open",
    "open_matrix",
    "pagerank",
    "pagerank_batch",
    "plan_pipeline",
    "power_iteration",
    "reorder",
    "run_pipeline",
    "show_progress",
    "spmv",
    "stationary",
    "subgraph",
    "transpose",
    "update",
    "verify",
]


_NAMES = frozenset({*__all__, "__version__"})


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: Numba and Zarr take a second each, and `mgspmv --help` needs neither."""
    if name not in _NAMES:
        raise AttributeError(f"module 'mgspmv' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES.get(name, "mgspmv.api")), name)
    globals()[name] = value
    return value


class _Package(ModuleType):
    """Module that keeps `ingest` and `export` as functions when the subpackages of these names are imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _NAMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


def __dir__() -> list[str]:
    return sorted([*globals(), *_NAMES])


sys.modules[__name__].__class__ = _Package
