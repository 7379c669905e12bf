"""A whole run from one TOML file: source -> store -> ranks -> files.

    [source]    path = "web.mtx.gz"             or  generate = "rmat" and the generator's parameters
    [ingest]    store = "web.zarr"              and the options of `mgspmv.api.ingest`
    [pagerank]  alpha = 0.85, tol = 1e-6, ...   the options of `mgspmv.api.pagerank`; vectors are names of files
    [results]   top = 10, scaler = "none", save = ["ranks.parquet"]

Relative paths are relative to the folder in which the run is started, as in a Makefile. Every key is checked before
anything runs.
"""

from __future__ import annotations

import difflib
import json
import os
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from mgspmv.api import Matrix, generate, ingest, open_matrix, pagerank
from mgspmv.api.warm import read_start
from mgspmv.errors import ConvergenceError, PipelineError, StoreExistsError, StoreNotFoundError, StoreUnfinishedError
from mgspmv.ingest.files import find_files
from mgspmv.ingest.generate import make_generator
from mgspmv.ingest.groups import is_group_path
from mgspmv.ingest.streams import TextStream
from mgspmv.ingest.weights import check_dangling, read_vectors
from mgspmv.iterate.options import Method, PageRankOptions
from mgspmv.model import Duplicates, Event, Kind, MatrixInfo, OrderMethod, Precision, SelfLoops, TolMode
from mgspmv.results import Solution, check_target
from mgspmv.scores import Scaler

READER_OPTIONS = (
    "format",
    "n_vertices",
    "vertices",
    "delimiter",
    "weights",
    "ids",
    "extra_columns",
    "columns",
    "n_cols",
    "memory",
    "scratch",
    "resume",
)
"""Keys of `[ingest]` that are for files only."""
RESOURCES = ("memory", "threads", "scratch", "resume")
"""Keys of `[ingest]` that the store does not depend on."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class SourceSection(_Section):
    """Where the matrix comes from: a file, or a generator with its parameters."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    path: str | None = None
    """What to ingest: path or URL of a file or folder, or a pattern."""
    generate: str | None = None
    """Name of a generator; every other key is one of its parameters."""

    @model_validator(mode="after")
    def _check(self) -> SourceSection:
        if self.path is not None and self.generate is not None:
            raise ValueError("path and generate are two sources; leave one out")
        if self.generate is not None:
            make_generator(self.generate, **self.parameters)
        elif self.path is None:
            raise ValueError(f"give path, a file to read, or generate, the name of a generator{self._explain_extra()}")
        elif self.parameters:
            raise ValueError(f"beside path there are no other keys{self._explain_extra()}")
        return self

    def _explain_extra(self) -> str:
        return "".join(f"; unknown key {key!r}{_suggest(key, ('path', 'generate'))}" for key in self.parameters)

    @property
    def parameters(self) -> dict[str, Any]:
        """Of the generator."""
        return dict(self.model_extra or {})


class IngestSection(_Section):
    """How the source becomes a store; the keys are the arguments of `mgspmv.api.ingest`."""

    store: str
    overwrite: bool = False
    kind: Kind | None = None
    duplicates: Duplicates | None = None
    self_loops: SelfLoops = "keep"
    symmetrize: bool = False
    ignore_weights: bool = False
    transpose: bool = False
    dtype: Literal["float32", "float64"] | None = None
    order: OrderMethod = "none"
    format: Literal["matrix-market", "edge-list", "parquet", "npz", "anndata", "binsparse", "csr"] | None = None
    n_vertices: int | None = None
    vertices: str | None = None
    delimiter: str | None = None
    weights: Literal["auto"] | bool = "auto"
    ids: Literal["auto", "int", "string"] | None = None
    extra_columns: Literal["error", "ignore"] | None = None
    columns: list[str] | None = None
    n_cols: int | None = None
    memory: str | int | None = None
    threads: int | None = Field(default=None, ge=1)
    scratch: str | None = None
    resume: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """What is asked for other than the defaults."""
        return self.model_dump(exclude={"store", "overwrite"}, exclude_defaults=True)


