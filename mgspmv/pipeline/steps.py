"""Steps of a pipeline: each matrix, and the results computed from it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from mgspmv.files import strip_file_scheme
from mgspmv.pipeline.definition import BatchSection, Pipeline, ProductSection, Section
from mgspmv.report.record import StepKind

S = TypeVar("S", bound=Section)


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
    written: Any
    """The same section with paths as in the file, for keys and records."""
    target: str
    """Path or URL of the store of a matrix, or else of the folder of results."""


def list_steps(pipeline: Pipeline, written: Pipeline, folder: str) -> dict[str, list[PipelineStep]]:
    """List the steps by matrix; the first step of each makes it.

    Parameters
    ----------
    written : the same pipeline, with paths as in the file
    folder : folder of the pipeline
    """
    return {name: list(_list_matrix_steps(pipeline, written, folder, name)) for name in pipeline.matrix}


def _list_matrix_steps(pipeline: Pipeline, written: Pipeline, folder: str, matrix: str) -> Iterator[PipelineStep]:
    own = pipeline.matrix[matrix]
    store = strip_file_scheme(own.open or own.store or Path(folder) / f"{matrix}.zarr")
    yield PipelineStep(matrix, "matrix", matrix, own, written.matrix[matrix], store)
    found, texts = _list_tables(pipeline), _list_tables(written)
    results = strip_file_scheme(pipeline.output.folder or folder).rstrip("/")
    for kind, sections in found.items():
        for name, section in sections.items():
            if matrix in list_matrices(pipeline, section):
                both = zip(list_points(section), list_points(texts[kind][name]), strict=True)
                for (label, point), (_, text) in both:
                    full = "/".join(part for part in (matrix, name, label) if part)
                    yield PipelineStep(full, kind, matrix, point, text, f"{results}/{full}")


def _list_tables(pipeline: Pipeline) -> dict[StepKind, Any]:
    return {"pagerank": pipeline.runs, "batch": pipeline.batch, "product": pipeline.product}


def list_matrices(pipeline: Pipeline, section: Any) -> list[str]:
    """Return the names of the matrices that a section refers to."""
    if section.matrix is not None:
        return list(dict.fromkeys([section.matrix] if isinstance(section.matrix, str) else section.matrix))
    if isinstance(section, ProductSection):
        return list(pipeline.matrix)
    return [name for name, matrix in pipeline.matrix.items() if matrix.kind != "matrix"]


# --- grids -----------------------------------------------------------------------------------------------------------


GRID = (
    *("x", "alpha", "beta", "tol", "norm", "max_iter", "stop", "personalization", "dangling", "nstart"),
    *("out_weight", "weight", "reverse", "transpose", "precision", "kernel", "backend"),
)
"""Keys whose lists are grids, in the order in which labels, and so names of folders, list them."""


def list_points(section: S) -> Iterator[tuple[str, S]]:
    """Yield each combination of a section's lists, with its label, such as `alpha=0.9,personalization=sports`.

    A list of matrices is not expanded, as each matrix has separate steps.
    """
    names = [name for name in GRID if not (name == "alpha" and isinstance(section, BatchSection))]
    lists = {name: values for name in names if isinstance(values := getattr(section, name, None), list)}
    for values in itertools.product(*lists.values()):
        point = dict(zip(lists, values, strict=True))
        label = ",".join(f"{name}={show_value(value)}" for name, value in point.items())
        yield label, section.model_copy(update=point)


def show_value(value: Any) -> str:
    """Format a value as part of a file name: of a path its last part without the suffix."""
    if not isinstance(value, str):
        return str(value).lower() if isinstance(value, bool) else f"{value!r}"
    last = PurePosixPath(value.rstrip("/")).name if "/" in value or "." in value else value
    stem = last.partition(".")[0] or last
    return "".join(c if c.isalnum() or c in "_.-" else "-" for c in stem)
