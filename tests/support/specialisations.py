"""Every specialisation of a CUDA source that a run can ask for: what is compiled without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from mgspmv.kernels.band_slices import BAND
from mgspmv.kernels.formats import BLOCK_DIMS
from mgspmv.kernels.modules import (
    Specialization,
    find_many_words,
    product_types,
    rank_types,
    specialize,
    step_types,
    value_types,
)
from mgspmv.kernels.operands import WIDTHS
from mgspmv.model import Precision

LANES = (1, 2, 4, 8, 16, 32)
PRECISIONS: tuple[Precision, ...] = ("exact", "float64", "float32")


def list_specialisations() -> list[Specialization]:
    """Each of them once."""
    return list(dict.fromkeys(_generate_specialisations()))


def _generate_specialisations() -> Iterator[Specialization]:
    int32, int64, float32, float64 = (np.dtype(t) for t in ("int32", "int64", "float32", "float64"))
    values, csr = (float32, float64), ((int32, int32), (int32, int64), (int64, int64))
    for value, pattern, (index, offset) in product(values, (0, 1), csr):
        types = {"VALUE": value, "PATTERN": pattern, "INDEX": index, "OFFSET": offset}
        for source in ("csr_scalar.cu", "csr_warp.cu", "csr_cached.cu"):
            yield specialize(source, **types)
        for looks_back in (0, 1):
            yield specialize("csr_split.cu", **types, LOOK_BACK=looks_back)
        for row in (int32, int64):
            yield specialize("csr_compact.cu", **types, ROW=row, WARPS=8 if value == float32 else 4)
        for lanes, staged in product(LANES, LANES):
            if lanes // 8 <= staged <= lanes:
                yield specialize("csr_vector.cu", **types, LANES=lanes, STAGED_LANES=staged)
    for value, pattern, index, width in product(values, (0, 1), (int32, int64), WIDTHS[1:]):
        types = {"VALUE": value, "PATTERN": pattern, "INDEX": index}
        yield specialize("csr_many.cu", **types, WIDTH=width, WORDS=find_many_words(width, value))
    for value, pattern, index in product(values, (0, 1), (int32, int64)):
        yield specialize("ell.cu", VALUE=value, PATTERN=pattern, INDEX=index)
        for source, row in product(("coo.cu", "sell.cu"), (int32, int64)):
            yield specialize(source, VALUE=value, PATTERN=pattern, INDEX=index, ROW=row)
    for value, pattern in product(values, (0, 1)):
        yield specialize("column_sorted_tiles.cu", VALUE=value, PATTERN=pattern)
    for value, index, offset, block_dim in product(values, (int32, int64), (int32, int64), BLOCK_DIMS):
        yield specialize("bsr.cu", VALUE=value, PATTERN=0, INDEX=index, OFFSET=offset, BLOCK_DIM=block_dim)
    for value in values:
        yield specialize("dia.cu", VALUE=value, PATTERN=0, INDEX=int64)
        yield specialize("reduce.cu", VALUE=value, PATTERN=0)
        yield specialize("dense.cu", VALUE=value, PATTERN=0)
        yield specialize("gather.cu", VALUE=value, PATTERN=0, INDEX=int32)
    yield specialize("spin.cu")
    yield specialize("coo_rows.cu")
    yield specialize("entries.cu", ID=int32, VALUE=int64)
    for precision, value, (index, offset) in product(PRECISIONS, (None, *values), csr):
        for looks_back in (0, 1):
            types = {"INDEX": index, "OFFSET": offset, "LOOK_BACK": looks_back}
            yield specialize("csr_split.cu", **types, **product_types(precision, value))
        for rank, is_relative in product(values, (False, True)):
            types = step_types(precision, value, rank, is_relative=is_relative)
            yield specialize("pagerank.cu", OFFSET=offset, **types)
            types = step_types(precision, value, rank, is_relative=is_relative, many=True)
            yield specialize("pagerank_many.cu", OFFSET=offset, **types)
    for precision, value, index, width in product(PRECISIONS, (None, *values), (int32, int64), WIDTHS):
        types = product_types(precision, value, many=True)
        words = find_many_words(width, types["X"])
        yield specialize("csr_many.cu", **types, INDEX=index, WIDTH=width, WORDS=words)
    for value in (None, *values):
        for per_thread in (7, 15):
            yield specialize("column_sorted_blocks.cu", ENTRIES_PER_THREAD=per_thread, **value_types(value))
        yield specialize("band_slices.cu", BAND=BAND, **value_types(value))
        for ids in (int32, int64) if value is not None else ():
            yield specialize("entries.cu", ID=ids, VALUE=value)
        for offset in (int32, int64):
            yield specialize("sell_slices.cu", OFFSET=offset, **value_types(value))
    blocks = ({}, {"BINNED": 1}, {"BANDED": 1}, {"BANDED": 1, "BINNED": 1})
    sources = (*(("rank_blocks.cu", own) for own in blocks), ("rank_slices.cu", {}), ("rank_coo.cu", {}))
    steps = [(None, float32, int64), (None, float64, int64), (None, float32, float32)]
    with_values = [(float32, float32, float64), (float64, float64, float64), (float32, float32, float32)]
    for (source, more), is_relative in product(sources, (False, True)):
        for (value, rank, z), weight in product(steps, map(np.dtype, ("u1", "u4", "f8"))):
            yield specialize(source, **rank_types(value, z, rank, is_relative=is_relative, weight=weight), **more)
        for value, rank, z in with_values:
            yield specialize(source, **rank_types(value, z, rank, is_relative=is_relative), **more)
