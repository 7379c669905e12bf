"""Edges of an R-MAT graph in files and arrays, with their ranks in float64; and a script of cuGraph that ranks them."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from benchmarks.cugraph import MemoryPool, call_cugraph, load_cugraph
from benchmarks.graphs import count_out_arcs, find_isolated
from benchmarks.machines import Machine
from benchmarks.matrices import build_from_keys, cut_range, find_rmat_keys
from benchmarks.rank_checks import iterate_ranks
from benchmarks.stores import ALPHA

Way = Literal["parquet", "store", "text", "numpy", "cupy"]
IN_MEMORY: tuple[Way, ...] = ("numpy", "cupy")
"""Ways that begin with arrays, and write nothing."""
CUGRAPH = "cuGraph"
TOL = 1e-6
"""L1 change below which iterations stop."""
PERMITTED_L1 = 1e-5
"""L1 error of ranks: 5.7e-6 is permitted to those after a last change of 1e-6, the rest to sums in float32."""
REFERENCE_ITERATIONS = 40
TEXT_ROWS = 1 << 21
"""Edges of a text that a thread formats at a time."""


@dataclass(frozen=True)
class Run:
    """What a way took."""

    elapsed_s: float
    stages: dict[str, float]


@dataclass(frozen=True)
class Row:
    """What was found of a program by a way."""

    way: Way
    program: str
    """A precision of ours, or cuGraph."""
    error_l1: float = float("nan")
    remark: str = ""
    """What is wrong; empty where nothing is."""
    digest: str | None = None
    """Of a solution in precision `exact`."""
    device_bytes: int | None = None
    permitted_bytes: int | None = None
    runs: tuple[Run, ...] = ()
    """Empty where something is wrong."""
    ratio: float | None = None
    """Median of cuGraph over that of the runs."""

    @property
    def median_s(self) -> float:
        return median(run.elapsed_s for run in self.runs)

    def describe_stages(self) -> str:
        """Medians of what took half a millisecond or more, the longest first."""
        names = dict.fromkeys(name for run in self.runs for name in run.stages)
        found = {name: median(run.stages.get(name, 0.0) for run in self.runs) for name in names}
        shown = sorted((name for name in names if found[name] >= 5e-4), key=lambda name: -found[name])
        return ", ".join(f"{name} {found[name]:.3f}" for name in shown)


class Laps:
    """Seconds by stage, each until the device has done what was enqueued."""

    def __init__(self, machine: Machine) -> None:
        self._machine, self._seconds = machine, dict[str, float]()
        machine.wait()
        self._began = self._last = time.perf_counter()

    def end(self, stage: str) -> None:
        self._machine.wait()
        now = time.perf_counter()
        self._seconds[stage] = self._seconds.get(stage, 0.0) + now - self._last
        self._last = now

    def stop(self, **within: dict[str, float]) -> Run:
        """Give the stages; `within` names parts that take the place of a stage."""
        stages: dict[str, float] = {}
        for stage, seconds in self._seconds.items():
            stages |= within.get(stage, {stage: seconds})
        elapsed_s = self._last - self._began
        return Run(elapsed_s, stages | {"other": elapsed_s - sum(stages.values())})


class Edges:
    """Edges of an R-MAT graph in any order, some of them several times, with int32 ids; each counts once in the ranks.

    Parameters
    ----------
    machine : where they are made, and stay as arrays
    folder : for files
    n : edges, with those that come again
    """

    def __init__(self, machine: Machine, folder: Path, scale: int, n: int) -> None:
        self.machine, self.folder, self._scale = machine, folder, scale
        xp = machine.xp
        keys = xp.concatenate([find_rmat_keys(xp, scale, *piece, True) for piece in cut_range(n)])
        self.arrays = tuple(machine.get(own.astype(np.int32)) for own in (keys & ((1 << scale) - 1), keys >> scale))
        block = build_from_keys(xp, keys, 1 << scale, 1 << scale)
        del keys
        weight = count_out_arcs(xp, block)
        is_counted = ~find_isolated(xp, block, weight)
        ranks = iterate_ranks(xp, block, weight, is_counted, REFERENCE_ITERATIONS)
        self.n_distinct, self._ids = block.nnz, machine.get(xp.flatnonzero(is_counted))
        self._ranks = machine.get(ranks)[self._ids]
        del block, weight, is_counted, ranks
        machine.free()
        self.device_arrays = tuple(map(xp.asarray, self.arrays))  # last, so that they are no part of larger pieces

    @property
    def permitted_bytes(self) -> int:
        """Bytes of the device that ingest and iterations may take: 2.5 times the CSR, and 2 GB."""
        return 5 * (4 * self.n_distinct + 8 * (len(self._ids) + 1)) // 2 + 2_000_000_000

    @cached_property
    def parquet(self) -> Path:
        """Table as pyarrow writes it when it is told nothing."""
        path = self.folder / "edges.parquet"
        pq.write_table(self._table, path)
        return path

    @cached_property
    def text(self) -> Path:
        """Lines `source target`."""
        path, form = self.folder / "edges.txt", csv.WriteOptions(include_header=False, delimiter=" ")

        def format_rows(begin: int) -> pa.Buffer:
            csv.write_csv(self._table.slice(begin, TEXT_ROWS), stream := pa.BufferOutputStream(), form)
            return stream.getvalue()

        with path.open("wb") as file, ThreadPoolExecutor(os.cpu_count()) as threads:
            file.writelines(threads.map(format_rows, range(0, len(self.arrays[0]), TEXT_ROWS)))
        return path

    @property
    def written(self) -> Path:
        """Table of ranks that a way writes."""
        return self.folder / "ranks.parquet"

    def find_source(self, way: Way) -> Any:
        """Path or arrays where a way begins; files are written when they are first asked for."""
        if way in IN_MEMORY:
            return self.arrays if way == "numpy" else self.device_arrays
        return self.text if way == "text" else self.parquet

    def describe(self) -> dict[str, str]:
        """For the reader."""
        files = [f"{path.name} of {path.stat().st_size / 1e9:.3g} GB" for path in self.folder.iterdir()]
        made = f"R-MAT, scale {self._scale}, {len(self.arrays[0]):,} edges in any order, int32"
        graph = f"{made}; {self.n_distinct:,} distinct ones, {len(self._ids):,} vertices"
        return {"graph": graph, "files": f"in {self.folder.parent}, {', '.join(sorted(files)) or 'none'}"}

    def check(self, way: Way, program: str, ids: np.ndarray, ranks: np.ndarray) -> Row:
        """Compare ranks with those in float64; where a way writes them, as they were written."""
        if way not in IN_MEMORY:
            ids, ranks = (own.to_numpy() for own in pq.read_table(self.written, columns=["id", "rank"]).columns)
        order = np.argsort(ids)
        if not np.array_equal(ids[order], self._ids):
            return Row(way, program, remark="WRONG IDS")
        error = float(np.abs(ranks[order] - self._ranks).sum())
        return Row(way, program, error, "" if error <= PERMITTED_L1 else "WRONG RANKS")

    @cached_property
    def _table(self) -> pa.Table:
        return pa.table(dict(zip(("src", "dst"), self.arrays, strict=True)))


class CugraphScript:
    """From edges to ranks by pyarrow, CuPy and pylibcugraph, in the fastest form that a script has.

    Parquet is read with or without a memory map, whichever is faster here. Each piece of a column is uploaded as it was
    read: to join them on the host first takes longer. The graph drops edges that come again, as mgspmv does. Ranks are
    written without dictionaries and compression, which take longer and save nothing. There is no store to write.

    Source: pylibcugraph 26.10, `SGGraph` and `pagerank`.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine, self._plc = machine, load_cugraph()
        self._memory = MemoryPool()
        self._handle = self._plc.ResourceHandle()
        self._maps: bool | None = None

    def run(self, edges: Edges, way: Way) -> tuple[Run, np.ndarray, np.ndarray]:
        """Go a way; ids and ranks are on the host, in an order of cuGraph's own."""
        xp, plc, source = self._machine.xp, self._plc, edges.find_source(way)
        if self._maps is None and way in ("parquet", "store"):
            self._maps = _is_mapping_faster(source)
        laps = Laps(self._machine)
        if way in IN_MEMORY:
            src, dst = map(xp.asarray, source)
        else:
            table = self._read(source, way)
            laps.end("read")
            src, dst = (xp.concatenate([xp.asarray(own.to_numpy()) for own in c.chunks]) for c in table.columns)
        laps.end("upload")
        properties = plc.GraphProperties(is_symmetric=False, is_multigraph=False)
        how = {"store_transposed": True, "renumber": True, "do_expensive_check": False, "drop_multi_edges": True}
        graph = call_cugraph(plc.SGGraph, self._handle, properties, src, dst, **how)
        laps.end("build")
        found = call_cugraph(plc.pagerank, self._handle, graph, None, None, None, None, ALPHA, TOL, 100, False)
        laps.end("iterate")
        ids, ranks = map(self._machine.get, found)
        laps.end("download")
        if way not in IN_MEMORY:
            made = pa.table({"id": ids, "rank": ranks})
            pq.write_table(made, edges.written, use_dictionary=False, compression="none")
            laps.end("write")
        return laps.stop(), ids, ranks

    def close(self) -> None:
        self._handle = None
        self._machine.wait()
        self._memory.close()

    def _read(self, path: Path, way: Way) -> pa.Table:
        if way != "text":
            return pq.read_table(path, memory_map=bool(self._maps))
        names = csv.ReadOptions(column_names=["src", "dst"])
        types = csv.ConvertOptions(column_types={"src": pa.int32(), "dst": pa.int32()})
        return csv.read_csv(path, names, csv.ParseOptions(delimiter=" "), types)


def _is_mapping_faster(path: Path) -> bool:
    seconds = {}
    for is_mapped in (False, True, False, True):  # the first two warm up
        began = time.perf_counter()
        pq.read_table(path, memory_map=is_mapped)
        seconds[is_mapped] = time.perf_counter() - began
    return seconds[True] < seconds[False]
