"""What steps will take: bytes of this process, and seconds where they can be told beforehand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from mgspmv.api.matrix import Matrix
from mgspmv.exchange.panels import LocalPanels
from mgspmv.files import is_url
from mgspmv.ingest.files import find_files
from mgspmv.ingest.generate import GeneratedSource, make_generator
from mgspmv.ingest.groups import is_group_path
from mgspmv.ingest.seeds import read_seeds
from mgspmv.ingest.write import BATCH_BYTES, LEAST_SORTING
from mgspmv.iterate.batch import count_bytes
from mgspmv.iterate.options import DEFAULT_TOL
from mgspmv.kernels.many import WIDTHS
from mgspmv.model import Precision, default_threads, index_dtype
from mgspmv.order import estimate_bytes
from mgspmv.pipeline.computing import Computing
from mgspmv.pipeline.definition import MatrixSection
from mgspmv.pipeline.outputs import measure_bytes
from mgspmv.pipeline.places import fetch_input
from mgspmv.pipeline.steps import Step
from mgspmv.report.record import StepRecord

EXPANSION = 8
"""Bytes that a byte of a source takes at most while it is sorted; compressed texts have few for an entry."""
BESIDE_BYTES = 256 << 20
"""That the process may grow by meanwhile, for steps side by side and by what it loads."""
RESULT_BYTES = 64
"""Of a vertex, beside what computing takes: ranks and ids, sorted for tables and comparisons."""
HELD_WIDTH = 16
"""Vectors in a pass of a batch, unless the user names a width."""


def predict_matrix(section: MatrixSection, threads: int | None, limit: int, *, on_workers: bool = False) -> int:
    """Bytes of this process that making a matrix is given: enough to have it in memory, or what there is, but no less
    than what must fit.

    Parameters
    ----------
    limit : most
    on_workers : whether those of a cluster make it; what is changed in a store is changed by this process
    """
    if section.update is None and (on_workers or section.open is not None):
        return 0
    least = BESIDE_BYTES + LEAST_SORTING + BATCH_BYTES  # of one thread; where there is no room for more, less are taken
    more = BATCH_BYTES * ((threads or default_threads()) - 1)
    if section.generate is None:
        names = [name for name in (section.path, *_list_changes(section)) if name is not None]
        more += EXPANSION * sum(map(_measure_source, names))
    else:
        source = make_generator(section.generate, **section.parameters)
        n_entries = source.n_slots * (2 if section.symmetrize else 1)
        more += n_entries * _count_sorted(section, source)
        if section.order != "none":  # for which there is half
            least += 2 * estimate_bytes(section.order, source.layout().shape[0], n_entries)
    return min(max(limit, least), least + more)


def _count_sorted(section: MatrixSection, source: GeneratedSource) -> int:
    """Bytes that sorting takes for an entry: twice what it is held in, and again where rows are sorted twice."""
    values = None if section.ignore_weights else source.make_entries(0, min(1, source.n_slots)).values
    held = 2 * index_dtype(max(source.layout().shape)).itemsize + (0 if values is None else values.itemsize)
    return 2 * held * (2 if section.transpose or section.order != "none" else 1)


def _list_changes(section: MatrixSection) -> list[Any]:
    return [] if section.update is None else [section.update.insert, section.update.delete]


def _measure_source(names: Any) -> int:
    """Bytes of local files; of those that are elsewhere, or not there, nothing is known."""
    try:
        found = [names] if isinstance(names, str) and is_group_path(names) else find_files(names)
        return sum(measure_bytes(Path(name)) for name in found if not is_url(name))
    except (OSError, ValueError):
        return 0


def predict_result(
    step: Step, matrix: Matrix, computing: Computing, before: StepRecord | None, *, times: bool
) -> tuple[int, float | None]:
    """Bytes that a step takes of this process, and seconds.

    Parameters
    ----------
    matrix : that it is of, or its transpose
    before : how it ended before; None where it did not
    times : whether seconds are wanted, for which a device is measured with some of the rows

    Raises
    ------
    CapacityError : it does not fit on the workers that are asked for
    OptionError, SourceError : seeds that cannot be read
    """
    results = RESULT_BYTES * max(matrix.shape)
    if step.kind == "batch" and step.section.keep == "all":  # and those before, which they are compared with
        results += (1 if before is None else 2) * 8 * matrix.shape[0] * _count_vectors(step.section, matrix)
    if computing.is_on_cluster:
        return results, None
    is_on_device = computing.is_on_device(step.section)
    if is_on_device and not times:
        return results, None
    precision: Precision = "exact" if step.kind == "product" else step.section.precision
    options: dict[str, Any] = {"threads": computing.threads, "backend": "cuda" if is_on_device else "cpu"}
    plan = matrix.plan(precision=precision, stop=getattr(step.section, "stop", "change"), **options)
    needed = results + (0 if is_on_device else plan.memory_bytes)
    if getattr(step.section, "follow_changes", False):  # the columns are laid out as rows
        needed += plan.memory_bytes
    if step.kind == "batch" and not is_on_device:
        width = step.section.width or min(HELD_WIDTH, WIDTHS[-1])
        n = matrix.shape[0]
        needed += count_bytes(LocalPanels(n, _make_zeros), n, precision, 8, width)
    if plan.seconds_per_iteration is None or step.kind == "batch":
        return needed, None
    iterations = 1 if step.kind == "product" else predict_iterations(step.section, before)
    return needed, plan.seconds_per_iteration * iterations


def _count_vectors(section: Any, matrix: Matrix) -> int:
    alphas = len(section.alpha) if isinstance(section.alpha, list) else 1
    if section.seeds is None:
        return alphas
    with fetch_input(section.seeds) as local:
        seeds = read_seeds(local, string_ids=matrix.info.vertex_ids == "string")
    return len(seeds["vector"].unique()) if "vector" in seeds.column_names else alphas


def predict_iterations(section: Any, before: StepRecord | None) -> int:
    """Iterations that a run makes: as many as before with the same alpha; else until alpha^k is less than tol, with
    which changes shrink at least, or max_iter."""
    if before is not None and before.options.get("alpha") == section.alpha and "iterations" in before.result:
        return int(before.result["iterations"])
    if section.tol_mode == "fixed" or not 0 < section.alpha < 1:
        return int(section.max_iter) if section.tol_mode == "fixed" else 1
    tol = min(section.tol or DEFAULT_TOL, 0.5)
    return int(min(section.max_iter, max(1, math.ceil(math.log(tol) / math.log(section.alpha)))))


def _make_zeros(n_rows: int, width: int, dtype: Any) -> np.ndarray:
    return np.zeros((n_rows, width), dtype)
