"""Options of commands by the names of their parameters, groups of them that several commands take, and their help."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from inspect import Parameter
from typing import Annotated, Any, get_args

import typer

from mgspmv.cli.output import COMMON
from mgspmv.ingest.tokens import split_fields


def option(help: str, metavar: str | None = None, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, **more)


def argument(metavar: str, help: str) -> Any:
    return typer.Argument(metavar=metavar, help=help)


def check_choices(parameters: Mapping[str, Parameter], values: Mapping[str, Any]) -> None:
    """Raise `OptionError` for a value that is not one of the words that its option takes, such as `cpu|cuda`."""
    from mgspmv.model import check_choice

    for name, parameter in parameters.items():
        words, value = (get_args(parameter.annotation)[1].metavar or "").split("|"), values[name]
        if value is not None and len(words) > 1 and all(word.islower() or word.isdigit() for word in words):
            check_choice(name, value, tuple(map(type(value), words)))


OPTIONS: dict[str, Any] = {
    # all commands
    "json": option("Answer with one JSON object."),
    "quiet": option("Print only errors, and the answer of --json.", None, "--quiet", "-q"),
    "log": option("Append a log of calls and steps to this file, with --debug also of iterations.", "FILE"),
    "debug": option("Show the traceback of an error."),
    # stores and files
    "store": argument("STORE", "Matrix store: local path or URL."),
    "graph": argument("GRAPH", "Matrix store, or a file of edges as for `mgspmv ingest`: path or URL."),
    "ingest.source": argument(
        "SOURCE",
        "Matrix Market, edge list, Parquet, .npz, or a Zarr group of anndata, binsparse or CSR; path, URL, or "
        "- for stdin. Edge lists and Parquet: also several, a folder, or a pattern such as 'edges/*.csv.gz'.",
    ),
    "model": argument("MODEL", "Generator: rmat, uniform, stencil2d, stencil3d or banded."),
    "ranks": argument("RANKS", "Ranks that `mgspmv pagerank -o` wrote: .zarr or .parquet."),
    "report.source": argument("RUN", "Folder of a pipeline, record of a run (.json), or ranks (.zarr, .parquet)."),
    "overwrite": option("Replace an existing output."),
    "keep": option("Number of versions to keep, including the current one; default all.", "N"),
    # formats of sources
    "format": option(
        "Format of the source; default detected from file name and first bytes, or Zarr attributes.",
        "matrix-market|edge-list|parquet|npz|anndata|binsparse|csr",
    ),
    "delimiter": option(
        "Text: separator of columns; default the first of tab, |, ;, comma and blanks that fits all lines.", "CHAR"
    ),
    "header": option("Text: whether the first line has column names; default detected."),
    "comment": option("Text: characters that begin comments; default # and %.", "CHARS|none"),
    "columns": option(
        "Edges: columns of sources, targets and, optionally, weights, such as src,dst,weight or 2,3; default by name.",
        "NAMES|NUMBERS",
    ),
    "allow_hypersparse": option(
        "Allow far more rows than entries, if the source states that shape.", None, "--allow-hypersparse"
    ),
    # stored matrix
    "duplicates": option("Rule for duplicate entries; default sum with values, else first.", "sum|first|keep|error"),
    "self_loops": option("Rule for entries on the diagonal.", "keep|drop|error"),
    "symmetrize": option("Add (j, i) for each entry (i, j)."),
    "order": option("Order of rows and columns, as by `mgspmv reorder`.", "none|rcm|degree|dealt"),
    "memory": option("Memory limit per process, such as 4GiB; default half of the free memory.", "SIZE"),
    "scratch": option("Folder for data that does not fit in memory; default the folder of the output.", "DIR"),
    # reorder, subgraph, export
    "method": option(
        "Order: smallest bandwidth; longest rows first; these dealt to 256 parts; as in the source.",
        "rcm|degree|dealt|none",
    ),
    "subgraph.vertices": option(
        "Graphs: ids of vertices to keep, one per line, or a .npy file of ids or of a mask.", "FILE"
    ),
    "edges": option("Edges to keep: an edge list or table, or a matrix as a mask, such as .npz.", "FILE"),
    "export.format": option("Output format; needed for .zarr.", "matrix-market|csv|parquet|npz|anndata|binsparse"),
    # placement
    "cluster": option(
        "Start a Dask cluster for this run; local has CPU workers on this machine, cuda a worker per GPU.",
        "local|cuda|slurm|pbs|ssh|kubernetes|MODULE:CLASS",
    ),
    "workers": option("With --cluster: number of workers; default one per GPU, or as Dask chooses.", "N", min=1),
    "threads": option("Threads of each process; default all processors.", min=1),
    "cluster_option": option(
        "Argument of the cluster's class, such as queue=gpu; also gpus per job or host, and wait in seconds; "
        "repeatable.",
        "KEY=VALUE",
    ),
    "scheduler": option("Use a running Dask cluster, such as tcp://10.0.0.1:8786.", "ADDRESS|FILE"),
    "tls": option("Encrypt all connections and require the certificates in this folder.", "temporary|DIR"),
    "timeout": option("On a cluster: time without heartbeats after which a worker is lost.", "SECONDS"),
    "backend": option("Device to compute on; auto is cuda if a GPU exists.", "auto|cpu|cuda"),
    "device_memory": option("Memory limit per GPU, such as 80GiB; rows that do not fit are streamed.", "BYTES"),
    "host_memory": option("Memory limit on the host, per worker.", "BYTES"),
    "transport": option("Transport of vector slices between workers.", "auto|nccl|peer"),
    # clusters and runs
    "show.name": argument("[NAME]", "Name of a cluster; default all."),
    "stop.name": argument("[NAME]", "Name of the cluster."),
    "start.workers": option("Number of workers; default one per GPU, or as Dask chooses.", "N", min=1),
    "start.threads": option("Threads per worker; default the processors divided by the workers.", min=1),
    "start.wait": option("Time for all workers to join.", "SECONDS", min=0.1),
    "show.wait": option("Time for the scheduler to answer.", "SECONDS", min=0.1),
    "status.wait": option("Time for the scheduler to answer.", "SECONDS", min=0.1),
    "stop.wait": option("Time for the cluster to exit before it is killed.", "SECONDS", min=0.1),
    "cancel.wait": option("Time for the client to end the run before its workers do.", "SECONDS", min=0.1),
    "doctor.wait": option("Time limit of each check.", "SECONDS", min=0.1),
    "warm": option("Compile the kernels of usual runs of ingest and PageRank now, and keep them."),
    "dashboard_port": option(
        "Port of the dashboard; default 8787, or any free one if that is taken.", min=0, max=65535
    ),
    "dashboard_origin": option(
        "Further host name of the dashboard, such as that of a proxy; repeatable.", "HOST[:PORT]"
    ),
    "run": argument("RUN", "Id of a run, or its first characters."),
    "stores": argument("[STORE]...", "Paths or URLs to check for access, from here and from workers."),
    # plan and products
    "spmv.precision": option("Precision of x and y; default that of x and the values.", "float64|float32"),
    # iterations
    "output": option(
        "Output for all ranks: .zarr, .parquet, .csv or - for stdout; repeatable.", "RANKS", "--output", "-o"
    ),
    "pagerank_batch.top": option(
        "Number of highest ranks to show per vector; default 1, with --json 10.", None, "--top", "-k", min=1
    ),
    "top": option("Number of highest ranks to show.", None, "--top", "-k", min=1),
    "tol": option("Tolerance: stop when the change is below; default 1e-6."),
    "norm": option("Norm of the change; fixed makes --max-iter steps.", "l1|l1_per_node|linf|relative|fixed"),
    "max_iter": option("Maximum number of iterations."),
    "nstart": option(
        "Start vector: `alice`, `alice=2,bob=1`, or a file (saved ranks, .csv, .parquet, text, .npy).", "FILE|IDS"
    ),
    "weight": option("Use the stored values, or count each entry as 1."),
    "normalized": option("Divide the result by its norm.", None, "--normalized/--not-normalized"),
    "hubs": option("Output for hubs, as --output; repeatable.", "HUBS"),
    "katz.alpha": option("Attenuation, below 1 / (the largest eigenvalue); auto chooses it.", "NUMBER|auto"),
    "katz.beta": option("Constant term: a number for all vertices, or a vector.", "NUMBER|FILE|IDS"),
    "lazy": option("Probability of staying in a state; periodic chains need one above 0."),
    # PageRank
    "pagerank.tol": option("Tolerance: stop when the change is below; default 1e-6, with --stop topk 1e-10."),
    "personalization": option(
        "Targets of random jumps: `alice`, `alice=2,bob=1`, or a file (.csv, .parquet, text, .npy).", "FILE|IDS"
    ),
    "dangling": option("Targets of vertices without out-edges; default as jumps.", "uniform|drop|error|FILE|IDS"),
    "pagerank.nstart": option("Start ranks: saved ones (.zarr, .parquet, .csv), or as --personalization.", "FILE|IDS"),
    "out_weight": option("Total weight of the out-edges per vertex; default the stored sum.", "FILE|IDS"),
    "reverse": option("Rank the reversed graph; the store must hold the transpose."),
    "precision": option("Arithmetic of sums; exact is bit-identical everywhere.", "exact|float64|float32"),
    "checkpoint": option("Folder or URL for periodic checkpoints of the ranks, for --resume.", "PLACE"),
    "checkpoint_every": option("Interval between checkpoints; default 30.", "SECONDS"),
    "scaler": option("Scale ranks to scores, as Neo4j GDS does.", "none|minmax|max|mean|log|stdscore|l1norm|l2norm"),
    "pagerank_batch.personalization": option(
        "Targets of jumps: .csv or .parquet with vector, vertex and optional weight; default all.", "FILE"
    ),
    "pagerank_batch.output": option(
        "Output for ranks: .zarr, .parquet or - for CSV on stdout; repeatable.", "RANKS", "--output", "-o"
    ),
    "pagerank_batch.alpha": option("Damping factor; default 0.85; repeatable, one per vector."),
    # results
    "bins": option("Number of bins of the histogram.", min=1),
    "report.output": option("Path of the page.", "FILE.html", "--output", "-o"),
}
"""Options of several commands, and options with long help, by the name of their parameter.

