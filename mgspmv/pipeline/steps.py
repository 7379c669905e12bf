"""Steps of a pipeline: each matrix, and the results computed from it; their keys and their inputs.

A key is a digest of everything that affects the results of a step, and of nothing else: options and contents of files
are included; paths of files, devices and resources are not.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from mgspmv.environment import __version__
from mgspmv.errors import MgspmvError, SourceNotFoundError, StoreError, source_error
from mgspmv.files import find_system, is_url, strip_file_scheme, write_beside
from mgspmv.ingest.detect import is_group_path
from mgspmv.ingest.files import describe_url, find_files, translate_error
from mgspmv.ingest.vertex_vectors import DANGLING_RULES
from mgspmv.model import MatrixInfo
from mgspmv.pipeline.definition import PREVIOUS, UNIFORM, BatchSection, MatrixSection, Pipeline, ProductSection, Section
from mgspmv.report.record import StepKind
from mgspmv.store.read import open_store
from mgspmv.validation import FORMER_OPTIONS, digest_json, parse_json

S = TypeVar("S", bound=Section)

_FILES = ("personalization", "dangling", "nstart", "out_weight", "x", "y")
_NOT_IN_KEY = {"matrix", "backend", "checkpoint", "recover"}
"""Keys of a section that do not affect the result: matrix (an input), backend and fault tolerance."""

_IN_KEYS = {name: former for former, name in FORMER_OPTIONS.items()}
"""Names of options in keys, where they differ, so that results of earlier versions are kept."""
_GONE = {"ignore_weights": False}
"""Former options of matrices, with their default, which is part of keys."""
_GONE_OF_UPDATES = _GONE | {"missing": "ignore"}
"""The same of updates."""


@dataclass(frozen=True)
class PipelineStep:
    """Step of a pipeline: a matrix or a result to be made.

    Examples
    --------
    >>> from pathlib import Path
    >>> from mgspmv.pipeline import read_pipeline
    >>> _ = Path("a.toml").write_text('matrix.web = {generate = "rmat", parameters = {scale = 6}}')
    >>> [(step.name, step.kind) for step in read_pipeline("a.toml").list_steps()["web"]]
    [('web', 'matrix')]
    """

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
    steps, results = dict[str, list[PipelineStep]](), strip_file_scheme(pipeline.output.folder or folder).rstrip("/")
    for matrix, own in pipeline.matrix.items():
        store = strip_file_scheme(own.open or own.store or Path(folder) / f"{matrix}.zarr")
        steps[matrix] = [PipelineStep(matrix, "matrix", matrix, own, written.matrix[matrix], store)]
    kinds: dict[StepKind, Any] = {"pagerank": "runs", "batch": "batch", "product": "product"}
    for kind, table in kinds.items():
        sections, texts = getattr(pipeline, table), getattr(written, table)
        for name in sections:
            for (label, point), (_, text) in zip(list_points(sections[name]), list_points(texts[name]), strict=True):
                for matrix in list_matrices(pipeline, sections[name]):
                    full = "/".join(part for part in (matrix, name, label) if part)
                    steps[matrix].append(PipelineStep(full, kind, matrix, point, text, f"{results}/{full}"))
    return steps


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


# --- keys ------------------------------------------------------------------------------------------------------------


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
    """Return the identity of a step that makes a matrix."""
    section: MatrixSection = step.written
    inputs = {name: checksums.identify(files) for name, files in list_sources(step.section).items()}
    changes = _leave_out(inputs, "source", "vertices")
    made = {"generate": section.generate, "parameters": section.parameters, "open": section.open}
    own = {
        "options": _GONE | _leave_out(section.options, "vertices"),
        "made": made,
        "inputs": _leave_out(inputs, *changes),
    }
    base = digest_json(own)
    options = section.options | {name: value for name, value in made.items() if value}
    update = None
    if section.update is not None:
        changed = {"options": _GONE_OF_UPDATES | _leave_out(section.update.options, "vertices"), "inputs": changes}
        update = digest_json(changed)
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
    """
    files = list_files(step)
    inputs = {"matrix": info.digest} | {name: checksums.identify(path) for name, path in files.items()}
    options = step.written.model_dump(mode="json", exclude_none=True, exclude=_NOT_IN_KEY)
    if step.kind != "product":
        options |= {"formats": sorted(pipeline.output.formats), "scaler": pipeline.output.scaler}
    named = {_IN_KEYS.get(name, name): value for name, value in _leave_out(options, *files).items()}
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


