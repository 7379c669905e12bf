"""NetworkX backend: some of its functions, with its conventions, computed by mgspmv.

NetworkX finds this module by the entry point `networkx.backends` and calls its functions by their names. It imports
nothing heavy, as `import networkx` imports it. A graph is converted once, by NetworkX's own cache, and kept as a store
in memory; `StoredGraph` represents a graph in an existing store.

Calls that mgspmv cannot compute as NetworkX does raise NotImplementedError, on which NetworkX uses the next backend, or
its own function if that is allowed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mgspmv.errors import AcyclicError, ConvergenceError, OptionError, SourceError

if TYPE_CHECKING:
    import numpy as np

    from mgspmv.api.matrix import Matrix
    from mgspmv.cluster.matrix import DistributedMatrix

    AnyMatrix = Matrix | DistributedMatrix

MIN_EDGES = 20_000
"""Number of edges from which NetworkX chooses this backend; conversion of fewer takes longer than its own function."""
MOST_NEGATIVE = 1e-4
"""Largest rounding error below 0 in a vector of Euclidean norm 1."""
FARTHEST = 2.0
"""Largest L1 distance of two distributions."""


# --- graphs ----------------------------------------------------------------------------------------------------------


class StoredGraph:
    """Stored or distributed matrix as a graph for NetworkX: `nx.pagerank(StoredGraph(A))`.

    Parameters
    ----------
    matrix : matrix of kind `graph` or `stochastic`, opened by `open` or distributed
    transpose : `A.T` distributed, for `hits` of a distributed one
    weight : attribute that selects the stored values when it is passed to NetworkX's functions; with another one, or
        None, each stored edge counts as 1

    Raises
    ------
    OptionError : not such a matrix
    KindError : a store of kind `matrix`, whose rows need not be in-edges
    """

    __networkx_backend__ = "mgspmv"

    def __init__(
        self, matrix: AnyMatrix, *, transpose: DistributedMatrix | None = None, weight: str = "weight"
    ) -> None:
        from mgspmv.api.arguments import check_in_edges, is_distributed
        from mgspmv.api.matrix import Matrix

        if not (isinstance(matrix, Matrix) or is_distributed(matrix)):
            raise OptionError(
                f"expected an opened or a distributed matrix, not a {type(matrix).__name__}; pass mgspmv.open(store)"
            )
        check_in_edges(matrix, "NetworkX")
        self.matrix, self.transpose, self.weight = matrix, transpose, weight

    def __len__(self) -> int:
        return self.matrix.shape[0]

    def __iter__(self) -> Iterator[Any]:
        ids = self.matrix.vertex_ids
        return iter(range(len(self)) if ids is None else ids.tolist())

    def is_directed(self) -> bool:
        """Return True: a store holds arcs."""
        return True

    def is_multigraph(self) -> bool:
        """Return whether the store may hold parallel edges."""
        return self.matrix.info.duplicates == "keep"

    def open(self, weight: Any, *, transpose: bool = False) -> tuple[AnyMatrix, bool]:
        """Return the matrix of in-edges, and whether to use its values for this attribute."""
        return self.matrix, weight is not None and weight == self.weight

    def to_networkx(self) -> Any:
        """Convert to a graph of NetworkX, edge by edge in Python."""
        import networkx as nx

        from mgspmv.api.matrix import open

        nodes, kind = list(self), nx.MultiDiGraph if self.is_multigraph() else nx.DiGraph
        stored = self.matrix.stored.written
        entries = open(stored.place, stored.info.version).to_scipy().tocoo()
        graph = kind()
        graph.add_nodes_from(nodes)
        arcs = zip(entries.col.tolist(), entries.row.tolist(), entries.data.tolist(), strict=True)
        graph.add_weighted_edges_from(((nodes[i], nodes[j], w) for i, j, w in arcs), weight=self.weight)
        return graph


class ConvertedGraph:
    """Copy of a graph of NetworkX, as that may change while it is cached; for each weight requested, a store is made in
    memory.

    Parameters
    ----------
    graph : graph of NetworkX
    attributes : attributes of edges, with their default values
    """

    __networkx_backend__ = "mgspmv"

    def __init__(self, graph: Any, attributes: Mapping[Any, Any]) -> None:
        self.graph, self.transpose, self._attributes = graph.copy(), None, attributes
        self.is_directed, self.is_multigraph = graph.is_directed, graph.is_multigraph
        self._opened: dict[tuple[Any, bool], Matrix] = {}

    def __len__(self) -> int:
        return len(self.graph)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.graph)

    def open(self, weight: Any, *, transpose: bool = False) -> tuple[AnyMatrix, bool]:
        """Return the matrix of in-edges with this attribute as weight, and whether to use its values.

        Parameters
        ----------
        weight : one of the attributes; None for 1
        transpose : whether to store its transpose too
        """
        import numpy as np

        from mgspmv.api.stores import ingest

        key = (weight, transpose)
        if key not in self._opened:
            number = {node: k for k, node in enumerate(self.graph)}
            arcs = np.array([(number[u], number[v]) for u, v in self.graph.edges()], np.int64).reshape(-1, 2).T
            columns: list[np.ndarray] = [*map(np.ascontiguousarray, arcs)]
            if weight is not None:
                edges = self.graph.edges(data=weight, default=self._attributes[weight])
                columns.append(np.array([w for _, _, w in edges], np.float64))
            elif self.is_multigraph():  # parallel edges are added up
                columns.append(np.ones(len(columns[0])))
            options: dict[str, Any] = {"kind": "graph", "n_vertices": len(self), "transpose": transpose}
            self._opened[key] = ingest(tuple(columns), symmetrize=not self.is_directed(), **options)
        return self._opened[key], True

    def to_networkx(self) -> Any:
        """Return the graph of NetworkX."""
        return self.graph


AnyGraph = StoredGraph | ConvertedGraph


# --- NetworkX backend interface --------------------------------------------------------------------------------------


def get_info() -> dict[str, Any]:
    """Return the description of the backend for NetworkX."""
    more = {"additional_parameters": {"**options": "others of the function of mgspmv, such as precision"}}
    names = dict.fromkeys(("backend_name", "project", "package"), "mgspmv")
    summary = "Sparse products on matrices too large for one GPU."
    return {**names, "short_summary": summary, "functions": dict.fromkeys(_FUNCTIONS, more)}


def convert_from_nx(
    graph: Any,
    *,
    edge_attrs: Mapping[Any, Any] | None = None,
    node_attrs: Any = None,
    preserve_edge_attrs: bool = False,
    preserve_node_attrs: bool = False,
    preserve_graph_attrs: bool = False,
    name: str | None = None,
    graph_name: str | None = None,
) -> AnyGraph:
    """Convert a graph of NetworkX, with the attributes in `edge_attrs` and no others.

    Raises
    ------
    NotImplementedError : all attributes are requested
    """
    if preserve_edge_attrs or preserve_node_attrs:
        raise NotImplementedError("mgspmv does not convert all attributes; name those of edges in edge_attrs")
    return graph if isinstance(graph, AnyGraph) else ConvertedGraph(graph, edge_attrs or {})


def convert_to_nx(obj: Any, *, name: str | None = None) -> Any:
    """Convert a graph to NetworkX's; other results are returned unchanged."""
    return obj.to_networkx() if isinstance(obj, AnyGraph) else obj


