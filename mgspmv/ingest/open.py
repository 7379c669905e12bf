"""Which reader suits a source."""

from __future__ import annotations

import os
from typing import Any

from mgspmv.errors import OptionError
from mgspmv.ingest.detect import detect_format
from mgspmv.ingest.edge_list import EdgeListSource
from mgspmv.ingest.matrix_market import MatrixMarketSource
from mgspmv.ingest.objects import NpzSource, source_from_object
from mgspmv.ingest.source import Source
from mgspmv.model import check_choice

FORMATS = ("matrix-market", "edge-list", "npz")


def open_source(source: Any, *, format: str | None = None, **edge_list_options: Any) -> Source:
    """Open a path, URL or object for ingesting.

    Parameters
    ----------
    source : path or fsspec URL of a file; or a SciPy, NetworkX or NumPy object (see `source_from_object`)
    format : one of `FORMATS`; default: by the file's name and first line
    edge_list_options : of `EdgeListSource`; they suit no other format

    Raises
    ------
    OptionError : an option that does not suit the source
    SourceError : the file cannot be read
    """
    check_choice("format", format, (*FORMATS, None))
    is_path = isinstance(source, str | os.PathLike)
    if format is not None and not is_path:
        raise OptionError(f"format={format!r} suits a file, not a {type(source).__name__}; leave it out")
    chosen = format or (_detect(source, edge_list_options.get("delimiter")) if is_path else "object")
    if chosen == "edge-list":
        return EdgeListSource(source, **edge_list_options)
    if edge_list_options:
        raise OptionError(f"{', '.join(edge_list_options)} suits an edge list, and this source is read as {chosen}")
    if not is_path:
        return source_from_object(source)
    return NpzSource(source) if chosen == "npz" else MatrixMarketSource(source)


def _detect(path: str | os.PathLike[str], delimiter: str | None) -> str:
    return "npz" if os.fspath(path).endswith(".npz") else detect_format(path, delimiter)
