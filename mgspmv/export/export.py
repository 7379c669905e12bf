"""Export of a store to a file or group of another format, which gets its name once it is complete.

Files of entries are Matrix Market and CSV, plain or compressed, and Parquet; the latter two have the source's own ids.
Lines of text are formatted by all threads, and written in order. Each piece of the text is compressed separately, so a
gzip file has several members and a zstd file several frames, which the formats permit and programs read.
"""

from __future__ import annotations

import contextlib
import gzip
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, TypeVar, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute
import zarr

from mgspmv.errors import OptionError, StoreExistsError
from mgspmv.export.arrays import open_arrays, read_ids, write_anndata, write_binsparse, write_npz
from mgspmv.files import create_file, exists, is_url
from mgspmv.heartbeat import prefetch_map
from mgspmv.ingest.budget import MemoryBudget
from mgspmv.ingest.headers import has_list_header
from mgspmv.ingest.stored import cut_entries, list_entries, read_entries
from mgspmv.ingest.tokens import SAMPLE_LINES, Undecided
from mgspmv.model import CooBatch, Progress, check_choice, index_dtype
from mgspmv.row_groups import write_row_groups
from mgspmv.store.access import check_links, create_group, locate_store
from mgspmv.store.stored_matrix import StoredMatrix

T = TypeVar("T")

Format = Literal["matrix-market", "csv", "parquet", "npz", "anndata", "binsparse"]
SUFFIXES: dict[Format, tuple[str, ...]] = {
    "matrix-market": (".mtx", ".mtx.gz", ".mtx.zst"),
    "csv": (".csv", ".csv.gz", ".csv.zst"),
    "parquet": (".parquet", ".pq"),
    "npz": (".npz",),
    "anndata": (".zarr",),
    "binsparse": (".zarr",),
}
GROUPS = ("anndata", "binsparse")
_MARK = "mgspmv_export"
"""Attribute of groups that mgspmv exported, which may be overwritten."""
GZIP_LEVEL = 1
"""Compression level, 1 to 9; level 6 took seven times as long for files a tenth smaller."""
_UNFIT = r"^$|[\x00-\x08\n-\x1f]"
"""Pattern of ids that cannot be written on a line."""
_QUOTED = r'^[#%\s]|\s$|[\t|;,"]'
"""Pattern of ids to quote; otherwise they would be read as comments, as several columns or without their blanks."""


def choose_format(target: str | os.PathLike[str], format: Format | None) -> Format:
    """Return the format of a target, by its suffix if `format` is None.

    Raises
    ------
    OptionError : an unknown format; a suffix that is not the format's, or that is ambiguous
    """
    check_choice("format", format, (*get_args(Format), None))
    name = os.fspath(target)
    suited = [each for each, suffixes in SUFFIXES.items() if name.endswith(suffixes)]
    if format is None and len(suited) == 1:
        return suited[0]
    if format is not None and format in suited:
        return format
    if format is None and suited:
        raise OptionError(f"{name} is ambiguous, {' or '.join(suited)}; pass format={suited[0]!r}")
    wanted = SUFFIXES if format is None else {format: SUFFIXES[format]}
    known = "; ".join(f"{', '.join(suffixes)} ({each})" for each, suffixes in wanted.items())
    raise OptionError(f"{name}: the name must end in {known}")


def check_target(target: str | os.PathLike[str], format: Format, *, overwrite: bool) -> None:
    """Check that a target may be written; to be called before the work.

    Raises
    ------
    StoreExistsError : it exists and `overwrite` is False, or it is a folder or group that was not exported
    OptionError, MissingDependencyError : a URL that cannot be opened
    """
    if not exists(target):
        return
    if not overwrite:
        raise StoreExistsError(f"{target} exists already; pass overwrite=True or choose another name")
    if format not in GROUPS and (is_url(target) or Path(target).is_file()):
        return
    if format not in GROUPS or not _is_export(os.fspath(target)):
        raise StoreExistsError(f"{target} was not written by an export and is not overwritten; choose another name")


