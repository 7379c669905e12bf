"""Time PageRank on a GPU that may take less and less memory.

    python -m benchmarks.streaming --scale 26

The matrix is on the device; or some of it is streamed from pinned memory, more or less; or from the store. Tables are
Markdown. Ranks must be the same in all cases, or the exit code is 1.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import mgspmv as mg
from benchmarks.ceilings import measure_upload_rate
from benchmarks.machines import choose_machine
from benchmarks.measure import say
from benchmarks.program import (
    add_graph_options,
    add_json_option,
    add_precision_option,
    choose_precisions,
    end,
    make_parser,
    parse_count,
    run_program,
    write_json,
)
from benchmarks.scaling import SKIPPED, watch_memory
from benchmarks.stores import open_multigraph
from benchmarks.tables import Setting, format_row, format_setting
from mgspmv.errors import OptionError
from mgspmv.plan import Plan

SHARES = {"device": None, "host, some": 0.6, "host, most": 0.25, "store": 0.25}
"""Room on the device beside the vectors, as a share of the matrix, in each case."""

LEGEND = (
    f"iteration: the median of all but the first {SKIPPED}.",
    "comes by: in an iteration, of what is laid out in pinned memory. GB/s: that over the iteration. of the link: that "
    "over the bandwidth of copies from pinned memory, measured just before.",
    "device GB: predicted by `plan`, and the most that was taken while the matrix was loaded and ranked.",
    "same: whether the ranks have the bits of those with the whole matrix on the device.",
)


@dataclass(frozen=True)
class Record:
    """What was measured of one precision in one case."""

    precision: str
    case: str
    held: str
    """As `WorkerPlan.held`."""
    iteration_s: float
    streamed_bytes: int
    """Of pieces in pinned memory that come by in an iteration."""
    upload_bytes_per_s: float
    load_s: float
    device_bytes: int
    """By the plan."""
    peak_bytes: int
    edges: int
    digest: str
    is_right: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Time what was asked for; 1 when ranks were wrong."""
    options = _parse(arguments)
    setting = Setting.observe("benchmarks.streaming", arguments, choose_machine("cuda"))
    with open_multigraph(options, 1, "cuda") as (store, graph):
        precisions = choose_precisions(options.precision)
        records = run_streaming(store, precisions, options.iterations, say, options.case)
    setting = setting.note(**graph)
    write_json(options.json, {"setting": asdict(setting), "records": [asdict(r) for r in records]})
    wrong = [f"{r.precision}, {r.case}" for r in records if not r.is_right]
    return end(format_report(setting, records), "ranks", wrong)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add_graph_options(parser, scale=26)
    add_precision_option(parser)
    parser.add_argument("--iterations", type=parse_count, default=20, help="per run (20)")
    parser.add_argument("--case", action="append", default=[], choices=list(SHARES), help="only this one; repeatable")
    add_json_option(parser)
    return parser.parse_args(arguments)


def run_streaming(
    store: str, precisions: Sequence[str], iterations: int, say: Callable[[str], None], cases: Sequence[str] = ()
) -> list[Record]:
    """Time PageRank on the current device in each case.

    Parameters
    ----------
    cases : of `SHARES`; default all
    say : gets a line for each
    """
    if iterations <= SKIPPED:
        raise OptionError(f"iterations must be more than {SKIPPED}, which do not count, not {iterations}")
    records = []
    for precision in precisions:
        first: str | None = None
        for case, limits in list_cases(store, precision):
            if cases and case not in cases:
                continue
            record = _run_case(store, precision, case, limits, iterations, first)
            first = first or record.digest
            say(f"{precision}, {case}: {1e3 * record.iteration_s:.4g} ms")
            records.append(record)
    return records


def list_cases(store: str, precision: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each case, and the memory that it may take."""
    with mg.open_matrix(store) as A:
        worker = A.plan(precision=precision, device_memory=1 << 60, backend="cpu").workers[0]
    for case, share in SHARES.items():
        limits = {} if share is None else {"device_memory": worker.vector_bytes + int(share * worker.block_bytes)}
        if case == "store":
            limits["host_memory"] = worker.load_bytes
        yield case, limits


def _run_case(
    store: str, precision: Any, case: str, limits: dict[str, Any], iterations: int, first: str | None
) -> Record:
    with mg.open_matrix(store) as A:
        plan: Plan = A.plan(precision=precision, backend="cuda", **limits)
        worker = plan.workers[0]
        dtype = None if A.is_pattern else "float32" if precision == "float32" else "float64"
        with watch_memory("cuda") as watch:
            began = time.perf_counter()
            streamed_bytes = A.on("cuda", **limits).bind_steps(dtype, precision).layout.feed.streamed_bytes
            load_s = time.perf_counter() - began
            made = mg.pagerank(A.on("cuda", **limits), precision=precision, norm="fixed", max_iter=iterations)
            peak = watch.stop()
    times = [sum(e.product_s) for e in made.events]
    digest = hashlib.sha256(made.values.tobytes()).hexdigest()[:16]
    return Record(
        precision, case, worker.held, median(times[SKIPPED:]), streamed_bytes, measure_upload_rate(), load_s,
        worker.device_bytes, peak or 0, A.nnz, digest, first in (None, digest),
    )  # fmt: skip


def format_report(setting: Setting, records: Sequence[Record]) -> str:
    """The tables, below what they were measured on."""
    parts = format_setting(setting)
    titles = ["case", "held on", "iteration ms", "comes by GB", "GB/s"]
    titles += ["of the link", "link GB/s", "load s", "device GB, predicted", "taken", "same"]
    for precision in dict.fromkeys(r.precision for r in records):
        own = [r for r in records if r.precision == precision]
        parts += ["", f"### {precision}", "", format_row(titles), "|" + "---|" * len(titles)]
        parts += [format_row(_list_cells(r)) for r in own]
    return "\n".join([*parts, "", *(f"- {line}" for line in LEGEND), ""])


def _list_cells(r: Record) -> list[str]:
    rate = r.streamed_bytes / r.iteration_s
    return [
        r.case,
        r.held,
        f"{1e3 * r.iteration_s:.4g}",
        f"{r.streamed_bytes / 1e9:.3g}" if r.streamed_bytes else "-",
        f"{rate / 1e9:.3g}" if r.streamed_bytes else "-",
        f"{rate / r.upload_bytes_per_s:.0%}" if r.streamed_bytes else "-",
        f"{r.upload_bytes_per_s / 1e9:.3g}",
        f"{r.load_s:.3g}",
        f"{r.device_bytes / 1e9:.3g}",
        f"{r.peak_bytes / 1e9:.3g}",
        "yes" if r.is_right else "NO",
    ]


if __name__ == "__main__":
    run_program(main)
