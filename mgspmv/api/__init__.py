"""The Python API: everything a user calls, composed from the parts."""

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
