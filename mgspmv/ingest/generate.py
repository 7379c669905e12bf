"""Generated matrices: R-MAT and uniform random graphs, grids, bands.

Every entry is a pure function of the parameters and the number of the entry, so ranges of entries can be generated
in any process, in any order and on any device, and are bit-identical. The random words are those of SplitMix64 with
random access:

    word(key, t) = mix(key + (t + 1) G)                      t = 0, 1, 2, ...;  all modulo 2^64
    mix(z):  z = (z ^ z >> 30) M1;  z = (z ^ z >> 27) M2;  z ^ z >> 31

with G = 0x9E3779B97F4A7C15, M1 = 0xBF58476D1CE4E5B9 and M2 = 0x94D049BB133111EB: the t-th output (from 0) of the
generator that starts at `key`. Each use has its own key, key[s] = word(seed, s): s = 0 for places, 1 for values, 2 to
5 for scrambling. A value in (0, 1] is made from a word w as (floor(w / 2^11) + 1) 2^-53, which is exact in float64.

Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, figure 17 (mix variant 13);
Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, for the counter in place of a state.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from difflib import get_close_matches
from numbers import Real
from typing import Any, Literal

import numpy as np
from numba import njit

from mgspmv.errors import OptionError
from mgspmv.heartbeat import prefetch_map
from mgspmv.ingest.source import FileSource, Layout
from mgspmv.kernels.compiled import compile_later
from mgspmv.model import CooBatch, check_choice, default_threads

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)

# Numba promotes uint64 and int64 to float64, so every constant combined with a word is a uint64 too.
_1, _11, _27, _30, _31, _32 = (np.uint64(k) for k in (1, 11, 27, 30, 31, 32))
_LOW_32 = np.uint64(2**32 - 1)

LEVELS_PER_WORD = 3
LEVEL_BITS = 21
_LEVEL_SHIFT = np.uint64(64 - LEVEL_BITS)
_LEVEL_WIDTH = np.uint64(LEVEL_BITS)

MAX_ENTRIES = 2**56
_SIDE = (1, 2**40)
_RANGES = {
    "scale": (1, 40),
    "edge_factor": (0, 2**16),
    "seed": (0, 2**64 - 1),
    "n_vertices": _SIDE,
    "n_edges": (0, MAX_ENTRIES),
    "nx": _SIDE,
    "ny": _SIDE,
    "nz": _SIDE,
    "n": _SIDE,
    "bandwidth": (0, 2**20),
}
"""Least and greatest values of integer parameters."""

Words = Any
"""uint64 words: a NumPy array, or a scalar inside Numba."""


def mix64(z: Words) -> Words:
    """Apply SplitMix64's finalizer, a bijection of 64-bit words."""
    z = (z ^ (z >> _30)) * MIX_1
    z = (z ^ (z >> _27)) * MIX_2
    return z ^ (z >> _31)


_mix64 = njit(mix64)


def random_words(key: np.uint64, counters: np.ndarray) -> np.ndarray:
    """Return word(key, t) for each t of `counters` (uint64); uint64 of the same shape."""
    words: np.ndarray = mix64(key + (counters + _1) * GOLDEN)
    return words


def random_values(key: np.uint64, counters: np.ndarray) -> np.ndarray:
    """Return float64 values, uniform in (0, 1], one for each of `counters` (uint64)."""
    values: np.ndarray = ((random_words(key, counters) >> _11) + _1).astype(np.float64)
    values *= 2.0**-53
    return values


def derive_keys(seed: int) -> np.ndarray:
    """Return key[0] to key[5] of a seed, uint64, shape (6,)."""
    return random_words(np.uint64(seed), np.arange(6, dtype=np.uint64))


def scale_words(words: np.ndarray, n: int) -> np.ndarray:
    """Return floor(word n / 2^64), int64: numbers in 0..n-1, uniform to within n / 2^64."""
    high, low = words >> _32, words & _LOW_32
    n_high, n_low = np.uint64(n >> 32), np.uint64(n & (2**32 - 1))
    middle = high * n_low + (low * n_low >> _32)
    carried = (middle & _LOW_32) + low * n_high
    product: np.ndarray = high * n_high + (middle >> _32) + (carried >> _32)
    return product.view(np.int64)


