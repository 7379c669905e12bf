"""What a pipeline is asked for: the sections of its TOML file, each a checked model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, WithJsonSchema
from pydantic_core import CoreSchema, core_schema

from mgspmv.model import Duplicates, Kind, OrderMethod, Precision, SelfLoops, TolMode
from mgspmv.partition import parse_bytes
from mgspmv.scores import Scaler

T = TypeVar("T")

Format = Literal["zarr", "parquet", "csv"]
LOADABLE: tuple[Format, ...] = ("zarr", "parquet")
"""Formats of ranks that are read again, to compare with and to start from."""
PREVIOUS = "previous"
"""As `nstart`: the ranks of the same run as it was."""
UNIFORM = "uniform"
"""As `personalization`: what it is without one, to stand in a list."""


class _OneOrMany:
    """A value or a list of values, which stays what it was given as; errors are those of the values."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        listed = next(option for option in get_args(source) if getattr(option, "__origin__", None) is list)
        many = handler.generate_schema(Annotated[listed, Field(min_length=1)])

        def check(value: Any, check_list: Any) -> Any:
            return check_list(value) if isinstance(value, list) else check_list([value])[0]

        as_given = core_schema.plain_serializer_function_ser_schema(lambda value: value)
        return core_schema.no_info_wrap_validator_function(check, many, serialization=as_given)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        listed = handler(schema)
        return {"anyOf": [listed["items"], listed]}


OneOrMany = Annotated[T | list[T], _OneOrMany()]
Grid = Annotated[T | list[T], _OneOrMany()]
"""Of a list, there is a run for each value, and of several lists for each combination."""


def _check_size(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"a size is written like 141GB, 16GiB or 500MB, not {value!r}")
    parse_bytes(value)
    return value


Size = Annotated[str | int, BeforeValidator(_check_size), WithJsonSchema({"type": ["string", "integer"]})]
"""Bytes, as `16GB`, `16GiB` or a number."""
Positive = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A table of the file. Keys that are not known are refused; the text below a key is its description."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)

    def given(self, *names: str) -> dict[str, Any]:
        """Those of these keys that are not None."""
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


# --- matrices --------------------------------------------------------------------------------------------------------


class Reading(Section):
    """How files are read; the keys are the arguments of `mgspmv.ingest`."""

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
        """The arguments of `mgspmv.ingest` that are asked for."""
        return self.given(*Reading.model_fields)


class UpdateSection(Reading):
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

    @property
    def options(self) -> dict[str, Any]:
        """What the new version depends on beside its files."""
        names = ("missing", "self_loops", "symmetrize", "ignore_weights")
        return self.given(*names) | self.reading


class MatrixSection(Reading):
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
    labels: str | None = None
    """CSV or Parquet file with the columns `id` and `label`, which tables of the highest ranks show; default none."""
    update: UpdateSection | None = None
    """Edges by which the matrix is changed; other ones at a later run change it further."""

    @property
    def options(self) -> dict[str, Any]:
        """What the store depends on beside its source, as arguments of `mgspmv.ingest`."""
        names = ("kind", "duplicates", "self_loops", "symmetrize", "ignore_weights", "transpose", "dtype", "order")
        return self.given(*names) | self.reading


# --- what is computed ------------------------------------------------------------------------------------------------


class RunSection(Section):
    """A PageRank run, or one for each combination of the lists; the keys are the arguments of `mgspmv.pagerank`."""

    matrix: Grid[str] | None = None
    """Names of the matrices that are ranked; default all but those of kind `matrix`."""
    alpha: Grid[float] = 0.85
    """Damping."""
    tol: Grid[float] | None = None
    """Stop when the change is less; default 1e-6, with stop = "topk:100" 1e-10."""
    tol_mode: Grid[TolMode] = "l1"
    """Norm of the change; `fixed` makes max_iter iterations."""
    max_iter: Grid[Positive] = 100
    """Most iterations."""
    stop: Grid[str] = "change"
    """`change`, or `topk:100`: also when it is proven which the 100 highest are."""
    personalization: Grid[str] | None = None
    """Where jumps go: `uniform`, or a file: .npy, saved ranks, CSV, Parquet, lines `id weight` or ids; default
    uniform."""
    dangling: Grid[str] | None = None
    """Where vertices without out-edges lead: `uniform`, `drop`, `error` or a file; default as jumps."""
    nstart: Grid[str] | None = None
    """Ranks to start from: `previous`, those of this run as it was; or a file as of `personalization`;
    default where jumps go."""
    out_weight: Grid[str] | None = None
    """File of what all out-edges of a vertex weigh; default the stored ones."""
    weights: Grid[bool] = True
    """Whether stored values count; else each entry is 1."""
    reverse: Grid[bool] = False
    """Rank the graph with every edge turned round."""
    precision: Grid[Precision] = "exact"
    """How sums are made."""
    kernel: Grid[str] = "auto"
    """Name of a kernel."""
    backend: Grid[Literal["auto", "cpu", "cuda"]] = "auto"
    """Where this process computes; `auto` is cuda with a GPU. On a cluster its kind says so."""
    top: Positive = 100
    """How many of the highest ranks go into tables."""
    checkpoint: bool = False
    """Whether a run keeps its state every 30 s in the folder of the pipeline, where it goes on if it is broken off."""
    recover: Annotated[int, Field(ge=0)] = 5
    """How many times at most a run on a cluster goes on when workers are lost."""


