"""Files of ranks, of one vector or of many.

A file never has its final name before it is complete, see `mgspmv.files`. A Zarr group at a URL cannot be moved; there
the attribute that describes its content is written last.

Results are data classes with the method `digest`; their fields in `ARRAYS` are arrays. They convert to and from tables
by `generate_columns` and `take_columns`, which names arrays as they are named in files.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from mgspmv.display.frames import make_arrow_table, unwrap_numbers
from mgspmv.errors import (
    CapacityError,
    ChecksumError,
    MissingChunkError,
    OptionError,
    StoreDamagedError,
    StoreExistsError,
    StoreFormatError,
    StoreNotFoundError,
    StoreUnfinishedError,
    is_operators,
    translate_os_error,
)
from mgspmv.files import check_file, is_url, settle, write_beside
from mgspmv.model import ChangeNorm, default_threads, free_memory
from mgspmv.row_groups import write_row_groups
from mgspmv.store.digests import CHUNK_ELEMENTS, is_string, run_parts
from mgspmv.validation import check_fields, check_seal, parse_json, rename_former, seal, to_json

T = TypeVar("T")

FORMAT_VERSION = 1
SUFFIXES = (".zarr", ".parquet", ".csv")
ARRAYS = {"values": "values", "top_ids": "top_ids", "top_ranks": "top_ranks", "vertex_ids": "_ids"}
"""Names of arrays in files, and the fields that hold them."""
LISTS = ("alphas", "error_bounds_l1")
"""Fields that are arrays in memory and lists in a file."""
RANK_DTYPES = ("float32", "float64")
ZARR_KEY = "mgspmv_solution"
PARQUET_KEY = b"mgspmv"
ENTRY_BYTES = 16
"""Bytes of an id and a rank."""
MEND = "compute it again or restore a copy"


@dataclass(frozen=True)
class _MatrixMetadata:
    """Fields of the matrix of results that are used."""

    url: str
    shape: tuple[int, int]
    nnz: int


@dataclass(frozen=True)
class _Options:
    """Options that are used after a run."""

    method: str = "power"
    scaler: str = "none"
    n_zero: int = 0
    tol: float | None = None
    norm: ChangeNorm = "l1"


@dataclass(frozen=True, kw_only=True)
class _BatchOptions(_Options):
    """Options of a batch that are used after a run."""

    steps: int
    width: int


@dataclass(frozen=True, kw_only=True)
class _Metadata:
    """Metadata that is checked before the results are created."""

    matrix: _MatrixMetadata
    options: _Options
    seconds: dict[str, float]
    vertex_ids: Literal["int64", "string"] | None
    digest: str


@dataclass(frozen=True, kw_only=True)
class _BatchMetadata(_Metadata):
    """Metadata of a batch that is checked before the results are created."""

    options: _BatchOptions
    labels: list[str | int]
    alphas: list[float]
    error_bounds_l1: list[float]
    top: int | None


def save_result(result: Any, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write results, in the format of the suffix."""
    check_target(path, overwrite=overwrite)
    if Path(path).suffix == ".zarr":
        _write_zarr(os.fspath(path), result)
        return
    with write_beside(path) as part:
        if Path(path).suffix == ".parquet":
            _write_parquet(part, result)
            return
        with part.open("wb") as file:
            file.writelines(generate_csv(result))


def load_result(path: str | os.PathLike[str], kind: type[T]) -> T:
    """Read results of a kind.

    Raises
    ------
    OptionError : another suffix, such as .csv, which holds the ranks only
    StoreNotFoundError : the path does not exist
    StoreFormatError : no results of this kind, or of another format version
    StoreUnfinishedError : they were never finished
    MissingChunkError, ChecksumError, StoreDamagedError : they differ from what was written
    """
    path, suffix = str(path), Path(path).suffix
    if suffix not in (".zarr", ".parquet"):
        raise OptionError(
            f"{path}: ranks are loaded from .zarr or .parquet, not from {suffix or 'a name without suffix'}"
        )
    if not is_url(path) and not Path(path).exists():
        settle(path)
        if not Path(path).exists():
            raise StoreNotFoundError(f"no ranks found at {path}; create them with `mgspmv pagerank`")
    check_file(path)
    described, held = _read_zarr(path, kind) if suffix == ".zarr" else _read_parquet(path, kind)
    try:
        held |= {name: np.array(described[name], np.float64) for name in LISTS if name in described}
        held["_ids"] = held.pop("vertex_ids")
        result = check_fields(kind, described | held)
    except ValueError as error:
        raise StoreDamagedError(f"{path}: the metadata of the ranks is damaged ({error}); {MEND}") from error
    if result.digest() != described["digest"]:  # type: ignore[attr-defined]
        raise ChecksumError(f"{path}: the ranks do not match their digest; {MEND}")
    return result


