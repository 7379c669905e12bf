"""Time PageRank of many personalized vectors in a batch, compared with single runs that take turns with it.

    python -m benchmarks.batch --scale 20 --vectors 256 --precision both
    python -m benchmarks.batch --scale 22 --vectors 256 --precision both --workers 2

The single runs are a random sample of the vectors. One of them is made whenever the batch has made some passes, while
it waits, so that noise of the machine meets both. Tables are Markdown. Both must give the same ranks, or the exit code
is 1. With `--workers` the batch in this process takes turns with the same on the workers of a cluster.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import isclose
from typing import Any

import numpy as np

import mgspmv as mg
from benchmarks import batch_workers
from benchmarks.machines import choose_machine
from benchmarks.measure import say
from benchmarks.program import (
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
from benchmarks.stores import open_graph
from benchmarks.tables import Setting, format_row, format_setting
from mgspmv.errors import OptionError
from mgspmv.kernels.catalogue import Backend
from mgspmv.model import Event, Phase

Seeds = Sequence[dict[int, float]]
"""Weights by vertex, of each vector."""
MOST_SEEDS = 10
LEAST_SAMPLED = 8
"""Vectors that are run alone at least, unless there are fewer in the batch."""
BOUNDS_APART = 1e-3
"""Relative difference of error bounds on a GPU: a single run measures its own in fixed point, a batch in float64."""

PASSES_APART = 20
"""Between two single runs."""
TOP = 10
MOST_SHARE = 0.25
"""Of what single runs of all vectors cost, what the batch is to cost at most, in float32."""

LEGEND = (
    f"batch: all vectors, 1 to {MOST_SEEDS} random seeds each, to the default tolerance, error bounds and the {TOP} "
    "highest ranks of each included, compiling and the single runs that it waited for not.",
    "single runs: of all vectors, estimated from a random sample of them that took turns with the batch. From "
    "iterations: the seconds of the sample over its iterations, times the iterations of all vectors, which are the "
    "same in the batch and alone. From the mean: the mean seconds of the sample, times the vectors.",
    "ms a vector and iteration: of the fused steps alone, in the batch over the iterations of all vectors.",
    "share: seconds of the batch over those of the single runs, by the estimate that is less in its favour. In float32 "
    f"of 256 vectors it is to be {MOST_SHARE:.0%} at most.",
    "same: whether ranks, iterations and error bounds of the sample are those of the single runs, to the bit (bounds "
    "on a GPU to three digits, as a batch and a single run round them in other ways); else the "
    "greatest L1 distance of ranks. SciPy: the L1 distance of one vector to its ranks by SciPy in float64, beside its "
    "error bound and that of SciPy's ranks.",
)


@dataclass(frozen=True)
class Record:
    """What was measured in one precision."""

    precision: str
    width: int
    n_vectors: int
    n_sampled: int
    """Single runs that were timed."""
    batch_s: float
    steps: int
    iterations: int
    """Of all vectors."""
    seconds: dict[str, float]
    """Of the batch, by phase."""
    singles_by_iterations_s: float
    singles_by_mean_s: float
    single_step_s: float
    """Of an iteration of one vector alone."""
    is_same: bool
    distance: float
    """Greatest L1 distance of a vector of the sample to its single run."""
    scipy_distance: float
    scipy_permitted: float
    is_right: bool

    @property
    def step_s(self) -> float:
        """Of an iteration of one vector in the batch."""
        return self.seconds["product"] / self.iterations

    @property
    def share(self) -> float:
        return self.batch_s / min(self.singles_by_iterations_s, self.singles_by_mean_s)


class _Singles:
    """Single runs of a sample, one after the other, over and over."""

    def __init__(self, A: mg.Matrix, seeds: Seeds, sample: Sequence[int], **options: Any) -> None:
        self._matrix, self._seeds, self._sample, self._options = A, seeds, sample, options
        self.solutions: dict[int, Any] = {}
        self.seconds: list[float] = []
        self.iterations: list[int] = []
        self.product_s = 0.0

    def run_next(self) -> float:
        """Seconds that it took."""
        k = self._sample[len(self.seconds) % len(self._sample)]
        began = time.perf_counter()
        solution = mg.pagerank(self._matrix, personalization=self._seeds[k], **self._options)
        self.seconds.append(time.perf_counter() - began)
        self.iterations.append(solution.iterations)
        self.product_s += solution.seconds["product"]
        self.solutions[k] = solution
        return time.perf_counter() - began


def make_seeds(n: int, n_vectors: int, seed: int = 0) -> list[dict[int, float]]:
    """Random personalizations: 1 to 10 vertices each, of random weights."""
    rng = np.random.default_rng(seed)
    counts = np.minimum(rng.integers(1, MOST_SEEDS + 1, n_vectors), n)
    chosen = [rng.choice(n, count, replace=False).tolist() for count in counts]
    return [dict(zip(own, (rng.random(len(own)) + 0.1).tolist(), strict=True)) for own in chosen]


def main(arguments: Sequence[str] | None = None) -> int:
    """Time what was asked for; 1 when ranks were wrong."""
    options = _parse(arguments)
    backend = choose_backend(options.backend)
    setting = Setting.observe("benchmarks.batch", arguments, choose_machine(backend))
    with open_graph(options) as (store, graph):
        precisions = choose_precisions(options.precision)
        if options.workers is not None:
            return _time_workers(options, setting.note(**graph), store, backend)
        records = run_batch(store, precisions, options.vectors, backend, options.width, say)
    setting = setting.note(**graph)
    found = [asdict(r) | {"share": r.share} for r in records]
    write_json(options.json, {"setting": asdict(setting), "records": found})
    return end(format_report(setting, records), "ranks", [r.precision for r in records if not r.is_right])


def _time_workers(options: argparse.Namespace, setting: Setting, store: str, backend: Backend) -> int:
    with mg.open_matrix(store) as A:
        seeds = _draw(A, store, options.vectors)
    given = (choose_precisions(options.precision), options.workers, backend, options.width)
    found = batch_workers.run_on_workers(store, seeds, *given, say)
    records = [asdict(r) | {"ratio": r.ratio} for r in found]
    write_json(options.json, {"setting": asdict(setting), "records": records})
    wrong = [r.precision for r in found if not r.is_right]
    return end(batch_workers.format_report(setting, found), "ranks", wrong)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add_graph_options(parser, scale=20)
    parser.add_argument("--vectors", type=int, default=256, help="personalized vectors (256)")
    parser.add_argument("--width", type=int, metavar="2|4|8|16|32|64", help="vectors per pass (what is fast and fits)")
    parser.add_argument("--workers", type=parse_count, metavar="N", help="time one process and N workers instead")
    add_backend_option(parser)
    add_precision_option(parser, default="float32")
    add_json_option(parser)
    return parser.parse_args(arguments)


def run_batch(
    store: str,
    precisions: Sequence[str],
    n_vectors: int,
    backend: Backend,
    width: int | None,
    say: Callable[[str], None],
) -> list[Record]:
    """Check, then time the batch and single runs in turn.

    Parameters
    ----------
    say : gets a line for each precision
    """
    if n_vectors < 2:
        raise OptionError(f"there must be at least 2 vectors, not {n_vectors}")
    records = []
    with mg.open_matrix(store) as A:
        seeds = _draw(A, store, n_vectors)
        for precision in precisions:
            record = _run_one(A, seeds, precision, backend, width)
            say(f"{precision}: {record.batch_s:.3g} s, {record.share:.1%} of {n_vectors} single runs")
            records.append(record)
    return records


def _draw(A: mg.Matrix, store: str, n_vectors: int) -> list[dict[int, float]]:
    if A.vertex_ids is not None:
        raise OptionError(f"{store} has ids of its own, and seeds are drawn from 0..n-1; pass another graph")
    return make_seeds(A.shape[0], n_vectors)


def _run_one(A: mg.Matrix, seeds: Seeds, precision: Any, backend: Backend, width: int | None) -> Record:
    A, options = A.on(backend), {"precision": precision}
    sample = np.random.default_rng(1).permutation(len(seeds))[:LEAST_SAMPLED].tolist()
    checked = mg.pagerank_batch(A, [seeds[k] for k in sample], width=width, **options)
    singles = _Singles(A, seeds, sample, **options)
    for _ in sample:  # not timed: what is compiled and loaded once is
        singles.run_next()
    pairs = [(checked[place], singles.solutions[k]) for place, k in enumerate(sample)]
    apart = BOUNDS_APART if backend == "cuda" else 0.0
    is_same = all(
        _describe(one) == _describe(other) and isclose(one.error_bound_l1, other.error_bound_l1, rel_tol=apart)
        for one, other in pairs
    )
    distance = max(float(abs(one.values.astype(float) - other.values).sum()) for one, other in pairs)
    is_near = all(abs(a.values.astype(float) - b.values).sum() <= a.error_bound_l1 + b.error_bound_l1 for a, b in pairs)
    scipy_distance, scipy_bound = _compare_scipy(A, seeds[sample[0]], checked[0].values)
    permitted = checked[0].error_bound_l1 + scipy_bound

    singles = _Singles(A, seeds, sample, **options)
    waited_s = 0.0

    def take_turn(news: Event | Phase) -> None:
        nonlocal waited_s
        if isinstance(news, Event) and news.iteration % PASSES_APART == PASSES_APART // 2:
            waited_s += singles.run_next()

    began = time.perf_counter()
    batch = mg.pagerank_batch(A, seeds, width=width, keep_top=TOP, **options, progress=take_turn)
    batch_s = time.perf_counter() - began - waited_s - batch.seconds["compile"]
    while len(singles.seconds) < len(sample):
        singles.run_next()
    iterations = int(batch.iterations.sum())
    return Record(
        precision=precision,
        width=batch.options["width"],
        n_vectors=len(seeds),
        n_sampled=len(singles.seconds),
        batch_s=batch_s,
        steps=batch.options["steps"],
        iterations=iterations,
        seconds=batch.seconds,
        singles_by_iterations_s=sum(singles.seconds) / sum(singles.iterations) * iterations,
        singles_by_mean_s=float(np.mean(singles.seconds)) * len(seeds),
        single_step_s=singles.product_s / sum(singles.iterations),
        is_same=is_same,
        distance=distance,
        scipy_distance=scipy_distance,
        scipy_permitted=permitted,
        is_right=(is_same or (precision == "float32" and is_near)) and scipy_distance <= permitted,
    )


def _describe(solution: Any) -> tuple[Any, ...]:
    """What is to be the same in the batch and alone, beside the error bound."""
    return solution.digest(), solution.status, solution.changes


def _compare_scipy(A: mg.Matrix, seeds: dict[int, float], ranks: np.ndarray) -> tuple[float, float]:
    """L1 distance of ranks to those by SciPy, and the error that these may have."""
    matrix, n, alpha = A.to_scipy(), A.shape[0], 0.85
    p = np.zeros(n)
    p[list(seeds)] = list(seeds.values())
    p /= p.sum()
    weight = np.asarray(matrix.sum(axis=0), dtype=np.float64).ravel()
    is_dangling = weight == 0
    x, change = np.full(n, 1.0 / n), np.inf
    while change >= 1e-9:
        z = np.divide(x, weight, out=np.zeros(n), where=~is_dangling)
        new = alpha * (matrix @ z + x[is_dangling].sum() * p) + (1.0 - alpha) * p
        change, x = float(np.abs(new - x).sum()), new
    return float(np.abs(ranks - x).sum()), change * alpha / (1.0 - alpha)


def format_report(setting: Setting, records: Sequence[Record]) -> str:
    """The table, below what it was measured on."""
    titles = ["precision", "vectors", "width", "batch s", "passes", "single runs s, from iterations", "from the mean"]
    titles += ["share", "sample", "ms a vector and iteration, batch", "alone", "ratio", "same", "SciPy"]
    rows = [format_row(_list_cells(r)) for r in records]
    phases = [
        f"\n{r.precision}, seconds of the batch: " + ", ".join(f"{name} {s:.3g}" for name, s in r.seconds.items())
        for r in records
    ]
    table = [format_row(titles), "|" + "---|" * len(titles), *rows]
    return "\n".join([*format_setting(setting), "", *table, *phases, "", *(f"- {line}" for line in LEGEND), ""])


def _list_cells(r: Record) -> list[str]:
    return [
        r.precision,
        f"{r.n_vectors}",
        f"{r.width}",
        f"{r.batch_s:.3g}",
        f"{r.steps}",
        f"{r.singles_by_iterations_s:.3g}",
        f"{r.singles_by_mean_s:.3g}",
        f"{r.share:.1%}" + (", TOO MUCH" if r.precision == "float32" and r.share > MOST_SHARE else ""),
        f"{r.n_sampled}",
        f"{1e3 * r.step_s:.3g}",
        f"{1e3 * r.single_step_s:.3g}",
        f"{r.single_step_s / r.step_s:.2f}",
        "yes" if r.is_same else f"{r.distance:.2g}",
        f"{r.scipy_distance:.2g} of {r.scipy_permitted:.2g}" + ("" if r.is_right else ", WRONG"),
    ]


if __name__ == "__main__":
    run_program(main)
