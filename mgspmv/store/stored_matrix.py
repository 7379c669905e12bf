"""Matrices whose arrays are read on request: from a version of a store, or from memory."""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from mgspmv.display.frames import render_card
from mgspmv.ingest_report import IngestReport
from mgspmv.model import CsrBlock, Kind, MatrixInfo
from mgspmv.store.digests import CHUNK_ELEMENTS

if TYPE_CHECKING:
    from mgspmv.store.locations import StoreLike


FORMAT_VERSION = 1
"""Version of the format of stores."""
TRANSPOSE = "transpose/"
"""Prefix of the arrays of the stored transpose."""


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
class Range:
    """Range of an array of a matrix, and what it is read into."""

    name: str
    """Name of the array."""
    start: int = 0
    """First element."""
    stop: int | None = None
    """End of the elements; None for that of the array."""
    allocate: Allocate = HostArray
    """Allocates the result."""
    dtype: Any = None
    """Dtype of the result; None for that of the array."""
    checks: bool = True
    """Whether the elements of a store are checked; chunks always are."""


@dataclass(frozen=True, kw_only=True)
class StoredMatrix(ABC):
    """Matrix whose arrays are read on request."""

    info: MatrixInfo
    """Metadata of the matrix."""
    place: StoreLike
    """Path, URL or Zarr store that it was opened from; `memory://` for one without a store."""
    arrays: dict[str, Any] = field(repr=False)
    """Arrays of the matrix by name; those of the stored transpose as `transpose/NAME`."""
    original: StoredMatrix | None = None
    """Matrix that this one is the transpose of; None for a matrix that is not a transpose."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {'' if self.original is None else 'transpose of '}{self.info!r}>"

    @abstractmethod
    def read_range(self, asked: Range, threads: int | None = None) -> Any:
        """Read a range of an array; errors as for `read_array`."""

    def read_ranges(self, ranges: Sequence[Range], threads: int | None = None) -> list[Any]:
        """Read ranges of arrays, of a store all of them at once."""
        return [self.read_range(asked, threads) for asked in ranges]

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
        """Read elements `start` .. `stop` of an array, possibly read-only; arguments as in `Range`.

        Raises
        ------
        OptionError : values beyond the range of `dtype`
        StoreError : as for `mgspmv.store.read.ZarrMatrix`
        """
        elements: np.ndarray = self.read_range(Range(name, start, stop, allocate, dtype, checks), threads)
        return elements

    @property
    def written(self) -> StoredMatrix:
        """This matrix; one that is held in memory while its store is written, from that store, for which this waits."""
        return self

    @property
    def known_info(self) -> MatrixInfo:
        """Metadata as far as it is known, without waiting."""
        return self.info

    @property
    def ends(self) -> dict[int, int]:
        """First and last row pointer by row, known before any are read; to read all rows checks them."""
        return {0: 0, self.info.shape[0]: self.info.nnz}

    @property
    def digest(self) -> str:
        """Digest of the matrix, or of the one that it is the transpose of."""
        return self.info.digest

    @abstractmethod
    def address(self) -> Any:
        """Return the `StoreAddress` of this version for other processes.

        Raises
        ------
        OptionError : the matrix is in the memory of this process
        """

    def read_order(self, threads: int | None = None) -> np.ndarray | None:
        """Read the source's number of each row and column; None if they are in the order of the source."""
        return None

    def read_block(
        self, start: int, stop: int, dtype: Any, threads: int | None = None, allocate: Allocate = HostArray
    ) -> CsrBlock:
        """Read rows `start` .. `stop` as they are stored, and no other rows.

        Parameters
        ----------
        dtype : of the block's values, float32 or float64; None leaves them out
        threads : number of chunks in flight; memory peaks at the block plus one chunk, raw and compressed, for each

        Raises
        ------
        OptionError, StoreError : as for `read_array`
        """
        return self.read_entries(start, self.read_pointers(start, stop, threads, allocate), dtype, threads, allocate)

    def read_entries(
        self, start: int, pointers: Any, dtype: Any, threads: int | None = None, allocate: Allocate = HostArray
    ) -> CsrBlock:
        """Read the rows from `start` on, whose row pointers were read before.

        Parameters
        ----------
        pointers : (n_rows + 1,) int64, a copy, which is changed; others and errors as for `read_block`
        """
        first, last = int(pointers[0]), int(pointers[-1])
        pointers -= first
        indices = self.read_array("indices", first, last, threads, allocate)
        data = self._read_values(first, last, dtype, threads, allocate)
        return CsrBlock(start, self.info.shape[1], pointers, indices, data)

    def read_pointers(self, start: int, stop: int, threads: int | None = None, allocate: Allocate = HostArray) -> Any:
        """Read the row pointers of rows `start` .. `stop`, including the end of the last row.

        (stop + 1 - start,) int64, a copy that the caller may change; parameters and errors as for `read_block`.
        """
        return self.read_array("indptr", start, stop + 1, threads, allocate)

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
        arrays = {n.removeprefix(TRANSPOSE): array for n, array in self.arrays.items() if n.startswith(TRANSPOSE)}
        info = replace(self.info, shape=(n_cols, n_rows), index_dtype=arrays["indices"].dtype.name)
        if info.kind != "graph":
            info = replace(info, kind="matrix", vertex_ids=None)
        return replace(self, info=info, arrays=arrays, original=self)

    def name_entries(self, *, weights: bool = True) -> str:
        """Return an identifier of the entries: the digest, and whether they are transposed or taken as 1."""
        said = [self.digest]
        said += ["transposed"] if self.original is not None else []
        said += [] if weights or self.info.is_pattern else ["pattern"]
        return ", ".join(said)

    def read_values(self, start: int, stop: int, dtype: Any, threads: int | None = None) -> Any:
        """Read only the values of rows `start` .. `stop`, as `read_block` does; None for a pattern."""
        first, last = (int(self.read_pointers(row, row)[0]) for row in (start, stop))
        if first > last:  # the store is damaged, which the check of all pointers says
            self.read_pointers(start, stop, threads)
        return self._read_values(first, last, dtype, threads, HostArray)

    def _read_values(self, start: int, stop: int, dtype: Any, threads: int | None, allocate: Allocate) -> Any:
        is_wanted = dtype is not None and not self.info.is_pattern
        return self.read_array("data", start, stop, threads, allocate, dtype=dtype) if is_wanted else None


