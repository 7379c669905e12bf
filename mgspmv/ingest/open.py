"""Choice of the reader for a source."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

import numpy as np

from mgspmv.errors import OptionError, SourceError
from mgspmv.ingest.budget import ANY_ROOM, MemoryBudget
from mgspmv.ingest.detect import GROUP_FORMATS, detect_format, find_format_by_name, is_group_path
from mgspmv.ingest.files import find_files, is_path, name_files, take_name
from mgspmv.ingest.frames import FrameSource, find_library, source_from_arrays
from mgspmv.ingest.headers import StatedForm
from mgspmv.ingest.objects import GraphSource, NpzSource, ScipySource, convert_arrays, is_networkx, is_sparse
from mgspmv.ingest.source import Source
from mgspmv.ingest.stored import StoreSource
from mgspmv.model import IngestOptions, Kind, check_choice
from mgspmv.store.locations import is_zarr_group, is_zarr_store
from mgspmv.store.stored_matrix import StoredMatrix

FORMATS = ("matrix-market", "edge-list", "parquet", "npz", *GROUP_FORMATS)
INGESTIBLE = (
    "a path or URL, a SciPy or CuPy sparse matrix, a two-dimensional array, an edge index (an integer array of shape "
    "(2, E)), a tuple (src, dst) or (src, dst, weight) of arrays, a list of such pairs or triples, a graph of "
    "NetworkX, a table of pandas, polars, cuDF, Dask or Arrow, or any other table with __arrow_c_stream__"
)
"""Objects that are read, for messages."""
EDGE_LIST_OPTIONS = tuple(option.name for option in fields(StatedForm))
PARQUET_OPTIONS = ("columns", "n_vertices", "vertices", "weights")
"""Options of all tables, including DataFrames."""
GROUP_OPTIONS = ("n_cols",)
_SUITABLE = {"edge-list": EDGE_LIST_OPTIONS, "parquet": PARQUET_OPTIONS, **dict.fromkeys(GROUP_FORMATS, GROUP_OPTIONS)}


def open_source(
    source: Any,
    *,
    kind: Kind | None = None,
    format: str | None = None,
    threads: int | None = None,
    id_room: MemoryBudget = ANY_ROOM,
    is_name: Callable[[str], bool] | None = None,
    **edge_list_options: Any,
) -> Source:
    """Open a path, URL or object for ingesting.

    Parameters
    ----------
    source : paths or fsspec URLs of files, see `find_files`, or of a Zarr group or a matrix store; or an object: a Zarr
        store or group, a DataFrame (see `FrameSource`), or another of `INGESTIBLE`; or a source itself
    kind : requested kind, which decides what an array is, see `convert_arrays`
    format : one of `FORMATS`; default: by the file's name and first line, or by the arrays of a Zarr group
    threads : number of threads that parse a text, decode Parquet or compute a partition; default one per processor
    id_room : memory for the ids of vertices
    is_name : returns whether a string is a known id; if given, all ids of an edge list are strings, even integers
    edge_list_options : `EDGE_LIST_OPTIONS` for `EdgeListSource`, `PARQUET_OPTIONS` for `TableSource`, `GROUP_OPTIONS`
        for `GroupSource`; other formats accept none, except that a tuple of arrays accepts `n_vertices`, and a graph
        of NetworkX `weights`, and that all accept `weights=False`

    Raises
    ------
    OptionError : an option that does not exist or does not suit the source
    SourceError : the file cannot be read
    StoreError : the matrix store cannot be read
    """
    _check_names(edge_list_options)
    check_choice("format", format, (*FORMATS, None))
    if isinstance(source, Source):
        _take_suitable(edge_list_options, (), source.name)
        return source
    if isinstance(source, StoredMatrix):
        return _open_stored(source, threads, edge_list_options)
    if isinstance(source, list | tuple) and len(source) == 1 and is_path(source[0]):
        source = source[0]
    are_paths = is_path(source) or (isinstance(source, list | tuple) and all(map(is_path, source)))
    form = "pairs" if isinstance(source, list) else "arrays" if isinstance(source, tuple) else "an edge index"
    source = convert_arrays(source, kind)
    is_group = is_zarr_store(source) or is_zarr_group(source)
    if is_path(source):
        has_suffix = isinstance(find_format_by_name(os.fspath(source)), str)
        is_group = format in GROUP_FORMATS or (format is None and not has_suffix and is_group_path(source))
    if format is not None and not are_paths and not (is_group and format in GROUP_FORMATS):
        raise OptionError(f"format={format!r} applies to files, not to a {type(source).__name__}; leave it out")
    if is_group:
        from mgspmv.ingest.zarr_groups import GroupSource, find_matrix_store
        from mgspmv.store.read import open_store

        if format is None and (place := find_matrix_store(source)) is not None:
            return _open_stored(open_store(place), threads, edge_list_options)
        own = _take_suitable(edge_list_options, GROUP_OPTIONS, format or "zarr")
        return GroupSource(source, format=format, **own)
    if are_paths:
        files = [take_name(name) for name in find_files(source)]
        chosen = format or detect_format(files)
        own = _take_suitable(edge_list_options, _SUITABLE.get(chosen, ()), chosen)
        if chosen == "parquet":
            from mgspmv.ingest.tables import ParquetSource

            return ParquetSource(files, threads=threads, id_room=id_room, **own)
        if chosen == "edge-list":
            from mgspmv.ingest.edge_list import EdgeListSource

            names: dict[str, Any] = {} if is_name is None else {"ids": "string", "is_vertex": is_name}
            return EdgeListSource(files, threads=threads, id_room=id_room, **names | own)
        if len(files) > 1:
            raise SourceError(
                f"{len(files)} files of the format {chosen} cannot be combined, only edge lists or Parquet files can; "
                "ingest each into a separate store",
                source=name_files(files),
            )
        if chosen == "npz":
            return NpzSource(files[0])
        from mgspmv.ingest.matrix_market import MatrixMarketSource

        return MatrixMarketSource(files[0], threads=threads)
    if isinstance(source, tuple) and len(source) in (2, 3):
        own = _take_suitable(edge_list_options, ("n_vertices",), form)
        return source_from_arrays(*source, form=form, id_room=id_room, **own)
    if find_library(source):
        own = _take_suitable(edge_list_options, PARQUET_OPTIONS, type(source).__name__)
        return FrameSource(source, threads=threads, id_room=id_room, **own)
    if is_networkx(source):
        return GraphSource(source, **_take_suitable(edge_list_options, ("weights",), type(source).__name__))
    _take_suitable(edge_list_options, (), type(source).__name__)
    if is_sparse(source) or isinstance(source, np.ndarray):
        return ScipySource(source)
    own_type = f"an object of type {type(source).__module__}.{type(source).__qualname__}"
    what = f"a tuple of {len(source)}" if isinstance(source, tuple) else own_type
    raise OptionError(f"cannot read {what} as a matrix or graph; pass {INGESTIBLE}")


def _open_stored(stored: StoredMatrix, threads: int | None, options: dict[str, Any]) -> StoreSource:
    _take_suitable(options, (), "a matrix store")
    if stored.original is not None:
        raise OptionError("a transpose cannot be ingested; ingest the matrix that it belongs to, with transpose=True")
    return StoreSource(stored, threads)


def _take_suitable(options: dict[str, Any], suitable: tuple[str, ...], chosen: str) -> dict[str, Any]:
    """Return the options without `weights=False` where the reader does not take it: entries are stored without them.

    Raises
    ------
    OptionError : another option that does not suit the source
    """
    if "weights" not in suitable and options.get("weights") is False:
        options = {name: value for name, value in options.items() if name != "weights"}
    if wrong := tuple(name for name in options if name not in suitable):
        what = "plain CSR arrays in Zarr" if wrong == GROUP_OPTIONS else "an edge list"
        raise OptionError(
            f"{', '.join(f'{name}=' for name in wrong)} applies to {what}, but this source is read as {chosen}; leave "
            "it out"
        )
    return options


def open_update(
    insert: Any, delete: Any, is_name: Callable[[str], bool] | None = None, **options: Any
) -> tuple[Source | None, Source | None]:
    """Open the sources of entries to insert into a store and to delete from it; weights of deletions are ignored.

    Parameters
    ----------
    insert, delete : as in `open_source`; None for nothing
    is_name : as in `open_source`, for a store whose ids are strings
    options : as in `open_source`, for both

    Raises
    ------
    OptionError, SourceError : as in `open_source`
    """

    def open_one(source: Any, **given: Any) -> Source | None:
        if source is None:
            return None
        is_frame = find_library(source) and getattr(source, "shape", (0, 1))[1] == 0 and not given.get("columns")
        if is_frame or (isinstance(source, list) and not source):
            opened: Source = source_from_arrays([], [])
        else:
            opened = open_source(source, is_name=is_name, **given)
        opened.may_be_empty = True
        return opened

    of_deletions = {**options, "weights": False}
    if columns := options.get("columns"):
        of_deletions["columns"] = columns[:2]
    return open_one(insert, **options), open_one(delete, **of_deletions)


def _check_names(options: dict[str, Any]) -> None:
    for name in options.keys() - {*EDGE_LIST_OPTIONS, *PARQUET_OPTIONS, *GROUP_OPTIONS}:
        known = [*EDGE_LIST_OPTIONS, "columns", *GROUP_OPTIONS, "format", "overwrite"]
        known += [field.name for field in fields(IngestOptions)]
        if name in known:
            raise OptionError(f"{name}= is an option of ingest alone; leave it out here")
        near = get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; options of an edge list: {', '.join(EDGE_LIST_OPTIONS)}"
        raise OptionError(f"ingest has no option {name!r}{hint}")
