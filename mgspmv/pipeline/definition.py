"""Models of a pipeline definition: the sections of its TOML file, each checked."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from mgspmv.files import is_url
from mgspmv.ingest.generate import make_generator
from mgspmv.ingest.vertex_vectors import DANGLING_RULES, check_dangling
from mgspmv.kernels.catalogue import BACKENDS
from mgspmv.kernels.select import list_kernels
from mgspmv.model import ChangeNorm, Duplicates, Kind, OrderMethod, Precision, SelfLoops
from mgspmv.partition import parse_bytes
from mgspmv.scores import Scaler
from mgspmv.solvers.options import PageRankOptions

T = TypeVar("T")

Format = Literal["zarr", "parquet", "csv"]
LOADABLE: tuple[Format, ...] = ("zarr", "parquet")
"""Formats of ranks that are read again, to compare with and to start from."""
PREVIOUS = "previous"
"""Value of `nstart`: the ranks that the same step wrote before."""
UNIFORM = "uniform"
"""Value of `personalization`: the default, as an entry of a list."""
TEMPORARY = "temporary"
"""Value of `tls`: certificates made for this run."""
_WORDS = ("-", PREVIOUS, TEMPORARY, *DANGLING_RULES)
"""Values of keys for paths that are not paths."""


def suggest(name: str, known: Sequence[str]) -> str:
    """Return a hint with the closest known name; an empty string if there is none."""
    near = [k for k in known if name and (name.startswith(k) or k.startswith(name))]
    near = near or get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


OneOrMany = Annotated[
    Annotated[T, Tag("[value]")] | Annotated[list[T], Field(min_length=1), Tag("[list]")],
    Discriminator(lambda value: "[list]" if isinstance(value, list) else "[value]"),
]
"""A value or a list of values; a single value is not turned into a list."""
Grid = OneOrMany[T]
"""A value, or a list with one run per value; several lists make one run per combination."""


def _check_size(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"the value must be a size such as 141GB, 16GiB or 500MB, not {value!r}")
    parse_bytes(value)
    return value


Size = Annotated[str | int, BeforeValidator(_check_size), WithJsonSchema({"type": ["string", "integer"]})]
"""Bytes, as `16GB`, `16GiB` or a number."""
Positive = Annotated[int, Field(ge=1)]


def _check_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]*", name):
        raise ValueError(f"a name consists of letters, digits, - and _, as it names a folder; not {name!r}")
    return name


def _check_kernel(what: str, *, for_steps: bool) -> Any:
    """Return a validator that some backend has a kernel of that name; the step checks its own backend and matrix."""

    def check(kernel: str) -> str:
        known = ["auto", *dict.fromkeys(k for b in BACKENDS for k in list_kernels(b, for_steps=for_steps))]
        if kernel not in known:
            there = suggest(kernel, known) or f"; known kernels: {', '.join(known)}"
            raise ValueError(f"there is no kernel {kernel!r} for {what}{there}")
        return kernel

    return AfterValidator(check)


def _check_option(name: str) -> Any:
    """Return a validator of one argument of `mgspmv.pagerank`, independent of the others."""

    def check(value: Any) -> Any:
        PageRankOptions(**{name: value})
        return value

    return AfterValidator(check)


def _locate(path: str, info: ValidationInfo) -> str:
    """Return a path relative to the working directory.

    The context is the folder that it is relative to, empty for the working directory; None keeps it as it is written.
    """
    folder = info.context
    if not folder or not path or path in _WORDS or is_url(path):
        return path
    located = os.path.join(folder, path)
    is_pattern = glob.has_magic(path) and not os.path.lexists(located)
    return os.path.join(glob.escape(folder), path) if is_pattern else located


def _check_dangling(value: str, info: ValidationInfo) -> str:
    return value if info.context is None or is_url(value) else check_dangling(value)


Location = Annotated[str, AfterValidator(_locate)]
"""Path or URL. A relative path is relative to the definition's file."""
Name = Annotated[str, AfterValidator(_check_name)]
Alpha = Annotated[float, _check_option("alpha")]
Tol = Annotated[float, _check_option("tol")]
Dangling = Annotated[Location, AfterValidator(_check_dangling)]


