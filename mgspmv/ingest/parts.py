"""Parts of files that several processes read: ranges of a text's bytes, row groups of tables, whole files.

Parts are in the order of the source's entries and of about the same size. A text is cut at line ends; a text that is
compressed, or whose server reports no size or supports no range requests, is read by one process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from mgspmv.errors import SourceError, SourceNotFoundError
from mgspmv.ingest.files import find_size, find_state, open_anywhere
from mgspmv.ingest.streams import CHUNK_BYTES, LINE_LIMIT_BYTES, Segment, TextStream, find_compression

LEAST_BYTES = 2**24
"""Least bytes of a text per part, below which a separate process does not pay."""
MANY_FILES = 4
"""Number of files per process from which files are assigned whole, without opening and cutting them."""


def make_absolute(name: str) -> str:
    """Return a path or URL that means the same in other processes."""
    return name if "://" in name else os.path.abspath(name)


def cut_texts(names: Sequence[str], n_parts: int) -> list[list[Segment]]:
    """Cut consecutive texts into parts of about the same size.

    Parameters
    ----------
    names : paths or URLs
    n_parts : greatest number of parts, at least 1

    Raises
    ------
    SourceNotFoundError, SourceError, MissingDependencyError : see `TextStream`
    """
    if len(names) >= MANY_FILES * n_parts:
        return [[Segment(name) for name in own] for own in cut_evenly(names, [1] * len(names), n_parts)]
    extents = [_measure(name) for name in names]
    ends = np.cumsum([0, *(extent.size for extent in extents)])
    cuts = {(0, 0), (len(names), 0)}
    for k in range(1, n_parts):
        place = int(ends[-1]) * k // n_parts
        file = int(np.searchsorted(ends, place, side="right")) - 1
        cuts.add(_find_cut(names[file], file, place - int(ends[file]), extents[file]))
    return [_list_segments(names, extents, *pair) for pair in pairwise(sorted(cuts))]


def cut_evenly(items: Sequence[Any], sizes: Sequence[int], n_parts: int) -> list[list[Any]]:
    """Cut consecutive items into at most `n_parts` parts of about the same size, none of which is empty."""
    ends = np.cumsum(sizes)
    owners = (ends - np.asarray(sizes) / 2) * n_parts // max(1, ends[-1])
    return [[items[k] for k in np.flatnonzero(owners == owner).tolist()] for owner in sorted(set(owners.tolist()))]


@contextmanager
def placing_errors(segments: Sequence[Segment]) -> Iterator[None]:
    """Replace line numbers of errors, which count from the beginning of a segment, by those in its file."""
    try:
        yield
    except SourceError as error:
        begun = next((own for own in segments if own.name == error.source and own.begin), None)
        if begun is None or error.line_number is None:
            raise
        with TextStream(Segment(begun.name, 0, begun.begin), CHUNK_BYTES) as text:
            n_before = sum(chunk.data.count(b"\n") for chunk in text.chunks())
        raise error.move(n_before) from error.__cause__


class _Extent(NamedTuple):
    """Facts about a file that is to be cut."""

    size: int = 1
    """Bytes; 1 if unknown."""
    is_plain: bool = False
    """Whether it can be cut at line ends."""
    state: tuple[int, int] | None = None
    """State of a local file, as in `Segment`."""


def _measure(name: str) -> _Extent:
    try:
        with open_anywhere(name) as file:
            size = find_size(file)
            is_plain = size is not None and file.seekable() and find_compression(file.read(16)) is None
            if size is not None and is_plain and size >= 2 * LEAST_BYTES:
                file.seek(size - 1)
                file.read(1)  # a server may support ranges only from the beginning
            return _Extent(size or 1, is_plain, find_state(file))
    except SourceNotFoundError:
        raise
    except SourceError:  # no range support; the reader reports other errors
        return _Extent()


def _find_cut(name: str, number: int, offset: int, extent: _Extent) -> tuple[int, int]:
    """Find a cut near a byte of a file: the number of the file, and the byte at which a line begins."""
    nearest = (number, 0) if offset < extent.size / 2 else (number + 1, 0)
    if not extent.is_plain or not LEAST_BYTES <= offset <= extent.size - LEAST_BYTES:
        return nearest
    with open_anywhere(name) as file:
        file.seek(offset)
        text = b""
        while len(text) <= LINE_LIMIT_BYTES and (piece := file.read(2**16)):
            text += piece
            if (end := text.find(b"\n")) >= 0:
                return number, offset + end + 1
    end = text.find(b"\r")  # the line end of files without line feeds
    return (number, offset + end + 1) if 0 <= end < len(text) - 1 else nearest


def _list_segments(
    names: Sequence[str], extents: Sequence[_Extent], begin: tuple[int, int], end: tuple[int, int]
) -> list[Segment]:
    segments = []
    for k in range(begin[0], min(end[0] + 1, len(names))):
        last = end[1] if k == end[0] else None
        if last != 0:
            segments.append(Segment(names[k], begin[1] if k == begin[0] else 0, last, extents[k].state))
    return segments
