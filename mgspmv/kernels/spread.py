"""Out-edges of vertices in memory, and passing along them what changed, on the host.

`mgspmv.iterate.follow` says what for. What is left to pass on is a residual r, int64 in units of 2^-61, and each share
that goes along an edge is rounded once, so that sums have the same bits in whatever order threads add:

    of the vertices u with |r_u| > limit (out-degree + 1):   x_u += r_u,   r_u = 0
    then for each of their edges u -> v of weight a:         r_v += alpha r_u a / w_u

Which vertices these are is looked for among those whose cache line of residuals was written to since the last look.

Thread mapping: as in `mgspmv.kernels.cpu`. With up to two threads there is one, for an addition that others may be in
the midst of takes more than twice as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from mgspmv.kernels.compiled import compile_kernel
from mgspmv.kernels.cpu import PARTS_PER_THREAD, SERIAL_NNZ, _take, run_parts
from mgspmv.model import CHANGE_POINT, CsrBlock

LINE = 8
"""Vertices of a cache line of residuals."""
WORD = 64
"""Vertices of eight lines, whose marks are read at once."""


@dataclass(frozen=True)
class Look:
    """What is left to pass on, in units of 1."""

    total: float
    """Sum of |r|."""
    largest: float
    """Largest |r|."""


@dataclass(frozen=True)
class Round:
    """What a round of passing on did."""

    n_passed: int
    """Vertices that passed on."""
    n_edges: int
    """Edges along which they did."""
    n_seen: int
    """Vertices that were looked at for it."""


def choose_adders(threads: int, work: int) -> int:
    """How many of the threads add to one vector."""
    return 1 if threads <= 2 or work < SERIAL_NNZ else threads


def count_out_edges(blocks: Sequence[CsrBlock], threads: int) -> np.ndarray:
    """(n_cols,) int64: stored entries in each column of blocks that make up a matrix."""
    degree = np.zeros(blocks[0].n_cols, np.int64)
    for block in blocks:
        adders = choose_adders(threads, block.nnz)
        run_parts(adders, _count, _cut(block.nnz, adders), block.indices, degree, adders > 1 or None)
    return degree


class OutEdges:
    """The columns of a matrix in rows, and where they lead: the edges that leave each vertex, in no certain order.

    Parameters
    ----------
    blocks : make up the matrix
    degree : of `count_out_edges`
    """

    def __init__(self, blocks: Sequence[CsrBlock], degree: np.ndarray, threads: int) -> None:
        first = blocks[0]
        self.indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(degree)])
        self.targets = np.empty(self.indptr[-1], first.indices.dtype)
        self.values = None if first.data is None else np.empty(len(self.targets), first.data.dtype)
        places = self.indptr[:-1].copy()
        for b in blocks:
            adders = choose_adders(threads, b.nnz)
            rows = (b.indptr, b.indices, b.data, b.row_offset)
            run_parts(
                adders, _lay, _cut(b.n_rows, adders), *rows, places, self.targets, self.values, adders > 1 or None
            )

    @property
    def n(self) -> int:
        return len(self.indptr) - 1

    @property
    def nnz(self) -> int:
        return len(self.targets)

    @staticmethod
    def count_bytes(blocks: Sequence[CsrBlock]) -> int:
        """Bytes that laying out and `Spread` take beside the blocks."""
        entries = sum(b.indices.nbytes + (0 if b.data is None else b.data.nbytes) for b in blocks)
        return entries + 8 * 8 * (blocks[0].n_cols + 1)


class Spread:
    """Ranks, what is left to pass on, and the edges along which that goes.

    Parameters
    ----------
    x : (n,) float64 ranks; overwritten
    residual : (n,) int64, in units of 2^-61; overwritten
    share : (n,) float64: what of a residual goes along an edge of weight 1, alpha / w; 0 for dangling vertices
    """

    def __init__(self, edges: OutEdges, x: np.ndarray, residual: np.ndarray, share: np.ndarray, threads: int) -> None:
        self.edges, self.x, self.residual, self._share, self._threads = edges, x, residual, share, threads
        n_words = -(-edges.n // WORD)
        self._marks = np.zeros(WORD // LINE * n_words, np.uint8)
        self._changed = np.empty(edges.n, np.int64)
        self._passed = np.empty(edges.n)
        self._parts, self._word_parts = _cut(edges.n, threads), _cut(n_words, threads)
        self._counts = np.zeros((len(self._word_parts) - 1, 3), np.int64)
        self._to_see = 0

    def look(self) -> Look:
        """See what is left, and have all vertices looked at in the next round."""
        totals, largest = np.zeros((2, len(self._parts) - 1), np.int64)
        run_parts(self._choose(self.edges.n), _sum_up, self._parts, self.residual, totals, largest)
        self._marks[:] = 1
        self._to_see = self.edges.n
        return Look(int(totals.sum()) / CHANGE_POINT, int(largest.max(initial=0)) / CHANGE_POINT)

    def pass_on(self, limit: float) -> Round:
        """Let the vertices pass on for which more than `limit` is left for each of their edges and themselves."""
        edges, threads = self.edges, self._choose(self._to_see)
        bounds, counts = self._word_parts, self._counts
        lists = (self._changed, self._passed)
        vectors = (edges.indptr, self.residual, self.x, self._share)
        words = self._marks.view(np.uint64)
        run_parts(threads, _take_changed, bounds, words, self._marks, *vectors, limit * CHANGE_POINT, *lists, counts)
        n_passed, n_edges, n_seen = (int(total) for total in counts.sum(axis=0))
        adders, out = choose_adders(self._threads, n_edges), (edges.indptr, edges.targets, edges.values)
        run_parts(adders, _pass_on, bounds, counts, *lists, *out, self.residual, self._marks, adders > 1 or None)
        self._to_see = min(edges.n, LINE * n_edges)
        return Round(n_passed, n_edges, n_seen)

    def _choose(self, n_seen: int) -> int:
        return 1 if n_seen < SERIAL_NNZ else self._threads


def compile_spread(block: CsrBlock, threads: int) -> None:
    """Compile the kernels for blocks like this one, or load them from Numba's cache."""
    one = np.zeros(1)
    data = None if block.data is None else np.ones(1, block.data.dtype)
    loop = CsrBlock(0, 1, np.array([0, 1]), np.zeros(1, block.indices.dtype), data)
    for is_shared in (None, True) if threads > 2 else (None,):
        bounds, degree, counts = np.array([0, 1]), np.zeros(1, np.int64), np.zeros((1, 3), np.int64)
        run_parts(1, _count, bounds, loop.indices, degree, is_shared)
        edges = OutEdges([loop], degree, 1)
        out = (edges.indptr, edges.targets, edges.values)
        run_parts(1, _lay, bounds, loop.indptr, loop.indices, loop.data, 0, degree - 1, *out[1:], is_shared)
        marks = np.zeros(WORD // LINE, np.uint8)
        run_parts(1, _pass_on, bounds, counts, degree, one, *out, degree, marks, is_shared)
        spread = Spread(edges, one, degree, one, 1)
        spread.look()
        spread.pass_on(1.0)


def _cut(n: int, threads: int) -> np.ndarray:
    """Where parts of n things begin, and where the last ends."""
    return np.linspace(0, n, (1 if n < WORD else threads * PARTS_PER_THREAD) + 1).astype(np.int64)


# --- kernels ---------------------------------------------------------------------------------------------------------
# Each takes (counter, bounds) first: the shared counter of parts and where parts begin. `shared` is None where no other
# thread adds to the same vector: by type, so that an addition is compiled as a plain one.


@intrinsic
def _add_atomically(typing_context, array, place, value):
    """Add to array[place] at once; what was there."""

    def generate(context, builder, signature, args):
        view = context.make_array(signature.args[0])(context, builder, args[0])
        pointer = cgutils.get_item_pointer(context, builder, signature.args[0], view, [args[1]], wraparound=False)
        return builder.atomic_rmw("add", pointer, args[2], "monotonic")

    return types.int64(array, types.uint64, types.int64), generate


def _add(array, place, value, shared):
    """Add to array[place]; what was there."""


@overload(_add, inline="always")
def _add_overload(array, place, value, shared):
    if not isinstance(shared, types.NoneType):
        return lambda array, place, value, shared: _add_atomically(array, np.uint64(place), np.int64(value))

    def add(array, place, value, shared):
        old = array[np.uint64(place)]
        array[np.uint64(place)] = old + value
        return old

    return add


@compile_kernel
def _count(counter, bounds, indices, degree, shared):
    part = _take(counter)
    while part < len(bounds) - 1:
        for k in range(np.uint64(bounds[part]), np.uint64(bounds[part + 1])):
            _add(degree, indices[k], 1, shared)
        part = _take(counter)


@compile_kernel
def _lay(counter, bounds, indptr, indices, data, row_offset, places, targets, values, shared):
    part = _take(counter)
    while part < len(bounds) - 1:
        for i in range(bounds[part], bounds[part + 1]):
            for k in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
                place = np.uint64(_add(places, indices[k], 1, shared))
                targets[place] = row_offset + i
                if data is not None:
                    values[place] = data[k]
        part = _take(counter)


@compile_kernel
def _sum_up(counter, bounds, residual, totals, largest):
    part = _take(counter)
    while part < len(bounds) - 1:
        total, most = 0, 0
        for i in range(bounds[part], bounds[part + 1]):
            left = abs(residual[i])
            total += left
            most = max(most, left)
        totals[part], largest[part] = total, most
        part = _take(counter)


@compile_kernel
def _take_changed(counter, bounds, words, marks, indptr, residual, x, share, limit, changed, passed, counts):
    part = _take(counter)
    while part < len(bounds) - 1:
        n_passed, n_edges, n_seen = 0, 0, 0
        begin = bounds[part] * WORD
        for word in range(bounds[part], bounds[part + 1]):
            if words[word] == 0:
                continue
            for line in range(word * (WORD // LINE), (word + 1) * (WORD // LINE)):
                if marks[line] == 0:
                    continue
                marks[line] = 0
                for i in range(line * LINE, min((line + 1) * LINE, len(residual))):
                    left = np.float64(residual[i])
                    degree = indptr[i + 1] - indptr[i]
                    n_seen += 1
                    if abs(left) > limit * np.float64(degree + 1):
                        x[i] += left / CHANGE_POINT
                        residual[i] = 0
                        changed[begin + n_passed], passed[begin + n_passed] = i, left * share[i]
                        n_passed += 1
                        n_edges += degree
        counts[part, 0], counts[part, 1], counts[part, 2] = n_passed, n_edges, n_seen
        part = _take(counter)


@compile_kernel
def _pass_on(counter, bounds, counts, changed, passed, indptr, targets, values, residual, marks, shared):
    part = _take(counter)
    while part < len(bounds) - 1:
        begin = bounds[part] * WORD
        for place in range(begin, begin + counts[part, 0]):
            u, share = changed[place], passed[place]
            whole = np.int64(np.rint(share))
            for k in range(np.uint64(indptr[u]), np.uint64(indptr[u + 1])):
                v = np.uint64(targets[k])
                _add(residual, v, whole if values is None else np.int64(np.rint(share * values[k])), shared)
                marks[v // np.uint64(LINE)] = 1
        part = _take(counter)
