"""Time iterations of PageRank on more and more workers of this machine, on GPUs compared with cuGraph.

    python -m benchmarks.scaling --scale 26 --workers 1,2,4
    python -m benchmarks.scaling --store web.zarr --workers 1,2 --precision float32

Tables are Markdown. Ranks of all numbers of workers must be the same, or the exit code is 1.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import numpy as np

import mgspmv as mg
from benchmarks.cugraph import load_cugraph
from benchmarks.cugraph_workers import find_refusal, run_cugraph
from benchmarks.machines import choose_machine
from benchmarks.measure import say
from benchmarks.program import (
    PRECISIONS,
    add_backend_option,
    add_graph_options,
    add_json_option,
    add_precision_option,
    choose_backend,
    choose_precisions,
    end,
    make_parser,
    parse_count,
    run_program,
    write_json,
)
from benchmarks.stores import open_multigraph, start_workers
from benchmarks.tables import Setting, format_row, format_setting
from mgspmv.errors import BackendError, MissingDependencyError, OptionError
from mgspmv.kernels.catalogue import Backend
from mgspmv.model import Event
from mgspmv.plan import WorkerPlan

SKIPPED = 5
"""Iterations at the begin that do not count."""
FEW = 10
"""Iterations of the run that is timed from the store to written ranks."""
PERMITTED_SHARE, PERMITTED_BYTES = 1.1, 2_000_000_000
"""Of the rows in CSR, beside the vectors of a run: what may be taken while the matrix is loaded."""
LOOK_S = 0.02
"""Seconds between two looks at the memory of the devices."""
TOLERANCE = 1e-4
"""Largest relative difference of a rank in float32 to the exact one, as LDBC Graphalytics allows."""

LEGEND = (
    f"iteration: the median of all but the first {SKIPPED}, of the slowest worker. Product and exchange are its parts; "
    "the exchange counts from the end of the slowest product.",
    "efficiency: how many times as fast as one worker, over the number of workers.",
    "same: whether the ranks have the bits of those of the fewest workers, in `exact`; in `float32` the largest "
    "relative difference to the exact ranks of these, or, where there are none, to theirs in `float32`.",
    "held: by the worker that holds most, matrix and vectors. load peak: most that is taken of a device while the "
    "matrix is loaded and first used, with what CUDA and NCCL take. permitted: "
    f"{PERMITTED_SHARE:g} times the rows in CSR, "
    f"the vectors of a run, and {PERMITTED_BYTES / 1e9:g} GB.",
    "cuGraph: on as many GPUs, (time of 25 iterations - time of 5) / 20 of the slowest, told of all vertices or "
    f"of those with arcs, whichever is faster; its ranks after {FEW} iterations were compared with the ones here.",
    "cuGraph / ours: how many times as fast this is.",
    f"load: from the store, page cache as it was, until iterations can begin; {FEW} iterations: a run of so many, its "
    "start, error bound and bringing the ranks to the client included; write: these to Zarr. to ranks: the three.",
)


@dataclass(frozen=True)
class Record:
    """What was measured of one precision on so many workers."""

    n_workers: int
    precision: str
    hardware: str
    transport: str
    """How slices went from worker to worker."""
    load_s: float
    few_s: float
    """A run of `FEW` iterations."""
    write_s: float
    """Writing its ranks."""
    peak_bytes: int | None
    """Most that was taken of a device until iterations could begin; None on hosts."""
    permitted_bytes: int | None
    """What that is to be at most; see `find_permitted`."""
    iteration_s: float
    product_s: float
    exchange_s: float
    edges: int
    received_bytes: int
    """By the worker that receives most, in an iteration."""
    memory_bytes: int
    """Held by the worker that holds most."""
    digest: str
    """Of the ranks."""
    difference: float | None
    """Largest relative difference of a rank to the first that were made, exact ones if any; None for these and for
    `exact`."""
    is_right: bool
    """Whether that is small, or the digest is that of the fewest workers."""
    peer_s: float | None = None
    """An iteration of cuGraph, in `float32`; None where it was left out or failed."""
    peer_difference: float | None = None
    """Largest relative difference of its ranks."""
    peer_problem: str | None = None
    """Why it has no time."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Time what was asked for; 1 when ranks were wrong."""
    options = _parse(arguments)
    backend = choose_backend(options.backend)
    setting = Setting.observe("benchmarks.scaling", arguments, choose_machine(backend))
    with open_multigraph(options, max(options.workers), backend) as (store, graph):
        has_peer, peer = find_peer(backend, store)
        setting = setting.note(**graph, cuGraph=peer)
        precisions = choose_precisions(options.precision)
        how: Any = {"transport": options.transport, "has_peer": has_peer}
        records = run_scaling(store, options.workers, backend, precisions, options.iterations, say, **how)
    write_json(options.json, {"setting": asdict(setting), "records": [asdict(r) for r in records]})
    wrong = [f"{r.precision} on {r.n_workers} workers" for r in records if not r.is_right]
    return end(format_report(setting, records), "ranks", wrong)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add_graph_options(parser, scale=26)
    parser.add_argument("--workers", type=parse_counts, default=[1, 2, 4], metavar="N,N,..", help="(1,2,4)")
    add_backend_option(parser)
    add_precision_option(parser)
    parser.add_argument("--transport", choices=("auto", "nccl", "peer"), default="auto", help="of slices (auto)")
    parser.add_argument("--iterations", type=parse_count, default=50, help="per run (50)")
    add_json_option(parser)
    return parser.parse_args(arguments)


