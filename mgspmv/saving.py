"""Files of ranks: what those of one vector and those of many have in common.

A file never has its final name before it is whole, see `mgspmv.files`. A Zarr group at a URL cannot be moved; there the
attribute that says what it holds is the last write.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mgspmv.errors import (
    CapacityError,
    ChecksumError,
    MissingChunkError,
    OptionError,
    StoreDamagedError,
    StoreError,
    StoreExistsError,
    StoreFormatError,
    StoreNotFoundError,
    StoreUnfinishedError,
)
from mgspmv.files import check_file, is_url, settle, strip_file_scheme, write_beside
from mgspmv.model import free_memory
from mgspmv.os_errors import is_operators, translate_os_error
from mgspmv.validation import check_fields, check_seal, parse_json, seal, to_json

T = TypeVar("T")

FORMAT_VERSION = 1
SUFFIXES = (".zarr", ".parquet", ".csv")
ARRAYS = ("values", "top_ids", "top_ranks", "vertex_ids")
"""Fields of results that are arrays of a file."""
CHUNK_ELEMENTS = 2**20
RANK_DTYPES, ID_DTYPES = ("float32", "float64"), ("int64", "object")
ZARR_KEY = "mgspmv_solution"
PARQUET_KEY = b"mgspmv"
MEND = "compute it again or restore a copy"


def save_result(
    path: str | os.PathLike[str], write: Mapping[str, Callable[[str], None]], *, overwrite: bool = False
) -> None:
    """Write a file of results.

    Parameters
    ----------
    write : by suffix what writes to a path

    Raises
    ------
    OptionError, StoreExistsError : as of `check_target`
    StoreError : it cannot be written
    """
    check_target(path, overwrite=overwrite, suffixes=tuple(write))
    if is_url(path := strip_file_scheme(path)):
        write[".zarr"](path)
        return
    with write_beside(path) as part:
        write[Path(path).suffix](str(part))


def load_result(path: str | os.PathLike[str], read: Mapping[str, Callable[[str], T]]) -> T:
    """Read a file of results, by suffix with what reads from a path; errors as of `check_source`."""
    check_source(path)
    return read[Path(path).suffix](str(path))


def describe_result(result: Any, **others: Any) -> dict[str, Any]:
    """Return the metadata of a file, as JSON values: all fields but arrays, and `others`."""
    own = {field.name: getattr(result, field.name) for field in fields(result) if field.name not in ARRAYS}
    described = {"format_version": FORMAT_VERSION} | own | others | {"digest": result.digest()}
    return seal(to_json(described))


def write_zarr(url: str, result: Any, **others: Any) -> None:
    """Write the arrays of results into a Zarr group, and the metadata last; `others` as of `describe_result`."""
    import zarr

    from mgspmv.store.places import finishing_tasks

    with finishing_tasks():
        group = zarr.open_group(url, mode="w", attributes={ZARR_KEY: None})
        for name in ARRAYS:
            if (array := getattr(result, name, None)) is not None:
                write_array(group, name, array)
        group.attrs[ZARR_KEY] = describe_result(result, **others)


def write_parquet(path: str, schema: Any, tables: Iterable[Any], result: Any, **others: Any) -> None:
    """Write Arrow tables of a schema, with the metadata in it; `others` as of `describe_result`."""
    import pyarrow.parquet as pq

    schema = schema.with_metadata({PARQUET_KEY: json.dumps(describe_result(result, **others))})
    with pq.ParquetWriter(path, schema, write_page_checksum=True) as writer:
        for table in tables:
            writer.write_table(table.cast(schema))


def name_ids(ids: np.ndarray | None) -> str | None:
    """Return the type of vertex ids as the metadata have it."""
    return None if ids is None else "string" if ids.dtype == object else "int64"


def check_digest(path: str, result: Any, digest: str) -> None:
    """
    Raises
    ------
    ChecksumError : results are not those that were written
    """
    if result.digest() != digest:
        raise ChecksumError(f"{path}: the ranks do not match their digest; {MEND}")


def check_source(path: str | os.PathLike[str]) -> None:
    """Raise unless there is something at `path` whose suffix is one that ranks are loaded from.

    Raises
    ------
    OptionError : another suffix; CSV holds the ranks only
    StoreNotFoundError : there is nothing
    """
    suffix = Path(path).suffix
    if suffix == ".csv":
        raise OptionError(f"{path}: CSV holds the ranks only; save as .zarr or .parquet what is to be loaded again")
    if suffix not in (".zarr", ".parquet"):
        raise OptionError(
            f"{path}: ranks are loaded from .zarr or .parquet, not from {suffix or 'a name without suffix'}"
        )
    if not is_url(path) and not Path(path).exists():
        settle(path)
        if not Path(path).exists():
            raise StoreNotFoundError(f"there are no ranks at {path}; `mgspmv pagerank` makes them")
    check_file(path)


def check_target(
    path: str | os.PathLike[str], *, overwrite: bool = False, suffixes: tuple[str, ...] = SUFFIXES
) -> None:
    """Raise unless `path` can be written to; to be called before the work whose result goes there.

    Raises
    ------
    OptionError : the suffix is none of `suffixes`, or a URL does not name a Zarr group
    StoreExistsError : something is there and is not to be overwritten
    """
    suffix = Path(path).suffix
    if suffix not in suffixes:
        raise OptionError(f"{path}: the name must end in {', '.join(suffixes)}, not in {suffix or 'no suffix'}")
    if is_url(path) and suffix != ".zarr":
        raise OptionError(f"{path}: only .zarr is written to a URL; save {suffix} to a local file")
    if not _is_taken(path):
        return
    if not overwrite:
        raise StoreExistsError(f"{path} exists already; choose another name or pass overwrite=True")
    if not (_is_solution_group(str(path)) if suffix == ".zarr" else Path(path).is_file()):
        raise StoreExistsError(f"{path} is not a {suffix} of results and is not overwritten; choose another name")


def _is_taken(path: str | os.PathLike[str]) -> bool:
    return open_group(str(path)) is not None if is_url(path) else os.path.lexists(path)


def _is_solution_group(url: str) -> bool:
    group = open_group(url)
    return group is not None and ZARR_KEY in group.attrs


def open_group(url: str) -> Any:
    """The Zarr group at a path or URL; None where there is none."""
    import zarr

    from mgspmv.store.places import ZARR_ERRORS, check_links, locate_store

    if not is_url(url):
        check_links(locate_store(url), "", below=True)
    try:
        group = zarr.open_group(url, mode="r", use_consolidated=False)
    except FileNotFoundError:
        return None
    except ZARR_ERRORS as error:
        raise StoreDamagedError(f"{url}: the metadata of the group cannot be read ({error}); {MEND}") from error
    check_links(group.store, "", below=True)
    return group


def write_array(group: Any, name: str, array: np.ndarray) -> None:
    """Write an array of one or two dimensions into a Zarr group, in chunks with checksums."""
    from zarr.codecs import BloscCodec, Crc32cCodec

    stored = group.create_array(
        name,
        shape=array.shape,
        dtype=str if array.dtype == object else array.dtype,
        chunks=_choose_chunks(array.shape),
        compressors=[BloscCodec(cname="lz4", clevel=1, shuffle="shuffle"), Crc32cCodec()],
        # A chunk that was not written could not be told from one that was lost.
        config={"write_empty_chunks": True},
    )
    stored[:] = array


def _choose_chunks(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Parts of rows, or several whole ones."""
    n_in_row = min(CHUNK_ELEMENTS, max(1, shape[-1]))
    return (*(min(max(1, n), CHUNK_ELEMENTS // n_in_row) for n in shape[:-1]), n_in_row)


def open_ranks(url: str, model: type[T]) -> tuple[Any, T]:
    """A Zarr group of ranks, and what it says of itself.

    Parameters
    ----------
    model : one of `mgspmv.saved`

    Raises
    ------
    StoreNotFoundError, StoreFormatError, StoreUnfinishedError : there is no such group
    """
    group = open_group(url)
    if group is None:
        raise StoreNotFoundError(f"there is no Zarr group of ranks at {url}")
    if ZARR_KEY not in group.attrs:
        raise StoreFormatError(f"{url} is a Zarr group of something else than ranks")
    if group.attrs[ZARR_KEY] is None:
        raise StoreUnfinishedError(f"the ranks at {url} were begun and never finished; compute them again")
    return group, _read_description(url, group.attrs[ZARR_KEY], model)


def read_ids(url: str, group: Any, name: str, dtype: str | None) -> np.ndarray | None:
    """The ids of vertices in a group: int64, or `string` as object; None where they are 0..n-1.

    Raises
    ------
    StoreError : as of `read_array`
    """
    if dtype is None:
        if _get_array(url, group, name) is not None:
            raise StoreDamagedError(f"{url}: there are {name}, and what it says of them is lost; {MEND}")
        return None
    return read_array(url, group, name, ("string",) if dtype == "string" else ("int64",))


def read_array(url: str, group: Any, name: str, dtypes: tuple[str, ...], ndim: int = 1) -> np.ndarray:
    """Read what `write_array` wrote; strings as object.

    Parameters
    ----------
    dtypes : that it may have, `string` for strings

    Raises
    ------
    StoreDamagedError, MissingChunkError, ChecksumError : it is not what was written
    CapacityError : its ids do not fit into the memory there is
    """
    from mgspmv.store.chunks import find_chunk_fault, is_string, read_whole

    array = _get_array(url, group, name)
    if array is None:
        raise StoreDamagedError(f"{url}: the array {name} is missing; {MEND}")
    if array.ndim != ndim or (found := "string" if is_string(array) else array.dtype.name) not in dtypes:
        wanted = f"{ndim} dimensions of {' or '.join(dtypes)}"
        raise StoreDamagedError(
            f"{url}: {name} has {array.ndim} dimensions of {array.dtype.name} instead of {wanted}; {MEND}"
        )
    if fault := find_chunk_fault(array):
        raise StoreDamagedError(f"{url}: {name} {fault}; {MEND}")
    if (needed := math.prod(array.shape) * array.dtype.itemsize) > (free := free_memory()):
        raise CapacityError(f"{url}: {name} takes {needed:,} bytes, and {free:,} of memory are free")
    if array.nchunks_initialized != array.nchunks:
        missing = array.nchunks - array.nchunks_initialized
        raise MissingChunkError(f"{url}: {missing} of the {array.nchunks} chunks of {name} are missing; {MEND}")
    try:
        read = read_whole(array)
    except MissingChunkError as error:
        raise MissingChunkError(f"{url}: a chunk of {name} is missing; {MEND}") from error
    except (ValueError, RuntimeError) as error:
        raise ChecksumError(f"{url}: a chunk of {name} is damaged: {error}; {MEND}") from error
    return read.astype(object) if found == "string" else read


def _get_array(url: str, group: Any, name: str) -> Any:
    """An array of a group; None where there is none of this name."""
    from zarr import Array

    from mgspmv.store.places import ZARR_ERRORS

    try:
        array = group.get(name)
    except ZARR_ERRORS as error:
        raise StoreDamagedError(f"{url}: the metadata of {name} cannot be read ({error}); {MEND}") from error
    return array if isinstance(array, Array) else None


def is_rank_table(path: str | os.PathLike[str]) -> bool:
    """Tell whether a Parquet file is one of ranks, which say how they were reached."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return Path(path).suffix == ".parquet" and PARQUET_KEY in (pq.read_schema(path).metadata or {})
    except (pa.ArrowException, OSError):
        return False


def read_rank_table(path: str, model: type[T]) -> tuple[Any, T]:
    """A Parquet table of ranks, and what it says of itself; `model` as of `open_ranks`.

    Raises
    ------
    StoreFormatError, StoreDamagedError, ChecksumError : it is none, or not what was written
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(path, page_checksum_verification=True).read()
        table.validate(full=True)  # texts, and the places of labels among those that there are
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _refuse_parquet(path, error) from error
    text = (table.schema.metadata or {}).get(PARQUET_KEY)
    if text is None:
        raise StoreFormatError(f"{path} is a Parquet file of something else than ranks")
    try:
        described = parse_json(text)
    except ValueError as error:
        raise StoreDamagedError(f"{path}: what it says of its ranks is no JSON ({error}); {MEND}") from error
    return table, _read_description(path, described, model)


def read_column(path: str, table: Any, name: str, dtypes: tuple[str, ...]) -> np.ndarray:
    """A column of a table of ranks; strings as object.

    Raises
    ------
    StoreDamagedError : it is missing, or has others than these dtypes, or gaps
    """
    import pyarrow as pa

    if table.column_names.count(name) == 1 and not (column := table[name]).null_count:
        values: np.ndarray = column.to_numpy()
        is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        if values.dtype.name in dtypes and (values.dtype != object or is_text):
            return values
    raise StoreDamagedError(f"{path} has no column {name} of {' or '.join(dtypes)} without gaps; {MEND}")


def _refuse_parquet(path: str, error: Exception) -> StoreError:
    if "CRC" in str(error):
        return ChecksumError(f"{path}: a page does not match its checksum")
    if is_operators(error):
        return translate_os_error(error, path, "read")
    return StoreDamagedError(f"{path} cannot be read as Parquet: {' '.join(str(error).split())}")


def format_csv(table: Any) -> bytes:
    """The rows of an Arrow table as lines of CSV, without a header; strings are quoted."""
    import pyarrow as pa
    from pyarrow import csv

    lines = pa.BufferOutputStream()
    csv.write_csv(table, lines, csv.WriteOptions(include_header=False, quoting_style="needed"))
    return lines.getvalue().to_pybytes()  # type: ignore[no-any-return]  # pyarrow has no types


def _read_description(path: str, described: Any, model: type[T]) -> T:
    """The metadata of a file, if it is of this format version, and of a batch or of one vector as is wanted."""
    if not isinstance(described, dict):
        raise StoreDamagedError(f"{path}: what it says of its ranks is damaged, it has no fields; {MEND}")
    is_batch = "labels" in model.__annotations__
    if ("labels" in described) != is_batch:
        held, load = ("one vector", "load_solution") if is_batch else ("a batch of vectors", "load_batch")
        raise StoreFormatError(f"{path} holds the ranks of {held}; read it by {load}")
    found = described.get("format_version")
    if found != FORMAT_VERSION:
        raise StoreFormatError(
            f"{path} holds ranks of format version {found}, this program reads version {FORMAT_VERSION}; "
            "compute them again with this program"
        )
    try:
        check_seal(described)
        return check_fields(model, described)
    except ValueError as error:
        raise StoreDamagedError(f"{path}: what it says of its ranks is damaged ({error}); {MEND}") from error
