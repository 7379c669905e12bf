"""Which reader suits a source."""

from __future__ import annotations

import os
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from mgspmv.errors import OptionError
from mgspmv.ingest.detect import detect_format
from mgspmv.ingest.edge_list import EdgeListSource
from mgspmv.ingest.frames import FrameSource, is_frame
from mgspmv.ingest.matrix_market import MatrixMarketSource
from mgspmv.ingest.objects import ArraysSource, NpzSource, source_from_object
from mgspmv.ingest.parquet import ParquetSource
from mgspmv.ingest.source import Source
from mgspmv.ingest.vertices import ANY_ROOM, IdRoom
from mgspmv.model import IngestOptions, check_choice

FORMATS = ("matrix-market", "edge-list", "parquet", "npz")
EDGE_LIST_OPTIONS = ("n_vertices", "vertices", "delimiter", "weights", "ids", "extra_columns")
PARQUET_OPTIONS = ("columns", "n_vertices", "vertices", "weights", "extra_columns")
"""Of all tables, DataFrames too."""


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
    source : path or fsspec URL of a file; or an object (see `source_from_object` and `FrameSource`)
    format : one of `FORMATS`; default: by the file's name and first line
    threads : that parse a text, decode Parquet or compute a partition; default one for each processor
    id_room : what the ids of vertices may take
    edge_list_options : of `EdgeListSource`, one of `EDGE_LIST_OPTIONS`, or of `TableSource`, one of `PARQUET_OPTIONS`;
        they suit no other format, but `n_vertices` suits a tuple of arrays too

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
    suitable = {"edge-list": EDGE_LIST_OPTIONS, "parquet": PARQUET_OPTIONS}.get(chosen, ())
    _check_suitable(edge_list_options, PARQUET_OPTIONS if is_frame(source) else suitable, chosen)
    if is_frame(source):
        return FrameSource(source, threads=threads, id_room=id_room, **edge_list_options)
    if not is_path:
        return source_from_object(source)
    if chosen == "npz":
        return NpzSource(source)
    if chosen == "matrix-market":
        return MatrixMarketSource(source, threads=threads)
    reader = EdgeListSource if chosen == "edge-list" else ParquetSource
    return reader(source, threads=threads, id_room=id_room, **edge_list_options)


def _check_suitable(options: dict[str, Any], suitable: tuple[str, ...], chosen: str) -> None:
    if wrong := [name for name in options if name not in suitable]:
        what = "a table" if wrong == ["columns"] else "an edge list"
        raise OptionError(f"{', '.join(wrong)} suits {what}, and this source is read as {chosen}; leave it out")


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
