"""Export of a store to a file or group of another format, which gets its name once it is complete.

Files of entries are Matrix Market and CSV, plain or compressed, and Parquet; the latter two have the source's own ids.
Lines of text are formatted by all threads, and written in order. Each piece of the text is compressed separately, so a
gzip file has several members and a zstd file several frames, which the formats permit and programs read.

SciPy's `.npz` and Zarr v3 groups of AnnData and binsparse are compressed arrays in the order of the source. A graph's
store has the arc i -> j in row j, so the stored matrix is the source's matrix by columns: nothing is transposed.
Entries are sorted again, within a given memory, only if rows and columns are renumbered. The attributes by which a
reader knows a group are written last.

Source: the on-disk format of anndata 0.12 (AnnData 0.1.0, csr_matrix and csc_matrix 0.1.0, dataframe 0.2.0); the Binary
Sparse Format Specification 0.1.0, its descriptor under `binsparse` in the attribute `binsparse`, as its reference
implementation in Python has it.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, TypeVar, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute
import zarr

from mgspmv.errors import OptionError, StoreExistsError
from mgspmv.files import create_file, exists, is_url
from mgspmv.heartbeat import prefetch_map
from mgspmv.ingest.budget import MemoryBudget
from mgspmv.ingest.entries import SortedSource
from mgspmv.ingest.headers import has_list_header
from mgspmv.ingest.store_writing import reorder_rows
from mgspmv.ingest.stored import PIECE_ROWS, StoredRows, cut_entries, list_entries, read_entries
from mgspmv.ingest.tokens import SAMPLE_LINES, Undecided
from mgspmv.model import CooBatch, MatrixInfo, Progress, check_choice, index_dtype
from mgspmv.order import restore
from mgspmv.row_groups import write_row_groups
from mgspmv.store.access import check_links, create_group, locate_store
from mgspmv.store.chunks import ANNDATA_STRINGS, AppendArray
from mgspmv.store.digests import CHUNK_ELEMENTS
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
NAMES = 1 << 17
"""Names per chunk, few because a Python string takes far more memory than its characters."""
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
    if format in GROUPS:
        check_links(locate_store(os.fspath(target)), "zarr.json")
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            if _MARK in zarr.open_group(os.fspath(target), mode="r", use_consolidated=False).attrs:
                return
    elif is_url(target) or Path(target).is_file():
        return
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
    info, is_csv, ids = stored.info, format == "csv", None
    if is_csv:
        ids = None if info.vertex_ids is None else pa.concat_arrays(read_lines(stored, "choose Parquet"))
        header = "src,dst" if info.dtype is None else "src,dst,weight"
    else:
        field = "pattern" if info.dtype is None else "integer" if np.dtype(info.dtype).kind == "i" else "real"
        header = f"%%MatrixMarket matrix coordinate {field} general\n{info.shape[0]} {info.shape[1]} {info.nnz}"
    codec = pa.Codec("zstd", 1)

    def compress(data: Any) -> Any:
        if name.endswith(".gz"):
            return gzip.compress(data, GZIP_LEVEL, mtime=0)
        return codec.compress(data) if name.endswith(".zst") else data

    file.write(compress(f"{header}\n".encode()))
    work = lambda batch: compress(format_lines(batch, is_csv=is_csv, ids=ids))  # noqa: E731
    for piece in map_entries(stored, work, threads, report):
        file.write(piece)


def format_lines(batch: CooBatch, *, is_csv: bool = False, ids: Any = None) -> Any:
    """Return the lines of entries as a buffer of bytes, for Matrix Market with rows and columns counted from 1.

    Parameters
    ----------
    ids : Arrow array of quoted ids, for CSV; None to write the numbers of rows and columns
    """
    columns = [pa.array(side) if ids is None else ids.take(pa.array(side)) for side in (batch.rows, batch.cols)]
    if not is_csv:
        columns = [pa.compute.add(numbers.cast(pa.int64()), 1) for numbers in columns]
    if batch.values is not None:
        columns.append(pa.array(batch.values))
    separator, nothing, end = (pa.scalar(text, pa.large_string()) for text in ("," if is_csv else " ", "", "\n"))
    fields = pa.compute.binary_join_element_wise(*(own.cast(pa.large_string()) for own in columns), separator)
    lines = pa.compute.binary_join_element_wise(fields, nothing, end)
    stops = np.frombuffer(lines.buffers()[1], np.int64)  # the characters of all lines are in one buffer, in order
    return lines.buffers()[2].slice(0, int(stops[len(lines)]))


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
        ends = (batch.rows, batch.cols)
        columns = [pa.array(side, id_type) if ids is None else ids.take(pa.array(side)) for side in ends]
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


# --- arrays of formats of compressed rows or columns ------------------------------------------------------------------

ArrayName = Literal["indptr", "indices", "data"]
Pieces = Iterator[np.ndarray]


@dataclass(frozen=True)
class SourceArray:
    """Array of a matrix in the order of its source, compressed by rows or, for a graph, by columns."""

    name: ArrayName
    n: int
    """Number of elements."""
    dtype: np.dtype
    """SciPy has one for rows, columns and pointers; entries of a pattern are True."""
    pieces: Pieces


def find_layout(info: MatrixInfo) -> Literal["csr", "csc"]:
    """Return the layout of the arrays."""
    return "csc" if info.kind == "graph" else "csr"


@contextlib.contextmanager
def open_arrays(
    stored: StoredMatrix, room: MemoryBudget, report: Progress, *, has_ones: bool = True
) -> Iterator[Iterator[SourceArray]]:
    """Yield the arrays of a stored matrix, to be read one after the other.

    Parameters
    ----------
    room : memory, threads and folder for sorting entries
    report : called with ("renumber", entries done, total entries) while entries are sorted, and with ("export",
        elements done, total elements) for each piece
    has_ones : whether the entries of a pattern are an array too

    Raises
    ------
    StoreDamagedError : as in `StoredMatrix.read_pointers` and `StoredMatrix.read_array`
    CapacityError : as in `reorder_rows`, for a renumbered matrix
    """
    names: tuple[ArrayName, ...] = ("indptr", "indices", "data")
    if stored.info.is_pattern and not has_ones:
        names = names[:2]
    if stored.info.order is None:
        yield _list_arrays(stored.info, names, partial(_read_stored, stored, room.threads), report)
        return
    rows = StoredRows(stored, room.threads)
    lengths = restore(rows.count_rows(), rows.order)
    with reorder_rows(rows, "none", report, room) as (source, _):
        yield _list_arrays(stored.info, names, partial(_read_sorted, source, lengths), report)


def _list_arrays(
    info: MatrixInfo, names: tuple[ArrayName, ...], read: Callable[[ArrayName], Pieces], report: Progress
) -> Iterator[SourceArray]:
    lengths = {name: info.shape[0] + 1 if name == "indptr" else info.nnz for name in names}
    total, done = sum(lengths.values()), 0

    def generate(name: ArrayName, dtype: np.dtype) -> Pieces:
        nonlocal done
        ones = (np.ones(min(CHUNK_ELEMENTS, info.nnz - k), bool) for k in range(0, info.nnz, CHUNK_ELEMENTS))
        for piece in ones if name == "data" and info.is_pattern else read(name):
            report("export", done, total)
            yield piece.astype(dtype, copy=False)
            done += len(piece)

    for name in names:
        dtype = np.dtype(info.dtype or bool) if name == "data" else index_dtype(max(*info.shape, info.nnz))
        yield SourceArray(name, lengths[name], dtype, generate(name, dtype))
    report("export", total, total)


def _read_stored(stored: StoredMatrix, threads: int, name: ArrayName) -> Pieces:
    if name == "indptr":
        n_rows = stored.info.shape[0]
        for first in range(0, max(1, n_rows), PIECE_ROWS):
            pointers = stored.read_pointers(first, min(first + PIECE_ROWS, n_rows))
            yield pointers[1:] if first else pointers
        return
    starts = range(0, stored.info.nnz, CHUNK_ELEMENTS)

    def read(start: int) -> np.ndarray:
        return stored.read_array(name, start, min(start + CHUNK_ELEMENTS, stored.info.nnz), threads=1)

    with ThreadPoolExecutor(threads, "mgspmv-export") as pool:
        yield from prefetch_map(pool, read, starts, threads)


def _read_sorted(source: SortedSource, lengths: np.ndarray, name: ArrayName) -> Pieces:
    if name == "indptr":
        yield np.cumsum(np.append(0, lengths))
        return
    for block in source.blocks():
        if name == "indices":
            yield block.indices
        elif block.data is not None:
            yield block.data


def write_npz(info: MatrixInfo, arrays: Iterator[SourceArray], file: IO[bytes]) -> None:
    """Write a `.npz`, uncompressed, of which `scipy.sparse.load_npz` makes a csr_array or, of a graph, a csc_array."""
    with zipfile.ZipFile(file, "w") as archive:
        for array in arrays:
            with archive.open(zipfile.ZipInfo(f"{array.name}.npy"), "w", force_zip64=True) as member:
                described = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False}
                np.lib.format.write_array_header_1_0(member, described | {"shape": (array.n,)})
                for piece in array.pieces:
                    member.write(piece.data)
        small = {"format": find_layout(info).encode(), "shape": info.shape, "_is_array": True}
        for key, value in small.items():
            content = io.BytesIO()
            np.save(content, np.array(value))
            archive.writestr(zipfile.ZipInfo(f"{key}.npy"), content.getvalue())


def write_anndata(group: zarr.Group, stored: StoredMatrix, arrays: Iterator[SourceArray], threads: int) -> None:
    """Write an AnnData: the matrix is X, and the ids, as strings, are the names of its rows (obs) and columns (var)."""
    x, shape = group.create_group("X"), list(stored.info.shape)
    for array in arrays:
        _write_array(x, array.name, array, threads)
    encoding = {"encoding-type": f"{find_layout(stored.info)}_matrix", "encoding-version": "0.1.0"}
    x.update_attributes(encoding | {"shape": shape})
    for name, n in zip(("obs", "var"), shape, strict=True):
        frame = group.create_group(name)
        chunks = (min(NAMES, max(1, n)),)
        index = frame.create_array("_index", shape=(n,), chunks=chunks, dtype=str, attributes=ANNDATA_STRINGS)
        start = 0
        for ids in read_ids(stored, n):
            for k in range(0, len(ids), NAMES):
                names = pa.compute.cast(ids[k : k + NAMES], pa.large_string()).to_pylist()
                index[start : start + len(names)] = np.array(names, object)
                start += len(names)
        encoding = {"encoding-type": "dataframe", "encoding-version": "0.2.0"}
        frame.update_attributes(encoding | {"_index": "_index", "column-order": []})
    group.update_attributes({"encoding-type": "anndata", "encoding-version": "0.1.0"})


def write_binsparse(group: zarr.Group, info: MatrixInfo, arrays: Iterator[SourceArray], threads: int) -> None:
    """Write a matrix in the format CSR or, of a graph, CSC of binsparse; a pattern has one value for all, True."""
    types, names = {}, {"indptr": "pointers_to_1", "indices": "indices_1", "data": "values"}
    for array in arrays:
        name = names[array.name]
        _write_array(group, name, array, threads)
        types[name] = array.dtype.name
    if info.is_pattern:
        group.create_array("values", data=np.ones(1, np.uint8))
        types["values"] = "iso[bint8]"
    descriptor: dict[str, Any] = {
        "version": "0.1.0",  # of three numbers, as the draft requires; older ones had two
        "format": find_layout(info).upper(),
        "shape": list(info.shape),
        "number_of_stored_values": info.nnz,
        "data_types": types,
    }
    group.attrs["binsparse"] = {"binsparse": descriptor}


def _write_array(group: zarr.Group, name: str, array: SourceArray, threads: int) -> None:
    with ThreadPoolExecutor(threads, "mgspmv-write") as pool:
        target = AppendArray(group, name, array.dtype, array.n, pool, threads)
        for piece in array.pieces:
            target.append(piece)
        target.finish()


def read_ids(stored: StoredMatrix, n: int) -> Iterator[Any]:
    """Yield the n ids in the order of the source, as Arrow arrays of integers or strings; numbers if it has no ids."""
    has_ids = stored.info.vertex_ids is not None
    for start in range(0, max(n, 1), CHUNK_ELEMENTS):
        stop = min(start + CHUNK_ELEMENTS, n)
        ids = stored.read_array("vertex_ids", start, stop) if has_ids else np.arange(start, stop)
        yield pa.array(ids, pa.large_string() if ids.dtype.kind in "OUT" else pa.int64())
