"""The matrix store: one Zarr v3 group per matrix. The only module that knows its layout.

    STORE/                              attributes: format_version, current = name of the version to read
      versions/v000001-1f0c9a2e/        attributes: kind, shape, nnz, digests; an anndata csr_matrix where it has values
        indptr  indices  [data]         CSR, indices sorted in each row
        [out_degree] [out_weight]       of the columns, for graphs
        [vertex_ids]                    when the ids are not 0..n-1
        [transpose/]                    the same CSR arrays of the transpose

A version is written whole before the root names it, and naming it is the last write: a reader sees the old version or
the new one, never a part of one. Chunks hold `CHUNK_ELEMENTS` elements, lz4 with a CRC-32C, and all are written, so
that a missing chunk, a flipped bit or a cut array is an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.abc.store import Store
from zarr.codecs import BloscCodec, Crc32cCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import LocalStore, ObjectStore

from mgspmv.errors import (
    ChecksumError,
    MissingChunkError,
    MissingDependencyError,
    StoreDamagedError,
    StoreExistsError,
    StoreFormatError,
    StoreNotFoundError,
    StoreUnfinishedError,
    TruncatedArrayError,
)
from mgspmv.model import CsrArrays, CsrBlock, MatrixInfo, default_threads

FORMAT_VERSION = 1
CHUNK_ELEMENTS = 1 << 20
"""Elements of a chunk, whatever their size: 4 MiB of int32, 8 MiB of int64 or float64. Also the unit of the digests."""

_KEY = "mgspmv"
_ANNDATA_ARRAY: dict[str, Any] = {"encoding-type": "array", "encoding-version": "0.2.0"}
_ANNDATA_CSR = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0"}
_ANNDATA_STRINGS: dict[str, Any] = {"encoding-type": "string-array", "encoding-version": "0.2.0"}

StoreLike = str | os.PathLike[str] | Store


# --- reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredMatrix:
    """The current version of a store, opened for reading; its arrays are read on request.

    Raises on opening (see `open_store`) when anything of it is missing, so that reading fails only for flipped bits.
    """

    info: MatrixInfo
    """What the store says about the matrix."""
    group: zarr.Group
    """The version's group, or its transpose's."""

    def read_array(self, name: str, start: int = 0, stop: int | None = None, threads: int | None = None) -> np.ndarray:
        """Read elements `start` .. `stop` of an array, a chunk at a time on each thread.

        Raises
        ------
        ChecksumError : a chunk does not match its checksum
        """
        array = _get_array(self.group, name)
        stop = array.shape[0] if stop is None else stop
        out = np.empty(stop - start, dtype=object if name == "vertex_ids" and _is_string(array) else array.dtype)
        self._read_into(out, array, start, threads)
        return out

    def read_block(self, start: int, stop: int, dtype: Any, threads: int | None = None) -> CsrBlock:
        """Read rows `start` .. `stop`, and nothing of the other rows.

        Parameters
        ----------
        dtype : of the block's values, float32 or float64; None leaves them out
        threads : how many chunks are in flight; memory peaks at the block plus one chunk, raw and compressed, for each

        Raises
        ------
        ChecksumError : a chunk does not match its checksum
        StoreDamagedError : row pointers that do not ascend
        """
        indptr = self.read_array("indptr", start, stop + 1, threads)
        first, last = int(indptr[0]), int(indptr[-1])
        indptr -= first
        if last - first < 0 or last > self.info.nnz or bool((np.diff(indptr) < 0).any()):
            raise StoreDamagedError(f"{self.info.url}: indptr does not ascend in rows {start} to {stop}; ingest again")
        indices = self.read_array("indices", first, last, threads)
        return CsrBlock(start, self.info.shape[1], indptr, indices, self._read_values(first, last, dtype, threads))

    def transpose(self) -> StoredMatrix:
        """The stored transpose; `info.has_transpose` says whether there is one."""
        n_rows, n_cols = self.info.shape
        fields = vars(self.info) | {"shape": (n_cols, n_rows)}
        return StoredMatrix(MatrixInfo(**fields), self.group["transpose"])  # type: ignore[arg-type]

    def _read_values(self, start: int, stop: int, dtype: Any, threads: int | None) -> np.ndarray | None:
        if dtype is None or self.info.is_pattern:
            return None
        out = np.empty(stop - start, dtype=dtype)
        self._read_into(out, _get_array(self.group, "data"), start, threads)
        return out

    def _read_into(self, out: np.ndarray, array: zarr.Array[Any], start: int, threads: int | None) -> None:
        def read(piece: slice) -> None:
            target = out[piece.start - start : piece.stop - start]
            try:
                if target.dtype == array.dtype:
                    array.get_basic_selection(piece, out=_as_buffer(target))
                else:
                    target[:] = array[piece]
            except (ValueError, RuntimeError) as error:
                place = f"{self.info.url}: {array.path}, elements {piece.start} to {piece.stop}"
                raise ChecksumError(f"{place} are damaged ({error}); ingest again or restore a copy") from error

        _run_pieces(read, start, start + len(out), threads)


def open_store(store: StoreLike) -> StoredMatrix:
    """Open the current version of a matrix store and check that all of it is there.

    Parameters
    ----------
    store : local path; any fsspec URL (`s3://...`, `memory://...`); an obstore URL with `obstore+` before it
        (`obstore+s3://...`); or a Zarr store object

    Raises
    ------
    StoreNotFoundError : nothing is there
    StoreFormatError : not a store of mgspmv, or one of another format version
    StoreUnfinishedError : no version was ever finished
    MissingChunkError, TruncatedArrayError, StoreDamagedError : an array is not as it was written
    """
    url = describe_store(store)
    try:
        root = zarr.open_group(_locate(store), mode="r", zarr_format=3)
    except FileNotFoundError as error:
        raise StoreNotFoundError(f"there is no matrix store at {url}; make one with `mgspmv ingest`") from error
    group = _open_version(root, url)
    info = _read_info(group, url)
    stored = StoredMatrix(info, group)
    _check_arrays(group, url, info)
    if info.has_transpose:
        transposed = stored.transpose()
        _check_arrays(transposed.group, url, transposed.info, is_transpose=True)
    return stored


def _open_version(root: zarr.Group, url: str) -> zarr.Group:
    attributes = root.attrs.get(_KEY)
    if not isinstance(attributes, dict) or "format_version" not in attributes:
        raise StoreFormatError(f"{url} is a Zarr group but not a matrix store of mgspmv; make one with `mgspmv ingest`")
    if attributes["format_version"] != FORMAT_VERSION:
        raise StoreFormatError(
            f"{url} has store format {attributes['format_version']} and this program reads format {FORMAT_VERSION}; "
            f"convert it with `mgspmv ingest SOURCE {url} --overwrite` from its source"
        )
    if attributes.get("current") is None:
        raise StoreUnfinishedError(f"{url} was begun and never finished; run its `mgspmv ingest` again")
    path = f"versions/{attributes['current']}"
    if not isinstance(group := root.get(path), zarr.Group):
        raise StoreDamagedError(f"{url}: the current version {path} is missing; ingest again or restore a copy")
    return group


def _read_info(group: zarr.Group, url: str) -> MatrixInfo:
    attributes: Any = group.attrs.get(_KEY)
    try:
        fields = {k: v for k, v in attributes.items() if k != "array_digests"}
        return MatrixInfo(**(fields | {"url": url, "shape": tuple(fields["shape"])}))
    except (AttributeError, KeyError, TypeError) as error:
        raise StoreDamagedError(f"{url}: the attributes of {group.path} are damaged ({error}); ingest again") from error


def _check_arrays(group: zarr.Group, url: str, info: MatrixInfo, *, is_transpose: bool = False) -> None:
    for name, length in _expected_lengths(info, is_transpose).items():
        if not isinstance(array := group.get(name), zarr.Array):
            raise StoreDamagedError(f"{url}: the array {group.path}/{name} is missing; ingest again or restore a copy")
        if array.shape != (length,):
            raise TruncatedArrayError(
                f"{url}: {array.path} has shape {array.shape} and should have ({length},); "
                "ingest again or restore a copy"
            )
        if array.nchunks_initialized != array.nchunks:
            raise MissingChunkError(
                f"{url}: {array.path} has {array.nchunks_initialized} of its {array.nchunks} chunks; "
                "ingest again or restore a copy"
            )


def _expected_lengths(info: MatrixInfo, is_transpose: bool) -> dict[str, int]:
    lengths = {"indptr": info.shape[0] + 1, "indices": info.nnz}
    if not info.is_pattern:
        lengths["data"] = info.nnz
    if is_transpose:
        return lengths
    if info.kind != "matrix":
        lengths["out_degree"] = info.shape[1]
        if not info.is_pattern:
            lengths["out_weight"] = info.shape[1]
    if info.vertex_ids is not None:
        lengths["vertex_ids"] = info.shape[0]
    return lengths


# --- writing ---------------------------------------------------------------------------------------------------------


def write_store(
    store: StoreLike,
    matrix: CsrArrays,
    *,
    transpose: CsrArrays | None = None,
    provenance: dict[str, Any] | None = None,
    overwrite: bool = False,
    on_progress: Callable[[str, int, int | None], None] | None = None,
    threads: int | None = None,
) -> MatrixInfo:
    """Write a matrix as a new version and make it the current one; older versions are then dropped.

    Raises
    ------
    StoreExistsError : a finished store is there and `overwrite` is false, or something that is no store of mgspmv
    """
    with begin_version(store, overwrite=overwrite) as version:
        report = on_progress or (lambda phase, done, total: None)
        digests = _write_csr(version.group, matrix, report, threads)
        if transpose is not None:
            child = version.group.create_group("transpose")
            inner = _write_csr(child, transpose, report, threads)
            digests |= {f"transpose/{name}": digest for name, digest in inner.items()}
        version.commit(_describe(matrix, version, digests, provenance or {}))
    return open_store(store).info


@dataclass
class Version:
    """A version under construction: no reader sees it before `commit`."""

    root: zarr.Group
    group: zarr.Group
    name: str
    url: str

    def commit(self, attributes: dict[str, Any]) -> None:
        """Write the version's attributes, then name it in the root: the last write."""
        self.group.attrs[_KEY] = attributes
        self.root.attrs[_KEY] = {"format_version": FORMAT_VERSION, "current": self.name}


