"""Conversion of vectors given by users to distributions over the vertices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np

from mgspmv.errors import OptionError, ShapeError
from mgspmv.lookup import ArrayLookup
from mgspmv.order import invert

if TYPE_CHECKING:
    from mgspmv.ingest.vertex_vectors import ById


Weights = Mapping[Any, float] | np.ndarray | Sequence[Any] | AbstractSet[Any] | Any
"""Vector over vertices; `mgspmv.ingest.vertex_vectors` describes the accepted objects."""


def make_distribution(name: str, weights: Weights, n: int, vertex_ids: np.ndarray | None) -> np.ndarray:
    """Make a distribution: non-negative weights divided by their sum.

    Parameters
    ----------
    name : of the argument, for messages
    weights : by place, (n,) in the order of the store's vertices, or by ids of the source, see `classify_vector`;
        missing ids weigh 0
    vertex_ids : (n,) ascending ids of the store, None for 0..n-1

    Returns
    -------
    (n,) float64 with sum 1. The sum is exact before it is rounded, so it does not depend on the order of the vertices.

    Raises
    ------
    ShapeError : an array of another length
    OptionError : an unknown or repeated id; a weight that is negative or not finite; a sum of 0; as in
        `classify_vector`
    """
    vector = make_vector(name, weights, n, vertex_ids, is_signed=False)
    if not vector.any():
        raise OptionError(f"{name} is 0 everywhere and cannot be made to sum to 1; give at least one vertex a weight")
    return normalize(vector, n)


def make_vector(
    name: str, numbers: Weights, n: int, vertex_ids: np.ndarray | None, *, is_signed: bool = True
) -> np.ndarray:
    """Make a vector of the numbers that a user gave, (n,) float64; parameters as for `make_distribution`.

    Raises
    ------
    ShapeError : an array of another length
    OptionError : an unknown or repeated id; a number that is not finite, or negative unless `is_signed`; as in
        `classify_vector`
    """
    places, vector = _read_vector(name, numbers, n, vertex_ids)
    if places is not None:
        found, vector = vector, np.zeros(n)
        vector[places] = found
    _check_numbers(name, vector, vertex_ids, is_signed=is_signed)
    return vector


def _read_vector(
    name: str, given: Weights, n: int, vertex_ids: np.ndarray | None
) -> tuple[np.ndarray | None, np.ndarray]:
    """Return the vertices that a user named, (k,) int64, and their numbers, (k,) float64; None and (n,) float64 for
    numbers by place."""
    from mgspmv.ingest.vertex_vectors import classify_vector

    if (vector := classify_vector(name, given)) is not None:
        return _locate(name, vector, n, vertex_ids)
    if isinstance(given, np.ndarray) and given.dtype.kind in "SU":
        raise OptionError(
            f"{name} is an array of strings, but arrays hold a number per vertex; pass its .tolist() for a list of ids"
        )
    numbers = _to_float64(name, given)
    if numbers.shape != (n,):
        raise ShapeError(
            f"{name} has shape {numbers.shape} but the matrix has {n} vertices; pass shape ({n},) or a mapping"
        )
    return None, numbers


def _check_numbers(
    name: str,
    numbers: np.ndarray,
    vertex_ids: np.ndarray | None,
    places: np.ndarray | None = None,
    *,
    is_signed: bool = False,
) -> None:
    """Raise `OptionError` for numbers that are not finite, or negative unless `is_signed`.

    Parameters
    ----------
    numbers : (k,) float64
    places : (k,) numbers of their vertices; None for all vertices
    """
    wrong = ~np.isfinite(numbers)
    if not is_signed:
        wrong |= numbers < 0
    if wrong.any():
        k = int(np.argmax(wrong))
        place = k if places is None else places[k]
        label = place if vertex_ids is None else vertex_ids[place]
        wanted = "finite" if is_signed else "finite and not negative"
        raise OptionError(f"{name} must be {wanted}; vertex {label} has {numbers[k]}")


def _locate(name: str, vector: ById, n: int, vertex_ids: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Find the vertices of a vector by id.

    Returns
    -------
    (k,) int64 numbers of distinct vertices and (k,) float64 numbers for them
    """
    ids = vector.ids
    numbers = np.ones(len(ids)) if vector.numbers is None else _to_float64(name, vector.numbers)
    if numbers.shape != (len(ids),):
        raise ShapeError(f"{name} has {len(ids)} ids and numbers of shape {numbers.shape}; pass one number per id")
    if vector.is_default_index and vertex_ids is not None:
        raise OptionError(
            f"{name} has pandas' default index 0..{len(ids) - 1}, but the vertices have ids such as "
            f"{_plain(vertex_ids[0])!r}; {vector.advice}"
        )
    advice = f"; {vector.advice}" if vector.advice else ""
    try:
        places = ArrayLookup(n, vertex_ids).find_all(name, ids)
    except OptionError as error:
        raise OptionError(f"{error}{advice}") from error
    ascending = np.sort(places)
    repeated = ascending[1:][ascending[1:] == ascending[:-1]]
    if len(repeated):
        label = repeated[0] if vertex_ids is None else vertex_ids[repeated[0]]
        raise OptionError(f"{name} has the id {_plain(label)!r} more than once; give each id one number{advice}")
    return places, numbers


