"""Share of one process in an ingest by several processes: it reads, sorts and writes a part of the source.

    read        read its part of the source, with separate ids, and group it by rows
    merge_ids   merge the ids of all parts that are in its range, and number them
    group       group its numbered entries by rows
    take        fetch the entries of its range of rows from each share, in the order of the parts
    build       sort and merge them into files
    write       write its range of each array
    keep        or keep its rows in memory

Shards request data from each other through `Rpc`, a function that hides the communication.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa

from mgspmv.errors import ClosedError
from mgspmv.heartbeat import prefetch_map
from mgspmv.ingest.block_sorting import Entries
from mgspmv.ingest.budget import FileArray, MemoryBudget
from mgspmv.ingest.build import ColumnSums, HeldArray, assemble
from mgspmv.ingest.device_sorting import DeviceSorter
from mgspmv.ingest.entries import EntryFeed, SortedSource, choose_rule
from mgspmv.ingest.external_sort import EntrySorter
from mgspmv.ingest.frames import FrameSource
from mgspmv.ingest.numbering import (
    IdType,
    Numbers,
    OccurringIds,
    are_numbers,
    encode_ids,
    find_id_type,
    look_up_entries,
)
from mgspmv.ingest.source import FileSource, Layout
from mgspmv.ingest_report import EntryCounts
from mgspmv.model import CooBatch, IngestOptions, Kind, Progress, index_dtype
from mgspmv.store.chunks import WrittenRange, write_range
from mgspmv.store.held import HeldArrays
from mgspmv.store.write import VersionAddress

GIVEN_IDS = 1 << 18
"""Ids per request."""
PIECE_ENTRIES = 1 << 20
"""Entries per request."""
PIECES_AHEAD = 2
"""Number of requests in flight."""
SAMPLED_IDS = 1 << 10
"""Ids in the sample of each shard, from which ranges of ids are chosen."""

Rpc = Callable[..., Any]
"""Function called with the rank of a shard, the name of one of its methods, and the arguments."""


@dataclass(frozen=True)
class ShardSpec:
    """Specification of a share."""

    rank: int
    n_shares: int
    part: FileSource | None
    """Part of the source that it reads; None if there are more shares than parts."""
    name: str = field(repr=False)
    """Name of the source in messages; no repr, as a URL may hold secrets and Dask logs arguments of failed tasks."""
    kind: Kind
    options: IngestOptions
    keeps_rows: bool = False
    """Whether the rows stay in memory; else they are built in files, and written to a store."""


@dataclass(frozen=True)
class PartSummary:
    """Summary of the part that a share read."""

    told: Any
    """Summary from `FileSource.summarize`."""
    n_entries: int
    dtype: np.dtype[Any] | None
    """Dtype of the values; None for a pattern."""
    counts: EntryCounts
    extent: tuple[int, int] | None
    """Least and greatest id that is still to be numbered; None if there is none."""


@dataclass(frozen=True)
class OwnIds:
    """Summary of the ids of a share's part."""

    shape: tuple[int, int] | None
    """Rows and columns of the whole matrix; None if ids must be merged or the share has no part."""
    type: IdType | None
    """Type of the ids; None if they are the numbers or the share has no part."""
    sample: list[Any]
    """Ascending sample of the ids to merge, from which ranges of ids are chosen."""