@contextlib.contextmanager
def begin_version(store: StoreLike, *, overwrite: bool) -> Iterator[Version]:
    """Open a store for one new version. What an exception leaves unfinished is removed; older versions go on success.

    Raises
    ------
    StoreExistsError : a finished store is there and `overwrite` is false, or something that is no store of mgspmv
    """
    check_target(store, overwrite=overwrite)
    root = zarr.open_group(_locate(store), mode="a", zarr_format=3)
    versions = root.require_group("versions")
    older = sorted(versions.group_keys())
    name = f"v{_next_number(older):06d}-{secrets.token_hex(4)}"
    if _KEY not in root.attrs:
        root.attrs[_KEY] = {"format_version": FORMAT_VERSION, "current": None}
    try:
        yield Version(root, versions.create_group(name), name, describe_store(store))
    except BaseException:
        del versions[name]
        raise
    for key in older:
        del versions[key]


def check_target(store: StoreLike, *, overwrite: bool) -> None:
    """Raise StoreExistsError unless a store may be written here."""
    url = describe_store(store)
    attributes = _read_root_attributes(store, url)
    if attributes is None:
        return
    if not isinstance(ours := attributes.get(_KEY), dict) or "format_version" not in ours:
        raise StoreExistsError(f"{url} is a Zarr group that mgspmv did not write; choose another place")
    if ours.get("current") is not None and not overwrite:
        raise StoreExistsError(f"{url} holds a matrix; pass overwrite=True (--overwrite) or choose another place")