def _plain(label: Any) -> Any:
    return label.item() if isinstance(label, np.generic) else label


def _to_float64(name: str, numbers: Any) -> np.ndarray:
    try:
        array = np.asarray(numbers)
        are_texts = array.dtype.kind == "O" and any(isinstance(number, str | bytes) for number in array.flat)
        if array.dtype.kind in "biufO" and not are_texts:
            return array.astype(np.float64)
    except (OverflowError, TypeError, ValueError) as error:
        raise OptionError(f"{name} must hold real numbers ({error})") from error
    raise OptionError(f"{name} must hold real numbers, not {'strings' if are_texts else array.dtype}")


def normalize(vector: np.ndarray, n: int) -> np.ndarray:
    """Divide non-negative numbers by their sum, made in fixed point of two words, independent of the vertex order.

    Parameters
    ----------
    vector : of n numbers, or the nonzero ones of them
    """
    bits = 62 - math.frexp(n)[1]
    scaled = np.ldexp(vector, bits - math.frexp(float(vector.max()))[1])
    total, rest = 0, scaled
    for _ in range(2):
        word = np.rint(rest)
        total = (total << bits) + int(word.astype(np.int64).sum())
        rest = np.ldexp(rest - word, bits)
    normalized: np.ndarray = scaled / math.ldexp(total, -bits)
    return normalized


VECTOR, VERTEX, WEIGHT = "vector", "vertex", "weight"
"""Columns of a table of personalizations; `weight` is optional."""


@dataclass(frozen=True, eq=False)
class Query:
    """Vector of a batch: damping and sparse personalization."""

    label: Any
    """Name or number of the vector."""
    alpha: float
    """Damping factor."""
    base: float
    """p of a vertex that is not listed: 0, or 1/n of a uniform one."""
    rows: np.ndarray
    """(m,) int64, ascending: stored rows of the listed vertices."""
    weights: np.ndarray
    """(m,) float64: p of the listed vertices."""

    def cut(self, start: int, stop: int) -> Query:
        """Return the query with only the entries of the rows `start` .. `stop`."""
        own = slice(*np.searchsorted(self.rows, (start, stop)).tolist())
        return replace(self, rows=self.rows[own], weights=self.weights[own])


