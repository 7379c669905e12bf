"""The ids of vertices, some at a time; and lists of them, one a line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from mgspmv.errors import OptionError
from mgspmv.store.chunks import CHUNK_ELEMENTS
from mgspmv.store.read import StoredMatrix

_UNFIT = r'^$|^[#%]|[\s\v,"]'
"""What no id in a list may be like: its line would be taken for a comment, or its end for another column."""


def read_ids(stored: StoredMatrix, n: int) -> Iterator[Any]:
    """The n ids in the order of the source, as Arrow arrays of integers or strings; numbers where there are none."""
    has_ids = stored.info.vertex_ids is not None
    for start in range(0, max(n, 1), CHUNK_ELEMENTS):
        stop = min(start + CHUNK_ELEMENTS, n)
        ids = stored.read_array("vertex_ids", start, stop) if has_ids else np.arange(start, stop)
        yield pa.array(ids, pa.large_string() if ids.dtype.kind in "OUT" else pa.int64())


def write_vertices(stored: StoredMatrix, file: IO[bytes]) -> None:
    """Write the ids, one a line, as `mgspmv ingest --vertices` reads them.

    Raises
    ------
    OptionError : an id that is no line of such a list
    """
    for ids in read_ids(stored, stored.info.shape[0]):
        names = pa.compute.cast(ids, pa.large_string())
        unfit = pa.compute.index(pa.compute.match_substring_regex(names, _UNFIT), True).as_py()
        if unfit >= 0:
            raise OptionError(
                f"{stored.info.url}: the id {names[unfit].as_py()!r} cannot stand in a list of vertices, where blanks, "
                "commas and quotes end it and # and % begin comments; leave out vertices="
            )
        if len(names):
            file.write(b"\n".join(name.encode() for name in names.to_pylist()) + b"\n")
