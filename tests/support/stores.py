"""Matrices to store, and Zarr stores that watch, count or fail: for the tests of the store and of what reads it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from zarr.abc.store import Store
from zarr.storage import MemoryStore, WrapperStore

from mgspmv.model import MatrixInfo
from mgspmv.store.access import wait_for
from mgspmv.store.chunks import encode_checksums
from mgspmv.store.digests import combine_digests, digest_array, digest_attributes
from mgspmv.store.stored_matrix import StoredMatrix
from tests.support.arrays import CsrArrays, write_store

STRING_IDS = np.array(["", "Zürich", "a", "aa", "日本", "𝔾"], dtype=object)
INTEGER_IDS = np.array([-(2**63), -1, 0, 7, 2**40, 2**63 - 1], dtype=np.int64)
OWN_ARRAYS = ("indptr", "indices", "data", "out_degree", "out_weight", "vertex_ids")
ARRAYS = (*OWN_ARRAYS, "transpose/indptr", "transpose/indices", "transpose/data")


def make_scipy(n_rows: int, n_cols: int, density: float = 0.2, dtype: Any = np.float64, seed: int = 0) -> sp.csr_array:
    """A random matrix with sorted rows and values other than 0."""
    rng = np.random.default_rng(seed)
    mask = rng.random((n_rows, n_cols)) < density
    values = rng.integers(1, 1000, mask.shape) / (1 if np.dtype(dtype).kind == "i" else 64)
    matrix = sp.csr_array(np.where(mask, values, 0).astype(dtype))
    matrix.sort_indices()
    return matrix


def make_arrays(
    matrix: sp.csr_array,
    kind: str = "matrix",
    *,
    pattern: bool = False,
    ids: np.ndarray | None = None,
    index_dtype: Any = np.int32,
    duplicates: str | None = None,
    order: np.ndarray | None = None,
) -> CsrArrays:
    """What the builder makes of a SciPy matrix, by other means; with an order, of one that is renumbered already."""
    degree = np.bincount(matrix.indices, minlength=matrix.shape[1])
    is_graph = kind != "matrix"
    return CsrArrays(
        kind,
        matrix.shape,
        matrix.indptr.astype(np.int64),
        matrix.indices.astype(index_dtype),
        None if pattern else matrix.data,
        duplicates or ("first" if pattern else "sum"),
        out_degree=degree.astype(np.int64) if is_graph else None,
        out_weight=np.asarray(matrix.sum(axis=0), dtype=np.float64) if is_graph and not pattern else None,
        vertex_ids=ids,
        order=order,
        order_method=None if order is None else "rcm",
    )


def make_transpose(matrix: sp.csr_array, *, pattern: bool = False) -> CsrArrays:
    """The transpose as the store takes it."""
    transposed = sp.csr_array(matrix.T)
    transposed.sort_indices()
    return make_arrays(transposed, pattern=pattern)


def make_stochastic(n: int, seed: int = 0) -> sp.csr_array:
    """A left-stochastic matrix with an empty column."""
    matrix = make_scipy(n, n, 0.3, seed=seed).toarray()
    matrix[:, n // 2] = 0
    total = matrix.sum(axis=0)
    stochastic = sp.csr_array(matrix / np.where(total == 0, 1, total))
    stochastic.sort_indices()
    return stochastic


def find_group(root: Path) -> Path:
    """Folder of a local store's current version."""
    current = json.loads((root / "zarr.json").read_text())["attributes"]["mgspmv"]["current"]
    return root / "versions" / current


def read_scipy(stored: StoredMatrix, dtype: Any = np.float64, rows: tuple[int, int] | None = None) -> sp.csr_array:
    """Rows of a store, all of them by default, as a matrix; without dtype with ones."""
    start, stop = rows or (0, stored.info.shape[0])
    block = stored.read_block(start, stop, dtype)
    assert (block.row_offset, block.n_rows, block.n_cols) == (start, stop - start, stored.info.shape[1])
    data = np.ones(block.nnz) if block.data is None else block.data
    return sp.csr_array((data, block.indices, block.indptr), shape=(stop - start, block.n_cols))


def assert_same_csr(found: sp.csr_array, expected: sp.csr_array) -> None:
    """To the bit."""
    assert found.shape == expected.shape
    assert found.indptr.tolist() == expected.indptr.tolist()
    assert found.indices.tolist() == expected.indices.tolist()
    assert found.data.tobytes() == expected.data.tobytes()


def change_json(path: Path, change: Any) -> None:
    """Have a function change what a file holds."""
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def seal(root: Path, **changes: Any) -> None:
    """Have the current version record its chunks, its arrays and what else it says as they are by now, as the author of
    a store can.

    Parameters
    ----------
    changes : of its attributes; with `array_digests`, these are recorded
    """
    group = zarr.open_group(find_group(root), mode="r+")
    attributes: Any = dict(group.attrs["mgspmv"])
    arrays: Any = {name: group[name] for name in attributes["array_digests"]}
    attributes["array_digests"] = {name: digest_array(np.asarray(array[:])) for name, array in arrays.items()}
    attributes["chunk_checksums"] = {
        name: encode_checksums(np.array([read_checksum(root, name, k) for k in range(array.nchunks)], np.uint32))
        for name, array in arrays.items()
    }
    attributes |= changes
    attributes["digest"] = combine_digests(attributes["array_digests"], attributes)
    group.attrs["mgspmv"] = attributes | {"attributes_digest": digest_attributes(attributes)}


