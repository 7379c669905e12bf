"""Conversion of vectors given by users to distributions over the vertices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

import numpy as np

from mgspmv.errors import OptionError, ShapeError
from mgspmv.lookup import ArrayLookup

if TYPE_CHECKING:
    from mgspmv.ingest.vertex_vectors import ById, ByPlace

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
    from mgspmv.ingest.vertex_vectors import ByPlace, classify_vector

    given = classify_vector(name, numbers)
    if isinstance(given, ByPlace):
        vector = from_places(name, given, n)
    else:
        vector = np.zeros(n)
        if len(given.ids):
            places, found = locate(name, given, n, vertex_ids)
            vector[places] = found
    check_numbers(name, vector, vertex_ids, is_signed=is_signed)
    return vector


def check_numbers(
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


def locate(name: str, vector: ById, n: int, vertex_ids: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Find the vertices of a vector by id.

    Returns
    -------
    (k,) int64 numbers of distinct vertices and (k,) float64 numbers for them

    Raises
    ------
    OptionError : an unknown or repeated id; a default pandas index, where the store has explicit ids; numbers that are
        not real
    """
    ids = vector.ids
    numbers = np.ones(len(ids)) if vector.numbers is None else to_float64(name, vector.numbers)
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


def from_places(name: str, given: ByPlace, n: int) -> np.ndarray:
    """Convert numbers by place to (n,) float64.

    Raises
    ------
    ShapeError : another length
    OptionError : numbers that are not real
    """
    if isinstance(given.numbers, np.ndarray) and given.numbers.dtype.kind in "SU":
        raise OptionError(
            f"{name} is an array of strings, but arrays hold a number per vertex; pass its .tolist() for a list of ids"
        )
    vector = to_float64(name, given.numbers)
    if vector.shape != (n,):
        raise ShapeError(
            f"{name} has shape {vector.shape} but the matrix has {n} vertices; pass shape ({n},) or a mapping"
        )
    return vector


def to_float64(name: str, numbers: Any) -> np.ndarray:
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