class Section(BaseModel):
    """Table of the file. Unknown keys are errors; the text below a key is its description."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)

    def given(self, *names: str) -> dict[str, Any]:
        """Return the named keys that are not None."""
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


# --- matrices --------------------------------------------------------------------------------------------------------


class ReadingSection(Section):
    """Options for reading files; the keys are the arguments of `mgspmv.ingest`."""

    format: Literal["matrix-market", "edge-list", "parquet", "npz", "anndata", "binsparse", "csr"] | None = None
    """Format of the source; default by name and first line, or by the content of a Zarr group."""
    n_vertices: int | None = None
    """Edge lists and tables: number of vertices, with ids 0..n-1; default the ids that occur."""
    vertices: Location | None = None
    """Edge lists and tables: file with all ids; default the ids that occur."""
    delimiter: str | None = None
    """Edge lists: column delimiter; default the first of tab, |, ;, comma and blanks that all lines share."""
    header: bool | None = None
    """Edge lists: whether the first line names the columns; default by its content."""
    skip_rows: Annotated[int, Field(ge=0)] | None = None
    """Edge lists: number of lines to skip at the start."""
    comment: str | None = None
    """Edge lists: characters that begin comments, or none; default # and %."""
    weights: bool | None = None
    """False stores the pattern only; true requires a column of weights; default by the columns found."""
    ids: Literal["auto", "int", "string"] | None = None
    """Edge lists: type of the ids; default auto."""
    columns: list[str] | list[int] | None = None
    """Edge lists and tables: columns of sources, targets and, optionally, weights, by name or by number from 1; default
    by name."""
    n_cols: int | None = None
    """Plain CSR arrays without a shape: number of columns."""
    allow_hypersparse: bool | None = None
    """Accept a source that declares far more rows and columns than it has entries; default false."""

    @property
    def reading(self) -> dict[str, Any]:
        """Arguments of `mgspmv.ingest` that are set."""
        return self.given(*ReadingSection.model_fields)


class UpdateSection(ReadingSection):
    """Edges to insert and delete before a matrix is used; the keys are the arguments of `mgspmv.update`."""

    insert: OneOrMany[Location] | None = None
    """Files of entries to insert."""
    delete: OneOrMany[Location] | None = None
    """Files of entries to delete, before others are inserted."""
    self_loops: SelfLoops = "keep"
    """Handling of inserted entries on the diagonal."""
    symmetrize: bool = False
    """Also insert or delete (j, i) for each (i, j)."""
    keep: Positive | None = None
    """Number of versions to keep in the store; default all."""

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        if self.insert is None and self.delete is None:
            raise ValueError("no files: set insert (entries to add), delete (entries to remove), or both")
        return self

    @property
    def options(self) -> dict[str, Any]:
        """Options that affect the new version, in addition to its files."""
        return self.given("self_loops", "symmetrize") | self.reading


class MatrixSection(ReadingSection):
    """A matrix or graph: its source, its store, and how it is made."""

    source: OneOrMany[Location] | None = None
    """Source to ingest: path or URL of a file, folder or Zarr group, a pattern, or a list of files."""
    generate: str | None = None
    """Name of a generator (rmat, uniform, stencil2d, stencil3d, banded), in place of `source`."""
    parameters: dict[str, Any] = {}
    """Parameters of the generator, such as {scale = 18, edge_factor = 16, seed = 1}."""
    open: Location | None = None
    """Existing store to use, in place of `source`."""
    store: Location | None = None
    """Path or URL of the store to make; default the matrix's name in the pipeline's folder, such as `web.zarr`."""
    overwrite: bool = False
    """Replace an existing matrix that this pipeline did not make, or that was changed since."""
    kind: Kind | None = None
    """Kind of the matrix; default by the source."""
    duplicates: Duplicates | None = None
    """Handling of duplicate entries; default sum with values, else first."""
    self_loops: SelfLoops = "keep"
    """Handling of entries on the diagonal."""
    symmetrize: bool = False
    """Also add (j, i) for each entry (i, j)."""
    transpose: bool = False
    """Also store the transpose, which runs with `reverse` and products with `transpose` need."""
    dtype: Literal["int64", "float32", "float64"] | None = None
    """Data type of the stored values; default by the source."""
    order: OrderMethod = "none"
    """Order of rows and columns in the store; results are in the order of the source."""
    scratch: Location | None = None
    """Folder for temporary data that does not fit in memory; default next to the store."""
    update: UpdateSection | None = None
    """Edges to insert and delete; other edges in a later run change the matrix further."""

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        given = [*self.given("source", "generate", "open")]
        if not given:
            raise ValueError("no source: set source (a file), generate (the name of a generator) or open (a store)")
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are {len(given)} sources; set only one of them")
        of_reading = ReadingSection.model_fields.keys()
        of_making = MatrixSection.model_fields.keys() - of_reading - {"open", "update"}
        of_making -= {"scratch"} if self.update is not None else set()
        unused = {"source": {"parameters"}, "generate": of_reading, "open": of_reading | of_making}[given[0]]
        if misplaced := sorted(unused & self.model_fields_set):
            raise ValueError(f"{', '.join(misplaced)}: not used with {given[0]}; remove one or the other")
        if self.generate is not None:
            make_generator(self.generate, **self.parameters)
        return self

    @property
    def options(self) -> dict[str, Any]:
        """Options that affect the store, in addition to its source, as arguments of `mgspmv.ingest`."""
        names = ("kind", "duplicates", "self_loops", "symmetrize", "transpose", "dtype", "order")
        return self.given(*names) | self.reading


