"""Vectors that users give, as distributions over the vertices."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from mgspmv.errors import OptionError, ShapeError

Weights = Mapping[Any, float] | np.ndarray


def make_distribution(name: str, weights: Weights, n: int, vertex_ids: np.ndarray | None) -> np.ndarray:
    """Non-negative weights, divided by their sum.

    Parameters
    ----------
    name : of the argument, for messages
    weights : (n,) array in the order of the store's vertices, or a mapping of the source's ids; missing ids weigh 0
    vertex_ids : (n,) ascending ids of the store, None for 0..n-1

    Returns
    -------
    (n,) float64 with sum 1. The sum is exact before it is rounded, so it does not depend on the order of the vertices.

    Raises
    ------
    ShapeError : an array of another length
    OptionError : an unknown id; a weight that is negative or not finite; a sum of 0
    """
    vector = make_weights(name, weights, n, vertex_ids)
    if not vector.any():
        raise OptionError(f"{name} is 0 everywhere and cannot be made to sum to 1; give at least one vertex a weight")
    return normalize(vector, n)


def make_weights(name: str, weights: Weights, n: int, vertex_ids: np.ndarray | None) -> np.ndarray:
    """(n,) float64 weights, finite and not negative; parameters and errors as for `make_distribution`."""
    vector = _to_vector(name, weights, n, vertex_ids)
    if not np.isfinite(vector).all() or (vector < 0).any():
        place = int(np.flatnonzero(~np.isfinite(vector) | (vector < 0))[0])
        label = place if vertex_ids is None else vertex_ids[place]
        raise OptionError(f"{name} must be finite and not negative; vertex {label} has {vector[place]}")
    return vector


def make_vector(name: str, numbers: Weights, n: int, vertex_ids: np.ndarray | None) -> np.ndarray:
    """(n,) float64: numbers of any sign as a user gave them; parameters as for `make_distribution`.

    Raises
    ------
    ShapeError : an array of another length
    OptionError : an unknown id; a number that is not finite
    """
    vector = _to_vector(name, numbers, n, vertex_ids)
    if not np.isfinite(vector).all():
        place = int(np.flatnonzero(~np.isfinite(vector))[0])
        label = place if vertex_ids is None else vertex_ids[place]
        raise OptionError(f"{name} must be finite; vertex {label} has {vector[place]}")
    return vector


def find_positions(name: str, ids: list[Any], n: int, vertex_ids: np.ndarray | None) -> np.ndarray:
    """Numbers of the vertices with these ids.

    Raises
    ------
    OptionError : an id that no vertex has; the message names a near one
    """
    if vertex_ids is None or vertex_ids.dtype == np.int64:
        return _find_integers(name, ids, n, vertex_ids)
    wanted = np.array(ids, dtype=object)
    for label in ids:
        if not isinstance(label, str):
            raise OptionError(f"{name} has the id {label!r} and the vertices have strings; pass their ids as strings")
    places = np.minimum(np.searchsorted(vertex_ids, wanted), n - 1)
    for label, found in zip(ids, vertex_ids[places], strict=True):
        if label != found:
            near = difflib.get_close_matches(label, map(str, vertex_ids[:100_000]), n=1)
            raise OptionError(
                f"{name} has the id {label!r}, which no vertex has" + (f"; near: {near[0]!r}" if near else "")
            )
    return places


def _find_integers(name: str, ids: list[Any], n: int, vertex_ids: np.ndarray | None) -> np.ndarray:
    try:
        wanted = np.array([label.__index__() for label in ids], dtype=np.int64)
    except (AttributeError, OverflowError, TypeError) as error:
        raise OptionError(f"{name} must be keyed by the vertices' integer ids ({error})") from error
    places = wanted if vertex_ids is None else np.minimum(np.searchsorted(vertex_ids, wanted), n - 1)
    is_known = (wanted >= 0) & (wanted < n) if vertex_ids is None else vertex_ids[places] == wanted
    if not is_known.all():
        raise OptionError(f"{name} has the id {wanted[~is_known][0]}, which no vertex has")
    return places


def _to_vector(name: str, numbers: Weights, n: int, vertex_ids: np.ndarray | None) -> np.ndarray:
    if isinstance(numbers, Mapping):
        return _from_mapping(name, numbers, n, vertex_ids)
    return _from_array(name, numbers, n)


def _from_mapping(name: str, weights: Mapping[Any, float], n: int, vertex_ids: np.ndarray | None) -> np.ndarray:
    vector = np.zeros(n)
    if weights:
        vector[find_positions(name, list(weights), n, vertex_ids)] = to_float64(name, list(weights.values()))
    return vector


def _from_array(name: str, weights: Any, n: int) -> np.ndarray:
    vector = to_float64(name, weights)
    if vector.shape != (n,):
        raise ShapeError(
            f"{name} has shape {vector.shape} but the matrix has {n} vertices; pass shape ({n},) or a mapping"
        )
    return vector


def to_float64(name: str, numbers: Any) -> np.ndarray:
    try:
        array = np.asarray(numbers)
        if array.dtype.kind in "biufO":
            return array.astype(np.float64)
    except (OverflowError, TypeError, ValueError) as error:
        raise OptionError(f"{name} must hold real numbers ({error})") from error
    raise OptionError(f"{name} must hold real numbers, not {array.dtype}")


def normalize(vector: np.ndarray, n: int) -> np.ndarray:
    """Non-negative numbers over their sum, made in fixed point of two words: no order of the vertices changes it.

    Parameters
    ----------
    vector : of n numbers, or those of them that are not 0
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
