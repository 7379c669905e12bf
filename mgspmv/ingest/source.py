"""Interface of readers, which the builder uses, and types of values and ids, in which all of them follow these rules:

| values | stored |
|---|---|
| bool and integers | int64; one beyond it is an error |
| float16, float32 | float32 |
| float64 | float64 |
| integers with `dtype="float64"` | float64, uint64 beyond int64 too |
| whole numbers with `dtype="int64"`, such as weights in text | int64; floats from 2^53 on are an error |
| complex numbers, long doubles, objects | an error |

Ids are integers, or strings, see `find_kind`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa

from mgspmv.display.frames import unwrap_numbers
from mgspmv.errors import SourceError
from mgspmv.ingest.budget import ANY_ROOM, MemoryBudget, Stated
from mgspmv.ingest.files import make_absolute, take_name
from mgspmv.ingest.headers import StatedForm
from mgspmv.ingest.tokens import INT64_MAX
from mgspmv.model import CooBatch, Kind


@dataclass(frozen=True)
class Layout:
    """Shape, ids and provenance of a source, known once its last batch is read."""

    shape: tuple[int, int]
    """Rows and columns of the source's matrix; (n, n) vertices of a graph."""
    vertex_ids: Any = None
    """(n,) ascending ids in the source, int64 or strings (object): an array, or an object that has a dtype and a length
    and is sliced like one; None if they are 0..n-1."""
    positions: Any = None
    """(n_codes,) number of the vertex of each code in the batches: an array, or one of the other tables of
    `mgspmv.ingest.numbering.Numbers`; None if codes are already numbers."""
    ascend: bool = False
    """Whether codes are the ids themselves, and so ascend with the numbers: entries are numbered after they are sorted.
    """
    are_ids: bool = False
    """Whether the batches hold int64 ids that must still be numbered; `shape` is (0, 0) then."""
    provenance: dict[str, Any] = field(default_factory=dict)
    """JSON values about the source: name, size in bytes, sha256, format, its header's claims; a hash may be a future,
    see `settle`."""
    stated: Stated | None = None
    """Error about the place where the source states `shape` or `claim`; None if all rows are listed or the user passed
    n."""
    claim: int | None = None
    """Number of vertices that the source states, which are 0..claim-1 if all ids are among them; None if it states
    none."""

    def settle_claim(self, extent: tuple[int, int]) -> Layout:
        """Return the layout with the stated vertices if all ids are among them, else without the claim.

        Parameters
        ----------
        extent : least and greatest id; the greatest is the smaller one if there is none
        """
        if self.claim is None:
            return self
        if self.are_ids and 0 <= extent[0] <= extent[1] < self.claim:
            return replace(self, shape=(self.claim, self.claim), are_ids=False, claim=None)
        return replace(self, claim=None, stated=None)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays in memory."""
        held = (self.positions, self.vertex_ids)
        return sum(array.nbytes for array in held if isinstance(array, np.ndarray))

    @property
    def is_numbered(self) -> bool:
        """True if codes are numbers."""
        return not self.are_ids and self.positions is None


class Source(ABC):
    """Matrix that can be read once, in batches of bounded size."""

    name: str
    """Name in messages: a path or a short description."""
    default_kind: Kind
    """Kind of matrix unless the user passes another."""
    fraction: float | None = None
    """Approximate fraction that was read; None if unknown."""
    is_undirected = False
    """Whether each entry stands for both directions; known once the first batch is yielded."""
    counts_parallel = False
    """Whether entries without a value count 1, so that those at one place are summed."""
    as_float64 = False
    """Whether values are stored as float64 or not at all, so that integers beyond int64 are allowed."""
    has_large_batches = False
    """Whether batches are larger than usual, for a device; the sorter sets it."""
    hashes_files = True
    """Whether the provenance has the SHA-256 of each file."""
    may_be_empty = False
    """Whether it may have no edges, even if nothing else states the vertices or the type of their ids."""

    @property
    def n_stated(self) -> int | None:
        """Number of entries, if it is known before the first batch."""
        return None

    @abstractmethod
    def batches(self) -> Iterator[CooBatch]:
        """Yield all entries as `CooBatch`, symmetric ones mirrored; all batches have values, or none has."""

    @abstractmethod
    def layout(self) -> Layout:
        """Return the shape, the ids of vertices and the provenance; call it after the last batch."""


class FileSource(Source):
    """Base class of readers of files, whose layout is known once the last batch is read.

    Parameters
    ----------
    path : local path or URL; a short description for tables that are not files
    threads : number of threads that read and parse
    id_room : memory for the ids of vertices
    """

    def __init__(
        self, path: str | os.PathLike[str], *, threads: int | None = None, id_room: MemoryBudget = ANY_ROOM
    ) -> None:
        self.name = os.fspath(path)
        self._layout: Layout | None = None
        """Layout, set once the last batch is yielded."""
        self.has_known_vertices = True
        """Whether all parts number rows and columns alike; else `Layout.vertex_ids` are those of a part alone."""
        self._threads, self._id_room = threads, id_room

    def layout(self) -> Layout:
        """Return the layout; see `Source`."""
        assert self._layout is not None  # all batches are read
        return self._layout

    # --- reading by several processes, a part each

    def split(self, n_parts: int) -> Sequence[FileSource]:
        """Split the source into at most `n_parts` consecutive parts that other processes can read; by default one.

        Raises
        ------
        SourceError : see `batches`, for problems found at the beginning
        """
        part = copy(self)
        part.name = make_absolute(self.name)
        return [part]

    def prepare(self, threads: int | None, id_room: MemoryBudget) -> None:
        """Set the threads, None for one per processor, and the memory for ids of the process that reads this part."""
        self._threads, self._id_room = threads, id_room

    def summarize(self) -> Any:
        """Return the summary of this part for `join`, once it was read."""
        layout = self.layout()
        return Layout((0, 0), are_ids=True, provenance=settle(layout.provenance), stated=layout.stated)

    def join(self, told: Sequence[Any]) -> Layout:
        """Check and join the summaries of all parts, in their order; return the layout, whose ids are not numbered.

        Raises
        ------
        SourceError : the parts do not fit together
        """
        joined: Layout = told[0]
        return joined


@dataclass
class EdgeFacts:
    """Facts about the edges of a source, or of a part of it, in addition to these."""

    form: Any = None
    """Form of all edges, by the first of them."""
    all_columns: list[str] = field(default_factory=list)
    """Names of all columns of the first table, including those not read."""
    files: list[dict[str, Any]] = field(default_factory=list)
    """Provenance of the files read so far; none for a table that is not a file."""
    counts: Counter[str] = field(default_factory=Counter)
    """Numbers of rows and other things, for the provenance."""
    listed: dict[str, Any] = field(default_factory=dict)
    """Provenance of the list of vertices."""
    claims: list[dict[str, int]] = field(default_factory=list)
    """Numbers that the comments of each file state."""
    stated: Stated | None = None
    """First comment that states the number of vertices."""
    unused_first: str | None = None
    """First name of the list of vertices if no edge has it, as in `OccurringIds`."""


class EdgeSource(FileSource):
    """Base class of readers of edges, from texts or tables.

    Parameters
    ----------
    name, threads, id_room : as for `FileSource`
    reading : the fields of `StatedForm`

    Raises
    ------
    OptionError : options that contradict each other
    """

    default_kind = "graph"

    def __init__(
        self, name: str, *, threads: int | None = None, id_room: MemoryBudget = ANY_ROOM, **reading: Any
    ) -> None:
        if reading.get("vertices") is not None:
            reading["vertices"] = take_name(reading["vertices"])
        self._reading = StatedForm(**reading)
        super().__init__(name, threads=threads, id_room=id_room)
        self.has_known_vertices = self._reading.n_vertices is not None or self._reading.vertices is not None
        self._made: Any = None
        """Mapping from ids to codes, once the first batch is read."""
        self._facts = EdgeFacts()

    def summarize(self) -> Any:
        return replace(self._facts, files=settle(self._facts.files), listed=settle(self._facts.listed))

    def _take_part(self) -> Self:
        """Return a copy for another process, of which nothing is read yet."""
        part, vertices = copy(self), self._reading.vertices
        part._facts = EdgeFacts()
        if vertices is not None:
            part._reading = replace(self._reading, vertices=make_absolute(os.fspath(vertices)))
        return part


def symmetrize(batch: CooBatch, symmetry: str) -> CooBatch:
    """Add the mirror image of each off-diagonal entry right after it, so that the order does not depend on batches.

    Parameters
    ----------
    symmetry : `general`, which adds nothing, `symmetric` or `skew-symmetric`
    """
    if symmetry == "general":
        return batch
    pairs = np.stack([batch.rows, batch.cols], axis=1)
    keep = np.stack([np.ones(len(pairs), bool), batch.rows != batch.cols], axis=1)
    values = batch.values
    if values is not None:
        images = values if symmetry == "symmetric" else -values
        values = np.stack([values, images], axis=1)[keep]
    return CooBatch(pairs[keep], pairs[:, ::-1][keep], values)


def settle(values: Any) -> Any:
    """Return JSON values with results in place of futures, for which this waits."""
    if isinstance(values, dict):
        return {name: settle(value) for name, value in values.items()}
    if isinstance(values, list):
        return [settle(value) for value in values]
    return values.result() if isinstance(values, Future) else values


# --- types of values -------------------------------------------------------------------------------------------------

EXACT_INTEGERS = 2**53
"""Integers below this absolute value are exact as float64, and no other number is rounded to them."""


def choose_value_dtype(dtype: np.dtype[Any], source: str) -> np.dtype[Any]:
    """Return the dtype in which a source yields its values: int64, uint64, float32 or float64.

    Raises
    ------
    SourceError : values that are not real, or wider than 64 bits
    """
    if dtype.kind == "c":
        raise SourceError(
            f"complex values ({dtype}) are not supported; ingest .real, .imag or their absolute values", source=source
        )
    if dtype.kind in "iu":
        return np.dtype(np.uint64 if dtype.kind == "u" and dtype.itemsize == 8 else np.int64)
    if dtype.kind == "f" and dtype.itemsize <= 8:
        return np.dtype(np.float64 if dtype.itemsize == 8 else np.float32)
    raise SourceError(f"values of dtype {dtype} are not supported; pass .astype('float64')", source=source)


def convert_values(values: np.ndarray, dtype: str | None, source: str) -> np.ndarray:
    """Return values in the dtype that they are stored in.

    Parameters
    ----------
    dtype : `int64`, `float32` or `float64`; None for that of the source

    Raises
    ------
    SourceError : an integer that does not fit into int64, unless dtype is `float64`; a number too large for float32; a
        float that is not an integer below 2^53, for int64
    """
    if dtype == "int64" and values.dtype.kind == "f":
        unfit = ~((values == np.rint(values)) & (np.abs(values) < EXACT_INTEGERS))
        if unfit.any():
            said = f"the value {values[unfit][0]!s} is not an integer between -2^53 and 2^53"
            raise SourceError(f'{said}, as dtype="int64" needs; pass dtype="float64"', source=source)
    if values.dtype.kind in "bui" and dtype != "float64":
        if values.dtype == np.uint64 and len(values) and (greatest := int(values.max())) > INT64_MAX:
            said = f"the value {greatest} does not fit into int64"
            raise SourceError(f'{said}; ingest with dtype="float64", which rounds it', source=source)
        values = values.astype(np.int64, copy=False)
    if dtype is None:
        return values if values.dtype in (np.int64, np.float32, np.float64) else values.astype(np.float64)
    try:
        with np.errstate(over="raise"):
            return values.astype(dtype, copy=False)
    except FloatingPointError as error:
        greatest = np.abs(values[np.isfinite(values)]).max()
        raise SourceError(
            f"the value {greatest:g} does not fit into {dtype}; ingest with dtype='float64'", source=source
        ) from error


def infinite_error(kind: str, n_infinite: int, source: str) -> SourceError:
    """Return the error of values that are NaN or infinite where they are weights."""
    return SourceError(
        f"a {kind} needs finite weights, {n_infinite} are NaN or infinite; clean the source, or pass weights=False",
        source=source,
    )


# --- ids in Arrow arrays ----------------------------------------------------------------------------------------------


def find_kind(of: Any) -> Literal["integer", "number", "string"] | None:
    """Return what an Arrow type holds, None for neither ids nor numbers; UUIDs and their bytes are strings."""
    if pa.types.is_integer(of) or pa.types.is_null(of):  # missing values are rejected before, so a null column is empty
        return "integer"
    if pa.types.is_decimal(of):
        return "integer" if of.scale == 0 else "number"
    if pa.types.is_string(of) or pa.types.is_large_string(of) or pa.types.is_string_view(of) or _is_uuid(of):
        return "string"
    return "number" if pa.types.is_floating(of) or pa.types.is_boolean(of) else None


def _is_uuid(of: Any) -> bool:
    """Return whether a type is one of UUIDs: Arrow's extension type, or 16 bytes, as older programs write them."""
    return getattr(of, "extension_name", "") == "arrow.uuid" or of == pa.binary(16)


