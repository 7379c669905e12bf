"""Steps of a pipeline: each matrix, and the results computed from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mgspmv.files import strip_file_scheme
from mgspmv.pipeline.definition import Pipeline, ProductSection, list_points
from mgspmv.report.record import StepKind


@dataclass(frozen=True)
class PipelineStep:
    """Step of a pipeline: a matrix or a result to be made."""

    name: str
    """Name, such as `web`, or `web/damping/alpha=0.9`."""
    kind: StepKind
    matrix: str
    """Name of the matrix that the step makes or reads."""
    section: Any
    """Section of the definition, with a single value for each key."""
    target: str
    """Path or URL of the store of a matrix, or else of the folder of results."""


def list_steps(pipeline: Pipeline, folder: str) -> dict[str, list[PipelineStep]]:
    """List the steps by matrix; the first step of each makes it.

    Parameters
    ----------
    folder : folder of the pipeline
    """
    return {name: list(_list_matrix_steps(pipeline, folder, name)) for name in pipeline.matrix}


def _list_matrix_steps(pipeline: Pipeline, folder: str, matrix: str) -> Iterator[PipelineStep]:
    own = pipeline.matrix[matrix]
    store = strip_file_scheme(own.open or own.store or Path(folder) / f"{matrix}.zarr")
    yield PipelineStep(matrix, "matrix", matrix, own, store)
    tables: dict[StepKind, Any] = {"pagerank": pipeline.runs, "batch": pipeline.batch, "product": pipeline.product}
    results = strip_file_scheme(pipeline.output.folder or folder).rstrip("/")
    for kind, sections in tables.items():
        for name, section in sections.items():
            if matrix in list_matrices(pipeline, section):
                for label, point in list_points(section):
                    full = "/".join(part for part in (matrix, name, label) if part)
                    yield PipelineStep(full, kind, matrix, point, f"{results}/{full}")


def list_matrices(pipeline: Pipeline, section: Any) -> list[str]:
    """Return the names of the matrices that a section refers to."""
    if section.matrix is not None:
        return list(dict.fromkeys([section.matrix] if isinstance(section.matrix, str) else section.matrix))
    if isinstance(section, ProductSection):
        return list(pipeline.matrix)
    return [name for name, matrix in pipeline.matrix.items() if matrix.kind != "matrix"]