def scramble_ids(x: Words, mask: np.uint64, half: np.uint64, keys: np.ndarray) -> Words:
    """Apply the bijection of 0..mask that `RmatSource` describes; `keys` are key[2..5], `half` is ceil(scale / 2)."""
    x = (x + keys[0]) & mask
    for k in range(1, 4):
        x = (x * (keys[k] | _1)) & mask
        x = x ^ (x >> half)
    return x


_scramble_ids = njit(scramble_ids)


def fill_rmat(
    rows: np.ndarray,
    cols: np.ndarray,
    begin: np.uint64,
    key: np.uint64,
    scale: int,
    thresholds: np.ndarray,
    scramble: bool,
    scramble_keys: np.ndarray,
) -> None:
    """Write edges `begin`, `begin + 1`, ... of an R-MAT graph into `rows` and `cols` (int64, shape (k,))."""
    t_a, t_ab, t_abc = thresholds[0], thresholds[1], thresholds[2]
    n_words = (scale + LEVELS_PER_WORD - 1) // LEVELS_PER_WORD
    surplus = np.uint64(LEVELS_PER_WORD * n_words - scale)
    mask = (_1 << np.uint64(scale)) - _1
    half = np.uint64((scale + 1) // 2)
    for i in range(len(rows)):
        state = key + (begin + np.uint64(i)) * np.uint64(n_words) * GOLDEN
        row = col = np.uint64(0)
        for _ in range(n_words):
            state += GOLDEN
            word = _mix64(state)
            for _ in range(LEVELS_PER_WORD):
                u = word >> _LEVEL_SHIFT
                word = word << _LEVEL_WIDTH
                lower = np.uint64(u >= t_ab)
                row = (row << _1) | lower
                col = (col << _1) | (np.uint64(u >= t_a) ^ lower ^ np.uint64(u >= t_abc))
        row, col = row >> surplus, col >> surplus
        if scramble:
            row = _scramble_ids(row, mask, half, scramble_keys)
            col = _scramble_ids(col, mask, half, scramble_keys)
        rows[i], cols[i] = np.int64(row), np.int64(col)


_fill_rmat = compile_later()(fill_rmat)


class GeneratedSource(FileSource, ABC):
    """Generated entries, numbered from 0; some numbers may have no entry."""

    batch_entries = 2**20
    """Most entries per batch; the entries do not depend on it."""

    def __init__(
        self, model: str, shape: tuple[int, int], n_slots: int, kind: Literal["graph", "matrix"], **parameters: Any
    ) -> None:
        if n_slots > MAX_ENTRIES:
            raise OptionError(
                f"{model} would have {n_slots} entries, but at most {MAX_ENTRIES} are supported; reduce its parameters"
            )
        super().__init__(f"{model}({', '.join(f'{k}={v}' for k, v in parameters.items())})")
        self.default_kind = kind
        self.n_slots = n_slots
        """Number of entry numbers."""
        self._range = (0, n_slots)
        self._layout = Layout(
            shape, provenance={"name": self.name, "format": "generator", "model": model, "parameters": parameters}
        )

    @abstractmethod
    def make_entries(self, begin: int, end: int) -> CooBatch:
        """Return the entries with numbers `begin` to `end` - 1, in order; rows and columns are int64."""

    @property
    def n_stated(self) -> int:
        """Number of entry numbers, some of which may have no entry."""
        return self._range[1] - self._range[0]

    def batches(self) -> Iterator[CooBatch]:
        """Yield all entries, in order, made by several threads; one empty batch if there are none."""
        start, stop = self._range
        begins = range(start, max(stop, start + 1), self.batch_entries)
        threads = min(self._threads or default_threads(), len(begins))

        def make(begin: int) -> CooBatch:
            return self.make_entries(begin, min(begin + self.batch_entries, stop))

        with ThreadPoolExecutor(threads, "mgspmv-generate") as pool:
            yield from prefetch_map(pool, make, begins, threads)

    def split(self, n_parts: int) -> Sequence[GeneratedSource]:
        """Return parts with consecutive ranges of entry numbers; see `FileSource`."""
        n = max(1, min(n_parts, self.n_slots))
        parts = [copy.copy(self) for _ in range(n)]
        for k, part in enumerate(parts):
            part._range = (self.n_slots * k // n, self.n_slots * (k + 1) // n)
        return parts


class RmatSource(GeneratedSource):
    """R-MAT (recursive matrix) graph: 2^scale vertices, edge_factor 2^scale arcs, duplicates and self loops included.

    Each arc walks down the quadrants of the adjacency matrix, `scale` times, to the upper left with probability a,
    upper right b, lower left c, lower right d = 1 - a - b - c. The recipe, in the words of the module's docstring:

    1. Arc e has W = ceil(scale / 3) words, word(key[0], e W + k) for k = 0..W-1. Each gives three numbers u of 21
       bits, from the highest bits down (bits 63-43, 42-22, 21-1; bit 0 is unused).
    2. Each u, in order, appends a lowest bit to the row (source) and column (target), by the thresholds
       A = [a], B = [a + b], C = [a + b + c], where [p] = floor(2^21 p + 1/2) and sums run from the left in float64:
       row bit = (u >= B);  column bit = (u >= A) xor (u >= B) xor (u >= C).
    3. The lowest 3 W - scale bits of both are dropped.
    4. With `scramble`, both go through the same bijection of 0..2^scale - 1, all modulo 2^scale: x = x + key[2], then
       for s = 3, 4, 5: x = x (key[s] | 1), with a bitwise or; x = x xor floor(x / 2^ceil(scale / 2)).
    5. With `weights`, arc e has the value in (0, 1] made from word(key[1], e).

    Only integers are compared, so every backend makes the same graph.

    Parameters
    ----------
    scale : log2 of the number of vertices, 1 to 40
    edge_factor : arcs per vertex, at least 0
    a, b, c : probabilities of the quadrants; the defaults are Graph500's. They count in steps of 2^-21
    seed : 0 to 2^64 - 1
    scramble : spread the vertices of high degree over all numbers; without it they are those with few one bits
    weights : generate values; False for a pattern

    Raises
    ------
    OptionError : a parameter out of its range

    Source: Chakrabarti, Zhan, Faloutsos, "R-MAT: a recursive model for graph mining", SDM 2004. Differs from
    Graph500's reference in its random numbers and scrambling.
    """

    def __init__(
        self,
        scale: int,
        edge_factor: int = 16,
        a: float = 0.57,
        b: float = 0.19,
        c: float = 0.19,
        seed: int = 1,
        scramble: bool = True,
        weights: bool = False,
    ) -> None:
        sizes = _check(scale=scale, edge_factor=edge_factor)
        others = _check(seed=seed, scramble=scramble, weights=weights)
        self._thresholds = quadrant_thresholds(a, b, c)
        self.scale, self._scramble, self._weights = sizes["scale"], scramble, weights
        self._keys = derive_keys(others["seed"])
        n, probabilities = 2**self.scale, {"a": float(a), "b": float(b), "c": float(c)}
        super().__init__("rmat", (n, n), sizes["edge_factor"] * n, "graph", **sizes, **probabilities, **others)

    def make_entries(self, begin: int, end: int) -> CooBatch:
        """Return arcs `begin` to `end` - 1, as the class describes them."""
        rows, cols = np.empty(end - begin, np.int64), np.empty(end - begin, np.int64)
        _fill_rmat(
            rows, cols, np.uint64(begin), self._keys[0], self.scale, self._thresholds, self._scramble, self._keys[2:]
        )
        return CooBatch(rows, cols, random_values(self._keys[1], _count(begin, end)) if self._weights else None)


class UniformSource(GeneratedSource):
    """Erdos-Renyi graph G(n, m) with replacement: duplicates and self loops included.

    Arc e of m goes from floor(word(key[0], 2 e) n / 2^64) to floor(word(key[0], 2 e + 1) n / 2^64); with `weights`
    its value in (0, 1] is made from word(key[1], e).

    Parameters
    ----------
    n_vertices : 1 to 2^40
    n_edges : number of arcs
    seed : 0 to 2^64 - 1
    weights : generate values; False for a pattern

    Raises
    ------
    OptionError : a parameter out of its range
    """

    def __init__(self, n_vertices: int, n_edges: int, seed: int = 1, weights: bool = False) -> None:
        own = _check(n_vertices=n_vertices, n_edges=n_edges, seed=seed, weights=weights)
        self._n, self._weights, self._keys = own["n_vertices"], weights, derive_keys(own["seed"])
        super().__init__("uniform", (self._n, self._n), own["n_edges"], "graph", **own)

    def make_entries(self, begin: int, end: int) -> CooBatch:
        """Return arcs `begin` to `end` - 1, as the class describes them."""
        ends = scale_words(random_words(self._keys[0], _count(2 * begin, 2 * end)), self._n)
        values = random_values(self._keys[1], _count(begin, end)) if self._weights else None
        return CooBatch(ends[0::2].copy(), ends[1::2].copy(), values)


class StencilSource(GeneratedSource):
    """Same neighborhood around every cell of a box of cells; neighbors outside the box are left out.

    Cell (x, y, z) of a box of (nx, ny, nz) has number x + nx (y + ny z). Entry number t belongs to
    cell floor(t / K) and neighbor t mod K of K, so entries are in order of rows and, within a row, of columns.

    Parameters
    ----------
    model : name of the generator
    extents : cells along each dimension, the fastest first
    offsets : int64, shape (K, len(extents)): steps from a cell to its neighbors, in order of their numbers
    make_values : function from entry numbers (int64, shape (k,)) to values; None for a pattern
    parameters : for the provenance
    """

    def __init__(
        self,
        model: str,
        extents: tuple[int, ...],
        offsets: np.ndarray,
        make_values: Callable[[np.ndarray], np.ndarray] | None,
        **parameters: Any,
    ) -> None:
        n = math.prod(extents)
        super().__init__(model, (n, n), n * len(offsets), "matrix" if make_values else "graph", **parameters)
        self._extents, self._offsets, self._make_values = extents, offsets, make_values
        self._strides = [math.prod(extents[:d]) for d in range(len(extents))]

    def make_entries(self, begin: int, end: int) -> CooBatch:
        """Return the entries `begin` to `end` - 1 whose neighbor lies in the box."""
        slots = np.arange(begin, end, dtype=np.int64)
        rows, neighbors = np.divmod(slots, len(self._offsets))
        cols, inside = rows.copy(), np.ones(len(rows), bool)
        for extent, stride, steps in zip(self._extents, self._strides, self._offsets.T, strict=True):
            step = steps[neighbors]
            coordinate = rows // stride % extent + step
            inside &= (coordinate >= 0) & (coordinate < extent)
            cols += stride * step
        values = self._make_values(slots[inside]) if self._make_values else None
        return CooBatch(rows[inside], cols[inside], values)


def stencil2d(nx: int, ny: int, points: int = 5, pattern: bool = False, weights: bool = True) -> StencilSource:
    """Make the Laplacian of a grid of nx by ny cells, or the grid as a graph.

    A[i, i] = points - 1 and A[i, j] = -1 for each neighbor j: the 4 next to the cell with 5 points, the corners too
    with 9. Rows on the border have the same diagonal (the value outside the grid is 0). Cell (x, y) is row x + nx y;
    values are float64.

    Parameters
    ----------
    nx, ny : cells along each side, at least 1
    points : 5 or 9
    pattern : generate only the arcs between neighbors, in both directions, without the diagonal and without values
    weights : generate values; False for a pattern, with the diagonal

    Raises
    ------
    OptionError : a parameter out of its range
    """
    check_choice("points", points, (5, 9))
    return _make_stencil("stencil2d", _check(nx=nx, ny=ny), points, pattern, weights)


def stencil3d(nx: int, ny: int, nz: int, points: int = 7, pattern: bool = False, weights: bool = True) -> StencilSource:
    """Make the Laplacian of a grid of nx by ny by nz cells, or the grid as a graph.

    Like `stencil2d`, with 7 points (6 neighbors, one through each face) or 27 (all 26 around a cell). Cell (x, y, z)
    is row x + nx (y + ny z).

    Parameters
    ----------
    nx, ny, nz : cells along each side, at least 1
    points : 7 or 27
    pattern, weights : as for `stencil2d`

    Raises
    ------
    OptionError : a parameter out of its range
    """
    check_choice("points", points, (7, 27))
    return _make_stencil("stencil3d", _check(nx=nx, ny=ny, nz=nz), points, pattern, weights)


def banded(n: int, bandwidth: int, seed: int = 1, weights: bool = True) -> StencilSource:
    """Make a matrix of n rows that has all entries (i, j), |i - j| <= bandwidth, values uniform in (0, 1].

    The value of (i, j) is made from word(key[1], i (2 b + 1) + j - i + b), where b = min(bandwidth, n - 1); float64.

    Parameters
    ----------
    n : rows and columns, 1 to 2^40
    bandwidth : entries on each side of the diagonal, 0 to 2^20; 0 is a diagonal matrix
    seed : 0 to 2^64 - 1
    weights : generate values; False for a pattern

    Raises
    ------
    OptionError : a parameter out of its range
    """
    own = _check(n=n, bandwidth=bandwidth, seed=seed, weights=weights)
    key, reach = derive_keys(own["seed"])[1], min(own["bandwidth"], own["n"] - 1)
    offsets = np.arange(-reach, reach + 1, dtype=np.int64)[:, np.newaxis]
    make_values = (lambda slots: random_values(key, slots.view(np.uint64))) if weights else None
    return StencilSource("banded", (own["n"],), offsets, make_values, **own)


GENERATORS: dict[str, Callable[..., GeneratedSource]] = {
    "rmat": RmatSource,
    "uniform": UniformSource,
    "stencil2d": stencil2d,
    "stencil3d": stencil3d,
    "banded": banded,
}


def make_generator(model: str, **options: Any) -> GeneratedSource:
    """Return the source for the name of a generator and its options.

    Parameters
    ----------
    model : a key of `GENERATORS`
    options : the parameters of `RmatSource`, `UniformSource`, `stencil2d`, `stencil3d` or `banded`

    Raises
    ------
    OptionError : an unknown model or option, a missing option or a value out of range
    """
    if model not in GENERATORS:
        raise OptionError(f"there is no generator {model!r}{_name_nearest(model, GENERATORS)}")
    parameters = inspect.signature(GENERATORS[model]).parameters
    for option in options:
        if option not in parameters:
            raise OptionError(f"generator {model} has no option {option!r}{_name_nearest(option, parameters)}")
    missing = [p.name for p in parameters.values() if p.default is p.empty and p.name not in options]
    if missing:
        raise OptionError(f"generator {model} also needs {', '.join(missing)}")
    return GENERATORS[model](**options)


def quadrant_thresholds(a: Any, b: Any, c: Any) -> np.ndarray:
    """Return A, B and C of `RmatSource`, uint64, shape (3,)."""
    # Decimal fractions that sum to 1 may exceed it by a rounding error.
    if not all(isinstance(p, Real) and float(p) >= 0 for p in (a, b, c)) or not a + b + c <= 1 + 1e-12:
        raise OptionError(
            f"a=, b= and c= must be numbers of at least 0 that sum to at most 1, not {a!r}, {b!r} and {c!r}"
        )
    sums = itertools.accumulate(map(float, (a, b, c)))
    return np.array([math.floor(p * 2**LEVEL_BITS + 0.5) for p in sums], np.uint64)


def _check(**parameters: Any) -> dict[str, Any]:
    """Return the parameters; raises OptionError unless they are integers in `_RANGES` or, of other names, flags."""
    for name, value in parameters.items():
        if name not in _RANGES:
            if not isinstance(value, bool):
                raise OptionError(f"{name} must be True or False, not {value!r}")
            continue
        low, high = _RANGES[name]
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= value <= high:
            raise OptionError(f"{name} must be an integer from {low} to {high}, not {value!r}")
        parameters[name] = int(value)
    return parameters


def _make_stencil(model: str, sides: dict[str, int], points: int, pattern: bool, weights: bool) -> StencilSource:
    flags, extents = _check(pattern=pattern, weights=weights), tuple(sides.values())
    has_values = weights and not pattern
    offsets = np.array(list(itertools.product((-1, 0, 1), repeat=len(extents))), np.int64)[:, ::-1]  # x is the fastest
    if points < len(offsets):  # neighbors through a side, not those through corners
        offsets = offsets[np.abs(offsets).sum(axis=1) <= 1]
    if pattern:
        offsets = offsets[offsets.any(axis=1)]
    values = np.where(offsets.any(axis=1), -1.0, points - 1.0)
    make_values = (lambda slots: values[slots % len(values)]) if has_values else None
    return StencilSource(model, extents, offsets, make_values, **sides, points=int(points), **flags)


def _count(begin: int, end: int) -> np.ndarray:
    return np.arange(begin, end, dtype=np.uint64)


def _name_nearest(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(str(name), list(known), n=1)
    return (f"; did you mean {near[0]!r}? There are " if near else "; there are ") + ", ".join(known)
