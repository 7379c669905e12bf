"""The matrices of the benchmark, one of every structure that products are slow or fast on.

Each is made by rule, by the same code on the host (xp = NumPy) and on a device (xp = CuPy), to the same bits: random
numbers are the counted words of `mgspmv.ingest.generate`. Entries are sorted by row and column and, but for `rmat27`,
no place comes twice.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from zarr.storage import MemoryStore

import mgspmv as mg
from mgspmv.errors import OptionError
from mgspmv.ingest.generate import (
    LEVEL_BITS,
    LEVELS_PER_WORD,
    derive_keys,
    quadrant_thresholds,
    random_words,
    scale_words,
    scramble_ids,
)
from mgspmv.kernels.formats import accumulate
from mgspmv.model import CsrBlock, index_dtype
from mgspmv.store.read import open_store

Arrays = Any
"""The array module: NumPy or CuPy."""

DATA_VARIABLE = "MGSPMV_TEST_DATA"
"""Environment variable that names the folder of the real matrices."""

PIECE = 1 << 26
"""Most entries that are numbered at a time, which bounds the memory of what is only needed in between."""
N_RANGES = 16
"""Ranges of rows that the entries of `rmat27` are sorted by, each for itself."""

_PLACES, _VALUES, _VECTOR, _ORDER, _CHOICE, _SCRAMBLE = derive_keys(1)
_LEVEL_SHIFTS = [np.uint64(64 - LEVEL_BITS * (level + 1)) for level in range(LEVELS_PER_WORD)]
_LEVEL_MASK = np.uint64(2**LEVEL_BITS - 1)
_1 = np.uint64(1)


@dataclass(frozen=True)
class Recipe:
    """How a matrix is made."""

    name: str
    family: str
    """What is particular about its structure."""
    make: Callable[[Arrays, int], CsrBlock]
    """Called with the array module and about how many nonzeros to make; gives a pattern."""
    size: int
    """Nonzeros on a device, about."""
    by_name_only: bool = False
    """Whether it is left out unless asked for: it is a pattern of more than 2^31 nonzeros."""


# --- vectors ---------------------------------------------------------------------------------------------------------


def make_vector(xp: Arrays, n: int, dtype: str) -> Any:
    """x: n numbers in (-1, 1), the same for float32 and float64."""
    return _make_numbers(xp, n, dtype, _VECTOR)


def add_values(xp: Arrays, block: CsrBlock, dtype: str) -> CsrBlock:
    """The block with values in (-1, 1) and none 0, the same for float32 and float64."""
    return replace(block, data=_make_numbers(xp, block.nnz, dtype, _VALUES))


def _make_numbers(xp: Arrays, n: int, dtype: str, key: np.uint64) -> Any:
    """Odd multiples of 2^-24 in (-1, 1), uniform: exact in float32."""
    numbers = xp.empty(n, dtype)
    for begin, end in cut_range(n):
        odd = ((random_words(key, make_counters(xp, begin, end)) >> np.uint64(40)) << _1) + _1
        numbers[begin:end] = (odd.view(np.int64) - 2**24) * 2.0**-24
    return numbers


# --- entries to CSR --------------------------------------------------------------------------------------------------


def take_rows(xp: Arrays, block: CsrBlock, rows: Any) -> CsrBlock:
    """The block that has the rows `rows` (int64) of `block`, in that order."""
    starts = block.indptr[rows]
    indptr = accumulate(block.indptr[rows + 1] - starts)
    owner = find_rows(xp, indptr)
    source = xp.arange(len(owner)) + (starts - indptr[:-1])[owner]
    data = None if block.data is None else block.data[source]
    return CsrBlock(0, block.n_cols, indptr, block.indices[source], data)


def find_rows(xp: Arrays, indptr: Any) -> Any:
    """The row of each entry, int64."""
    return xp.searchsorted(indptr, xp.arange(int(indptr[-1])), side="right") - 1


def build_from_keys(xp: Arrays, keys: Any, n_rows: int, n_cols: int) -> CsrBlock:
    """CSR of entries row * n_cols + column (int64), in any order; what comes again is dropped."""
    keys.sort()
    is_first = xp.ones(len(keys), bool)
    is_first[1:] = keys[1:] != keys[:-1]
    keys = keys[is_first]
    indptr = xp.searchsorted(keys, xp.arange(n_rows + 1) * n_cols)
    return CsrBlock(0, n_cols, indptr.astype(np.int64), (keys % n_cols).astype(index_dtype(n_cols)), None)


def _from_slots(xp: Arrays, columns: Any, is_there: Any, n_cols: int) -> CsrBlock:
    """CSR of the columns (n_rows, k), ascending in each row, of which `is_there` says which there are."""
    return CsrBlock(0, n_cols, accumulate(is_there.sum(axis=1)), columns[is_there], None)


def find_keys(xp: Arrays, block: CsrBlock) -> Any:
    return find_rows(xp, block.indptr) * block.n_cols + block.indices


def _shuffle(xp: Arrays, block: CsrBlock) -> CsrBlock:
    """P A P' for a random permutation P."""
    n = block.n_rows
    place = xp.argsort(random_words(_ORDER, make_counters(xp, 0, n)))
    return build_from_keys(xp, place[find_rows(xp, block.indptr)] * n + place[block.indices], n, n)


