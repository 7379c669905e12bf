"""What every reader offers to the builder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from mgspmv.errors import SourceError
from mgspmv.ingest.scratch import ANY_ROOM, Room
from mgspmv.model import CooBatch, Kind

if TYPE_CHECKING:
    from mgspmv.ingest.names import SortedIds, SpilledNames  # Numba takes a second to import
    from mgspmv.ingest.stored import StoredIds


@dataclass(frozen=True)
class StatedShape:
    """Where a source states its shape, which may be any, whatever it lists."""

    source: str
    """Name of the file or group."""
    line_number: int | None = None
    """1-based; None where there are no lines."""
    text: str | None = None
    """The line."""

    def refuse(self, message: str) -> SourceError:
        """Return the error that says what is wrong with it."""
        return SourceError(message, source=self.source, line_number=self.line_number, text=self.text)


@dataclass(frozen=True)
class Layout:
    """What is known of a source once its last batch was read."""

    shape: tuple[int, int]
    """Rows and columns of the source's matrix; (n, n) vertices of a graph."""
    vertex_ids: np.ndarray | SortedIds | StoredIds | None = None
    """int64 or strings (object), shape (n,), ascending: the source's own names; None when they are 0..n-1."""
    positions: np.ndarray | None = None
    """Shape (codes,): number of the vertex for each code that the batches hold; None when codes are numbers already."""
    are_ids: bool = False
    """Whether the batches hold ids that are yet to be numbered, int64; `shape` is (0, 0) then."""
    names: SpilledNames | None = None
    """Names by code, where batches hold codes that are yet to be numbered; `shape` is (0, 0) then."""
    provenance: dict[str, Any] = field(default_factory=dict)
    """JSON values about the source: name, size in bytes, sha256, format, its header's claims."""
    stated: StatedShape | None = None
    """Where the source states `shape`; None where each row and column is listed, or the user gave their number."""

    @property
    def nbytes(self) -> int:
        """Bytes of what is in memory."""
        held = (self.positions, self.vertex_ids)
        return sum(array.nbytes for array in held if isinstance(array, np.ndarray))

    @property
    def is_numbered(self) -> bool:
        """Whether codes are numbers, or `positions` has these and they ascend as the codes do."""
        if self.are_ids or self.names is not None:
            return False
        return self.positions is None or is_ascending(self.positions)


def is_ascending(positions: np.ndarray) -> bool:
    """Whether codes that have a number have it in their order."""
    numbers = positions[positions >= 0]
    return bool((numbers[1:] > numbers[:-1]).all())


class Source(Protocol):
    """A matrix that can be read once, in batches of bounded size."""

    name: str
    """For messages: path or a few words."""

    @property
    def default_kind(self) -> Kind:
        """What the source's entries mean when the user does not say."""
        ...

    def batches(self) -> Iterator[CooBatch]:
        """Give all entries, symmetric ones mirrored; all batches with values or none."""
        ...

    def layout(self) -> Layout:
        """Shape and ids; to be called after the last batch."""
        ...


class FileSource:
    """What readers of files have in common: their layout is known at the end.

    Parameters
    ----------
    path : local path or URL; for tables that are in no file, a few words
    """

    default_kind: Literal["graph", "matrix"]

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fspath(path)
        self.fraction: float | None = None
        """About how much of all was read; None where that is not known."""
        self._layout: Layout | None = None
        """Set once the last batch was given."""
        self.as_float64 = False
        """Whether values are wanted as float64, or not at all, so that integers beyond int64 are taken."""
        self.may_be_empty = False
        """Whether it may have no edges, although nothing else says what the vertices are or what their ids are."""
        self.has_known_vertices = True
        """Whether all parts number rows and columns alike; else `Layout.vertex_ids` are those of a part alone."""
        self._threads: int | None = None
        self._id_room: Room = ANY_ROOM
        self._told: Any = None
        """What a part tells, once it was read, unless that is its layout."""
        self.is_undirected = False
        """Whether each entry stands for both directions; known once the first batch is given."""

    def batches(self) -> Iterator[CooBatch]:
        """Give all entries; see `Source`."""
        raise NotImplementedError

    def layout(self) -> Layout:
        """Give the shape, the vertices' ids and where it all came from.

        Raises
        ------
        SourceError : the last batch was not read yet
        """
        if self._layout is None:
            raise SourceError("the layout is known once all batches were read", source=self.name)
        return self._layout

    # --- for several processes, each of which reads a part

    def split(self, n_parts: int) -> Sequence[FileSource]:
        """Give parts that other processes can read, at most so many, which follow each other as the entries do.

        Raises
        ------
        SourceError : as of `batches`, for what is seen at the begin
        """
        return [self]

    def prepare(self, threads: int, id_room: Room) -> None:
        """Take over what the process that reads it may use; by `split`, parts have nothing of that."""
        self._threads, self._id_room = threads, id_room

    def tell(self) -> Any:
        """What the others, or all together, have to know of this part, once it was read."""
        if self._told is not None:
            return self._told
        layout = self.layout()
        return Joined(None, layout.provenance, layout.stated)

    def join(self, told: Sequence[Any]) -> Joined:
        """Check what all parts told, in their order.

        Raises
        ------
        SourceError : the parts do not fit together
        """
        joined: Joined = told[0]
        return joined

    def number(self, claim: int | None) -> Layout:
        """The layout of a part, once it was read; `claim` is as of `Joined`."""
        return self.layout()


@dataclass(frozen=True)
class Joined:
    """What is known of a source whose parts were read."""

    claim: int | None
    """The number of vertices that it states itself, where all ids are in 0..claim-1."""
    provenance: dict[str, Any]
    stated: StatedShape | None = None
    """As of `Layout`."""


def mirror(batch: CooBatch, symmetry: str) -> CooBatch:
    """Each entry and, off the diagonal, its mirror image after it, so that their order does not depend on batches.

    Parameters
    ----------
    symmetry : `general`, where nothing is to be done, `symmetric` or `skew-symmetric`
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