def parse_counts(text: str) -> list[int]:
    """Parse numbers of workers; ascending."""
    return sorted({parse_count(part) for part in text.split(",")})


def run_scaling(
    store: str,
    counts: Sequence[int],
    backend: Backend,
    precisions: Sequence[str],
    iterations: int,
    say: Callable[[str], None],
    transport: str = "auto",
    has_peer: bool = False,
) -> list[Record]:
    """Time PageRank on so many workers each.

    Parameters
    ----------
    counts : of workers, from the least to the most; each is a cluster of its own
    say : gets a line for each that is begun
    has_peer : whether cuGraph is timed too, beside `float32`
    """
    if iterations <= SKIPPED:
        raise OptionError(f"iterations must be more than {SKIPPED}, which do not count, not {iterations}")
    from distributed import Client

    records: list[Record] = []
    reference: np.ndarray | None = None
    firsts: dict[str, str] = {}
    for n in counts:
        say(f"{n} workers")
        before = look_at_devices(backend)
        with start_workers(n, backend) as cluster, Client(cluster) as client, mg.open_matrix(store) as A:
            for precision in sorted(precisions, key=PRECISIONS.index, reverse=True):  # the exact ranks come first
                options: Any = {"precision": precision, "backend": backend}
                run = _run(A, client, iterations, before, **options, transport=transport)
                digest = hashlib.sha256(run.ranks.tobytes()).hexdigest()[:16]
                first, difference = firsts.setdefault(precision, digest), None
                if precision == "exact":
                    is_right = digest == first
                else:
                    difference = None if reference is None else _compare(run.ranks, reference)
                    is_right = difference is None or difference <= TOLERANCE
                reference = run.ranks if reference is None else reference
                found: dict[str, Any] = {"digest": digest, "difference": difference, "is_right": is_right}
                records.append(Record(n, precision, edges=A.nnz, **run.measured, **found))
                say(f"  {precision}: {1e3 * records[-1].iteration_s:.4g} ms an iteration")
        if has_peer and records[-1].precision == "float32":
            records[-1] = _add_peer(records[-1], store, run.few, say)
    return records


@dataclass(frozen=True)
class _Run:
    """What workers did with a matrix in one precision."""

    measured: dict[str, Any]
    """Fields of `Record`."""
    few: np.ndarray
    """Ranks after `FEW` iterations."""
    ranks: np.ndarray
    """Those after all."""