class Shard:
    """Share of an ingest on one worker; see the module.

    Attributes
    ----------
    memory : bytes that it may use

    Parameters
    ----------
    room : memory, threads and folder that it may use
    ask : sends a request to another share, or to this one
    report : called with (phase, done, total or None)
    """

    def __init__(self, spec: ShardSpec, room: MemoryBudget, ask: Rpc, report: Progress) -> None:
        self._spec, self._room, self._ask, self._report = spec, room, ask, report
        self._held, self._is_closed = ExitStack(), False
        self.memory, self._threads, self._folder = room.memory, room.threads, room.folder
        self._given = self._make_sorter(self.memory // 2)
        self._ids: Any = None
        self._own_ids: Any = None
        self._places: Any = None
        self._given_ids: dict[int, slice] = {}
        self._kind, self._is_transposed = spec.kind, False
        self._positions: Numbers | None = None
        self._numbers: np.ndarray | None = None
        self._firsts: list[int] = []
        self._arrays: dict[str, FileArray | np.ndarray] = {}
        self._device: DeviceSorter | None = None
        """Sorter on a device, which has the entries of its part until they are handed over to `_given`."""
        self._kept_sums: list[tuple[np.ndarray, np.ndarray | None]] = []
        self._transposed: EntrySorter | None = None
        self._keeping = Lock()

    def close(self) -> None:
        """Release all resources; work in progress ends with an error."""
        self._is_closed = True
        self._held.close()

    # --- reading

    def keep_partition(self, number: int, frame: Any) -> None:
        """Keep a computed partition of a Dask DataFrame for `read`; errors as for `FrameSource.keep`."""
        part = self._spec.part
        assert isinstance(part, FrameSource)
        with self._keeping:
            part.keep(number, frame, self._folder)

    def read(self) -> PartSummary:
        """Read this share's part of the source; errors as for `EntryFeed`."""
        part, options = self._spec.part, self._spec.options
        if part is None:
            return PartSummary(None, 0, None, EntryCounts(), None)
        part.prepare(self._threads, self._room.for_ids)
        feed, sorter = EntryFeed(part, options), self._device or self._given
        self._feed = feed
        feed.fill(sorter, self._notify)
        extent = feed.extents if part.layout().are_ids and sorter.n_entries else None
        return PartSummary(part.summarize(), sorter.n_entries, feed.dtype, feed.counts, extent)

    def list_ids(self, claim: int | None, dtype: np.dtype[Any] | None) -> OwnIds:
        """Return the ids of the part, which is numbered separately unless all parts have the same numbers.

        Parameters
        ----------
        claim : number of the vertices that the source states, if all ids of all parts are among them; else None
        dtype : dtype of the values of all parts
        """
        self._dtype, self._rule = dtype, choose_rule(self._spec.options, is_pattern=dtype is None)
        part = self._spec.part
        if part is None:
            return OwnIds(None, None, [])
        layout = part.layout() if claim is None else Layout((claim, claim))
        self._feed.check(layout)
        if not layout.is_numbered:
            self._leave_device()
        if layout.are_ids:
            own = layout, self._feed.extents, self._make_coded, self._room.for_ids
            self._given, layout = encode_ids(self._given, *own)
        self._given.reserve(layout.nbytes)
        self._positions = layout.positions
        if part.has_known_vertices or claim is not None:
            self._ids = layout.vertex_ids
            return OwnIds(layout.shape, find_id_type(self._ids), [])
        self._ids = np.arange(layout.shape[0]) if layout.vertex_ids is None else layout.vertex_ids
        step = max(1, len(self._ids) // SAMPLED_IDS)
        return OwnIds(None, find_id_type(self._ids), [self._ids[k] for k in range(0, len(self._ids), step)])

    # --- numbering

    def merge_ids(self, cuts: Sequence[Any], type: str | None) -> int:
        """Merge the ids of all parts that are in this share's range, from files if need be; return their number.

        Parameters
        ----------
        cuts : the first id of the range of each share but the first
        type : type of the ids, as in `OwnIds`
        """
        rank, n = self._spec.rank, self._spec.n_shares
        low, high = [None, *cuts, None][rank : rank + 2]
        found, n_ids = OccurringIds(pa.int64() if type == "int64" else pa.large_string(), self._room.for_ids), 0
        for giver in ((rank + k) % n for k in range(n)):
            first = n_ids
            while ids := self._ask(giver, "give_ids", low, high, n_ids - first):
                found.encode(ids)  # distinct ids, so that their codes are their places
                n_ids += len(ids)
                self._check_open()
            self._given_ids[giver] = slice(first, n_ids)
        layout = found.finish()
        self._own_ids, self._places = layout.vertex_ids, layout.positions
        return len(self._own_ids)

    def give_ids(self, low: Any, high: Any, first: int) -> Any:
        """Return ids of this share's part from `low` to before `high`, None for no bound, as an Arrow array.

        Parameters
        ----------
        first : number of these ids that were given before; the array is empty after the last
        """
        if self._spec.part is None:
            return pa.nulls(0)
        start = first + (0 if low is None else bisect_left(self._ids, low))
        stop = len(self._ids) if high is None else bisect_left(self._ids, high)
        kind = pa.int64() if find_id_type(self._ids) == "int64" else pa.large_string()
        return pa.array(self._ids[start : max(start, min(stop, start + GIVEN_IDS))], kind)

    def give_places(self, rank: int) -> np.ndarray:
        """Return the places, in this share's range, of the ids that a share sent."""
        places: np.ndarray = self._places[self._given_ids[rank]]
        return places

    def name_vertex(self, place: int) -> Any:
        """Return the id at a place in this share's range, or in the list of all parts; the place without ids."""
        if self._own_ids is not None:
            return self._own_ids[place]
        return place if self._ids is None else self._ids[place]

    def number_ids(self, firsts: Sequence[int]) -> bool:
        """Request the numbers of the ids of this share's part; return whether the ids in its range are their numbers.

        Parameters
        ----------
        firsts : number of the first id in the range of each share, and the number of all ids
        """
        self._firsts = list(firsts)
        given = self._ask_all("give_places", self._spec.rank)
        dtype = index_dtype(firsts[-1])
        numbers = [places.astype(dtype) + dtype.type(first) for places, first in zip(given, firsts, strict=False)]
        self._numbers = np.concatenate(numbers)
        own, first = self._own_ids, firsts[self._spec.rank]
        is_integer = bool(own.dtype == np.int64)
        return is_integer and (not len(own) or (own[0], own[-1]) == (first, first + len(own) - 1))

    # --- entries by rows

    def group(self, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """Group the entries by the numbers of their rows.

        Returns
        -------
        First rows of buckets, which are the same in all shares, and the entries per bucket in this share.
        """
        self._leave_device()
        self._shape, positions, numbers = shape, self._positions, self._numbers
        if numbers is not None and are_numbers(numbers):  # ascending, as the ids are
            numbers = None
        if positions is not None or numbers is not None:
            held, self._given = self._given, self._make_sorter(self.memory // 2)
            for batch in look_up_entries(held, positions, numbers):
                self._given.add(batch)
                self._notify("number", self._given.n_entries, held.n_entries)
        self._positions, self._numbers, self._places = None, None, None
        return self._count_buckets()

    def group_transpose(self) -> tuple[np.ndarray, np.ndarray]:
        """Group the entries of the transpose of the built matrix; see `group`."""
        assert self._transposed is not None
        self._given, self._transposed = self._transposed, None
        self._shape, self._kind, self._rule = (self._shape[1], self._shape[0]), "matrix", "keep"
        self._is_transposed = True
        return self._count_buckets()

    def _count_buckets(self) -> tuple[np.ndarray, np.ndarray]:
        n_rows = self._shape[0]
        self._given.cover(0, max(0, n_rows - 1))
        counts = self._given.count_buckets()
        return np.minimum(self._given.find_bucket_rows(), n_rows), counts

    # --- exchange

    def take(self, buckets: Sequence[int], lengths: Sequence[int]) -> None:
        """Request the entries of this share's range of rows from every share.

        Requests begin at its own rank, so that not all go to the same share; entries from lower ranks still come first.

        Parameters
        ----------
        buckets : first and end of this share's buckets
        lengths : number of entries in these buckets, by share
        """
        rank, memory = self._spec.rank, self.memory // 4
        origin = int(self._given.find_bucket_rows()[buckets[0]])
        later, earlier = self._make_sorter(memory, origin), self._make_sorter(memory, origin)
        n_done, n_all = 0, sum(lengths)
        with ThreadPoolExecutor(PIECES_AHEAD, "mgspmv-take") as pool:
            for ranks, sorter in ((range(rank, len(lengths)), later), (range(rank), earlier)):
                pieces = [
                    (r, *buckets, start, min(start + PIECE_ENTRIES, lengths[r]))
                    for r in ranks
                    for start in range(0, lengths[r], PIECE_ENTRIES)
                ]
                ask = lambda piece: self._ask(piece[0], "give_entries", *piece[1:])  # noqa: E731
                for entries in prefetch_map(pool, ask, pieces, PIECES_AHEAD):
                    sorter.add(CooBatch(*entries))
                    n_done += len(entries[0])
                    self._notify("exchange", n_done, n_all)
        later.put_before(earlier)
        self._taken = later

    def give_entries(self, first: int, last: int, start: int, stop: int) -> Entries:
        """Return entries of some buckets; see `EntrySorter.give`."""
        return self._given.give(first, last, start, stop)

    # --- building

    def build(self, rows: tuple[int, int], phase: str, transpose: bool) -> tuple[int, list[float]]:
        """Sort and merge this share's rows into files; return the number of entries, and the least value of each block.

        Entries for other shares are released, so all shares must have taken theirs.

        Parameters
        ----------
        rows : begin and end of the range
        transpose : whether entries are kept for the transpose
        """
        self._given.close()
        self._taken.reserve(0 if transpose else -self.memory // 4)
        self._rows = rows
        self._transposed = self._make_sorter(self.memory // 4) if transpose else None
        ids: Any = SharedIds(self._firsts or [0, max(self._shape)], self._ask)
        layout = Layout(self._shape, vertex_ids=ids)
        own = self._kind, self._dtype, self._rule, layout, self._spec.name, self._taken
        drops_loops = self._spec.options.self_loops == "drop" and not self._is_transposed
        matrix = SortedSource(*own, drops_loops=drops_loops)
        made = assemble(matrix, self._make_array, self._notify, self._transposed, phase, rows=rows)
        self._arrays = made.arrays
        self._taken.close()
        return made.nnz, made.lowest

    def add_up(self, start: int, stop: int) -> None:
        """Add up columns start .. stop - 1 over this share's rows."""
        self._sums = ColumnSums(self._spec.kind, self._spec.name, self._dtype, start, stop)
        own = [self._arrays[name] for name in ("indices", "data") if name in self._arrays]
        pieces = ([array] if isinstance(array, np.ndarray) else array.pieces() for array in own)
        for indices, *data in zip(*pieces, strict=True):
            self._sums.add(indices, *data or [None])
            self._check_open()

    def give_sums(self, start: int, stop: int) -> ColumnSums:
        """Return the sums of this share's rows in columns start .. stop - 1."""
        return self._sums.give(start, stop)

    def _join_sums(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Return degrees and weights of columns start .. stop - 1, which all shares have added up."""
        total = ColumnSums(self._spec.kind, self._spec.name, self._dtype, start, stop)
        for given in self._ask_all("give_sums", start, stop):
            total.join(given)
        return total.finish()

    # --- keeping

    def keep_sums(self, start: int, stop: int) -> None:
        """Keep degrees and weights of the next of the vertices of this share's rows, start .. stop - 1."""
        self._kept_sums.append(self._join_sums(start, stop))

    def list_own_ids(self) -> Any:
        """Return this share's range of the ids; a list that all parts share is returned by the first share."""
        return self._own_ids[:] if self._firsts else self._ids[: 0 if self._spec.rank else None]

    def take_arrays(self, first_entry: int) -> HeldArrays:
        """Return the arrays of this share's rows, whose first entry has the number `first_entry` among all."""
        arrays = {name: array[:] for name, array in self._arrays.items()}
        arrays["indptr"] += first_entry
        for name, own in zip(("out_degree", "out_weight"), zip(*self._kept_sums, strict=True), strict=False):
            if own[0] is not None:
                arrays[name] = np.concatenate(own)
        self._arrays, self._kept_sums = {}, []
        return arrays

    # --- writing

    def write_sums(self, address: VersionAddress, start: int, stop: int) -> dict[str, WrittenRange]:
        """Write degrees and weights of columns start .. stop - 1, which all shares have added up."""
        degree, weight = self._join_sums(start, stop)
        arrays = {"out_degree": degree} | ({} if weight is None else {"out_weight": weight})
        return self._write(address, {name: (start, array) for name, array in arrays.items()})

    def write(self, address: VersionAddress, prefix: str, first_entry: int) -> dict[str, WrittenRange]:
        """Write this share's rows, whose first entry has the number `first_entry` among all, and release them."""
        (start, stop), is_last = self._rows, self._spec.rank == self._spec.n_shares - 1
        own = dict(self._arrays)
        pointers = own.pop("indptr")[: stop - start + is_last] + first_entry
        arrays = {"indptr": (start, pointers)} | {name: (first_entry, array) for name, array in own.items()}
        written = self._write(address, {f"{prefix}{name}": array for name, array in arrays.items()})
        for array in self._arrays.values():
            if isinstance(array, FileArray):
                array.close()
        return written

    def write_ids(self, address: VersionAddress) -> dict[str, WrittenRange]:
        """Write this share's range of the ids; a list that all parts share is written by the first share."""
        if not self._firsts and self._spec.rank:
            return {}
        own = (self._firsts[self._spec.rank], self._own_ids) if self._firsts else (0, self._ids)
        return self._write(address, {"vertex_ids": own})

    def _write(self, address: VersionAddress, arrays: dict[str, tuple[int, Any]]) -> dict[str, WrittenRange]:
        """Write ranges of arrays, each given as the index of its first element and its elements."""
        self._check_open()
        return {
            name: write_range(address.open(name), start, array, self._threads)
            for name, (start, array) in arrays.items()
        }

    # --- helpers

    def _leave_device(self) -> None:
        """Hand entries on a device over to the sorter on the host."""
        if self._device is not None and not self._device.is_moved:
            self._device.move()

    def _make_sorter(self, memory: int, origin: int = 0) -> EntrySorter:
        return self._held.enter_context(EntrySorter(memory, self._threads, self._folder, origin=origin))

    def _make_coded(self) -> EntrySorter:
        """Return a sorter for all entries, with codes in place of ids."""
        self._given.reserve(self.memory // 4)
        return self._make_sorter(self.memory // 4)

    def _make_array(self, name: str, dtype: np.dtype[Any], most: int) -> FileArray | HeldArray:
        if self._spec.keeps_rows:
            return HeldArray(name, dtype, most)
        array = FileArray(self._folder, dtype)
        self._held.callback(array.close)
        return array

    def _ask_all(self, question: str, *arguments: Any) -> list[Any]:
        """Return the answers of all shares, by rank; requests begin at this share's rank."""
        n, rank = self._spec.n_shares, self._spec.rank
        with ThreadPoolExecutor(PIECES_AHEAD, "mgspmv-ask") as pool:
            others = [(rank + k) % n for k in range(n)]
            answers = prefetch_map(pool, lambda r: self._ask(r, question, *arguments), others, PIECES_AHEAD)
            found = dict(zip(others, answers, strict=True))
        return [found[r] for r in range(n)]

    def _notify(self, phase: str, done: int, total: int | None) -> None:
        self._check_open()
        self._report(phase, done, total)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the ingest was aborted")


class SharedIds:
    """Ids of vertices, requested from the share that holds them; from the first share if all parts share one list."""

    def __init__(self, firsts: Sequence[int], ask: Rpc) -> None:
        self._firsts, self._ask = firsts, ask

    def __getitem__(self, number: int) -> Any:
        owner = next(r for r, (a, b) in enumerate(pairwise(self._firsts)) if a <= number < b)
        return self._ask(owner, "name_vertex", number - self._firsts[owner])