class RunsSection(RunSection):
    """What all runs share, and runs by name, as [run.NAME]; without any, the section itself is the run `pagerank`."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, RunSection]

    def list_runs(self) -> dict[str, RunSection]:
        """The runs by name, each with what it shares with the others unless it says otherwise."""
        shared = {name: getattr(self, name) for name in self.model_fields_set if name in RunSection.model_fields}
        named = self.__pydantic_extra__ or {"pagerank": RunSection()}
        return {
            name: RunSection.model_validate(shared | {key: getattr(own, key) for key in own.model_fields_set})
            for name, own in named.items()
        }


class BatchSection(Section):
    """Many PageRank vectors in one pass; the keys are the arguments of `mgspmv.pagerank_batch`."""

    matrix: Grid[str] | None = None
    """As in a run."""
    seeds: Grid[str] | None = None
    """CSV or Parquet file with the columns vector, vertex and, maybe, weight; default one uniform vector."""
    alpha: OneOrMany[float] = 0.85
    """Damping of all vectors, or a list with that of each; in one batch, whatever is listed."""
    tol: Grid[float] | None = None
    """As in a run."""
    tol_mode: Grid[TolMode] = "l1"
    """As in a run."""
    max_iter: Grid[Positive] = 100
    """As in a run."""
    dangling: Grid[str] | None = None
    """As in a run; default as the jumps of each vector."""
    out_weight: Grid[str] | None = None
    """As in a run."""
    weights: Grid[bool] = True
    """As in a run."""
    reverse: Grid[bool] = False
    """As in a run."""
    precision: Grid[Precision] = "exact"
    """As in a run."""
    backend: Grid[Literal["auto", "cpu", "cuda"]] = "auto"
    """As in a run."""
    width: Literal[2, 4, 8, 16, 32, 64] | None = None
    """Most vectors in a pass; default what is fast and fits."""
    top: Positive = 100
    """How many of the highest ranks of each vector are kept and go into tables."""
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
    kernel: Grid[str] = "auto"
    """Name of a kernel."""
    backend: Grid[Literal["auto", "cpu", "cuda"]] = "auto"
    """As in a run."""
    format: Literal["npy", "zarr", "csv"] = "npy"
    """Of the file that y goes to; csv has the ids of the rows."""


# --- where and how ---------------------------------------------------------------------------------------------------


class LimitsSection(Section):
    """What a step may take of this process."""

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
    drive: Literal["auto", "scheduler", "superstep"] = "auto"
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


class OutputSection(Section):
    """What is written of ranks."""

    folder: str | None = None
    """Where results go, path or URL of an object store; default the pipeline's folder."""
    formats: Annotated[list[Format], Field(min_length=1)] = ["parquet"]
    """Of the files with all ranks."""
    scaler: Scaler = "none"
    """Scores in place of ranks."""
    compare: bool | None = None
    """Compare ranks with those that they replace; default yes, where a format is one that is read again."""

    @property
    def compares(self) -> bool:
        """Whether ranks are compared."""
        return self.is_loadable if self.compare is None else self.compare

    @property
    def is_loadable(self) -> bool:
        """Whether ranks that were written can be read again."""
        return any(format in LOADABLE for format in self.formats)


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
    matrix: Annotated[dict[str, MatrixSection], Field(min_length=1)]
    """Matrices by name; at least one."""
    run: RunsSection | None = None
    """PageRank runs; default none."""
    batch: dict[str, BatchSection] = {}
    """Batches of PageRank vectors by name; default none."""
    product: dict[str, ProductSection] = {}
    """Products with vectors by name; default none."""
    output: OutputSection = OutputSection()
    """What is written."""

    @property
    def runs(self) -> dict[str, RunSection]:
        """Runs by name."""
        return {} if self.run is None else self.run.list_runs()


# --- grids -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """A combination of the values of a grid."""

    label: str
    """Such as `alpha=0.9,personalization=sports`; empty where nothing is listed."""
    section: Any
    """The section with one value for each key."""


def list_points(section: Section) -> Iterator[Point]:
    """Each combination of what a section lists; matrices, which have results of their own, are left as they are."""
    lists = {name: getattr(section, name) for name in find_grid(type(section)) if name != "matrix"}
    lists = {name: values for name, values in lists.items() if isinstance(values, list)}
    for values in itertools.product(*lists.values()):
        point = dict(zip(lists, values, strict=True))
        label = ",".join(f"{name}={show_value(value)}" for name, value in point.items())
        yield Point(label, section.model_copy(update=point))


def find_grid(model: type[Section]) -> list[str]:
    """Keys whose lists are grids."""
    return [name for name in model.model_fields if not (model is BatchSection and name == "alpha")]


def show_value(value: Any) -> str:
    """As a part of a file's name: of a path its last part without the suffix."""
    if not isinstance(value, str):
        return str(value).lower() if isinstance(value, bool) else f"{value!r}"
    last = PurePosixPath(value.rstrip("/")).name if "/" in value or "." in value else value
    stem = last.partition(".")[0] or last
    return "".join(c if c.isalnum() or c in "_.-" else "-" for c in stem)