# --- what is computed ------------------------------------------------------------------------------------------------


class RanksSection(Section):
    """Keys shared by runs and batches."""

    matrix: Grid[str] | None = None
    """Names of the matrices to rank; default all except those of kind `matrix`."""
    alpha: Grid[Alpha] = 0.85
    """Damping factor."""
    tol: Grid[Tol] | None = None
    """Stop when the change is below this tolerance; default 1e-6, with stop = "topk:100" 1e-10."""
    norm: Grid[ChangeNorm] = "l1"
    """Norm of the change; `fixed` makes exactly max_iter iterations."""
    max_iter: Grid[Positive] = 100
    """Maximum number of iterations."""
    dangling: Grid[Dangling] | None = None
    """Distribution of the rank of vertices without out-edges: `uniform`, `drop`, `error` or a file; default
    `personalization`."""
    out_weight: Grid[Location] | None = None
    """File with the total weight of out-edges per vertex; default the sum of the stored edges."""
    weight: Grid[bool] = True
    """Whether to use the stored values; otherwise each entry is 1."""
    reverse: Grid[bool] = False
    """Rank the graph with all edges reversed."""
    precision: Grid[Precision] = "exact"
    """Arithmetic of sums: `exact` fixed point, bit-identical everywhere; `float64`; `float32`."""
    backend: Grid[Literal["auto", "cpu", "cuda"]] = "auto"
    """Backend of this process; `auto` is cuda if there is a GPU. On a cluster, `kind` in [cluster] decides."""
    top: Positive = 100
    """Number of highest ranks in `top.csv`, `top.json` and comparisons."""


class RunSection(RanksSection):
    """A PageRank run, or one for each combination of the lists; the keys are the arguments of `mgspmv.pagerank`."""

    stop: Grid[Annotated[str, _check_option("stop")]] = "change"
    """`change`; or, for example, `topk:100`, which also stops once the 100 highest vertices are proven."""
    personalization: Grid[Location] | None = None
    """Distribution of random jumps: `uniform`, or a file: .npy, saved ranks, CSV, Parquet, lines `id weight` or ids;
    default uniform."""
    nstart: Grid[Location] | None = None
    """Initial ranks: `previous`, the ranks that the same run wrote before, or a file as for `personalization`; default
    the distribution of jumps."""
    kernel: Grid[Annotated[str, _check_kernel("PageRank", for_steps=True)]] = "auto"
    """Name of a kernel."""
    checkpoint: bool = False
    """Save the state every 30 s in the folder of the pipeline; an interrupted run resumes from it."""
    recover: Annotated[int, Field(ge=0)] = 5
    """Maximum number of times that a run on a cluster resumes after losing workers."""