def _read_root_attributes(store: StoreLike, url: str) -> dict[str, Any] | None:
    path = _local_path(store)
    if path is not None and not path.exists():
        return None
    try:
        return dict(zarr.open_group(_locate(store), mode="r", zarr_format=3).attrs)
    except FileNotFoundError:
        if path is not None and (path.is_file() or any(path.iterdir())):
            raise StoreExistsError(f"{url} exists and is not a Zarr group; choose another place") from None
        return None


def _next_number(names: list[str]) -> int:
    return 1 + max((int(name[1:7]) for name in names), default=0)


def _write_csr(
    group: zarr.Group, matrix: CsrArrays, report: Callable[[str, int, int | None], None], threads: int | None
) -> dict[str, str]:
    if matrix.data is not None:
        group.attrs.update({**_ANNDATA_CSR, "shape": list(matrix.shape)})
    names = ("indptr", "indices", "data", "out_degree", "out_weight", "vertex_ids")
    present = {name: array for name in names if (array := getattr(matrix, name)) is not None}
    done, total = 0, sum(len(array) for array in present.values())
    digests = {}
    for name, array in present.items():
        report("write", done, total)
        digests[name] = _write_array(group, name, array, threads)
        done += len(array)
    report("write", total, total)
    return digests


def _write_array(group: zarr.Group, name: str, array: np.ndarray, threads: int | None) -> str:
    """Write an array and give its digest."""
    is_string = array.dtype.kind in "OUT"
    target = group.create_array(
        name,
        shape=array.shape,
        chunks=(min(CHUNK_ELEMENTS, max(1, len(array))),),
        dtype=str if is_string else array.dtype,
        compressors=[BloscCodec(cname="lz4", clevel=1, shuffle="shuffle"), Crc32cCodec()],
        config={"write_empty_chunks": True},
        attributes=_ANNDATA_STRINGS if is_string else _ANNDATA_ARRAY,
    )

    def write(piece: slice) -> None:
        target[piece] = array[piece]

    _run_pieces(write, 0, len(array), threads)
    return digest_array(array, threads)