def make_queries(
    personalization: Any,
    alphas: Sequence[float],
    n: int,
    vertex_ids: np.ndarray | None,
    order: np.ndarray | None = None,
) -> list[Query]:
    """Make the vectors of a batch from the user's arguments; see `mgspmv.api.pagerank_batch`.

    Parameters
    ----------
    alphas : one for all, or one for each
    n : vertices
    vertex_ids : (n,) ascending ids of the store, None for 0..n-1
    order : of the stored rows; the user's arguments are in the order of the source

    Raises
    ------
    ShapeError : numbers of vectors and dampings, or of entries and vertices, that do not match
    OptionError : no vector; an unknown id; weights that cannot be normalized; the message names the vector
    """
    queries = [_make_query(*named, n, vertex_ids) for named in _list_vectors(personalization, n, vertex_ids)]
    if not queries:
        raise OptionError("personalization has no vector; give at least one, or None for a uniform one")
    labels = [query.label for query in queries]
    if not any(all(isinstance(label, kind) for label in labels) for kind in (str, Integral)):
        odd = next((label for label in labels if not isinstance(label, type(labels[0]))), labels[0])
        raise OptionError(f"the names of vectors must be all strings or all integers; one is {odd!r}")
    if len(queries) == 1 < len(alphas):
        queries = [replace(queries[0], label=number) for number in range(len(alphas))]
    if len(alphas) not in (1, len(queries)):
        raise ShapeError(
            f"there are {len(alphas)} values of alpha but {len(queries)} vectors; pass one for all or one for each"
        )
    dampings = alphas if len(alphas) > 1 else [alphas[0]] * len(queries)
    places = None if order is None else invert(order)
    return [_place(q, alpha, places) for q, alpha in zip(queries, dampings, strict=True)]


# --- arguments of users ----------------------------------------------------------------------------------------------


def _list_vectors(given: Any, n: int, vertex_ids: np.ndarray | None) -> Iterable[tuple[Any, Any]]:
    """List the vectors with their labels: each a `_Placed`, an id, None, or an argument of `classify_vector`."""
    from mgspmv.ingest.vertex_vectors import is_class, is_table, list_column

    if given is None:
        return [(0, None)]
    if hasattr(given, "tocsr") or (isinstance(given, np.ndarray) and given.ndim == 2):
        return _list_rows(given, n)
    if isinstance(given, np.ndarray) and given.ndim == 1:
        if len(given) == n and given.dtype.kind in "biuf":
            raise OptionError(
                f"personalization is an array of {n} numbers, which may be one vector by place or {n} vectors of one "
                "id each; pass it as [None, :] for one vector, or its .tolist() for a vector per id"
            )
        return list(enumerate(given.tolist()))
    if isinstance(given, Mapping):
        is_one = bool(given) and all(isinstance(weight, Real) for weight in given.values())
        return [(0, given)] if is_one else list(given.items())
    if is_class(given, "pandas", "Series"):
        return [(0, given)]
    if is_table(given):
        return _list_table(given, n, vertex_ids)
    if (ids := list_column("personalization", given)) is not None:
        return list(enumerate(ids))
    if isinstance(given, Sequence | AbstractSet) and not isinstance(given, str | bytes):
        return list(enumerate(given))
    raise OptionError(
        "personalization must be a sequence of vectors or a mapping of names to them (each a mapping of ids to "
        "weights, ids, or an id), a table, or a matrix with a row for each vector, not "
        + (repr(given) if isinstance(given, str | bytes | Real) else f"a {type(given).__name__}")
    )


def _list_rows(given: Any, n: int) -> Iterable[tuple[int, Any]]:
    """Yield the vectors of a sparse or dense matrix, one per row."""
    from scipy.sparse import csr_array

    if given.shape[1] != n:
        shape = tuple(given.shape)
        raise ShapeError(
            f"personalization has shape {shape} but the matrix has {n} vertices; pass shape (n_vectors, {n})"
        )
    rows = csr_array(_to_float64("personalization", given) if isinstance(given, np.ndarray) else given, copy=True)
    rows.sum_duplicates()
    for k in range(rows.shape[0]):
        own = slice(rows.indptr[k], rows.indptr[k + 1])
        yield k, _Placed(rows.indices[own].astype(np.int64), _to_float64(_name(k), rows.data[own]))


