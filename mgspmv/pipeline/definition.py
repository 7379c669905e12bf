"""Models of a pipeline definition: the sections of its TOML file, each checked."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from mgspmv.files import is_url
from mgspmv.ingest.generate import make_generator
from mgspmv.ingest.vector_files import check_dangling
from mgspmv.kernels.catalogue import BACKENDS
from mgspmv.kernels.select import list_kernels
from mgspmv.model import Duplicates, Kind, OrderMethod, Precision, SelfLoops, TolMode
from mgspmv.partition import parse_bytes
from mgspmv.scores import Scaler
from mgspmv.solvers.options import PageRankOptions

T = TypeVar("T")
S = TypeVar("S", bound="Section")

Format = Literal["zarr", "parquet", "csv"]
LOADABLE: tuple[Format, ...] = ("zarr", "parquet")
"""Formats of ranks that are read again, to compare with and to start from."""
PREVIOUS = "previous"
"""As `nstart`: the ranks of the same run as it was."""
UNIFORM = "uniform"
"""As `personalization`: what it is without one, to stand in a list."""


def suggest(name: str, known: Sequence[str]) -> str:
    """Return a hint with the closest known name; an empty string if there is none."""
    near = [k for k in known if name and (name.startswith(k) or k.startswith(name))]
    near = near or get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


OneOrMany = Annotated[
    Annotated[T, Tag("[value]")] | Annotated[list[T], Field(min_length=1), Tag("[list]")],
    Discriminator(lambda value: "[list]" if isinstance(value, list) else "[value]"),
]
"""A value or a list of values, which stays what it was given as."""
Grid = OneOrMany[T]
"""Of a list, there is a run for each value, and of several lists for each combination."""


def _check_size(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"a size is written like 141GB, 16GiB or 500MB, not {value!r}")
    parse_bytes(value)
    return value


Size = Annotated[str | int, BeforeValidator(_check_size), WithJsonSchema({"type": ["string", "integer"]})]
"""Bytes, as `16GB`, `16GiB` or a number."""
Positive = Annotated[int, Field(ge=1)]


def _check_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]*", name):
        raise ValueError(f"a name has letters, digits, - and _ only, for it is that of a folder; not {name!r}")
    return name


def _check_kernel(what: str, *, for_steps: bool) -> Any:
    """Return a validator that some backend has a kernel of that name; the step checks its own backend and matrix."""

    def check(kernel: str) -> str:
        known = ["auto", *dict.fromkeys(k for b in BACKENDS for k in list_kernels(b, for_steps=for_steps))]
        if kernel not in known:
            there = suggest(kernel, known) or f"; there are {', '.join(known)}"
            raise ValueError(f"there is no kernel {kernel!r} for {what}{there}")
        return kernel

    return AfterValidator(check)


def _check_option(name: str) -> Any:
    """Return a validator of the value of an argument of `mgspmv.pagerank`, whatever the others are."""

    def check(value: Any) -> Any:
        PageRankOptions(**{name: value})
        return value

    return AfterValidator(check)


Name = Annotated[str, AfterValidator(_check_name)]
Alpha = Annotated[float, _check_option("alpha")]
Tol = Annotated[float, _check_option("tol")]
Dangling = Annotated[str, AfterValidator(lambda value: value if is_url(value) else check_dangling(value))]


class Section(BaseModel):
    """Table of the file. Unknown keys are errors; the text below a key is its description."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)

    def given(self, *names: str) -> dict[str, Any]:
        """Return those of these keys that are not None."""
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


# --- matrices --------------------------------------------------------------------------------------------------------


class ReadingSection(Section):
    """Options for reading files; the keys are the arguments of `mgspmv.ingest`."""

    format: Literal["matrix-market", "edge-list", "parquet", "npz", "anndata", "binsparse", "csr"] | None = None
    """Of the source; default by name and first line, or by what a Zarr group has."""
    n_vertices: int | None = None
    """Edge lists and tables: ids are 0..n-1; default those that occur."""
    vertices: str | None = None
    """Edge lists and tables: file with all ids; default those that occur."""
    delimiter: str | None = None
    """Edge lists: between columns; default tab, |, ;, comma or blanks, the first that all lines share."""
    header: bool | None = None
    """Edge lists: whether the first line names the columns; default by what it holds."""
    skip_rows: Annotated[int, Field(ge=0)] | None = None
    """Edge lists: lines to skip before all others."""
    comment: str | None = None
    """Edge lists: characters that begin comments, or none; default # and %."""
    weights: bool | None = None
    """Edge lists and tables: whether a column of weights is read; default as it looks."""
    ids: Literal["auto", "int", "string"] | None = None
    """Edge lists: what ids are; default auto."""
    extra_columns: Literal["error", "ignore"] | None = None
    """Edge lists and tables: columns that no rule takes; default error."""
    columns: list[str] | list[int] | None = None
    """Edge lists and tables: sources, targets and maybe weights, by name or by number from 1; default by name."""
    n_cols: int | None = None
    """Plain CSR arrays without a shape: columns."""
    allow_hypersparse: bool | None = None
    """Store far more rows and columns than there are entries, if the source states so many; default false."""

    @property
    def reading(self) -> dict[str, Any]:
        """Given arguments of `mgspmv.ingest`."""
        return self.given(*ReadingSection.model_fields)