def _expand(xp: Arrays, block: CsrBlock, size: int) -> CsrBlock:
    """A dense block of size x size in place of each entry."""
    columns = block.indices[:, None] * size + xp.arange(size, dtype=np.int32)
    wide = CsrBlock(0, block.n_cols * size, block.indptr * size, columns.ravel(), None)
    return take_rows(xp, wide, xp.repeat(xp.arange(block.n_rows), size))


# --- random numbers --------------------------------------------------------------------------------------------------


def cut_range(n: int) -> list[tuple[int, int]]:
    return [(begin, min(begin + PIECE, n)) for begin in range(0, n, PIECE)]


def make_counters(xp: Arrays, begin: int, end: int) -> Any:
    return xp.arange(begin, end, dtype=np.uint64)


def choose_numbers(xp: Arrays, key: np.uint64, count: int, n: int) -> Any:
    """`count` numbers of 0..n-1, int64, uniform."""
    return scale_words(random_words(key, make_counters(xp, 0, count)), n)


# --- grids and bands -------------------------------------------------------------------------------------------------


def make_stencil(xp: Arrays, extents: Sequence[int], offsets: np.ndarray) -> CsrBlock:
    """Cells of a box, the first extent fastest, and their neighbours at `offsets` (k, d), in order of their numbers."""
    n, strides = math.prod(extents), [math.prod(extents[:d]) for d in range(len(extents))]
    cells = xp.arange(n, dtype=np.int32)[:, None]
    is_inside = xp.ones((n, len(offsets)), bool)
    for extent, stride, steps in zip(extents, strides, offsets.T, strict=True):
        coordinate = cells // stride % extent + xp.asarray(steps.astype(np.int32))
        is_inside &= (coordinate >= 0) & (coordinate < extent)
    return _from_slots(xp, cells + xp.asarray((offsets @ strides).astype(np.int32)), is_inside, n)


