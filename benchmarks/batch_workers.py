"""Time a batch of personalized vectors in one process and on the workers of a warm cluster, which take turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from distributed import Client

import mgspmv as mg
from benchmarks.measure import Rounds, take_turns
from benchmarks.stores import start_workers
from benchmarks.tables import Setting, format_row, format_setting
from mgspmv.kernels.catalogue import Backend

Seeds = Sequence[dict[int, float]]
"""Weights by vertex, of each vector."""
ROUNDS = Rounds(least=5, least_s=2.0, most_s=15.0)
TOP = 10
LEAST_SHARE = 0.85
"""Least ratio of one GPU's seconds to those of n GPUs, divided by n, that is not marked."""

LEGEND = (
    f"one: the batch in this process, on one GPU or on all processors of the host; the {TOP} highest ranks of each "
    "vector are kept, error bounds included.",
    "workers: the same on the workers of a cluster that has ranked it before, as long as the client waits.",
    "vectors: `shared` if each worker ranks some of them with all rows, `rows` if it computes its rows of all.",
    f"ratio: of the medians, one to workers; on n GPUs it is marked if it is less than {LEAST_SHARE} n.",
    "same: whether the highest ranks, iterations and changes are bit-identical; in float32 else the largest difference "
    "of two ranks, which is an error if it exceeds the error bounds.",
)


@dataclass(frozen=True)
class WorkersRecord:
    """Seconds of a batch in one precision."""

    precision: str
    n_vectors: int
    n_workers: int
    backend: str
    vectors: str
    """Way in which the workers divide the batch."""
    widths: tuple[int, int]
    """Vectors per pass in one process, and on workers."""
    passes: tuple[int, int]
    one_s: list[float]
    """Of each round in one process."""
    workers_s: list[float]
    """Of each round on the workers."""
    seconds: dict[str, float]
    """Of the last round on the workers, by phase."""
    is_same: bool
    difference: float
    """Largest difference of two ranks."""
    is_right: bool

    @property
    def ratio(self) -> float:
        return median(self.one_s) / median(self.workers_s)


def run_on_workers(
    store: str,
    seeds: Seeds,
    precisions: Sequence[Any],
    n_workers: int,
    backend: Backend,
    width: int | None,
    say: Callable[[str], None],
) -> list[WorkersRecord]:
    """Check, then time the batch in one process and on workers in turn."""
    records = []
    with mg.open_matrix(store) as A, start_workers(n_workers, backend) as cluster, Client(cluster) as client:
        here = A.on(backend)
        with A.distribute(client, backend=backend) as D:
            for precision in precisions:
                record = _run_one(here, D, seeds, precision, width)
                one_s, workers_s = median(record.one_s), median(record.workers_s)
                say(f"{precision}: {one_s:.3g} s in one process, {workers_s:.3g} s on {n_workers} workers")
                records.append(record)
    return records


def _run_one(here: Any, D: Any, seeds: Seeds, precision: Any, width: int | None) -> WorkersRecord:
    last: dict[str, Any] = {}

    def rank(where: str, matrix: Any) -> float:
        began = perf_counter()
        last[where] = mg.pagerank_batch(matrix, seeds, keep_top=TOP, precision=precision, width=width)
        return perf_counter() - began

    tasks = {"one": lambda: rank("one", here), "workers": lambda: rank("workers", D)}
    for task in tasks.values():  # not timed: reads and compiles
        task()
    times = take_turns(tasks, ROUNDS, turns_back=True)
    one, workers = last["one"], last["workers"]
    is_same = (one.digest(), one.statuses, one.changes) == (workers.digest(), workers.statuses, workers.changes)
    difference = float(np.abs(one.top_ranks.astype(float) - workers.top_ranks).max())
    permitted = float((one.error_bounds_l1 + workers.error_bounds_l1).min())
    return WorkersRecord(
        precision=precision,
        n_vectors=len(seeds),
        n_workers=len(D.members),
        backend=D.backend,
        vectors=workers.options["vectors"],
        widths=(one.options["width"], workers.options["width"]),
        passes=(one.options["steps"], workers.options["steps"]),
        one_s=times["one"],
        workers_s=times["workers"],
        seconds=workers.seconds,
        is_same=is_same,
        difference=difference,
        is_right=is_same or (precision == "float32" and difference <= permitted),
    )


def format_report(setting: Setting, records: Sequence[WorkersRecord]) -> str:
    """The table, below what it was measured on."""
    titles = ["precision", "vectors", "one s", "width", "passes", "workers", "vectors are", "s", "width", "passes"]
    titles += ["ratio", "same"]
    phases = [
        f"\n{r.precision}, seconds on workers: " + ", ".join(f"{name} {s:.3g}" for name, s in r.seconds.items())
        for r in records
    ]
    table = [format_row(titles), "|" + "---|" * len(titles), *(format_row(_list_cells(r)) for r in records)]
    return "\n".join([*format_setting(setting), "", *table, *phases, "", *(f"- {line}" for line in LEGEND), ""])


def _list_cells(r: WorkersRecord) -> list[str]:
    is_slow = r.backend == "cuda" and r.ratio < LEAST_SHARE * r.n_workers
    return [
        r.precision,
        f"{r.n_vectors}",
        f"{median(r.one_s):.3g}",
        f"{r.widths[0]}",
        f"{r.passes[0]}",
        f"{r.n_workers}",
        r.vectors,
        f"{median(r.workers_s):.3g}",
        f"{r.widths[1]}",
        f"{r.passes[1]}",
        f"{r.ratio:.2f}" + (", TOO LITTLE" if is_slow else ""),
        "yes" if r.is_same else f"{r.difference:.2g}" + ("" if r.is_right else ", WRONG"),
    ]
