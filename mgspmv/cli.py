"""The command line: each command calls `mgspmv.api` and answers with tables for people or one JSON object for scripts.

Answers go to stdout, progress and errors to stderr. Heavy libraries are imported inside the commands, so that
`mgspmv --help` does not wait for them.
"""

from __future__ import annotations

import json as json_format
import logging
import os
import sys
import time
import tomllib
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial, wraps
from inspect import signature
from itertools import pairwise
from math import isfinite, isnan
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, cast, get_args

import typer
from typer.core import TyperGroup

from mgspmv.errors import (
    ConvergenceError,
    MgspmvError,
    OptionError,
    ProgressError,
    SourceError,
    StepsFailedError,
    StoreDamagedError,
    StoreExistsError,
)

if TYPE_CHECKING:
    from mgspmv.batch_results import BatchSolution
    from mgspmv.model import Followed, MatrixInfo, Stability
    from mgspmv.monitor.progress import Monitor
    from mgspmv.partition import Plan
    from mgspmv.pipeline import PipelinePlan
    from mgspmv.report.record import RunRecord, StepOutcome
    from mgspmv.results import Solution
    from mgspmv.scores import Summary

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

SHOWN_VECTORS = 20
"""Vectors of a batch that are shown to people."""

SHOWN_RANKS = 10
"""Of the highest of a pipeline's only run."""

PIPED_WIDTH = 1000
"""Columns of a table that no terminal limits, so that nothing is cut."""

# Newer versions of Typer hold a copy of click, older ones use click itself: take the class from its public subclass.
_UsageError: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")


@dataclass(frozen=True)
class Answer:
    """What a command found."""

    payload: dict[str, Any]
    """JSON values, for scripts."""
    parts: Sequence[Any]
    """Strings and rich tables, for people."""
    error: MgspmvError | None = None
    """What is wrong although there is an answer; it decides the exit code."""
    lines: Iterator[bytes] | None = None
    """What stdout gets in place of `parts`, which stderr gets then; in UTF-8, many lines at a time."""


class Group(TyperGroup):
    """Runs a command, prints its `Answer`, and turns errors into messages and exit codes."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run the command line `args` and exit."""
        args = sys.argv[1:] if args is None else list(args)
        as_json = "--json" in args and args[0] != "bench"  # there it names a file
        try:
            outcome = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except _UsageError as error:
            error.show()
            code = _give({"error": {"type": "UsageError", "message": error.format_message()}}, (), as_json)
            code = code or error.exit_code
        except MgspmvError as error:
            _print_error(error)
            code = _give(_describe_error(error), (), as_json) or error.exit_code
        except typer.Abort:
            code = EXIT_INTERRUPTED
        else:
            code = _finish(outcome, as_json) if isinstance(outcome, Answer) else outcome or 0
        if code == EXIT_INTERRUPTED:
            print("interrupted", file=sys.stderr)
        sys.exit(code)


app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Sparse matrix-vector products and PageRank on matrices too large for one GPU.",
    epilog="Exit codes: 0 done, 1 unexpected error, 2 wrong usage, 3 malformed source, 4 unusable store or file, "
    "5 not converged, 6 does not fit into memory, 7 unusable or failed cluster, 130 interrupted.",
)


def main() -> None:
    """Entry point of the program `mgspmv`."""
    app(prog_name="mgspmv")


# --- options that several commands share -----------------------------------------------------------------------------

StorePath = Annotated[str, typer.Argument(metavar="STORE", help="Matrix store: local path or URL.")]
Json = Annotated[bool, typer.Option("--json", help="Answer with one JSON object.")]
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
Resume = Annotated[
    bool, typer.Option("--resume", help="Keep what is read, and go on with what an ingest kept that was broken off.")
]
Output = Annotated[
    list[str] | None,
    typer.Option("--output", "-o", metavar="RANKS", help="Where all ranks go: .zarr, .parquet or .csv; repeatable."),
]
Tol = Annotated[float | None, typer.Option(help="Stop when the change is less; default 1e-6.")]
TolModeName = Annotated[
    str,
    typer.Option(
        metavar="l1|l1_per_node|linf|relative|fixed", help="Norm of the change; fixed makes max-iter iterations."
    ),
]
MaxIter = Annotated[int, typer.Option(help="Most iterations.")]
Start = Annotated[str | None, typer.Option(metavar="FILE", help="Ranks to start from: .npy, or lines `id weight`.")]
EntriesAsOne = Annotated[bool, typer.Option("--ignore-weights", help="Take each stored entry as 1.")]
ProductPrecision = Annotated[str, typer.Option(metavar="float64|float32", help="Of vectors and values.")]
Normalized = Annotated[bool, typer.Option("--normalized/--not-normalized", help="Divide by the norm at the end.")]
Top = Annotated[int, typer.Option(min=1, help="How many of the highest ranks to show.")]
Kernel = Annotated[str, typer.Option(help="Name of a kernel, or auto.")]
Backend = Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Where to compute; auto is cuda with a GPU.")]

ClusterKind = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="local|cuda",
        help="Start workers on this machine for this one run; cuda: one for each GPU.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="With --cluster: processes; default as Dask chooses, or one for each GPU."),
]
Scheduler = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Use a running Dask cluster, as tcp://10.0.0.1:8786.")
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
        help="Default by name and first line, or by what a Zarr group has.",
    ),
]
NVertices = Annotated[int | None, typer.Option("--n-vertices", metavar="N", help="Edge list: ids are 0..N-1.")]
Vertices = Annotated[str | None, typer.Option(metavar="FILE", help="Edge list: file with all ids.")]
Delimiter = Annotated[str | None, typer.Option(metavar="CHAR", help="Edge list: between columns.")]
HasWeights = Annotated[
    bool | None, typer.Option("--weights/--no-weights", help="Edge list: the third column is weights.")
]
Ids = Annotated[str | None, typer.Option(metavar="auto|int|string", help="Edge list: what ids are.")]
ExtraColumns = Annotated[str | None, typer.Option(metavar="error|ignore", help="Edge list: columns beyond the third.")]
Columns = Annotated[
    str | None,
    typer.Option(metavar="NAME,NAME[,NAME]", help="Parquet: of sources, targets and weights; default the first."),
]
NCols = Annotated[int | None, typer.Option("--n-cols", metavar="N", help="Plain CSR arrays without a shape: columns.")]


# --- clusters --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where a command computes; in this process when there is neither cluster nor scheduler."""

    cluster: str | None
    """What is started for the command: `local`, or `cuda` for a worker on each GPU."""
    workers: int | None
    """How many of those are started; None for as many as Dask chooses."""
    threads: int | None
    """Of each worker."""
    scheduler: str | None
    """Address of the cluster that runs already."""
    timeout: float
    """Seconds that a worker may be silent."""

    def __post_init__(self) -> None:
        if self.cluster is not None and self.scheduler is not None:
            raise OptionError("--cluster starts a cluster and --scheduler uses one that runs; give one of them")
        if self.cluster in ("slurm", "ssh"):
            raise OptionError(
                f"--cluster {self.cluster} is not there yet; start the workers yourself, with Dask's own tools, and "
                "give the address of their scheduler with --scheduler"
            )
        if self.cluster not in ("local", "cuda", None):
            raise OptionError(
                f"--cluster must be local or cuda, not {self.cluster!r}; for a cluster that runs use --scheduler"
            )
        if self.workers is not None and self.cluster is None:
            raise OptionError("--workers says how many --cluster starts; give both or neither")
        if not self.timeout > 0:
            raise OptionError(f"--timeout must be a positive number of seconds, not {self.timeout:g}")

    def choose_backend(self, backend: str) -> str:
        """What `auto` means on workers that are started: hosts for `local`, and a GPU for each of `cuda`."""
        started = {"local": "cpu", "cuda": "cuda"}
        return started.get(self.cluster or "", backend) if backend == "auto" else backend

    @property
    def is_embedded(self) -> bool:
        """Whether this process computes."""
        return self.cluster is None and self.scheduler is None


def _check_drive(drive: str, place: Place) -> None:
    """Refuse a drive that the place does not have before anything is started."""
    from mgspmv.model import check_choice

    check_choice("--drive", drive, ("auto", "embedded", "scheduler", "superstep"))
    if drive == "embedded" and not place.is_embedded:
        raise OptionError("--drive embedded computes in this process; leave out --cluster and --scheduler")
    if drive in ("scheduler", "superstep") and place.is_embedded:
        raise OptionError(f"--drive {drive} needs a cluster; add --cluster local or --scheduler ADDRESS")


