"""Format of files by their names and first bytes."""

from __future__ import annotations

import re

from mgspmv.errors import SourceError
from mgspmv.ingest.files import name_files
from mgspmv.ingest.rules import Foreign, Format, find_format_by_bytes, find_format_by_name, strip_compression
from mgspmv.ingest.streams import Pipe, read_head

READABLE = (
    "ingest reads Matrix Market files (first line '%%MatrixMarket matrix ...'), edge lists and CSV ('source target' or "
    "'source target weight' per line), each plain or compressed with gzip, bzip2, xz or zstd; Parquet; SciPy's .npz; "
    "and Zarr groups"
)
_CONTROL_CHARACTER = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def detect_format(files: list[str]) -> Format:
    """Return the format of files that are read together: by their names, or else by the first bytes of the first.

    Raises
    ------
    SourceError : the names are of different formats; the format is not supported, with a remedy; not a text
    SourceNotFoundError : there is no file
    """
    formats = [find_format_by_name(name) for name in files]
    for name, format in zip(files, formats, strict=True):
        if format != formats[0]:
            raise SourceError(
                f"{files[0]} and {name} are of different formats by their names; name files of one format, or pass "
                "format=",
                source=name_files(files),
            )
    return _detect(files[0], formats[0])


def _detect(name: str, by_name: Format | Foreign | None) -> Format:
    if isinstance(by_name, str) and not isinstance(name, Pipe):
        return by_name
    head, is_compressed = read_head(name)
    found = by_name or find_format_by_bytes(head)
    if isinstance(found, Foreign):
        raise SourceError(found.explain(), source=name)
    if found in ("parquet", "npz") and (is_compressed or isinstance(name, Pipe)):
        what = {"parquet": "Parquet", "npz": ".npz"}[found]
        how = "in a compressed file; decompress it" if is_compressed else "in a pipe; save it as a file"
        raise SourceError(f"this is {what}, which cannot be read {how}", source=name)
    if found is not None:
        return found
    is_matrix = strip_compression(name).endswith(".mtx")
    if not head:
        return "matrix-market" if is_matrix else "edge-list"  # its reader reports an empty or damaged file
    if head.startswith(_UTF16):
        raise SourceError("this is a text in UTF-16; convert it to UTF-8", source=name)
    if _CONTROL_CHARACTER.search(head):
        raise SourceError(f"this is not a text; {READABLE}", source=name)
    if is_matrix:
        raise SourceError(
            "this is named like a Matrix Market file and has no banner; add '%%MatrixMarket matrix coordinate real "
            'general\' or what suits as its first line, or pass format="edge-list"',
            source=name,
        )
    first = head.split(b"\n", 1)[0].strip()
    if first.startswith(b"%%"):
        raise SourceError(
            f"this looks like a Matrix Market file and is none; {READABLE}",
            source=name,
            line_number=1,
            text=first.decode("utf-8", "replace"),
        )
    return "edge-list"
