"""Format of files by their names and first bytes."""

from __future__ import annotations

import io
import os
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mgspmv.errors import SourceError
from mgspmv.ingest.files import HEAD_BYTES, Pipe, name_files, open_anywhere
from mgspmv.ingest.streams import MAGIC_BYTES, CountedFile, decompress, find_compression

GROUP_FORMATS = ("anndata", "binsparse", "csr")
"""Formats of sparse matrices in Zarr groups."""
Format = Literal["matrix-market", "edge-list", "parquet", "npz"]

_SUFFIXES: dict[str, Format] = {".npz": "npz", ".parquet": "parquet", ".pq": "parquet", ".parq": "parquet"}
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zstd", ".lzma", ".bgz")

_VIA_NETWORKX = "read it with NetworkX ({}) and pass the graph"
_VIA_SCIPY = "read it with scipy.io.{} and pass the matrix"
_UNPACK = "unpack it and name the files in it"


@dataclass(frozen=True)
class ForeignFormat:
    """Format of files that are not read."""

    what: str
    advice: str
    suffixes: str = ""
    """Suffixes of its files, separated by blanks."""
    head: bytes | None = None
    """Regular expression for the first bytes of its files."""


_METIS_ADVICE = "convert it to an edge list, or read it by its library and pass arrays"
_PAJEK = rb"(?:\s*%[^\n]*\n)*\s*\*(?:network|vertices|arcs|edges)\b"
_GRAPHML = rb"\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<graphml\b"
_GML = rb"(?:\s*(?:creator|version|comment)\b[^\n]*\n)*\s*graph\s*\["
_DIMACS = rb"(?:c\b[^\n]*\n)*p\s+(?:sp|edges?|col|max|min|asn|aux)\b"
_FOREIGN = (
    ForeignFormat("a zip archive", _UNPACK, ".zip", rb"PK\x03\x04|PK\x05\x06"),
    ForeignFormat("a tar archive", _UNPACK, ".tar .tgz .tbz2", rb".{257}ustar"),
    ForeignFormat("an archive", _UNPACK, ".7z .rar", rb"7z\xbc\xaf\x27\x1c|Rar!\x1a\x07"),
    ForeignFormat("a METIS graph", _METIS_ADVICE, ".graph .metis"),
    ForeignFormat("a Chaco graph", "convert it to an edge list", ".chaco"),
    ForeignFormat("GraphML", _VIA_NETWORKX.format("networkx.read_graphml"), ".graphml", _GRAPHML),
    ForeignFormat("GEXF", _VIA_NETWORKX.format("networkx.read_gexf"), ".gexf", _GRAPHML.replace(b"graphml", b"gexf")),
    ForeignFormat("GML", _VIA_NETWORKX.format("networkx.read_gml"), ".gml", _GML),
    ForeignFormat("a Pajek network", _VIA_NETWORKX.format("networkx.read_pajek"), ".net .paj", _PAJEK),
    ForeignFormat("an adjacency list", _VIA_NETWORKX.format("networkx.read_adjlist"), ".adjlist"),
    ForeignFormat(
        "DOT of Graphviz", "convert it to an edge list", ".dot .gv", rb"\s*(?:strict\s+)?(?:di)?graph\b[^\n{]*\{"
    ),
    ForeignFormat(
        "a DIMACS graph", "keep its lines of edges (`a` or `e`) without the first column", ".gr .col .dimacs", _DIMACS
    ),
    ForeignFormat("Rutherford-Boeing", _VIA_SCIPY.format("hb_read"), ".rb"),
    ForeignFormat("Harwell-Boeing", _VIA_SCIPY.format("hb_read"), ".rsa .rua .hb"),
    ForeignFormat("AnnData in HDF5", "write it with anndata's write_zarr, or pass its .X", ".h5ad"),
    ForeignFormat("HDF5", "read it with its library and pass the matrix", ".h5 .hdf5", rb"\x89HDF\r\n\x1a\n"),
    ForeignFormat("MATLAB", _VIA_SCIPY.format("loadmat"), ".mat", rb"MATLAB 5\.0 MAT-file"),
    ForeignFormat(
        "a NumPy array",
        "load it with numpy.load and pass the matrix, or a tuple of columns (src, dst)",
        ".npy",
        rb"\x93NUMPY",
    ),
    ForeignFormat("a pickle", "load it if you trust it, and pass the object", ".pkl .pickle", rb"\x80[\x02-\x05]"),
    ForeignFormat("Feather", "read it with pyarrow.feather.read_table and pass the table", ".feather", rb"ARROW1|FEA1"),
    ForeignFormat("an Arrow file", "read it with pyarrow.ipc and pass the table", ".arrow"),
    ForeignFormat("ORC", "read it with pyarrow.orc and pass the table", ".orc", rb"ORC[\x00-\x1f]"),
    ForeignFormat("Avro", "convert it to Parquet", ".avro", rb"Obj\x01"),
    ForeignFormat(
        "JSON",
        "convert it to CSV, or read it with pandas.read_json and pass the table",
        ".json .jsonl .ndjson",
        rb"\s*[\[{]\s*(?:[\"\[{\]}]|$)",
    ),
    ForeignFormat("an Excel workbook", "save it as CSV", ".xlsx .xls", rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"),
    ForeignFormat("XML", "convert it to CSV", head=rb"\s*<(?:\?xml|!doctype|html)"),
)
"""Formats that are not read; of several that fit the first bytes of a file, the first one counts."""


def strip_compression(name: str) -> str:
    """Return a file's name in lower case, without the suffix of a compression."""
    name = name.lower()
    stem, suffix = os.path.splitext(name)
    return stem if suffix in _COMPRESSED else name


def find_format_by_name(name: str) -> Format | ForeignFormat | None:
    """Return the format that the suffix of a file's name indicates; None if it indicates none, as `.csv` and `.txt`.

    `.mtx` indicates no format: such a file must have the banner of Matrix Market, see `detect_format`.
    """
    suffix = os.path.splitext(strip_compression(name))[1]
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    return next((own for own in _FOREIGN if suffix and suffix in own.suffixes.split()), None)


def find_format_by_bytes(head: bytes) -> Format | ForeignFormat | None:
    """Return the format that the first bytes of a file, decompressed, indicate; None for any other text.

    Parameters
    ----------
    head : at least 512 bytes, or the whole file
    """
    if head.startswith(b"PAR1"):
        return "parquet"
    if head[:512].removeprefix(b"\xef\xbb\xbf").lower().lstrip().startswith((b"%%matrixmarket", b"%matrixmarket")):
        return "matrix-market"
    known = (own for own in _FOREIGN if own.head and re.match(own.head, head, re.DOTALL | re.IGNORECASE))
    return next(known, None)


# --- detection -------------------------------------------------------------------------------------------------------

READABLE = (
    "ingest reads Matrix Market files (first line '%%MatrixMarket matrix ...'), edge lists and CSV ('source target' or "
    "'source target weight' per line), each plain or compressed with gzip, bzip2, xz or zstd; Parquet; SciPy's .npz; "
    "and Zarr groups"
)
_CONTROL_CHARACTER = re.compile(rb"[\x00-\x08\x0e-\x1f]")


def detect_format(files: list[str]) -> Format:
    """Return the format of files that are read together: by their names, or by the first bytes of the first file.

    Raises
    ------
    SourceError : the names are of different formats; the format is not supported; not a text file
    SourceNotFoundError : there is no file
    """
    name, by_name = files[0], find_format_by_name(files[0])
    if other := next((own for own in files if find_format_by_name(own) != by_name), None):
        raise SourceError(
            f"the names of {name} and {other} indicate different formats; pass files of one format, or pass format=",
            source=name_files(files),
        )
    if isinstance(by_name, str) and not isinstance(name, Pipe):
        return by_name
    head, is_compressed = read_head(name)
    found = by_name or find_format_by_bytes(head)
    if isinstance(found, ForeignFormat):
        raise SourceError(f"this is {found.what}, which ingest does not read; {found.advice}", source=name)
    if found in ("parquet", "npz") and (is_compressed or isinstance(name, Pipe)):
        what = "Parquet" if found == "parquet" else ".npz"
        how = "in a compressed file; decompress it" if is_compressed else "in a pipe; save it as a file"
        raise SourceError(f"this is {what}, which cannot be read {how}", source=name)
    if found is not None:
        return found
    is_matrix = strip_compression(name).endswith(".mtx")
    if not head:
        return "matrix-market" if is_matrix else "edge-list"  # its reader reports an empty or damaged file
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise SourceError("this text is in UTF-16; convert it to UTF-8", source=name)
    if _CONTROL_CHARACTER.search(head):
        raise SourceError(f"this is not a text file; {READABLE}", source=name)
    if is_matrix or head.lstrip().startswith(b"%%"):
        raise SourceError(
            "the suffix .mtx, or %% in the first line, indicates Matrix Market, but there is no banner; write a first "
            "line '%%MatrixMarket matrix coordinate real general', or pass format=\"edge-list\"",
            source=name,
        )
    return "edge-list"


def read_head(name: str) -> tuple[bytes, bool]:
    """Return the first bytes of a file, decompressed, and whether it is compressed.

    Raises
    ------
    see `TextStream`; damaged data return no bytes instead
    """
    from lzma import LZMAError

    if isinstance(name, Pipe):
        stored = name.peek(HEAD_BYTES)
    else:
        with io.BufferedReader(CountedFile(open_anywhere(name, cache_type="none"), name), HEAD_BYTES) as file:
            stored = file.read(HEAD_BYTES)
    compression = find_compression(stored[:MAGIC_BYTES])
    if compression is None:
        return stored, False
    try:
        return next(decompress(io.BytesIO(stored), compression, HEAD_BYTES), b""), True
    except (OSError, EOFError, LZMAError):
        return b"", True


def is_group_path(path: str | os.PathLike[str]) -> bool:
    """Return whether a path or URL is that of a Zarr group: by its name or, if it is local, by its contents."""
    text = os.fspath(path)
    if "://" in text:
        return any(part.endswith(".zarr") for part in text.split("/"))
    local = Path(text)
    if local.is_file():
        if local.suffix != ".zip":
            return False
        try:
            with zipfile.ZipFile(local) as archive:  # a folder with a group, or anything else, may be in it
                return not {"zarr.json", ".zgroup", ".zattrs", ".zmetadata"}.isdisjoint(archive.namelist())
        except (OSError, zipfile.BadZipFile):
            return True  # Zarr raises the error for a damaged archive
    named = any(part.endswith((".zarr", ".zip")) for part in local.parts)
    return named or any((local / name).exists() for name in ("zarr.json", ".zgroup"))