@contextmanager
def _quieten_dask() -> Iterator[None]:
    """Keep its loggers off stderr and make warnings short; what ends a run is raised, and printed once."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        print(f"warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        disabled = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(disabled)


@contextmanager
def _open_client(place: Place, progress: Monitor) -> Iterator[Any]:
    """The client of a cluster, or None where the work is done in this process; what was started ends with the context.

    Raises
    ------
    SchedulerNotFoundError : nothing answers at that address
    """
    if place.is_embedded:
        yield None
        return
    progress.phase("connecting" if place.cluster is None else "starting workers")
    from mgspmv.distribute.cluster import Cluster
    from mgspmv.distribute.connect import start_cuda, start_local

    with ExitStack() as stack:
        stack.enter_context(_quieten_dask())
        if place.cluster is None:
            reached: Any = place.scheduler
        else:
            start = start_cuda if place.cluster == "cuda" else start_local
            reached = stack.enter_context(start(place.workers, place.threads))
        cluster = Cluster(reached, place.timeout)
        stack.callback(cluster.close)
        if cluster.dashboard_link:
            print(f"dashboard: {cluster.dashboard_link}", file=sys.stderr)
        yield cluster.client


# --- commands --------------------------------------------------------------------------------------------------------


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"mgspmv {version('mgspmv')}")
        raise typer.Exit


@app.callback()
def _accept_version(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def ingest(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="Matrix Market, edge list, Parquet, .npz, or a Zarr group of anndata, binsparse or CSR; path or URL. "
            "Edge lists and Parquet: also several, a folder, or a pattern such as 'edges/*.csv.gz'.",
        ),
    ],
    store: StorePath,
    kind: Kind = None,
    duplicates: Duplicates = None,
    self_loops: SelfLoops = "keep",
    symmetrize: Symmetrize = False,
    ignore_weights: IgnoreWeights = False,
    transpose: Transpose = False,
    dtype: Dtype = None,
    order: Order = "none",
    overwrite: Overwrite = False,
    format: Format = None,
    n_vertices: NVertices = None,
    vertices: Vertices = None,
    delimiter: Delimiter = None,
    weights: HasWeights = None,
    ids: Ids = None,
    extra_columns: ExtraColumns = None,
    columns: Columns = None,
    n_cols: NCols = None,
    memory: Memory = None,
    threads: Threads = None,
    scratch: Scratch = None,
    resume: Resume = False,
    cluster: ClusterKind = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    timeout: Timeout = 30.0,
    json: Json = False,
) -> Answer:
    """Read a matrix or graph, of one file or several, into a store."""
    from mgspmv import api
    from mgspmv.monitor.progress import open_progress

    options: dict[str, Any] = {"kind": kind, "duplicates": duplicates, "self_loops": self_loops, "dtype": dtype}
    options |= {"symmetrize": symmetrize, "ignore_weights": ignore_weights, "transpose": transpose}
    options |= {"order": order, "overwrite": overwrite, "format": format}
    options |= {"memory": memory, "threads": threads, "scratch": scratch}
    edge_list: dict[str, Any] = {
        "n_vertices": n_vertices,
        "vertices": vertices,
        "delimiter": delimiter,
        "weights": weights,
    }
    edge_list |= {"ids": ids, "extra_columns": extra_columns, "columns": columns.split(",") if columns else None}
    edge_list |= {"n_cols": n_cols}
    place = Place(cluster, workers, threads, scheduler, timeout)
    began = time.perf_counter()
    with _explain_resuming(resume), open_progress() as progress, _open_client(place, progress) as client:
        info = api.ingest(
            source[0] if len(source) == 1 else source,
            store,
            **options,
            resume=resume,
            client=client,
            timeout=timeout,
            on_progress=progress.on_progress,
            **_given(edge_list),
        )
    return _answer_stored(info, time.perf_counter() - began)


@contextmanager
def _explain_resuming(resume: bool) -> Iterator[None]:
    """Say how to go on with an ingest that keeps its progress, where it is not the source or the command that fails."""
    try:
        yield
    except (OptionError, ProgressError, SourceError, StoreExistsError):
        raise
    except BaseException:
        if resume:
            print("run the same command again to go on where it was", file=sys.stderr)
        raise


@app.command()
def update(
    store: StorePath,
    insert: Annotated[str | None, typer.Option(metavar="FILE", help="Entries to insert, after the deletions.")] = None,
    delete: Annotated[str | None, typer.Option(metavar="FILE", help="Entries to delete; weights do not count.")] = None,
    missing: Missing = "ignore",
    self_loops: SelfLoops = "keep",
    symmetrize: Symmetrize = False,
    ignore_weights: IgnoreWeights = False,
    keep: Keep = None,
    format: Format = None,
    n_vertices: NVertices = None,
    vertices: Vertices = None,
    delimiter: Delimiter = None,
    weights: HasWeights = None,
    ids: Ids = None,
    extra_columns: ExtraColumns = None,
    columns: Columns = None,
    n_cols: NCols = None,
    memory: Memory = None,
    threads: Threads = None,
    scratch: Scratch = None,
    json: Json = False,
) -> Answer:
    """Make a new version of a store, without some entries and with others; who reads the old one goes on."""
    from mgspmv import api
    from mgspmv.monitor.progress import open_progress

    options: dict[str, Any] = {"missing": missing, "self_loops": self_loops, "symmetrize": symmetrize}
    options |= {"ignore_weights": ignore_weights, "keep": keep, "format": format}
    options |= {"memory": memory, "threads": threads, "scratch": scratch}
    edge_list: dict[str, Any] = {"n_vertices": n_vertices, "vertices": vertices, "delimiter": delimiter}
    edge_list |= {
        "weights": weights,
        "ids": ids,
        "extra_columns": extra_columns,
        "columns": columns.split(",") if columns else None,
        "n_cols": n_cols,
    }
    began = time.perf_counter()
    with open_progress() as progress:
        info = api.update(
            store, insert=insert, delete=delete, **options, on_progress=progress.on_progress, **_given(edge_list)
        )
    answer = _answer_stored(info, time.perf_counter() - began)
    made = info.provenance["updates"][-1]
    changes = f"{made['inserted']:,} entries inserted, {made['deleted']:,} deleted, {made['missing']:,} were not there"
    return replace(answer, parts=[*answer.parts, changes])


@app.command()
def versions(store: StorePath, keep: Keep = None, json: Json = False) -> Answer:
    """List the versions of a store; with --keep, drop all but the newest."""
    from mgspmv import api

    dropped = [] if keep is None else api.drop_versions(store, keep=keep)
    there = api.list_versions(store)
    fields = ("number", "version", "created", "nnz", "shape", "nbytes", "digest")
    listed = [{name: getattr(info, name) for name in fields} | {"current": info is there[-1]} for info in there]
    rows = [
        (
            info.number,
            info.version,
            info.created or "",
            f"{info.shape[0]:,} x {info.shape[1]:,}",
            f"{info.nnz:,}",
            _format_bytes(info.nbytes),
            "current" if info is there[-1] else "",
        )
        for info in there
    ]
    table = _tabulate(("", "version", "created", "rows x columns", "entries", "size", ""), rows)
    return Answer({"versions": listed, "dropped": dropped}, [table, *(f"dropped {name}" for name in dropped)])


@app.command()
def generate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="rmat, uniform, stencil2d, stencil3d or banded.")],
    store: StorePath,
    scale: Annotated[int | None, typer.Option(help="rmat: log2 of the vertices.")] = None,
    edge_factor: Annotated[int | None, typer.Option(help="rmat: edges a vertex, default 16.")] = None,
    a: Annotated[float | None, typer.Option("--a", help="rmat: upper left, default 0.57.")] = None,
    b: Annotated[float | None, typer.Option("--b", help="rmat: upper right, default 0.19.")] = None,
    c: Annotated[float | None, typer.Option("--c", help="rmat: lower left, default 0.19.")] = None,
    scramble: Annotated[
        bool | None, typer.Option("--scramble/--no-scramble", help="rmat: spread vertices of high degree.")
    ] = None,
    n_vertices: Annotated[int | None, typer.Option(metavar="N", help="uniform: vertices.")] = None,
    n_edges: Annotated[int | None, typer.Option(metavar="N", help="uniform: edges.")] = None,
    weights: Annotated[
        bool | None, typer.Option("--weights/--no-weights", help="rmat, uniform: values in (0, 1].")
    ] = None,
    nx: Annotated[int | None, typer.Option("--nx", help="stencils: cells along x.")] = None,
    ny: Annotated[int | None, typer.Option("--ny", help="stencils: cells along y.")] = None,
    nz: Annotated[int | None, typer.Option("--nz", help="stencil3d: cells along z.")] = None,
    points: Annotated[int | None, typer.Option(help="stencils: 5 or 9; 7 or 27.")] = None,
    n: Annotated[int | None, typer.Option("--n", help="banded: rows.")] = None,
    bandwidth: Annotated[int | None, typer.Option(help="banded: entries on each side of the diagonal.")] = None,
    pattern: Annotated[
        bool | None, typer.Option("--pattern/--no-pattern", help="stencils, banded: without values.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="rmat, uniform, banded: default 1.")] = None,
    kind: Kind = None,
    duplicates: Duplicates = None,
    self_loops: SelfLoops = "keep",
    symmetrize: Symmetrize = False,
    ignore_weights: IgnoreWeights = False,
    transpose: Transpose = False,
    dtype: Dtype = None,
    order: Order = "none",
    cluster: ClusterKind = None,
    workers: Workers = None,
    threads: Threads = None,
    scheduler: Scheduler = None,
    backend: Backend = "auto",
    timeout: Timeout = 30.0,
    overwrite: Overwrite = False,
    json: Json = False,
) -> Answer:
    """Make a matrix or graph by rule and store it."""
    from mgspmv import api
    from mgspmv.monitor.progress import open_progress

    options: dict[str, Any] = {"kind": kind, "duplicates": duplicates, "self_loops": self_loops, "dtype": dtype}
    options |= {
        "symmetrize": symmetrize,
        "ignore_weights": ignore_weights,
        "transpose": transpose,
        "order": order,
        "overwrite": overwrite,
    }
    parameters = {"scale": scale, "edge_factor": edge_factor, "a": a, "b": b, "c": c, "scramble": scramble}
    parameters |= {"n_vertices": n_vertices, "n_edges": n_edges, "weights": weights, "nx": nx, "ny": ny, "nz": nz}
    parameters |= {"points": points, "n": n, "bandwidth": bandwidth, "pattern": pattern, "seed": seed}
    place = Place(cluster, workers, threads, scheduler, timeout)
    options |= {"backend": place.choose_backend(backend), "threads": threads, "timeout": timeout}
    began = time.perf_counter()
    with open_progress() as progress, _open_client(place, progress) as client:
        info = api.generate(
            model,
            store,
            **options,
            client=client,
            on_progress=progress.on_progress,
            **_given(parameters),
        )
    return _answer_stored(info, time.perf_counter() - began)


@app.command()
def reorder(
    store: StorePath,
    target: Annotated[
        str | None, typer.Argument(metavar="[TARGET]", help="Where the renumbered matrix goes; default in place.")
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            metavar="rcm|degree|dealt|none",
            help="Order of rows and columns: narrow; longest rows first; those dealt to 256 parts; the source's.",
        ),
    ] = "rcm",
    overwrite: Overwrite = False,
    memory: Memory = None,
    threads: Threads = None,
    scratch: Scratch = None,
    json: Json = False,
) -> Answer:
    """Renumber rows and columns for locality; results stay in the source's numbers."""
    from mgspmv import api
    from mgspmv.monitor.progress import open_progress

    options: dict[str, Any] = {"method": method, "overwrite": overwrite}
    options |= {"memory": memory, "threads": threads, "scratch": scratch}
    began = time.perf_counter()
    with open_progress() as progress:
        info = api.reorder(store, target, **options, on_progress=progress.on_progress)
    return _answer_stored(info, time.perf_counter() - began)