class UpdateSection(ReadingSection):
    """Edges by which a matrix is changed before it is used; the keys are the arguments of `mgspmv.update`."""

    insert: OneOrMany[str] | None = None
    """Files of entries that come."""
    delete: OneOrMany[str] | None = None
    """Files of entries that go, before others come."""
    missing: Literal["ignore", "error"] = "ignore"
    """What is to be deleted and is not there."""
    self_loops: SelfLoops = "keep"
    """Entries on the diagonal of what is inserted."""
    symmetrize: bool = False
    """Also (j, i) for each (i, j), of both."""
    ignore_weights: bool = False
    """Insert without the weights."""
    keep: Positive | None = None
    """How many versions stay in the store; default all."""

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        if self.insert is None and self.delete is None:
            raise ValueError("give insert, files of entries that come, delete, those that go, or both")
        return self

    @property
    def options(self) -> dict[str, Any]:
        """Options that the new version depends on, in addition to its files."""
        names = ("missing", "self_loops", "symmetrize", "ignore_weights")
        return self.given(*names) | self.reading


class MatrixSection(ReadingSection):
    """A matrix or graph: where it comes from, where its store is, and how it is made."""

    path: OneOrMany[str] | None = None
    """What is ingested: path or URL of a file, folder or Zarr group, a pattern, or a list of files."""
    generate: str | None = None
    """Name of a generator (rmat, uniform, stencil2d, stencil3d, banded), in place of `path`."""
    parameters: dict[str, Any] = {}
    """Of the generator, such as {scale = 18, edge_factor = 16, seed = 1}."""
    open: str | None = None
    """A store that is there and is used as it is, in place of `path`."""
    store: str | None = None
    """Where the store is made, path or URL; default the name in the pipeline's folder, `web.zarr`."""
    overwrite: bool = False
    """Replace a matrix in the store that this pipeline did not make, or that was changed since."""
    kind: Kind | None = None
    """What rows mean; default as the source."""
    duplicates: Duplicates | None = None
    """Entries at one place; default sum with values, else first."""
    self_loops: SelfLoops = "keep"
    """Entries on the diagonal."""
    symmetrize: bool = False
    """Also (j, i) for each entry (i, j)."""
    ignore_weights: bool = False
    """Store the pattern only."""
    transpose: bool = False
    """Store the transpose too, which runs with `reverse` and products with `transpose` need."""
    dtype: Literal["float32", "float64"] | None = None
    """Of the stored values; default as the source."""
    order: OrderMethod = "none"
    """Of rows and columns in the store; results have that of the source."""
    scratch: str | None = None
    """Folder for what does not fit into memory; default beside the store."""
    update: UpdateSection | None = None
    """Edges by which the matrix is changed; other ones at a later run change it further."""

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        given = [*self.given("path", "generate", "open")]
        if not given:
            raise ValueError(
                "give path, a file to read; generate, the name of a generator; or open, a store that is there"
            )
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are {len(given)} sources; leave all but one out")
        of_reading = ReadingSection.model_fields.keys()
        of_making = MatrixSection.model_fields.keys() - of_reading - {"open", "update"}
        of_making -= {"scratch"} if self.update is not None else set()
        unused = {"path": {"parameters"}, "generate": of_reading, "open": of_reading | of_making}[given[0]]
        if misplaced := sorted(unused & self.model_fields_set):
            raise ValueError(f"{', '.join(misplaced)}: not used with {given[0]}; leave out either")
        if self.generate is not None:
            make_generator(self.generate, **self.parameters)
        return self

    @property
    def options(self) -> dict[str, Any]:
        """Options that the store depends on, in addition to its source, as arguments of `mgspmv.ingest`."""
        names = ("kind", "duplicates", "self_loops", "symmetrize", "ignore_weights", "transpose", "dtype", "order")
        return self.given(*names) | self.reading


# --- what is computed ------------------------------------------------------------------------------------------------


