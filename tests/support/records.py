"""A run of a pipeline as it would be written down, made of runs of PageRank on small graphs."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

import mgspmv as mg
from mgspmv.model import MatrixInfo
from mgspmv.report.record import Output, RunRecord, StepOutcome, StepRecord, describe_solution
from mgspmv.results import Solution

MARKUP = "<script>alert('web')</script>&amp;"
BEGAN = "2026-03-04T01:02:03+00:00"
KEY = "5f" * 32


def make_run(folder: Path) -> RunRecord:
    """Two graphs, one of them with names that are markup, ranked with several alphas and again after an update; a
    run on 4 workers, of which one held more than was planned; a step that failed, and two that were skipped for it."""
    steps = [*_rank_named(folder), *_rank_generated(folder)]
    steps.append(_end("broken", "matrix", "failed", f"{folder}/none.txt: there is no file of this name"))
    steps += [
        _end(f"broken/alpha=0.{k}", "pagerank", "skipped", "needs the step 'broken', which failed") for k in (5, 8)
    ]
    definition = {"source": {"web": {"path": MARKUP}}, "run": {"alpha": [0.5, 0.85, 0.95], "tol": 1e-8}}
    return RunRecord("nightly", "pipelines/nightly.toml", definition, BEGAN, 83.4, "0.1.0", steps)


def _rank_named(folder: Path) -> list[StepOutcome]:
    """A ring with chords whose first vertex has a name that is markup."""
    names = [MARKUP, *(f"https://example.org/{k:03}" for k in range(1, 150))]
    numbers = np.random.default_rng(5)
    edges = [(names[k], names[(k + 1) % 150]) for k in range(150)]
    edges += [(names[k], names[int(k * numbers.random() ** 2)]) for k in range(150) for _ in range(4)]
    source, store = folder / "web.csv", folder / "web.zarr"
    source.write_text("".join(f'"{i}","{j}"\n' for i, j in edges))
    info = mg.ingest(source, store, ids="string", delimiter=",").info
    steps = [_store("web", info)]
    with mg.open_matrix(store) as A:
        solutions = {alpha: mg.pagerank(A, alpha=alpha, tol=1e-8, max_iter=500) for alpha in (0.5, 0.85, 0.95)}
        steps += [_rank(f"web/damping/alpha={alpha}", solution) for alpha, solution in solutions.items()]
        cut_off = mg.pagerank(A, alpha=0.95, tol=1e-10, max_iter=30, throw=False)
    steps.append(_rank("web/cut off", cut_off))
    added = folder / "added.csv"
    added.write_text("".join(f'"{names[7]}","{name}"\n' for name in names[40:100]))
    with mg.update(store, insert=added, delimiter=",") as A:
        again = mg.pagerank(A, tol=1e-8, nstart=solutions[0.85])
    compared = _rank("web/nightly", again)
    assert compared.record is not None
    steps.append(replace(compared, record=replace(compared.record, comparison=_compare(solutions[0.85], again))))
    return steps


def _rank_generated(folder: Path) -> list[StepOutcome]:
    """A graph with a few vertices of very many edges; ranked in one process and, as far as can be seen, on four."""
    store = folder / "rmat.zarr"
    info = mg.generate("rmat", store, scale=10, edge_factor=8, seed=1).info
    with mg.open_matrix(store) as A:
        solution = mg.pagerank(A, tol=1e-7)
    steps = [replace(_store("rmat", info), state="kept"), _rank("rmat/alone", solution)]
    shared = _share(solution, 4)
    return [*steps, _rank("rmat/four workers", shared)]


def _share(solution: Solution, n: int) -> Solution:
    """As if n workers had computed it."""
    held = [200_000 + 50_000 * k for k in range(n)]
    memory = {"host_peak_bytes": [320_000 for _ in held], "held_bytes": held, "planned_bytes": [310_000] * n}
    return replace(solution, memory=memory)


def _store(name: str, info: MatrixInfo) -> StepOutcome:
    seconds = {"read": 0.31, "sort": 0.12, "write": 0.09}
    memory = {"host_peak_bytes": [450_000_000]}
    output = Output(info.url, info.nbytes, info.digest, "1")
    record = StepRecord(
        KEY, "matrix", name, {}, [output], {"kind": "graph"}, _drop_provenance(info), BEGAN, BEGAN, seconds, memory,
        provenance=_describe_place() | {"matrix": info.provenance},
    )  # fmt: skip
    return StepOutcome(name, "matrix", "made", 0.52, record)


def _rank(name: str, solution: Solution) -> StepOutcome:
    told = describe_solution(solution, 12)
    output = Output(f"out/{name}.parquet", 8 * len(solution.values), solution.digest(), "1")
    provenance = _describe_place() | {"matrix": {"options": {"order": "none"}}}
    record = StepRecord(
        KEY, "pagerank", name, {"matrix": KEY}, [output], began=BEGAN, ended=BEGAN, provenance=provenance, **told
    )
    return StepOutcome(name, "pagerank", "made", sum(solution.seconds.values()), record)


def _drop_provenance(info: MatrixInfo) -> dict[str, Any]:
    return {name: value for name, value in asdict(info).items() if name != "provenance"}


def _describe_place() -> dict[str, Any]:
    versions = {"mgspmv": "0.1.0", "python": "3.12.3", "numpy": "2.1.0"}
    machine = {"host": "node-7", "processor": "x86_64", "processors": 8, "memory_bytes": 64_000_000_000}
    return {"versions": versions, "machine": machine, "inputs": {"weights": {"path": "w.csv", "digest": KEY}}}


def _compare(before: Solution, now: Solution) -> dict[str, Any]:
    places = [np.argsort(np.argsort(-solution.values)) + 1 for solution in (before, now)]
    furthest = np.argsort(-np.abs(places[1] - places[0]), kind="stable")[:20]
    ids = now.ids
    moved = [
        [ids[k], int(places[0][k]), int(places[1][k]), float(before.values[k]), float(now.values[k])] for k in furthest
    ]
    moved.append([MARKUP + " of late", None, 3, None, 0.01])
    return {
        "before": {"key": KEY, "ended": "2026-03-03T01:02:03+00:00"},
        "n_common": len(now.values),
        "n_new": 1,
        "n_gone": 0,
        "spearman": float(spearmanr(before.values, now.values).statistic),
        "kendall_top": 0.5,
        "l1": float(np.abs(before.values - now.values).sum()),
        "overlap": 0.9,
        "moved": moved,
    }


def _end(name: str, kind: Any, state: Any, error: str) -> StepOutcome:
    return StepOutcome(name, kind, state, 0.01, None, error)
