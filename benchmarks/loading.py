"""Time loading a block of rows from a warm local store with and without the check of its column indices, in turn.

    python -m benchmarks.loading --entries 30000000 --per-row 30
    python -m benchmarks.loading --device

A random matrix of sorted rows is written once. Its rows are then loaded without values and with float64 values, each
with the check and without it, A B B A A B ... in one process. The exit code is 1 when a ratio is above `CEILING`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import numpy as np
import scipy.sparse as sp

import mgspmv as mg
from benchmarks.measure import Rounds, say, take_turns
from benchmarks.program import add_file_options, run_program
from benchmarks.stores import open_cache
from benchmarks.tables import Setting, Table, format_text, write_files
from mgspmv.model import default_threads
from mgspmv.store.read import open_store
from mgspmv.store.stored_matrix import StoredMatrix

CEILING = 1.03
"""Most that loading may take with the check, over what it takes without."""
HEADER = ("values", "check", "median ms", "least ms", "runs", "ratio")
LEGEND = (
    "check: of each column index against the number of columns, while its chunk is in the cache or on the device.",
    "median ms, least ms: of reading all rows from the page cache into new memory, that of the device with --device.",
    "ratio: the row's median over that without the check.",
)


@dataclass(frozen=True)
class Row:
    """Times of loading in one way."""

    entries: int
    threads: int
    values: str
    is_checked: bool
    seconds: tuple[float, ...]
    ratio: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure both ways; 1 when the check takes more than it may."""
    options = _parse(arguments)
    setting = Setting.observe("benchmarks.loading", arguments)
    with open_cache(options.cache) as folder:
        place = folder / f"loading-{options.entries}-{options.per_row}.zarr"
        if not place.exists():
            say(f"writing {options.entries:,} entries")
            make_store(place, options.entries, options.per_row)
        stored = open_store(place)
        load = read_to_device if options.device else StoredMatrix.read_block
        rows = [
            row for dtype in (None, "float64") for row in measure(stored, load, dtype, options.threads, options.repeats)
        ]
    tables = tabulate(rows)
    write_files(options, rows, tables, setting, LEGEND)
    print("\n".join([*setting.lines(), "", format_text(tables), "", *LEGEND]))
    return int(any(row.ratio > CEILING for row in rows))


def make_store(place: Path, n_entries: int, per_row: int) -> None:
    """Write a square matrix with this many entries in each row."""
    n, rng = n_entries // per_row, np.random.default_rng(0)
    indices = np.sort(rng.integers(0, n, (n, per_row), np.int32), axis=1).ravel()
    indptr = np.arange(n + 1, dtype=np.int64) * per_row
    values = rng.random(n * per_row)
    mg.ingest(sp.csr_array((values, indices, indptr), shape=(n, n)), place, duplicates="keep")


def read_to_device(stored: StoredMatrix, start: int, stop: int, dtype: Any, threads: int) -> Any:
    """Read rows to the current CUDA device."""
    from mgspmv.kernels.device import read_block

    return read_block(stored, start, stop, dtype, threads)


def measure(stored: StoredMatrix, load: Callable[..., Any], dtype: str | None, threads: int, repeats: int) -> list[Row]:
    """Load all rows with and without the check, in turn."""
    say(f"loading with values {dtype}")
    time_one = partial(time_loading, stored, load, dtype, threads)
    ways: dict[bool, Callable[[], float]] = {is_checked: partial(time_one, is_checked) for is_checked in (False, True)}
    for way in ways.values():
        way()
    taken = take_turns({str(name): way for name, way in ways.items()}, Rounds(repeats, 0.0), turns_back=True)
    plain = median(taken["False"])
    known = (stored.info.nnz, threads, dtype or "none")
    return [Row(*known, name == "True", tuple(own), median(own) / plain) for name, own in taken.items()]


def time_loading(
    stored: StoredMatrix, load: Callable[..., Any], dtype: str | None, threads: int, is_checked: bool
) -> float:
    """Seconds to load all rows."""
    without = mock.patch("mgspmv.store.read._FilledRange._check_limit", _skip)
    with nullcontext() if is_checked else without:
        began = time.perf_counter()
        block = load(stored, 0, stored.info.shape[0], dtype, threads)
        elapsed_s = time.perf_counter() - began
    del block  # kept until here: to free it is not timed
    return elapsed_s


def _skip(*_: object) -> None:
    """Check nothing."""


def tabulate(rows: Sequence[Row]) -> list[Table]:
    """One table, in the order of the rows."""
    lines = [
        (
            row.values,
            "yes" if row.is_checked else "no",
            f"{1e3 * median(row.seconds):.1f}",
            f"{1e3 * min(row.seconds):.1f}",
            str(len(row.seconds)),
            f"{row.ratio:.3f}",
        )
        for row in rows
    ]
    return [(f"{rows[0].entries:,} entries, {rows[0].threads} threads", [HEADER, *lines])]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loading", description=__doc__.partition("\n")[0])
    parser.add_argument("--entries", type=int, default=30_000_000, metavar="N", help="of the matrix (30000000)")
    parser.add_argument("--per-row", type=int, default=30, metavar="N", help="entries of each row (30)")
    parser.add_argument("--repeats", type=int, default=9, metavar="N", help="runs of each way (9)")
    parser.add_argument("--device", action="store_true", help="load to the current CUDA device")
    parser.add_argument("--threads", type=int, default=default_threads(), metavar="N", help="that read (all)")
    add_file_options(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_program(main)
