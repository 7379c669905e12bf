"""Matrix Market files, plain or compressed: lines are written by all threads, and follow each other in the file.

Each piece of the text is compressed for itself: gzip has several members then and zstd several frames, which the
formats permit and programs read.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numba import njit

from mgspmv.export.entries import SourceEntries
from mgspmv.model import CooBatch

GZIP_LEVEL = 1
"""Of nine; the sixth took seven times as long for a tenth less."""
ROUNDED_TWICE = np.float32(float.fromhex("0x1.5c87fap-84"))
"""The only float32, but for its negative, that is another one after its fewest digits, 7.038531e-26, were read as a
float64 and that was rounded. All were tried."""

_SPACE, _LINE_FEED = map(ord, " \n")
_GROUP = 10_000
_DIGITS = np.frombuffer("".join(f"{k:04d}" for k in range(_GROUP)).encode(), np.uint8).reshape(_GROUP, 4)


def write_matrix_market(
    entries: SourceEntries, file: IO[bytes], name: str, threads: int, report: Callable[[str, int, int | None], None]
) -> None:
    """Write a matrix in the layout coordinate and the symmetry general, entries in the order of the store.

    Floats are written in the fewest digits that give the same float again. The field is real, integer or pattern.

    Parameters
    ----------
    name : of the file; one that ends in .gz or .zst is compressed
    """
    info = entries.stored.info
    field = "pattern" if info.dtype is None else "integer" if np.dtype(info.dtype).kind == "i" else "real"
    sizes = f"{info.shape[0]} {info.shape[1]} {info.nnz}"
    compress = _find_compression(name)
    file.write(compress(f"%%MatrixMarket matrix coordinate {field} general\n{sizes}\n".encode()))
    for piece in entries.map(lambda batch: compress(format_lines(batch)), threads, report):
        file.write(piece)


def format_lines(batch: CooBatch) -> Any:
    """The lines of entries, whose rows and columns are counted from 1 there: a buffer of bytes."""
    ends, text = np.zeros(0, np.int64), np.zeros(0, np.uint8)
    if batch.values is not None:
        ends, text = _format_values(batch.values)
    width = sum(len(str(int(side.max()) + 1)) + 1 for side in (batch.rows, batch.cols))
    lines = np.empty((width + 1) * len(batch.rows) + len(text), np.uint8)
    return lines[: _write_lines(batch.rows, batch.cols, ends, text, _DIGITS, lines)].data


def _format_values(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where the text of each value ends, and the texts."""
    if values.dtype == np.float32 and (np.abs(values) == ROUNDED_TWICE).any():
        values = values.astype(np.float64)
    formatted = pa.compute.cast(pa.array(values), pa.large_string())
    _, offsets, text = formatted.buffers()
    return np.frombuffer(offsets, np.int64)[1:], np.frombuffer(text, np.uint8)


def _find_compression(name: str) -> Callable[[Any], Any]:
    if name.endswith(".gz"):
        return lambda data: gzip.compress(data, GZIP_LEVEL, mtime=0)
    if name.endswith(".zst"):
        codec = pa.Codec("zstd", 1)
        return lambda data: codec.compress(data)
    return lambda data: data


@njit(nogil=True, cache=True)
def _write_lines(rows, cols, ends, text, digits, lines):
    """Fill lines, and give how long they are; without `ends` they have no values."""
    at, first = 0, 0
    for k in range(len(rows)):
        at = _write_number(np.int64(rows[k]) + 1, digits, lines, at)
        lines[at] = _SPACE
        at = _write_number(np.int64(cols[k]) + 1, digits, lines, at + 1)
        if len(ends):
            lines[at] = _SPACE
            at += 1
            for place in range(first, ends[k]):
                lines[at] = text[place]
                at += 1
            first = ends[k]
        lines[at] = _LINE_FEED
        at += 1
    return at


@njit(nogil=True, cache=True)
def _write_number(number, digits, lines, at):
    """Write a number that is not negative, four digits at a time from the last, and give where it ends."""
    end = at + _count_digits(number)
    place = end
    while number >= _GROUP:
        rest = number // _GROUP
        for k in range(4):
            lines[place - 4 + k] = digits[number - _GROUP * rest, k]
        place, number = place - 4, rest
    for k in range(place - at):
        lines[at + k] = digits[number, 4 - (place - at) + k]
    return end


@njit(nogil=True, cache=True)
def _count_digits(number):
    n = 1
    while number >= _GROUP:
        number //= _GROUP
        n += 4
    return n + (number >= 10) + (number >= 100) + (number >= 1000)