@app.command()
def subgraph(
    store: StorePath,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Where the part goes: local path or URL.")],
    vertices: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Of a graph: ids that stay, one a line, or a .npy file of ids or of a mask."),
    ] = None,
    min_weight: Annotated[float | None, typer.Option(metavar="W", help="Least weight that stays.")] = None,
    max_weight: Annotated[float | None, typer.Option(metavar="W", help="Greatest weight that stays.")] = None,
    edges: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Edges that stay: an edge list or table, or a matrix as a mask, as .npz."),
    ] = None,
    without_edges: Annotated[str | None, typer.Option(metavar="FILE", help="Edges that go, likewise.")] = None,
    symmetrize: Annotated[bool, typer.Option("--symmetrize", help="Of both, (j, i) is meant too with (i, j).")] = False,
    overwrite: Overwrite = False,
    memory: Memory = None,
    threads: Threads = None,
    scratch: Scratch = None,
    json: Json = False,
) -> Answer:
    """Write a part of a store as a store of its own: what is between some vertices, or edges that are picked."""
    from mgspmv import api
    from mgspmv.ingest.edge_mask import read_edges
    from mgspmv.ingest.subgraph import read_selection
    from mgspmv.monitor.progress import open_progress
    from mgspmv.store import open_store

    options: dict[str, Any] = {"min_weight": min_weight, "max_weight": max_weight, "overwrite": overwrite}
    options |= {"memory": memory, "threads": threads, "scratch": scratch, "symmetrize": symmetrize}
    began, of = time.perf_counter(), open_store(store).info
    if vertices is not None:
        options["vertices"] = read_selection(vertices, string_ids=of.vertex_ids == "string")
    for name, file in _given({"edges": edges, "without_edges": without_edges}).items():
        options[name] = read_edges(file, of)
    with open_progress() as progress:
        info = api.subgraph(store, target, **options, on_progress=progress.on_progress)
    answer = _answer_stored(info, time.perf_counter() - began)
    source = info.provenance["subgraphs"][-1]["source"]
    part = f"{info.shape[0]:,} of {source['shape'][0]:,} rows, {info.nnz:,} of {source['nnz']:,} entries"
    return replace(answer, parts=[*answer.parts, part])


@app.command()
def export(
    store: StorePath,
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help=".mtx[.gz|.zst], .parquet, .npz or .zarr; path or URL.")
    ],
    format: Annotated[
        str | None,
        typer.Option(
            metavar="matrix-market|parquet|npz|anndata|binsparse", help="Default by the suffix, but for .zarr."
        ),
    ] = None,
    vertices: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the ids too, one a line, for `ingest --vertices`.")
    ] = None,
    memory: Memory = None,
    threads: Threads = None,
    scratch: Scratch = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> Answer:
    """Write a stored matrix as its source had it, for other programs."""
    from mgspmv import api
    from mgspmv.monitor.progress import open_progress

    options: dict[str, Any] = {"format": format, "vertices": vertices, "overwrite": overwrite}
    options |= {"memory": memory, "threads": threads, "scratch": scratch}
    began = time.perf_counter()
    with open_progress() as progress:
        info = api.export(store, target, **options, on_progress=progress.on_progress)
    elapsed_s = time.perf_counter() - began
    payload = {"target": target, "vertices": vertices, "store": asdict(info), "seconds": elapsed_s}
    return Answer(payload, [f"{target}: {_describe_matrix(info)}, written in {_format_seconds(elapsed_s)}"])


@app.command()
def info(store: StorePath, json: Json = False) -> Answer:
    """Say what a store holds; nothing of the matrix is loaded."""
    from mgspmv import api

    with api.open_matrix(store) as matrix:
        return Answer(asdict(matrix.info), [_tabulate_info(matrix.info)])


@app.command()
def plan(
    store: StorePath,
    workers: Annotated[int | None, typer.Option(help="Number of workers; default 1, or those of the cluster.")] = None,
    device_memory: DeviceMemory = None,
    host_memory: HostMemory = None,
    precision: Annotated[str, typer.Option(metavar="exact|float64|float32")] = "exact",
    stop: Annotated[str, typer.Option(metavar="change|topk:K", help="Of PageRank; topk takes memory too.")] = "change",
    backend: Backend = "auto",
    cluster: ClusterKind = None,
    scheduler: Scheduler = None,
    timeout: Timeout = 30.0,
    json: Json = False,
) -> Answer:
    """Say what a run takes in memory, traffic and, where it can be measured, seconds, before anything is loaded."""
    from mgspmv import api
    from mgspmv.monitor.progress import open_progress

    place = Place(cluster, workers if cluster else None, None, scheduler, timeout)
    options: dict[str, Any] = {"device_memory": device_memory, "host_memory": host_memory, "precision": precision}
    options |= {"backend": place.choose_backend(backend), "timeout": timeout, "stop": stop}
    with api.open_matrix(store) as matrix, open_progress() as progress, _open_client(place, progress) as client:
        plan = matrix.plan(1 if workers is None else workers, **options, client=client)
    titles, rows = _list_workers(plan)
    totals = {"operation": plan.operation, "precision": plan.precision}
    if not any(w.has_device for w in plan.workers):
        totals["memory of a worker"] = _format_bytes(plan.memory_bytes)
    if watch_bytes := max(w.watch_bytes for w in plan.workers):
        totals[f"host memory of a worker for --stop {stop}"] = _format_bytes(watch_bytes)
    totals |= {"received in all, per iteration": _format_bytes(plan.exchange_bytes)}
    if plan.seconds_per_iteration is not None:
        totals["predicted time of an iteration"] = _format_seconds(plan.seconds_per_iteration)
    return Answer(plan.to_dict(), [_tabulate(titles, rows), _tabulate_fields(totals)])


