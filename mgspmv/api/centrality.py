"""Centralities and stationary vectors: power iteration with one step each, in NetworkX's conventions.

Row i of a graph's store holds the in-edges of vertex i, so that A x sums over the in-neighbors of a vertex. `A.T` in
place of A gives the same for the graph with every arc reversed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from mgspmv.api.arguments import MatrixLike, Running, check_in_edges, read_number, reads_input
from mgspmv.api.matrix import Matrix
from mgspmv.api.powers import (
    PowerCall,
    check_converged,
    check_vertices,
    conclude,
    make_solution,
    make_start,
    open_placement,
)
from mgspmv.display.frames import Columns, Tabular
from mgspmv.errors import AcyclicError, DanglingError, KindError, OptionError
from mgspmv.kernels.operands import check_transpose
from mgspmv.model import NonFinite, Status
from mgspmv.order import restore
from mgspmv.partition import TRANSPOSE_FIRST
from mgspmv.results import Solution
from mgspmv.solvers.power import Products, Step, bound_radius, has_cycle, normalize
from mgspmv.solvers.vectors import Weights
from mgspmv.store.held import name_matrix

if TYPE_CHECKING:
    from mgspmv.cluster.matrix import DistributedMatrix


@dataclass(frozen=True, eq=False)
class Hits(Tabular):
    """Hubs and authorities computed by `hits`, in this order if unpacked; as a table `id`, `hub` and `authority`.

    Examples
    --------
    >>> import mgspmv as mg
    >>> hubs, authorities = mg.hits([("a", "c"), ("b", "c"), ("b", "a")])
    >>> round(hubs["b"], 4), round(authorities["c"], 4)
    (0.618, 0.618)
    """

    hubs: Solution
    """Hub scores: high for vertices that point to good authorities."""
    authorities: Solution
    """Authority scores: high for vertices that good hubs point to."""

    @property
    def non_finite(self) -> NonFinite | None:
        """First non-finite value of the authorities, which the run iterates; see `Solution`."""
        return self.authorities.non_finite

    def __iter__(self) -> Iterator[Solution]:
        return iter((self.hubs, self.authorities))

    def generate_columns(self) -> Iterator[Columns]:
        """Yield the columns `id`, `hub` and `authority` in batches."""
        of_both = zip(self.hubs.generate_columns(), self.authorities.generate_columns(), strict=True)
        return ({"id": own["id"], "hub": own["rank"], "authority": other["rank"]} for own, other in of_both)

    def _repr_html_(self) -> str:
        return f"{self.hubs._repr_html_()}\n{self.authorities._repr_html_()}"


@reads_input("graph", transpose=True)
def hits(
    A: MatrixLike,
    *,
    nstart: Weights | None = None,
    normalized: bool = True,
    transpose: DistributedMatrix | None = None,
    **running: Unpack[Running],
) -> Hits:
    """Compute hubs and authorities (HITS) of the vertices of a graph.

        h = A^T a;   a' = A h / max(A h);   stop on |a' - a|

    Parameters
    ----------
    A : matrix or graph
        Graph as for `pagerank`; an opened or distributed one needs the stored transpose.
    nstart : mapping, Series, sequence or array, optional
        Start vector of the authorities as in `pagerank`, 0 for vertices that are not named; default 1 everywhere.
    normalized : bool, default True
        Hubs and authorities sum to 1, with their signs where weights are negative, as in NetworkX; else authorities
        have Euclidean norm 1, and hubs are A^T a, whose norm is the largest singular value: the vectors of NetworkX's
        `hits`, up to their sign.
    transpose : DistributedMatrix, optional
        `A.T` distributed, where A is distributed.
    running : keyword arguments
        Options of `power_iteration`: weight, tol, norm, max_iter, precision, progress, throw.

    Returns
    -------
    Hubs and authorities, each a Solution, of the same run: the change is that of the authorities before they are
    normalized, whose largest is 1 then. Where several components have the same largest singular value, the result
    depends on the start.

    Raises
    ------
    KindError : the store is of kind `matrix`
    KindError : the store does not hold the transpose, or it was not distributed
    OptionError : with negative weights, values that sum to 0, which cannot be normalized
    ConvergenceError : not converged, with `hubs` and `authorities` as its `solution`
    others : as in `power_iteration`

    Examples
    --------
    >>> import mgspmv as mg
    >>> found = mg.hits([("a", "c"), ("b", "c"), ("b", "a")])
    >>> found.hubs.top(1)[0][0], found.authorities.top(1)[0][0]
    ('b', 'c')
    """
    run = PowerCall(A, operation="HITS", normalize="max", **running)
    _check_graph(run)
    other = _find_transpose(A, run, transpose)
    start = make_start(A, "nstart", nstart, 1.0)
    with open_placement(run, other) as place:
        outcome, out_edges = place.iterate(Step(), start), place.products[1]
        reached = outcome.values
        authorities = _sum_to_1("authorities", reached) if normalized else normalize(reached, "l2")
        hubs = out_edges.get(out_edges.multiply(out_edges.put(authorities)))
        found = {"hubs": _sum_to_1("hubs", hubs) if normalized else hubs, "authorities": authorities}
    asked = {"normalized": normalized}
    made = Hits(*(make_solution(run, replace(outcome, values=v), f"HITS {k}", asked) for k, v in found.items()))
    check_converged(run, outcome.status, made)
    return made


def _sum_to_1(name: str, values: np.ndarray) -> np.ndarray:
    """Divide values by their signed sum.

    Raises
    ------
    OptionError : the sum is 0, up to rounding
    """
    if not np.isfinite(values).all() or not (values < 0).any():
        return normalize(values, "l1")
    total, size = math.fsum(values), math.fsum(np.abs(values))
    if abs(total) <= len(values) * float(np.finfo(values.dtype).eps) * size:
        raise OptionError(
            f"{name} have either sign and sum to 0, so they cannot be divided by their sum; pass normalized=False"
        )
    divided: np.ndarray = values / values.dtype.type(total)
    return divided


@reads_input()
def katz(
    A: MatrixLike,
    *,
    alpha: float | None = 0.1,
    beta: float | Weights = 1.0,
    nstart: Weights | None = None,
    normalized: bool = True,
    **running: Unpack[Running],
) -> Solution:
    """Compute Katz centrality of the vertices of a graph.

        x' = alpha A x + beta;   stop on |x' - x|

    Parameters
    ----------
    A : matrix or graph
        Graph as for `pagerank`; `A.T` of an opened one uses out-edges.
    alpha : float, default 0.1
        Attenuation factor; iterations converge for |alpha| < 1 / (the largest absolute eigenvalue of A). None chooses
        0.7 over a bound on that eigenvalue, which takes 20 products; see `options["alpha"]` of the solution.
    beta : float, mapping, Series, sequence or array, default 1.0
        Constant term: a number for all vertices, or a vector as in `pagerank`, 0 for vertices that are not named.
    nstart : mapping, Series, sequence or array, optional
        Start vector, likewise; default 0 everywhere.
    normalized : bool, default True
        Divide the result by its Euclidean norm.
    running : keyword arguments
        Options of `power_iteration`: weight, tol, norm, max_iter, precision, progress, throw.

    Returns
    -------
    Solution; changes are those of x before it is normalized.

    Raises
    ------
    KindError : the store is of kind `matrix`
    OptionError : alpha=None and negative weights, or ones beyond the range of floats
    ConvergenceError : not converged, with the `solution` attached; alpha may be too large
    others : as in `power_iteration`

    Examples
    --------
    >>> import mgspmv as mg
    >>> scores = mg.katz([("a", "c"), ("b", "c"), ("c", "a")], alpha=0.5)
    >>> scores.top(1)[0][0], round(scores["c"], 4)
    ('c', 0.7243)
    """
    run = PowerCall(A, operation="Katz centrality", **running)
    _check_graph(run)
    factor = None if alpha is None else read_number("alpha", alpha)
    added = read_number("beta", beta) if isinstance(beta, Real) else make_start(A, "beta", beta, 0.0)
    start = make_start(A, "nstart", nstart, 0.0)
    least = A.stored.info.min_weight
    is_bounded = not run.weights or least is None or least >= 0
    if factor is None and not is_bounded:
        raise OptionError(
            f"alpha=None needs weights that are not negative, and the least is {least}; pass alpha=, or weight=False"
        )
    with open_placement(run) as place:
        if factor is None:
            factor = _choose_alpha(A, place.products[0], is_pattern=A.is_pattern or not run.weights)
        outcome = place.iterate(Step(factor, added=added), start)
        fails = run.throw and not outcome.status.is_success
        advice = _advise_katz(bound_radius(place.products[0], A.shape[0]) if fails and is_bounded else math.inf)
    values = outcome.values
    if normalized and outcome.status != Status.NON_FINITE:
        values = normalize(values, "l2")
    said = added if isinstance(added, float) else "vector"
    asked = {"alpha": factor, "beta": said, "normalized": normalized}
    asked |= {"alpha_chosen": True} if alpha is None else {}
    return conclude(run, replace(outcome, values=values), asked, advice)


def _choose_alpha(A: MatrixLike, products: Products, *, is_pattern: bool) -> float:
    """Return an alpha with which Katz centrality converges to 1e-6 within 100 iterations on a billion vertices."""
    bound = max(bound_radius(products, A.shape[0]), 1.0 if is_pattern else 0.0)  # at least 1 with a cycle
    if not math.isfinite(bound):
        raise OptionError(
            f"alpha=None: products with {name_matrix(A.stored)} leave the range of floats; pass alpha=, or weight=False"
        )
    return KATZ_SHARE / bound if bound else KATZ_SHARE


KATZ_SHARE = 0.7
"""Share of the largest alpha that is known to converge, chosen by alpha=None."""


def _advise_katz(bound: float) -> dict[Status, str]:
    """Return advice on alpha, given an upper bound on the largest absolute eigenvalue, infinite if it is unknown."""
    known = f", as any below {1.0 / bound:.4g} is" if 0 < bound < math.inf else ""
    advice = (
        f"alpha must be below 1 / (the largest absolute eigenvalue of the matrix){known}; pass alpha=None to choose a "
        "safe value, a smaller alpha=, or, if the change shrinks, a larger max_iter= or tol="
    )
    return dict.fromkeys((Status.MAX_ITER, Status.NON_FINITE), advice)


@reads_input()
def eigenvector_centrality(A: MatrixLike, *, nstart: Weights | None = None, **running: Unpack[Running]) -> Solution:
    """Compute eigenvector centrality of a graph: the eigenvector of the largest eigenvalue, of Euclidean norm 1.

        x' = (x + A x) / ||x + A x||_2;   stop on |x' - x|

    A + I has the eigenvectors of A, and converges on bipartite graphs too.

    Parameters
    ----------
    A : matrix or graph
        Graph as for `pagerank`; `A.T` of an opened one uses out-edges.
    nstart : mapping, Series, sequence or array, optional
        Start vector as in `pagerank`, 0 for vertices that are not named; divided by its sum, as in NetworkX; default
        uniform.
    running : keyword arguments
        Options of `power_iteration`: weight, tol, norm, max_iter, precision, progress, throw.

    Returns
    -------
    Solution. Of a graph that is not strongly connected it may depend on the start, and have zeros.

    Raises
    ------
    KindError : the store is of kind `matrix`
    OptionError : a start that sums to 0
    AcyclicError : no cycle can be reached from the start: the largest eigenvalue is 0, and the result would depend on
        the number of iterations
    ConvergenceError : not converged, with the `solution` attached
    others : as in `power_iteration`

    Examples
    --------
    >>> import mgspmv as mg
    >>> scores = mg.eigenvector_centrality([("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")])
    >>> scores.top(1)[0][0], round(scores["b"], 4)
    ('b', 0.7071)
    """
    run = PowerCall(A, operation="eigenvector centrality", normalize="l2", **running)
    _check_graph(run)
    start = make_start(A, "nstart", nstart, 1.0)
    total = start.sum()
    if total == 0:
        raise OptionError("nstart sums to 0 and cannot be made to sum to 1; give the vertices other weights")

    with open_placement(run) as place:
        outcome = place.iterate(Step(of_vector=1.0), start / total)
        # Without edges the start is returned, as in NetworkX.
        if A.nnz and outcome.status != Status.NON_FINITE and not has_cycle(place.products[0], outcome.values):
            raise AcyclicError(
                f"no cycle was found in {name_matrix(A.stored)} that the start leads to, so the largest eigenvalue is "
                "0 and there is no eigenvector centrality: the result would depend on tol and max_iter; use katz or "
                "pagerank, which need no cycle"
            )
    return conclude(run, outcome, {})


@reads_input("stochastic")
def stationary(
    A: MatrixLike, *, nstart: Weights | None = None, lazy: float = 0.0, **running: Unpack[Running]
) -> Solution:
    """Compute the stationary vector of a Markov chain: A x = x, with sum 1.

        x' = (1 - lazy) A x + lazy x, over its sum;   stop on |x' - x|

    Parameters
    ----------
    A : matrix or graph
        Matrix of kind `stochastic` without an empty column, in any form as for `pagerank`: entry (i, j), also of a
        sparse or dense matrix, is the probability of the transition from j to i.
    nstart : mapping, Series, sequence or array, optional
        Start vector as in `pagerank`, 0 for vertices that are not named; default uniform.
    lazy : float, default 0.0
        Probability of staying in a state, 0 <= lazy < 1. It does not change the stationary vector; periodic chains
        converge only with one above 0.
    running : keyword arguments
        Options of `power_iteration`: tol, norm, max_iter, precision, progress, throw.

    Returns
    -------
    Solution. Of a chain with several closed classes the start decides which mixture of their vectors it is.

    Raises
    ------
    KindError : the store is not of kind `stochastic`
    DanglingError : an empty column, a state without transitions
    ConvergenceError : not converged, with the `solution` attached; the chain may be periodic
    others : as in `power_iteration`

    Examples
    --------
    >>> import mgspmv as mg
    >>> import scipy.sparse
    >>> chain = scipy.sparse.csr_array([[0.9, 0.5], [0.1, 0.5]])  # columns sum to 1
    >>> mg.stationary(chain).values.round(4)
    array([0.8333, 0.1667])
    """
    run = PowerCall(A, operation="stationary vector", normalize="l1", **running)
    _check_chain(run)
    stays = read_number("lazy", lazy)
    if not 0 <= stays < 1:
        raise OptionError(f"lazy must be at least 0 and less than 1, not {lazy!r}")
    start = make_start(A, "nstart", nstart, 1.0)
    if (start < 0).any() or not start.any():
        raise OptionError("nstart must not be negative, nor 0 everywhere; give at least one vertex a weight")

    with open_placement(run) as place:
        outcome = place.iterate(Step(1.0 - stays, stays), normalize(start, "l1"))
    advice = {} if stays else {Status.MAX_ITER: _PERIODIC_ADVICE}
    return conclude(run, outcome, {"lazy": stays}, advice)


_PERIODIC_ADVICE = (
    "If the change does not shrink, the chain is periodic: pass lazy=0.5, which has the same stationary vector; "
    "otherwise increase max_iter= or tol="
)


def _check_graph(run: PowerCall) -> None:
    """Check that the rows of a run's store are in-edges."""
    check_in_edges(run.A, run.operation, ", or pass A to power_iteration()")
    check_vertices(run)


