"""Compilation of kernels ahead of the first run, by small runs of each kind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import numpy as np

import mgspmv as mg
from mgspmv.doctor.machine import NOT_KEPT, Finding, ok, wrong
from mgspmv.errors import FormatError
from mgspmv.ingest.block_sorting import SMALL
from mgspmv.kernels.compiled import find_compiled
from mgspmv.kernels.device import has_device
from mgspmv.kernels.host import SMALL_NNZ
from mgspmv.kernels.modules import watch_compiling
from mgspmv.kernels.select import list_kernels
from mgspmv.model import Precision

TIMEOUT_S = 600.0
"""Most seconds that all kernels take to compile on a slow machine."""
VERTICES = 1 << 16
"""Enough for edges that are not merged."""


def compile_kernels() -> Finding:
    """Compile the kernels of usual runs of ingest and PageRank on this machine's CPU and GPU, and keep them."""
    if find_compiled(os.environ.get("NUMBA_CACHE_DIR", "")) is None:
        return wrong(NOT_KEPT, "Set NUMBA_CACHE_DIR or MGSPMV_CACHE to a writable folder.")
    compiled: list[float] = []
    began = time.perf_counter()
    with TemporaryDirectory(prefix="mgspmv-warm-") as folder, watch_compiling(lambda: compiled.append(0.0)):
        for run in _list_runs(Path(folder)):
            run()
    seconds = time.perf_counter() - began
    found = f"compiled and kept in {seconds:.3g} s" if compiled else "all were compiled before"
    return ok(f"kernels of {' and '.join(_list_backends())}: {found}", seconds=seconds, is_new=bool(compiled))


def _list_backends() -> list[str]:
    return ["cpu", "cuda"] if has_device() else ["cpu"]


def _list_runs(folder: Path) -> Iterator[Callable[[], Any]]:
    """Yield small runs: ingest of texts and of arrays, with and without weights, and PageRank in each precision."""
    texts = {
        "pattern": "0 1\n1 2\n2 0\n",
        "weighted": "0 1 0.5\n1 2 2\n2 0 1\n",
        "names": "ann bob\nbob eve\neve ann\n",
    }
    for name, text in texts.items():
        path = folder / f"{name}.txt"
        path.write_text(text * (2 * SMALL // text.count("\n") + 1))  # more than what is not compiled
        yield partial(mg.ingest, path, folder / f"{name}-text.zarr")
    # More than what NumPy's functions compute.
    edges = np.random.default_rng(0).integers(0, VERTICES, (2, 2 * SMALL_NNZ))
    for name, columns in (("pattern", (*edges,)), ("weighted", (*edges, np.ones(edges.shape[1])))):
        store = folder / f"{name}.zarr"
        yield partial(mg.ingest, columns, store)
        for backend in _list_backends():
            for kernel in ("auto", *(list_kernels("cuda", for_steps=True) if backend == "cuda" else ())):
                for precision in get_args(Precision):
                    yield partial(_rank, store, backend, kernel, precision)
            yield partial(mg.pagerank, store, stop="topk:10", throw=False)


def _rank(store: Path, backend: str, kernel: str, precision: Precision) -> None:
    with suppress(FormatError):  # a layout that does not support the values
        mg.pagerank(mg.open(store).on(backend, kernel=kernel), precision=precision, max_iter=1, norm="fixed")
