"""Options that several commands share, and groups of them, which a command has in place of a parameter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from mgspmv.ingest.rules import split_fields
from mgspmv.kernels.catalogue import SPARSE_KERNELS

StorePath = Annotated[str, typer.Argument(metavar="STORE", help="Matrix store: local path or URL.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]
Threads = Annotated[
    int | None, typer.Option(min=1, help="Threads, on a cluster of each worker; default all processors.")
]
Memory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Most for the process, such as 4GiB, on a cluster of each worker; default half."),
]
Scratch = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="For what does not fit into memory; default beside what is written."),
]
Output = Annotated[
    list[str] | None,
    typer.Option(
        "--output",
        "-o",
        metavar="RANKS",
        help="Where all ranks go: .zarr, .parquet, .csv or - for stdout; repeatable.",
    ),
]
Tol = Annotated[float | None, typer.Option(help="Stop when the change is less; default 1e-6.")]
TolModeName = Annotated[
    str,
    typer.Option(
        metavar="l1|l1_per_node|linf|relative|fixed", help="Norm of the change; fixed makes max-iter iterations."
    ),
]
MaxIter = Annotated[int, typer.Option(help="Most iterations.")]
Dangling = Annotated[
    str | None,
    typer.Option(
        metavar="uniform|drop|error|FILE|IDS", help="Where vertices without out-edges lead; default as jumps."
    ),
]
OutWeight = Annotated[
    str | None, typer.Option(metavar="FILE|IDS", help="What all out-edges of a vertex weigh; default the stored ones.")
]
Reverse = Annotated[bool, typer.Option("--reverse", help="Rank the reversed graph; the store must hold the transpose.")]
Precision = Annotated[str, typer.Option(metavar="exact|float64|float32", help="How sums are made.")]
Transport = Annotated[str, typer.Option(metavar="auto|nccl|peer", help="How slices go from worker to worker.")]
Start = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|IDS", help="Start: `alice`, `alice=2,bob=1`, or a file (saved ranks, .csv, .parquet, text, .npy)."
    ),
]
EntriesAsOne = Annotated[bool, typer.Option("--ignore-weights", help="Take each stored entry as 1.")]
ProductPrecision = Annotated[str, typer.Option(metavar="float64|float32", help="Of vectors and values.")]
Normalized = Annotated[bool, typer.Option("--normalized/--not-normalized", help="Divide by the norm at the end.")]
Top = Annotated[int, typer.Option(min=1, help="How many of the highest ranks to show.")]
_OF_PRODUCTS = ", ".join(kernel.name for kernel in SPARSE_KERNELS if kernel.backends)
_OF_STEPS = ", ".join(kernel.name for kernel in SPARSE_KERNELS if kernel.step_backends)
ProductKernel = Annotated[str, typer.Option(help=f"Kernel: auto, {_OF_PRODUCTS}.")]
StepKernel = Annotated[str, typer.Option(help=f"Kernel: auto, {_OF_STEPS}.")]
Backend = Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Where to compute; auto is cuda with a GPU.")]
ClusterKind = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="local|cuda|slurm|pbs|ssh|kubernetes|MODULE:CLASS",
        help="Start a Dask cluster for this run: on this machine, a worker for each of its GPUs, in jobs, on hosts, in "
        "pods, or by a class.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="With --cluster: how many in all; default one for each GPU, or as Dask chooses."
    ),
]
ClusterOption = Annotated[
    list[str] | None,
    typer.Option(
        "--cluster-option",
        metavar="KEY=VALUE",
        help="Argument of the cluster's class, such as queue=gpu; also gpus of each job or host, and wait in seconds; "
        "repeatable.",
    ),
]
Scheduler = Annotated[
    str | None, typer.Option(metavar="ADDRESS|FILE", help="Use a running Dask cluster, as tcp://10.0.0.1:8786.")
]
Tls = Annotated[
    str | None,
    typer.Option(
        metavar="temporary|DIR", help="Encrypt all connections, and let in who has the certificates of this folder."
    ),
]
DeviceMemory = Annotated[
    str | None,
    typer.Option(
        "--device-memory", metavar="BYTES", help="Most of each GPU, as 141GB or 80GiB; rows without room come by."
    ),
]
HostMemory = Annotated[
    str | None, typer.Option("--host-memory", metavar="BYTES", help="Most of each worker's host, likewise.")
]
DriveName = Annotated[str, typer.Option(metavar="auto|embedded|scheduler|superstep", help="How iterations are driven.")]
Timeout = Annotated[float, typer.Option(metavar="SECONDS", help="On a cluster: how long a worker may be silent.")]
Kind = Annotated[
    str | None, typer.Option(metavar="graph|matrix|stochastic", help="What rows mean; default as the source.")
]
Duplicates = Annotated[
    str | None,
    typer.Option(metavar="sum|first|keep|error", help="Entries at one place; default sum with values, else first."),
]
SelfLoops = Annotated[str, typer.Option(metavar="keep|drop|error", help="Entries on the diagonal.")]
Symmetrize = Annotated[bool, typer.Option("--symmetrize", help="Add (j, i) for each entry (i, j).")]
IgnoreWeights = Annotated[bool, typer.Option("--ignore-weights", help="Store the pattern only.")]
Transpose = Annotated[bool, typer.Option("--transpose", help="Store the transpose too.")]
Dtype = Annotated[
    str | None, typer.Option(metavar="float32|float64", help="Of the stored values; default as the source.")
]
Order = Annotated[
    str, typer.Option(metavar="none|rcm|degree|dealt", help="Of rows and columns, as `mgspmv reorder` makes it.")
]
Keep = Annotated[
    int | None, typer.Option(metavar="N", help="Versions that stay, the current one among them; default all.")
]
Missing = Annotated[str, typer.Option(metavar="ignore|error", help="What is to be deleted and is not there.")]
Format = Annotated[
    str | None,
    typer.Option(
        metavar="matrix-market|edge-list|parquet|npz|anndata|binsparse|csr",
        help="Default by the name and first bytes of a file, or by the attributes of a Zarr group.",
    ),
]
NVertices = Annotated[int | None, typer.Option("--n-vertices", metavar="N", help="Edges: ids are 0..N-1.")]
Vertices = Annotated[
    str | None, typer.Option(metavar="FILE", help="Edges: ids of all vertices, one per line; - for stdin.")
]
Delimiter = Annotated[
    str | None,
    typer.Option(
        metavar="CHAR",
        help="Text: between columns; default the first of tab, |, ;, comma and blanks that fits all lines.",
    ),
]
Header = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header", help="Text: the first line names the columns, or is data; default by content."
    ),
]
SkipRows = Annotated[
    int | None,
    typer.Option("--skip-rows", min=0, metavar="N", help="Text: lines to skip at the beginning of each file."),
]
Comment = Annotated[
    str | None, typer.Option(metavar="CHARS|none", help="Text: characters that begin comments; default # and %.")
]
HasWeights = Annotated[
    bool | None, typer.Option("--weights/--no-weights", help="Edges: require weights, or read none; default if found.")
]
Ids = Annotated[
    str | None, typer.Option(metavar="auto|int|string", help="Text: what ids are; default by the first edge.")
]
ExtraColumns = Annotated[
    str | None, typer.Option(metavar="error|ignore", help="Edges: columns that no rule takes; default error.")
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES|NUMBERS",
        help="Edges: columns of sources, targets and, maybe, weights, such as src,dst,weight or 2,3; default by name.",
    ),
]
AllowHypersparse = Annotated[
    bool | None,
    typer.Option("--allow-hypersparse", help="Store far more rows than entries, if the source states so many."),
]
NCols = Annotated[int | None, typer.Option("--n-cols", metavar="N", help="Plain CSR arrays without a shape: columns.")]


@dataclass(frozen=True)
class Storing:
    """What is stored of a source, as arguments of `mgspmv.ingest` and `generate`."""

    kind: Kind = None
    duplicates: Duplicates = None
    self_loops: SelfLoops = "keep"
    symmetrize: Symmetrize = False
    ignore_weights: IgnoreWeights = False
    transpose: Transpose = False
    dtype: Dtype = None
    order: Order = "none"
    overwrite: Overwrite = False


@dataclass(frozen=True)
class Lines:
    """How edges in files are read."""

    format: Format = None
    delimiter: Delimiter = None
    header: Header = None
    skip_rows: SkipRows = None
    comment: Comment = None
    columns: Columns = None
    weights: HasWeights = None
    ids: Ids = None
    extra_columns: ExtraColumns = None

    @property
    def options(self) -> dict[str, Any]:
        """Those that are given, as arguments of `mgspmv.ingest` and `update`."""
        return given(vars(self) | {"columns": _parse_columns(self.columns)})


@dataclass(frozen=True)
class Reading(Lines):
    """How files are read, and which vertices there are."""

    n_vertices: NVertices = None
    vertices: Vertices = None
    n_cols: NCols = None
    allow_hypersparse: AllowHypersparse = None


def _parse_columns(text: str | None) -> list[str] | list[int] | None:
    """Names of columns, or their numbers, separated by commas as in CSV."""
    if not text:
        return None
    names = split_fields(text, ",")
    return [int(name) for name in names] if all(name.isdecimal() for name in names) else names


@dataclass(frozen=True)
class Room:
    """What sorting may take, as arguments of what makes stores."""

    memory: Memory = None
    scratch: Scratch = None


@dataclass(frozen=True)
class Limits:
    """What workers may take, as arguments of what computes."""

    device_memory: DeviceMemory = None
    host_memory: HostMemory = None


def given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
