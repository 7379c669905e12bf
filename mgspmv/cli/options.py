"""Options of commands by the names of their parameters, and groups of them that several commands take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from mgspmv.ingest.tokens import split_fields

PANEL = "What is said"
"""Panel of help for the options of all commands."""


def option(help: str, metavar: str | None = None, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, **more)


def argument(metavar: str, help: str) -> Any:
    return typer.Argument(metavar=metavar, help=help)


OPTIONS: dict[str, Any] = {
    # all commands
    "json": option("Answer with one JSON object.", rich_help_panel=PANEL),
    "quiet": option("Say nothing but errors, and what --json answers.", None, "--quiet", "-q", rich_help_panel=PANEL),
    "log": option("Write what is done to the end of this file.", "FILE", rich_help_panel=PANEL),
    "log_level": option(
        "Of --log: calls and steps, or each iteration too; default info.", "info|debug", rich_help_panel=PANEL
    ),
    "debug": option("Show where an error comes from.", rich_help_panel=PANEL),
    # stores and files
    "store": argument("STORE", "Matrix store: local path or URL."),
    "ingest.source": argument(
        "SOURCE",
        "Matrix Market, edge list, Parquet, .npz, or a Zarr group of anndata, binsparse or CSR; path, URL, or "
        "- for stdin. Edge lists and Parquet: also several, a folder, or a pattern such as 'edges/*.csv.gz'.",
    ),
    "model": argument("MODEL", "rmat, uniform, stencil2d, stencil3d or banded."),
    "ranks": argument("RANKS", "What `mgspmv pagerank -o` wrote: .zarr or .parquet."),
    "report.source": argument("RUN", "A pipeline's folder, the record of a run (.json), or ranks (.zarr, .parquet)."),
    "overwrite": option("Replace what is there."),
    "keep": option("Versions that stay, the current one among them; default all.", "N"),
    # formats of sources
    "format": option(
        "Default by the name and first bytes of a file, or by the attributes of a Zarr group.",
        "matrix-market|edge-list|parquet|npz|anndata|binsparse|csr",
    ),
    "delimiter": option(
        "Text: between columns; default the first of tab, |, ;, comma and blanks that fits all lines.", "CHAR"
    ),
    "header": option("Text: the first line names the columns, or is data; default by content."),
    "comment": option("Text: characters that begin comments; default # and %.", "CHARS|none"),
    "columns": option(
        "Edges: columns of sources, targets and, maybe, weights, such as src,dst,weight or 2,3; default by name.",
        "NAMES|NUMBERS",
    ),
    "extra_columns": option("Edges: columns that no rule takes; default error.", "error|ignore"),
    "allow_hypersparse": option(
        "Store far more rows than entries, if the source states so many.", None, "--allow-hypersparse"
    ),
    # stored matrix
    "duplicates": option("Entries at one place; default sum with values, else first.", "sum|first|keep|error"),
    "self_loops": option("Entries on the diagonal.", "keep|drop|error"),
    "symmetrize": option("Add (j, i) for each entry (i, j)."),
    "order": option("Of rows and columns, as `mgspmv reorder` makes it.", "none|rcm|degree|dealt"),
    "memory": option("Most for the process, such as 4GiB, on a cluster of each worker; default half.", "SIZE"),
    "scratch": option("For what does not fit into memory; default beside what is written.", "DIR"),
    # update
    # generate
    # reorder, subgraph, export
    "method": option(
        "Order of rows and columns: narrow; longest rows first; those dealt to 256 parts; the source's.",
        "rcm|degree|dealt|none",
    ),
    "subgraph.vertices": option(
        "Graphs: ids of vertices to keep, one per line, or a .npy file of ids or of a mask.", "FILE"
    ),
    "edges": option("Edges to keep: an edge list or table, or a matrix as a mask, such as .npz.", "FILE"),
    "export.format": option("Default by the suffix, but for .zarr.", "matrix-market|parquet|npz|anndata|binsparse"),
    # placement
    "cluster": option(
        "Start a Dask cluster for this run: on this machine, a worker for each of its GPUs, in jobs, on hosts, in "
        "pods, or by a class.",
        "local|cuda|slurm|pbs|ssh|kubernetes|MODULE:CLASS",
    ),
    "workers": option("With --cluster: how many in all; default one for each GPU, or as Dask chooses.", "N", min=1),
    "threads": option("Threads, on a cluster of each worker; default all processors.", min=1),
    "cluster_option": option(
        "Argument of the cluster's class, such as queue=gpu; also gpus of each job or host, and wait in seconds; "
        "repeatable.",
        "KEY=VALUE",
    ),
    "scheduler": option("Use a running Dask cluster, as tcp://10.0.0.1:8786.", "ADDRESS|FILE"),
    "tls": option("Encrypt all connections, and let in who has the certificates of this folder.", "temporary|DIR"),
    "timeout": option("On a cluster: how long a worker may be silent.", "SECONDS"),
    "backend": option("Where to compute; auto is cuda with a GPU.", "auto|cpu|cuda"),
    "device_memory": option("Most of each GPU, as 141GB or 80GiB; rows without room come by.", "BYTES"),
    "host_memory": option("Most of each worker's host, likewise.", "BYTES"),
    "transport": option("How slices go from worker to worker.", "auto|nccl|peer"),
    # clusters and runs
    "status.name": argument("[NAME]", "Of a cluster; default all."),
    "stop.name": argument("[NAME]", "Of the cluster."),
    "start.workers": option("Processes; default one for each GPU, or as Dask chooses.", "N", min=1),
    "start.threads": option("Of each worker; default so many that all have one for each processor.", min=1),
    "dashboard_port": option(
        "Of the dashboard; default 8787, or one that is free where that is taken.", min=0, max=65535
    ),
    "dashboard_origin": option(
        "Also let browsers reach the dashboard as this host, as behind a proxy; repeat.", "HOST[:PORT]"
    ),
    "status.timeout": option("For the scheduler to answer.", "SECONDS"),
    "stop.timeout": option("How long the cluster has to end before it is killed.", "SECONDS"),
    "run": argument("RUN", "Id of a run, or the beginning of one."),
    "cancel.timeout": option("Until the workers end what its client does not.", "SECONDS"),
    "stores": argument("[STORE]...", "Paths or URLs to read, here and by workers, or to write."),
    # plan and products
    "spmv.precision": option("Of x and y; default as they and the values are.", "float64|float32"),
    # iterations
    "output": option(
        "Where all ranks go: .zarr, .parquet, .csv or - for stdout; repeatable.", "RANKS", "--output", "-o"
    ),
    "tol": option("Stop when the change is less; default 1e-6."),
    "tol_mode": option("Norm of the change; fixed makes max-iter iterations.", "l1|l1_per_node|linf|relative|fixed"),
    "max_iter": option("Most iterations."),
    "nstart": option(
        "Start: `alice`, `alice=2,bob=1`, or a file (saved ranks, .csv, .parquet, text, .npy).", "FILE|IDS"
    ),
    "ignore_weights": option("Take each stored entry as 1."),
    "normalized": option("Divide by the norm at the end.", None, "--normalized/--not-normalized"),
    "hubs": option("Where hubs go, as --output; repeatable.", "HUBS"),
    "katz.alpha": option("Attenuation, below 1 / (the largest eigenvalue); or choose it.", "NUMBER|auto"),
    "katz.beta": option("What each vertex has of itself, or those named.", "NUMBER|FILE|IDS"),
    "lazy": option("Probability of staying; periodic chains need one."),
    # PageRank
    "pagerank.tol": option("Stop when the change is less; default 1e-6, with --stop topk 1e-10."),
    "personalization": option(
        "Where jumps go: `alice`, `alice=2,bob=1`, or a file (.csv, .parquet, text, .npy).", "FILE|IDS"
    ),
    "dangling": option("Where vertices without out-edges lead; default as jumps.", "uniform|drop|error|FILE|IDS"),
    "pagerank.nstart": option(
        "Ranks to start from: saved ones (.zarr, .parquet, .csv), or as --personalization.", "FILE|IDS"
    ),
    "out_weight": option("What all out-edges of a vertex weigh; default the stored ones.", "FILE|IDS"),
    "reverse": option("Rank the reversed graph; the store must hold the transpose."),
    "precision": option("How sums are made.", "exact|float64|float32"),
    "checkpoint": option("Keep the ranks there now and then: a folder or URL, for --resume.", "PLACE"),
    "checkpoint_every": option("From one checkpoint to the next, 30 unless given.", "SECONDS"),
    "scaler": option("Scores in place of ranks, as Neo4j GDS.", "none|minmax|max|mean|log|stdscore|l1norm|l2norm"),
    "summary": option("Show how the ranks are distributed."),
    "seeds": option("Where jumps go: .csv or .parquet with vector, vertex and, maybe, weight; default all.", "FILE"),
    "pagerank_batch.output": option(
        "Where ranks go: .zarr, .parquet or - for CSV on stdout; repeatable.", "RANKS", "--output", "-o"
    ),
    "pagerank_batch.alpha": option("Damping factor, 0.85 unless given; repeatable, one for each vector."),
    # results
    "k": option("How many.", None, "-k", "--k"),
    "bins": option("Bins of the histogram.", min=1),
    "out": option("Where to write it.", "FILE.html", "-o", "--out"),
}
"""Options of several commands by name, and those with long help, which have none in the annotation of their parameter.