def generate_csv(result: Any) -> Iterator[bytes]:
    """Yield the lines of a CSV file of results, in batches; strings are quoted if necessary."""
    import pyarrow as pa
    from pyarrow import csv

    for number, table in enumerate(map(make_arrow_table, result.generate_columns())):
        lines = pa.BufferOutputStream()
        options = csv.WriteOptions(include_header=number == 0, quoting_style="needed", quoting_header="none")
        csv.write_csv(table, lines, options)
        yield lines.getvalue().to_pybytes()


def check_target(
    path: str | os.PathLike[str], *, overwrite: bool = False, suffixes: tuple[str, ...] = SUFFIXES
) -> None:
    """Check that `path` can be written to; call it before the computation whose result is saved there.

    Raises
    ------
    OptionError : the suffix is none of `suffixes`, or a URL does not name a Zarr group
    StoreExistsError : it exists and is not to be overwritten
    """
    suffix = Path(path).suffix
    if suffix not in suffixes:
        raise OptionError(f"{path}: the name must end in {', '.join(suffixes)}; its suffix is {suffix or 'missing'}")
    if is_url(path) and suffix != ".zarr":
        raise OptionError(f"{path}: only .zarr is written to a URL; save {suffix} to a local file")
    if not (open_group(str(path)) is not None if is_url(path) else os.path.lexists(path)):
        return
    if not overwrite:
        raise StoreExistsError(f"{path} exists already; choose another name or pass overwrite=True")
    group = open_group(str(path)) if suffix == ".zarr" else None
    if not (Path(path).is_file() if suffix != ".zarr" else group is not None and ZARR_KEY in group.attrs):
        raise StoreExistsError(
            f"{path} exists and is not a {suffix} of results, so it is not overwritten; choose another name"
        )


def open_group(url: str) -> Any:
    """Open the Zarr group at a path or URL for reading, also of version 2; return None if it does not exist."""
    from mgspmv.store.access import ZARR_ERRORS, check_links, locate_store, open_root

    check_links(store := locate_store(url), "", below=True)
    try:
        return open_root(store, url, zarr_format=None)
    except FileNotFoundError:
        return None
    except ZARR_ERRORS as error:
        raise StoreDamagedError(f"{url}: the metadata of the group cannot be read ({error}); {MEND}") from error


def _describe(result: Any, digest: str) -> dict[str, Any]:
    """Return the metadata of a file with the digest of the result, as JSON values: all fields but arrays."""
    own = {field.name: getattr(result, field.name) for field in fields(result) if field.name not in ARRAYS.values()}
    top_ids = getattr(result, "top_ids", None)
    ids = result._ids if top_ids is None else top_ids
    name = None if ids is None else "string" if ids.dtype == object else "int64"
    own |= {"vertex_ids": name} | ({"top": None if top_ids is None else top_ids.shape[1]} if "labels" in own else {})
    return seal(to_json({"format_version": FORMAT_VERSION} | own | {"digest": digest}))


def _check_description(path: str, metadata: Any, kind: type[Any]) -> dict[str, Any]:
    """Check the metadata of a file, its format version, and that it is of a batch or of one vector, as `kind` is."""
    if not isinstance(metadata, dict):
        raise StoreDamagedError(f"{path}: the metadata of the ranks is damaged: it has no fields; {MEND}")
    described: dict[str, Any] = metadata
    is_batch = "labels" in kind.__annotations__
    if ("labels" in described) != is_batch:
        held, load = ("one vector", "load_solution") if is_batch else ("a batch of vectors", "load_batch")
        raise StoreFormatError(f"{path} holds the ranks of {held}; read it with {load}")
    found = described.get("format_version")
    if found != FORMAT_VERSION:
        raise StoreFormatError(
            f"{path} holds ranks of format version {found}, but this program reads version {FORMAT_VERSION}; "
            "compute them again with this program"
        )
    try:
        check_seal(described)
        if isinstance(options := described.get("options"), dict):
            described = described | {"options": rename_former(options)}
        checked = check_fields(_BatchMetadata if is_batch else _Metadata, described)
        for phase, elapsed_s in checked.seconds.items():
            if not 0 <= elapsed_s < math.inf:
                raise ValueError(f"seconds.{phase}: a time is at least 0, not {elapsed_s}")
        if isinstance(checked, _BatchMetadata) and checked.top is not None:
            if checked.vertex_ids is None:
                raise ValueError("vertex_ids: the highest ranks have ids, so it is int64 or string, not None")
            n = len(checked.labels)
            if not 0 <= checked.top <= checked.matrix.shape[0] or n * checked.top * ENTRY_BYTES > free_memory():
                raise ValueError(f"{checked.top} ranks of each of {n} vectors exceed the matrix or the memory")
    except ValueError as error:
        raise StoreDamagedError(f"{path}: the metadata of the ranks is damaged ({error}); {MEND}") from error
    return described


