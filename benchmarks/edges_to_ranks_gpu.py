"""Time the way from edges to ranks on one GPU, in a warm process, beside a script of cuGraph.

    python -m benchmarks.edges_to_ranks_gpu --text --markdown table.md
    python -m benchmarks.edges_to_ranks_gpu --edges 20000 --scale 12

Files are in /dev/shm where there is such a folder, so all programs read memory. Before anything is timed, ranks are
compared with an iteration in float64 that shares no code with them, and those of precision `exact` with each other: all
ways must give the same digest. By way of a store, ranking begins before it is written, and the run ends when it is
complete. The exit code is 1 where ranks are wrong. Without a GPU, mgspmv is timed alone.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import mgspmv as mg
from benchmarks.cugraph import load_cugraph
from benchmarks.machines import Machine, choose_machine
from benchmarks.measure import Rounds, say, take_turns
from benchmarks.program import PRECISIONS, add_file_options, choose_backend, make_parser, parse_count, run_program
from benchmarks.ranked_edges import CUGRAPH, IN_MEMORY, CugraphScript, Edges, Laps, Row, Run, Way
from benchmarks.scaling import look_at_devices, watch_memory
from benchmarks.tables import Setting, Table, format_text, judge, write_files
from mgspmv.errors import MissingDependencyError, OptionError

WAYS: dict[Way, str] = {
    "parquet": "Parquet to Parquet",
    "store": "Parquet to a store and to Parquet",
    "text": "Text to Parquet",
    "numpy": "Arrays of NumPy to ranks on the host, not written",
    "cupy": "Arrays of CuPy to ranks on the host, not written",
}
SCALE, EDGES = 23, 100_000_000
"""Of the graph that `MOST_S` is for."""
MOST_S: dict[Way, float] = {"parquet": 0.43, "store": 1.0, "text": 1.5, "numpy": 0.20, "cupy": 0.06}
"""Seconds that float32 is to take at most on an H100."""
EXACT_SHARE = 1.3
"""How many times as long `exact` may take."""
LEAST_RATIO = 2.0
"""How many times as fast as cuGraph float32 is to be, from Parquet to Parquet."""
HEADER = (
    "program", "median s", "least s", "at most s", "runs", "ratio", "wanted", "device GB", "permitted GB", "L1 error",
    "stages", "",
)  # fmt: skip
LEGEND = (
    "median s: in a process where each has run before, so that buffers and pools are reused; programs take turns.",
    "at most s: what the median is to be. ratio: cuGraph's median over the row's; 2 says that the row takes half.",
    "device GB: most that was taken of the device when ranks were checked, edges made before left out; permitted are "
    "2.5 times the CSR (4 bytes an edge, 8 a row) and 2 GB.",
    "L1 error: distance to ranks in float64.",
    "stages: medians in seconds; `other` is in no stage. Those of mgspmv are of `Solution.seconds`, and of the calls "
    "`ingest` and `save`. A store is written while ranks are computed and saved: `close` waits for the rest.",
    "cuGraph: pyarrow reads; CuPy uploads; SGGraph renumbers, transposes and drops edges that come again; pagerank in "
    "float32 stops at the same L1 change; pyarrow writes. It has no store: beside a way to one it goes to Parquet "
    "alone.",
)


def run_ours(edges: Edges, way: Way, precision: Any) -> tuple[Run, mg.Solution]:
    """Go a way with mgspmv."""
    source = edges.find_source(way)
    laps = Laps(edges.machine)
    with ExitStack() as stack:
        if way == "store":
            source = mg.ingest(source, edges.folder / "edges.zarr", overwrite=True, wait=False)
            stack.enter_context(source)
            laps.end("ingest")
        solution = mg.pagerank(source, precision=precision)
        laps.end("rank")
        if way not in IN_MEMORY:
            solution.save(edges.written, overwrite=True)
            laps.end("save")
    if way == "store":
        laps.end("close")
    return laps.stop(rank=solution.seconds), solution


# --- checks and times ------------------------------------------------------------------------------------------------


def check_all(edges: Edges, ways: Sequence[Way], peer: CugraphScript | None) -> list[Row]:
    """Run every program once by each way, and compare its ranks and digest.

    cuGraph runs last: until then the device holds what mgspmv took.
    """
    before = look_at_devices(edges.machine.backend)
    rows = [_check_ours(edges, way, precision, before) for way in ways for precision in PRECISIONS]
    wanted = next((row.digest for row in rows if row.digest), None)
    for k, row in enumerate(rows):
        if row.digest not in (None, wanted) and not row.remark:
            rows[k] = replace(row, remark="OTHER DIGEST")
    if peer is not None:
        for way in ways:
            _, ids, ranks = peer.run(edges, way)
            rows.append(edges.check(way, CUGRAPH, ids, ranks))
    edges.machine.free()
    return rows


def _check_ours(edges: Edges, way: Way, precision: str, before: Sequence[int]) -> Row:
    backend = edges.machine.backend
    edges.machine.free()
    with watch_memory(backend, before) as watch:
        _, solution = run_ours(edges, way, precision)
        at_end = [now - was for now, was in zip(look_at_devices(backend), before, strict=True)]
        seen = watch.stop()
    row = edges.check(way, precision, solution.ids, solution.values)
    digest = solution.digest() if precision == "exact" else None
    most, permitted = (None, None) if seen is None else (max(seen, *at_end), edges.permitted_bytes)
    return replace(row, digest=digest, device_bytes=most, permitted_bytes=permitted)


def time_way(edges: Edges, way: Way, rows: Sequence[Row], peer: CugraphScript | None, repeats: int) -> list[Row]:
    """Time the programs that were right, in turn; the first runs do not count."""

    def run(program: str) -> Run:
        if program != CUGRAPH:
            return run_ours(edges, way, program)[0]
        assert peer is not None
        return peer.run(edges, way)[0]

    able = {row.program: partial(run, row.program) for row in rows if not row.remark}
    runs = take_turns(able, Rounds(repeats + 1, least_s=0.0, most_s=float("inf")))
    timed = [replace(row, runs=tuple(runs.get(row.program, ())[1:])) for row in rows]
    peer_s = next((row.median_s for row in timed if row.program == CUGRAPH and row.runs), None)
    if peer_s is None:
        return timed
    return [replace(row, ratio=peer_s / row.median_s) if row.runs and row.program != CUGRAPH else row for row in timed]


# --- the command line ------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Check all ways and time them; 1 if ranks were wrong."""
    options = _parse(arguments)
    machine = choose_machine(choose_backend("auto"))
    has_peer, told = (False, "left out, as asked") if options.without_cugraph else find_cugraph(machine)
    setting = Setting.observe("benchmarks.edges_to_ranks_gpu", arguments, machine).note(cuGraph=told)
    ways = _choose_ways(options, machine)
    with tempfile.TemporaryDirectory(prefix="mgspmv-benchmark-", dir=options.cache or _find_memory()) as name:
        say(f"making {options.edges:,} edges, and their ranks in float64")
        edges = Edges(machine, Path(name), options.scale, options.edges)
        for way in ways:
            edges.find_source(way)
        setting = setting.note(**edges.describe())
        peer = CugraphScript(machine) if has_peer else None
        say("checking ranks")
        checked = check_all(edges, ways, peer)
        rows: list[Row] = []
        for way in ways:
            say(f"timing: {WAYS[way]}")
            rows += time_way(edges, way, [row for row in checked if row.way == way], peer, options.repeats)
        if peer is not None:
            peer.close()
    is_judged = machine.backend == "cuda" and (options.scale, options.edges) == (SCALE, EDGES)
    tables = tabulate(rows, is_judged)
    write_files(options, rows, tables, setting, LEGEND)
    print("\n".join([*setting.lines(), "", format_text(tables), "", *LEGEND]))
    return int(any(row.remark for row in rows))