class RunsSection(RunSection):
    """Keys shared by all runs, and runs by name, [run.NAME]; without named runs the section is the run `pagerank`."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, RunSection]

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        for name in self.__pydantic_extra__:
            _check_name(name)
        return self


class BatchSection(RanksSection):
    """Many PageRank vectors in one pass; the keys are the arguments of `mgspmv.pagerank_batch`."""

    personalization: Grid[Location] | None = None
    """CSV or Parquet file with the columns vector, vertex and, optionally, weight; default one uniform vector."""
    alpha: OneOrMany[Alpha] = 0.85
    """Damping factor of all vectors, or a list with one per vector; the list makes a single batch."""
    width: Literal[2, 4, 8, 16, 32, 64] | None = None
    """Maximum number of vectors per pass; default by speed and available memory."""
    keep_top: Positive | None = None
    """Number of highest ranks to keep of each vector; default all ranks."""


class ProductSection(Section):
    """y = alpha A x + beta y; the keys are the arguments of `mgspmv.spmv`."""

    x: Grid[Location]
    """Path or URL of a .npy file or a Zarr array: (n_cols,) or (n_cols, k)."""
    matrix: Grid[str] | None = None
    """Names of the matrices to multiply; default all."""
    alpha: Grid[float] = 1.0
    """Factor of the product."""
    beta: Grid[float] = 0.0
    """Factor of y."""
    y: Location | None = None
    """Vector to add, a file as for x: (n_rows,) or (n_rows, k); required unless beta is 0."""
    transpose: Grid[bool] = False
    """Multiply by the transpose."""
    precision: Grid[Literal["float32", "float64"]] | None = None
    """Precision of the product; default float32 if values and x are float32, else float64."""
    kernel: Grid[Annotated[str, _check_kernel("products", for_steps=False)]] = "auto"
    """Name of a kernel."""
    backend: Grid[Literal["auto", "cpu", "cuda"]] = "auto"
    """As for runs."""
    format: Literal["npy", "zarr"] = "npy"
    """Format of the output file."""


# --- where and how ---------------------------------------------------------------------------------------------------


class LimitsSection(Section):
    """Memory and threads that a step may use in this process."""

    memory: Size | None = None
    """Memory for making a matrix, such as 16GB; default half of the free memory."""
    threads: Positive | None = None
    """Number of threads; default one per processor."""


class ClusterSection(Section):
    """Dask cluster that computes; without this section, this process computes."""

    kind: str = "local"
    """`local` starts workers on this machine, `cuda` one per GPU of this machine, `slurm` and `pbs` in jobs, `ssh` on
    hosts, `kubernetes` in pods, `module:Class` by a Dask cluster class; `address` connects to a running cluster."""
    address: str | None = None
    """Address of the scheduler, such as tcp://10.0.0.1:8786; requires kind = "address"."""
    workers: Positive | None = None
    """Total number of workers to start; default as Dask chooses, or one per GPU."""
    options: dict[str, Any] = {}
    """Arguments of the cluster's class, such as {queue = "gpu"}; also gpus per job or host, and wait in seconds."""
    threads: Positive | None = None
    """Threads per worker; default one per processor, divided among the workers."""
    executor: Literal["auto", "tasks", "supersteps"] = "auto"
    """Execution of iterations: `supersteps`, the workers iterate in lockstep; `tasks`, one round of tasks each."""
    transport: Literal["auto", "nccl", "peer"] = "auto"
    """Transport of vector slices between workers."""
    device_memory: Size | None = None
    """Maximum GPU memory per worker, such as 80GiB; rows that do not fit are streamed; default the free memory."""
    host_memory: Size | None = None
    """Maximum host memory per worker; default the free memory."""
    timeout: Annotated[float, Field(gt=0)] = 30.0
    """Seconds without an answer after which a worker counts as lost."""
    tls: Location | None = None
    """Folder of certificates that encrypt all connections; or `temporary`, for a cluster that the pipeline starts."""
    ingest: bool = False
    """Make matrices on the workers too, which must have access to sources and stores."""

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        from mgspmv.cluster.managers import check_shared, find_manager

        if (self.kind == "address") != (self.address is not None):
            raise ValueError('kind = "address" and the address of a scheduler require each other; set both or neither')
        if self.address is None:
            find_manager(self.kind)
            check_shared(self.kind, self.tls)
        elif self.workers or self.options or self.tls == TEMPORARY:
            raise ValueError(
                'workers, options and tls = "temporary" need a cluster that the pipeline starts; remove them or address'
            )
        return self


class OutputSection(Section):
    """Files that ranks are written to."""

    folder: Location | None = None
    """Folder of results, a path or the URL of an object store; default the pipeline's folder."""
    formats: Annotated[list[Format], Field(min_length=1)] = ["parquet"]
    """Formats of the files with all ranks."""
    scaler: Scaler = "none"
    """Scaling of ranks to scores."""
    compare: bool = True
    """Compare ranks with the ranks that they replace, if those were saved as zarr or parquet."""


class Pipeline(Section):
    """Tables and keys of a definition."""

    name: str | None = None
    """Name of the pipeline; default the name of the file."""
    folder: Location | None = None
    """Folder of records and outputs, a local path; default the pipeline's name."""
    limits: LimitsSection = LimitsSection()
    """Memory and threads of steps."""
    cluster: ClusterSection | None = None
    """Cluster that computes; default this process."""
    matrix: Annotated[dict[Name, MatrixSection], Field(min_length=1)]
    """Matrices by name; at least one."""
    run: RunsSection | None = None
    """PageRank runs; default none."""
    batch: dict[Name, BatchSection] = {}
    """Batches of PageRank vectors by name; default none."""
    product: dict[Name, ProductSection] = {}
    """Products with vectors by name; default none."""
    output: OutputSection = OutputSection()
    """Files of ranks."""

    @field_validator("folder")
    @classmethod
    def _check_folder(cls, folder: str | None) -> str | None:
        if folder is not None and is_url(folder):
            raise ValueError("records need a local path; to write results to a URL, set folder in [output]")
        return folder

    @property
    def runs(self) -> dict[str, RunSection]:
        """Runs by name, each with the shared keys that it does not override."""
        if self.run is None:
            return {}
        shared = self.run.given(*(self.run.model_fields_set & RunSection.model_fields.keys()))
        named = self.run.__pydantic_extra__ or {"pagerank": RunSection()}
        return {name: RunSection(**shared | own.given(*own.model_fields_set)) for name, own in named.items()}