def _describe(
    matrix: CsrArrays, version: Version, digests: dict[str, str], provenance: dict[str, Any]
) -> dict[str, Any]:
    ids, data = matrix.vertex_ids, matrix.data
    arrays = (matrix.indptr, matrix.indices, data, matrix.out_degree, matrix.out_weight)
    return {
        "kind": matrix.kind,
        "shape": list(matrix.shape),
        "nnz": len(matrix.indices),
        "dtype": None if data is None else data.dtype.name,
        "index_dtype": matrix.indices.dtype.name,
        "duplicates": matrix.duplicates,
        "vertex_ids": None if ids is None else "int64" if ids.dtype == np.int64 else "string",
        "min_weight": None if data is None or not len(data) else float(data.min()),
        "has_transpose": any(name.startswith("transpose/") for name in digests),
        "version": version.name,
        "format_version": FORMAT_VERSION,
        "digest": _combine_digests(digests, matrix),
        "nbytes": sum(a.nbytes for a in arrays if a is not None),
        "provenance": provenance,
        "array_digests": digests,
    }


# --- digests and verification ----------------------------------------------------------------------------------------


def digest_array(array: np.ndarray, threads: int | None = None) -> str:
    """SHA-256 over the SHA-256 of every `CHUNK_ELEMENTS` elements, so that pieces can be hashed apart."""
    pieces = list(_pieces(0, len(array)))
    with ThreadPoolExecutor(threads or default_threads()) as pool:
        hashes = pool.map(lambda piece: hashlib.sha256(_encode(array[piece])).digest(), pieces)
        return hashlib.sha256(b"".join(hashes)).hexdigest()


def read_array_digests(stored: StoredMatrix) -> dict[str, str]:
    """The digests that were recorded when the version was written, by array."""
    attributes: Any = stored.group.attrs[_KEY]
    return dict(attributes["array_digests"])


def _combine_digests(digests: dict[str, str], matrix: CsrArrays) -> str:
    own = {name: digest for name, digest in digests.items() if not name.startswith("transpose/")}
    claim = {"kind": matrix.kind, "shape": matrix.shape, "arrays": own}
    return hashlib.sha256(json.dumps(claim, sort_keys=True).encode()).hexdigest()


def _encode(array: np.ndarray) -> Any:
    if array.dtype.kind in "OUT":
        return b"".join(len(item).to_bytes(4, "little") + item for item in (str(s).encode() for s in array))
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).view(np.uint8)


# --- places and pieces -----------------------------------------------------------------------------------------------


def describe_store(store: StoreLike) -> str:
    """The place as a user would write it."""
    return str(store) if isinstance(store, Store) else os.fspath(store)


def _locate(store: StoreLike) -> Any:
    if isinstance(store, Store):
        return store
    text = os.fspath(store)
    if text.startswith("obstore+"):
        return _open_obstore(text.removeprefix("obstore+"))
    path = _local_path(store)
    return LocalStore(path) if path is not None else text


def _open_obstore(url: str) -> Store:
    try:
        from obstore.store import from_url
    except ImportError as error:
        raise MissingDependencyError("obstore+ URLs need the package obstore: pip install obstore") from error
    local = {"mkdir": True} if url.startswith("file://") else {}
    return ObjectStore(from_url(url, **local))


def _local_path(store: StoreLike) -> Path | None:
    if isinstance(store, Store):
        return None
    text = os.fspath(store).removeprefix("file://")
    return None if "://" in text else Path(text)


def _get_array(group: zarr.Group, name: str) -> zarr.Array[Any]:
    array = group[name]
    assert isinstance(array, zarr.Array)
    return array


def _as_buffer(array: np.ndarray) -> Any:
    """The array as what zarr reads into, so that chunks are decoded in place."""
    return default_buffer_prototype().nd_buffer.from_ndarray_like(array)  # type: ignore[arg-type]


def _is_string(array: zarr.Array[Any]) -> bool:
    return array.dtype.kind in "OUT"


def _pieces(start: int, stop: int) -> Iterator[slice]:
    """The range in pieces that end where chunks end."""
    while start < stop:
        end = min(stop, (start // CHUNK_ELEMENTS + 1) * CHUNK_ELEMENTS)
        yield slice(start, end)
        start = end


def _run_pieces(work: Callable[[slice], None], start: int, stop: int, threads: int | None) -> None:
    with ThreadPoolExecutor(threads or default_threads()) as pool:
        for _ in pool.map(work, _pieces(start, stop)):
            pass