def _make_band(xp: Arrays, size: int, below: int, above: int) -> CsrBlock:
    """All (i, j) with -below <= j - i <= above."""
    offsets = np.arange(-below, above + 1)[:, np.newaxis]
    return make_stencil(xp, (max(1, size // len(offsets)),), offsets)


def _make_grid(xp: Arrays, size: int, n_dims: int, points: int) -> CsrBlock:
    """The stencil of `points` on a square or cube."""
    side = max(1, round((size / points) ** (1 / n_dims)))
    return make_stencil(xp, (side,) * n_dims, find_offsets(n_dims, points))


def find_offsets(n_dims: int, points: int) -> np.ndarray:
    """{-1, 0, 1}^n_dims in order of the neighbours' numbers, or of these the ones along an axis: (points, n_dims)."""
    box = np.stack(np.meshgrid(*[[-1, 0, 1]] * n_dims, indexing="ij"), axis=-1).reshape(-1, n_dims)[:, ::-1]
    return box if points == 3**n_dims else box[np.abs(box).sum(axis=1) <= 1]


def _make_fem(xp: Arrays, size: int) -> CsrBlock:
    """Three unknowns in each node of a cubic mesh, each node with its 26 neighbours."""
    return _expand(xp, _make_grid(xp, size // 9, 3, 27), 3)


def _make_fem_shuffled(xp: Arrays, size: int) -> CsrBlock:
    """The nodes in random order; the three unknowns of each stay together."""
    return _expand(xp, _shuffle(xp, _make_grid(xp, size // 9, 3, 27)), 3)


def _make_fem_scattered(xp: Arrays, size: int) -> CsrBlock:
    """The unknowns in random order."""
    return _shuffle(xp, _make_fem(xp, size))


def _make_road(xp: Arrays, size: int) -> CsrBlock:
    """A grid of streets of which three in five are there, in both directions."""
    side = max(2, round((size / 2.4) ** 0.5))
    offsets = find_offsets(2, 5)
    grid = make_stencil(xp, (side, side), offsets[offsets.any(axis=1)])
    rows, columns = find_rows(xp, grid.indptr), grid.indices.astype(np.int64)
    is_upright = abs(columns - rows) > 1
    streets = (xp.minimum(rows, columns) * 2 + is_upright).astype(np.uint64)
    is_there = random_words(_CHOICE, streets) < np.uint64(3 * 2**64 // 5)
    return build_from_keys(xp, find_keys(xp, grid)[is_there], grid.n_rows, grid.n_cols)


# --- graphs and random rows ------------------------------------------------------------------------------------------


def _make_rmat(xp: Arrays, size: int, scramble: bool) -> CsrBlock:
    """R-MAT with Graph500's parameters and 16 arcs a vertex, before those that come again are dropped."""
    scale = max(1, round(math.log2(size / 16)))
    keys = [find_rmat_keys(xp, scale, *piece, scramble) for piece in cut_range(16 << scale)]
    return build_from_keys(xp, xp.concatenate(keys), 1 << scale, 1 << scale)


def _make_rmat_multigraph(xp: Arrays, size: int) -> CsrBlock:
    """Scrambled R-MAT with 17 arcs a vertex; those that come again stay."""
    scale = max(4, round(math.log2(size / 17)))
    pieces = [find_rmat_keys(xp, scale, *piece, True) for piece in cut_range(17 << scale)]
    for piece in pieces:
        piece.sort()
    return _merge_pieces(xp, pieces, 1 << scale)


def _merge_pieces(xp: Arrays, pieces: list[Any], n: int) -> CsrBlock:
    """CSR of n rows and columns from sorted pieces of the entries row * n + column, a range of rows at a time."""
    indices, indptr = xp.empty(sum(map(len, pieces)), index_dtype(n)), xp.zeros(n + 1, np.int64)
    starts = [n * k // N_RANGES for k in range(N_RANGES + 1)]
    cuts = [xp.searchsorted(piece, xp.asarray(starts) * n).tolist() for piece in pieces]
    done = 0
    for k in range(N_RANGES):
        keys = xp.concatenate([piece[cut[k] : cut[k + 1]] for piece, cut in zip(pieces, cuts, strict=True)])
        keys.sort()
        indices[done : done + len(keys)] = keys % n
        begin, end = starts[k] + 1, starts[k + 1] + 1
        indptr[begin:end] = xp.searchsorted(keys, xp.arange(begin, end) * n) + done
        done += len(keys)
    return CsrBlock(0, n, indptr, indices, None)


def find_rmat_keys(xp: Arrays, scale: int, begin: int, end: int, scramble: bool) -> Any:
    """row 2^scale + column of the arcs `begin` .. `end` - 1 of `mgspmv.ingest.generate.RmatSource`; int64."""
    t_a, t_ab, t_abc = quadrant_thresholds(0.57, 0.19, 0.19)
    n_words = -(-scale // LEVELS_PER_WORD)
    rows, columns = xp.zeros(end - begin, np.uint64), xp.zeros(end - begin, np.uint64)
    for level in range(scale):
        if level % LEVELS_PER_WORD == 0:
            words = random_words(
                _PLACES, make_counters(xp, begin, end) * np.uint64(n_words) + np.uint64(level // LEVELS_PER_WORD)
            )
        u = (words >> _LEVEL_SHIFTS[level % LEVELS_PER_WORD]) & _LEVEL_MASK
        is_lower = u >= t_ab
        rows = (rows << _1) | is_lower
        columns = (columns << _1) | ((u >= t_a) ^ is_lower ^ (u >= t_abc))
    if scramble:
        mask, half = np.uint64(2**scale - 1), np.uint64((scale + 1) // 2)
        rows, columns = (scramble_ids(ids, mask, half, derive_keys(1)[2:]) for ids in (rows, columns))
    return ((rows << np.uint64(scale)) | columns).view(np.int64)


def _make_uniform(xp: Arrays, size: int, n_rows: int, n_cols: int) -> CsrBlock:
    """Entries at uniformly random places."""
    return build_from_keys(
        xp,
        choose_numbers(xp, _PLACES, size, n_rows) * n_cols + choose_numbers(xp, _CHOICE, size, n_cols),
        n_rows,
        n_cols,
    )


def _make_square(xp: Arrays, size: int) -> CsrBlock:
    """16 a row."""
    return _make_uniform(xp, size, max(1, size // 16), max(1, size // 16))


def _make_in_l1(xp: Arrays, size: int) -> CsrBlock:
    """16 a row; x has 8192 elements."""
    return _make_uniform(xp, size, max(1, size // 16), 8192)


def _make_in_l2(xp: Arrays, size: int) -> CsrBlock:
    """16 a row; x has 2^21 elements of 2^26 nonzeros."""
    return _make_uniform(xp, size, max(1, size // 16), max(1, size // 32))


def _make_beyond(xp: Arrays, size: int) -> CsrBlock:
    """16 a row; x has as many elements as the matrix nonzeros."""
    return _make_uniform(xp, size, max(1, size // 16), size)


def _make_rows(xp: Arrays, lengths: Any, rows: Any, n_rows: int, n_cols: int) -> CsrBlock:
    """lengths[k] entries at random columns in row rows[k]."""
    owner = rows[find_rows(xp, accumulate(lengths))]
    return build_from_keys(xp, owner * n_cols + choose_numbers(xp, _PLACES, len(owner), n_cols), n_rows, n_cols)


def _make_zipf(xp: Arrays, size: int) -> CsrBlock:
    """The k-th longest row has about k^-0.7 of the longest; rows in random order, 16 a row."""
    n = max(1, size // 16)
    shares = np.arange(1, n + 1) ** -0.7  # on the host: a device rounds powers otherwise
    lengths = xp.asarray((size * (shares / shares.sum())).astype(np.int64))
    return _make_rows(xp, lengths, xp.argsort(random_words(_ORDER, make_counters(xp, 0, n))), n, n)


def _make_alternating(xp: Arrays, size: int) -> CsrBlock:
    """Rows of 1 and of 63 entries in turn."""
    n = max(2, size // 32)
    rows = xp.arange(n)
    return _make_rows(xp, 1 + rows % 2 * 62, rows, n, n)


def _make_mostly_empty(xp: Arrays, size: int) -> CsrBlock:
    """One row of ten has 16 entries, a random one; the others have none."""
    n_filled = max(1, size // 16)
    rows = xp.arange(n_filled) * 10 + choose_numbers(xp, _ORDER, n_filled, 10)
    return _make_rows(xp, xp.full(n_filled, 16), rows, 10 * n_filled, 10 * n_filled)


def _make_hypersparse(xp: Arrays, size: int) -> CsrBlock:
    """64 rows for each nonzero."""
    return _make_uniform(xp, size, 64 * size, 64 * size)


def _make_short_wide(xp: Arrays, size: int) -> CsrBlock:
    """Rows of about 2^16 entries and a quarter as many columns as nonzeros."""
    return _make_uniform(xp, size, max(4, size >> 16), max(1, size // 4))


def _make_tall_skinny(xp: Arrays, size: int) -> CsrBlock:
    """64 columns, about 4 a row."""
    return _make_uniform(xp, size, max(1, size // 4), 64)


# --- dense parts -----------------------------------------------------------------------------------------------------


def _make_dense(xp: Arrays, size: int) -> CsrBlock:
    """Every place."""
    n = max(1, math.isqrt(size))
    return CsrBlock(0, n, xp.arange(n + 1) * n, xp.tile(xp.arange(n, dtype=np.int32), n), None)


def _make_upper_triangle(xp: Arrays, size: int) -> CsrBlock:
    """All (i, j) with j >= i."""
    n = max(1, math.isqrt(2 * size))
    columns = xp.tile(xp.arange(n, dtype=np.int32), (n, 1))
    return _from_slots(xp, columns, columns >= xp.arange(n)[:, None], n)


def _make_dense_blocks(xp: Arrays, size: int) -> CsrBlock:
    """Dense blocks of 32 x 32 on the diagonal."""
    n = max(1, size // 1024) * 32
    columns = (xp.arange(n, dtype=np.int32) // 32 * 32)[:, None] + xp.arange(32, dtype=np.int32)
    return CsrBlock(0, n, xp.arange(n + 1) * 32, columns.ravel(), None)


def _make_dense_row(xp: Arrays, size: int) -> CsrBlock:
    """Five diagonals and a dense row in the middle."""
    band = _make_band(xp, size * 5 // 6, 2, 2)
    n = band.n_rows
    return build_from_keys(xp, xp.concatenate([find_keys(xp, band), n // 2 * n + xp.arange(n)]), n, n)


def _make_dense_column(xp: Arrays, size: int) -> CsrBlock:
    """Five diagonals and a dense column in the middle."""
    band = _make_band(xp, size * 5 // 6, 2, 2)
    n = band.n_rows
    return build_from_keys(xp, xp.concatenate([find_keys(xp, band), n // 2 + xp.arange(n) * n]), n, n)


def _make_arrow(xp: Arrays, size: int) -> CsrBlock:
    """The diagonal, the last row and the last column."""
    n = max(1, size // 3)
    every = xp.arange(n)
    return build_from_keys(xp, xp.concatenate([every * n + every, (n - 1) * n + every, every * n + n - 1]), n, n)


# --- the list --------------------------------------------------------------------------------------------------------

_M = 1 << 20

RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("diagonal", "diagonal", partial(_make_band, below=0, above=0), 64 * _M),
        Recipe("tridiagonal", "band", partial(_make_band, below=1, above=1), 96 * _M),
        Recipe("band5", "band", partial(_make_band, below=2, above=2), 80 * _M),
        Recipe("band9", "band", partial(_make_band, below=4, above=4), 72 * _M),
        Recipe("band40", "band", partial(_make_band, below=20, above=19), 160_000_000),
        Recipe("grid2d5", "stencil", partial(_make_grid, n_dims=2, points=5), 80 * _M),
        Recipe("grid2d9", "stencil", partial(_make_grid, n_dims=2, points=9), 81 * _M),
        Recipe("grid3d7", "stencil", partial(_make_grid, n_dims=3, points=7), 112 * _M),
        Recipe("grid3d27", "stencil", partial(_make_grid, n_dims=3, points=27), 216_000_000),
        Recipe("fem", "dense 3 x 3 blocks", _make_fem, 124_416_000),
        Recipe("fem-shuffled", "dense 3 x 3 blocks", _make_fem_shuffled, 124_416_000),
        Recipe("fem-scattered", "no order", _make_fem_scattered, 124_416_000),
        Recipe("dense-blocks", "dense 32 x 32 blocks", _make_dense_blocks, 128 * _M),
        Recipe("rmat22", "power law", partial(_make_rmat, scramble=False), 64 * _M),
        Recipe("rmat22-scrambled", "power law", partial(_make_rmat, scramble=True), 64 * _M),
        Recipe("rmat24", "power law", partial(_make_rmat, scramble=False), 256 * _M),
        Recipe("rmat24-scrambled", "power law", partial(_make_rmat, scramble=True), 256 * _M),
        Recipe("zipf", "power law", _make_zipf, 64 * _M),
        Recipe("uniform24", "uniform", _make_square, 256 * _M),
        Recipe("uniform-l1", "uniform, x in L1", _make_in_l1, 64 * _M),
        Recipe("uniform-l2", "uniform, x in L2", _make_in_l2, 64 * _M),
        Recipe("uniform-beyond", "uniform, x beyond L2", _make_beyond, 64 * _M),
        Recipe("road", "road-like", _make_road, 40 * _M),
        Recipe("road-shuffled", "road-like", lambda xp, size: _shuffle(xp, _make_road(xp, size)), 40 * _M),
        Recipe("dense-row", "one dense row", _make_dense_row, 24 * _M),
        Recipe("dense-column", "one dense column", _make_dense_column, 48 * _M),
        Recipe("arrow", "one dense row, one dense column", _make_arrow, 12 * _M),
        Recipe("mostly-empty", "nine rows in ten empty", _make_mostly_empty, 48 * _M),
        Recipe("hypersparse", "far fewer nonzeros than rows", _make_hypersparse, _M),
        Recipe("short-wide", "few long rows", _make_short_wide, 64 * _M),
        Recipe("tall-skinny", "few columns", _make_tall_skinny, 128 * _M),
        Recipe("alternating", "rows of 1 and of 63", _make_alternating, 64 * _M),
        Recipe("upper-triangle", "dense", _make_upper_triangle, 32 * _M),
        Recipe("dense", "dense", _make_dense, 36 * _M),
        Recipe("rmat27", "power law, beyond 2^31 nonzeros", _make_rmat_multigraph, 17 << 27, by_name_only=True),
    )
}
"""By name; sizes on a device are such that matrix and vectors are larger than its L2 cache of tens of megabytes."""

REAL = {
    "xenon1": "matrices/xenon1.mtx.gz",
    "M1-nedelec": "matrices/M1-nedelec.mtx.gz",
    "bcsstk13": "matrices/bcsstk13.mtx.gz",
    "mdual": "matrices/mdual.mtx.gz",
    "rajat01": "matrices/rajat01.mtx.gz",
    "bayer10": "matrices/bayer10.mtx.gz",
    "Franz6_id1959_aug": "matrices/Franz6_id1959_aug.mtx.gz",
    "NotreDame_www": "matrices/NotreDame_www.mtx.gz",
    "cnr-2000": "graphs/cnr-2000.txt.gz",
    "debian-bookworm-deps": "graphs/debian-bookworm-deps.txt.gz",
}
"""Real matrices and graphs by name: their files in the folder that `DATA_VARIABLE` names."""

REPEATED = {
    f"{Path(path).name.partition('.')[0]}-repeated": f"matrices/{path}"
    for path in (
        *(
            "rajat01.mtx.gz",
            "zenios.mtx.gz",
            "lp_e226.mtx",
            "Franz6_id1959_aug.mtx.gz",
            "bayer10.mtx.gz",
            "west0479.mtx",
        ),
        *("arc130.mtx", "bcspwr10.mtx.gz", "cryg2500.mtx.gz", "bcsstk13.mtx.gz", "M1-nedelec.mtx.gz", "xenon1.mtx.gz"),
    )
}
"""Structures of real matrices that are repeated along the diagonal: circuits, optimization, algebra, chemistry, power
networks, and finite elements."""
REPEATED_SIZE = 20_000_000
"""Nonzeros of each of them on a device, about."""


def repeat_block(xp: Arrays, block: CsrBlock, size: int) -> CsrBlock:
    """The structure repeated along the diagonal, to about `size` nonzeros; a pattern where the arrays of `xp` are."""
    n = max(1, round(size / block.nnz))
    shifts = xp.arange(n)[:, None]
    starts = (shifts * block.nnz + xp.asarray(block.indptr[:-1])).ravel()
    indptr = xp.concatenate([starts, xp.full(1, n * block.nnz)])
    indices = (shifts * block.n_cols + xp.asarray(block.indices)).ravel().astype(index_dtype(n * block.n_cols))
    return CsrBlock(0, n * block.n_cols, indptr, indices, None)


def find_real(name: str) -> Path | None:
    """The file of a real matrix; None where there is none."""
    folder = os.environ.get(DATA_VARIABLE)
    path = Path(folder) / (REAL | REPEATED)[name] if folder else None
    return path if path is not None and path.is_file() else None


def read_real(path: Path) -> CsrBlock:
    """Read a real matrix or graph; an arc is an entry in the row of its source."""
    info = mg.ingest(path, store := MemoryStore(), kind="matrix").info
    return open_store(store).read_block(0, info.shape[0], None if info.is_pattern else "float64")


def check_name(name: str) -> str:
    """
    Raises
    ------
    OptionError : no matrix has that name
    """
    if name not in RECIPES | REAL | REPEATED:
        raise OptionError(f"there is no matrix {name!r}; `python -m benchmarks.spmv --list` names them")
    return name