def find_permitted(workers: Sequence[WorkerPlan]) -> int:
    """Find the most bytes that loading may take of a device: `PERMITTED_SHARE` of its rows in CSR, the vectors of a
    run, and `PERMITTED_BYTES`."""
    return int(max(PERMITTED_SHARE * w.block_bytes + w.vector_bytes for w in workers)) + PERMITTED_BYTES


def _run(A: mg.Matrix, client: Any, iterations: int, before: Sequence[int], **options: Any) -> _Run:
    """Load, run a few iterations, write their ranks, and run all.

    Parameters
    ----------
    before : bytes taken of each device before there were workers
    options : of `Matrix.distribute`
    """
    began = time.perf_counter()
    with watch_memory(options["backend"], before) as watch, A.distribute(client, **options) as D:
        load_s = time.perf_counter() - began
        steps: Any = {"norm": "fixed", "precision": options["precision"]}
        few, few_s, write_s = _time_few(D, steps)
        peak = watch.stop()  # the first run reads the rows of a layout
        solution = mg.pagerank(D, **steps, max_iter=iterations)
        permitted = None if peak is None else find_permitted(D.plan.workers)
    last = solution.events[-1]
    times = [_split(event) for event in solution.events[SKIPPED:]]
    whole, product, exchange = (median(part) for part in zip(*times, strict=True))
    measured = {
        "hardware": str(solution.matrix["hardware"]),
        "transport": str(solution.matrix["transport"]),
        "load_s": load_s,
        "few_s": few_s,
        "write_s": write_s,
        "peak_bytes": peak,
        "permitted_bytes": permitted,
        "iteration_s": whole,
        "product_s": product,
        "exchange_s": exchange,
        "received_bytes": max(last.exchanged_bytes),
        "memory_bytes": max(last.memory_bytes),
    }
    return _Run(measured, few, solution.values)


def find_peer(backend: Backend, store: str) -> tuple[bool, str]:
    """Whether cuGraph is timed too; its version, or why it is not."""
    if backend == "cpu":
        return False, "left out, cuGraph needs a GPU"
    try:
        found = f"pylibcugraph {load_cugraph().__version__}"
    except MissingDependencyError as error:
        return False, f"left out, {error}"
    with mg.open_matrix(store) as A:
        refusal = find_refusal(A.stored)
    return (True, found) if refusal is None else (False, f"left out, {refusal}")


def _add_peer(record: Record, store: str, ranks: np.ndarray, say: Callable[[str], None]) -> Record:
    """Time cuGraph on workers of its own, and compare its ranks with those after `FEW` iterations."""
    from distributed import Client

    with start_workers(record.n_workers, "cuda") as cluster, Client(cluster) as client, mg.open_matrix(store) as A:
        try:
            run = run_cugraph(client, record.n_workers, A.stored, FEW)
        except BackendError as error:
            say(f"  {error}")
            return replace(record, peer_problem=str(error))
    say(f"  cuGraph: {1e3 * run.iteration_s:.4g} ms an iteration")
    difference = _compare(run.ranks, ranks)
    if not difference <= TOLERANCE:  # nor where it is no number
        return replace(record, peer_difference=difference, peer_problem=f"its ranks differ by {difference:.2g}")
    return replace(record, peer_s=run.iteration_s, peer_difference=difference)


class MemoryWatch:
    """Looks at what is taken of the memory of devices, by whatever process.

    Parameters
    ----------
    before : bytes of each that do not count; none where there are no devices
    """

    def __init__(self, before: Sequence[int]) -> None:
        self._before, self._most, self._ends = before, 0, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> int | None:
        """Most bytes that were taken of a device since the begin; None where there are no devices."""
        self._ends.set()
        self._thread.join()
        return self._most if self._before else None

    def _run(self) -> None:
        while self._before and not self._ends.wait(LOOK_S):
            taken = [now - before for now, before in zip(look_at_devices("cuda"), self._before, strict=True)]
            self._most = max(self._most, *taken)


