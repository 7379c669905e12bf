"""Entries of a stored matrix in the numbering of its source, and ids of its vertices, in batches; lists of ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute

from mgspmv.errors import OptionError
from mgspmv.ingest.headers import has_list_header
from mgspmv.ingest.prefetch import prefetch_map
from mgspmv.ingest.stored import cut_entries, list_entries, read_entries
from mgspmv.ingest.tokens import SAMPLE_LINES, Undecided
from mgspmv.model import CooBatch, Progress
from mgspmv.store.chunks import CHUNK_ELEMENTS
from mgspmv.store.read import StoredMatrix

T = TypeVar("T")

_UNFIT = r"^$|[\x00-\x08\n-\x1f]"
"""Pattern of ids that cannot be written on a line."""
_QUOTED = r'^[#%\s]|\s$|[\t|;,"]'
"""Pattern of ids to quote; otherwise they would be read as comments, as several columns or without their blanks."""


def map_entries(stored: StoredMatrix, work: Callable[[CooBatch], T], threads: int, report: Progress) -> Iterator[T]:
    """Yield the results of a function for all entries as in the source, range by range in the order of the store.

    Parameters
    ----------
    threads : number of threads that read and apply the function
    report : called with ("export", entries done, total entries)
    """
    order, total = stored.read_order(), stored.info.nnz
    report("export", 0, total)

    def make(entries: tuple[int, np.ndarray]) -> tuple[int, T]:
        return int(entries[1][-1]), work(list_entries(read_entries(stored, entries), stored.info, order))

    with ThreadPoolExecutor(threads, "mgspmv-export") as pool:
        for done, made in prefetch_map(pool, make, cut_entries(stored, threads), threads):
            yield made
            report("export", done, total)


def find_repeated(stored: StoredMatrix) -> tuple[int, int] | None:
    """Return row and column, in the source, of the first duplicate entry; None if there is none."""
    if stored.info.duplicates != "keep":
        return None
    order, last = stored.read_order(), (np.zeros(0, np.int64), np.zeros(0, np.int64))
    for entries in cut_entries(stored, 1):
        batch = list_entries(read_entries(stored, entries), stored.info, order)
        rows, cols = np.concatenate([last[0], batch.rows]), np.concatenate([last[1], batch.cols])
        repeated = np.flatnonzero((rows[1:] == rows[:-1]) & (cols[1:] == cols[:-1]))
        if len(repeated):
            return int(rows[repeated[0]]), int(cols[repeated[0]])
        last = rows[-1:], cols[-1:]
    return None


def read_ids(stored: StoredMatrix, n: int) -> Iterator[Any]:
    """Yield the n ids in the order of the source, as Arrow arrays of integers or strings; numbers if it has no ids."""
    has_ids = stored.info.vertex_ids is not None
    for start in range(0, max(n, 1), CHUNK_ELEMENTS):
        stop = min(start + CHUNK_ELEMENTS, n)
        ids = stored.read_array("vertex_ids", start, stop) if has_ids else np.arange(start, stop)
        yield pa.array(ids, pa.large_string() if ids.dtype.kind in "OUT" else pa.int64())


def read_lines(stored: StoredMatrix, remedy: str) -> Iterator[Any]:
    """Yield the ids as strings of Arrow, in quotation marks where a line of CSV needs them.

    Raises
    ------
    OptionError : an id that no line holds: empty, or with a line break or another control character
    """
    for ids in read_ids(stored, stored.info.shape[0]):
        names = pa.compute.cast(ids, pa.large_string())
        unfit = pa.compute.index(pa.compute.match_substring_regex(names, _UNFIT), True).as_py()
        if unfit >= 0:
            raise OptionError(
                f"{stored.info.url}: the id {names[unfit].as_py()!r} cannot be written on a line, as it is empty or "
                f"has control characters; {remedy}"
            )
        mark = pa.scalar('"', pa.large_string())
        quoted = pa.compute.replace_substring(names, '"', '""')
        quoted = pa.compute.binary_join_element_wise(mark, quoted, mark, pa.scalar("", pa.large_string()))
        yield pa.compute.if_else(pa.compute.match_substring_regex(names, _QUOTED), quoted, names)


def write_vertices(stored: StoredMatrix, file: IO[bytes]) -> None:
    """Write the ids, one per line, as `mgspmv ingest --vertices` reads them: in quotation marks if necessary.

    A header comes first if the first id alone would be read as the header of the others.

    Raises
    ------
    OptionError : as in `read_lines`
    """
    for number, names in enumerate(read_lines(stored, "leave out vertices=")):
        lines = names.to_pylist()
        if number == 0 and stored.info.vertex_ids == "string" and _looks_like_header(lines):
            header = next(name for name in ("id", "vertex", "node", "name") if name not in lines[:SAMPLE_LINES])
            file.write(f"{header}\n".encode())
        if lines:
            file.write("\n".join(lines).encode() + b"\n")


def _looks_like_header(ids: list[str]) -> bool:
    try:
        return bool(ids) and has_list_header(ids[:1], [[name] for name in ids[1:SAMPLE_LINES]], are_names=True)
    except Undecided:
        return True
