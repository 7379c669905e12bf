"""The Python API: everything a user calls, composed from the parts."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mgspmv.api.batch_ranking import pagerank_batch
    from mgspmv.api.centrality import eigenvector_centrality, hits, katz, stationary
    from mgspmv.api.checkpointing import Checkpoint
    from mgspmv.api.extracts import export, subgraph
    from mgspmv.api.matrix import Matrix, open, open_matrix
    from mgspmv.api.powers import power_iteration
    from mgspmv.api.products import gemv, spmv
    from mgspmv.api.ranking import pagerank
    from mgspmv.api.stores import generate, ingest, reorder, transpose, update, verify
    from mgspmv.batch_results import load_batch
    from mgspmv.results import load_solution
    from mgspmv.store.versions import list_versions
    from mgspmv.store.write import drop_versions

_HOMES = {
    "Checkpoint": "mgspmv.api.checkpointing",
    "Matrix": "mgspmv.api.matrix",
    "drop_versions": "mgspmv.store.write",
    "eigenvector_centrality": "mgspmv.api.centrality",
    "export": "mgspmv.api.extracts",
    "gemv": "mgspmv.api.products",
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
    "power_iteration": "mgspmv.api.powers",
    "reorder": "mgspmv.api.stores",
    "spmv": "mgspmv.api.products",
    "stationary": "mgspmv.api.centrality",
    "subgraph": "mgspmv.api.extracts",
    "transpose": "mgspmv.api.stores",
    "update": "mgspmv.api.stores",
    "verify": "mgspmv.api.stores",
}
"""Modules of the names, which are imported when they are first used: a command needs few of them."""

__all__ = [
    "Checkpoint",
    "Matrix",
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
    "power_iteration",
    "reorder",
    "spmv",
    "stationary",
    "subgraph",
    "transpose",
    "update",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mgspmv.api' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
