"""CuPy and the kernels that make row blocks, played by NumPy: what the host does to make them runs anywhere."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np

from mgspmv.kernels import bins, column_sorted_blocks
from mgspmv.kernels.bins import OCTET, ROW_BITS, TILE
from mgspmv.kernels.column_sorted_blocks import CHUNK


class Array(np.ndarray):
    """NumPy's array with what CuPy's has besides."""

    def get(self) -> np.ndarray:
        return np.array(self)


class PlayedCupy:
    """NumPy's functions, and CuPy's own."""

    cuda: Any

    def __init__(self) -> None:
        self.cuda = SimpleNamespace(Device=nullcontext, Stream=PlayedStream, get_current_stream=PlayedStream)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def empty(self, shape: Any, dtype: Any) -> Array:
        """Poisoned."""
        return np.full(shape, 123, dtype).view(Array)

    def zeros(self, shape: Any, dtype: Any) -> Array:
        return np.zeros(shape, dtype).view(Array)

    def asarray(self, array: Any, dtype: Any = None) -> Array:
        return np.asarray(array, dtype).view(Array)

    def asnumpy(self, array: Any) -> np.ndarray:
        return np.array(array)

    def get_default_memory_pool(self) -> Any:
        return SimpleNamespace(free_all_blocks=lambda: None, free_bytes=lambda: 0)


class PlayedStream:
    """A stream whose work is done when it is enqueued."""

    def __init__(self, non_blocking: bool = False) -> None:
        pass

    def __enter__(self) -> PlayedStream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def record(self) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass


class PlayedKernel:
    """A kernel that is begun as CuPy's are."""

    max_dynamic_shared_size_bytes = 48 << 10

    def __init__(self, name: str, begun: list[str]) -> None:
        self._name, self._begun = name, begun

    def __call__(self, grid: tuple[int], threads: tuple[int], arguments: Any, shared_mem: int = 0) -> None:
        assert grid[0] > 0
        self._begun.append(self._name)
        KERNELS[self._name](grid[0], *arguments)


def play_build(monkeypatch: Any) -> list[str]:
    """Have `build_column_sorted_blocks` run on the host; the kernels that were begun, in order."""
    begun: list[str] = []
    played = {
        "load_kernel": lambda _, name, **types: PlayedKernel(name, begun),
        "pack": lambda *fields: fields,
        "put_all": lambda *arrays: [array.copy() for array in arrays],
        "address": lambda array: array,
        "shared_memory": lambda: (2, 233_472),
        "shared_block_bytes": lambda: 232_448,
        "cache_bytes": lambda: 1000,
    }
    for module in (column_sorted_blocks, bins):
        for name, function in played.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, function)
    monkeypatch.setitem(sys.modules, "cupy", PlayedCupy())
    return begun


def _take_entries(n_jobs, jobs, cells, indices, found):
    """Of each job the block, and of its entries rows, where they are in CSR, the places of columns, and cells."""
    blocks, begins, ends, rows, n_rows, starts, jumps, _ = jobs
    column_places, _, shifts, cell_starts, *_ = cells
    assert len(blocks) == n_jobs
    for j in range(n_jobs):
        k = np.arange(begins[j], ends[j])
        own = np.searchsorted(starts[1:], k, side="right")
        assert own[0] == rows[j]
        assert own[-1] < n_rows
        sources = k if jumps is None else k + jumps[own]
        columns = indices[sources] if column_places is None else column_places[indices[sources]]
        if found is not None:
            found[k] = columns
        yield blocks[j], own, sources, columns, cell_starts[blocks[j]] + (columns >> shifts[blocks[j]])


def measure_rows(n_parts, n_rows, indptr, order, starts, jumps, sums, n_filled):
    """In one part, of all rows."""
    rows = np.arange(n_rows) if order is None else order
    lengths = np.diff(indptr)[rows]
    n_filled[0] = np.flatnonzero(lengths).max(initial=-1) + 1
    starts[:] = np.concatenate([[0], np.cumsum(lengths)])
    if jumps is not None:
        jumps[:] = indptr[rows] - indptr[0] - starts[:-1]


def start_rows(n_parts, n_rows, sums, starts, jumps):
    """The rows have their starts."""


