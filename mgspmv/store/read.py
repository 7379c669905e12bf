"""Versions of stores, opened for reading."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import zarr

from mgspmv.errors import (
    ChecksumError,
    MissingChunkError,
    OptionError,
    StoreDamagedError,
    StoreError,
)
from mgspmv.model import CsrBlock, MatrixInfo
from mgspmv.store import chunks
from mgspmv.store.chunks import decode_checksums
from mgspmv.store.locations import StoreLike, find_address
from mgspmv.store.versions import (
    KEY,
    MEND,
    find_version,
    get_version,
    list_named,
    open_place,
    read_info,
    read_named,
    translating_metadata_errors,
)

_TRANSPOSE = "transpose/"
_MEND_OPENED = f"open it again if it was replaced since it was opened, else {MEND}"


class Fillable(Protocol):
    """Array that is filled piece by piece, by several threads at once."""

    def piece(self, start: int, stop: int) -> contextlib.AbstractContextManager[np.ndarray]:
        """Return host memory for elements start .. stop, to be filled within the `with` block."""
        ...

    def finish(self) -> Any:
        """Return the (n,) filled elements, an array of NumPy or CuPy."""
        ...


class HostArray:
    """Array on the host, filled in place."""

    def __init__(self, n: int, dtype: Any) -> None:
        self._array: np.ndarray = np.empty(n, dtype)

    @contextlib.contextmanager
    def piece(self, start: int, stop: int) -> Iterator[np.ndarray]:
        yield self._array[start:stop]

    def finish(self) -> np.ndarray:
        return self._array


Allocate = Callable[[int, Any], Fillable]
"""Function called with (elements, dtype) to allocate an array."""


@dataclass(frozen=True)
class StoredMatrix:
    """Version of a store, opened for reading; its arrays are read on request.

    `open_store` has checked that all of its chunks exist, so reading fails only for flipped bits, or if the version was
    dropped since: an overwrite drops the versions before it, `drop_versions` and an update do on request.
    """

    info: MatrixInfo
    """Metadata of the matrix."""
    group: zarr.Group
    """Group of the version."""
    place: StoreLike
    """Path, URL or Zarr store that it was opened from."""
    arrays: dict[str, zarr.Array[Any]] = field(repr=False)
    """Arrays of the matrix by name; those of the stored transpose as `transpose/NAME`."""
    checksums: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    """CRC-32C of each chunk, by array; empty for versions written without checksums."""
    original: StoredMatrix | None = None
    """Matrix that this one is the transpose of; None for a matrix that is not a transpose."""

    def __repr__(self) -> str:
        return f"<StoredMatrix: {'' if self.original is None else 'transpose of '}{self.info!r}>"

    def read_array(
        self,
        name: str,
        start: int = 0,
        stop: int | None = None,
        threads: int | None = None,
        allocate: Allocate = HostArray,
        *,
        dtype: Any = None,
        checks: bool = True,
    ) -> np.ndarray:
        """Read elements `start` .. `stop` of an array, a chunk at a time on each thread; allocated by `allocate`.

        Parameters
        ----------
        dtype : of the result; None for that of the array
        checks : whether the elements are checked; chunks always are

        Raises
        ------
        ChecksumError : a chunk does not match its checksum
        MissingChunkError, StoreDamagedError : a part of the store was removed since it was opened
        StoreDamagedError : numbers of rows, columns or entries that are outside the matrix; row pointers that do not
            ascend from 0 to the number of entries; ids that do not ascend
        """
        array = self.arrays[name]
        stop = array.shape[0] if stop is None else stop
        out = allocate(stop - start, dtype or (object if chunks.is_string(array) else array.dtype))
        stored, is_on_host = chunks.find_chunks(array, self.checksums.get(name)), allocate is HostArray
        limit = {"indices": self.info.shape[1], "out_degree": self.info.nnz + 1}.get(name) if checks else None

        def read(piece: slice) -> None:
            try:
                with out.piece(piece.start - start, piece.stop - start) as target, np.errstate(over="raise"):
                    stored.read(piece, target)
                    if limit is not None and is_on_host:
                        self._check_limit(name, piece, target, limit)
            except FloatingPointError as error:
                raise OptionError(
                    f"{self._name_elements(name, piece.start, piece.stop)} have values beyond the range of float32 "
                    "(3.4e38); pass precision='float64' or weight=False"
                ) from error
            except MissingChunkError as error:
                raise MissingChunkError(
                    f"{self._name_elements(name, piece.start, piece.stop)} are missing; {_MEND_OPENED}"
                ) from error
            except (ValueError, RuntimeError) as error:
                raise ChecksumError(
                    f"{self._name_elements(name, piece.start, piece.stop)} are damaged ({error}); {MEND}"
                ) from error

        chunks.run_pieces(read, start, stop, threads)
        elements: np.ndarray = out.finish()
        if limit is not None and not is_on_host:  # a single pass at the end is fast on a device
            self._check_limit(name, slice(start, stop), elements, limit)
        if checks and name == "indptr":
            self._check_pointers(start, elements)
        if checks and name == "vertex_ids" and (falls := np.flatnonzero(elements[1:] <= elements[:-1])).size:
            row = start + int(falls[0])
            raise StoreDamagedError(
                f"{self._name_elements(name, start, stop)}: the ids must ascend, but the id of row {row + 1} is not "
                f"greater than that of row {row}; {MEND}"
            )
        return elements

    def read_order(self, threads: int | None = None) -> np.ndarray | None:
        """Read the source's number of each row and column; None if they are in the order of the source.

        Raises
        ------
        StoreDamagedError : not a permutation, or as for `read_array`
        """
        if self.info.order is None:
            return None
        order = (self.original or self).read_array("order", threads=threads)
        if not _is_permutation(order):
            raise StoreDamagedError(f"{self.info.url}: order is not a permutation of the {len(order)} rows; {MEND}")
        return order

    def read_block(
        self,
        start: int,
        stop: int,
        dtype: Any,
        threads: int | None = None,
        allocate: Allocate = HostArray,
    ) -> CsrBlock:
        """Read rows `start` .. `stop` as they are stored, and no other rows.

        Parameters
        ----------
        dtype : of the block's values, float32 or float64; None leaves them out
        threads : number of chunks in flight; memory peaks at the block plus one chunk, raw and compressed, for each

        Raises
        ------
        ChecksumError : a chunk does not match its checksum
        MissingChunkError, StoreDamagedError : a part of the store was removed since it was opened
        StoreDamagedError : row pointers that do not ascend; columns that are outside the matrix
        """
        indptr = self.read_pointers(start, stop, threads, allocate)
        first, last = int(indptr[0]), int(indptr[-1])
        indptr -= first
        indices = self.read_array("indices", first, last, threads, allocate)
        data = self._read_values(first, last, dtype, threads, allocate)
        return CsrBlock(start, self.info.shape[1], indptr, indices, data)

    def read_pointers(self, start: int, stop: int, threads: int | None = None, allocate: Allocate = HostArray) -> Any:
        """Read the row pointers of rows `start` .. `stop`, including the end of the last row.

        (stop + 1 - start,) int64; parameters and errors as for `read_block`.
        """
        return self.read_array("indptr", start, stop + 1, threads, allocate)

    def _check_pointers(self, start: int, pointers: Any) -> None:
        stop = start + len(pointers)
        if start == stop:
            return
        first, last = int(pointers[0]), int(pointers[-1])
        is_begun, is_ended = start > 0 or first == 0, stop <= self.info.shape[0] or last == self.info.nnz
        if not (is_begun and is_ended and first >= 0 and last <= self.info.nnz and _is_ascending(pointers)):
            raise self._pointers_error(start, stop)

    def _pointers_error(self, start: int, stop: int) -> StoreDamagedError:
        return StoreDamagedError(
            f"{self._name_elements('indptr', start, stop)} do not ascend from 0 to the {self.info.nnz:,} entries; "
            f"{MEND}"
        )

    def read_out_degree(self, start: int = 0, stop: int | None = None, threads: int | None = None) -> np.ndarray:
        """Read the number of entries of each of the columns `start` .. `stop` of a graph: (stop - start,) int64.

        Columns of a reversed graph are rows of the original one.

        Raises
        ------
        StoreError : as for `read_array` and `read_pointers`
        """
        stop = self.info.shape[1] if stop is None else stop
        if self.original is None:
            return self.read_array("out_degree", start, stop, threads)
        degree: np.ndarray = np.diff(self.original.read_pointers(start, stop, threads))
        return degree

    def transpose(self) -> StoredMatrix:
        """Return the stored transpose, for a graph the reversed one; `info.has_transpose` is True if it exists."""
        if self.original is not None:
            return self.original
        n_rows, n_cols = self.info.shape
        names = {name: name.removeprefix(_TRANSPOSE) for name in self.arrays if name.startswith(_TRANSPOSE)}
        arrays = {own: self.arrays[name] for name, own in names.items()}
        checksums = {own: self.checksums[name] for name, own in names.items() if name in self.checksums}
        index: Any = arrays["indices"].dtype.name
        info = replace(self.info, shape=(n_cols, n_rows), index_dtype=index)
        if info.kind != "graph":
            info = replace(info, kind="matrix", vertex_ids=None)
        return StoredMatrix(info, self.group, self.place, arrays, checksums, original=self)

    def name_entries(self, *, weights: bool = True) -> str:
        """Return an identifier of the entries: the digest, and whether they are transposed or taken as 1."""
        said = [self.info.digest]
        said += ["transposed"] if self.original is not None else []
        said += [] if weights or self.info.is_pattern else ["pattern"]
        return ", ".join(said)

    def address(self) -> StoreAddress:
        """Return the address of this version for other processes.

        Raises
        ------
        OptionError : the store is in the memory of this process
        """
        place = find_address(self.place, self.info.url)
        return StoreAddress(place, self.info.version, self.info.digest, self.original is not None)

    def read_values(self, start: int, stop: int, dtype: Any, threads: int | None = None) -> Any:
        """Read only the values of rows `start` .. `stop`, as `read_block` does; None for a pattern."""
        first, last = (int(self.read_pointers(row, row)[0]) for row in (start, stop))
        if first > last:
            raise self._pointers_error(start, stop + 1)
        return self._read_values(first, last, dtype, threads, HostArray)

    def _read_values(self, start: int, stop: int, dtype: Any, threads: int | None, allocate: Allocate) -> Any:
        is_wanted = dtype is not None and not self.info.is_pattern
        return self.read_array("data", start, stop, threads, allocate, dtype=dtype) if is_wanted else None

    def _name_elements(self, name: str, start: int, stop: int) -> str:
        return f"{self.info.url}: {self.arrays[name].path}, elements {start} to {stop}"

    def _check_limit(self, name: str, piece: slice, elements: Any, limit: int) -> None:
        """Check elements that index other arrays, while they are in the cache or on a device: otherwise a product could
        read memory beyond its vectors. Negative numbers are large when viewed as unsigned.
        """
        unsigned = elements.view(np.dtype(f"u{elements.itemsize}"))
        least_wrong = min(limit, 1 << (8 * elements.itemsize - 1))
        if len(unsigned) and int(unsigned.max()) >= least_wrong:
            place = int((unsigned >= least_wrong).argmax())
            raise StoreDamagedError(
                f"{self._name_elements(name, piece.start, piece.stop)}: element {piece.start + place} is "
                f"{int(elements[place]):,}, which is outside 0..{limit - 1:,}; {MEND}"
            )


@dataclass(frozen=True)
class StoreAddress:
    """Address of one version of a store, small enough to be sent to other processes."""

    place: StoreLike = field(repr=False)  # as Dask logs the arguments of tasks that fail, and URLs may have secrets
    """An absolute path, a URL or a Zarr store."""
    version: str
    """Name of the version subgroup."""
    digest: str
    """Digest of the matrix."""
    is_transpose: bool
    """Whether it addresses the stored transpose."""

    def open(self) -> StoredMatrix:
        """Open that version again, even if it is no longer the current one.

        Raises
        ------
        StoreError : as for `open_store`, and if the store no longer has the version
        """
        root, url = open_place(self.place)
        names = list_named(root, url)
        stored = _open_named(root, self.version, self.place, url) if self.version in names else None
        if stored is None or stored.info.digest != self.digest:
            raise StoreError(
                f"{url} now holds version {names[-1]}, not the opened version {self.version}; it was replaced, or "
                "this machine has another store at this path: open it again"
            )
        return stored.transpose() if self.is_transpose else stored


def open_store(store: StoreLike, version: str | int | None = None) -> StoredMatrix:
    """Open a version of a matrix store and check that it is complete.

    Parameters
    ----------
    store : local path; any fsspec URL (`s3://...`, `memory://...`); or a Zarr store object
    version : its name or number, see `list_versions`; default the current one

    Raises
    ------
    StoreNotFoundError : there is no store
    StoreFormatError : not a store of mgspmv, or one of another format version
    StoreUnfinishedError : no version was ever finished
    StoreError : there is no such version
    MissingChunkError, StoreDamagedError : an array is not as it was written
    """

    def read(root: zarr.Group, names: list[str], url: str) -> StoredMatrix:
        return _open_named(root, names[-1] if version is None else find_version(names, version, url), store, url)

    return read_named(store, read)


def read_recorded(stored: StoredMatrix) -> dict[str, Any]:
    """Return the attributes that were recorded when the version was written."""
    attributes: Any = stored.group.attrs[KEY]
    return dict(attributes)


def _open_named(root: zarr.Group, name: str, store: StoreLike, url: str) -> StoredMatrix:
    return check_version(get_version(root, name, url), store, url)


def check_version(group: zarr.Group, place: StoreLike, url: str) -> StoredMatrix:
    """Check that a version is complete, and return it opened."""
    info = read_info(group, url)
    expected = _expected_arrays(info)
    with ThreadPoolExecutor(len(expected) + 1) as pool:  # requests are concurrent, as stores may be far away
        transpose = pool.submit(get_member, group, "transpose", url) if info.has_transpose else None
        found = pool.map(lambda name: _find_array(group, name, *expected[name], url), expected)
        arrays = dict(zip(expected, found, strict=True))
        if transpose is not None:
            transpose.result()
    attributes: Any = group.attrs[KEY]
    with translating_metadata_errors(url, group.path):
        recorded = attributes.get("chunk_checksums")  # missing in versions of older programs
        checksums = {} if recorded is None else {n: decode_checksums(recorded[n], arrays[n].nchunks) for n in arrays}
    return StoredMatrix(info, group, place, arrays, checksums)


def _find_array(group: zarr.Group, name: str, length: int, dtype: str, url: str) -> zarr.Array[Any]:
    array: zarr.Array[Any] = get_member(group, name, url)
    with translating_metadata_errors(url, array.path):
        fault = chunks.find_chunk_fault(array)
    if array.shape != (length,):
        raise StoreDamagedError(f"{url}: {array.path} has shape {array.shape}, should have ({length},); {MEND}")
    found = "string" if chunks.is_string(array) else array.dtype.name
    if found not in dtype.split(" or "):
        raise StoreDamagedError(f"{url}: {array.path} has dtype {found}, should have {dtype}; {MEND}")
    if fault:
        raise StoreDamagedError(f"{url}: {array.path} {fault}; {MEND}")
    n = 0
    with contextlib.suppress(FileNotFoundError):  # removed by another process while it is listed
        n = array.nchunks_initialized
    if n != array.nchunks:
        raise MissingChunkError(f"{url}: {array.path} has {n} of its {array.nchunks} chunks; {MEND}")
    return array


def _expected_arrays(info: MatrixInfo) -> dict[str, tuple[int, str]]:
    """Return the length and the dtype, or two allowed ones, of each array that a version must have."""
    indptr, indices = (info.shape[0] + 1, "int64"), (info.nnz, info.index_dtype)
    arrays = {"indptr": indptr, "indices": indices}
    if info.dtype is not None:
        arrays["data"] = (info.nnz, info.dtype)
    if info.kind != "matrix":
        arrays["out_degree"] = (info.shape[1], "int64")
        if not info.is_pattern:
            arrays["out_weight"] = (info.shape[1], "float64")
    if info.vertex_ids is not None:
        arrays["vertex_ids"] = (info.shape[0], info.vertex_ids)
    if info.order is not None:
        arrays["order"] = (info.shape[0], info.index_dtype)
    if info.has_transpose:
        arrays |= {
            f"{_TRANSPOSE}indptr": (info.shape[1] + 1, "int64"),
            f"{_TRANSPOSE}indices": (info.nnz, "int32 or int64"),
        }
        if info.dtype is not None:
            arrays[f"{_TRANSPOSE}data"] = (info.nnz, info.dtype)
    return arrays


def get_member(group: zarr.Group, name: str, url: str) -> Any:
    """Return an array of a version, or the group of its transpose; raises StoreDamagedError if it is missing."""
    kind = zarr.Group if name == "transpose" else zarr.Array
    with translating_metadata_errors(url, f"{group.path}/{name}"):
        found = group.get(name)
    if not isinstance(found, kind):
        raise StoreDamagedError(f"{url}: the {kind.__name__.lower()} {group.path}/{name} is missing; {_MEND_OPENED}")
    return found


def _is_ascending(array: Any) -> bool:
    """Return whether no element is negative, or less than the one before; works by pieces to save memory.

    On a device minima are precompiled by CuPy, but `all` takes six seconds to compile.
    """
    pieces = (array[k : k + chunks.CHUNK_ELEMENTS + 1] for k in range(0, len(array) - 1, chunks.CHUNK_ELEMENTS))
    return all(int(piece.min()) >= 0 and int((piece[1:] - piece[:-1]).min()) >= 0 for piece in pieces)


def _is_permutation(array: np.ndarray) -> bool:
    """Return whether the array has each of 0..n-1 once; works by pieces, as above."""
    n = len(array)
    if n and (array.min() < 0 or array.max() >= n):
        return False
    is_there = np.zeros(n, bool)
    for k in range(0, n, chunks.CHUNK_ELEMENTS):
        is_there[array[k : k + chunks.CHUNK_ELEMENTS]] = True
    return bool(is_there.all())