class PageRankSection(_Section):
    """How ranks are computed; the keys are the arguments of `mgspmv.api.pagerank`."""

    alpha: float = 0.85
    tol: float | None = None
    tol_mode: TolMode = "l1"
    max_iter: int = 100
    stop: str = "change"
    method: Method = "power"
    personalization: str | None = None
    """File of weights, as `mgspmv.ingest.weights.read_weights` reads it."""
    dangling: str | None = None
    """`uniform`, `drop`, `error`, or a file of weights."""
    nstart: str | None = None
    """File of weights."""
    follow_changes: bool = False
    out_weight: str | None = None
    """File of weights."""
    weights: bool = True
    reverse: bool = False
    """Rank the reversed graph."""
    precision: Precision = "exact"
    kernel: str = "auto"
    backend: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _check(self) -> PageRankSection:
        names = ("alpha", "tol", "tol_mode", "max_iter", "precision", "stop", "method", "follow_changes")
        PageRankOptions(**{name: getattr(self, name) for name in names})
        if self.follow_changes and self.nstart is None:
            raise ValueError("follow_changes begins at the ranks of the graph as it was; set nstart too")
        return self

    @field_validator("personalization", "nstart", "out_weight")
    @classmethod
    def _check_file(cls, value: str | None) -> str | None:
        if value is not None and not Path(value).exists():
            raise ValueError(f"there is no file {value!r}")
        return value

    @field_validator("dangling")
    @classmethod
    def _check_dangling(cls, value: str | None) -> str | None:
        return None if value is None else check_dangling(value)


class ResultsSection(_Section):
    """What is made of the ranks."""

    top: int = Field(default=10, ge=1)
    """How many of the highest ranks are shown."""
    scaler: Scaler = "none"
    """Scores in place of ranks; see `mgspmv.scores.scale_scores`."""
    save: list[str] = []
    """Files, each `.zarr`, `.parquet` or `.csv`; results that are there already are replaced."""

    @field_validator("save")
    @classmethod
    def _check_targets(cls, value: list[str]) -> list[str]:
        for path in value:
            check_target(path, overwrite=True)
        return value


class Pipeline(_Section):
    """A checked definition."""

    source: SourceSection
    ingest: IngestSection
    pagerank: PageRankSection = PageRankSection()
    results: ResultsSection = ResultsSection()

    @model_validator(mode="after")
    def _check(self) -> Pipeline:
        misplaced = [name for name in READER_OPTIONS if name in self.ingest.options]
        if self.source.generate is not None and misplaced:
            raise ValueError(f"[ingest] {', '.join(misplaced)}: this is for files, and the source is a generator")
        if self.pagerank.reverse and not self.ingest.transpose:
            raise ValueError("[pagerank] reverse: this needs the transpose; set transpose = true in [ingest]")
        return self


@dataclass(frozen=True)
class PipelineResult:
    """What a pipeline made."""

    info: MatrixInfo
    """The store."""
    is_reused: bool
    """Whether the store was there already, made from the same source with the same options."""
    solution: Solution
    """The ranks, scaled as `[results] scaler` says."""
    failure: ConvergenceError | None
    """Why the ranks are not the solution; None when they are."""
    top: list[tuple[Any, float]]
    """The highest ranks, as `[results] top` says."""
    saved: list[str]
    """Files written."""
    seconds: dict[str, float]
    """Seconds by phase: ingest (or reuse), those of the solution, save."""