def _list_workers(plan: Plan) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Titles and cells of what each worker will hold; on a device, where, and what comes by."""
    titles: tuple[str, ...] = ("worker", "rows", "entries")
    own = [(k, f"{w.start:,} .. {w.stop:,}", f"{w.nnz:,}") for k, w in enumerate(plan.workers)]
    if not any(w.has_device for w in plan.workers):
        titles += ("memory", "received per iteration")
        memory = [(_format_bytes(w.memory_bytes), _format_bytes(w.exchange_bytes)) for w in plan.workers]
        return titles, [(*a, *b) for a, b in zip(own, memory, strict=True)]
    titles += ("held on", "device memory", "host memory", "comes by per iteration", "received per iteration")
    held = [
        (
            w.held,
            _format_bytes(w.device_bytes) if w.has_device else "",
            _format_bytes(w.host_bytes if w.has_device else w.memory_bytes),
            _format_bytes(0 if w.streaming is None else w.streaming.streamed_bytes),
            _format_bytes(w.exchange_bytes),
        )
        for w in plan.workers
    ]
    return titles, [(*a, *b) for a, b in zip(own, held, strict=True)]


@app.command()
def spmv(
    store: StorePath,
    x: Annotated[str, typer.Argument(metavar="X.npy", help="(n_cols,) or (n_cols, k) array.")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="Y.npy", help="Where the product goes.")],
    alpha: Annotated[float, typer.Option(help="Factor of A @ x.")] = 1.0,
    beta: Annotated[float, typer.Option(help="Factor of y.")] = 0.0,
    y: Annotated[str | None, typer.Option("--y", metavar="FILE.npy", help="What beta multiplies.")] = None,
    kernel: Kernel = "auto",
    tune: Annotated[bool, typer.Option("--tune", help="Time kernels on this matrix and keep the choice.")] = False,
    backend: Backend = "auto",
    precision: Annotated[
        str | None, typer.Option(metavar="float64|float32", help="Of x and y; default as they and the values are.")
    ] = None,
    threads: Threads = None,
    cluster: ClusterKind = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    device_memory: DeviceMemory = None,
    host_memory: HostMemory = None,
    timeout: Timeout = 30.0,
    overwrite: Overwrite = False,
    json: Json = False,
) -> Answer:
    """Compute alpha * A @ x + beta * y."""
    import numpy as np

    from mgspmv import api
    from mgspmv.files import write_beside
    from mgspmv.ingest.weights import read_vector
    from mgspmv.monitor.progress import open_progress
    from mgspmv.results import check_target

    place = Place(cluster, workers, threads, scheduler, timeout)
    check_target(output, overwrite=overwrite, suffixes=(".npy",))
    began = time.perf_counter()
    with api.open_matrix(store) as matrix:
        options: dict[str, Any] = {"alpha": alpha, "beta": beta, "kernel": kernel, "precision": precision}
        options |= {"tune": tune, "backend": place.choose_backend(backend), "threads": threads, "timeout": timeout}
        options |= {"device_memory": device_memory, "host_memory": host_memory}
        options["y"] = None if y is None else read_vector(y, max_ndim=2)
        factor = read_vector(x, max_ndim=2)
        with open_progress() as progress, _open_client(place, progress) as client:
            product = api.spmv(matrix, factor, **options, client=client, on_progress=progress.on_progress)
    with write_beside(output) as part, open(part, "wb") as file:
        np.save(file, product)
    elapsed_s = time.perf_counter() - began
    payload = {"output": output, "shape": list(product.shape), "dtype": product.dtype.name, "seconds": elapsed_s}
    return Answer(payload, [f"{output}: {product.dtype.name} of shape {product.shape} in {_format_seconds(elapsed_s)}"])


@app.command()
def pagerank(
    store: StorePath,
    output: Annotated[
        list[str] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="RANKS",
            help="Where all ranks go: .zarr, .parquet, .csv or - for stdout; repeatable.",
        ),
    ] = None,
    alpha: Annotated[float, typer.Option(help="Damping factor.")] = 0.85,
    tol: Annotated[
        float | None, typer.Option(help="Stop when the change is less; default 1e-6, with --stop topk 1e-10.")
    ] = None,
    tol_mode: Annotated[
        str,
        typer.Option(
            metavar="l1|l1_per_node|linf|relative|fixed", help="Norm of the change; fixed makes max-iter iterations."
        ),
    ] = "l1",
    max_iter: MaxIter = 100,
    stop: Annotated[
        str, typer.Option(metavar="change|topk:K", help="Also stop when it is proven which the K highest are.")
    ] = "change",
    method: Annotated[str, typer.Option(metavar="power|extrapolation", help="How iterations go on.")] = "power",
    personalization: Annotated[
        str | None, typer.Option(metavar="FILE", help="Where jumps go: .npy, or lines `id weight`.")
    ] = None,
    dangling: Annotated[
        str | None,
        typer.Option(
            metavar="uniform|drop|error|FILE", help="Where vertices without out-edges lead; default as jumps."
        ),
    ] = None,
    nstart: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Ranks to start from: saved ones (.zarr, .parquet), .npy, or lines `id weight`."
        ),
    ] = None,
    follow_changes: Annotated[
        bool, typer.Option("--follow-changes", help="With --nstart: first pass on what changed, along out-edges.")
    ] = False,
    out_weight: Annotated[
        str | None, typer.Option(metavar="FILE", help="What all out-edges of a vertex weigh; default the stored ones.")
    ] = None,
    ignore_weights: EntriesAsOne = False,
    reverse: Annotated[
        bool, typer.Option("--reverse", help="Rank the reversed graph; the store must hold the transpose.")
    ] = False,
    precision: Annotated[str, typer.Option(metavar="exact|float64|float32", help="How sums are made.")] = "exact",
    kernel: Kernel = "auto",
    backend: Backend = "auto",
    threads: Threads = None,
    cluster: ClusterKind = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    timeout: Timeout = 30.0,
    drive: DriveName = "auto",
    transport: Annotated[
        str, typer.Option(metavar="auto|nccl|peer", help="How slices go from worker to worker in supersteps.")
    ] = "auto",
    device_memory: DeviceMemory = None,
    host_memory: HostMemory = None,
    top: Top = 10,
    scaler: Annotated[
        str,
        typer.Option(
            metavar="none|minmax|max|mean|log|stdscore|l1norm|l2norm", help="Scores in place of ranks, as Neo4j GDS."
        ),
    ] = "none",
    summary: Annotated[bool, typer.Option("--summary", help="Show how the ranks are distributed.")] = False,
    overwrite: Overwrite = False,
    json: Json = False,
) -> Answer:
    """Rank the vertices of a graph. What was reached without converging is written too, and the exit code is 5."""
    from mgspmv import api
    from mgspmv.api.warm import read_start
    from mgspmv.ingest.weights import read_vectors
    from mgspmv.model import check_choice
    from mgspmv.results import check_target, generate_csv
    from mgspmv.scores import Scaler

    place = Place(cluster, workers, threads, scheduler, timeout)
    _check_drive(drive, place)
    check_choice("--transport", transport, ("auto", "nccl", "peer"))
    check_choice("--scaler", scaler, get_args(Scaler))
    targets, prints = [path for path in output or [] if path != "-"], "-" in (output or [])
    if prints and json:
        raise OptionError("-o - writes ranks to standard output, where --json answers; leave one of them out")
    for path in targets:
        check_target(path, overwrite=overwrite)
    options: dict[str, Any] = {"alpha": alpha, "tol": tol, "tol_mode": tol_mode, "max_iter": max_iter}
    options |= {"stop": stop, "method": method, "follow_changes": follow_changes}
    options |= {"weights": not ignore_weights, "precision": precision, "kernel": kernel}
    options |= {"backend": place.choose_backend(backend), "transport": transport}
    options |= {"threads": threads, "drive": drive, "timeout": timeout}
    options |= {"device_memory": device_memory, "host_memory": host_memory}
    with api.open_matrix(store) as opened, opened.T if reverse else opened as matrix:
        strings = matrix.info.vertex_ids == "string"
        vectors = read_vectors(personalization, dangling, out_weight, string_ids=strings)
        vectors |= {} if nstart is None else {"nstart": read_start(nstart, string_ids=strings)}
        rank = partial(api.pagerank, matrix, **options, **vectors)
        solution, failure = _listen(rank, place, _find_change(tol, tol_mode, matrix.shape[0], stop), max_iter)
    solution = solution.scale(cast(Scaler, scaler))
    for path in targets:
        solution.save(path, overwrite=overwrite)
    answer = _answer_ranks(solution, solution.top(top), targets, failure)
    if summary:
        answer = _add_summary(answer, solution.summarize())
    return replace(answer, lines=generate_csv(solution)) if prints else answer


@app.command("pagerank-batch")
def pagerank_batch(
    store: StorePath,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Where jumps go: .csv or .parquet with vector, vertex and, maybe, weight; default all."
        ),
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option("--output", "-o", metavar="RANKS", help="Where ranks go: .zarr or .parquet; repeatable."),
    ] = None,
    alpha: Annotated[
        list[float] | None, typer.Option(help="Damping factor, 0.85 unless given; repeatable, one for each vector.")
    ] = None,
    top: Annotated[int | None, typer.Option(min=1, help="Keep so many of the highest ranks; default all.")] = None,
    tol: Tol = None,
    tol_mode: Annotated[
        str,
        typer.Option(
            metavar="l1|l1_per_node|linf|relative|fixed", help="Norm of the change; fixed makes max-iter iterations."
        ),
    ] = "l1",
    max_iter: MaxIter = 100,
    dangling: Annotated[
        str | None,
        typer.Option(
            metavar="uniform|drop|error|FILE", help="Where vertices without out-edges lead; default as jumps."
        ),
    ] = None,
    out_weight: Annotated[
        str | None, typer.Option(metavar="FILE", help="What all out-edges of a vertex weigh; default the stored ones.")
    ] = None,
    ignore_weights: EntriesAsOne = False,
    reverse: Annotated[
        bool, typer.Option("--reverse", help="Rank the reversed graph; the store must hold the transpose.")
    ] = False,
    precision: Annotated[str, typer.Option(metavar="exact|float64|float32", help="How sums are made.")] = "exact",
    width: Annotated[
        int | None, typer.Option(metavar="2|4|8|16|32|64", help="Vectors in a pass; default what is fast and fits.")
    ] = None,
    backend: Backend = "auto",
    threads: Threads = None,
    cluster: ClusterKind = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    timeout: Timeout = 30.0,
    transport: Annotated[
        str, typer.Option(metavar="auto|nccl|peer", help="How slices go from worker to worker.")
    ] = "auto",
    device_memory: DeviceMemory = None,
    host_memory: HostMemory = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> Answer:
    """Rank the vertices of a graph for many personalisations at once. The exit code is 5 when one did not converge."""
    from mgspmv import api
    from mgspmv.batch_results import BATCH_SUFFIXES
    from mgspmv.ingest.seeds import read_seeds
    from mgspmv.ingest.weights import read_vectors
    from mgspmv.kernels.many import WIDTHS
    from mgspmv.model import check_choice
    from mgspmv.monitor.progress import open_progress
    from mgspmv.results import check_target

    place = Place(cluster, workers, threads, scheduler, timeout)
    check_choice("--transport", transport, ("auto", "nccl", "peer"))
    check_choice("--width", width, (*WIDTHS, None))
    for path in output or []:
        check_target(path, overwrite=overwrite, suffixes=BATCH_SUFFIXES)
    options: dict[str, Any] = {"alpha": alpha or 0.85, "tol": tol, "tol_mode": tol_mode, "max_iter": max_iter}
    options |= {"weights": not ignore_weights, "precision": precision, "width": width, "top": top}
    options |= {"backend": place.choose_backend(backend), "threads": threads, "timeout": timeout}
    options |= {"transport": transport, "device_memory": device_memory, "host_memory": host_memory}
    failure = None
    with api.open_matrix(store) as opened, opened.T if reverse else opened as matrix:
        string_ids = matrix.info.vertex_ids == "string"
        table = None if seeds is None else read_seeds(seeds, string_ids=string_ids)
        options |= read_vectors(None, dangling, out_weight, string_ids=string_ids)
        with open_progress() as progress, _open_client(place, progress) as client:
            try:
                batch = api.pagerank_batch(matrix, table, **options, client=client, on_progress=progress.on_progress)
            except ConvergenceError as error:
                batch, failure = error.solution, error
    for path in output or []:
        batch.save(path, overwrite=overwrite)
    return _answer_batch(batch, output or [], failure)


def _listen(
    compute: Callable[..., Any], place: Place, change: float | None, max_iter: int
) -> tuple[Any, ConvergenceError | None]:
    """Iterate where it is wanted, and show how it gets on; what was reached, and why that is no success.

    Parameters
    ----------
    compute : called with `client`, `on_event` and `on_progress`
    change : at which it stops; None where that is not known
    """
    from mgspmv.monitor.progress import open_progress

    with open_progress(tol=change, max_iter=max_iter) as progress, _open_client(place, progress) as client:
        try:
            return compute(client=client, on_event=progress.on_event, on_progress=progress.on_progress), None
        except ConvergenceError as error:
            return error.solution, error


# --- iterations over products ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Iteration:
    """What the commands that stand on power iteration share: their options, and what they do with them."""

    store: StorePath
    output: Output = None
    tol: Tol = None
    tol_mode: TolModeName = "l1"
    max_iter: MaxIter = 100
    nstart: Start = None
    ignore_weights: EntriesAsOne = False
    precision: ProductPrecision = "float64"
    backend: Backend = "auto"
    threads: Threads = None
    cluster: ClusterKind = None
    workers: Workers = None
    scheduler: Scheduler = None
    drive: DriveName = "auto"
    timeout: Timeout = 30.0
    device_memory: DeviceMemory = None
    host_memory: HostMemory = None
    top: Top = 10
    overwrite: Overwrite = False
    json: Json = False

    def compute(
        self, call: str, files: Sequence[str] = (), targets: Sequence[str] = (), **own: Any
    ) -> tuple[Any, ConvergenceError | None]:
        """Call a function of the API.

        Parameters
        ----------
        files : those of its own options that name files with a number for each vertex
        targets : where more goes than `output`
        """
        from mgspmv import api
        from mgspmv.ingest.weights import read_weights
        from mgspmv.results import check_target

        place = Place(self.cluster, self.workers, self.threads, self.scheduler, self.timeout)
        _check_drive(self.drive, place)
        for path in (*(self.output or []), *targets):
            check_target(path, overwrite=self.overwrite)
        options = {name: getattr(self, name) for name in ("tol", "tol_mode", "max_iter", "precision", "threads")}
        options |= {name: getattr(self, name) for name in ("drive", "timeout", "device_memory", "host_memory")}
        options |= {"weights": not self.ignore_weights, "backend": place.choose_backend(self.backend), **own}
        with api.open_matrix(self.store) as matrix:
            given = {"nstart": self.nstart} | {name: options.pop(name) for name in files}
            strings = matrix.info.vertex_ids == "string"
            vectors = {k: read_weights(path, string_ids=strings) for k, path in given.items() if path is not None}
            find = partial(getattr(api, call), matrix, **options, **vectors)
            return _listen(find, place, _find_change(self.tol, self.tol_mode, matrix.shape[0]), self.max_iter)

    def answer(self, call: str, files: Sequence[str] = (), **own: Any) -> Answer:
        """Call a function that finds one vector, write that, and say what it is."""
        solution, failure = self.compute(call, files, **own)
        return self.write(solution, self.output or [], failure)

    def write(self, solution: Solution, targets: Sequence[str], failure: ConvergenceError | None) -> Answer:
        """Write a vector, and say what it is."""
        for path in targets:
            solution.save(path, overwrite=self.overwrite)
        return _answer_ranks(solution, solution.top(self.top), list(targets), failure)


def _take_iteration(command: Callable[..., Answer]) -> Callable[..., Answer]:
    """A command whose first argument is an `Iteration`, with the options of that in its place."""
    shared, own = signature(Iteration, eval_str=True), signature(command, eval_str=True)

    @wraps(command)
    def run(**options: Any) -> Answer:
        iteration = Iteration(**{name: options.pop(name) for name in shared.parameters})
        return command(iteration, **options)

    parameters = [*shared.parameters.values(), *list(own.parameters.values())[1:]]
    taken: Any = run
    taken.__signature__ = own.replace(parameters=parameters)
    taken.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


@app.command()
@_take_iteration
def hits(
    iteration: Iteration,
    hubs: Annotated[
        list[str] | None, typer.Option("--hubs", metavar="HUBS", help="Where hubs go, as --output; repeatable.")
    ] = None,
    normalized: Normalized = True,
) -> Answer:
    """Find hubs and authorities of a graph; --output is for authorities. The store must hold the transpose."""
    found, failure = iteration.compute("hits", targets=hubs or [], normalized=normalized)
    answers = {
        "hubs": iteration.write(found.hubs, hubs or [], None),
        "authorities": iteration.write(found.authorities, iteration.output or [], None),
    }
    parts = [part for name, answer in answers.items() for part in (name, *answer.parts)]
    return Answer({name: answer.payload for name, answer in answers.items()}, parts, failure)


@app.command()
@_take_iteration
def katz(
    iteration: Iteration,
    alpha: Annotated[float, typer.Option(help="Attenuation, below 1 / (the largest eigenvalue).")] = 0.1,
    beta: Annotated[str, typer.Option(metavar="NUMBER|FILE", help="What each vertex has of itself.")] = "1.0",
    normalized: Normalized = True,
) -> Answer:
    """Find the Katz centrality of the vertices of a graph."""
    number = _parse_number(beta)
    files = () if number is not None else ("beta",)
    return iteration.answer("katz", files, alpha=alpha, beta=beta if files else number, normalized=normalized)


@app.command()
@_take_iteration
def eigenvector(iteration: Iteration) -> Answer:
    """Find the eigenvector centrality of the vertices of a graph."""
    return iteration.answer("eigenvector_centrality")


@app.command()
@_take_iteration
def stationary(
    iteration: Iteration,
    lazy: Annotated[float, typer.Option(help="Probability of staying; periodic chains need one.")] = 0.0,
) -> Answer:
    """Find the stationary vector of a Markov chain, a store of kind stochastic."""
    return iteration.answer("stationary", lazy=lazy)


def _parse_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


@app.command()
def top(
    ranks: Annotated[str, typer.Argument(metavar="RANKS", help="What `mgspmv pagerank -o` wrote: .zarr or .parquet.")],
    k: Annotated[int, typer.Option("-k", "--k", help="How many.")] = 10,
    json: Json = False,
) -> Answer:
    """Show the highest ranks of a file."""
    from mgspmv.results import load_solution

    solution = load_solution(ranks)
    highest = solution.top(k)
    return Answer({"status": solution.status.value, "top": _list_top(highest)}, [_tabulate_top(highest)])


@app.command()
def summary(
    ranks: Annotated[str, typer.Argument(metavar="RANKS", help="What `mgspmv pagerank -o` wrote: .zarr or .parquet.")],
    bins: Annotated[int, typer.Option(min=1, help="Bins of the histogram.")] = 20,
    json: Json = False,
) -> Answer:
    """Show how the ranks of a file are distributed."""
    from mgspmv.results import load_solution

    solution = load_solution(ranks)
    told = {"status": solution.status.value, "scaler": solution.scaler}
    return _add_summary(Answer(told, []), solution.summarize(bins))


@app.command()
def report(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="A pipeline's folder, the record of a run (.json), or ranks (.zarr, .parquet)."
        ),
    ],
    out: Annotated[str, typer.Option("-o", "--out", metavar="FILE.html", help="Where to write it.")] = "report.html",
    overwrite: Overwrite = False,
    json: Json = False,
) -> Answer:
    """Write a page about a run: convergence, time, memory, ranks, provenance; of a pipeline its newest run."""
    from mgspmv.files import create_file, exists
    from mgspmv.report import load_run, render_report
    from mgspmv.report.record import State

    if os.path.isdir(out):
        raise OptionError(f"{out} is a folder; name a file in it, such as {os.path.join(out, 'report.html')}")
    if exists(out) and not overwrite:
        raise StoreExistsError(f"{out} exists already; choose another name or say --overwrite")
    described = load_run(source)
    page = render_report(described).encode()
    with create_file(out) as file:
        file.write(page)
    counts = {state: sum(step.state == state for step in described.steps) for state in get_args(State)}
    payload = {"report": out, "bytes": len(page), "run": described.name, "steps": counts}
    said = ", ".join(f"{n} {state}" for state, n in counts.items() if n)
    return Answer(payload, [f"{out}: {described.name}, {said or 'no steps'}, {_format_bytes(len(page))}"])


@app.command()
def verify(store: StorePath, json: Json = False) -> Answer:
    """Check everything about a store; the exit code is 4 when something is wrong."""
    from mgspmv import api
    from mgspmv.monitor.progress import open_progress

    with open_progress() as progress:
        problems = api.verify(store, on_progress=progress.on_progress)
    payload = {"store": store, "ok": not problems, "problems": problems}
    if not problems:
        return Answer(payload, [f"{store} is whole"])
    error = StoreDamagedError(f"{store}: {len(problems)} problem(s) found; ingest again or restore a copy")
    return Answer(payload, problems, error)


@app.command()
def run(
    file: Annotated[str, typer.Argument(metavar="FILE.toml", help="A pipeline, such as pipelines/quickstart.toml.")],
    set: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="In place of the file's, as run.alpha=0.9; repeatable."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")] = False,
    json: Json = False,
) -> Answer:
    """Run a pipeline: make what of it is not there. What failed is named; what does not depend on it is made."""
    from mgspmv.monitor.progress import Foremost, open_progress
    from mgspmv.pipeline import RunInterrupted, plan_pipeline, read_pipeline, run_pipeline

    definition = read_pipeline(file, dict(_parse_setting(setting) for setting in set or []))
    if dry_run:
        return _answer_plan(plan_pipeline(definition))
    try:
        with _quieten_dask(), open_progress() as progress:
            return _answer_run(run_pipeline(definition, on_progress=Foremost(progress).on_progress))
    except StepsFailedError as error:
        return _answer_run(error.record, error)
    except RunInterrupted as error:
        print(error, file=sys.stderr)
        raise


bench = typer.Typer(no_args_is_help=True, help="Check and time the kernels of this installation.")
app.add_typer(bench, name="bench")


@bench.command("spmv")
def bench_spmv(
    stores: Annotated[list[str] | None, typer.Argument(metavar="STORE", help="Stored matrices.")] = None,
    matrix: Annotated[
        list[str] | None, typer.Option("--matrix", metavar="NAME", help="A matrix of --list; repeatable.")
    ] = None,
    kernel: Annotated[
        list[str] | None, typer.Option("--kernel", metavar="NAME", help="Name of a kernel; repeatable. Default all.")
    ] = None,
    dtype: Annotated[str, typer.Option(metavar="float32|float64|both", help="Of values and vectors.")] = "both",
    values: Annotated[
        bool | None, typer.Option("--values/--pattern", help="Give all values, or none; default as each is.")
    ] = None,
    backend: Backend = "auto",
    cold: Annotated[bool | None, typer.Option("--cold/--warm", help="State of the caches; default both.")] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How often each is timed at most; default 20, without GPU 5.")
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Nonzeros of each made matrix, about; default of --list.")
    ] = None,
    json: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write all that was found.")] = None,
    list_names: Annotated[bool, typer.Option("--list", help="Name the matrices and kernels, and run nothing.")] = False,
) -> Answer:
    """Check every kernel beside SciPy, then time it beside cuSPARSE, or SciPy where there is no GPU."""
    from mgspmv.bench import spmv as harness
    from mgspmv.bench.machines import choose_backend, choose_machine, describe_run
    from mgspmv.bench.tables import format_report
    from mgspmv.kernels.select import KERNELS
    from mgspmv.model import check_choice

    if list_names:
        kernels = [(k.name, ", ".join(k.backends or k.step_backends), k.summary) for k in KERNELS.values()]
        made = _tabulate(("matrix", "structure", "size"), list(harness.list_matrices()))
        return Answer({}, [made, _tabulate(("kernel", "backends", "what it does"), kernels)])
    check_choice("--dtype", dtype, ("float32", "float64", "both"))
    chosen = choose_backend(backend)
    choices = harness.Choices(
        kernels=harness.check_kernels(kernel or [], chosen),
        dtypes=("float32", "float64") if dtype == "both" else (dtype,),
        states=("warm", "cold") if cold is None else ("cold",) if cold else ("warm",),
        values=values,
        rounds=rounds,
    )
    harness.check_json(json)
    cases = harness.find_cases(matrix or [], stores or [], chosen, size)
    machine = choose_machine(chosen)
    setting = describe_run(machine)
    run = harness.Bench(machine, choices, say=lambda line: print(line, file=sys.stderr, flush=True))
    for case in cases:
        run.run(case)
        if json is not None:  # after each, so that a run that is ended leaves what it found
            harness.write_json(json, run.to_dict(setting))
    report = format_report(setting, run.records, run.left_out, chosen, run.ceilings.find_copy_rate())
    wrong = sorted({r.kernel for r in run.records if r.is_wrong})
    error = MgspmvError(f"wrong products of {', '.join(wrong)}; see the tables") if wrong else None
    if not run.records:
        error = OptionError("nothing was timed: every matrix was left out; see why")
    return Answer({}, [report], error)


@bench.command("spmm")
def bench_spmm(
    stores: Annotated[list[str] | None, typer.Argument(metavar="STORE", help="Stored matrices.")] = None,
    matrix: Annotated[
        list[str] | None, typer.Option("--matrix", metavar="NAME", help="A matrix of `bench spmv --list`; repeatable.")
    ] = None,
    vectors: Annotated[
        list[int] | None, typer.Option("--vectors", min=1, metavar="K", help="Vectors at once; repeatable.")
    ] = None,
    dtype: Annotated[str, typer.Option(metavar="float32|float64|both", help="Of values and vectors.")] = "float32",
    values: Annotated[
        bool | None, typer.Option("--values/--pattern", help="Give all values, or none; default as each is.")
    ] = None,
    backend: Backend = "auto",
    rounds: Annotated[int | None, typer.Option(min=1, metavar="N", help="How often each is timed at most.")] = None,
    size: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Nonzeros of each made matrix, about; default of --list.")
    ] = None,
    json: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write all that was found.")] = None,
) -> Answer:
    """Check and time products with many vectors at once, beside cuSPARSE, or SciPy where there is no GPU."""
    from mgspmv.bench import spmm as harness
    from mgspmv.bench.machines import choose_backend, choose_machine, describe_run
    from mgspmv.bench.spmv import check_json, find_cases, write_json
    from mgspmv.bench.tables import format_many
    from mgspmv.model import check_choice

    check_choice("--dtype", dtype, ("float32", "float64", "both"))
    if not matrix and not stores:
        raise OptionError("no matrix is named; pass stores, or --matrix NAME of `mgspmv bench spmv --list`")
    chosen = choose_backend(backend)
    check_json(json)
    cases = find_cases(matrix or [], stores or [], chosen, size)
    machine = choose_machine(chosen)
    setting = describe_run(machine)
    dtypes = ("float32", "float64") if dtype == "both" else (dtype,)
    run = harness.ManyBench(
        machine,
        dtypes,
        vectors or harness.WIDTHS,
        values,
        rounds,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    for case in cases:
        run.run(case)
        if json is not None:
            write_json(json, run.to_dict(setting))
    wrong = sorted({r.program for r in run.records if r.is_wrong})
    error = MgspmvError(f"wrong products of {', '.join(wrong)}; see the table") if wrong else None
    return Answer({}, [format_many(setting, run.records, chosen)], error)


@bench.command("pagerank")
def bench_pagerank(
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="NAME", help="A graph of --list; repeatable.")
    ] = None,
    precision: Annotated[str, typer.Option(metavar="float32|exact|both", help="Of our iterations.")] = "both",
    backend: Backend = "auto",
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="How often each is timed; the least counts.")] = 5,
    size: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Arcs of each made graph, about; default of --list.")
    ] = None,
    json: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write all that was found.")] = None,
    list_names: Annotated[bool, typer.Option("--list", help="Name the graphs, and run nothing.")] = False,
) -> Answer:
    """Check iterations of PageRank beside float64, then time them beside cuGraph's, where there is a GPU."""
    from mgspmv.bench import pagerank as harness
    from mgspmv.bench.machines import choose_backend, choose_machine, describe_run
    from mgspmv.bench.rank_tables import format_report
    from mgspmv.bench.spmv import check_json, write_json
    from mgspmv.model import check_choice

    if list_names:
        return Answer({}, [_tabulate(("graph", "structure", "size"), list(harness.list_graphs()))])
    check_choice("--precision", precision, (*harness.PRECISIONS, "both"))
    check_json(json)
    chosen = choose_backend(backend)
    cases = harness.find_cases(only or [], chosen, size)
    machine = choose_machine(chosen)
    peers, peer = harness.find_peers(machine)
    own = harness.make_own(p for p in harness.PRECISIONS if precision in (p, "both"))
    setting = describe_run(machine) | {"cuGraph": peer}
    run = harness.Bench(machine, [*peers, *own], rounds, say=lambda line: print(line, file=sys.stderr, flush=True))
    for case in cases:
        run.run(case)
        if json is not None:  # after each, so that a run that is ended leaves what it found
            write_json(json, run.to_dict(setting))
    report = format_report(setting, run.records, run.left_out, run.ceilings.find_copy_rate())
    wrong = [f"{r.contender} on {r.graph}" for r in run.records if r.is_wrong]
    error = MgspmvError(f"wrong ranks of {', '.join(wrong)}; see the tables") if wrong else None
    if not run.records:
        error = OptionError("nothing was timed: every graph was left out; see why")
    return Answer({}, [report], error)