def decode(ids: Any) -> Any:
    """Decode ids of Arrow if they are dictionary-encoded, so that missing values of the dictionary are found."""
    if not pa.types.is_dictionary(ids.type):
        return ids
    values = ids.dictionary
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    elif pa.types.is_string_view(values.type):  # `take` does not support it
        values = values.cast(pa.large_string())
    return values.take(ids.indices)


def to_integers(ids: Any) -> np.ndarray:
    """Return integers of Arrow, decimals without decimal places among them, as a NumPy array; none is missing."""
    ids = ids.cast(pa.int64()) if pa.types.is_decimal(ids.type) else ids
    return unwrap_numbers(ids)


def to_strings(ids: Any) -> Any:
    """Return names of Arrow as large strings, for UUIDs the text of `str(uuid.UUID(bytes=...))`; none is missing."""
    if not _is_uuid(ids.type):
        return ids.cast(pa.large_string())
    import pyarrow.compute as pc

    storage = ids if ids.type == pa.binary(16) else ids.storage
    data = np.frombuffer(storage.buffers()[1] or b"", np.uint8, 16 * len(storage), 16 * storage.offset)
    groups = np.frombuffer(data.tobytes().hex().encode(), "S8,S4,S4,S4,S12")  # the hyphens are between these digits
    columns = [
        pa.array(np.ascontiguousarray(groups[name])).cast(pa.large_string()) for name in groups.dtype.names or ()
    ]
    return pc.binary_join_element_wise(*columns, pa.scalar("-", pa.large_string()))