def look_at_devices(backend: Backend) -> list[int]:
    """Bytes that are taken of each device of this machine; none where hosts compute."""
    if backend == "cpu":
        return []
    import pynvml

    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(k) for k in range(pynvml.nvmlDeviceGetCount())]
    return [int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles]


@contextmanager
def watch_memory(backend: Backend, before: Sequence[int] | None = None) -> Iterator[MemoryWatch]:
    """Watch until `stop`, or the end of the context.

    Parameters
    ----------
    before : what `look_at_devices` gave when nothing was taken; None for now
    """
    watch = MemoryWatch(look_at_devices(backend) if before is None else before)
    try:
        yield watch
    finally:
        watch.stop()


def _time_few(matrix: Any, steps: dict[str, Any]) -> tuple[np.ndarray, float, float]:
    """Ranks of a run of a few iterations, its seconds, and those of writing the ranks."""
    began = time.perf_counter()
    solution = mg.pagerank(matrix, **steps, max_iter=FEW)
    made = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        written = time.perf_counter()
        solution.save(f"{folder}/ranks.zarr")
        return solution.values, made - began, time.perf_counter() - written


def format_report(setting: Setting, records: Sequence[Record]) -> str:
    """The tables, below what they were measured on."""
    parts = format_setting(setting)
    titles = ["workers", "slices", "iteration ms", "product ms", "exchange ms", "G edges/s a worker"]
    titles += ["efficiency", "received MB", "held GB", "load peak GB", "permitted GB", "load s", f"{FEW} iterations s"]
    titles += ["write s", "to ranks s", "same"]
    for precision in dict.fromkeys(r.precision for r in records):
        own = [r for r in records if r.precision == precision]
        peer_titles = ["cuGraph ms", "cuGraph / ours"] if any(r.peer_s for r in own) else []
        shown = titles + peer_titles
        parts += ["", f"### {precision}", "", format_row(shown), "|" + "---|" * len(shown)]
        parts += [format_row(_list_cells(r, own[0]) + (_list_peer_cells(r) if peer_titles else [])) for r in own]
        parts += [f"\ncuGraph on {r.n_workers} workers: {r.peer_problem}" for r in own if r.peer_problem]
    return "\n".join([*parts, "", *(f"- {line}" for line in LEGEND), ""])


def _list_cells(r: Record, first: Record) -> list[str]:
    speedup = first.iteration_s * first.n_workers / r.iteration_s
    said = "-" if r.precision == "float32" else "yes"
    same = (said if r.is_right else "NO") if r.difference is None else f"{r.difference:.2g}"
    seconds = (r.iteration_s, r.product_s, r.exchange_s)
    return [
        f"{r.n_workers}",
        r.transport if r.n_workers > 1 else "-",
        *(f"{1e3 * s:.4g}" for s in seconds),
        f"{r.edges / r.iteration_s / r.n_workers / 1e9:.4g}",
        f"{speedup / r.n_workers:.0%}",
        f"{r.received_bytes / 1e6:.4g}",
        f"{r.memory_bytes / 1e9:.3g}",
        *("-" if b is None else f"{b / 1e9:.3g}" for b in (r.peak_bytes, r.permitted_bytes)),
        *(f"{s:.3g}" for s in (r.load_s, r.few_s, r.write_s, r.load_s + r.few_s + r.write_s)),
        same,
    ]


def _list_peer_cells(r: Record) -> list[str]:
    return ["-", "-"] if r.peer_s is None else [f"{1e3 * r.peer_s:.4g}", f"{r.peer_s / r.iteration_s:.3g}"]


def _split(event: Event) -> tuple[float, float, float]:
    """Seconds of an iteration: in all, in the slowest product, and in the exchange after it."""
    parts = zip(event.product_s, event.exchange_s, event.wait_s, strict=True)
    whole = max(sum(part) for part in parts)
    product = max(event.product_s)
    return whole, product, max(0.0, whole - product)


def _compare(ranks: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.max(np.abs(ranks - wanted) / wanted, initial=0.0))


if __name__ == "__main__":
    run_program(main)