The key `COMMAND.NAME` takes precedence over `NAME`."""


@dataclass(frozen=True)
class StoringOptions:
    """Storage options, as arguments of `mgspmv.ingest` and `generate`."""

    kind: Annotated[str | None, option("Meaning of rows; default by source.", "graph|matrix|stochastic")] = None
    duplicates: str | None = None
    self_loops: str = "keep"
    symmetrize: bool = False
    transpose: Annotated[bool, option("Store the transpose too.")] = False
    dtype: Annotated[str | None, option("Type of stored values; default by source.", "int64|float32|float64")] = None
    order: str = "none"
    overwrite: bool = False


@dataclass(frozen=True)
class TextOptions:
    """Options for reading edges from files."""

    format: str | None = None
    delimiter: str | None = None
    header: bool | None = None
    skip_rows: Annotated[int | None, option("Text: number of lines to skip in each file.", "N", min=0)] = None
    comment: str | None = None
    columns: str | None = None
    weights: Annotated[bool | None, option("Require weights, or store no values; default detected.")] = None
    ids: Annotated[str | None, option("Text: type of ids; default by the first edge.", "auto|int|string")] = None

    @property
    def options(self) -> dict[str, Any]:
        """Given options, as arguments of `mgspmv.ingest` and `update`."""
        names: list[Any] | None = split_fields(self.columns, ",") if self.columns else None
        if names and all(name.isdecimal() for name in names):
            names = list(map(int, names))
        return given(vars(self) | {"columns": names})


@dataclass(frozen=True)
class ReadingOptions(TextOptions):
    """Options for reading files, and for the set of vertices."""

    n_vertices: Annotated[int | None, option("Edges: number of vertices, for ids 0..N-1.", "N")] = None
    vertices: Annotated[str | None, option("Edges: file of all vertex ids, one per line; - for stdin.", "FILE")] = None
    n_cols: Annotated[int | None, option("Number of columns of plain CSR arrays without a shape.", "N")] = None
    allow_hypersparse: bool | None = None


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


# --- help ------------------------------------------------------------------------------------------------------------


PANELS = {
    "Graph": "alpha beta lazy personalization dangling nstart weight normalized y insert delete method scale "
    "edge_factor generate.n_vertices n_edges generate.weights nx ny nz seed kind duplicates symmetrize transpose "
    "n_vertices vertices edges without_edges min_weight max_weight",
    "Source": "format delimiter header columns weights ids",
    "Stopping": "stop tol max_iter",
    "Output": "output hubs overwrite top keep_top keep bins export.format export.vertices checkpoint resume dry_run",
    "Where": "name backend threads memory device_memory cluster scheduler workers start.tls status.tls cancel.tls host "
    "port dashboard_port dashboard_origin foreground warm wait",
    "Advanced": "",
    "General": f"version {' '.join(COMMON)} help help_all",
}
"""Names of options by the panel of help that shows them, `Advanced` for all others, which only `--help-all` shows;
`COMMAND.NAME` takes precedence over `NAME`."""

_PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names.split()}
_PLACES = {name: place for place, name in enumerate(_PANEL_OF)}
_OF_ALL = (*COMMON, "help", "help_all")
"""Names of the options of all commands and groups."""
_NAMES_WIDTH = 26


def find_panel(command: str, name: str) -> str:
    """Return the panel of an option."""
    return _PANEL_OF.get(f"{command}.{name}") or _PANEL_OF.get(name, "Advanced")


class PanelledHelp:
    """Base of commands and groups that writes their help; the other base is one of Typer."""

    _help_all: Any = None

    def get_params(self, ctx: Any) -> list[Any]:
        """Return arguments and options, with `--help-all` after `--help`."""
        *params, shown = super().get_params(ctx)  # type: ignore[misc]
        if self._help_all is None:
            self._help_all = copy(shown)
            vars(self._help_all).update(name="help_all", opts=["--help-all"], callback=_show_all)
            self._help_all.help = "Show all options and exit."
        return [*params, shown, self._help_all]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write usage, description, arguments, commands and options by panel, and the example.

        Without `--help-all`, options of the panel `Advanced` are left out, and those of all commands in all but groups.
        """
        own: Any = self
        formatter.write_text(f"Usage: {write_usage(own, ctx)}")
        formatter.write_paragraph()
        formatter.write_text(own.help)
        left_out = () if _IS_ALL in ctx.meta else ("Advanced",) if is_group(own) else ("Advanced", "General")
        panels = _list_panels(own, ctx)
        for panel in (panel for panel in panels if panel not in left_out):
            with formatter.section(panel):
                formatter.write_dl(panels[panel], col_max=_NAMES_WIDTH)
        is_short = not panels.keys().isdisjoint(left_out)
        also = "" if is_group(own) else ", also --json and --quiet"
        for text in (own.epilog, *([f"All options{also}: `{ctx.command_path} --help-all`"] if is_short else [])):
            formatter.write_paragraph()
            formatter.write_text(text)