def can_run(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool | str:
    """Return True if the arguments of a call are supported, else the reason; the graph is not read."""
    weight = inspect.signature(_FUNCTIONS[name]).bind(*args, **kwargs).arguments.get("weight")
    return "weight is a function; name an attribute" if callable(weight) else True


def should_run(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool | str:
    """Return True if this backend is likely to be faster, else the reason."""
    graph = args[0] if args else kwargs["G"]
    cache = getattr(graph, "__networkx_cache__", None) or {}
    is_converted = isinstance(graph, AnyGraph) or "mgspmv" in cache.get("backends", {})
    if is_converted or graph.number_of_edges() >= MIN_EDGES:
        return True
    return f"the graph has fewer than {MIN_EDGES:,} edges, and converting it takes longer than computing"


def _as_networkx(function: Callable[..., Any]) -> Callable[..., Any]:
    """Translate errors: to NetworkX's for no convergence, and to NotImplementedError for calls and arguments that are
    not supported, for which NetworkX's own function raises its own error where that is allowed."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        import networkx as nx

        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        try:
            return function(*args, **kwargs)
        except (AcyclicError, ConvergenceError) as error:
            raise nx.PowerIterationFailedConvergence(bound.arguments["max_iter"]) from error
        except (OptionError, SourceError) as error:
            raise NotImplementedError(f"mgspmv cannot compute {function.__name__} here: {error}") from error

    return call


# --- functions -------------------------------------------------------------------------------------------------------


@_as_networkx
def pagerank(
    G: AnyGraph,
    alpha: float = 0.85,
    personalization: Mapping[Any, float] | None = None,
    max_iter: int = 100,
    tol: float = 1.0e-6,
    nstart: Mapping[Any, float] | None = None,
    weight: Any = "weight",
    dangling: Mapping[Any, float] | None = None,
    **options: Any,
) -> dict[Any, float]:
    """Compute `networkx.pagerank`; `options` are other options of `mgspmv.pagerank`."""
    import numpy as np

    import mgspmv as mg

    if len(G) == 0:
        return {}
    given = {"personalization": personalization, "nstart": nstart, "dangling": dangling}
    vectors: dict[str, Any] = {
        name: np.array([numbers.get(node, 0) for node in G], np.float64)  # NetworkX ignores other keys too
        for name, numbers in given.items()
        if numbers is not None
    }
    if personalization is not None:
        vectors.setdefault("nstart", np.ones(len(G)))  # NetworkX's default start
    is_met = max_iter > 0 and len(G) * tol >= FARTHEST  # any result of the first iteration is close enough
    stop: dict[str, Any] = {"norm": "fixed", "max_iter": 1} if is_met else {"tol": tol, "max_iter": max_iter}
    return _iterate(mg.pagerank, G, weight, alpha=alpha, **vectors, **stop, **options)


@_as_networkx
def hits(
    G: AnyGraph,
    max_iter: int = 100,
    tol: float = 1.0e-8,
    nstart: Mapping[Any, float] | None = None,
    normalized: bool = True,
    **options: Any,
) -> tuple[dict[Any, float], dict[Any, float]]:
    """Compute `networkx.hits`; `options` are other options of `mgspmv.hits`.

    Uses power iteration and, if that does not converge in max_iter steps, continues with SciPy's `svds`, as NetworkX
    does. If several vectors belong to the same singular value, as in every bipartite graph, the result depends on the
    start, which is 1 everywhere by default, and is not an arbitrary mixture.
    """
    import mgspmv as mg

    if len(G) == 0:
        return {}, {}
    matrix, weights = G.open("weight", transpose=True)
    own: dict[str, Any] = {"weight": weights, "transpose": G.transpose, "normalized": False, "throw": False}
    own |= {"nstart": _list_values(G, nstart), "tol": tol, "max_iter": max_iter}
    found = mg.hits(matrix, **own, **options)
    hubs, authorities = found.hubs.values, found.authorities.values
    if not found.authorities.status.is_success:
        stored: Any = matrix  # of in-edges, while the entry (i, j) of `arcs` is the arc i -> j
        if G.transpose is not None:
            arcs = G.transpose.as_linear_operator(stored, weight=weights)
        else:
            arcs = stored.as_linear_operator(weight=weights).T
        is_positive = not weights or matrix.info.min_weight is None or matrix.info.min_weight >= 0
        hubs, authorities = _find_singular(arcs, authorities, max_iter, tol, is_positive=is_positive)
    return _name(G, _sum_to_1(hubs, normalized)), _name(G, _sum_to_1(authorities, normalized))


@_as_networkx
def katz_centrality(
    G: AnyGraph,
    alpha: float = 0.1,
    beta: float | Mapping[Any, float] = 1.0,
    max_iter: int = 1000,
    tol: float = 1.0e-6,
    nstart: Mapping[Any, float] | None = None,
    normalized: bool = True,
    weight: Any = None,
    **options: Any,
) -> dict[Any, float]:
    """Compute `networkx.katz_centrality`; `options` are other options of `mgspmv.katz`."""
    import mgspmv as mg

    if len(G) == 0:
        return {}
    own: dict[str, Any] = {"alpha": alpha, "beta": _list_values(G, beta), "nstart": _list_values(G, nstart)}
    own |= {"normalized": normalized, "tol": tol, "max_iter": max_iter}
    return _iterate(mg.katz, G, weight, **own, **options)


@_as_networkx
def eigenvector_centrality(
    G: AnyGraph,
    max_iter: int = 100,
    tol: float = 1.0e-6,
    nstart: Mapping[Any, float] | None = None,
    weight: Any = None,
    **options: Any,
) -> dict[Any, float]:
    """Compute `networkx.eigenvector_centrality`; `options` are other options of `mgspmv.eigenvector_centrality`."""
    import mgspmv as mg

    own: dict[str, Any] = {"nstart": _list_values(G, nstart), "tol": tol, "max_iter": max_iter}
    return _iterate(mg.eigenvector_centrality, G, weight, **own, **options)


_FUNCTIONS = {each.__name__: each for each in (pagerank, hits, katz_centrality, eigenvector_centrality)}


def _iterate(call: Callable[..., Any], G: AnyGraph, weight: Any, **options: Any) -> dict[Any, float]:
    """Compute a centrality with NetworkX's norm of changes."""
    matrix, weights = G.open(weight)
    return _name(G, call(matrix, weight=weights, **{"norm": "l1_per_node"} | options).values)


def _list_values(G: AnyGraph, numbers: Any) -> Any:
    """Return the number of each node, (n,) float64; what is not a mapping is returned unchanged.

    Raises
    ------
    OptionError : a node without a number, or a number for a key that is not a node
    """
    if not isinstance(numbers, Mapping):
        return numbers
    import numpy as np

    if numbers.keys() != set(G):
        raise OptionError("a mapping needs a number for every node, and for no other key")
    return np.array([numbers[node] for node in G], np.float64)


def _find_singular(
    arcs: Any, start: np.ndarray, max_iter: int, tol: float, *, is_positive: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Compute hubs and authorities by SciPy's `svds`; authorities have Euclidean norm 1.

    Parameters
    ----------
    arcs : operator of the matrix whose entry (i, j) is the arc i -> j
    is_positive : whether no weight is negative

    Raises
    ------
    PowerIterationFailedConvergence : `svds` does not converge in max_iter iterations either, or its result has both
        signs though no weight is negative, which is a mixture of several vectors
    """
    import networkx as nx
    from scipy.sparse.linalg import ArpackNoConvergence, svds

    try:
        _, _, vt = svds(arcs, k=1, v0=start, maxiter=max_iter, tol=tol)
    except ArpackNoConvergence as error:
        raise nx.PowerIterationFailedConvergence(max_iter) from error
    authorities = vt.ravel() if vt.sum() >= 0 else -vt.ravel()
    if is_positive and authorities.min() < -MOST_NEGATIVE:
        raise nx.PowerIterationFailedConvergence(max_iter)
    return arcs.matvec(authorities), authorities


def _sum_to_1(values: np.ndarray, normalized: bool) -> np.ndarray:
    total = values.sum()
    return values / total if normalized and total else values


def _name(G: AnyGraph, values: Any) -> dict[Any, float]:
    return dict(zip(G, values.tolist(), strict=True))