def find_cugraph(machine: Machine) -> tuple[bool, str]:
    """Whether cuGraph can run; and its version, or why it is left out."""
    if machine.backend == "cpu":
        return False, "left out, cuGraph needs a GPU"
    try:
        return True, f"pylibcugraph {load_cugraph().__version__}"
    except MissingDependencyError as error:
        return False, f"left out, {error}"


def _choose_ways(options: argparse.Namespace, machine: Machine) -> list[Way]:
    ways: list[Way] = options.only or [way for way in WAYS if way != "text" or options.text]
    if machine.backend == "cpu" and "cupy" in ways:
        say("cupy: left out, there is no GPU")
        ways = [way for way in ways if way != "cupy"]
    if not ways:
        raise OptionError("there is nothing to time without a GPU; leave out --only")
    return ways


def _find_memory() -> str | None:
    """Folder whose files are in memory; None for the folder of temporary files."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def tabulate(rows: Sequence[Row], is_judged: bool) -> list[Table]:
    """A table for each way."""
    ways = dict.fromkeys(row.way for row in rows)
    return [(WAYS[way], [HEADER, *(_cells(row, is_judged) for row in rows if row.way == way)]) for way in ways]


def _cells(row: Row, is_judged: bool) -> Sequence[str]:
    seconds = [run.elapsed_s for run in row.runs]
    floor, most_s = None, None
    if is_judged and row.program != CUGRAPH:
        most_s = MOST_S[row.way] * (1.0 if row.program == "float32" else EXACT_SHARE)
        floor = LEAST_RATIO if (row.way, row.program) == ("parquet", "float32") else None
    verdict = "" if most_s is None or not seconds else f"{most_s:.3g} {'met' if row.median_s <= most_s else 'NOT MET'}"
    return (
        row.program,
        f"{row.median_s:.3f}" if seconds else "",
        f"{min(seconds):.3f}" if seconds else "",
        verdict,
        str(len(seconds)),
        "" if row.ratio is None else f"{row.ratio:.2f}",
        judge(row.ratio, floor),
        _format_gb(row.device_bytes),
        "" if row.device_bytes is None else _format_gb(row.permitted_bytes),
        f"{row.error_l1:.0e}",
        row.describe_stages(),
        row.remark,
    )


def _format_gb(n_bytes: int | None) -> str:
    return "" if n_bytes is None else f"{n_bytes / 1e9:.2f}"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--scale", type=int, default=SCALE, help=f"2^scale vertices ({SCALE})")
    parser.add_argument("--edges", type=parse_count, default=EDGES, help=f"with those that come again ({EDGES:,})")
    parser.add_argument("--repeats", type=parse_count, default=5, help="timed runs of each program (5)")
    parser.add_argument("--only", action="append", choices=tuple(WAYS), help="way; repeatable (all but text)")
    parser.add_argument("--text", action="store_true", help="also from text")
    parser.add_argument("--without-cugraph", action="store_true", help="time mgspmv alone")
    add_file_options(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_program(main)
