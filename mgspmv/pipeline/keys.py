"""Keys of steps: digests of everything that affects their results, and of nothing else.

Options and contents of files are included; paths of files, devices and resources are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mgspmv.ingest.vector_files import DANGLING_RULES
from mgspmv.model import MatrixInfo
from mgspmv.pipeline.definition import PREVIOUS, UNIFORM, MatrixSection, Pipeline
from mgspmv.pipeline.sources import Checksums
from mgspmv.pipeline.steps import PipelineStep
from mgspmv.store.read import open_store
from mgspmv.validation import digest_json
from mgspmv.version import __version__

_FILES = ("personalization", "dangling", "nstart", "out_weight", "x", "y")
_NOT_IN_KEY = {"matrix", "backend", "checkpoint", "recover"}
"""Keys of a section that do not affect the result: matrix (an input), backend and fault tolerance."""

_FORMER = {"norm": "tol_mode", "weight": "weights"}
"""Names of options in keys, where they differ, so that results of earlier versions are kept."""


@dataclass(frozen=True)
class Identity:
    """Identity of a step."""

    key: str
    """SHA-256 of all that determines the result; see `StepRecord`."""
    options: dict[str, Any]
    """Options of the step, as JSON values."""
    inputs: dict[str, str]
    """Digests of files and of the matrix, by the name of the input."""
    base: str = ""
    """Key of a matrix before updates, without the version of the program, so that a new version keeps a matrix that was
    updated daily."""
    update: str | None = None
    """Key of the update; None without one."""


def identify_matrix(step: PipelineStep, checksums: Checksums) -> Identity:
    """Return the identity of a step that makes a matrix.

    Raises
    ------
    SourceError, OptionError : as in `Checksums.identify`
    StoreError : an opened store cannot be read
    """
    section: MatrixSection = step.written
    inputs = {name: checksums.identify(files) for name, files in list_sources(step.section).items()}
    changes = _leave_out(inputs, "source", "vertices")
    made = {"generate": section.generate, "parameters": section.parameters, "open": section.open}
    own = {"options": _leave_out(section.options, "vertices"), "made": made, "inputs": _leave_out(inputs, *changes)}
    base = digest_json(own)
    options = section.options | {name: value for name, value in made.items() if value}
    update = None
    if section.update is not None:
        update = digest_json({"options": _leave_out(section.update.options, "vertices"), "inputs": changes})
        options |= {"update": section.update.options}
    elif section.open is not None:
        inputs["store"] = open_store(step.target).info.digest
    key = digest_json([__version__, "matrix", base, update, inputs])
    return Identity(key, options, inputs, base, update)


def list_sources(section: MatrixSection) -> dict[str, str | list[str]]:
    """Return the sources of a matrix and of its update, by the names of inputs."""
    found = {"source": section.source, "vertices": section.vertices}
    if (change := section.update) is not None:
        found |= {"insert": change.insert, "delete": change.delete, "vertices of the update": change.vertices}
    return {name: files for name, files in found.items() if files is not None}


def identify_result(step: PipelineStep, pipeline: Pipeline, info: MatrixInfo, checksums: Checksums) -> Identity:
    """Return the identity of a step that computes results.

    Parameters
    ----------
    info : information on their matrix

    Raises
    ------
    SourceError, OptionError : as in `Checksums.identify`
    """
    files = list_files(step)
    inputs = {"matrix": info.digest} | {name: checksums.identify(path) for name, path in files.items()}
    options = step.written.model_dump(mode="json", exclude_none=True, exclude=_NOT_IN_KEY)
    if step.kind != "product":
        options |= {"formats": sorted(pipeline.output.formats), "scaler": pipeline.output.scaler}
    named = {_FORMER.get(name, name): value for name, value in _leave_out(options, *files).items()}
    return Identity(digest_json([__version__, step.kind, named, inputs]), options, inputs)


def list_files(step: PipelineStep) -> dict[str, str]:
    """Return the input files of results, by their names in the step."""
    return {name: path for name in _FILES if (path := find_file(step.section, name)) is not None}


def find_file(section: Any, name: str) -> str | None:
    """Return the file named by a key; None if the key is unset, or its value is a rule."""
    value = getattr(section, name, None)
    is_rule = value in {"dangling": DANGLING_RULES, "nstart": (PREVIOUS,), "personalization": (UNIFORM,)}.get(name, ())
    return None if is_rule else value


def _leave_out(options: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}
