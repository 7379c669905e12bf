"""Versions of stores, opened for reading, and checks of every invariant of a version."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import zarr
from zarr.storage import LocalStore

from mgspmv.errors import ChecksumError, MissingChunkError, OptionError, StoreDamagedError, StoreError
from mgspmv.model import STOCHASTIC_TOLERANCE, MatrixInfo, Progress, index_dtype
from mgspmv.store import chunks, digests
from mgspmv.store.chunks import decode_checksums
from mgspmv.store.digests import digest_array
from mgspmv.store.locations import StoreLike, find_address
from mgspmv.store.stored_matrix import TRANSPOSE, HostArray, Range, StoredMatrix, find_least
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

DEVICE_PIECE = 1 << 26
"""Elements that are checked at a time on a device."""
_MEND_OPENED = f"open it again if it was replaced since it was opened, else {MEND}"


@dataclass(frozen=True, kw_only=True, repr=False)
class ZarrMatrix(StoredMatrix):
    """Version of a store, opened for reading.

    `open_store` has checked that all of its chunks exist, so reading fails only for flipped bits, or if the version was
    dropped since: an overwrite drops the versions before it, `drop_versions` and an update do on request.
    """

    group: zarr.Group
    """Group of the version."""
    checksums: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    """CRC-32C of each chunk, by name of the array in the version; empty for versions written without checksums."""

    def read_range(self, asked: Range, threads: int | None = None) -> Any:
        """Read a range of an array, a chunk at a time on each thread.

        Raises
        ------
        ChecksumError : a chunk does not match its checksum
        MissingChunkError, StoreDamagedError : a part of the store was removed since it was opened
        StoreDamagedError : numbers of rows, columns or entries that are outside the matrix; row pointers that do not
            ascend from 0 to the number of entries; ids that do not ascend
        """
        return self.read_ranges([asked], threads)[0]

    def read_ranges(self, ranges: Sequence[Range], threads: int | None = None) -> list[Any]:
        filled = [_FilledRange(self, asked) for asked in ranges]
        parts = [(own, piece) for own in filled for piece in digests.cut_pieces(own.start, own.stop)]
        digests.run_parts(lambda part: part[0].read(part[1]), parts, threads)
        return [own.finish() for own in filled]

    def read_order(self, threads: int | None = None) -> np.ndarray | None:
        """Read the source's number of each row and column; None if they are in the order of the source.

        Raises
        ------
        StoreDamagedError : not a permutation, or as for `read_range`
        """
        if self.info.order is None:
            return None
        order = (self.original or self).read_array("order", threads=threads)
        if not _is_permutation(order):
            raise StoreDamagedError(f"{self.info.url}: order is not a permutation of the {len(order)} rows; {MEND}")
        return order

    def address(self) -> StoreAddress:
        """Return the address of this version for other processes.

        Raises
        ------
        OptionError : the matrix is in the memory of this process
        """
        place = find_address(self.place, self.info.url)
        return StoreAddress(place, self.info.version, self.info.digest, self.original is not None)


class _FilledRange:
    """Range of an array of a matrix that threads read piece by piece."""

    def __init__(self, stored: ZarrMatrix, asked: Range) -> None:
        array, name = stored.arrays[asked.name], asked.name
        self._info, self._name, self._path, self._checks = stored.info, name, array.path, asked.checks
        self.start, self.stop = asked.start, array.shape[0] if asked.stop is None else asked.stop
        dtype = asked.dtype or (object if digests.is_string(array) else array.dtype)
        self._out = asked.allocate(self.stop - self.start, dtype)
        checksums = stored.checksums.get(name if stored.original is None else f"{TRANSPOSE}{name}")
        self._chunks, self._is_on_host = chunks.find_chunks(array, checksums), asked.allocate is HostArray
        limits = {"indices": stored.info.shape[1], "out_degree": stored.info.nnz + 1}
        self._limit = limits.get(name) if asked.checks else None
        self._is_of_ids = asked.checks and name == "vertex_ids"

    def read(self, piece: slice) -> None:
        """Read a piece; raises the errors of `ZarrMatrix.read_range`."""
        first = self.start
        try:
            with self._out.piece(piece.start - first, piece.stop - first) as target, np.errstate(over="raise"):
                self._chunks.read(piece, target)
                if self._is_on_host:
                    self._check_limit(piece, target)
                if self._is_of_ids:
                    self._check_ids(piece.start, target)
        except FloatingPointError as error:
            raise OptionError(
                f"{self._describe(piece)} have values beyond the range of float32 "
                "(3.4e38); pass precision='float64' or weight=False"
            ) from error
        except MissingChunkError as error:
            raise MissingChunkError(f"{self._describe(piece)} are missing; {_MEND_OPENED}") from error
        except (ValueError, RuntimeError) as error:
            raise ChecksumError(f"{self._describe(piece)} are damaged ({error}); {MEND}") from error

    def finish(self) -> Any:
        """Return the elements, once all pieces are read."""
        elements, whole = self._out.finish(), slice(self.start, self.stop)
        if not self._is_on_host:  # a single pass at the end is fast on a device
            self._check_limit(whole, elements)
        if self._checks and self._name == "indptr" and len(elements):
            self._check_pointers(elements)
        if self._is_of_ids:  # each piece was checked when it was read
            for piece in digests.cut_pieces(self.start, self.stop):
                last = piece.stop - 1
                self._check_ids(last, elements[last - self.start : last + 2 - self.start])
        return elements

    def _check_limit(self, piece: slice, elements: Any) -> None:
        """Check elements that index other arrays, while they are in the cache or on a device: otherwise a product could
        read memory beyond its vectors. Negative numbers are large when viewed as unsigned.
        """
        if self._limit is None or not len(elements):
            return
        unsigned = elements.view(np.dtype(f"u{elements.itemsize}"))
        least_wrong = min(self._limit, 1 << (8 * elements.itemsize - 1))
        if int(unsigned.max()) >= least_wrong:
            place = int((unsigned >= least_wrong).argmax())
            raise StoreDamagedError(
                f"{self._describe(piece)}: element {piece.start + place} is "
                f"{int(elements[place]):,}, which is outside 0..{self._limit - 1:,}; {MEND}"
            )

    def _check_pointers(self, pointers: Any) -> None:
        first, last, nnz = int(pointers[0]), int(pointers[-1]), self._info.nnz
        is_begun, is_ended = self.start > 0 or first == 0, self.stop <= self._info.shape[0] or last == nnz
        if not (is_begun and is_ended and first >= 0 and last <= nnz and _is_ascending(pointers)):
            raise StoreDamagedError(
                f"{self._describe(slice(self.start, self.stop))} do not ascend from 0 to the {nnz:,} entries; {MEND}"
            )

    def _check_ids(self, first: int, ids: np.ndarray) -> None:
        is_fall = ids[1:] <= ids[:-1]
        if is_fall.any():
            row = first + int(is_fall.argmax())
            raise StoreDamagedError(
                f"{self._describe(slice(self.start, self.stop))}: the ids must ascend, but the id of row {row + 1} is "
                f"not greater than that of row {row}; {MEND}"
            )

    def _describe(self, piece: slice) -> str:
        return f"{self._info.url}: {self._path}, elements {piece.start} to {piece.stop}"


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
        group = get_version(root, self.version, url) if self.version in names else None
        stored = None if group is None else check_version(group, self.place, url)
        if stored is None or stored.info.digest != self.digest:
            raise StoreError(
                f"{url} now holds version {names[-1]}, not the opened version {self.version}; it was replaced, or "
                "this machine has another store at this path: open it again"
            )
        return stored.transpose() if self.is_transpose else stored


def open_store(store: StoreLike, version: str | int | None = None) -> ZarrMatrix:
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

    def read(root: zarr.Group, names: list[str], url: str) -> ZarrMatrix:
        name = names[-1] if version is None else find_version(names, version, url)
        return check_version(get_version(root, name, url), store, url)

    return read_named(store, read)


def read_recorded(stored: ZarrMatrix) -> dict[str, Any]:
    """Return the attributes that were recorded when the version was written."""
    attributes: Any = stored.group.attrs[KEY]
    return dict(attributes)


def check_version(group: zarr.Group, place: StoreLike, url: str) -> ZarrMatrix:
    """Check that a version is complete, and return it opened."""
    info = read_info(group, url)
    expected = _expected_arrays(info)

    def find(name: str) -> Any:
        return get_member(group, name, url) if name == "transpose" else _find_array(group, name, *expected[name], url)

    names = [*expected, *(["transpose"] if info.has_transpose else [])]
    threads = 1 if type(group.store) is LocalStore else len(names)  # other stores may be far away
    found = digests.run_parts(find, names, threads)
    arrays = dict(zip(expected, found, strict=False))
    attributes: Any = group.attrs[KEY]
    with translating_metadata_errors(url, group.path):
        recorded = attributes.get("chunk_checksums")  # missing in versions of older programs
        checksums = {} if recorded is None else {n: decode_checksums(recorded[n], arrays[n].nchunks) for n in arrays}
    return ZarrMatrix(info=info, place=place, arrays=arrays, group=group, checksums=checksums)


def _find_array(group: zarr.Group, name: str, length: int, dtype: str, url: str) -> zarr.Array[Any]:
    array: zarr.Array[Any] = get_member(group, name, url)
    with translating_metadata_errors(url, array.path):
        fault = chunks.find_chunk_fault(array)
    if array.shape != (length,):
        raise StoreDamagedError(f"{url}: {array.path} has shape {array.shape}, should have ({length},); {MEND}")
    found = "string" if digests.is_string(array) else array.dtype.name
    if found not in dtype.split(" or "):
        raise StoreDamagedError(f"{url}: {array.path} has dtype {found}, should have {dtype}; {MEND}")
    if fault:
        raise StoreDamagedError(f"{url}: {array.path} {fault}; {MEND}")
    n = 0
    with contextlib.suppress(FileNotFoundError):  # removed by another process while it is listed
        n = chunks.count_chunks(array)
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
            f"{TRANSPOSE}indptr": (info.shape[1] + 1, "int64"),
            f"{TRANSPOSE}indices": (info.nnz, "int32 or int64"),
        }
        if info.dtype is not None:
            arrays[f"{TRANSPOSE}data"] = (info.nnz, info.dtype)
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
    size = digests.CHUNK_ELEMENTS if isinstance(array, np.ndarray) else DEVICE_PIECE
    parts = (array[k : k + size + 1] for k in range(0, len(array) - 1, size))
    return all(int(part.min()) >= 0 and int((part[1:] - part[:-1]).min()) >= 0 for part in parts)


def _is_permutation(array: np.ndarray) -> bool:
    """Return whether the array has each of 0..n-1 once; works by pieces, as above."""
    n = len(array)
    if n and (array.min() < 0 or array.max() >= n):
        return False
    is_there = np.zeros(n, bool)
    for k in range(0, n, digests.CHUNK_ELEMENTS):
        is_there[array[k : k + digests.CHUNK_ELEMENTS]] = True
    return bool(is_there.all())


# --- checks of a whole store -----------------------------------------------------------------------------------------


def verify_store(store: StoreLike, report: Progress | None = None) -> list[str]:
    """Read all of a store and check it; this takes the memory of the whole store, twice that with a transpose.

    Returns
    -------
    Problems and their positions, one line each; empty if there are none.

    Raises
    ------
    StoreNotFoundError, StoreFormatError, StoreUnfinishedError : no store to check
    """
    report = report or (lambda phase, done, total: None)
    try:
        stored = open_store(store)
    except StoreDamagedError as error:
        return [str(error)]
    info, recorded = stored.info, read_recorded(stored)["array_digests"]
    arrays, problems = _read_arrays(stored, recorded, "", report)
    if "vertex_ids" in arrays:
        ids = arrays["vertex_ids"]
        problems += _find_wrong("vertex", np.append(False, ids[1:] <= ids[:-1]), "vertex_ids: must ascend")
    if "order" in arrays:
        order, n = arrays["order"], len(arrays["order"])
        wrong = (order < 0) | (order >= n)
        if not wrong.any():
            wrong = np.bincount(order, minlength=n)[order] > 1
        problems += _find_wrong("row", wrong, f"order: must hold each of 0..{n - 1} once")
    needed = {name for name in stored.arrays if name != "vertex_ids" and not name.startswith("transpose/")}
    if not arrays.keys() >= needed:
        return problems
    if of_csr := list(_check_csr(info, arrays)):
        return problems + of_csr
    problems += _check_attributes(stored, {name: arrays[name] for name in needed})
    problems += _check_values(info, arrays)
    if info.kind != "matrix":
        problems += _check_columns(info, arrays)
    if info.has_transpose:
        problems += _check_transpose(stored, recorded, arrays, report)
    return problems


def _read_arrays(
    stored: StoredMatrix, recorded: dict[str, str], prefix: str, report: Progress
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the arrays that can be read, and the problems of all arrays."""
    arrays, problems = {}, []
    for name in sorted(name for name in stored.arrays if not name.startswith("transpose/")):
        report(f"verify {prefix}{name}", 0, None)
        try:
            arrays[name] = stored.read_array(name, checks=False)
        except StoreError as error:
            problems.append(str(error))
            continue
        if digest_array(arrays[name]) != recorded.get(prefix + name):
            problems.append(f"{prefix}{name}: the digest differs from the one written at ingest")
    return arrays, problems


