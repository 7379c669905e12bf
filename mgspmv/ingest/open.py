"""Which reader suits a source."""

from __future__ import annotations

import os
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from mgspmv.errors import OptionError
from mgspmv.ingest.detect import detect_format
from mgspmv.ingest.edge_list import EdgeListSource
from mgspmv.ingest.matrix_market import MatrixMarketSource
from mgspmv.ingest.objects import ArraysSource, NpzSource, source_from_object
from mgspmv.ingest.parquet import ParquetSource
from mgspmv.ingest.source import Source
from mgspmv.ingest.vertices import ANY_ROOM, IdRoom
from mgspmv.model import IngestOptions, check_choice

FORMATS = ("matrix-market", "edge-list", "parquet", "npz")
EDGE_LIST_OPTIONS = ("n_vertices", "vertices", "delimiter", "weights", "ids", "extra_columns")
PARQUET_OPTIONS = ("columns", "n_vertices", "vertices", "weights", "extra_columns")


def open_source(
    source: Any,
    *,
    format: str | None = None,
    threads: int | None = None,
    id_room: IdRoom = ANY_ROOM,
    **edge_list_options: Any,
) -> Source:
    """Open a path, URL or object for ingesting.

    Parameters
    ----------
    source : path or fsspec URL of a file; or a SciPy, NetworkX or NumPy object (see `source_from_object`)
    format : one of `FORMATS`; default: by the file's name and first line
    threads : that parse a text; default one for each processor
    id_room : what the ids of vertices may take
    edge_list_options : of `EdgeListSource`, one of `EDGE_LIST_OPTIONS`, or of `ParquetSource`, one of
        `PARQUET_OPTIONS`; they suit no other format, but `n_vertices` suits a tuple of arrays too

    Raises
    ------
    OptionError : an option that does not exist or does not suit the source
    SourceError : the file cannot be read
    """
    _check_names(edge_list_options)
    check_choice("format", format, (*FORMATS, None))
    is_path = isinstance(source, str | os.PathLike)
    if format is not None and not is_path:
        raise OptionError(f"format={format!r} suits a file, not a {type(source).__name__}; leave it out")
    if isinstance(source, tuple) and len(source) in (2, 3) and edge_list_options.keys() == {"n_vertices"}:
        return ArraysSource(*source, **edge_list_options)
    chosen = format or (_detect(source, edge_list_options.get("delimiter")) if is_path else type(source).__name__)
    if chosen == "edge-list" and "columns" in edge_list_options:
        raise OptionError("columns suits a Parquet file, and this source is read as edge-list; leave it out")
    if chosen == "edge-list":
        return EdgeListSource(source, threads=threads, id_room=id_room, **edge_list_options)
    if chosen == "parquet" and edge_list_options.keys() <= set(PARQUET_OPTIONS):
        return ParquetSource(source, threads=threads, id_room=id_room, **edge_list_options)
    if edge_list_options:
        names = ", ".join(name for name in edge_list_options if chosen != "parquet" or name not in PARQUET_OPTIONS)
        raise OptionError(f"{names} suits an edge list, and this source is read as {chosen}; leave it out")
    if not is_path:
        return source_from_object(source)
    return NpzSource(source) if chosen == "npz" else MatrixMarketSource(source, threads=threads)


def _detect(path: str | os.PathLike[str], delimiter: str | None) -> str:
    for format, suffixes in {"npz": (".npz",), "parquet": (".parquet", ".pq")}.items():
        if os.fspath(path).endswith(suffixes):
            return format
    return detect_format(path, delimiter)


def _check_names(options: dict[str, Any]) -> None:
    for name in options.keys() - {*EDGE_LIST_OPTIONS, *PARQUET_OPTIONS}:
        known = [*EDGE_LIST_OPTIONS, "columns", *(field.name for field in fields(IngestOptions)), "format", "overwrite"]
        near = get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; of an edge list there are {', '.join(EDGE_LIST_OPTIONS)}"
        raise OptionError(f"ingest has no option {name!r}{hint}")