def read_checksum(root: Path, name: str, number: int) -> int:
    """The CRC-32C at the end of a chunk; 0 where Zarr has left one of zeros out."""
    path = find_group(root) / name / "c" / str(number)
    return int.from_bytes(path.read_bytes()[-4:], "little") if path.exists() else 0


def put(root: Path, name: str, elements: Any) -> None:
    """Give an array other elements, all of them or a dict of some, and record them."""
    array: Any = zarr.open_group(find_group(root), mode="r+")[name]
    for place, element in elements.items() if isinstance(elements, dict) else [(slice(None), np.asarray(elements))]:
        array[place] = element
    seal(root)


def forget_records(root: Path) -> None:
    """Make a store one of the time before checksums of chunks and a digest of all attributes were recorded."""
    group = zarr.open_group(find_group(root), mode="r+")
    attributes: Any = dict(group.attrs["mgspmv"])
    group.attrs["mgspmv"] = {k: v for k, v in attributes.items() if k not in ("chunk_checksums", "attributes_digest")}


def digest(arrays: CsrArrays, **options: Any) -> str:
    """Of the store that they make."""
    return write_store(MemoryStore(), arrays, **options).digest


def list_keys(place: Store) -> list[str]:
    """Of all that a store holds."""

    async def collect() -> list[str]:
        return sorted([key async for key in place.list()])

    return wait_for(collect())


def list_version_names(place: Store) -> list[str]:
    """Names of which anything is left."""
    return sorted({key.split("/")[1] for key in list_keys(place) if key.startswith("versions/v")})


def make_obstore(path: Path) -> Store:
    """A folder by obstore; skips where that is not installed."""
    store = pytest.importorskip("obstore.store")
    return zarr.storage.ObjectStore(store.LocalStore(path, mkdir=True))


class WatchingStore(WrapperStore[Store]):
    """Notes what is got, set and deleted, in order, as (operation, key)."""

    def __init__(self, store: Store | None = None, calls: list[tuple[str, str]] | None = None) -> None:
        super().__init__(MemoryStore() if store is None else store)
        self.calls = [] if calls is None else calls

    def _with_store(self, store: Store) -> WatchingStore:
        return type(self)(store, self.calls)

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        self.calls.append(("get", key))
        return await super().get(key, prototype, byte_range)

    async def set(self, key: str, value: Any) -> None:
        self.calls.append(("set", key))
        await super().set(key, value)

    async def set_if_not_exists(self, key: str, value: Any) -> None:
        if not await self.exists(key):
            await self.set(key, value)

    async def _set_many(self, values: Any) -> None:
        for key, value in values:
            await self.set(key, value)

    async def delete(self, key: str) -> None:
        self.calls.append(("delete", key))
        await super().delete(key)

    async def delete_dir(self, prefix: str) -> None:
        """Key by key, so that each deletion is seen, and can fail."""
        await Store.delete_dir(self, prefix)

    def keys(self, operation: str) -> list[str]:
        return [key for name, key in self.calls if name == operation]

    def chunks_read(self) -> list[str]:
        return [key for key in self.keys("get") if "/c/" in key]


class FarStore(WatchingStore):
    """As one that is far away: each request takes its time. Notes `("begin", "round")` when one begins while none is
    out."""

    def __init__(self, store: Store | None = None, calls: list[tuple[str, str]] | None = None) -> None:
        super().__init__(store, calls)
        self._n_out = 0

    @property
    def n_rounds(self) -> int:
        return len(self.keys("begin"))

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        async with self._travel():
            return await super().get(key, prototype, byte_range)

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        async with self._travel():
            found = [key async for key in super().list_prefix(prefix)]
        for key in found:
            yield key

    @asynccontextmanager
    async def _travel(self) -> AsyncIterator[None]:
        if self._n_out == 0:
            self.calls.append(("begin", "round"))
        self._n_out += 1
        try:
            await asyncio.sleep(0.1)  # longer than a busy machine takes from one request to the next
            yield
        finally:
            self._n_out -= 1


class Crash(OSError):
    """What a `CrashingStore` raises."""


class CrashingStore(WatchingStore):
    """Fails at the k-th write or deletion, counted from 1; if `stays_down`, at each one after it too."""

    def __init__(self, store: Store, calls: list[tuple[str, str]] | None = None, *, at: int, stays_down: bool) -> None:
        super().__init__(store, calls)
        self.at, self.stays_down = at, stays_down

    def _with_store(self, store: Store) -> CrashingStore:
        return CrashingStore(store, self.calls, at=self.at, stays_down=self.stays_down)

    async def set(self, key: str, value: Any) -> None:
        self._count()
        await super().set(key, value)

    async def delete(self, key: str) -> None:
        self._count()
        await super().delete(key)

    def _count(self) -> None:
        n = 1 + len(self.keys("set")) + len(self.keys("delete"))
        if n == self.at or (self.stays_down and n > self.at):
            self.calls.append(("set", "crash"))
            raise Crash(f"write {n}")


def forget_checksums(provenance: Any) -> Any:
    """Provenance without what it has only of files that one process read from the begin to the end."""
    if isinstance(provenance, dict):
        return {k: forget_checksums(v) for k, v in provenance.items() if k not in ("sha256", "bytes")}
    return [forget_checksums(own) for own in provenance] if isinstance(provenance, list) else provenance


def check_same(found: MatrixInfo, wanted: MatrixInfo) -> None:
    """What two stores of one matrix say of it, in whatever order its rows are."""
    for field in ("digest", "kind", "nnz", "shape", "dtype", "nbytes", "min_weight", "vertex_ids", "duplicates"):
        assert getattr(found, field) == getattr(wanted, field), field
