"""Which CUDA sources are compiled for which types: the one list that running and checking without a GPU share."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from mgspmv.kernels.sources import find_cuda_sources
from mgspmv.model import Precision

LEAST_ARCH = 70
"""Compute capability, times 10, that every kernel runs on; none needs more, so nothing stands in below it."""
ARCHS = (70, 75, 80, 86, 89, 90, 100, 120)
"""Architectures that every specialisation is compiled for when the tests run."""
LANES = (1, 2, 4, 8, 16, 32)
BLOCK_DIMS = (2, 3, 4, 5)
MANY_WIDTHS = (2, 4, 8, 16, 32, 64)
"""Vectors that csr-many takes at once; 2 in steps of PageRank only."""
PRECISIONS: tuple[Precision, ...] = ("exact", "float64", "float32")

_NAMES = {
    "float32": "float",
    "float64": "double",
    "int32": "int",
    "int64": "int64",
    "uint32": "unsigned",
    "uint64": "uint64",
}
_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"$', re.MULTILINE)


@dataclass(frozen=True)
class Specialisation:
    """A CUDA source and the types that it is compiled for."""

    source: str
    """File name, as `csr_vector.cu`."""
    defines: tuple[tuple[str, str], ...]
    """Macros and their values, in order of names."""

    @property
    def options(self) -> tuple[str, ...]:
        """For the compiler. Without contraction, so that products have the bits of their CPU twins."""
        return ("-std=c++17", "--fmad=false", *(f"-D{name}={value}" for name, value in self.defines))


@functools.cache
def specialise(source: str, **types: Any) -> Specialisation:
    """Name a specialisation.

    Parameters
    ----------
    types : by macro; dtypes become CUDA's names, other values are taken as they are
    """
    named = {macro: _NAMES[value.name] if isinstance(value, np.dtype) else str(value) for macro, value in types.items()}
    return Specialisation(source, tuple(sorted(named.items())))


def read_source(name: str) -> str:
    """A CUDA source with its includes in it: what is compiled, and what compiled modules are cached by."""
    sources = find_cuda_sources()
    included: set[str] = set()

    def include(match: re.Match[str]) -> str:
        if match[1] in included:
            return ""
        included.add(match[1])
        return _INCLUDE.sub(include, sources[match[1]].read_text().replace("#pragma once\n", ""))

    return _INCLUDE.sub(include, sources[name].read_text())


def list_specialisations() -> list[Specialisation]:
    """Every specialisation that a run can ask for, once."""
    return list(dict.fromkeys(_generate_specialisations()))


def _generate_specialisations() -> Iterator[Specialisation]:
    int32, int64, float32, float64 = (np.dtype(t) for t in ("int32", "int64", "float32", "float64"))
    values, csr = (float32, float64), ((int32, int32), (int32, int64), (int64, int64))
    for value, pattern, (index, offset) in product(values, (0, 1), csr):
        types = {"VALUE": value, "PATTERN": pattern, "INDEX": index, "OFFSET": offset}
        for source in ("csr_scalar.cu", "csr_warp.cu", "csr_cached.cu"):
            yield specialise(source, **types)
        for looks_back in (0, 1):
            yield specialise("csr_split.cu", **types, LOOK_BACK=looks_back)
        for lanes, staged in product(LANES, LANES):
            if lanes // 8 <= staged <= lanes:
                yield specialise("csr_vector.cu", **types, LANES=lanes, STAGED_LANES=staged)
    for value, pattern, index, width in product(values, (0, 1), (int32, int64), MANY_WIDTHS[1:]):
        types = {"VALUE": value, "PATTERN": pattern, "INDEX": index}
        yield specialise("csr_many.cu", **types, WIDTH=width, WORDS=find_many_words(width, value))
    for value, pattern, index in product(values, (0, 1), (int32, int64)):
        yield specialise("ell.cu", VALUE=value, PATTERN=pattern, INDEX=index)
        for source, row in product(("coo.cu", "sell.cu"), (int32, int64)):
            yield specialise(source, VALUE=value, PATTERN=pattern, INDEX=index, ROW=row)
    for value, pattern in product(values, (0, 1)):
        yield specialise("row_tiles.cu", VALUE=value, PATTERN=pattern)
    for value, index, offset, block_dim in product(values, (int32, int64), (int32, int64), BLOCK_DIMS):
        yield specialise("bsr.cu", VALUE=value, PATTERN=0, INDEX=index, OFFSET=offset, BLOCK_DIM=block_dim)
    for value in values:
        yield specialise("dia.cu", VALUE=value, PATTERN=0, INDEX=int64)
        yield specialise("reduce.cu", VALUE=value, PATTERN=0)
        yield specialise("dense.cu", VALUE=value, PATTERN=0)
        yield specialise("gather.cu", VALUE=value, PATTERN=0, INDEX=int32)
    yield specialise("spin.cu")
    yield specialise("generate.cu")
    for precision, value, (index, offset) in product(PRECISIONS, (None, *values), csr):
        for looks_back in (0, 1):
            types = {"INDEX": index, "OFFSET": offset, "LOOK_BACK": looks_back}
            yield specialise("csr_split.cu", **types, **product_types(precision, value))
        for rank, is_relative in product(values, (False, True)):
            types = step_types(precision, value, rank, is_relative=is_relative)
            yield specialise("pagerank.cu", OFFSET=offset, **types)
            types = many_step_types(precision, value, rank, is_relative=is_relative)
            yield specialise("pagerank_many.cu", OFFSET=offset, **types)
    for precision, value, index, width in product(PRECISIONS, (None, *values), (int32, int64), MANY_WIDTHS):
        types = many_types(precision, value)
        words = find_many_words(width, types["X"])
        yield specialise("csr_many.cu", **types, INDEX=index, WIDTH=width, WORDS=words)
    for value in (None, *values):
        for per_thread in (7, 15):
            yield specialise("row_blocks.cu", ENTRIES_PER_THREAD=per_thread, **value_types(value))
        for offset in (int32, int64):
            yield specialise("row_slices.cu", OFFSET=offset, **value_types(value))
    for source, is_relative, is_counted in product(("rank_blocks.cu", "rank_slices.cu"), (False, True), (True, False)):
        options = {"is_relative": is_relative, "is_counted": is_counted}
        for rank, value in ((float32, None), (float32, float32), (float64, None), (float64, float64)):
            yield specialise(source, **rank_types(value, int64 if value is None else float64, rank, **options))
        for value in (None, float32):
            yield specialise(source, **rank_types(value, float32, float32, **options))


def find_many_words(width: int, dtype: np.dtype[Any]) -> int:
    """Columns of X, of this dtype, of a thread of csr-many, of a panel of so many: 16 bytes, but 4 threads a row."""
    return max(1, min(width // 4, 16 // dtype.itemsize))


def value_types(value: np.dtype[Any] | None) -> dict[str, Any]:
    """Whether a matrix has values, and of which type."""
    return {"VALUE": value or np.dtype(np.float32), "PATTERN": int(value is None)}


def rank_types(
    value: np.dtype[Any] | None,
    z: np.dtype[Any],
    rank: np.dtype[Any],
    *,
    is_relative: bool = False,
    is_counted: bool = True,
) -> dict[str, Any]:
    """Types of a PageRank step on row blocks.

    Parameters
    ----------
    is_relative : changes are taken of the new ranks
    is_counted : the out-weights of a pattern are counts
    """
    weight = np.dtype(np.uint32 if value is None and is_counted else np.float64)
    return value_types(value) | {"Z": z, "RANK": rank, "WEIGHT": weight} | _name_measure(is_relative)


def _name_measure(is_relative: bool) -> dict[str, Any]:
    """The macro of kernels/ranks.cuh that says what the largest is taken of, where it is not the change."""
    return {"RELATIVE": 1} if is_relative else {}


def product_types(precision: Precision, value: np.dtype[Any] | None) -> dict[str, Any]:
    """Types of the product A z of a PageRank step.

    Parameters
    ----------
    value : dtype of the block's values; None for a pattern
    """
    types = {"VALUE": value or np.dtype(np.float64), "PATTERN": int(value is None)}
    if precision != "exact":
        return types | {"X": np.dtype(precision), "SUM": np.dtype(np.float64)}
    x = np.dtype(np.int64 if value is None else np.float64)
    return types | {"X": x, "SUM": np.dtype(np.int64), "EXACT": int(value is not None)}


def many_types(precision: Precision, value: np.dtype[Any] | None) -> dict[str, Any]:
    """Types of the product A Z of a PageRank step of many vectors, as of `product_types`.

    In float32 it is stored as float32, in the place where the next Z goes.
    """
    types = product_types(precision, value)
    return types | ({"Y": types["X"]} if precision == "float32" else {})


def step_types(
    precision: Precision, value: np.dtype[Any] | None, rank: np.dtype[Any], *, is_relative: bool = False
) -> dict[str, Any]:
    """Types of the rest of a PageRank step: of the ranks, of z' and of the product.

    Parameters
    ----------
    rank : dtype of the ranks; of float32 ones the residual is made in float64
    is_relative : as for `rank_types`
    """
    types = product_types(precision, value)
    return {"RANK": rank, "Z": types["X"], "PRODUCT": types["SUM"]} | _name_measure(is_relative)


def many_step_types(
    precision: Precision, value: np.dtype[Any] | None, rank: np.dtype[Any], *, is_relative: bool = False
) -> dict[str, Any]:
    """Types as of `step_types`, of many vectors."""
    types = step_types(precision, value, rank, is_relative=is_relative)
    return types | {"PRODUCT": many_types(precision, value).get("Y", types["PRODUCT"])}
