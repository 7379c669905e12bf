"""Check, then time whole calls as users make them: PageRank and products of a stored graph, on this version of mgspmv.

    python -m benchmarks.calls --scale 22 --json found.json

It uses only the public interface, so that it runs with other versions too: `PYTHONPATH=CHECKOUT python
benchmarks/calls.py ...`. `python -m benchmarks.ratios` compares what two of them found. Ranks are checked beside those
of the host, products beside SciPy's; what is wrong gets no time, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import mgspmv as mg
from mgspmv.errors import MgspmvError

FEW, MANY = 10, 210
"""Iterations of two calls, whose difference is the time of the iterations between."""
TOLERANCES = {"exact": 1e-9, "float64": 1e-12, "float32": 1e-3}
"""Largest relative difference of a rank to the host's in float64, after FEW iterations."""
PRODUCT_TOLERANCE = {"float32": 1e-4, "float64": 1e-10}


def main(arguments: list[str] | None = None) -> int:
    """Time the calls; 1 when a result was wrong."""
    options = _parse(arguments)
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "graph.zarr"
        mg.generate("rmat", store, kind="graph", scale=options.scale, edge_factor=16, seed=7)
        with mg.open_matrix(store) as matrix:
            records = [*_time_ranks(matrix, options), *_time_products(matrix, options)]
    for record in records:
        print(record)
    if options.json:
        options.json.write_text(json.dumps({"version": mg.__file__, "records": records}, indent=1))
    return int(any(record.get("is_wrong") for record in records))


def _time_ranks(matrix: mg.Matrix, options: argparse.Namespace) -> list[dict[str, Any]]:
    def rank(iterations: int, precision: Any, backend: Any) -> mg.Solution:
        return mg.pagerank(matrix.on(backend), norm="fixed", max_iter=iterations, precision=precision)

    reference = rank(FEW, "float64", "cpu").values
    records = []
    for precision, tolerance in TOLERANCES.items():
        values = rank(FEW, precision, options.backend).values.astype(np.float64)
        error = float(np.max(np.abs(values - reference) / reference))
        record = {"graph": f"rmat{options.scale}", "contender": precision, "error": error}
        if error <= tolerance:
            few = _time(lambda p=precision: rank(FEW, p, options.backend), options.rounds)
            many = _time(lambda p=precision: rank(MANY, p, options.backend), options.rounds)
            record |= {"call_s": few, "iteration_s": (many - few) / (MANY - FEW)}
        else:
            record["is_wrong"] = True
        records.append(record)
    return records


def _time_products(matrix: mg.Matrix, options: argparse.Namespace) -> list[dict[str, Any]]:
    arcs = matrix.to_scipy()
    records = []
    for dtype, tolerance in PRODUCT_TOLERANCE.items():
        x = np.random.default_rng(3).random(arcs.shape[1]).astype(dtype)
        expected = arcs.astype(np.float64) @ x.astype(np.float64)
        operator = matrix.on(options.backend).as_linear_operator(precision=dtype)
        error = float(np.max(np.abs(operator.matvec(x) - expected) / np.maximum(expected, 1)))
        record = {"graph": f"rmat{options.scale}", "contender": f"product, {dtype}", "error": error}
        if error <= tolerance:
            record["call_s"] = _time(lambda f=operator.matvec, x=x: f(x), 5 * options.rounds)
        else:
            record["is_wrong"] = True
        records.append(record)
    return records


def _time(run: Callable[[], object], rounds: int) -> float:
    """Median of the seconds of a run, after one that is not counted."""
    run()
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return median(seconds)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=20, help="2^scale vertices, 16 edges each (20)")
    parser.add_argument("--backend", choices=("auto", "cpu", "cuda"), default="auto", help="(cuda where there is one)")
    parser.add_argument("--rounds", type=int, default=5, help="times each call is timed; the median counts (5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was found")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MgspmvError as error:
        sys.exit(f"error: {error}")