class RanksSection(Section):
    """Keys shared by runs and batches."""

    matrix: Grid[str] | None = None
    """Names of the matrices that are ranked; default all but those of kind `matrix`."""
    alpha: Grid[Alpha] = 0.85
    """Damping."""
    tol: Grid[Tol] | None = None
    """Stop when the change is less; default 1e-6, with stop = "topk:100" 1e-10."""
    tol_mode: Grid[TolMode] = "l1"
    """Norm of the change; `fixed` makes max_iter iterations."""
    max_iter: Grid[Positive] = 100
    """Most iterations."""
    dangling: Grid[Dangling] | None = None
    """Where vertices without out-edges lead: `uniform`, `drop`, `error` or a file; default as jumps."""
    out_weight: Grid[str] | None = None
    """File of what all out-edges of a vertex weigh; default the stored ones."""
    weights: Grid[bool] = True
    """Whether stored values count; else each entry is 1."""
    reverse: Grid[bool] = False
    """Rank the graph with every edge turned round."""
    precision: Grid[Precision] = "exact"
    """How sums are made."""
    backend: Grid[Literal["auto", "cpu", "cuda"]] = "auto"
    """Where this process computes; `auto` is cuda with a GPU. On a cluster its kind says so."""
    top: Positive = 100
    """How many of the highest ranks go into tables, and of batches how many are kept."""


class RunSection(RanksSection):
    """A PageRank run, or one for each combination of the lists; the keys are the arguments of `mgspmv.pagerank`."""

    stop: Grid[Annotated[str, _check_option("stop")]] = "change"
    """`change`, or `topk:100`: also when it is proven which the 100 highest are."""
    personalization: Grid[str] | None = None
    """Where jumps go: `uniform`, or a file: .npy, saved ranks, CSV, Parquet, lines `id weight` or ids; default
    uniform."""
    nstart: Grid[str] | None = None
    """Ranks to start from: `previous`, those of this run as it was; or a file as of `personalization`;
    default where jumps go."""
    kernel: Grid[Annotated[str, _check_kernel("PageRank", for_steps=True)]] = "auto"
    """Name of a kernel."""
    checkpoint: bool = False
    """Whether a run keeps its state every 30 s in the folder of the pipeline, where it goes on if it is broken off."""
    recover: Annotated[int, Field(ge=0)] = 5
    """How many times at most a run on a cluster goes on when workers are lost."""


class RunsSection(RunSection):
    """Keys of all runs, and runs by name, as [run.NAME]; without any, the section itself is the run `pagerank`."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, RunSection]

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        for name in self.__pydantic_extra__:
            _check_name(name)
        return self


class BatchSection(RanksSection):
    """Many PageRank vectors in one pass; the keys are the arguments of `mgspmv.pagerank_batch`."""

    seeds: Grid[str] | None = None
    """CSV or Parquet file with the columns vector, vertex and, maybe, weight; default one uniform vector."""
    alpha: OneOrMany[Alpha] = 0.85
    """Damping of all vectors, or a list with that of each; in one batch, whatever is listed."""
    width: Literal[2, 4, 8, 16, 32, 64] | None = None
    """Most vectors in a pass; default what is fast and fits."""
    keep: Literal["top", "all"] = "top"
    """Whether the highest ranks of each vector are kept, or all."""


class ProductSection(Section):
    """y = alpha A x + beta y; the keys are the arguments of `mgspmv.spmv`."""

    x: Grid[str]
    """File .npy, or path or URL of a Zarr array: (n_cols,) or (n_cols, k)."""
    matrix: Grid[str] | None = None
    """Names of the matrices that are multiplied; default all."""
    alpha: Grid[float] = 1.0
    """Factor of the product."""
    beta: Grid[float] = 0.0
    """Factor of y."""
    y: str | None = None
    """As x: what is added, (n_rows,) or (n_rows, k); needed unless beta is 0."""
    transpose: Grid[bool] = False
    """Multiply with the transpose."""
    precision: Grid[Literal["float32", "float64"]] | None = None
    """Of the product; default float32 where values and x have it, else float64."""
    kernel: Grid[Annotated[str, _check_kernel("products", for_steps=False)]] = "auto"
    """Name of a kernel."""
    backend: Grid[Literal["auto", "cpu", "cuda"]] = "auto"
    """As in a run."""
    format: Literal["npy", "zarr"] = "npy"
    """Of the file that y goes to."""


# --- where and how ---------------------------------------------------------------------------------------------------


class LimitsSection(Section):
    """Memory and threads that a step may use in this process."""

    memory: Size | None = None
    """To make a matrix, such as 16GB; default half of what is free."""
    threads: Positive | None = None
    """Default one for each processor."""


class ClusterSection(Section):
    """The Dask cluster that computes; without this section this process does."""

    kind: str = "local"
    """`local` starts workers on this machine, `cuda` one for each of its GPUs, `slurm` and `pbs` in jobs, `ssh` on
    hosts, `kubernetes` in pods, `module:Class` as that class of Dask does; `address` uses a cluster that runs."""
    address: str | None = None
    """Of the scheduler, with kind = "address", such as tcp://10.0.0.1:8786."""
    workers: Positive | None = None
    """How many are started in all; default as Dask chooses, or one for each GPU."""
    options: dict[str, Any] = {}
    """Arguments of the cluster's class, such as {queue = "gpu"}; also gpus of each job or host, and wait in seconds."""
    threads: Positive | None = None
    """Of each worker; default so many that all have one for each processor."""
    executor: Literal["auto", "tasks", "supersteps"] = "auto"
    """How iterations are driven."""
    transport: Literal["auto", "nccl", "peer"] = "auto"
    """How slices go from worker to worker."""
    device_memory: Size | None = None
    """Most of each worker's GPU, such as 80GiB; rows without room come by; default what is free."""
    host_memory: Size | None = None
    """Most of each worker's host; default what is free."""
    timeout: Annotated[float, Field(gt=0)] = 30.0
    """Seconds that a worker may be silent."""
    tls: str | None = None
    """Folder of certificates by which all connections are encrypted; or `temporary`, with a cluster that is started."""
    ingest: bool = False
    """Have the workers make matrices too; sources and stores must be where they reach them."""

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        from mgspmv.cluster.managers import check_shared, find_manager

        if (self.kind == "address") != (self.address is not None):
            raise ValueError('the address of a scheduler goes with kind = "address"; give both or neither')
        if self.address is None:
            find_manager(self.kind)
            check_shared(self.kind, self.tls)
        elif self.workers or self.options or self.tls == "temporary":
            raise ValueError(
                'workers, options and tls = "temporary" are of clusters that are started; leave them out, or address'
            )
        return self