# --- Zarr ------------------------------------------------------------------------------------------------------------


def _write_zarr(url: str, result: Any) -> None:
    """Write the arrays of results into a Zarr group, and the metadata last."""
    from mgspmv.store.access import create_group

    with create_group(url, {ZARR_KEY: None}) as group, ThreadPoolExecutor(1) as pool:
        digest = pool.submit(result.digest)  # takes as long as writing
        for name, field in ARRAYS.items():
            if (array := getattr(result, field, None)) is not None:
                _write_array(group, name, array)
        group.attrs[ZARR_KEY] = _describe(result, digest.result())


def _write_array(group: Any, name: str, array: np.ndarray) -> None:
    """Write an array of one or two dimensions into a Zarr group, in chunks with checksums."""
    from zarr.codecs import BloscCodec, Crc32cCodec

    from mgspmv.store.chunks import find_chunks

    n_in_row = min(CHUNK_ELEMENTS, max(1, array.shape[-1]))  # parts of a row, or several whole rows
    stored = group.create_array(
        name,
        shape=array.shape,
        dtype=str if array.dtype == object else array.dtype,
        chunks=(*(min(max(1, n), CHUNK_ELEMENTS // n_in_row) for n in array.shape[:-1]), n_in_row),
        compressors=[BloscCodec(cname="lz4", clevel=1, shuffle="shuffle"), Crc32cCodec()],
        # Zarr skips chunks of zeros by default, and a skipped chunk looks like a lost one.
        config={"write_empty_chunks": True},
    )
    if array.ndim > 1 or array.dtype == object:
        stored[:] = array
        return
    chunks = find_chunks(stored)  # Zarr encodes on a single thread

    def write(first: int) -> None:
        chunks.write(first, array[first : first + n_in_row])

    run_parts(write, range(0, len(array), n_in_row), None)


def _read_zarr(url: str, kind: type[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the metadata and arrays of results in a Zarr group."""
    from mgspmv.store.versions import is_version

    group = open_group(url)
    if group is None:
        raise StoreNotFoundError(f"no Zarr group of ranks found at {url}; create it with `mgspmv pagerank`")
    if ZARR_KEY not in group.attrs:
        if is_version(group):
            raise StoreFormatError(f"{url} is a matrix store, not ranks. Run: mgspmv pagerank {url} -o ranks.parquet")
        raise StoreFormatError(f"{url} is a Zarr group without ranks; pass a result of `mgspmv pagerank`")
    if group.attrs[ZARR_KEY] is None:
        raise StoreUnfinishedError(
            f"the ranks at {url} are incomplete: their write was interrupted; compute them again"
        )
    described = _check_description(url, group.attrs[ZARR_KEY], kind)
    ids, ndim = (described["vertex_ids"],), 2 if "labels" in described else 1
    if described.get("top") is not None:
        dtypes = {"top_ids": ids, "top_ranks": RANK_DTYPES}
    else:
        dtypes = {"values": RANK_DTYPES} | ({} if ids == (None,) else {"vertex_ids": ids})
        if ids == (None,) and "vertex_ids" in group:
            raise StoreDamagedError(f"{url}: the group has ids, but its metadata states that they are 0..n-1; {MEND}")
    held = {n: _read_array(url, group, n, own, 1 if n == "vertex_ids" else ndim) for n, own in dtypes.items()}
    return described, dict.fromkeys(ARRAYS) | held


def _read_array(url: str, group: Any, name: str, dtypes: tuple[str, ...], ndim: int) -> np.ndarray:
    """Read an array written by `_write_array`; strings as object.

    Parameters
    ----------
    dtypes : allowed dtypes, `string` for strings

    Raises
    ------
    StoreDamagedError, MissingChunkError, ChecksumError : it differs from what was written
    CapacityError : its ids do not fit into the free memory
    """
    from zarr import Array

    from mgspmv.store.access import ZARR_ERRORS
    from mgspmv.store.chunks import find_chunk_fault, read_whole

    try:
        array = group.get(name)
    except ZARR_ERRORS as error:
        raise StoreDamagedError(f"{url}: the metadata of {name} cannot be read ({error}); {MEND}") from error
    if not isinstance(array, Array):
        raise StoreDamagedError(f"{url}: the array {name} is missing; {MEND}")
    if array.ndim != ndim or (found := "string" if is_string(array) else array.dtype.name) not in dtypes:
        wanted = f"{ndim} dimensions of {' or '.join(dtypes)}"
        raise StoreDamagedError(
            f"{url}: {name} has {array.ndim} dimensions of {array.dtype.name} instead of {wanted}; {MEND}"
        )
    if fault := find_chunk_fault(array):
        raise StoreDamagedError(f"{url}: {name} {fault}; {MEND}")
    if (needed := math.prod(array.shape) * array.dtype.itemsize) > (free := free_memory()):
        raise CapacityError(f"{url}: {name} needs {needed:,} bytes of memory, but {free:,} are free")
    try:
        read = read_whole(array)
    except MissingChunkError as error:
        raise MissingChunkError(f"{url}: a chunk of {name} is missing; {MEND}") from error
    except (ValueError, RuntimeError) as error:
        raise ChecksumError(f"{url}: a chunk of {name} is damaged: {error}; {MEND}") from error
    return read.astype(object) if found == "string" else read


# --- tables ----------------------------------------------------------------------------------------------------------


def is_rank_table(path: str | os.PathLike[str]) -> bool:
    """Return whether a Parquet file holds ranks with their metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return Path(path).suffix == ".parquet" and PARQUET_KEY in (pq.read_schema(path).metadata or {})
    except (pa.ArrowException, OSError):
        return False


def _write_parquet(path: Path, result: Any) -> None:
    with ThreadPoolExecutor(1) as pool:  # computes the digest while libraries are imported
        digest = pool.submit(result.digest)
        import pyarrow as pa

        # In batches, as all rows could take several times the memory of the ranks.
        tables = map(make_arrow_table, result.generate_columns())
        first = next(tables)
        schema = first.schema.with_metadata({PARQUET_KEY: json.dumps(_describe(result, digest.result()))})
    # Ids and ranks hardly repeat, so dictionaries of them cost more than they save; ids are mostly in order.
    are_numbers = pa.types.is_integer(schema.field("id").type)
    options: dict[str, Any] = {"use_dictionary": ["vector"]}
    options["column_encoding"] = {"id": "DELTA_BINARY_PACKED"} if are_numbers else None
    plain = {"rank", "id"} if are_numbers else {"rank"}
    options["compression"] = {name: "none" if name in plain else "snappy" for name in schema.names}
    with path.open("wb") as file:
        write_row_groups(file, schema, chain([first], tables), default_threads(), write_page_checksum=True, **options)


def _read_parquet(path: str, kind: type[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the metadata and arrays of results in a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(path, page_checksum_verification=True).read()
        table.validate(full=True)  # UTF-8, and whether category codes are in range
    except (pa.ArrowException, OSError, ValueError) as error:
        if "CRC" in str(error):
            raise ChecksumError(f"{path}: a page does not match its checksum") from error
        if is_operators(error):
            raise translate_os_error(error, path, "read") from error
        raise StoreDamagedError(f"{path} cannot be read as Parquet: {' '.join(str(error).split())}") from error
    text = (table.schema.metadata or {}).get(PARQUET_KEY)
    if text is None:
        raise StoreFormatError(f"{path} is a Parquet file without ranks of mgspmv; pass a result of `mgspmv pagerank`")
    try:
        parsed = parse_json(text)
    except ValueError as error:
        raise StoreDamagedError(f"{path}: the metadata of the ranks is not JSON ({error}); {MEND}") from error
    described = _check_description(path, parsed, kind)
    columns = {"rank": _read_column(path, table, "rank", RANK_DTYPES)}
    columns["id"] = _read_column(path, table, "id", ("object" if described["vertex_ids"] == "string" else "int64",))
    if "labels" in described:
        columns["vector"] = _read_column(path, table, "vector", ("int64", "object"))
    try:
        return described, dict.fromkeys(ARRAYS) | kind.take_columns(described, columns)
    except ValueError as error:
        raise StoreDamagedError(f"{path}: {error}; {MEND}") from error


def _read_column(path: str, table: Any, name: str, dtypes: tuple[str, ...]) -> np.ndarray:
    """Return a column of a table of ranks; strings as object.

    Raises
    ------
    StoreDamagedError : it is missing, has nulls, or has none of these dtypes
    """
    import pyarrow as pa

    if table.column_names.count(name) == 1 and not (column := table[name]).null_count:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        values = unwrap_numbers(column.combine_chunks())
        is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        if values.dtype.name in dtypes and (values.dtype != object or is_text):
            return values
    raise StoreDamagedError(f"{path} has no column {name} of {' or '.join(dtypes)} without nulls; {MEND}")