def _list_table(given: Any, n: int, vertex_ids: np.ndarray | None) -> Iterable[tuple[Any, Any]]:
    """Yield the vectors of a table with a row for each entry, in the order of their first rows."""
    import pyarrow as pa

    from mgspmv.ingest.column_names import names_numbers

    table = pa.table(given)
    missing = [name for name in (VECTOR, VERTEX) if name not in table.column_names]
    if missing:
        raise OptionError(
            f"personalization is a table with the columns {', '.join(table.column_names) or '(none)'}; it needs "
            f"{VECTOR} and {VERTEX}, and may have {WEIGHT}; pass a list of frames of ids and weights for a vector each"
        )
    weights_like = [name for name in table.column_names if names_numbers(name)]
    if weights_like and WEIGHT not in table.column_names:
        raise OptionError(
            f"personalization is a table with a column {weights_like[0]!r}, and weights are in one named {WEIGHT}; "
            "rename it, or leave it out for equal weights"
        )
    for name in set(table.column_names) & {VECTOR, VERTEX, WEIGHT}:
        if table[name].null_count:
            raise OptionError(f"personalization is a table with {table[name].null_count} missing values in {name}")
    labels = table[VECTOR].combine_chunks().dictionary_encode()
    of_vector = labels.indices.to_numpy()
    order = np.argsort(of_vector, kind="stable")
    bounds = np.searchsorted(of_vector[order], np.arange(len(labels.dictionary) + 1))
    vertices = table[VERTEX].to_numpy()[order]
    weights = table[WEIGHT].to_numpy()[order] if WEIGHT in table.column_names else np.ones(len(order))
    for k, label in enumerate(labels.dictionary.to_pylist()):
        own, name = slice(bounds[k], bounds[k + 1]), _name(label)
        places = ArrayLookup(n, vertex_ids).find_all(name, vertices[own].tolist())
        yield label, _Placed(places, _to_float64(name, weights[own]))


@dataclass(frozen=True, eq=False)
class _Placed:
    """Numbers of some vertices and the weight of each; vertices may be repeated."""

    places: np.ndarray
    weights: np.ndarray


# --- one vector ------------------------------------------------------------------------------------------------------


def _make_query(label: Any, given: Any, n: int, vertex_ids: np.ndarray | None) -> Query:
    """Make a query in the order of the source; its damping is set later."""
    name = _name(label)
    if given is None:
        return Query(label, 0.0, 1.0 / n, np.empty(0, np.int64), np.empty(0))
    if isinstance(given, _Placed):
        places, weights = given.places, given.weights
    elif isinstance(given, str | Integral):
        places, weights = ArrayLookup(n, vertex_ids).find_all(name, [given]), np.ones(1)
    elif isinstance(given, Real):
        raise OptionError(f"{name} must be a mapping of ids to weights, ids, or an id, not {given!r}")
    else:
        named, weights = _read_vector(name, given, n, vertex_ids)
        places = np.flatnonzero(weights) if named is None else named
        weights = weights[weights != 0] if named is None else weights
    if not len(places):
        raise OptionError(f"{name} has no vertex; give it at least one, or None for a uniform one")
    _check_numbers(name, weights, vertex_ids, places)
    if not weights.any():
        raise OptionError(f"{name} is 0 everywhere and cannot be made to sum to 1; give at least one vertex a weight")
    order = np.argsort(places, kind="stable")
    rows, weights = places[order], weights[order]
    first = np.flatnonzero(np.append(True, rows[1:] != rows[:-1]))
    return Query(label, 0.0, 0.0, rows[first].astype(np.int64), normalize(np.add.reduceat(weights, first), n))


def _place(query: Query, alpha: float, places: np.ndarray | None) -> Query:
    """Set the damping of a query, and convert it to the order of stored rows; `places` is the row of each vertex."""
    if places is None:
        return replace(query, alpha=alpha)
    rows = places[query.rows].astype(np.int64)
    order = np.argsort(rows)
    return replace(query, alpha=alpha, rows=rows[order], weights=query.weights[order])


def _name(label: Any) -> str:
    return f"personalization of vector {label!r}"
