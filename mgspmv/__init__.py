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
    from mgspmv.api.derived import export, reorder, subgraph, transpose
    from mgspmv.api.matrix import Matrix, open, open_matrix
    from mgspmv.api.powers import gemv, power_iteration, spmv
    from mgspmv.api.ranking import Checkpoint, pagerank
    from mgspmv.api.reading import read_edges
    from mgspmv.api.stores import generate, ingest, update, verify
    from mgspmv.batch_results import BatchSolution, load_batch
    from mgspmv.cluster.matrix import DistributedMatrix
    from mgspmv.environment import __version__ as __version__
    from mgspmv.ingest_report import IngestReport
    from mgspmv.model import Event, MatrixInfo, Phase, Status
    from mgspmv.monitor.progress import show_progress
    from mgspmv.pipeline import plan_pipeline, run_pipeline
    from mgspmv.plan import Plan
    from mgspmv.results import Solution, load_solution
    from mgspmv.store.versions import list_versions
    from mgspmv.store.write import drop_versions

_HOMES = {
    "mgspmv.api.batch_ranking": ("pagerank_batch",),
    "mgspmv.api.centrality": ("eigenvector_centrality", "hits", "katz", "stationary"),
    "mgspmv.api.derived": ("export", "reorder", "subgraph", "transpose"),
    "mgspmv.api.matrix": ("Matrix", "open", "open_matrix"),
    "mgspmv.api.powers": ("gemv", "power_iteration", "spmv"),
    "mgspmv.api.ranking": ("Checkpoint", "pagerank"),
    "mgspmv.api.reading": ("read_edges",),
    "mgspmv.api.stores": ("generate", "ingest", "update", "verify"),
    "mgspmv.batch_results": ("BatchSolution", "load_batch"),
    "mgspmv.cluster.matrix": ("DistributedMatrix",),
    "mgspmv.ingest_report": ("IngestReport",),
    "mgspmv.model": ("Event", "MatrixInfo", "Phase", "Status"),
    "mgspmv.monitor.progress": ("show_progress",),
    "mgspmv.pipeline": ("plan_pipeline", "run_pipeline"),
    "mgspmv.plan": ("Plan",),
    "mgspmv.results": ("Solution", "load_solution"),
    "mgspmv.store.versions": ("list_versions",),
    "mgspmv.store.write": ("drop_versions",),
    "mgspmv.environment": ("__version__",),
}
"""Public names by module."""

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
    "read_edges",
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

_MODULES = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: Numba and Zarr take a second each, and `mgspmv --help` needs neither."""
    if name not in _MODULES:
        raise AttributeError(f"module 'mgspmv' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


class _Package(ModuleType):
    """Module that keeps `ingest` and `export` as functions when the modules of these names are imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _MODULES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])


sys.modules[__name__].__class__ = _Package