def _check_csr(info: MatrixInfo, arrays: dict[str, np.ndarray]) -> Iterator[str]:
    indptr, indices = arrays["indptr"], arrays["indices"]
    steps = np.diff(indptr)
    if indptr[0] != 0 or indptr[-1] != info.nnz or (steps < 0).any():
        said = f"indptr: must ascend from 0 to nnz = {info.nnz}"
        yield next(_find_wrong("row", steps < 0, said), said)
        return
    outside = (indices < 0) | (indices >= info.shape[1])
    if outside.any():
        yield from _find_wrong("entry", outside, f"indices: must be in 0..{info.shape[1] - 1}")
        return
    first = np.zeros(info.nnz, dtype=bool)
    first[indptr[:-1][steps > 0]] = True
    gaps = np.diff(indices, prepend=indices[:1])
    falls = ~first & (gaps < 0 if info.duplicates == "keep" else gaps <= 0)
    yield from _find_wrong("entry", falls, "indices: must ascend in each row")


def _check_attributes(stored: ZarrMatrix, arrays: dict[str, np.ndarray]) -> Iterator[str]:
    info = stored.info
    nbytes = sum(array.nbytes for array in arrays.values())
    if nbytes != info.nbytes:
        yield f"attributes: the arrays take {nbytes} bytes, but the attributes state {info.nbytes}"
    shape = stored.group.attrs.get("shape")
    if not info.is_pattern and shape != list(info.shape):
        yield f"attributes: the shape for anndata must be {list(info.shape)}, not {shape}"