# --- inputs ----------------------------------------------------------------------------------------------------------


class Checksums:
    """SHA-256 of the contents of paths and URLs.

    Parameters
    ----------
    path : JSON file that caches the checksums of files
    """

    def __init__(self, path: Path) -> None:
        self._path, self._is_new = path, False
        self._known: dict[str, list[Any]] = _read(path)

    def identify(self, names: str | list[str]) -> str:
        """Return a digest of the content: SHA-256 of a file; for a folder or several files, a digest of all of them;
        for a matrix store, its digest; for a URL, a digest of the server's metadata of the file.

        Parameters
        ----------
        names : patterns and folders stand for the files that `mgspmv.ingest` reads

        Raises
        ------
        SourceError, SourceNotFoundError : it is missing, or cannot be read
        OptionError : a server does not report whether a file changed
        """
        one = names if isinstance(names, str) else names[0] if len(names) == 1 else None
        if one is not None and is_group_path(one):
            return self._identify(one)
        digests = [self._identify(name) for name in find_files(names)]
        return digests[0] if len(digests) == 1 else digest_json(digests)

    def save(self) -> None:
        """Write the cache, if it has new checksums."""
        if self._is_new:
            with write_beside(self._path) as part:
                part.write_text(json.dumps(self._known, indent=1, sort_keys=True))
        self._is_new = False

    def _identify(self, name: str) -> str:
        if is_group_path(name):
            with suppress(StoreError):  # another group, or missing
                return open_store(name).info.digest
        if is_url(name):
            return digest_json({key: value for key, value in describe_url(name).items() if key != "name"})
        path = Path(name)
        if path.is_dir():
            inside = sorted(own for own in path.rglob("*") if own.is_file())
            return digest_json([[own.relative_to(path).as_posix(), self._read_file(own)] for own in inside])
        return self._read_file(path)

    def _read_file(self, path: Path) -> str:
        # Hashed, as paths may contain secret variables.
        place = hashlib.sha256(os.fsencode(os.path.abspath(path))).hexdigest()
        try:
            found = os.stat(path)  # before reading: a later write changes it, so the checksum is not used again
            stamp = [found.st_size, found.st_mtime_ns]
            known = self._known.get(place)
            if known is not None and known[:2] == stamp:
                return str(known[2])
            checksum = compute_checksum(path)
        except FileNotFoundError as error:
            raise SourceNotFoundError("there is no such file; check the path", source=str(path)) from error
        except OSError as error:
            raise source_error(error, path, f"cannot be read: {error.strerror}") from error
        self._known[place], self._is_new = [*stamp, checksum], True
        return checksum


def check_present(names: Iterable[str | list[str]]) -> None:
    """Check that local files and folders exist; URLs are not checked.

    Raises
    ------
    SourceNotFoundError : one is missing
    SourceAccessError : this user may not read it
    SourceError, OptionError : as in `mgspmv.ingest.files.find_files`
    """
    for own in names:
        paths = [name for name in ([own] if isinstance(own, str) else own) if not is_url(name)]
        for path in paths if len(paths) == 1 and is_group_path(paths[0]) else find_files(paths) if paths else []:
            if not os.path.exists(path):
                raise SourceNotFoundError("there is no such file; check the path", source=path or "''")
            if not os.access(path, os.R_OK):
                raise source_error(PermissionError(errno.EACCES, os.strerror(errno.EACCES)), path, "")


def compute_checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path) -> dict[str, list[Any]]:
    try:
        found = parse_json(path.read_bytes())
    except (OSError, ValueError):  # without the cache all files are read again
        return {}
    items = found.items() if isinstance(found, dict) else ()
    return {name: own for name, own in items if isinstance(own, list) and len(own) == 3}


@contextmanager
def fetch(path: str) -> Iterator[Path]:
    """Yield a local path of a file or folder, downloaded if it is at a URL; errors in the context name the URL."""
    if not is_url(path):
        yield Path(path)
        return
    system, place = find_system(path)
    with tempfile.TemporaryDirectory() as folder:
        local = Path(folder) / path.rstrip("/").rpartition("/")[2]
        try:
            system.get(place, str(local), recursive=True)
        except Exception as error:
            raise translate_error(path, error) from error
        try:
            yield local
        except MgspmvError as error:
            error.args = tuple(str(said).replace(str(local), path) for said in error.args)
            raise