@bench.command("methods")
def bench_methods(
    stores: Annotated[list[str], typer.Argument(metavar="STORE...", help="Stored graphs.")],
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="How often each is timed; the least counts.")] = 5,
    threads: Threads = None,
    json: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write all that was found.")] = None,
) -> Answer:
    """Check how soon PageRank ends by its methods and by the highest vertices on the host, then time it."""
    from mgspmv.bench import methods
    from mgspmv.bench.machines import choose_machine, describe_run
    from mgspmv.bench.spmv import check_json, write_json

    check_json(json)
    setting = describe_run(choose_machine("cpu"))
    say = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
    records = methods.run_methods(stores, rounds, threads, say)
    if json is not None:
        write_json(json, methods.to_json(setting, records))
    wrong = [f"{r.run} on {r.graph}" for r in records if not r.is_right]
    error = MgspmvError(f"wrong ranks of {', '.join(wrong)}; see the table") if wrong else None
    return Answer({}, [methods.format_report(setting, records)], error)


@bench.command("warm")
def bench_warm(
    stores: Annotated[list[str], typer.Argument(metavar="STORE...", help="Stored graphs.")],
    share: Annotated[
        float, typer.Option(min=0, max=1, metavar="S", help="Share of the edges that changes; at least two do.")
    ] = 1e-5,
    tol: Annotated[float, typer.Option(help="Tolerance of all runs, in L1.")] = 1e-10,
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="How often each is timed; the least counts.")] = 5,
    threads: Threads = None,
    json: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write all that was found.")] = None,
) -> Answer:
    """Check ranks of changed graphs that begin with the ranks before, on the host, then time them."""
    from mgspmv.bench import warm
    from mgspmv.bench.machines import choose_machine, describe_run
    from mgspmv.bench.spmv import check_json, write_json

    check_json(json)
    setting = describe_run(choose_machine("cpu"))
    say = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
    records = warm.run_warm(stores, rounds, share, tol, threads, say)
    if json is not None:
        write_json(json, warm.to_json(setting, records))
    wrong = [f"{r.run} on {r.graph}, {r.changes}" for r in records if not r.is_right]
    error = MgspmvError(f"wrong ranks of {', '.join(wrong)}; see the table") if wrong else None
    return Answer({}, [warm.format_report(setting, records, share, tol)], error)


