"""Sources read without a store, into the memory of this process or by workers of a cluster, and their provenance."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from mgspmv.api.matrix import Matrix
from mgspmv.environment import __version__
from mgspmv.errors import OptionError
from mgspmv.ingest.budget import find_budget
from mgspmv.ingest.build import load_source
from mgspmv.ingest.device_sorting import DeviceSorter, make_device_sorter
from mgspmv.ingest.external_sort import EntrySorter
from mgspmv.ingest.open import open_source
from mgspmv.kernels.device import has_device
from mgspmv.model import Duplicates, IngestOptions, Kind, Precision, SelfLoops, check_choice
from mgspmv.monitor.progress import ProgressOption, make_report, watched
from mgspmv.solvers.options import BackendChoice, Executor, Placement, Reads, TransportChoice, check_threads, parse_size
from mgspmv.store.held import PLACE

if TYPE_CHECKING:
    from mgspmv.cluster.matrix import DistributedMatrix


@watched
def load(
    source: Any,
    *,
    kind: Kind | None = None,
    weights: bool | str | None = None,
    transpose: bool = False,
    threads: int | None = None,
    backend: BackendChoice = "auto",
    progress: ProgressOption = None,
) -> Matrix:
    """Read a matrix or graph into memory, without a store; parameters and errors as for `ingest`.

    Parameters
    ----------
    backend : `cuda` sorts a graph on the current device, where it stays if it fits; `auto` does if there is a device
    """
    options, report = IngestOptions(kind, weights=weights, transpose=transpose), make_report(progress)
    check_threads(threads)
    room = find_budget(PLACE, None, threads)
    reading = name_reading(None, weights, {})
    opened = open_source(source, kind=kind, threads=room.threads, id_room=room.for_ids, **reading)
    return Matrix(load_source(opened, options, report, room, None if backend == "cpu" else sort_on_device))


@watched
def read_edges(
    source: Any,
    client: Any,
    *,
    kind: Kind | None = None,
    duplicates: Duplicates | None = None,
    self_loops: SelfLoops = "keep",
    symmetrize: bool = False,
    weights: bool | str | None = None,
    dtype: Literal["int64", "float32", "float64"] | None = None,
    allow_hypersparse: bool = False,
    format: Literal["matrix-market", "edge-list", "parquet"] | None = None,
    memory: str | int | None = None,
    scratch: str | os.PathLike[str] | None = None,
    precision: Precision | None = None,
    backend: BackendChoice = "auto",
    kernel: str = "auto",
    threads: int | None = None,
    executor: Executor = "auto",
    transport: TransportChoice = "auto",
    device_memory: str | int | None = None,
    host_memory: str | int | None = None,
    timeout: float = 30.0,
    progress: ProgressOption = None,
    **edge_list_options: Any,
) -> DistributedMatrix:
    """Let the workers of a Dask cluster read edges and hold them, each a range of rows, without a store.

    The matrix is used as one of `Matrix.distribute` is, except for what needs a store: its rows are not streamed, a run
    ends when a worker is lost, and there are no checkpoints and no transpose, as HITS needs it. For these, and for what
    is used again, `ingest` the edges with `client`, and distribute that matrix.

    Parameters
    ----------
    source : path, URL or Dask DataFrame
        Edge lists, a Matrix Market file, Parquet files or a Dask DataFrame, as for `ingest` with `client`. All workers
        must reach it.
    client : Client, cluster or address
        As for `Matrix.distribute`.
    kind, duplicates, self_loops, symmetrize, weights, dtype, allow_hypersparse, format
        As for `ingest`.
    memory, scratch
        As for `ingest` with `client`: of each worker, while it reads and sorts.
    precision, backend, kernel, threads, executor, transport, device_memory, host_memory, timeout
        As for `Matrix.distribute`. On GPUs that NCCL connects, graphs are exchanged and sorted there, if they fit and
        ids are integers from 0 on, few compared with the edges unless `n_vertices` is given; others by the hosts.
    progress : callable or bool, optional
        Called with each `Phase`; True and False show and hide the progress, as does `show_progress`.
    edge_list_options : keyword arguments
        As for `ingest`: `columns`, `n_vertices`, `vertices`, `delimiter`, `header`, `skip_rows`, `comment`, `ids`.

    Returns
    -------
    The matrix on the workers, a context manager. Ranks of it in `exact` are bit-identical to those of `ingest`.

    Raises
    ------
    SourceError : as for `ingest`
    OptionError : an invalid option; a source that workers cannot read
    CapacityError : the rows do not fit in the memory of the workers
    ClusterError : a worker is lost, or silent for too long

    Examples
    --------
    >>> import mgspmv as mg
    >>> from distributed import Client
    >>> from pathlib import Path
    >>> _ = Path("edges.csv").write_text("source,target\\nhome,shop\\nshop,home\\nblog,home\\n")
    >>> with Client(n_workers=2, processes=False, dashboard_address=":0") as client:
    ...     with mg.read_edges("edges.csv", client) as D:
    ...         print(D.shape, D.nnz, round(mg.pagerank(D)["home"], 4))
    (3, 3) 3 0.4865
    """
    from mgspmv.cluster.ingest import read_edges_on_cluster

    if client is None:
        raise OptionError("read_edges needs client=, the cluster whose workers read; without one, use ingest")
    check_choice("precision", precision, ("exact", "float64", "float32", None))
    options = IngestOptions(kind, duplicates, self_loops, symmetrize, weights, dtype=dtype)
    limits = device_memory, host_memory
    place = Placement(client, False, backend, kernel, threads, executor, *limits, transport, timeout)
    asked = name_reading(format, weights, edge_list_options)
    return read_edges_on_cluster(
        open_source(source, kind=kind, **asked),
        options,
        place,
        Reads(precision),
        partial(describe_making, options=options, reading=asked),
        memory=parse_size("memory", memory),
        scratch=None if scratch is None else os.path.abspath(scratch),
        allow_hypersparse=allow_hypersparse,
        report=make_report(progress),
    )


def sort_on_device(host: EntrySorter) -> DeviceSorter | None:
    """Make a sorter on the current device, which hands what does not suit it over to one on the host; None without a
    device."""
    return make_device_sorter(host) if has_device() else None


def name_reading(format: str | None, weights: bool | str | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options for reading a source by name."""
    return {"format": format, **({} if weights is None else {"weights": weights}), **options}


def describe_making(source: dict[str, Any], options: IngestOptions, reading: dict[str, Any]) -> dict[str, Any]:
    """Return the provenance of a store: its source, options and stamp."""
    given = {
        name: os.fspath(value) if isinstance(value, os.PathLike) else value
        for name, value in (vars(options) | reading).items()
        if value is not None
    }
    return {"source": source, "options": given, **stamp()}


def stamp() -> dict[str, str]:
    """Return the program version and the current time, for the provenance of a store."""
    return {"program": f"mgspmv {__version__}", "created": datetime.now(UTC).isoformat(timespec="seconds")}