def check_vertices(stored: StoredMatrix, path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Check that the ids of a stored matrix can be written to `path`; errors as in `check_target`."""
    n_rows, n_cols = stored.info.shape
    if n_rows != n_cols:
        raise OptionError(
            f"{stored.info.url} has {n_rows} rows and {n_cols} columns, and so no list of vertices; leave out vertices="
        )
    if exists(path) and (not overwrite or (not is_url(path) and not Path(path).is_file())):
        raise StoreExistsError(f"{path} exists already; choose another name by vertices=, or pass overwrite=True")


def export_matrix(
    stored: StoredMatrix,
    target: str | os.PathLike[str],
    format: Format,
    room: MemoryBudget,
    report: Progress,
    vertices: str | os.PathLike[str] | None = None,
) -> None:
    """Write a stored matrix as in its source.

    Parameters
    ----------
    room : threads that read and write; memory for sorting, if a renumbered matrix is written in a format that has
        rows in order
    report : called with (phase, done, total); phases `sort` and `export`
    vertices : path to write the ids to; None to leave them out

    Raises
    ------
    StoreError : the store cannot be read, or the target cannot be written and is removed
    OptionError : a matrix that may have duplicate entries, for binsparse; an id that cannot be written to CSV or a list
        of vertices
    CapacityError : as in `open_arrays`
    """
    info, name, threads = stored.info, os.fspath(target), room.threads
    if format == "binsparse" and info.duplicates == "keep":
        raise OptionError(
            f"{info.url} was made with duplicates='keep', but binsparse allows one entry at each position; choose "
            "another format, or ingest its source again with duplicates='sum' or 'first'"
        )
    with contextlib.ExitStack() as stack:
        if vertices is not None:
            write_vertices(stored, stack.enter_context(create_file(vertices)))
        if format in ("npz", *GROUPS):
            arrays = stack.enter_context(open_arrays(stored, room, report, has_ones=format != "binsparse"))
        if format in GROUPS:
            group = stack.enter_context(create_group(name, {_MARK: format}))
        else:
            file = stack.enter_context(create_file(name))
        match format:
            case "matrix-market" | "csv":
                write_text(stored, file, name, format, threads, report)
            case "parquet":
                write_parquet(stored, file, threads, report)
            case "npz":
                write_npz(info, arrays, file)
            case "anndata":
                write_anndata(group, stored, arrays, threads)
            case "binsparse":
                write_binsparse(group, info, arrays, threads)


def _is_export(url: str) -> bool:
    check_links(locate_store(url), "zarr.json")
    try:
        return _MARK in zarr.open_group(url, mode="r", use_consolidated=False).attrs
    except (OSError, ValueError, KeyError, TypeError):
        return False


# --- files of entries -------------------------------------------------------------------------------------------------


def write_text(
    stored: StoredMatrix, file: IO[bytes], name: str, format: Format, threads: int, report: Progress
) -> None:
    """Write the entries in the order of the store: as CSV below the header src,dst or src,dst,weight, with the ids of
    the source, quoted if necessary; or in Matrix Market's layout coordinate, field real, integer or pattern, and
    symmetry general. Floats have the fewest digits that restore them exactly.

    Parameters
    ----------
    name : name of the file, which is compressed if it ends in .gz or .zst

    Raises
    ------
    OptionError : an id cannot be written on a line of CSV
    """
    info, work = stored.info, format_lines
    if format == "csv":
        ids = None if info.vertex_ids is None else pa.concat_arrays(read_lines(stored, "choose Parquet"))
        header, work = "src,dst" if info.dtype is None else "src,dst,weight", partial(format_edges, ids=ids)
    else:
        field = "pattern" if info.dtype is None else "integer" if np.dtype(info.dtype).kind == "i" else "real"
        sizes = f"{info.shape[0]} {info.shape[1]} {info.nnz}"
        header = f"%%MatrixMarket matrix coordinate {field} general\n{sizes}"
    compress = _find_compression(name)
    file.write(compress(f"{header}\n".encode()))
    for piece in map_entries(stored, lambda batch: compress(work(batch)), threads, report):
        file.write(piece)


def format_edges(batch: CooBatch, ids: Any) -> Any:
    """Return the lines of entries, with the ids of their rows and columns, as a buffer of bytes.

    Parameters
    ----------
    ids : Arrow array of quoted ids; None to write the numbers of rows and columns
    """
    ends = [pa.array(side) if ids is None else ids.take(pa.array(side)) for side in (batch.rows, batch.cols)]
    return _join_lines(ends, batch.values, ",")


def format_lines(batch: CooBatch) -> Any:
    """Return the lines of entries, with rows and columns counted from 1, as a buffer of bytes."""
    ends = [pa.compute.add(pa.array(side).cast(pa.int64()), 1) for side in (batch.rows, batch.cols)]
    return _join_lines(ends, batch.values, " ")


def _join_lines(ends: list[Any], values: np.ndarray | None, delimiter: str) -> Any:
    columns = ends if values is None else [*ends, pa.array(values)]
    separator, nothing, end = (pa.scalar(text, pa.large_string()) for text in (delimiter, "", "\n"))
    fields = pa.compute.binary_join_element_wise(*(own.cast(pa.large_string()) for own in columns), separator)
    lines = pa.compute.binary_join_element_wise(fields, nothing, end)
    stops = np.frombuffer(lines.buffers()[1], np.int64)  # the characters of all lines are in one buffer, in order
    return lines.buffers()[2].slice(0, int(stops[len(lines)]))


def _find_compression(name: str) -> Callable[[Any], Any]:
    """Return the function that compresses a piece of a file of this name into a gzip member or a zstd frame."""
    if name.endswith(".gz"):
        return lambda data: gzip.compress(data, GZIP_LEVEL, mtime=0)
    if name.endswith(".zst"):
        codec = pa.Codec("zstd", 1)
        return lambda data: codec.compress(data)
    return lambda data: data


def write_parquet(stored: StoredMatrix, file: IO[bytes], threads: int, report: Progress) -> None:
    """Write the columns src, dst and, unless it is a pattern, weight; one row group per batch of entries.

    Ids are as in the source: int64, strings, or without ids the numbers of rows and columns.
    """
    info = stored.info
    ids = None if info.vertex_ids is None else pa.concat_arrays(read_ids(stored, info.shape[0]))
    id_type = pa.from_numpy_dtype(index_dtype(max(info.shape))) if ids is None else ids.type
    fields = [("src", id_type), ("dst", id_type)]
    if info.dtype is not None:
        fields.append(("weight", pa.from_numpy_dtype(np.dtype(info.dtype))))
    schema = pa.schema([pa.field(name, each, nullable=False) for name, each in fields])

    def make(batch: CooBatch) -> Any:
        columns = [pa.array(side, None if ids is not None else id_type) for side in (batch.rows, batch.cols)]
        if ids is not None:
            columns = [ids.take(numbers) for numbers in columns]
        return pa.table(columns + ([] if batch.values is None else [pa.array(batch.values)]), schema=schema)

    options: dict[str, Any] = {"compression": "zstd", "use_dictionary": False, "write_page_checksum": True}
    write_row_groups(file, schema, map_entries(stored, make, threads, report), threads, **options)


# --- entries and ids, in batches --------------------------------------------------------------------------------------


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
        if lines and number == 0 and stored.info.vertex_ids == "string":
            try:
                is_header = has_list_header(lines[:1], [[name] for name in lines[1:SAMPLE_LINES]], are_names=True)
            except Undecided:
                is_header = True
            if is_header:
                header = next(name for name in ("id", "vertex", "node", "name") if name not in lines[:SAMPLE_LINES])
                file.write(f"{header}\n".encode())
        if lines:
            file.write("\n".join(lines).encode() + b"\n")
