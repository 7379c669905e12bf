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
    from mgspmv.api.batch_ranking import pagerank_batch
    from mgspmv.api.centrality import eigenvector_centrality, hits, katz, stationary
    from mgspmv.api.extracts import export, subgraph
    from mgspmv.api.matrix import Matrix, open, open_matrix
    from mgspmv.api.powers import gemv, power_iteration, spmv
    from mgspmv.api.ranking import Checkpoint, pagerank
    from mgspmv.api.reordering import reorder, transpose
    from mgspmv.api.stores import generate, ingest, update, verify
    from mgspmv.batch_results import BatchSolution, load_batch
    from mgspmv.cluster.matrix import DistributedMatrix
    from mgspmv.ingest_report import IngestReport
    from mgspmv.model import Event, MatrixInfo, Phase, Status
    from mgspmv.monitor.progress import show_progress
    from mgspmv.pipeline import plan_pipeline, run_pipeline
    from mgspmv.plan import Plan
    from mgspmv.results import Solution, load_solution
    from mgspmv.store.versions import list_versions
    from mgspmv.store.write import drop_versions
    from mgspmv.version import __version__ as __version__

_HOMES = {
    "BatchSolution": "mgspmv.batch_results",
    "Checkpoint": "mgspmv.api.ranking",
    "DistributedMatrix": "mgspmv.cluster.matrix",
    "Event": "mgspmv.model",
    "IngestReport": "mgspmv.ingest_report",
    "Matrix": "mgspmv.api.matrix",
    "MatrixInfo": "mgspmv.model",
    "Phase": "mgspmv.model",
    "Plan": "mgspmv.plan",
    "Solution": "mgspmv.results",
    "Status": "mgspmv.model",
    "__version__": "mgspmv.version",
    "drop_versions": "mgspmv.store.write",
    "eigenvector_centrality": "mgspmv.api.centrality",
    "export": "mgspmv.api.extracts",
    "gemv": "mgspmv.api.powers",
    "generate": "mgspmv.api.stores",
    "hits": "mgspmv.api.centrality",
    "ingest": "mgspmv.api.stores",
    "katz": "mgspmv.api.centrality",
    "list_versions": "mgspmv.store.versions",
    "load_batch": "mgspmv.batch_results",
    "load_solution": "mgspmv.results",
    "open": "mgspmv.api.matrix",
    "open_matrix": "mgspmv.api.matrix",
    "pagerank": "mgspmv.api.ranking",
    "pagerank_batch": "mgspmv.api.batch_ranking",
    "plan_pipeline": "mgspmv.pipeline",
    "power_iteration": "mgspmv.api.powers",
    "reorder": "mgspmv.api.reordering",
    "run_pipeline": "mgspmv.pipeline",
    "show_progress": "mgspmv.monitor.progress",
    "spmv": "mgspmv.api.powers",
    "stationary": "mgspmv.api.centrality",
    "subgraph": "mgspmv.api.extracts",
    "transpose": "mgspmv.api.reordering",
    "update": "mgspmv.api.stores",
    "verify": "mgspmv.api.stores",
}
"""Modules of the public names."""

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
    value = getattr(importlib.import_module(_HOMES[name]), name)
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