def _check_values(info: MatrixInfo, arrays: dict[str, np.ndarray]) -> Iterator[str]:
    data = arrays.get("data")
    if find_least(data) != info.min_weight:
        yield f"data: the least value is {find_least(data)}, but the attributes state {info.min_weight}"
    if data is not None and info.kind != "matrix":
        yield from _find_wrong("entry", ~np.isfinite(data), f"data: the weights of a {info.kind} must be finite")


def _check_columns(info: MatrixInfo, arrays: dict[str, np.ndarray]) -> Iterator[str]:
    n_cols = info.shape[1]
    indices, data = arrays["indices"], arrays.get("data")
    degree = total = np.bincount(indices, minlength=n_cols)
    wrong = degree != arrays["out_degree"]
    yield from _find_wrong("column", wrong, "out_degree: must be the number of entries in each column")
    if data is not None:
        total = np.bincount(indices, weights=data, minlength=n_cols)
        scale = np.bincount(indices, weights=np.abs(data), minlength=n_cols)
        wrong = ~(np.abs(total - arrays["out_weight"]) <= 1e-9 * scale)
        yield from _find_wrong("column", wrong, "out_weight: must be the sum of each column")
    if info.kind == "stochastic":
        wrong = (degree > 0) & ~(np.abs(total - 1) <= STOCHASTIC_TOLERANCE)
        yield from _find_wrong("column", wrong, "data: each column of a stochastic matrix must sum to 1")
        if data is not None:
            yield from _find_wrong("entry", data < 0, "data: entries of a stochastic matrix must not be negative")


def _check_transpose(
    stored: ZarrMatrix, recorded: dict[str, str], arrays: dict[str, np.ndarray], report: Progress
) -> list[str]:
    info = stored.info
    found, problems = _read_arrays(stored.transpose(), recorded, "transpose/", report)
    from scipy.sparse import csr_array

    values = arrays.get("data", np.ones(info.nnz, bool))
    turned = csr_array((values, arrays["indices"], arrays["indptr"]), shape=info.shape).tocsc()
    indices = turned.indices.astype(index_dtype(info.shape[0]), copy=False)
    right = {"indptr": turned.indptr.astype(np.int64, copy=False), "indices": indices, "data": turned.data}
    for name in sorted(found.keys() & right.keys()):
        if digest_array(found[name]) != digest_array(right[name]):
            problems.append(f"transpose/{name}: differs from the transpose of the matrix")
    return problems


def _find_wrong(unit: str, wrong: np.ndarray, problem: str) -> Iterator[str]:
    """Yield a problem with the position of the first wrong element, if there is one."""
    if wrong.any():
        yield f"{problem}, wrong at {unit} {int(np.flatnonzero(wrong)[0])}"
