"""Matrices that are held in the memory of this process, on the host or on a device, also if they are in a store."""

from __future__ import annotations

import atexit
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from mgspmv.errors import OptionError, translating
from mgspmv.logs import log_unwritten
from mgspmv.model import Duplicates, Kind, MatrixInfo, OrderMethod, index_dtype
from mgspmv.store.digests import combine_digests, digest_array, run_parts
from mgspmv.store.locations import find_address
from mgspmv.store.stored_matrix import FORMAT_VERSION, TRANSPOSE, Allocate, HostArray, Range, StoredMatrix

PLACE = "memory://"
HeldArrays = dict[str, Any]
"""Arrays of NumPy or CuPy by name, as in a store."""
VERSION = "v000000-memory"
"""Version of a matrix that is not in a store."""
PIECE = 1 << 20
"""Most elements that a thread copies at a time."""


class Writing(Future[StoredMatrix]):
    """Future of a matrix as it is in its store, which may be written by a thread.

    If the process ends meanwhile, the store is not written, and a warning says so.
    """

    def start(self, write: Callable[[], StoredMatrix], url: str) -> None:
        """Call a function that writes the store, and opens it, in a thread."""
        threading.Thread(target=self._run, args=(write, url), name="mgspmv-store").start()

    def finish(self) -> StoredMatrix | None:
        """Wait for the matrix; raise the error of the writing the first time, and return None afterwards."""
        error = self.exception()
        if error is None:
            return self.result()
        if _unraised.pop(self, None) is not None:
            raise error
        return None

    def _run(self, write: Callable[[], StoredMatrix], url: str) -> None:
        try:
            with translating():
                self.set_result(write())
        except BaseException as error:
            log_unwritten(url, error)
            _unraised[self] = f"{url} was not written: {error}; close the matrix, or use it in a `with`"
            self.set_exception(error)


_unraised: dict[Writing, str] = {}
"""Warnings of those that failed and did not raise their error yet."""


@atexit.register  # once no thread can use others any more, and all have ended
def _warn_of_unwritten() -> None:
    for warning in _unraised.values():
        warnings.warn(warning, stacklevel=1)


@dataclass(frozen=True, kw_only=True, repr=False)
class HeldMatrix(StoredMatrix):
    """Matrix whose arrays are those of NumPy, or of CuPy on the current device.

    What is read is a view where nothing has to be converted or moved; views are read-only on the host.
    """

    writing: Writing | None = None
    """The same matrix in a store, which may have more arrays; None without a store."""

    def read_range(self, asked: Range, threads: int | None = None) -> Any:
        if asked.name not in self.arrays and self.writing is not None:
            return self.written.read_range(asked, threads)
        array = self.arrays[asked.name][asked.start : asked.stop]
        if asked.dtype is not None and array.dtype != asked.dtype:
            array = _convert(array, asked.dtype)
        if isinstance(array, np.ndarray) == (asked.allocate is HostArray):
            return array
        if asked.allocate is HostArray:
            return to_host(array)
        filled = asked.allocate(len(array), array.dtype)

        def fill(first: int) -> None:
            own = array[first : first + PIECE]
            with filled.piece(first, first + len(own)) as target:
                target[:] = own

        run_parts(fill, range(0, len(array), PIECE), threads)
        return filled.finish()

    def read_pointers(self, start: int, stop: int, threads: int | None = None, allocate: Allocate = HostArray) -> Any:
        return super().read_pointers(start, stop, threads, allocate).copy()

    @cached_property
    def written(self) -> StoredMatrix:
        if self.writing is None:
            return self
        whole = self.writing.result()
        return whole if self.original is None else whole.transpose()

    @property
    def known_info(self) -> MatrixInfo:
        is_known = self.writing is not None and self.writing.done() and self.writing.exception() is None
        return self.written.info if is_known else self.info

    @cached_property
    def digest(self) -> str:
        """Digest of the store, or of the one that an ingest of the source would write."""
        if self.writing is not None:
            return self.written.digest
        info = self.info if self.original is None else self.original.info
        arrays = self.arrays if self.original is None else self.original.arrays
        own = {name: to_host(array) for name, array in arrays.items() if not name.startswith(TRANSPOSE)}
        claims = vars(info) | {"shape": list(info.shape)}
        return combine_digests({name: digest_array(array) for name, array in own.items()}, claims)

    def address(self) -> Any:
        return find_address(self.place, self.info.url) if self.writing is None else self.written.address()


def describe_unstored(
    kind: Kind,
    shape: tuple[int, int],
    nnz: int,
    dtype: np.dtype[Any] | None,
    rule: Duplicates,
    id_type: Literal["int64", "string"] | None,
    least: float | None,
    provenance: dict[str, Any],
    *,
    order: OrderMethod | None = None,
    has_transpose: bool = False,
    nbytes: int = 0,
) -> MatrixInfo:
    """Return the description of a matrix that is in no store, or not yet; arguments as in `MatrixInfo`."""
    return MatrixInfo(
        url=PLACE,
        kind=kind,
        shape=shape,
        nnz=nnz,
        dtype=None if dtype is None else dtype.name,  # type: ignore[arg-type]
        index_dtype=index_dtype(shape[1]).name,  # type: ignore[arg-type]
        duplicates=rule,
        vertex_ids=id_type,
        min_weight=least,
        has_transpose=has_transpose,
        version=VERSION,
        format_version=FORMAT_VERSION,
        digest="",
        nbytes=nbytes,
        order=order,
        provenance=provenance,
    )


def name_matrix(stored: StoredMatrix) -> str:
    """Return the URL of a matrix, for messages, or what it is if it is only in memory."""
    info = stored.info
    return info.url if info.url != PLACE else "the graph" if info.kind == "graph" else "the matrix"


def is_on_device(stored: StoredMatrix) -> bool:
    """Return whether the arrays of a matrix are held on a device."""
    return isinstance(stored, HeldMatrix) and not isinstance(stored.arrays["indptr"], np.ndarray)


def to_host(array: Any) -> np.ndarray:
    """Return an array of NumPy, or a copy of one of CuPy on the host."""
    host: np.ndarray = array if isinstance(array, np.ndarray) else array.get()
    return host


def _convert(array: Any, dtype: Any) -> Any:
    """Return values in another dtype; raises OptionError for one beyond the range of float32."""
    with np.errstate(over="ignore"):
        converted = array.astype(dtype)
    if array.dtype == np.float64 and len(array):
        is_beyond = (abs(converted) > np.finfo(dtype).max) & (abs(array) <= np.finfo(array.dtype).max)
        if int(is_beyond.view(np.int8).max()):  # `any` would be compiled for six seconds on a device
            raise OptionError(
                "values are beyond the range of float32 (3.4e38); pass precision='float64' or weight=False"
            )
    return converted