@bench.command("scaling")
def bench_scaling(
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="STORE", help="A graph; default an R-MAT multigraph that is made for it."),
    ] = None,
    scale: Annotated[int, typer.Option(help="Of that: log2 of the vertices.")] = 26,
    edge_factor: Annotated[int, typer.Option(help="Of that: edges a vertex.")] = 16,
    workers: Annotated[str, typer.Option(metavar="N,N,..", help="How many workers, each in turn.")] = "1,2,4",
    backend: Backend = "auto",
    precision: Annotated[str, typer.Option(metavar="float32|exact|both", help="Of the iterations.")] = "both",
    transport: Annotated[
        str, typer.Option(metavar="auto|nccl|peer", help="How slices go from worker to worker.")
    ] = "auto",
    iterations: Annotated[int, typer.Option(min=1, help="In a run.")] = 50,
    json: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write all that was found.")] = None,
) -> Answer:
    """Time iterations of PageRank on more and more workers of this machine, and check that their ranks are the same."""
    from mgspmv.bench import scaling
    from mgspmv.bench.machines import choose_backend, choose_machine, describe_run
    from mgspmv.bench.spmv import check_json, write_json
    from mgspmv.model import check_choice

    check_choice("--precision", precision, (*scaling.PRECISIONS, "both"))
    check_choice("--transport", transport, ("auto", "nccl", "peer"))
    check_json(json)
    counts = _parse_counts(workers)
    chosen = choose_backend(backend)
    precisions = [p for p in scaling.PRECISIONS if precision in (p, "both")]
    setting = describe_run(choose_machine(chosen))
    with ExitStack() as stack:
        stack.enter_context(_quieten_dask())
        store = _make_multigraph(stack, store, scale, edge_factor, max(counts), chosen, setting)
        say = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
        has_peer, setting["cuGraph"] = scaling.find_peer(chosen, store)
        records = scaling.run_scaling(store, counts, chosen, precisions, iterations, say, transport, has_peer)
    if json is not None:
        write_json(json, scaling.to_json(setting, records))
    wrong = [f"{r.precision} on {r.n_workers} workers" for r in records if not r.is_right]
    error = MgspmvError(f"wrong ranks in {', '.join(wrong)}; see the tables") if wrong else None
    return Answer({}, [scaling.format_report(setting, records)], error)