def read_pipeline(path: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None) -> Pipeline:
    """Read and check a definition; nothing is run.

    Parameters
    ----------
    overrides : values in place of the file's, by `section.key`

    Raises
    ------
    PipelineError : no such file, not TOML, or wrong keys or values, all of them in one message
    """
    try:
        definition = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise PipelineError(f"{path}: cannot read this pipeline: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PipelineError(f"{path}: not valid TOML: {error}") from error
    for key, value in (overrides or {}).items():
        _override(definition, key, value)
    try:
        return Pipeline.model_validate(definition)
    except ValidationError as error:
        problems = [_explain(problem) for problem in error.errors()]
        raise PipelineError("\n".join(f"{path}: {problem}" for problem in problems)) from error


def run_pipeline(
    path: str | os.PathLike[str] | Pipeline,
    *,
    on_event: Callable[[Event], None] | None = None,
    on_progress: Callable[[str, int, int | None], None] | None = None,
    overrides: Mapping[str, Any] | None = None,
    throw: bool = True,
) -> PipelineResult:
    """Run a definition: make the store unless it is there already, rank, save.

    A store that was made from the same source with the same options is used again; for a file, the same checksum.

    Parameters
    ----------
    path : the TOML file, or what `read_pipeline` made of it
    on_event : gets what each iteration did
    on_progress : gets the phase of ingesting, what is done and the total or None
    overrides : values in place of the file's, by `section.key`
    throw : raise when the iteration does not converge, after the ranks were saved

    Raises
    ------
    PipelineError : the definition is wrong
    StoreExistsError : the store is there, made otherwise, and `[ingest] overwrite` is not set
    ConvergenceError : the iteration did not converge
    MgspmvError : what `ingest`, `generate`, `pagerank` and `Solution.save` raise
    """
    pipeline = path if isinstance(path, Pipeline) else read_pipeline(path, overrides)
    began = time.perf_counter()
    is_reused = _prepare_store(pipeline, on_progress)
    prepared = time.perf_counter()
    with open_matrix(pipeline.ingest.store) as matrix:
        info, (solution, failure) = matrix.info, _rank(matrix, pipeline.pagerank, on_event)
    ranked = time.perf_counter()
    solution = solution.scale(pipeline.results.scaler)
    for target in pipeline.results.save:
        solution.save(target, overwrite=True)
    if failure is not None and throw:
        raise failure
    return PipelineResult(
        info=info,
        is_reused=is_reused,
        solution=solution,
        failure=failure,
        top=solution.top(pipeline.results.top),
        saved=pipeline.results.save,
        seconds={"ingest": prepared - began, **solution.seconds, "save": time.perf_counter() - ranked},
    )


def _prepare_store(pipeline: Pipeline, on_progress: Callable[[str, int, int | None], None] | None) -> bool:
    """Make the store; True when the one that is there is what the definition asks for."""
    source, section = pipeline.source, pipeline.ingest
    if not section.overwrite and _is_there(pipeline):
        return True
    options = {"overwrite": section.overwrite, "on_progress": on_progress, **section.options}
    if source.generate is not None:
        generate(source.generate, section.store, **options, **source.parameters)
    else:
        ingest(source.path, section.store, **options)
    return False


def _is_there(pipeline: Pipeline) -> bool:
    """Whether the store is there and made as asked; raises when it is there and made otherwise."""
    store = pipeline.ingest.store
    try:
        with open_matrix(store) as matrix:
            differences = _find_differences(pipeline, matrix.info)
    except (StoreNotFoundError, StoreUnfinishedError):
        return False
    if differences:
        raise StoreExistsError(
            f"{store} holds another matrix than the pipeline asks for ({'; '.join(differences)}); "
            "set overwrite = true in [ingest], or name another store"
        )
    return True


def _find_differences(pipeline: Pipeline, info: MatrixInfo) -> list[str]:
    """What of a store was not made as the definition asks."""
    defaults = {name: field.default for name, field in IngestSection.model_fields.items()}
    recorded = defaults | info.provenance.get("options", {})
    asked = defaults | pipeline.ingest.options
    if asked["order"] == (info.order or "none"):  # whoever made it: `reorder` may have, since
        recorded["order"] = asked["order"]
    differences = _find_source_differences(pipeline, info.provenance.get("source", {}))
    if "updates" in info.provenance:
        differences.append("it was updated since it was made")
    if "subgraphs" in info.provenance:
        differences.append("it is a part of what was made")
    return differences + [
        f"{name} was {recorded[name]!r} and is to be {asked[name]!r}"
        for name in asked
        if name not in ("store", "overwrite", *RESOURCES) and recorded[name] != asked[name]
    ]


def _find_source_differences(pipeline: Pipeline, recorded: dict[str, Any]) -> list[str]:
    source = pipeline.source
    if source.generate is not None:
        generated = make_generator(source.generate, **source.parameters).layout().provenance
        same = json.loads(json.dumps(generated)) == recorded
        return [] if same else [f"it was made from {recorded.get('name')} and is to be from {generated['name']}"]
    if source.path is not None and is_group_path(source.path):
        return [f"whether it was made from {source.path} as it is now cannot be told, for a Zarr group has no checksum"]
    files = [(source.path, recorded), (pipeline.ingest.vertices, recorded.get("vertices", {}))]
    return [
        f"it was made from another {path}, with another checksum"
        for path, made_from in files
        if path is not None and _compute_checksums(path) != _read_checksums(made_from)
    ]


def _compute_checksums(path: str) -> list[str]:
    """SHA-256 of each file."""
    checksums = []
    for name in find_files(path):
        with TextStream(name) as file:
            checksums.append(str(file.provenance()["sha256"]))
    return checksums


def _read_checksums(provenance: dict[str, Any]) -> list[str | None]:
    return [file.get("sha256") for file in provenance.get("files", [provenance])]


def _rank(
    matrix: Matrix, section: PageRankSection, on_event: Callable[[Event], None] | None
) -> tuple[Solution, ConvergenceError | None]:
    names = {"personalization", "dangling", "nstart", "out_weight"}
    strings = matrix.info.vertex_ids == "string"
    vectors = read_vectors(**section.model_dump(include=names - {"nstart"}), string_ids=strings)
    vectors |= {} if section.nstart is None else {"nstart": read_start(section.nstart, string_ids=strings)}
    options = section.model_dump(exclude={*names, "reverse"})
    try:
        with matrix.T if section.reverse else matrix as ranked:
            return pagerank(ranked, **options, **vectors, on_event=on_event), None
    except ConvergenceError as error:
        return error.solution, error


def _override(definition: dict[str, Any], key: str, value: Any) -> None:
    section, dot, name = key.partition(".")
    if not dot:
        raise PipelineError(f"cannot set {key!r}; name a key as SECTION.KEY, such as pagerank.alpha")
    table = definition.setdefault(section, {})
    if not isinstance(table, dict):
        raise PipelineError(f"cannot set {key!r}: {section} is not a section")
    table[name] = value


def _explain(problem: Any) -> str:
    """One problem that pydantic found, in a line: where, what was wanted, what came, the near key."""
    where = ".".join(str(part) for part in problem["loc"]) or "definition"
    match problem["type"]:
        case "extra_forbidden":
            known = _known_keys(problem["loc"][:-1])
            return f"{where}: unknown key{_suggest(problem['loc'][-1], known) or ';'} it can be {', '.join(known)}"
        case "missing":
            return f"{where}: this is required"
        case "value_error":
            return f"{where}: {problem['ctx']['error']}"
    return f"{where}: {problem['msg'][0].lower()}{problem['msg'][1:]}, not {problem['input']!r}"


def _known_keys(loc: tuple[str, ...]) -> list[str]:
    model: Any = Pipeline
    for name in loc:
        model = model.model_fields[name].annotation
    return list(model.model_fields)


def _suggest(key: str, known: Sequence[str]) -> str:
    near = [name for name in known if key.startswith(name) or name.startswith(key)]
    near = near or difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""