class StoredPointers:
    """(n_rows + 1,) row pointers for plans, which look at few: a chunk is read when one of its elements is first
    needed, and kept; `ends` are not read.

    Raises
    ------
    StoreError : as for `StoredMatrix.read_array`, from each element
    """

    def __init__(self, stored: StoredMatrix) -> None:
        self._stored, self._held = stored, dict[int, np.ndarray]()

    def __len__(self) -> int:
        return self._stored.info.shape[0] + 1

    def __getitem__(self, row: Any) -> int:
        if (known := self._stored.ends.get(int(row))) is not None:
            return known
        number, place = divmod(int(row), CHUNK_ELEMENTS)
        if number not in self._held:
            first = number * CHUNK_ELEMENTS
            self._held[number] = self._stored.read_array("indptr", first, min(first + CHUNK_ELEMENTS, len(self)))
        return int(self._held[number][place])


def find_least(data: np.ndarray | None) -> float | None:
    """Return `MatrixInfo.min_weight`; None if there is no value or it is not finite, which JSON cannot represent."""
    least = math.nan if data is None or not len(data) else float(data.min())
    return least if math.isfinite(least) else None


class MatrixProperties:
    """Properties of a matrix that comes from a store, wherever its entries are held."""

    __array_ufunc__ = None  # so that NumPy leaves `x @ A` to `__rmatmul__`

    multiply: Callable[..., Any]
    close: Callable[[], None]
    reading_s = 0.0
    """Seconds in which its source was read for the next call; 0 where it was not read for one."""

    def __init__(self, stored: StoredMatrix) -> None:
        self.stored = stored

    def __matmul__(self, x: Any) -> Any:
        """Return A @ x for x of shape (n_cols,) or (n_cols, k); float32 when A's values and x are, else float64.

        Raises
        ------
        OptionError : A and x are integers, and the product may not be exact in float64; see `mgspmv.spmv`
        """
        return self.multiply(x)

    def matvec(self, x: Any) -> Any:
        """Return A @ x; SciPy calls it by this name.

        Examples
        --------
        >>> import mgspmv as mg
        >>> mg.ingest([("a", "b", 2.0), ("b", "a", 3.0)]).matvec([1.0, 10.0])
        array([30.,  2.])
        """
        return self.multiply(x)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _repr_html_(self) -> str:
        return render_card(self, self.info)

    @property
    def info(self) -> MatrixInfo:
        """Metadata of the stored matrix, once it is written."""
        return self.stored.written.info

    @property
    def ingest_report(self) -> IngestReport | None:
        """Report of the ingest that made the store; None for a store without a report."""
        return self.stored.info.ingest_report

    @property
    def shape(self) -> tuple[int, int]:
        """(n_rows, n_cols)."""
        return self.stored.info.shape

    @property
    def ndim(self) -> int:
        """Number of dimensions: 2."""
        return 2

    @property
    def nnz(self) -> int:
        """Number of stored entries."""
        return self.stored.info.nnz

    @property
    def kind(self) -> Kind:
        """Meaning of the rows: row i of a `graph` has the in-edges of vertex i."""
        return self.stored.info.kind

    @property
    def is_pattern(self) -> bool:
        """True if all entries are 1 and no values are stored."""
        return self.stored.info.is_pattern

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """Dtype of the stored values; None for a pattern."""
        dtype = self.stored.info.dtype
        return None if dtype is None else np.dtype(dtype)

    @property
    def is_transpose(self) -> bool:
        """True if this is the `T` of another matrix."""
        return self.stored.original is not None

    @cached_property
    def vertex_ids(self) -> np.ndarray | None:
        """(n_rows,) int64 or strings, ascending: id of each row in the source; None if the ids are 0..n-1."""
        stored = self.stored.original or self.stored
        return None if stored.info.vertex_ids is None else stored.read_array("vertex_ids")

    @cached_property
    def order(self) -> np.ndarray | None:
        """(n,) int32 or int64: the source's number of each stored row and column; None if they are in its order.

        Vectors and results are always in the source's order.
        """
        return self.stored.read_order()