@bench.command("streaming")
def bench_streaming(
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="STORE", help="A graph; default an R-MAT multigraph that is made for it."),
    ] = None,
    scale: Annotated[int, typer.Option(help="Of that: log2 of the vertices.")] = 26,
    edge_factor: Annotated[int, typer.Option(help="Of that: edges a vertex.")] = 16,
    precision: Annotated[str, typer.Option(metavar="float32|exact|both", help="Of the iterations.")] = "both",
    iterations: Annotated[int, typer.Option(min=1, help="In a run.")] = 20,
    case: Annotated[list[str] | None, typer.Option("--case", metavar="CASE", help="Only this one; repeatable.")] = None,
    json: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write all that was found.")] = None,
) -> Answer:
    """Time PageRank on a GPU that may take less and less memory, beside what `plan` predicts, and check the ranks."""
    from mgspmv.bench import streaming
    from mgspmv.bench.machines import choose_backend, choose_machine, describe_run
    from mgspmv.bench.spmv import check_json, write_json
    from mgspmv.model import check_choice

    check_choice("--precision", precision, (*streaming.PRECISIONS, "both"))
    for one in case or []:
        check_choice("--case", one, tuple(streaming.SHARES))
    check_json(json)
    precisions = [p for p in streaming.PRECISIONS if precision in (p, "both")]
    setting = describe_run(choose_machine(choose_backend("cuda")))
    say = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
    with ExitStack() as stack:
        stack.enter_context(_quieten_dask())
        store = _make_multigraph(stack, store, scale, edge_factor, 1, "cuda", setting)
        records = streaming.run_streaming(store, precisions, iterations, say, case or [])
    if json is not None:
        write_json(json, streaming.to_json(setting, records))
    wrong = [f"{r.precision}, {r.case}" for r in records if not r.is_right]
    error = MgspmvError(f"wrong ranks in {'; '.join(wrong)}; see the tables") if wrong else None
    return Answer({}, [streaming.format_report(setting, records)], error)


@bench.command("batch")
def bench_batch(
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="STORE", help="A graph; default an R-MAT graph that is made for it."),
    ] = None,
    scale: Annotated[int, typer.Option(help="Of that: log2 of the vertices.")] = 20,
    edge_factor: Annotated[int, typer.Option(help="Of that: edges a vertex.")] = 16,
    vectors: Annotated[int, typer.Option(min=2, help="How many personalised vectors.")] = 256,
    width: Annotated[
        int | None, typer.Option(metavar="2|4|8|16|32|64", help="Vectors in a pass; default what is fast and fits.")
    ] = None,
    backend: Backend = "auto",
    precision: Annotated[str, typer.Option(metavar="float32|exact|both", help="Of the iterations.")] = "float32",
    json: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write all that was found.")] = None,
) -> Answer:
    """Time PageRank of many vectors in a batch beside single runs of a sample of them, and check that all are right."""
    import tempfile

    from mgspmv import api
    from mgspmv.bench import batch
    from mgspmv.bench.machines import choose_backend, choose_machine, describe_run
    from mgspmv.bench.spmv import check_json, write_json
    from mgspmv.model import check_choice

    check_choice("--precision", precision, (*batch.PRECISIONS, "both"))
    check_json(json)
    chosen = choose_backend(backend)
    precisions = [p for p in batch.PRECISIONS if precision in (p, "both")]
    setting = describe_run(choose_machine(chosen))
    say = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
    with ExitStack() as stack:
        if store is None:
            store = f"{stack.enter_context(tempfile.TemporaryDirectory())}/graph.zarr"
            api.generate("rmat", store, scale=scale, edge_factor=edge_factor)
        with api.open_matrix(store) as matrix:
            setting["graph"] = f"{matrix.shape[0]:,} vertices, {matrix.nnz:,} edges, digest {matrix.info.digest[:16]}"
        records = batch.run_batch(store, precisions, vectors, chosen, width, say)
    if json is not None:
        write_json(json, batch.to_json(setting, records))
    wrong = [r.precision for r in records if not r.is_right]
    error = MgspmvError(f"wrong ranks in {', '.join(wrong)}; see the table") if wrong else None
    return Answer({}, [batch.format_report(setting, records)], error)


def _make_multigraph(
    stack: ExitStack,
    store: str | None,
    scale: int,
    edge_factor: int,
    n_workers: int,
    backend: Literal["cpu", "cuda"],
    setting: dict[str, str],
) -> str:
    """The graph that is timed, made unless there is one; `setting` gets what it is."""
    import tempfile

    from distributed import Client

    from mgspmv import api
    from mgspmv.bench import scaling

    if store is None:
        store = f"{stack.enter_context(tempfile.TemporaryDirectory())}/graph.zarr"
        began = time.perf_counter()
        with scaling.start_workers(n_workers, backend) as cluster, Client(cluster) as client:
            started = time.perf_counter()
            sizes: dict[str, Any] = {"scale": scale, "edge_factor": edge_factor}
            api.generate("rmat", store, **sizes, duplicates="keep", client=client, backend=backend)
        made = f"{time.perf_counter() - started:.3g} s by {n_workers} workers, started in {started - began:.3g} s"
        setting["graph"] = f"R-MAT, scale {scale}, {edge_factor} edges a vertex, those that come again kept; {made}"
    with api.open_matrix(store) as matrix:
        setting["size"] = f"{matrix.shape[0]:,} vertices, {matrix.nnz:,} edges, digest {matrix.info.digest[:16]}"
    return store


def _parse_counts(text: str) -> list[int]:
    """Numbers of workers, ascending."""
    try:
        counts = sorted({int(part) for part in text.split(",")})
    except ValueError:
        counts = []
    if not counts or counts[0] < 1:
        raise OptionError(f"--workers must be numbers of at least 1, such as 1,2,4, not {text!r}")
    return counts


def _find_change(tol: float | None, tol_mode: str, n: int | None = None, stop: str = "change") -> float | None:
    """The change at which an iteration over n vertices stops, for the prediction; None when it is not known."""
    from mgspmv.iterate.options import DEFAULT_TOL

    if tol_mode == "fixed" or stop != "change" or (tol_mode == "l1_per_node" and n is None):
        return None
    return (DEFAULT_TOL if tol is None else tol) * (n if tol_mode == "l1_per_node" and n is not None else 1)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _parse_setting(setting: str) -> tuple[str, Any]:
    """Split KEY=VALUE; the value is TOML where it is that, else a string, so that a shell needs no second quotes."""
    key, equals, value = setting.partition("=")
    if not equals:
        raise OptionError(f"--set {setting}: wanted KEY=VALUE, such as run.alpha=0.9")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value


# --- answers ---------------------------------------------------------------------------------------------------------


def _finish(answer: Answer, as_json: bool) -> int:
    payload = answer.payload if answer.error is None else answer.payload | _describe_error(answer.error)
    if answer.lines is None:
        code = _give(payload, answer.parts, as_json)
    else:
        code = _write_out(lines.decode() for lines in answer.lines)
        sys.stderr.write(_render(answer.parts))
    if answer.error is None:
        return code
    _print_error(answer.error)
    return code or answer.error.exit_code


def _give(payload: dict[str, Any], parts: Sequence[Any], as_json: bool) -> int:
    """Write an answer to stdout; 0, or the exit code when nobody reads it."""
    return _write_out([json_format.dumps(payload, allow_nan=False) + "\n" if as_json else _render(parts)])


def _write_out(texts: Iterable[str]) -> int:
    """Write to stdout; 0, or the exit code when nobody reads it."""
    try:
        for text in texts:
            sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more on its way out, and would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    return 0


def _render(parts: Sequence[Any]) -> str:
    from rich.console import Console

    width = None if sys.stdout.isatty() else PIPED_WIDTH
    console = Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)
    with console.capture() as capture:
        for part in parts:
            console.print(part, soft_wrap=isinstance(part, str))
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def _print_error(error: MgspmvError) -> None:
    print(f"error: {error}", file=sys.stderr)


def _describe_error(error: MgspmvError) -> dict[str, Any]:
    return {"error": {"type": type(error).__name__, "message": str(error)}}


