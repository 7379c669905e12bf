"""Sorted rows of a source: entries prepared by the options, sorted, and merged at each position.

    batches (i, j[, v])  --orient-->  entries (row, col[, v])  --sort-->  blocks of rows  --merge-->

Entries are sorted within a given memory, see `mgspmv.ingest.external_sort`, and those at the same position keep the
order of the source, on which `first` and the sums of `sum` depend.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from mgspmv.errors import OptionError, SourceError
from mgspmv.heartbeat import prefetch_map
from mgspmv.ingest.block_sorting import LARGE, drop_loops, find_duplicate, merge_duplicates
from mgspmv.ingest.budget import ANY_ROOM, MemoryBudget, StoreSize
from mgspmv.ingest.device_sorting import DeviceSorter, Merging, copy_batch, is_worth_a_device
from mgspmv.ingest.external_sort import EntrySorter
from mgspmv.ingest.numbering import number_block, number_entries
from mgspmv.ingest.source import Layout, Source, convert_values, symmetrize
from mgspmv.ingest.stored import StoredRows
from mgspmv.ingest_report import LEAST_TIME, EntryCounts
from mgspmv.kernels.compiled import CompiledLater
from mgspmv.model import INT32_LIMIT, CooBatch, CsrBlock, Duplicates, IngestOptions, Kind, Progress
from mgspmv.order import check_square

NO_ENTRIES = EntryCounts()

MakeDeviceSorter = Callable[[EntrySorter], DeviceSorter | None]
"""Makes a sorter on a device, which hands entries that do not suit it over to the given one; None to sort there."""


def measure_values(values: np.ndarray | None) -> tuple[float | None, float | None, bool]:
    """Return the least and the greatest finite value, and whether these values alone allow them to be times."""
    if values is None or not len(values):
        return None, None, True
    least, greatest = values.min(), values.max()
    if not (np.isfinite(least) and np.isfinite(greatest)):
        finite = values[np.isfinite(values)]
        return (*measure_values(finite)[:2], False)
    is_integer = values.dtype.kind in "iu"
    are_whole = bool(is_integer or (least >= LEAST_TIME and (values == np.floor(values)).all()))
    return (*((int(least), int(greatest)) if is_integer else (float(least), float(greatest))), are_whole)


@dataclass(frozen=True, eq=False)
class SortedSource:
    """Source that was read to its end and checked; its rows can be read any number of times."""

    kind: Kind
    dtype: np.dtype[Any] | None
    """Dtype of the values; None for a pattern."""
    rule: Duplicates
    layout: Layout
    name: str
    """Name of the source, for messages."""
    sorter: EntrySorter
    order: np.ndarray | None = None
    """(n_rows,): the source's number of each row and column; None if they are in the source's order."""
    drops_loops: bool = False
    """Whether self loops are left out of the rows, though their vertices are kept."""
    counts: EntryCounts = NO_ENTRIES
    """Counts of the entries that were read."""
    on_repeated: str = (
        "occurs more than once and duplicates='error'; pass duplicates='sum', 'first' or 'keep', or clean the source"
    )
    """Error about an entry that occurs more than once, which the rule forbids."""
    device: DeviceSorter | None = None
    """Sorter on a device, which has the entries in place of `sorter`, or sorts ranges of them; None if the host sorts
    them."""

    @property
    def shape(self) -> tuple[int, int]:
        """(n_rows, n_cols)."""
        return self.layout.shape

    @property
    def vertex_ids(self) -> Any:
        """Ids of the vertices, as in `Layout`."""
        return self.layout.vertex_ids

    @property
    def most_entries(self) -> int:
        """Number of entries before duplicates are merged."""
        return (self.device or self.sorter).n_entries

    @property
    def is_built_on_device(self) -> bool:
        """True if the whole graph fits on the device, so that `build` takes the place of `blocks`."""
        return self.device is not None and not self.device.is_moved

    def build(self, *, has_transpose: bool) -> dict[str, Any]:
        """Sort the entries that are on a device, and return the arrays of the graph there; see `DeviceSorter.build`."""
        assert self.device is not None
        return self.device.build(self.shape, self.merging, has_transpose=has_transpose)

    def blocks(self) -> Iterator[CsrBlock]:
        """Yield all entries, merged, row after row, as `EntrySorter.blocks` does.

        Raises
        ------
        SourceError : an entry is duplicated and duplicates='error', or the sum of duplicates does not fit in int64
        CapacityError : the entries at one row and column do not fit into memory
        """
        if self.device is not None:
            return self.device.blocks(self.sorter, self.layout, self.merging)
        if self.layout.positions is None:
            return self.sorter.blocks(self.shape, self._merge)
        n_codes = len(self.layout.positions)
        return self.sorter.blocks((n_codes, n_codes), lambda block: self._merge(number_block(block, self.layout)))

    def close(self) -> None:
        """Free all entries."""
        self.sorter.close()
        if self.device is not None:
            self.device.close()

    @property
    def merging(self) -> Merging:
        """Rule by which a device merges entries, as `_merge` does."""
        return Merging(self.rule, self.name, self.raise_duplicate, self.drops_loops)

    def _merge(self, block: CsrBlock) -> CsrBlock:
        if self.drops_loops:
            block = drop_loops(block)
        if self.rule == "error" and (entry := find_duplicate(block)):
            self.raise_duplicate(*entry)
        return merge_duplicates(self.name, block, self.rule)

    def raise_duplicate(self, row: int, col: int) -> None:
        """Raise SourceError for an entry that occurs more than once."""
        ends: tuple[Any, Any] = (col, row) if self.kind == "graph" else (row, col)
        if self.order is not None:
            ends = int(self.order[ends[0]]), int(self.order[ends[1]])
        if (ids := self.layout.vertex_ids) is not None:
            ends = ids[ends[0]], ids[ends[1]]
        raise SourceError(f"the entry ({ends[0]}, {ends[1]}) {self.on_repeated}", source=self.name)


SortedRows = SortedSource | StoredRows
"""Matrix whose rows can be read in order, any number of times."""


def find_size(matrix: SortedRows, *, has_transpose: bool) -> StoreSize:
    """Return the size of a matrix in a store."""
    return StoreSize(matrix.shape, matrix.most_entries, matrix.dtype, matrix.kind != "matrix", has_transpose)


@contextlib.contextmanager
def sort_source(
    source: Source,
    options: IngestOptions,
    report: Progress,
    room: MemoryBudget = ANY_ROOM,
    make_device_sorter: MakeDeviceSorter | None = None,
) -> Iterator[SortedSource]:
    """Read a source to its end, and sort its entries by row.

    Parameters
    ----------
    report : called with (phase, entries done, entries in all or None)
    room : memory for the entries
    make_device_sorter : called for a graph in the order of the source, if many entries are expected; None to sort on
        the host

    Raises
    ------
    SourceError : the entries do not suit the options: a self loop with self_loops='error', a graph that is not square
    OptionError : duplicates='sum' and there are no values to sum
    ShapeError : a matrix that is to be renumbered and is not square
    """
    kind = options.kind or source.default_kind
    with contextlib.ExitStack() as stack:
        sorter = stack.enter_context(EntrySorter(room.memory, room.threads, room.folder))
        feed = EntryFeed(source, options)
        batches, first, device = source.batches(), list[CooBatch](), None
        if (expected := source.n_stated) is None:
            first = [next(batches)]
            expected = int(len(first[0].rows) / (source.fraction or 1.0))
        is_suited = kind == "graph" and options.order == "none" and is_worth_a_device(expected)
        if make_device_sorter is not None and is_suited and (device := make_device_sorter(sorter)) is not None:
            stack.enter_context(device)
        feed.fill(device or sorter, report, chain(first, batches))
        layout = source.layout().settle_claim(feed.extents)
        feed.check(layout)
        if device is not None:
            report("number", 0, None)
            layout = device.number(layout, feed.extents)
        if not layout.is_numbered and (device is None or device.is_moved):
            report("number", 0, None)
            half, made = room.memory // 2, list[EntrySorter]()

            def make_sorter() -> EntrySorter:
                if not made:
                    sorter.reserve(half)
                made.append(stack.enter_context(EntrySorter(half, room.threads, room.folder)))
                return made[-1]

            numbered, layout = number_entries(sorter, layout, feed.extents, make_sorter, room.for_ids)
            if made:
                numbered.reserve(-half)
        else:
            numbered = sorter
            sorter.reserve(layout.nbytes)
        rule = choose_rule(options, is_pattern=feed.dtype is None)
        own = kind, feed.dtype, rule, layout, source.name, numbered
        there = device if device is not None and (not device.is_moved or device.suits(layout)) else None
        yield SortedSource(*own, drops_loops=options.self_loops == "drop", counts=feed.counts, device=there)


def choose_rule(options: IngestOptions, *, is_pattern: bool) -> Duplicates:
    """Return the rule for entries at the same position."""
    return options.duplicates or ("first" if is_pattern else "sum")


# --- reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Prepared:
    """Entries of a batch, prepared by the options."""

    entries: CooBatch
    extents: list[tuple[int, int]]
    """Smallest and largest row, then smallest and largest column; empty if there are no entries."""
    loop: int | None
    """Vertex of a self loop that is an error; None if there is none."""
    fraction: float | None
    """Approximate fraction of the source read up to this batch; None if unknown."""
    counts: EntryCounts


class EntryFeed:
    """Feed of the batches of a source into a sorter, with the checks that need all entries."""

    def __init__(self, source: Source, options: IngestOptions) -> None:
        self._source, self._options, self._kind = source, options, options.kind or source.default_kind
        source.as_float64 = options.dtype == "float64" or options.weights is False
        self.dtype: np.dtype[Any] | None = None
        """Dtype of the values; None for a pattern."""
        self.counts = NO_ENTRIES
        """Counts of all entries so far."""
        self._n_batches = 0
        self._lowest, self._highest = [0, 0], [-1, -1]
        self._loop: int | None = None
        self._move: Callable[[CooBatch], CooBatch] = copy_batch

    def prepare(self, batch: CooBatch, fraction: float | None) -> _Prepared:
        """Prepare a batch for `put`: values of the right dtype or none, entries mirrored; and move it to where it is
        sorted. Thread-safe.

        Raises
        ------
        OptionError : duplicates='sum' and there are no values to sum
        SourceError : a value does not fit in the dtype
        """
        source, options, n_given, n_loops, loop = self._source, self._options, len(batch.rows), 0, None
        values = None if options.weights is False else batch.values
        counts_parallel = source.counts_parallel and options.weights is not False
        if values is None and counts_parallel and options.duplicates in (None, "sum"):
            values = np.ones(n_given)
        if values is not None:
            values = convert_values(values, options.dtype, source.name)
        elif options.duplicates == "sum":
            raise OptionError(
                f"{source.name} is read without values, so duplicates='sum' has nothing to sum; pass "
                "duplicates='keep' for a multigraph, or 'first'"
            )
        symmetry = "symmetric" if options.symmetrize or source.is_undirected else "general"
        batch = symmetrize(CooBatch(shrink(batch.rows), shrink(batch.cols), values), symmetry)
        values = batch.values
        if options.self_loops != "keep" and (loops := batch.rows == batch.cols).any():
            if options.self_loops == "error":
                loop = int(batch.rows[loops][0])
            else:  # `SortedSource` drops them later
                n_loops, values = int(np.count_nonzero(loops)), None if values is None else values[~loops]
        counts = EntryCounts(n_given, len(batch.rows) - n_given, n_loops, *measure_values(values))
        if self._kind == "graph":
            batch = CooBatch(batch.cols, batch.rows, batch.values)
        extents = [(int(ends.min()), int(ends.max())) for ends in (batch.rows, batch.cols) if len(ends)]
        return _Prepared(self._move(batch), extents, loop, fraction, counts)

    @property
    def extents(self) -> tuple[int, int]:
        """Least and greatest row or column."""
        return min(self._lowest), max(self._highest)

    def fill(self, sorter: EntrySorter | DeviceSorter, report: Progress, batches: Iterable[Any] | None = None) -> None:
        """Add all entries to a sorter, and move them to its device as they are prepared; the caller checks them
        afterwards.

        Parameters
        ----------
        batches : those of the source; None to begin to read it

        Raises
        ------
        OptionError, SourceError : as for `prepare`, and by the source
        """
        source = self._source
        read = ((batch, source.fraction) for batch in (source.batches() if batches is None else batches))
        if isinstance(sorter, DeviceSorter):
            self._move, source.has_large_batches = sorter.upload, True
        with ThreadPoolExecutor(sorter.threads, "mgspmv-prepare") as pool:
            for batch in prefetch_map(pool, lambda own: self.prepare(*own), read, sorter.threads):
                self.put(batch, sorter)
                expected = int(sorter.n_entries / batch.fraction) if batch.fraction else None
                CompiledLater.pays = CompiledLater.pays or max(sorter.n_entries, expected or 0) > LARGE
                report("read", sorter.n_entries, expected)

    def put(self, batch: _Prepared, sorter: EntrySorter | DeviceSorter) -> None:
        """Add the entries of a batch to a sorter, in the order of the source."""
        if not self._n_batches and batch.entries.values is not None:
            self.dtype = batch.entries.values.dtype
        self._n_batches += 1
        self.counts += batch.counts
        self._loop = batch.loop if self._loop is None else self._loop
        for side, (lowest, highest) in enumerate(batch.extents):
            self._lowest[side] = min(self._lowest[side], lowest)
            self._highest[side] = max(self._highest[side], highest)
        sorter.add(batch.entries, *batch.extents[:1])

    def check(self, layout: Layout) -> None:
        """Check the entries that were put, now that the layout is known.

        Raises
        ------
        SourceError : a graph that is not square; a number outside the matrix; a self loop with self_loops='error'
        ShapeError : a matrix that is to be renumbered and is not square
        """
        n_rows, n_cols = layout.shape
        if n_rows != n_cols and (self._kind != "matrix" or self._options.symmetrize):
            wish = "symmetrize" if self._kind == "matrix" else f"kind={self._kind!r}"
            raise SourceError(
                f"{wish} needs a square matrix, but this one has {n_rows} rows and {n_cols} columns; ingest it with "
                "kind='matrix'",
                source=self._source.name,
            )
        if self._options.order != "none":
            check_square(layout.shape, self._source.name)
        sizes = layout.shape if layout.positions is None else (len(layout.positions),) * 2
        for side, name in enumerate(() if layout.are_ids else ("row", "column")):
            if self._lowest[side] < 0 or self._highest[side] >= sizes[side]:
                wrong = self._lowest[side] if self._lowest[side] < 0 else self._highest[side]
                raise SourceError(f"{name} {wrong} is outside 0..{sizes[side] - 1}", source=self._source.name)
        if (vertex := self._loop) is None:
            return
        if layout.positions is not None:
            vertex = int(layout.positions.take(np.array([vertex]))[0])
        raise SourceError(
            f"vertex {vertex if layout.vertex_ids is None else layout.vertex_ids[vertex]} has a self loop and "
            "self_loops='error'; pass self_loops='keep' or 'drop', or clean the source",
            source=self._source.name,
        )


def shrink(codes: np.ndarray) -> np.ndarray:
    """Convert codes to int32 if all of them fit."""
    if codes.dtype == np.int32 or (len(codes) and (codes.max() >= INT32_LIMIT or codes.min() < -INT32_LIMIT)):
        return codes
    return codes.astype(np.int32)
