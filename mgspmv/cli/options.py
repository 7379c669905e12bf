"""Options of commands by the names of their parameters, and groups of them that several commands take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import typer

from mgspmv.ingest.tokens import split_fields
from mgspmv.kernels.catalogue import SPARSE_KERNELS

PANEL = "What is said"
"""Panel of help for the options of all commands."""

_OF_PRODUCTS = ", ".join(kernel.name for kernel in SPARSE_KERNELS if kernel.backends)
_OF_STEPS = ", ".join(kernel.name for kernel in SPARSE_KERNELS if kernel.step_backends)


def _option(help: str, metavar: str | None = None, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, **more)


def _argument(metavar: str, help: str) -> Any:
    return typer.Argument(metavar=metavar, help=help)


OPTIONS: dict[str, Any] = {
    # all commands
    "json": _option("Answer with one JSON object.", rich_help_panel=PANEL),
    "quiet": _option("Say nothing but errors, and what --json answers.", None, "--quiet", "-q", rich_help_panel=PANEL),
    "log": _option("Write what is done to the end of this file.", "FILE", rich_help_panel=PANEL),
    "log_level": _option(
        "Of --log: calls and steps, or each iteration too; default info.", "info|debug", rich_help_panel=PANEL
    ),
    "debug": _option("Show where an error comes from.", rich_help_panel=PANEL),
    # stores and files
    "store": _argument("STORE", "Matrix store: local path or URL."),
    "ingest.source": _argument(
        "SOURCE",
        "Matrix Market, edge list, Parquet, .npz, or a Zarr group of anndata, binsparse or CSR; path, URL, or "
        "- for stdin. Edge lists and Parquet: also several, a folder, or a pattern such as 'edges/*.csv.gz'.",
    ),
    "model": _argument("MODEL", "rmat, uniform, stencil2d, stencil3d or banded."),
    "reorder.target": _argument("[TARGET]", "Where the renumbered matrix goes; default in place."),
    "subgraph.target": _argument("TARGET", "Where the part goes: local path or URL."),
    "export.target": _argument("TARGET", ".mtx[.gz|.zst], .parquet, .npz or .zarr; path or URL."),
    "x": _argument("X.npy", "(n_cols,) or (n_cols, k) array."),
    "ranks": _argument("RANKS", "What `mgspmv pagerank -o` wrote: .zarr or .parquet."),
    "report.source": _argument("RUN", "A pipeline's folder, the record of a run (.json), or ranks (.zarr, .parquet)."),
    "overwrite": _option("Replace what is there."),
    "keep": _option("Versions that stay, the current one among them; default all.", "N"),
    # formats of sources
    "format": _option(
        "Default by the name and first bytes of a file, or by the attributes of a Zarr group.",
        "matrix-market|edge-list|parquet|npz|anndata|binsparse|csr",
    ),
    "delimiter": _option(
        "Text: between columns; default the first of tab, |, ;, comma and blanks that fits all lines.", "CHAR"
    ),
    "header": _option("Text: the first line names the columns, or is data; default by content."),
    "skip_rows": _option("Text: lines to skip at the beginning of each file.", "N", min=0),
    "comment": _option("Text: characters that begin comments; default # and %.", "CHARS|none"),
    "columns": _option(
        "Edges: columns of sources, targets and, maybe, weights, such as src,dst,weight or 2,3; default by name.",
        "NAMES|NUMBERS",
    ),
    "weights": _option("Edges: require weights, or read none; default if found."),
    "ids": _option("Text: what ids are; default by the first edge.", "auto|int|string"),
    "extra_columns": _option("Edges: columns that no rule takes; default error.", "error|ignore"),
    "n_vertices": _option("Edges: ids are 0..N-1.", "N"),
    "vertices": _option("Edges: ids of all vertices, one per line; - for stdin.", "FILE"),
    "n_cols": _option("Plain CSR arrays without a shape: columns.", "N"),
    "allow_hypersparse": _option(
        "Store far more rows than entries, if the source states so many.", None, "--allow-hypersparse"
    ),
    # stored matrix
    "kind": _option("What rows mean; default as the source.", "graph|matrix|stochastic"),
    "duplicates": _option("Entries at one place; default sum with values, else first.", "sum|first|keep|error"),
    "self_loops": _option("Entries on the diagonal.", "keep|drop|error"),
    "symmetrize": _option("Add (j, i) for each entry (i, j)."),
    "Storing.ignore_weights": _option("Store the pattern only."),
    "update.ignore_weights": _option("Store the pattern only."),
    "transpose": _option("Store the transpose too."),
    "dtype": _option("Of the stored values; default as the source.", "float32|float64"),
    "order": _option("Of rows and columns, as `mgspmv reorder` makes it.", "none|rcm|degree|dealt"),
    "memory": _option("Most for the process, such as 4GiB, on a cluster of each worker; default half.", "SIZE"),
    "scratch": _option("For what does not fit into memory; default beside what is written.", "DIR"),
    # update
    "insert": _option("Entries to insert, after deletions; - for stdin.", "FILE"),
    "delete": _option("Entries to delete; weights are not read.", "FILE"),
    "missing": _option("What is to be deleted and is not there.", "ignore|error"),
    # generate
    "scale": _option("rmat: log2 of the vertices."),
    "edge_factor": _option("rmat: edges a vertex, default 16."),
    "a": _option("rmat: upper left, default 0.57."),
    "b": _option("rmat: upper right, default 0.19."),
    "c": _option("rmat: lower left, default 0.19."),
    "scramble": _option("rmat: spread vertices of high degree."),
    "Parameters.n_vertices": _option("uniform: vertices.", "N"),
    "n_edges": _option("uniform: edges.", "N"),
    "Parameters.weights": _option("rmat, uniform: values in (0, 1]."),
    "nx": _option("stencils: cells along x."),
    "ny": _option("stencils: cells along y."),
    "nz": _option("stencil3d: cells along z."),
    "points": _option("stencils: 5 or 9; 7 or 27."),
    "n": _option("banded: rows."),
    "bandwidth": _option("banded: entries on each side of the diagonal."),
    "pattern": _option("stencils, banded: without values."),
    "seed": _option("rmat, uniform, banded: default 1."),
    # reorder, subgraph, export
    "method": _option(
        "Order of rows and columns: narrow; longest rows first; those dealt to 256 parts; the source's.",
        "rcm|degree|dealt|none",
    ),
    "subgraph.vertices": _option(
        "Graphs: ids of vertices to keep, one per line, or a .npy file of ids or of a mask.", "FILE"
    ),
    "min_weight": _option("Least weight to keep.", "W"),
    "max_weight": _option("Greatest weight to keep.", "W"),
    "edges": _option("Edges to keep: an edge list or table, or a matrix as a mask, such as .npz.", "FILE"),
    "without_edges": _option("Edges to drop, likewise.", "FILE"),
    "subgraph.symmetrize": _option("For both, (i, j) stands for (j, i) too."),
    "export.format": _option("Default by the suffix, but for .zarr.", "matrix-market|parquet|npz|anndata|binsparse"),
    "export.vertices": _option("Write the ids too, one a line, for `ingest --vertices`.", "FILE"),
    # placement
    "cluster": _option(
        "Start a Dask cluster for this run: on this machine, a worker for each of its GPUs, in jobs, on hosts, in "
        "pods, or by a class.",
        "local|cuda|slurm|pbs|ssh|kubernetes|MODULE:CLASS",
    ),
    "workers": _option("With --cluster: how many in all; default one for each GPU, or as Dask chooses.", "N", min=1),
    "plan.workers": _option("Number of workers; default 1, or those of the cluster."),
    "threads": _option("Threads, on a cluster of each worker; default all processors.", min=1),
    "cluster_option": _option(
        "Argument of the cluster's class, such as queue=gpu; also gpus of each job or host, and wait in seconds; "
        "repeatable.",
        "KEY=VALUE",
    ),
    "scheduler": _option("Use a running Dask cluster, as tcp://10.0.0.1:8786.", "ADDRESS|FILE"),
    "tls": _option("Encrypt all connections, and let in who has the certificates of this folder.", "temporary|DIR"),
    "timeout": _option("On a cluster: how long a worker may be silent.", "SECONDS"),
    "backend": _option("Where to compute; auto is cuda with a GPU.", "auto|cpu|cuda"),
    "device_memory": _option("Most of each GPU, as 141GB or 80GiB; rows without room come by.", "BYTES"),
    "host_memory": _option("Most of each worker's host, likewise.", "BYTES"),
    "drive": _option("How iterations are driven.", "auto|embedded|scheduler|superstep"),
    "transport": _option("How slices go from worker to worker.", "auto|nccl|peer"),
    # clusters and runs
    "start.name": _option("Of the cluster; one of a name on a machine.", "NAME", "--name"),
    "status.name": _argument("[NAME]", "Of a cluster; default all."),
    "stop.name": _argument("[NAME]", "Of the cluster."),
    "start.backend": _option("Workers on GPUs or not; auto is cuda with a GPU.", "auto|cpu|cuda"),
    "start.workers": _option("Processes; default one for each GPU, or as Dask chooses.", "N", min=1),
    "start.threads": _option("Of each worker; default so many that all have one for each processor.", min=1),
    "protocol": _option("Of Dask between GPU workers.", "tcp|ucxx"),
    "host": _option("Where to listen; others get in there, so also give --tls.", "ADDRESS"),
    "port": _option("Of the scheduler; 0 for any that is free.", min=0, max=65535),
    "dashboard_port": _option(
        "Of the dashboard; default 8787, or one that is free where that is taken.", min=0, max=65535
    ),
    "dashboard_origin": _option(
        "Also let browsers reach the dashboard as this host, as behind a proxy; repeat.", "HOST[:PORT]"
    ),
    "start.timeout": _option("Until all workers must have joined.", "SECONDS"),
    "foreground": _option("Stay in this command and end with it, as services want it."),
    "status.timeout": _option("For the scheduler to answer.", "SECONDS"),
    "stop.timeout": _option("How long the cluster has to end before it is killed.", "SECONDS"),
    "run": _argument("RUN", "Id of a run, or the beginning of one."),
    "cancel.timeout": _option("Until the workers end what its client does not.", "SECONDS"),
    "stores": _argument("[STORE]...", "Paths or URLs to read, here and by workers, or to write."),
    "doctor.timeout": _option("For each check.", "SECONDS"),
    # plan and products
    "plan.stop": _option("Of PageRank; topk takes memory too.", "change|topk:K"),
    "plan.checkpoint": _option("Of PageRank that is kept on the way."),
    "spmv.output": _option("Where the product goes.", "Y.npy", "--output", "-o"),
    "spmv.alpha": _option("Factor of A @ x."),
    "spmv.beta": _option("Factor of y."),
    "y": _option("What beta multiplies.", "FILE.npy"),
    "spmv.kernel": _option(f"Kernel: auto, {_OF_PRODUCTS}."),
    "spmv.precision": _option("Of x and y; default as they and the values are.", "float64|float32"),
    # iterations
    "output": _option(
        "Where all ranks go: .zarr, .parquet, .csv or - for stdout; repeatable.", "RANKS", "--output", "-o"
    ),
    "tol": _option("Stop when the change is less; default 1e-6."),
    "tol_mode": _option("Norm of the change; fixed makes max-iter iterations.", "l1|l1_per_node|linf|relative|fixed"),
    "max_iter": _option("Most iterations."),
    "nstart": _option(
        "Start: `alice`, `alice=2,bob=1`, or a file (saved ranks, .csv, .parquet, text, .npy).", "FILE|IDS"
    ),
    "ignore_weights": _option("Take each stored entry as 1."),
    "Iteration.precision": _option("Of vectors and values.", "float64|float32"),
    "top": _option("How many of the highest ranks to show.", min=1),
    "normalized": _option("Divide by the norm at the end.", None, "--normalized/--not-normalized"),
    "hubs": _option("Where hubs go, as --output; repeatable.", "HUBS"),
    "katz.alpha": _option("Attenuation, below 1 / (the largest eigenvalue); or choose it.", "NUMBER|auto"),
    "katz.beta": _option("What each vertex has of itself, or those named.", "NUMBER|FILE|IDS"),
    "lazy": _option("Probability of staying; periodic chains need one."),
    # PageRank
    "alpha": _option("Damping factor."),
    "pagerank.tol": _option("Stop when the change is less; default 1e-6, with --stop topk 1e-10."),
    "stop": _option("Also stop when it is proven which the K highest are.", "change|topk:K"),
    "personalization": _option(
        "Where jumps go: `alice`, `alice=2,bob=1`, or a file (.csv, .parquet, text, .npy).", "FILE|IDS"
    ),
    "dangling": _option("Where vertices without out-edges lead; default as jumps.", "uniform|drop|error|FILE|IDS"),
    "pagerank.nstart": _option(
        "Ranks to start from: saved ones (.zarr, .parquet, .csv), or as --personalization.", "FILE|IDS"
    ),
    "out_weight": _option("What all out-edges of a vertex weigh; default the stored ones.", "FILE|IDS"),
    "reverse": _option("Rank the reversed graph; the store must hold the transpose."),
    "precision": _option("How sums are made.", "exact|float64|float32"),
    "kernel": _option(f"Kernel: auto, {_OF_STEPS}."),
    "checkpoint": _option("Keep the ranks there now and then: a folder or URL, for --resume.", "PLACE"),
    "checkpoint_every": _option("From one checkpoint to the next, 30 unless given.", "SECONDS"),
    "resume": _option("Go on from the last checkpoint, or begin where there is none."),
    "recover": _option("On a cluster: go on N times at most when workers are lost.", "N", min=0),
    "scaler": _option("Scores in place of ranks, as Neo4j GDS.", "none|minmax|max|mean|log|stdscore|l1norm|l2norm"),
    "summary": _option("Show how the ranks are distributed."),
    "seeds": _option("Where jumps go: .csv or .parquet with vector, vertex and, maybe, weight; default all.", "FILE"),
    "pagerank_batch.output": _option(
        "Where ranks go: .zarr, .parquet or - for CSV on stdout; repeatable.", "RANKS", "--output", "-o"
    ),
    "pagerank_batch.alpha": _option("Damping factor, 0.85 unless given; repeatable, one for each vector."),
    "pagerank_batch.top": _option("Keep so many of the highest ranks; default all.", min=1),
    "width": _option("Vectors in a pass; default what is fast and fits.", "2|4|8|16|32|64"),
    # results
    "k": _option("How many.", None, "-k", "--k"),
    "bins": _option("Bins of the histogram.", min=1),
    "out": _option("Where to write it.", "FILE.html", "-o", "--out"),
}
"""Options by name; the key `COMMAND.NAME` or `GROUP.NAME` takes precedence over `NAME`."""


@dataclass(frozen=True)
class Storing:
    """Storage options, as arguments of `mgspmv.ingest` and `generate`."""

    kind: str | None = None
    duplicates: str | None = None
    self_loops: str = "keep"
    symmetrize: bool = False
    ignore_weights: bool = False
    transpose: bool = False
    dtype: str | None = None
    order: str = "none"
    overwrite: bool = False


@dataclass(frozen=True)
class Lines:
    """Options for reading edges from files."""

    format: str | None = None
    delimiter: str | None = None
    header: bool | None = None
    skip_rows: int | None = None
    comment: str | None = None
    columns: str | None = None
    weights: bool | None = None
    ids: str | None = None
    extra_columns: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Given options, as arguments of `mgspmv.ingest` and `update`."""
        return given(vars(self) | {"columns": _parse_columns(self.columns)})


@dataclass(frozen=True)
class Reading(Lines):
    """Options for reading files, and for the set of vertices."""

    n_vertices: int | None = None
    vertices: str | None = None
    n_cols: int | None = None
    allow_hypersparse: bool | None = None


def _parse_columns(text: str | None) -> list[str] | list[int] | None:
    """Parse names or numbers of columns, separated by commas as in CSV."""
    if not text:
        return None
    names = split_fields(text, ",")
    return [int(name) for name in names] if all(name.isdecimal() for name in names) else names


@dataclass(frozen=True)
class Room:
    """Memory and scratch folder for sorting, as arguments of functions that make stores."""

    memory: str | None = None
    scratch: str | None = None


@dataclass(frozen=True)
class Work(Room):
    """Memory, scratch folder and threads for sorting in this process."""

    threads: int | None = None


def given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