def _answer_stored(info: MatrixInfo, elapsed_s: float) -> Answer:
    payload = {"store": asdict(info), "seconds": elapsed_s}
    order = [f"order: {_describe_order(info)}"] if "reordering" in info.provenance else []
    return Answer(payload, [f"{info.url}: {_describe_matrix(info)}, made in {_format_seconds(elapsed_s)}", *order])


def _answer_ranks(
    solution: Solution,
    highest: list[tuple[Any, float]],
    saved: list[str],
    failure: ConvergenceError | None,
    seconds: dict[str, float] | None = None,
) -> Answer:
    seconds = seconds or solution.seconds
    payload = solution.to_dict() | {"seconds": seconds, "top": _list_top(highest), "saved": saved}
    fields = {
        "status": f"{solution.status}: {solution.status.advice}",
        "iterations": f"{solution.iterations}",
        "last change": f"{solution.changes[-1]:.3g}" if solution.changes else "none",
        **({"L1 error at most": solution.describe_error()} if isfinite(solution.error_bound_l1) else {}),
        "seconds": ", ".join(f"{phase} {elapsed_s:.3g}" for phase, elapsed_s in seconds.items()),
        "edges per second": f"{solution.edges_per_s:.3g}",
        **({"memory": _describe_memory(solution.memory)} if solution.memory else {}),
    }
    if solution.scaler != "none":
        fields["scores"] = f"ranks scaled by {solution.scaler}"
    if solution.followed is not None:
        fields["changes followed"] = _describe_followed(solution.followed)
    if solution.stability is not None:
        fields["highest"] = _describe_stability(solution.stability)
    if saved:
        fields["saved"] = ", ".join(saved)
    return Answer(payload, [_tabulate_top(highest), _tabulate_fields(fields)], failure)


def _add_summary(answer: Answer, found: Summary) -> Answer:
    """The answer, and how ranks are distributed."""
    from mgspmv.results import to_json

    payload = answer.payload | {"summary": to_json(found.to_dict())}
    moments = {name: f"{getattr(found, name):.8g}" for name in ("min", "max", "mean", "sum", "std")}
    counts = {"vertices": f"{found.n:,}", "not finite": f"{found.n_non_finite:,}"}
    percentiles = {f"{percent:g}% are at most": f"{value:.8g}" for percent, value in found.percentiles.items()}
    fields = counts | moments | percentiles | {"Gini coefficient": "none" if isnan(found.gini) else f"{found.gini:.6g}"}
    bins = zip(pairwise(found.histogram.edges), found.histogram.counts, strict=True)
    rows = [(f"{low:.4g}", f"{high:.4g}", f"{count:,}") for (low, high), count in bins]
    outside = [f"0 or less: {found.histogram.n_outside:,}"] if found.histogram.n_outside else []
    histogram = [_tabulate(("from", "to", "vertices"), rows)] if rows else []
    return replace(answer, payload=payload, parts=[*answer.parts, _tabulate_fields(fields), *histogram, *outside])


def _describe_memory(memory: dict[str, list[int]]) -> str:
    """The most of any worker, of each kind."""
    names = {"host_peak_bytes": "host peak", "device_bytes": "device", "held_bytes": "held", "planned_bytes": "planned"}
    most = [f"{named} {_format_bytes(max(memory[name]))}" for name, named in names.items() if name in memory]
    is_of_many = any(len(counts) > 1 for counts in memory.values())
    return ", ".join(most) + (", the most of any worker" if is_of_many else "")


def _answer_batch(batch: BatchSolution, saved: list[str], failure: ConvergenceError | None) -> Answer:
    highest = batch.top()
    payload = batch.to_dict() | {"saved": saved}
    for described in payload["vectors"]:
        described["top"] = _list_top(highest[described["label"]])
    rows = [
        (label, f"{v['alpha']:g}", v["status"], str(v["iterations"]), f"{bound:.3g}", *map(str, highest[label][0]))
        for label, v, bound in zip(batch.labels, payload["vectors"], batch.error_bounds_l1, strict=True)
    ]
    titles = ("vector", "alpha", "status", "iterations", "L1 error at most", "highest vertex", "its rank")
    fields = {
        "vectors": f"{len(batch)}, up to {batch.options['width']} in each of {batch.options['steps']} passes",
        "seconds": ", ".join(f"{phase} {elapsed_s:.3g}" for phase, elapsed_s in batch.seconds.items()),
    }
    if saved:
        fields["saved"] = ", ".join(saved)
    if len(rows) > SHOWN_VECTORS:
        fields["not shown"] = f"{len(rows) - SHOWN_VECTORS} vectors; see --json, or -o"
    return Answer(payload, [_tabulate(titles, rows[:SHOWN_VECTORS]), _tabulate_fields(fields)], failure)


def _describe_followed(found: Followed) -> str:
    if not isfinite(found.residual_before):
        return "no, the start is too far from ranks"
    told = "no, iterations are as soon there"
    if found.rounds:
        left = f"residual {found.residual_before:.3g} to {found.residual_after:.3g}"
        told = f"along {found.edges} edges in {found.rounds} rounds, {left}"
    return f"{told}; took as much as {found.equivalents:.3g} iterations"


def _answer_plan(plan: PipelinePlan) -> Answer:
    rows = [
        (
            step.name,
            step.state,
            "" if step.predicted_bytes is None else _format_bytes(step.predicted_bytes),
            "" if step.predicted_s is None else _format_seconds(step.predicted_s),
            step.why or step.target,
        )
        for step in plan.steps
    ]
    table = _tabulate(("step", "state", "memory", "predicted", "why, or where it is"), rows)
    n_kept = sum(step.state == "kept" for step in plan.steps)
    said = f"{n_kept} of {len(rows)} steps are kept; at most {_format_bytes(plan.memory_bytes)} at a time"
    return Answer(plan.to_dict(), [table, f"{plan.name} in {plan.folder}: {said}"])


def _answer_run(record: RunRecord, error: StepsFailedError | None = None) -> Answer:
    table = _tabulate(("step", "", "seconds", "", ""), [_describe_step(step) for step in record.steps])
    counts = Counter(step.state for step in record.steps)
    said = ", ".join(f"{count} {state}" for state, count in counts.items())
    ranked = [step.record for step in record.steps if step.kind == "pagerank" and step.record is not None]
    highest = [_tabulate_top([(row[0], row[1]) for row in ranked[0].top[:SHOWN_RANKS]])] if len(ranked) == 1 else []
    summary = f"{record.name}: {said}, in {_format_seconds(record.elapsed_s)}"
    return Answer(record.to_dict(), [*highest, table, summary], error)


def _describe_step(step: StepOutcome) -> tuple[str, ...]:
    if step.record is None:
        return step.name, step.state, f"{step.elapsed_s:.3g}", "", (step.error or "").partition("\n")[0]
    result, matrix = step.record.result, step.record.matrix
    said = f"{matrix['shape'][0]:,} x {matrix['shape'][1]:,}, {matrix['nnz']:,} entries"
    if step.kind == "pagerank":
        said = f"{result['status']}, {result['iterations']} iterations"
    elif step.kind == "batch":
        said = f"{len(result['vectors'])} vectors"
    place = matrix["url"] if step.kind == "matrix" else os.path.dirname(step.record.outputs[0].path)
    return step.name, step.state, f"{step.elapsed_s:.3g}", said, place


def _describe_stability(found: Stability) -> str:
    ties = ", ".join(f"{first}-{last}" for first, last in found.ties)
    order = f"in this order but for places {ties}" if ties else "in this order"
    if found.is_proven:
        return f"the {found.k} are proven, {order}"
    return f"places {found.k} and {found.k + 1} are {found.gap:.3g} apart, tied within the bound of {found.bound:.3g}"


def _list_top(highest: list[tuple[Any, float]]) -> list[dict[str, Any]]:
    from mgspmv.results import to_json

    return [{"id": name, "rank": to_json(rank)} for name, rank in highest]


def _tabulate_top(highest: list[tuple[Any, float]]) -> Any:
    rows = [(place, name, f"{rank:.8g}") for place, (name, rank) in enumerate(highest, 1)]
    return _tabulate(("", "vertex", "rank"), rows)


def _tabulate_info(info: MatrixInfo) -> Any:
    fields = {
        "store": info.url,
        "kind": info.kind,
        "rows x columns": f"{info.shape[0]:,} x {info.shape[1]:,}",
        "entries": f"{info.nnz:,}",
        "values": info.dtype or "none, a pattern",
        "indices": info.index_dtype,
        "ids": info.vertex_ids or "0..n-1",
        "order": _describe_order(info),
        "duplicates": info.duplicates,
        "least value": "none" if info.min_weight is None else f"{info.min_weight:g}",
        "transpose": "stored" if info.has_transpose else "not stored",
        "size": _format_bytes(info.nbytes),
        "version": f"{info.version}, format {info.format_version}",
        "digest": info.digest,
    }
    made_from = info.provenance.get("source", {})
    return _tabulate_fields(fields | {f"source {key}": value for key, value in made_from.items()})


def _describe_order(info: MatrixInfo) -> str:
    made = info.provenance.get("reordering")
    bandwidth = f", bandwidth {made['bandwidth_after']:,}, was {made['bandwidth_before']:,}" if made else ""
    return f"{info.order or 'that of the source'}{bandwidth}"


def _describe_matrix(info: MatrixInfo) -> str:
    values = "a pattern" if info.is_pattern else info.dtype
    return f"{info.kind}, {info.shape[0]:,} x {info.shape[1]:,}, {info.nnz:,} entries, {values}"


def _tabulate(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    for title in titles:
        table.add_column(title, justify="right", overflow="fold")
    for row in rows:
        table.add_row(*map(str, row))
    return table


def _tabulate_fields(fields: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields.items():
        table.add_row(name, str(value))
    return table


def _format_bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{size:.3g} {unit}"


def _format_seconds(elapsed_s: float) -> str:
    return f"{elapsed_s:.3g} s" if elapsed_s >= 0.1 else f"{elapsed_s * 1e3:.3g} ms"