def _check_chain(run: PowerCall) -> None:
    A = run.A
    if A.is_transpose or A.kind != "stochastic":
        what = "a transpose" if A.is_transpose else f"of kind {A.kind!r}"
        raise KindError(
            f"{name_matrix(A.stored)} is {what}, but a stationary vector needs a chain, with columns that sum to 1; "
            "ingest it with kind='stochastic', or use pagerank for a graph"
        )
    if not run.weights:
        raise OptionError("a stochastic matrix needs its values; pass weight=True")
    if A.info.min_weight is not None and A.info.min_weight < 0:
        raise OptionError(
            f"{name_matrix(A.stored)} has negative entries, the least is {A.info.min_weight}, but probabilities "
            "cannot be negative; ingest a source without them"
        )
    check_vertices(run)
    degrees = restore(A.stored.read_array("out_degree"), A.order)
    if not degrees.all():
        places = np.flatnonzero(degrees == 0)
        label = places[0] if A.vertex_ids is None else A.vertex_ids[places[0]]
        raise DanglingError(
            f"{len(places)} of {len(degrees)} columns are empty, first {label}, so the chain has no transition from "
            "there; give them entries that sum to 1, or use pagerank, which handles empty columns"
        )


def _find_transpose(A: Any, run: PowerCall, transpose: Any) -> Any:
    if isinstance(A, Matrix):
        if transpose is not None:
            raise OptionError("transpose= is for a distributed matrix; leave it out, as A.T of an opened one is used")
        return A.T
    if transpose is None and not A.has_store:
        raise KindError(f"HITS needs the transpose; {TRANSPOSE_FIRST}: A.on(client)")
    if transpose is None:
        raise KindError(
            "HITS needs the transpose on the cluster: distribute A.T too, and pass it as transpose=; or pass the "
            "opened matrix with a client: A.on(client)"
        )
    check_transpose(A, transpose)
    return transpose