_IS_ALL = f"{__name__}.all"
"""Key of a context that is set for the help with all options."""


def _show_all(ctx: Any, _: Any, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        ctx.meta[_IS_ALL] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


def is_group(command: Any) -> bool:
    """Return whether a command of click has commands."""
    return hasattr(command, "commands")


def list_parameters(command: Any, ctx: Any) -> list[Any]:
    """List the arguments and options of a group, or those of a command that not all commands have."""
    own = command.get_params(ctx)
    return own if is_group(command) else [parameter for parameter in own if parameter.name not in _OF_ALL]


def write_usage(command: Any, ctx: Any) -> str:
    """Return the synopsis of a command, such as `mgspmv info [OPTIONS] STORE`."""
    arguments = [name_argument(own) for own in command.params if own.param_type_name == "argument"]
    return " ".join([ctx.command_path, "[OPTIONS]", *(["COMMAND"] if is_group(command) else arguments)])


def name_argument(argument: Any) -> str:
    """Return the name of a positional argument as in the synopsis."""
    name = (argument.metavar or argument.name.upper()).strip("[].")
    shown = name if argument.nargs == 1 else f"{name}..."
    return shown if argument.required else f"[{shown}]"


def _list_panels(command: Any, ctx: Any) -> dict[str, list[tuple[str, str]]]:
    """List names and descriptions by panel: of arguments, then of commands, then of options."""
    panels: dict[str, list[tuple[str, str]]] = {"Arguments": []}
    for name, inner in getattr(command, "commands", {}).items():
        panels.setdefault(inner.rich_help_panel or "Commands", []).append((name, inner.help.partition("\n\n")[0]))
    panels |= {panel: [] for panel in PANELS}

    def find_place(own: Any) -> int:  # options of `Advanced` stay in the order of the command
        return _PLACES.get(f"{command.name}.{own.name}", _PLACES.get(own.name, 0))

    for parameter in sorted(command.get_params(ctx), key=find_place):
        record = parameter.get_help_record(ctx)
        if record is not None and parameter.param_type_name == "argument":
            panels["Arguments"].append((name_argument(parameter), record[1]))
        elif record is not None:
            panels[find_panel(command.name, parameter.name)].append(record)
    return {panel: rows for panel, rows in panels.items() if rows}