class OutputSection(Section):
    """Files that ranks are written to."""

    folder: str | None = None
    """Where results go, path or URL of an object store; default the pipeline's folder."""
    formats: Annotated[list[Format], Field(min_length=1)] = ["parquet"]
    """Of the files with all ranks."""
    scaler: Scaler = "none"
    """Scores in place of ranks."""
    compare: bool = True
    """Compare ranks with those that they replace, where these are in a format that is read again."""


class Pipeline(Section):
    """Tables and keys of a definition."""

    name: str | None = None
    """Of the pipeline; default the name of the file."""
    folder: str | None = None
    """Where everything goes, a local path; default the pipeline's name."""
    limits: LimitsSection = LimitsSection()
    """What steps may take."""
    cluster: ClusterSection | None = None
    """What computes; default this process."""
    matrix: Annotated[dict[Name, MatrixSection], Field(min_length=1)]
    """Matrices by name; at least one."""
    run: RunsSection | None = None
    """PageRank runs; default none."""
    batch: dict[Name, BatchSection] = {}
    """Batches of PageRank vectors by name; default none."""
    product: dict[Name, ProductSection] = {}
    """Products with vectors by name; default none."""
    output: OutputSection = OutputSection()
    """What is written."""

    @field_validator("folder")
    @classmethod
    def _check_folder(cls, folder: str | None) -> str | None:
        if folder is not None and is_url(folder):
            raise ValueError("this is a local path, for records; a URL that results go to is folder in [output]")
        return folder

    @property
    def runs(self) -> dict[str, RunSection]:
        """Runs by name, each with the shared keys that it does not override."""
        if self.run is None:
            return {}
        shared = self.run.given(*(self.run.model_fields_set & RunSection.model_fields.keys()))
        named = self.run.__pydantic_extra__ or {"pagerank": RunSection()}
        return {name: RunSection(**shared | own.given(*own.model_fields_set)) for name, own in named.items()}


# --- grids -----------------------------------------------------------------------------------------------------------


GRID = (
    *("x", "seeds", "alpha", "beta", "tol", "tol_mode", "max_iter", "stop", "personalization", "dangling", "nstart"),
    *("out_weight", "weights", "reverse", "transpose", "precision", "kernel", "backend"),
)
"""Keys whose lists are grids, in the order in which labels, and so folders of results, have them."""


def list_points(section: S) -> Iterator[tuple[str, S]]:
    """Yield each combination of a section's lists, with its label, such as `alpha=0.9,personalization=sports`.

    Matrices, which have separate results, are left as they are.
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