def cut_jobs(n_blocks_begun, n_jobs, size, n_blocks, block_starts, job_starts, n_rows, row_starts, blocks, *bounds):
    begins, ends, rows = bounds
    assert n_blocks_begun == -(-n_jobs // 256)
    blocks[:] = np.searchsorted(job_starts, np.arange(n_jobs), side="right") - 1
    begins[:] = block_starts[blocks] + (np.arange(n_jobs) - job_starts[blocks]) * size
    ends[:] = np.minimum(begins + size, block_starts[blocks + 1])
    rows[:] = np.searchsorted(row_starts[1:], begins, side="right")


def count_cells(n_jobs, jobs, cells, indices, found, counters):
    for *_, own in _take_entries(n_jobs, jobs, cells, indices, found):
        np.add.at(counters, own, 1)


def place_entries(n_jobs, jobs, cells, indices, found, data, taken, chunk_starts, entries, values, binned):
    height, shifts, _, first_bin, least = cells[1:]
    counts, of_block, of_window, bin_rows, bin_columns, places, bin_values, unit = binned
    for block, rows, sources, columns, own in _take_entries(n_jobs, jobs, cells, indices, found):
        inside = columns & ((1 << shifts[block]) - 1)
        packed = inside << ROW_BITS | (rows if jobs[-1] is None else jobs[-1][rows]) - block * height
        for n, cell in enumerate(own):
            number = int(taken[cell])
            taken[cell] += 1
            if cell >= first_bin and counts[cell - first_bin] < least:
                cell -= first_bin
                octet = number // OCTET
                slot, own_values = int(of_block[cell]) * OCTET + number, bin_values
                bin_rows[slot] = packed[n] & ((1 << ROW_BITS) - 1)
                bin_columns[int(of_window[cell]) * OCTET + number] = inside[n]
                for more in range(unit // OCTET if number % unit == 0 else 0):
                    places[of_window[cell] + octet + more] = of_block[cell] + octet + more
            else:
                slot, own_values = chunk_starts[cell] * CHUNK + number, values
                entries[slot] = packed[n]
            if own_values is not None:
                own_values[slot] = data[sources[n]]


def cut_cells(
    _,
    n_cells,
    n_starts,
    counts,
    cell_starts,
    first_bin,
    least,
    chunk_starts,
    tile_starts,
    tile_cells,
    tile_blocks,
    found,
):
    is_binned = (counts < least) & (np.arange(n_cells) >= first_bin)
    dense = np.where(is_binned, 0, counts).astype(np.int64)
    n_chunks, n_tiles = (-(-dense // size) for size in (CHUNK, TILE))
    for n, starts in ((n_chunks, chunk_starts), (n_tiles, tile_starts)):
        starts[:] = np.concatenate([[0], np.cumsum(n)])
    own = np.repeat(np.arange(n_cells), n_tiles)
    tile_cells[: len(own)] = own
    tile_blocks[: len(own)] = np.searchsorted(cell_starts, own, side="right") - 1
    assert len(tile_cells) >= len(own)
    assert len(cell_starts) == n_starts
    found[: n_starts + 1] = [*chunk_starts[cell_starts], tile_starts[-1]]


def sort_tiles(
    n_tiles,
    tile_cells,
    tile_blocks,
    tile_starts,
    chunk_starts,
    counts,
    cells,
    is_near,
    entries,
    values,
    chunk_columns,
):
    _, height, shifts, cell_starts, *_ = cells
    for tile in range(n_tiles):
        cell = tile_cells[tile]
        begin = (tile - tile_starts[cell]) * TILE
        n = min(TILE, int(counts[cell]) - begin)
        padded, first = -(-n // CHUNK) * CHUNK, chunk_starts[cell] * CHUNK + begin
        by_column = np.argsort(entries[first : first + n] >> ROW_BITS, kind="stable")
        k = np.arange(padded)
        source = k if is_near else k // CHUNK * CHUNK + k % 4 * 32 + k % CHUNK // 4
        for array, none in ((entries, height + k % CHUNK // 4), (values, 0)):
            if array is not None:
                placed = array[first : first + n][by_column][np.minimum(source, n - 1)]
                array[first : first + padded] = np.where(source < n, placed, none)
        block = tile_blocks[tile]
        chunk_columns[first // CHUNK : (first + padded) // CHUNK] = (cell - cell_starts[block]) << shifts[block]


def rate_cells(n_blocks, n_windows, wide_shifts, wide_starts, counts, least, wide_counts, found):
    narrow = counts.reshape(n_blocks, n_windows).astype(np.int64)
    found[:3] = narrow[narrow < least].sum(), (narrow > 0).sum(), ((narrow > 0) & (narrow >= least)).sum()
    for b in range(n_blocks):
        width = 1 << (wide_shifts[b] - bins.WINDOW_BITS)
        for w in range(wide_starts[b + 1] - wide_starts[b]):
            wide_counts[wide_starts[b] + w] = narrow[b, w * width : (w + 1) * width].sum()


def count_octets(_, n_blocks, n_windows, least, unit, counts, by_block, by_window):
    octets = np.where(counts < least, -(-counts.astype(np.int64) // unit) * unit // OCTET, 0)
    by_block[:] = np.concatenate([[0], octets])
    by_window[:] = np.concatenate([[0], octets.reshape(n_blocks, n_windows).T.ravel()])


def pad_octets(_, n, height, n_rows, rows):
    rows[:] = height + np.arange(n * OCTET) // bins.NEIGHBORS % n_rows


KERNELS = {
    f.__name__: f
    for f in (
        measure_rows,
        start_rows,
        cut_jobs,
        count_cells,
        place_entries,
        cut_cells,
        rate_cells,
        count_octets,
        pad_octets,
        sort_tiles,
    )
}