The key `COMMAND.NAME` or `GROUP.NAME` takes precedence over `NAME`."""


@dataclass(frozen=True)
class StoringOptions:
    """Storage options, as arguments of `mgspmv.ingest` and `generate`."""

    kind: Annotated[str | None, option("What rows mean; default as the source.", "graph|matrix|stochastic")] = None
    duplicates: str | None = None
    self_loops: str = "keep"
    symmetrize: bool = False
    ignore_weights: Annotated[bool, option("Store the pattern only.")] = False
    transpose: Annotated[bool, option("Store the transpose too.")] = False
    dtype: Annotated[str | None, option("Of the stored values; default as the source.", "float32|float64")] = None
    order: str = "none"
    overwrite: bool = False


@dataclass(frozen=True)
class TextOptions:
    """Options for reading edges from files."""

    format: str | None = None
    delimiter: str | None = None
    header: bool | None = None
    skip_rows: Annotated[int | None, option("Text: lines to skip at the beginning of each file.", "N", min=0)] = None
    comment: str | None = None
    columns: str | None = None
    weights: Annotated[bool | None, option("Edges: require weights, or read none; default if found.")] = None
    ids: Annotated[str | None, option("Text: what ids are; default by the first edge.", "auto|int|string")] = None
    extra_columns: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Given options, as arguments of `mgspmv.ingest` and `update`."""
        return given(vars(self) | {"columns": _parse_columns(self.columns)})


@dataclass(frozen=True)
class ReadingOptions(TextOptions):
    """Options for reading files, and for the set of vertices."""

    n_vertices: Annotated[int | None, option("Edges: ids are 0..N-1.", "N")] = None
    vertices: Annotated[str | None, option("Edges: ids of all vertices, one per line; - for stdin.", "FILE")] = None
    n_cols: Annotated[int | None, option("Plain CSR arrays without a shape: columns.", "N")] = None
    allow_hypersparse: bool | None = None


def _parse_columns(text: str | None) -> list[str] | list[int] | None:
    """Parse names or numbers of columns, separated by commas as in CSV."""
    if not text:
        return None
    names = split_fields(text, ",")
    return [int(name) for name in names] if all(name.isdecimal() for name in names) else names


@dataclass(frozen=True)
class MemoryOptions:
    """Memory and scratch folder for sorting, as arguments of functions that make stores."""

    memory: str | None = None
    scratch: str | None = None


@dataclass(frozen=True)
class SortingOptions(MemoryOptions):
    """Memory, scratch folder and threads for sorting in this process."""

    threads: int | None = None


def given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
