"""What a text is, by its first lines."""

from __future__ import annotations

import os
import re
from itertools import chain
from typing import Literal

from mgspmv.errors import SourceError
from mgspmv.ingest.columns import find_delimiter, split_line
from mgspmv.ingest.matrix_market import is_banner
from mgspmv.ingest.streams import Line, TextStream

TextFormat = Literal["matrix-market", "edge-list"]

_HEAD_BYTES = 2**16
_CONTROL_CHARACTER = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_READABLE = (
    "read are Matrix Market files (first line '%%MatrixMarket matrix ...') and edge lists ('source target' or "
    "'source target weight' a line), plain or compressed with gzip, bzip2, xz or zstd"
)


def detect_format(path: str | os.PathLike[str], delimiter: str | None = None) -> TextFormat:
    """Tell a Matrix Market file, by its banner, from an edge list; only the beginning of the file is read.

    Parameters
    ----------
    path : local path or URL; may be compressed
    delimiter : between the columns of an edge list; default: what its first line has

    Raises
    ------
    SourceError : neither: not a text, or its first line is a broken banner or has one column; says what can be read
    SourceNotFoundError : there is no file
    """
    with TextStream(path, _HEAD_BYTES) as text:
        chunks = text.chunks()
        head = next(chunks)
        if _CONTROL_CHARACTER.search(head.data):
            raise SourceError(f"this is not a text; {_READABLE}", source=text.name)
        lines = chain(head.lines(), (line for chunk in chunks for line in chunk.lines()))
        first = next(lines, None)
        if first is None:
            return "edge-list"
        if is_banner(first):
            return "matrix-market"
        if first.data.startswith(b"%%"):
            raise first.refuse(f"this looks like a Matrix Market file and is none; {_READABLE}")
        _check_edge(
            next((line for line in chain([first], lines) if not line.is_blank_or_comment(b"#%")), None), delimiter
        )
        return "edge-list"


def _check_edge(line: Line | None, delimiter: str | None) -> None:
    if line is not None and len(split_line(line, delimiter or find_delimiter(line))) < 2:
        raise line.refuse(f"a line of one column is no edge; {_READABLE}")
