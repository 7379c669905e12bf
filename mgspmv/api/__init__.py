"""The Python API: everything a user calls, composed from the parts."""

from mgspmv.api.matrix import Matrix, open_matrix
from mgspmv.api.products import gemv, spmv
from mgspmv.api.ranking import pagerank
from mgspmv.api.stores import export, generate, ingest, reorder, update, verify
from mgspmv.api.subgraphs import subgraph
from mgspmv.results import load_solution
from mgspmv.store import drop_versions, list_versions

__all__ = [
    "Matrix",
    "drop_versions",
    "export",
    "gemv",
    "generate",
    "ingest",
    "list_versions",
    "load_solution",
    "open_matrix",
    "pagerank",
    "reorder",
    "spmv",
    "subgraph",
    "update",
    "verify",
]
