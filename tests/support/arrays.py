"""Whole matrices in memory: made of sources, written to stores and read from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import scipy.sparse

from mgspmv.ingest.build import assemble
from mgspmv.ingest.entries import sort_source
from mgspmv.ingest.numbering import find_id_type
from mgspmv.ingest.source import Layout, Source
from mgspmv.model import Duplicates, IngestOptions, Kind, MatrixInfo, Progress, index_dtype
from mgspmv.store.held import describe_unstored
from mgspmv.store.locations import StoreLike
from mgspmv.store.stored_matrix import StoredMatrix, find_least
from mgspmv.store.versions import check_target
from mgspmv.store.write import Version, begin_version


@dataclass(frozen=True)
class CsrArrays:
    """A whole matrix ready to be stored."""

    kind: Kind
    shape: tuple[int, int]
    indptr: np.ndarray
    """int64, shape (n_rows + 1,)."""
    indices: np.ndarray
    """int32 or int64, shape (nnz,), sorted in each row."""
    data: np.ndarray | None
    """Shape (nnz,), dtype as stored; None for a pattern."""
    duplicates: Duplicates
    """The rule that was applied."""
    out_degree: np.ndarray | None = None
    """int64, shape (n_cols,): entries in each column; None for kind `matrix`."""
    out_weight: np.ndarray | None = None
    """float64, shape (n_cols,): sum of each column; None for a pattern or kind `matrix`."""
    vertex_ids: np.ndarray | None = None
    """int64 or strings, shape (n_rows,): the source's name of each vertex; None when they are 0..n-1."""
    order: np.ndarray | None = None
    """Like indices, shape (n_rows,): the source's number of each row and column; None when they are in its order. The
    ids are not reordered: they are those of the source's numbers."""
    order_method: str | None = None
    """What made the order."""

    @property
    def nnz(self) -> int:
        return len(self.indices)

    @property
    def dtype(self) -> str | None:
        """Dtype of the values; None for a pattern."""
        return None if self.data is None else self.data.dtype.name

    @property
    def index_dtype(self) -> str:
        return self.indices.dtype.name

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, without the ids."""
        arrays = (self.indptr, self.indices, self.data, self.out_degree, self.out_weight, self.order)
        return sum(a.nbytes for a in arrays if a is not None)


class HeldArray:
    """An array in memory, as `assemble` makes it."""

    def __init__(self, name: str, dtype: np.dtype[Any], most: int) -> None:
        self._parts = [np.empty(0, dtype)]

    def append(self, elements: np.ndarray) -> None:
        self._parts.append(elements.astype(self._parts[0].dtype))

    def finish(self) -> np.ndarray:
        return np.concatenate(self._parts)

    def pieces(self) -> Iterator[np.ndarray]:
        yield self.finish()


def build_matrix(source: Source, options: IngestOptions, report: Progress) -> tuple[CsrArrays, Layout]:
    """Read a source to its end and sort it into CSR, in the order of the source; all of it in memory.

    Raises
    ------
    SourceError : as for `sort_source` and `assemble`
    OptionError, ShapeError : as for `sort_source`
    """
    with sort_source(source, options, report) as sorted_source:
        made = assemble(sorted_source, HeldArray, report)
        layout, arrays = sorted_source.layout, {"data": None} | made.arrays
        vertex_ids = None if layout.vertex_ids is None else layout.vertex_ids[:]
    own: dict[str, Any] = arrays | {"duplicates": sorted_source.rule, "vertex_ids": vertex_ids}
    return CsrArrays(sorted_source.kind, layout.shape, **own), replace(layout, vertex_ids=vertex_ids)


def read_entries(source: Source) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, Layout]:
    """Rows, columns and values of all entries, and the layout."""
    batches = list(source.batches())
    (is_pattern,) = {batch.values is None for batch in batches}
    rows, cols = (np.concatenate([getattr(batch, side) for batch in batches]) for side in ("rows", "cols"))
    return rows, cols, None if is_pattern else np.concatenate([batch.values for batch in batches]), source.layout()


def read_numbered(source: Source) -> tuple[list[int], list[int], np.ndarray | None, Layout]:
    """The same with numbers of vertices."""
    rows, cols, values, layout = read_entries(source)
    rows, cols, layout = number_codes(rows, cols, layout)
    return rows.tolist(), cols.tolist(), values, layout


def number_codes(rows: np.ndarray, cols: np.ndarray, layout: Layout) -> tuple[np.ndarray, np.ndarray, Layout]:
    """Numbers of vertices in place of ids or codes, and the layout with them."""
    codes = np.stack([rows, cols])
    layout = layout.settle_claim((codes.min(initial=0), codes.max(initial=-1)))
    if layout.positions is not None:
        codes = layout.positions[codes]
    if layout.are_ids:  # as in tests/ingest/test_numbering.py
        ids, numbers = np.unique(codes, return_inverse=True)
        given = None if ids.tolist() == list(range(len(ids))) else ids
        layout = replace(layout, shape=(len(ids), len(ids)), vertex_ids=given, are_ids=False)
        codes = numbers.reshape(codes.shape)
    return codes[0], codes[1], layout


def transpose_arrays(matrix: CsrArrays) -> CsrArrays:
    """The CSR arrays of the transpose, without degrees and ids."""
    n_rows, n_cols = matrix.shape
    values = np.ones(matrix.nnz, bool) if matrix.data is None else matrix.data
    turned = scipy.sparse.csr_array((values, matrix.indices, matrix.indptr), shape=matrix.shape).tocsc()
    indptr, indices = turned.indptr.astype(np.int64), turned.indices.astype(index_dtype(n_rows))
    data = None if matrix.data is None else turned.data
    return CsrArrays(matrix.kind, (n_cols, n_rows), indptr, indices, data, duplicates=matrix.duplicates)


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

    Returns
    -------
    What the version says of itself.

    Raises
    ------
    StoreExistsError : a finished store is there and `overwrite` is false, or something that is no store of mgspmv
    StoreError : as for `begin_version`
    """
    with begin_version(store, base=check_target(store, overwrite=overwrite)) as version:
        report = on_progress or (lambda phase, done, total: None)
        _write_csr(version, "", matrix, report, threads)
        if transpose is not None:
            _write_csr(version, "transpose", transpose, report, threads)
        return version.commit(_describe(matrix, version, provenance or {}))


def read_arrays(stored: StoredMatrix) -> CsrArrays:
    """Read all of the matrix but its transpose, as `write_store` takes it.

    Raises
    ------
    StoreDamagedError : as for `read_array` and `read_order`
    """
    names = [name for name in stored.arrays if name != "order" and not name.startswith("transpose/")]
    arrays: dict[str, Any] = {"data": None} | {name: stored.read_array(name) for name in names}
    arrays |= {"order": stored.read_order(), "order_method": stored.info.order}
    kind = stored.info.kind if stored.original is None else "matrix"  # a transpose has no degrees
    return CsrArrays(kind, stored.info.shape, **arrays, duplicates=stored.info.duplicates)


def _write_csr(
    version: Version,
    place: str,
    matrix: CsrArrays,
    report: Callable[[str, int, int | None], None],
    threads: int | None,
) -> None:
    version.open_rows(place, matrix.shape, has_values=matrix.data is not None)
    names = ("indptr", "indices", "data", "out_degree", "out_weight", "vertex_ids", "order")
    present = {name: array for name in names if (array := getattr(matrix, name)) is not None}
    done, total = 0, sum(len(array) for array in present.values())
    for name, array in present.items():
        report("write", done, total)
        version.write_array(f"{place}/{name}".lstrip("/"), array, threads)
        done += len(array)
    report("write", total, total)


def _describe(matrix: CsrArrays, version: Version, provenance: dict[str, Any]) -> dict[str, Any]:
    dtype = None if matrix.data is None else matrix.data.dtype
    own = matrix.kind, matrix.shape, matrix.nnz, dtype, matrix.duplicates, find_id_type(matrix.vertex_ids)
    index, order = cast(Any, (matrix.index_dtype, matrix.order_method))
    info = describe_unstored(*own, find_least(matrix.data), provenance, order=order)
    return version.describe(replace(info, index_dtype=index))
