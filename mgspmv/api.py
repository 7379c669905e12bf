"""The Python API: everything a user calls, composed from the parts."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, partial
from importlib.metadata import version
from itertools import pairwise
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from mgspmv.errors import (
    ConvergenceError,
    KindError,
    MissingTransposeError,
    OptionError,
)
from mgspmv.export.write import Format, check_vertices, choose_format, export_matrix
from mgspmv.export.write import check_target as check_export
from mgspmv.ingest.generate import make_generator
from mgspmv.ingest.open import open_source, open_update
from mgspmv.ingest.resume import Journal, find_kept_folder, keep_journal, remove_kept
from mgspmv.ingest.source import Source
from mgspmv.ingest.update import Changes, Missing, update_store
from mgspmv.ingest.verify import verify_store
from mgspmv.ingest.write import Room, find_room, reorder_store, store_source
from mgspmv.iterate.options import DEFAULT_TOL, PageRankOptions
from mgspmv.iterate.pagerank import Outcome, Rows, run_embedded, run_on_device
from mgspmv.iterate.start import Start, make_start, read_out_weight
from mgspmv.iterate.vectors import Weights
from mgspmv.kernels.bound import BoundKernel
from mgspmv.kernels.dense import multiply_dense
from mgspmv.kernels.device import (
    free_device_memory,
    get,
    put,
    read_block,
    read_vector,
    release_device_memory,
    report_full_device,
)
from mgspmv.kernels.laid_rows import LaidPieces, LaidRows
from mgspmv.kernels.operands import check_vectors, choose_precision, start_product
from mgspmv.kernels.rank_steps import RankSteps
from mgspmv.kernels.rates import measure_device, measure_rates
from mgspmv.kernels.select import (
    BACKENDS,
    Backend,
    StepLayout,
    bind_kernel,
    bind_product,
    check_step_kernel,
    choose_backend,
    find_step_layout,
    list_kernels,
)
from mgspmv.lookup import VertexLookup
from mgspmv.model import (
    CsrBlock,
    Duplicates,
    Event,
    IngestOptions,
    Kind,
    MatrixInfo,
    OrderMethod,
    Precision,
    SelfLoops,
    TolMode,
    check_choice,
    free_memory,
)
from mgspmv.order import (
    METHODS,
    check_square,
    invert,
    permute,
    renumber_csr,
    restore,
)
from mgspmv.partition import (
    Plan,
    choose_piece,
    limit,
    parse_bytes,
    plan_rows,
    predict_seconds,
    split_rows,
    warn_of_streaming,
)
from mgspmv.results import Solution, load_solution
from mgspmv.store import (
    DescribedMatrix,
    StoredMatrix,
    StoreLike,
    check_keep,
    check_target,
    drop_versions,
    list_versions,
    open_store,
)

if TYPE_CHECKING:
    from mgspmv.distribute.matrix import DistributedMatrix
    from mgspmv.kernels.streamed_csr import StreamedCsr

__all__ = [
    "Matrix",
    "drop_versions",
    "export",
    "gemv",
    "generate",
    "ingest",
    "list_versions",
    "load_solution",
    "open_matrix",
    "pagerank",
    "reorder",
    "spmv",
    "update",
    "verify",
]

Progress = Callable[[str, int, int | None], None]
"""Called with (phase, done, total or None)."""

Drive = Literal["auto", "embedded", "scheduler", "superstep"]


# --- sources to stores -----------------------------------------------------------------------------------------------


def ingest(
    source: Any,
    store: StoreLike,
    *,
    kind: Kind | None = None,
    duplicates: Duplicates | None = None,
    self_loops: SelfLoops = "keep",
    symmetrize: bool = False,
    ignore_weights: bool = False,
    transpose: bool = False,
    dtype: Literal["float32", "float64"] | None = None,
    order: OrderMethod = "none",
    overwrite: bool = False,
    format: Literal["matrix-market", "edge-list", "parquet", "npz", "anndata", "binsparse", "csr"] | None = None,
    memory: str | int | None = None,
    threads: int | None = None,
    scratch: str | os.PathLike[str] | None = None,
    resume: bool = False,
    client: Any = None,
    timeout: float = 30.0,
    on_progress: Progress | None = None,
    **edge_list_options: Any,
) -> MatrixInfo:
    """Read a matrix or graph and store it.

    Parameters
    ----------
    source : path or URL of a Matrix Market file or an edge list, plain or as `.gz .bz2 .xz .zst`, of a Parquet table of
        edges, of a SciPy `.npz`, or of a Zarr group of anndata, of binsparse or of plain CSR arrays, also in a local
        `.zip`; several edge lists or Parquet tables that are one graph, as a list of paths, a folder, or a pattern such
        as `edges/*.csv.gz`; a Zarr store or group; a SciPy sparse or dense NumPy matrix; a NetworkX graph; a table of
        edges as a pandas, polars or Dask DataFrame or a pyarrow Table; a tuple (src, dst[, weight]) of arrays
    store : where to write it: local path, fsspec URL, `obstore+` URL or Zarr store
    kind : `graph` stores the arc i -> j as entry (j, i), so that PageRank pulls; `matrix` stores rows as they are;
        `stochastic` is a left-stochastic matrix (columns sum to 1) used as it is. Default: `graph` for edge lists,
        tables and NetworkX, else `matrix`
    duplicates : `sum`, `first`, `keep` or `error`; default `sum` with values, `first` without
    self_loops : `keep`, `drop` or `error`
    symmetrize : add (j, i) for each (i, j), before duplicates are treated
    ignore_weights : store the pattern only
    transpose : also store the transpose, which `A.T` needs
    dtype : of the stored values; default as in the source
    order : `rcm`, `degree` or `dealt` renumbers rows and columns as `reorder` does by that method, before they are
        written; default `none`, the order of the source
    overwrite : replace the matrix that is there, once the new one is whole
    format : default: by name and first line, or by what a Zarr group has
    memory : most that this process may take, as `4GiB` or bytes, at least 1 GiB; default half of what is free, beside
        what it takes already. Entries, and ids that occur in them, go to files where they do not fit. What must fit
        are a list of `vertices`, into a quarter; with `order`, 32 bytes for each row, and for `rcm` about 20 for each
        entry too, into half; and entries at one place
    threads : to parse, sort and write; default one for each processor
    scratch : folder for these files, which have no names and go with the process; default the one that the store is in,
        or the system's where the store is not local
    resume : keep what was read of edge lists, Matrix Market and Parquet files in a folder beside the store or in
        `scratch`, and go on with what an ingest of the same files with the same options kept there that was broken off.
        Without it such a folder is removed
    client : of a Dask cluster, as for `Matrix.distribute`: each worker reads a part of the source, sorts a range of the
        rows and writes it. The source is edge lists, a Matrix Market file, Parquet files or a Dask DataFrame, which all
        workers must reach, as the store. `memory`, `threads` and `scratch` are of each worker; default half of what it
        may still take, its threads, and Dask's own folder. The store is the same for any number of workers, and without
    timeout : with `client`, as for `Matrix.distribute`
    edge_list_options : `n_vertices`, `vertices`, `delimiter`, `weights`, `ids`, `extra_columns` of an edge list;
        `columns`, `n_vertices`, `vertices`, `weights`, `extra_columns` of a table; `n_vertices` of a tuple of arrays;
        `n_cols` of plain CSR arrays in a Zarr group

    Raises
    ------
    SourceError : malformed input, with the line's number and text
    ShapeError : an order, and the matrix is not square
    CapacityError : what must fit into the memory does not
    StoreExistsError : the place is taken
    ProgressError : with `resume`, what was kept is of another source or other options, is damaged, or is being used
    OptionError : an option that makes no sense or does not suit the source; what a cluster does not ingest
    ClusterError : a worker is gone, or silent for too long; nothing is left in the store
    """
    _check_threads(threads)
    options = IngestOptions(kind, duplicates, self_loops, symmetrize, ignore_weights, transpose, dtype, order)
    check_target(store, overwrite=overwrite)
    asked = {"format": format, **edge_list_options}
    kept = find_kept_folder(store, scratch)
    if client is not None:
        from mgspmv.distribute.ingesting import ingest_on_cluster

        if resume:
            raise OptionError("resume is for an ingest in this process; leave out the client, or resume")
        folder = None if scratch is None else os.path.abspath(scratch)
        working: dict[str, Any] = {"threads": threads, "scratch": folder, "timeout": timeout, "overwrite": overwrite}
        describe = partial(_describe_making, options=options, reading=asked)
        opened = open_source(source, **asked)
        remove_kept(kept)
        ingest_on_cluster(
            opened, store, options, client, describe, memory=_parse(memory), on_progress=on_progress, **working
        )
        return open_store(store).info
    room = find_room(store, _parse(memory), threads, scratch)
    opened = open_source(source, threads=room.threads, id_room=room.for_ids, **asked)
    if resume:
        with keep_journal(kept, opened, vars(options) | asked) as journal:
            return _store(opened, store, options, asked, room, overwrite, on_progress, journal)
    remove_kept(kept)
    return _store(opened, store, options, asked, room, overwrite, on_progress)


def generate(
    model: str,
    store: StoreLike,
    *,
    kind: Kind | None = None,
    duplicates: Duplicates | None = None,
    self_loops: SelfLoops = "keep",
    symmetrize: bool = False,
    ignore_weights: bool = False,
    transpose: bool = False,
    dtype: Literal["float32", "float64"] | None = None,
    order: OrderMethod = "none",
    overwrite: bool = False,
    client: Any = None,
    backend: Literal["auto", "cpu", "cuda"] = "auto",
    threads: int | None = None,
    timeout: float = 30.0,
    on_progress: Progress | None = None,
    **parameters: Any,
) -> MatrixInfo:
    """Generate a matrix or graph and store it.

    Parameters
    ----------
    model : `rmat` (scale, edge_factor=16, a, b, c, seed, scramble), `uniform` (n_vertices, n_edges, seed), `stencil2d`
        (nx, ny, points), `stencil3d` (nx, ny, nz, points) or `banded` (n, bandwidth, seed)
    parameters : of the model
    client : of a Dask cluster, as for `Matrix.distribute`: each worker makes a range of the rows and writes it. The
        store is the same for any number of workers, and without
    backend : with `client`: `auto` makes `rmat` and `uniform` without weights on the devices that workers have, and
        everything else on their hosts; `cpu` on hosts; `cuda` wants a device on each worker
    threads : of each worker, or of this process
    timeout : with `client`, as for `Matrix.distribute`
    others : as for `ingest`

    Raises
    ------
    OptionError : an unknown model or parameter, or one out of range; what a cluster does not make
    CapacityError : what an order takes of rows, or a worker's rows, is more than the memory that is free
    StoreExistsError : the place is taken
    ClusterError : a worker is gone, or silent for too long; nothing is left in the store
    """
    _check_threads(threads)
    check_choice("backend", backend, ("auto", *BACKENDS))
    options = IngestOptions(kind, duplicates, self_loops, symmetrize, ignore_weights, transpose, dtype, order)
    check_target(store, overwrite=overwrite)
    source = make_generator(model, **parameters)
    if client is None:
        return _store(source, store, options, {}, find_room(store, threads=threads), overwrite, on_progress)
    from mgspmv.distribute.making import make_on_cluster

    provenance = _describe_making(source.layout().provenance, options, {})
    working: dict[str, Any] = {"backend": backend, "threads": threads, "timeout": timeout, "overwrite": overwrite}
    make_on_cluster(source, store, options, client, provenance, **working, on_progress=on_progress)
    return open_store(store).info


def _store(
    source: Source,
    store: StoreLike,
    options: IngestOptions,
    reading: dict[str, Any],
    room: Room,
    overwrite: bool,
    on_progress: Progress | None,
    journal: Journal | None = None,
) -> MatrixInfo:
    describe = partial(_describe_making, options=options, reading=reading)
    report = on_progress or _ignore
    store_source(source, store, options, describe, report, room, overwrite=overwrite, journal=journal)
    return open_store(store).info


def _describe_making(source: dict[str, Any], options: IngestOptions, reading: dict[str, Any]) -> dict[str, Any]:
    """What a store says of where it comes from."""
    given = {
        name: os.fspath(value) if isinstance(value, os.PathLike) else value
        for name, value in (vars(options) | reading).items()
        if value is not None
    }
    return {"source": source, "options": given, **_stamp()}


def _stamp() -> dict[str, str]:
    """What makes something, and when."""
    return {"program": f"mgspmv {version('mgspmv')}", "created": datetime.now(UTC).isoformat(timespec="seconds")}


def reorder(
    store: StoreLike,
    target: StoreLike | None = None,
    *,
    method: OrderMethod = "rcm",
    overwrite: bool = False,
    memory: str | int | None = None,
    threads: int | None = None,
    scratch: str | os.PathLike[str] | None = None,
    on_progress: Progress | None = None,
) -> MatrixInfo:
    """Renumber the rows and columns of a stored matrix, so that products read x where it was read just before.

    Nothing else changes: vectors are given, and results come, in the order of the source, and ids are the source's.
    Ranks in `exact` keep their bits; what is summed in floating point is summed in another order.

    Parameters
    ----------
    store : of a square matrix
    target : where to write the renumbered matrix. Default: it replaces the one in `store` once it is whole; until then
        `store` stays as it is
    method : `rcm`, the reverse Cuthill-McKee order of the pattern of A + A^T, which makes the bandwidth small;
        `degree`, the longest rows first; `dealt`, the same dealt to 256 parts that are alike; or `none`, the
        order of the source. An order that the store has already does not matter
    overwrite : replace the matrix that is in `target`
    memory, threads, scratch : as for `ingest`: entries go to files where they do not fit. What must fit is 32 bytes for
        each row, and for `rcm` about 20 for each entry too
    on_progress : called with (phase, done, total or None)

    Returns
    -------
    What the new store says; `provenance["reordering"]` has the bandwidth before and after.

    Raises
    ------
    ShapeError : the matrix is not square
    CapacityError : what must fit into the memory does not
    OptionError : an option that makes no sense
    StoreExistsError : `target` is taken
    StoreError : `store` cannot be read, or holds another version by now
    """
    _check_threads(threads)
    check_choice("method", method, (*METHODS, "none"))
    stored = open_store(store)
    info = stored.info
    check_square(info.shape, info.url)
    if target is not None:
        check_target(target, overwrite=overwrite)
    place = store if target is None else target
    room = find_room(place, _parse(memory), threads, scratch)

    def describe(reordering: dict[str, Any]) -> dict[str, Any]:
        source = {"url": info.url, "digest": info.digest}
        return info.provenance | {"reordering": {**reordering, "source": source, **_stamp()}}

    writing: dict[str, Any] = {"overwrite": overwrite or target is None}
    writing["base"] = info.version if target is None else None
    reorder_store(stored, place, method, describe, on_progress or _ignore, room, **writing)
    return open_store(place).info


def update(
    store: StoreLike,
    *,
    insert: Any = None,
    delete: Any = None,
    missing: Missing = "ignore",
    self_loops: SelfLoops = "keep",
    symmetrize: bool = False,
    ignore_weights: bool = False,
    keep: int | None = None,
    format: Literal["matrix-market", "edge-list", "parquet", "npz", "anndata", "binsparse", "csr"] | None = None,
    memory: str | int | None = None,
    threads: int | None = None,
    scratch: str | os.PathLike[str] | None = None,
    on_progress: Progress | None = None,
    **edge_list_options: Any,
) -> MatrixInfo:
    """Make a new version of a stored matrix or graph, without some of its entries and with others.

    Deletions come first: an entry that is deleted and inserted is replaced. The new version is, to the bit, what
    ingesting the edited list of entries makes. Who has the store open goes on with the version that was opened.

    Parameters
    ----------
    insert, delete : as `source` of `ingest`: arcs i -> j between ids as those of the store, or, for a store without
        ids, rows and columns of a matrix. Weights in `delete` are not looked at, and of several entries at one place
        (`keep`) all go. An entry that is inserted where there is one is added (`sum`), is not taken (`first`), comes
        beside it (`keep`) or is refused (`error`), by the rule of the store. New ids become vertices; in a store
        without ids, larger numbers make the matrix larger
    missing : what to do when an entry that is to be deleted is not there: `ignore` (its number is in the provenance) or
        `error`
    self_loops : of `insert`: `keep`, `drop` or `error`
    symmetrize : of both: also (j, i) for each (i, j)
    ignore_weights : of `insert`, into a store that has none
    keep : how many versions stay in the store, the new one among them; default all of them
    format, memory, threads, scratch, edge_list_options : as for `ingest`, and for both sources

    Returns
    -------
    What the new version says; the last of `provenance["updates"]` has both sources, how many entries were inserted,
    deleted and missing, and the version before.

    Raises
    ------
    SourceError : malformed input; ids or weights that do not suit the store; an entry that is there, or is not, and was
        not to be
    OptionError : an option that makes no sense or does not suit the sources; neither `insert` nor `delete`
    StoreError : the store cannot be read or written, or was changed by another meanwhile: nothing is lost, run it again
    CapacityError : what must fit into the memory does not
    """
    _check_threads(threads)
    check_choice("missing", missing, get_args(Missing))
    check_keep(keep)
    if insert is None and delete is None:
        raise OptionError("nothing is to be inserted or deleted; pass insert (--insert), delete (--delete) or both")
    options = IngestOptions(self_loops=self_loops, symmetrize=symmetrize, ignore_weights=ignore_weights)
    stored, asked = open_store(store), {"format": format, **edge_list_options}
    room = find_room(store, _parse(memory), threads, scratch)
    reading = {"threads": room.threads, "id_room": room.for_ids, **asked}
    sources = open_update(insert, delete, stored.info.vertex_ids, **reading)

    def describe(sources: dict[str, Any], changes: Changes) -> dict[str, Any]:
        before = stored.info.provenance
        base = {"version": stored.info.version, "digest": stored.info.digest}
        made = _describe_making(sources, options, asked | {"missing": missing}) | vars(changes) | {"base": base}
        return before | {"updates": [*before.get("updates", []), made]}

    report = on_progress or _ignore
    update_store(stored, *sources, options, describe, report, room, missing=missing, keep=keep)
    return open_store(store).info


def export(
    store: StoreLike,
    target: str | os.PathLike[str],
    *,
    format: Format | None = None,
    vertices: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    memory: str | int | None = None,
    threads: int | None = None,
    scratch: str | os.PathLike[str] | None = None,
    on_progress: Progress | None = None,
) -> MatrixInfo:
    """Write a stored matrix as its source had it: `ingest` makes the same store of what is written.

    Entry (i, j) of a graph is the arc i -> j, and rows and columns have the numbers of the source, also where the store
    is renumbered. The matrix is never in memory as a whole.

    Parameters
    ----------
    store : where it is
    target : where it goes: a local path or a URL that fsspec knows
    format : `matrix-market` (.mtx, .mtx.gz, .mtx.zst), `parquet` (.parquet, .pq; columns src, dst and maybe weight,
        with the source's ids), `npz` (.npz, SciPy's), `anndata` (.zarr, an AnnData whose X it is) or `binsparse`
        (.zarr); default by the suffix, where that leaves no choice
    vertices : where to write the ids too, one a line in the order of rows, as `ingest` takes them by `vertices`
    overwrite : replace the file, or the group that was exported, once the new one is whole
    memory, threads, scratch : as for `ingest`; entries are only sorted where a renumbered matrix becomes `npz`,
        `anndata` or `binsparse`
    on_progress : called with (phase, done, total or None)

    Returns
    -------
    What the store says.

    Raises
    ------
    OptionError : an unknown format; a suffix that is not the format's; a matrix or ids that the format cannot hold
    StoreExistsError : something is there that is not to be overwritten
    StoreError : `store` cannot be read, or `target` not be written; then nothing is left of it
    CapacityError : a renumbered matrix has more rows than there is memory for
    """
    _check_threads(threads)
    chosen = choose_format(target, format)
    check_export(target, chosen, overwrite=overwrite)
    stored = open_store(store)
    if vertices is not None:
        check_vertices(stored, vertices, overwrite=overwrite)
    room = find_room(target, _parse(memory), threads, scratch)
    export_matrix(stored, target, chosen, room, on_progress or _ignore, vertices)
    return stored.info


def verify(store: StoreLike, *, on_progress: Progress | None = None) -> list[str]:
    """Check every invariant of the current version of a store: chunks, checksums, digests, CSR, degrees, ids.

    Returns
    -------
    What is wrong and where; empty when the store is whole.

    Raises
    ------
    StoreNotFoundError, StoreFormatError, StoreUnfinishedError : there is no store to be checked
    """
    return verify_store(store, on_progress)


# --- matrices --------------------------------------------------------------------------------------------------------


def open_matrix(store: StoreLike, version: str | int | None = None) -> Matrix:
    """Open a stored matrix; nothing of it is loaded before it is used.

    Parameters
    ----------
    version : name or number of an older version, see `list_versions`; default the current one

    Raises
    ------
    StoreError : there is no whole store of this format version there, or no such version
    """
    return Matrix(open_store(store, version))


class Matrix(DescribedMatrix):
    """A stored matrix of shape (n_rows, n_cols), opened by `open_matrix`.

    `A @ x` loads it into memory once and keeps it until `close()` or the end of a `with`.
    """

    __array_ufunc__ = None  # so that NumPy leaves `x @ A` to `__rmatmul__`

    def __init__(self, stored: StoredMatrix, transpose_of: Matrix | None = None) -> None:
        super().__init__(stored)
        self._transpose_of = transpose_of
        self._n_blocks = 1
        self._loaded: dict[tuple[str | None, Backend], list[CsrBlock]] = {}
        self._bound: dict[Hashable, list[BoundKernel]] = {}
        self._tuned: set[Hashable] = set()
        self._layouts: dict[Hashable, LaidPieces] = {}
        self._streamed: dict[Hashable, StreamedCsr | None] = {}

    @property
    def T(self) -> Matrix:
        """The transpose.

        Raises
        ------
        MissingTransposeError : the store does not hold it
        """
        if self._transpose_of is not None:
            return self._transpose_of
        if not self.info.has_transpose:
            raise MissingTransposeError(
                f"{self.info.url} does not hold the transpose; ingest it with transpose=True (--transpose)"
            )
        return Matrix(self.stored.transpose(), transpose_of=self)

    def find_vertices(self, ids: Sequence[Any] | np.ndarray) -> np.ndarray:
        """(k,) int64: the numbers of vertices by their ids, -1 for what is no vertex; not all ids are loaded for it.

        Raises
        ------
        OptionError : ids that are no integers, or no strings where the store's are
        StoreError : ids cannot be read
        """
        return self._lookup.find(ids)

    def name_vertices(self, numbers: Sequence[int] | np.ndarray) -> np.ndarray:
        """(k,) int64 or strings: the ids of vertices by their numbers; not all ids are loaded for it.

        Raises
        ------
        OptionError : a number that no vertex has
        StoreError : ids cannot be read
        """
        return self._lookup.read(numbers)

    @cached_property
    def _lookup(self) -> VertexLookup:
        return VertexLookup(self.stored.original or self.stored)

    def plan(
        self,
        workers: int = 1,
        *,
        device_memory: str | int | None = None,
        host_memory: str | int | None = None,
        precision: Precision = "exact",
        threads: int | None = None,
        client: Any = None,
        backend: Literal["auto", "cpu", "cuda"] = "auto",
        timeout: float = 30.0,
    ) -> Plan:
        """What PageRank (for a `matrix`: the product) will take on so many workers. Only `indptr` is read.

        Parameters
        ----------
        device_memory : of each worker's GPU, as `141GB`, `16GiB` or bytes; None where workers compute on the host. Rows
            of a graph for which a GPU has no room come by in pieces, from the host or, as far as that has no room
            either, from the store
        host_memory : of each worker; None for no limit
        threads : of each worker
        client : of a Dask cluster, as for `distribute`: plan for its workers, for the memory that they have, and
            predict seconds from what they measure with some of their rows. `workers` does not count
        backend : with `client`, as for `distribute`; without, `cuda` plans, likewise, for the current device, and
            `auto` does where there is one
        timeout : with `client`, as for `distribute`

        Raises
        ------
        CapacityError : it does not fit; the message names the number of workers that would do
        """
        _check_threads(threads)
        limits: dict[str, Any] = {"device_memory": _parse(device_memory), "host_memory": _parse(host_memory)}
        if client is not None:
            from mgspmv.distribute.matrix import plan_on_cluster

            reads = None if self.kind == "matrix" and precision == "exact" else precision
            options: dict[str, Any] = {"precision": reads, "threads": threads, "backend": backend}
            return plan_on_cluster(self.stored, client, **options, **limits, timeout=timeout)
        indptr, info = self.stored.read_array("indptr"), self.info
        dtype = None if self.is_pattern else "float32" if precision == "float32" else "float64"
        layout = find_step_layout("auto", precision, info.index_dtype, dtype, info.min_weight)
        lays_out = self.kind != "matrix" and layout is not None
        planning: dict[str, Any] = {"precision": precision, "threads": threads, "lays_out": lays_out}
        planning["streams"] = lays_out or self.kind == "matrix"
        is_here = workers == 1 and choose_backend(backend) == "cuda"
        if is_here:
            limits = _limit_to_free(**limits)
        if is_here and lays_out:
            plan = plan_rows(info, indptr, **planning, **limits)
            options = {"threads": threads, "streaming": plan.workers[0].streaming}
            rates = measure_device(self.stored, 0, info.shape[0], dtype, precision, **options)
            release_device_memory()
            return predict_seconds(plan, [rates])
        is_known = workers == 1 and limits["device_memory"] is None
        return plan_rows(
            info, indptr, workers, **planning, **limits, rates=measure_rates(threads) if is_known else None
        )

    def load(self, n_blocks: int = 1) -> Matrix:
        """Say in how many row blocks to hold the matrix; results are the same for any number. Drops what was loaded."""
        if not isinstance(n_blocks, int | np.integer) or n_blocks < 1:
            raise OptionError(f"n_blocks must be an integer of at least 1, not {n_blocks!r}")
        self.close()
        self._n_blocks = int(n_blocks)
        return self

    def close(self) -> None:
        """Free the memory of what was loaded. The matrix can be used again, and is then loaded again."""
        self._bound.clear()
        self._tuned.clear()
        self._layouts.clear()
        self._streamed.clear()
        self._loaded.clear()

    def distribute(
        self,
        client: Any,
        *,
        precision: Precision | None = None,
        weights: bool = True,
        threads: int | None = None,
        backend: Literal["auto", "cpu", "cuda"] = "auto",
        transport: Literal["auto", "nccl", "peer"] = "auto",
        device_memory: str | int | None = None,
        host_memory: str | int | None = None,
        timeout: float = 30.0,
        on_progress: Progress | None = None,
    ) -> DistributedMatrix:
        """Let the workers of a Dask cluster load the matrix, each its own rows from the store, and keep them.

        Parameters
        ----------
        client : a `distributed.Client`; the address of a scheduler; or a cluster, such as `LocalCluster`
        precision : that values are read for at once; others are read when they are first needed. Default `exact` for
            graphs, the stored dtype for a `matrix`
        weights : False reads no values
        threads : of each worker's kernels; default as many as its cluster gave the worker
        backend : `cuda` computes on the workers' CUDA devices, `cpu` on their hosts; `auto` on those devices that there
            are. On devices graphs are laid out for the steps of PageRank in `precision` at once
        transport : how devices send each other slices in supersteps: `nccl`, for which each worker has a device of its
            own; or `peer`, through hosts and Dask's comms, the only way for hosts. `auto` is `nccl` where all workers
            compute on devices of their own, and there lets devices of one host write into each other's memory where
            they can, which is faster; `Solution.matrix["transport"]` says what was done
        device_memory, host_memory : most that each worker may take of its device and of its host, as for `plan`;
            default: what is free. Where the devices have no room for all rows of a graph, and do not send by `peer`,
            some stay there and the others come by in each step of PageRank in `exact` or `float32`
        timeout : seconds that a worker may be silent before the work is given up. A worker that is busy is not silent
        on_progress : called with (phase, workers done, workers in all); phases `join`, `queue` and `load`

        Raises
        ------
        SchedulerNotFoundError, ClusterError : no scheduler answers there; it has no workers, or workers without the
            device or the NCCL that is wanted
        VersionMismatchError : a worker has other versions than this process of mgspmv, Python, or the libraries
        CapacityError : more than a worker may take; the message names the number of workers that would do
        OptionError : the store is in the memory of this process
        StoreError : a worker cannot read the store
        """
        from mgspmv.distribute.matrix import distribute_matrix

        _check_threads(threads)
        check_choice("precision", precision, ("exact", "float64", "float32", None))
        check_choice("backend", backend, ("auto", "cpu", "cuda"))
        check_choice("transport", transport, ("auto", "nccl", "peer"))
        places: dict[str, Any] = {"backend": backend, "transport": transport}
        places |= {"device_memory": _parse(device_memory), "host_memory": _parse(host_memory)}
        options: dict[str, Any] = {"precision": precision, "weights": weights, "threads": threads, **places}
        return distribute_matrix(self.stored, client, **options, timeout=timeout, on_progress=on_progress)

    def distribute_for_products(self, client: Any, **options: Any) -> DistributedMatrix:
        """As `distribute`, but on devices a graph is not laid out for the steps of PageRank before there are any."""
        from mgspmv.distribute.matrix import distribute_matrix

        return distribute_matrix(self.stored, client, lay_out=False, **options)

    def to_scipy(self) -> Any:
        """The matrix as `scipy.sparse.csr_array`, shape (n_rows, n_cols); a pattern gets ones of float64."""
        import scipy.sparse

        indptr, indices = self.stored.read_array("indptr"), self.stored.read_array("indices")
        data: Any = np.ones(self.nnz) if self.is_pattern else self.stored.read_array("data")
        if self.order is not None:
            indptr, indices, data = renumber_csr(indptr, indices, data, invert(self.order))
        return scipy.sparse.csr_array((data, indices, indptr), shape=self.shape)

    def blocks(self, dtype: str | None, threads: int | None = None, backend: Backend = "cpu") -> list[CsrBlock]:
        """The row blocks as stored, with values of this dtype, or without; loaded once, by so many threads.

        Parameters
        ----------
        backend : `cuda` holds them on the current device, and not on the host

        Raises
        ------
        CapacityError : more than the memory that is free
        """
        dtype = None if self.is_pattern else dtype
        key = (dtype, backend)
        if key not in self._loaded:
            self._loaded[key] = self._load_blocks(dtype, threads, backend)
        return self._loaded[key]

    def bind(
        self,
        dtype: str | None,
        precision: Precision,
        *,
        kernel: str = "auto",
        threads: int | None = None,
        backend: Backend = "cpu",
    ) -> list[BoundKernel]:
        """The kernels of the blocks with values of this dtype, or without; bound once.

        Raises
        ------
        OptionError : the backend has no kernel of that name
        FormatError : the kernel cannot do this matrix
        CapacityError : more than the memory that is free
        """
        key = (dtype, precision, kernel, threads, backend)
        if key not in self._bound:
            blocks = self.blocks(dtype, threads, backend)
            options: dict[str, Any] = {"kernel": kernel, "threads": threads, "backend": backend}
            self._bound[key] = [bind_kernel(b, precision, **options) for b in blocks]
        return self._bound[key]

    def bind_products(
        self,
        dtype: Literal["float32", "float64"],
        *,
        kernel: str = "auto",
        threads: int | None = None,
        backend: Backend = "cpu",
        tune: bool = False,
    ) -> list[BoundKernel]:
        """The kernels of the blocks for products with x of this dtype; bound once, and tuned once.

        Parameters
        ----------
        tune : as for `spmv`

        Raises
        ------
        OptionError, FormatError, CapacityError : as for `bind`
        """
        key = ("products", dtype, kernel, threads, backend)
        if tune and key not in self._tuned:
            self._bound.pop(key, None)  # its format would be in the way of those that are timed
        if key not in self._bound:
            digest = f"{self.info.digest}{', transposed' if self.is_transpose else ''}"
            options: dict[str, Any] = {"kernel": kernel, "threads": threads, "backend": backend, "tune": tune}
            self._bound[key] = [bind_product(b, dtype, digest, **options) for b in self.blocks(dtype, threads, backend)]
            self._tuned |= {key} if tune else set()
        return self._bound[key]

    def bind_streamed(
        self,
        dtype: Literal["float32", "float64"],
        *,
        kernel: str = "auto",
        threads: int | None = None,
        **limits: int | None,
    ) -> StreamedCsr | None:
        """What multiplies with x of this dtype on the current device while rows come by; None if it has room for all.

        Parameters
        ----------
        limits : `device_memory` and `host_memory`, as for `spmv`, in bytes

        Raises
        ------
        FormatError, CapacityError : as of `StreamedCsr`
        """
        from mgspmv.kernels.streamed_csr import StreamedCsr

        key = (dtype, kernel, *limits.values())
        if key not in self._streamed:
            self._streamed[key] = None
            is_there = any(held == "cuda" for _, held in self._loaded)
            if not is_there or any(limit is not None for limit in limits.values()):
                loaded = self.info if not self.is_pattern else replace(self.info, dtype=None)
                planning: dict[str, Any] = {"precision": dtype, "threads": threads, "streams": True}
                indptr = self.stored.read_array("indptr", threads=threads)
                plan = plan_rows(loaded, indptr, **planning, **_limit_to_free(**limits))
                warn_of_streaming(plan, stacklevel=3)
                streaming = plan.workers[0].streaming
                if streaming is not None:
                    options: dict[str, Any] = {"is_pattern": self.is_pattern, "threads": threads, "kernel": kernel}
                    self._streamed[key] = StreamedCsr(self.stored, 0, self.shape[0], dtype, streaming, **options)
        return self._streamed[key]

    def bind_steps(
        self,
        dtype: str | None,
        precision: Precision,
        layout: StepLayout = "auto",
        threads: int | None = None,
        **limits: int | None,
    ) -> RankSteps:
        """The steps of PageRank on the current device, for all rows, with values of this dtype or without.

        Their layout is made once, while the matrix is read piece by piece: the host never holds it, the device a piece.

        Parameters
        ----------
        limits : `device_memory` and `host_memory`, as for `pagerank`, in bytes

        Raises
        ------
        FormatError : the layout cannot hold this matrix
        CapacityError : more than the memory that is free
        """
        dtype = None if self.is_pattern else dtype
        key = (dtype, layout, *limits.values())
        if key not in self._layouts:
            self._layouts[key] = self._read_layout(dtype, precision, layout, threads, **limits)
        return RankSteps(self._layouts[key], precision)

    def __matmul__(self, x: Any) -> np.ndarray:
        """y = A @ x for x of shape (n_cols,) or (n_cols, k); float32 when A's values and x are, else float64."""
        product: np.ndarray = spmv(self, x)
        return product

    def __rmatmul__(self, x: Any) -> np.ndarray:
        """y = x @ A, which is A.T @ x: of shape (n_cols,) or (k, n_cols); needs the stored transpose."""
        return (self.T @ np.asarray(x).T).T

    def __enter__(self) -> Matrix:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        values = "pattern" if self.is_pattern else self.info.dtype
        return f"<Matrix: {self.kind} of shape {self.shape}, {self.nnz} entries, {values}, {self.info.url}>"

    def _read_layout(
        self, dtype: str | None, precision: Precision, layout: StepLayout, threads: int | None, **limits: int | None
    ) -> LaidPieces:

        indptr = self.stored.read_array("indptr", threads=threads)
        loaded = self.info if dtype else replace(self.info, dtype=None)
        planning: dict[str, Any] = {"precision": precision, "threads": threads, "lays_out": True, "streams": True}
        plan = plan_rows(loaded, indptr, **planning, **_limit_to_free(**limits))
        warn_of_streaming(plan, stacklevel=5)
        streaming = plan.workers[0].streaming

        def read(start: int, stop: int) -> CsrBlock:
            return read_block(self.stored, start, stop, dtype, threads)

        named = None if layout == "auto" else layout
        with report_full_device("the layout of the matrix for steps of PageRank"):
            rows = LaidRows(indptr, read, layout=named, piece_entries=choose_piece(self.nnz, streaming))
            is_read = read_vector(self.stored, "out_degree", 0, self.shape[0], threads) > 0
            places = rows.place_streamed(is_read, streaming)
            return rows.lay_out(places, places.all_columns, places.n_sent, streaming)

    def check_room(self, dtype: str | None, threads: int | None = None, **limits: int | None) -> None:
        """
        Parameters
        ----------
        limits : `device_memory` and `host_memory`, as for `pagerank`, in bytes

        Raises
        ------
        CapacityError : the current device has no room for CSR with values of this dtype, or without, and for vectors
        """
        self._read_indptr(dtype, threads, **_limit_to_free(**limits))

    def _read_indptr(self, dtype: str | None, threads: int | None, **memory: Any) -> np.ndarray:
        """The row pointers of a matrix that fits."""
        indptr = self.stored.read_array("indptr", threads=threads)
        loaded = self.info if dtype else replace(self.info, dtype=None)
        precision: Precision = "float32" if dtype == "float32" else "float64"
        plan_rows(loaded, indptr, precision=precision, threads=threads, **memory)
        return indptr

    def _load_blocks(self, dtype: str | None, threads: int | None, backend: Backend) -> list[CsrBlock]:
        is_cuda = backend == "cuda"
        memory = {"device_memory": free_device_memory()} if is_cuda else {"host_memory": free_memory()}
        indptr = self._read_indptr(dtype, threads, **memory)
        bounds = split_rows(indptr, self._n_blocks, bytes_per_nonzero=4, bytes_per_row=16)
        del indptr
        read = read_block if is_cuda else StoredMatrix.read_block
        return [read(self.stored, int(start), int(stop), dtype, threads) for start, stop in pairwise(bounds)]


# --- products --------------------------------------------------------------------------------------------------------


def spmv(
    A: Matrix | DistributedMatrix,
    x: Any,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    y: Any = None,
    kernel: str = "auto",
    tune: bool = False,
    backend: Literal["auto", "cpu", "cuda"] = "auto",
    precision: Literal["float32", "float64"] | None = None,
    threads: int | None = None,
    client: Any = None,
    device_memory: str | int | None = None,
    host_memory: str | int | None = None,
    timeout: float = 30.0,
    on_progress: Progress | None = None,
) -> Any:
    """y = alpha * A @ x + beta * y.

    Parameters
    ----------
    A : of shape (n_rows, n_cols), opened by `open_matrix` or distributed; on a graph this is the pull product
    x : (n_cols,) or (n_cols, k), real; of a distributed matrix also a dask array
    y : (n_rows,) or (n_rows, k), real; needed unless beta is 0, when it is not read. It is not changed.
    kernel : `auto`, or one of those that `mgspmv bench spmv --list` names; on a cluster `csr-rows` or `csr-serial`.
        `auto` is what was found to be the fastest where it was tuned; else csr-rows on the host, and on a device what
        suits the matrix, whose format takes memory and, once, time
    tune : with kernel `auto`, time those that may be the fastest, cuSPARSE among them, each with its format made; and
        keep the choice in the user's cache for this matrix, its row blocks, the dtype and the device, for `auto`
        from then on. Kernels round otherwise, so that the last bits of a product may change with the choice
    backend : `cuda` computes on the current CUDA device, `cpu` on the host; `auto` on a device where there is one. With
        `client`, of the workers, as for `Matrix.distribute`
    precision : default float32 when both A's values and x are float32, else float64; sums are made in float64 by
        csr-rows and csr-serial, and in `precision` by the others
    threads : default: the processors this process may use; on a cluster, those that it gave each worker
    client : of a Dask cluster, as for `Matrix.distribute`: distributes A for this one product; default: compute in this
        process, or where A is
    device_memory, host_memory : as for `pagerank`. Rows that the device has no room for come by in pieces, from the
        host or the store, and are multiplied by csr-split
    timeout : with `client`, seconds that a worker may be silent before the product is given up
    on_progress : with `client`, called with (phase, workers done, workers in all) until A is distributed

    Returns
    -------
    (n_rows,) or (n_rows, k) of `precision`. The same bits for any number of threads and workers, and the same at each
    run. NumPy; for a dask x a dask array that stays on the workers.

    Raises
    ------
    ShapeError : x or y does not fit the matrix
    OptionError : complex numbers, or an option that makes no sense
    BackendError : `cuda` and no device, or CuPy is not installed
    FormatError : the kernel cannot do this matrix; the message says why and names others
    CapacityError : the matrix does not fit into the memory that is free
    ClusterError : a worker is gone, or silent for too long
    """
    _check_threads(threads)
    distributed = _find_distributed(A, client)
    computes = _choose_backend(backend, A, client)
    options: dict[str, Any] = {"alpha": alpha, "beta": beta, "y": y, "kernel": kernel, "precision": precision}
    _check_tune(tune, kernel, is_on_cluster=distributed is not None or client is not None)
    _check_memory(distributed is None and (client is not None or computes == "cuda"), device_memory, host_memory)
    limits: dict[str, Any] = {"device_memory": _parse(device_memory), "host_memory": _parse(host_memory)}
    if distributed is not None:
        return distributed.multiply(x, **options, threads=threads)
    assert isinstance(A, Matrix)
    if client is not None:
        reads = choose_precision(precision, getattr(x, "dtype", np.dtype(np.float64)), A.info)
        distributing: dict[str, Any] = {"threads": threads, "timeout": timeout, "on_progress": on_progress} | limits
        with A.distribute_for_products(client, precision=reads, backend=backend, **distributing) as distributed:
            return distributed.multiply(x, **options, threads=threads)
    x = check_vectors("x", x, A.shape[1], "columns")
    chosen = choose_precision(precision, x.dtype, A.info)
    x = permute(np.ascontiguousarray(x, dtype=chosen), A.order)
    out = start_product(y, beta, (A.shape[0], *x.shape[1:]), chosen)
    if beta != 0:
        out = permute(out, A.order)
    streamed = A.bind_streamed(chosen, kernel=kernel, threads=threads, **limits) if computes == "cuda" else None
    if streamed is not None:
        x, out = put(x), put(out)
        streamed.multiply(x, out, alpha, beta)
        return restore(get(out), A.order)
    kernels = A.bind_products(chosen, kernel=kernel, threads=threads, backend=computes, tune=tune)
    x, out = kernels[0].put(x), kernels[0].put(out)
    for bound in kernels:
        start = bound.block.row_offset
        bound.multiply(x, out[start : start + bound.block.n_rows], alpha, beta)
    return restore(kernels[0].get(out), A.order)


def gemv(
    A: Any,
    x: Any,
    b: Any = None,
    *,
    kernel: str = "auto",
    backend: Literal["auto", "cpu", "cuda"] = "auto",
) -> np.ndarray:
    """y = A x + b for a dense A in memory.

    Parameters
    ----------
    A, x, b : (n_rows, n_cols), (n_cols,) and (n_rows,) arrays of real numbers; b may be None
    kernel : `auto`, or `dense-rows` (a thread a row), `dense-block` (a thread block a row) or `dense-tiles` (tiles over
        a grid); their sums are made in a fixed order, the same on each backend. `auto` on the CPU is NumPy's product
    backend : as for `spmv`

    Returns
    -------
    (n_rows,) float32 when all operands are, else float64.

    Raises
    ------
    ShapeError : arrays that do not fit each other
    OptionError : complex numbers; no kernel of that name
    BackendError : `cuda` and no device, or CuPy is not installed
    """
    return multiply_dense(A, x, b, kernel, choose_backend(backend))


# --- PageRank --------------------------------------------------------------------------------------------------------


def pagerank(
    A: Matrix | DistributedMatrix,
    *,
    alpha: float = 0.85,
    tol: float | None = None,
    tol_mode: TolMode = "l1",
    max_iter: int = 100,
    personalization: Weights | None = None,
    dangling: Weights | Literal["uniform", "drop", "error"] | None = None,
    nstart: Weights | None = None,
    weights: bool = True,
    precision: Precision = "exact",
    drive: Drive = "auto",
    kernel: str = "auto",
    backend: Literal["auto", "cpu", "cuda"] = "auto",
    threads: int | None = None,
    client: Any = None,
    transport: Literal["auto", "nccl", "peer"] = "auto",
    device_memory: str | int | None = None,
    host_memory: str | int | None = None,
    timeout: float = 30.0,
    throw: bool = True,
    on_event: Callable[[Event], None] | None = None,
    on_progress: Progress | None = None,
) -> Solution:
    """PageRank of the vertices of a stored graph.

        z = x / w (0 where w = 0);   m = sum of x over dangling vertices
        x' = alpha (A z + m d) + (1 - alpha) p

    Parameters
    ----------
    A : of kind `graph` or `stochastic`, opened by `open_matrix` or distributed
    alpha : damping, 0 <= alpha < 1
    tol : stop when the change is below; default 1e-6
    tol_mode : `l1` sum of |x' - x| < tol; `l1_per_node` sum < n * tol, as in NetworkX; `linf` largest |x' - x| < tol;
        `fixed` makes exactly max_iter iterations and takes no tol
    max_iter : most iterations; converging on the last one is converging
    personalization : p, as (n,) array in the order of the store's vertices or a mapping of the source's ids;
        normalised; default uniform
    dangling : d, where the rank of vertices without out-edges goes: an array or mapping like p; None for p, as in
        NetworkX and cuGraph; `uniform`; `drop` loses it, as in GAP and Neo4j (the start is then (1 - alpha) p);
        `error` refuses
    nstart : the first x, like p; normalised; default uniform
    weights : False counts every stored edge as 1
    precision : `exact` fixed point, the same bits everywhere; `float64`; `float32`
    drive : `embedded`, in this process; `superstep`, in which the workers of a cluster iterate in lockstep; or
        `scheduler`, in which each iteration is a round of tasks. `auto` is `superstep` on a cluster, else `embedded`.
        All make the same iterations, and in `exact` the same bits
    kernel : `auto`; or `csr-rows` or `csr-serial` on the host, `row-blocks`, `row-slices` or `csr-split` on CUDA
    backend : as for `spmv`; `exact` gives the same bits on every backend
    threads : default: the processors this process may use; on a cluster, those that it gave each worker
    client : of a Dask cluster, as for `Matrix.distribute`: distributes A for this one run. One run at a time is on a
        cluster, the next waits
    transport : with `client`, as for `Matrix.distribute`
    device_memory, host_memory : most to take, with `client` of each worker, as for `Matrix.distribute`; they are for
        CUDA, on which the rows that the device has no room for come by in each iteration, from the host or the store
    timeout : with `client`, seconds that a worker may be silent before the run is given up
    throw : raise when the tolerance was not met; False returns the solution with its status
    on_event : called with what each iteration did; on a cluster about once a second with all since then
    on_progress : with `client` or on a cluster, called with (phase, done, total or None) before the first iteration

    Returns
    -------
    Solution with `values` of shape (n,), float64 (float32 for precision `float32`), summing to 1 unless dangling mass
    is dropped; `error_bound_l1` bounds their L1 distance to the exact ranks.

    Raises
    ------
    KindError : the store is of kind `matrix`
    OptionError : an option that makes no sense; a tolerance that any ranks meet, or that rounding does not let be met
    BackendError : `cuda` and no device, or CuPy is not installed
    DanglingError : dangling="error" and a vertex without out-edges
    CapacityError : the matrix does not fit into the memory that is free
    ClusterError : a worker is gone, or silent for too long; the cluster can be used again
    ConvergenceError : not converged, with the `solution` attached
    """
    _check_threads(threads)
    check_choice("drive", drive, ("auto", "embedded", "scheduler", "superstep"))
    if transport != "auto" and client is None:
        raise OptionError(
            "transport says how workers send slices to each other; pass client too (--cluster or --scheduler), or pass "
            "it to distribute"
        )
    options = PageRankOptions(alpha, tol, tol_mode, max_iter, precision)
    distributed = _find_distributed(A, client)
    drive = _choose_drive(drive, distributed is not None or client is not None)
    computes = _choose_backend(backend, A, client)
    _check_memory(distributed is None and (client is not None or computes == "cuda"), device_memory, host_memory)
    if isinstance(A, Matrix) and client is None:
        check_step_kernel(kernel, computes)
    elif client is not None:  # what the workers have is looked at when they are reached
        known = [name for each in BACKENDS for name in list_kernels(each, for_steps=True)]
        check_choice("kernel", kernel, ("auto", *dict.fromkeys(known)))
    use_weights = _check_graph(A, weights)
    threshold = options.threshold(A.shape[0], A.nnz)
    began = time.perf_counter()
    vectors = (personalization, dangling, nstart)
    start = make_start(A.stored, A.vertex_ids, options, *vectors, use_weights=use_weights, order=A.order)
    dtype = None if not use_weights else "float32" if precision == "float32" else "float64"
    events: list[Event] = []

    def emit(event: Event) -> None:
        events.append(event)
        if on_event is not None:
            on_event(event)

    computing: dict[str, Any] = {"dtype": dtype, "kernel": kernel, "threads": threads, "run": uuid.uuid4().hex[:12]}
    steps = (options, threshold, start, emit)
    if distributed is not None:
        outcome = _rank_distributed(distributed, *steps, drive=drive, on_progress=on_progress, **computing)
    elif client is not None:
        assert isinstance(A, Matrix)
        reads: dict[str, Any] = {"precision": precision, "weights": use_weights, "threads": threads, "backend": backend}
        reads |= {"transport": transport, "timeout": timeout, "on_progress": on_progress}
        reads |= {"device_memory": device_memory, "host_memory": host_memory}
        with A.distribute(client, **reads) as distributed:
            loaded = time.perf_counter()
            outcome = _rank_distributed(distributed, *steps, drive=drive, on_progress=on_progress, **computing)
        outcome.seconds["load"] = loaded - began
    else:
        assert isinstance(A, Matrix)
        weight, computing["backend"] = read_out_weight(A.stored, use_weights), computes
        computing |= {"device_memory": _parse(device_memory), "host_memory": _parse(host_memory)}
        outcome = _rank_embedded(A, weight, began, *steps, **computing)
    outcome = replace(outcome, values=restore(outcome.values, A.order))
    solution = _solve(A, options, outcome, tuple(events), _describe_dangling(dangling), use_weights, drive)
    if throw and not outcome.status.is_success:
        made = f"{solution.iterations} iterations, the last change was {solution.changes[-1]:.3g}"
        raise ConvergenceError(f"PageRank ended as {outcome.status} after {made}: {outcome.status.advice}", solution)
    return solution


def _choose_drive(drive: Drive, is_on_cluster: bool) -> Drive:
    if drive == "auto":
        return "superstep" if is_on_cluster else "embedded"
    if is_on_cluster and drive == "embedded":
        raise OptionError("drive='embedded' computes in this process; leave client out and pass an opened matrix")
    if not is_on_cluster and drive != "embedded":
        raise OptionError(f"drive={drive!r} needs a cluster; pass client, or a distributed matrix")
    return drive


def _rank_embedded(
    A: Matrix,
    weight: np.ndarray,
    began: float,
    options: PageRankOptions,
    threshold: float,
    start: Start,
    emit: Callable[[Event], None],
    *,
    dtype: str | None,
    kernel: str,
    threads: int | None,
    run: str,
    backend: Backend,
    **limits: int | None,
) -> Outcome:
    """In this process: on a device by its own steps, where a layout for them can hold the matrix."""
    layout = None
    if backend == "cuda":
        layout = find_step_layout(kernel, options.precision, A.info.index_dtype, dtype, A.info.min_weight)
    if layout is None and any(own is not None for own in limits.values()):
        A.check_room(dtype, threads, **limits)
    if layout is None:
        kernels = A.bind(dtype, options.precision, kernel=kernel, threads=threads, backend=backend)
        rows = [_cut(start, weight, kernel) for kernel in kernels]
        loaded = time.perf_counter()
        outcome = run_embedded(rows, options, threshold, emit, run=run)
    else:
        device = A.bind_steps(dtype, options.precision, layout, threads, **limits)
        loaded = time.perf_counter()
        outcome = run_on_device(device, start.on_device(weight), options, threshold, emit, run=run)
    outcome.seconds["load"] = loaded - began
    return outcome


def _cut(start: Start, weight: np.ndarray, kernel: BoundKernel) -> Rows:
    """What a block of this process starts with."""
    first, last = kernel.block.row_offset, kernel.block.row_offset + kernel.block.n_rows
    return start.cut(first, last).bind(kernel, weight[first:last])


def _rank_distributed(matrix: DistributedMatrix, *steps: Any, **computing: Any) -> Outcome:
    from mgspmv.distribute.drives import run_distributed

    return run_distributed(matrix, *steps, **computing)


def _check_graph(A: DescribedMatrix, weights: bool) -> bool:
    """Whether values are to be used."""
    if A.is_transpose:
        raise KindError(
            f"the transpose of {A.info.url} holds out-edges in its rows; for ranks of the reversed graph ingest its "
            "source with every arc turned round"
        )
    if A.kind == "matrix" and A.shape[0] != A.shape[1]:
        raise KindError(
            f"{A.info.url} is a matrix of {A.shape[0]:,} x {A.shape[1]:,}, and PageRank needs a square one, with a row "
            "and a column for each vertex"
        )
    if A.kind == "matrix":
        raise KindError(
            f"{A.info.url} is a store of kind 'matrix', whose rows need not be in-edges; for PageRank ingest its "
            "source again with kind='graph' (entry (i, j) is the arc i -> j), or 'stochastic' if its columns sum to 1"
        )
    if A.shape[0] == 0:
        raise OptionError(f"{A.info.url} has no vertices, so there are no ranks")
    if A.kind == "stochastic" and not weights:
        raise OptionError("a stochastic matrix is its weights; leave weights=True, or ingest it with kind='graph'")
    if weights and A.info.min_weight is not None and A.info.min_weight < 0:
        raise OptionError(
            f"PageRank needs weights that are not negative, the least is {A.info.min_weight}; pass weights=False "
            "(--ignore-weights) to count every edge as 1"
        )
    return weights and not A.is_pattern


def _describe_dangling(dangling: Weights | str | None) -> str:
    return "personalization" if dangling is None else dangling if isinstance(dangling, str) else "vector"


def _solve(
    A: DescribedMatrix,
    options: PageRankOptions,
    outcome: Outcome,
    events: tuple[Event, ...],
    dangling: str,
    use_weights: bool,
    drive: str,
) -> Solution:
    tol = None if options.tol_mode == "fixed" else options.tol or DEFAULT_TOL
    asked = vars(options) | {"tol": tol, "dangling": dangling, "weights": use_weights, "drive": drive}
    info = A.info
    matrix = {
        "url": info.url,
        "digest": info.digest,
        "shape": list(info.shape),
        "nnz": info.nnz,
        "kind": info.kind,
        "program": f"mgspmv {version('mgspmv')}",
        "hardware": outcome.hardware,
        **({} if outcome.transport is None else {"transport": outcome.transport}),
    }
    changes = tuple(event.change for event in events)
    reached = (outcome.values, outcome.status, len(events), changes, outcome.seconds, outcome.error_bound_l1)
    return Solution(*reached, A.vertex_ids, asked, matrix, events)


# --- what they share -------------------------------------------------------------------------------------------------


def _find_distributed(A: Any, client: Any) -> DistributedMatrix | None:
    """A itself where it is on a cluster; raises when it is no matrix at all."""
    if isinstance(A, Matrix):
        return None
    if "mgspmv.distribute.matrix" in sys.modules:  # else nothing was ever distributed, and Dask is not imported for it
        from mgspmv.distribute.matrix import DistributedMatrix

        if isinstance(A, DistributedMatrix):
            if client is not None:
                raise OptionError("the matrix is on a cluster already; leave client out")
            return A
    what = repr(A) if isinstance(A, str | os.PathLike) else f"a {type(A).__name__}"
    raise OptionError(f"A must be a matrix opened by open_matrix, not {what}; pass open_matrix(store)")


def _choose_backend(backend: str, A: Any, client: Any) -> Backend:
    """Where this process computes; on a cluster it does not, and this says whether the workers can."""
    if isinstance(A, Matrix) and client is None:
        return choose_backend(backend)
    check_choice("backend", backend, ("auto", *BACKENDS))
    there = None if isinstance(A, Matrix) else A.backend
    if client is None and backend != "auto" and backend != there:
        where = f"backend={there!r}" if there else "some workers on hosts and others on devices"
        raise OptionError(
            f"the matrix was distributed for {where}, and now backend={backend!r} is asked for; leave backend out, or "
            f"distribute it with backend={backend!r}"
        )
    return "cpu"


def _check_tune(tune: bool, kernel: str, *, is_on_cluster: bool) -> None:
    if tune and kernel != "auto":
        raise OptionError(f"tune chooses the kernel by timing, and kernel is {kernel!r}; leave one of the two out")
    if tune and is_on_cluster:
        raise OptionError(
            "tune times kernels in this process, and the workers of a cluster would have to; leave tune out, or name a "
            "kernel"
        )


def _parse(size: str | int | None) -> int | None:
    return None if size is None else parse_bytes(size)


def _limit_to_free(*, device_memory: int | None = None, host_memory: int | None = None) -> dict[str, Any]:
    """What there is of memory here, or less."""
    return {
        "device_memory": limit(free_device_memory(), device_memory),
        "host_memory": limit(free_memory(), host_memory),
    }


def _check_memory(is_free: bool, device_memory: str | int | None, host_memory: str | int | None) -> None:
    """
    Parameters
    ----------
    is_free : whether memory can be limited here
    """
    if not is_free and (device_memory is not None or host_memory is not None):
        raise OptionError(
            "device_memory and host_memory limit what a run on CUDA takes; leave them out with backend='cpu', and pass "
            "them to distribute where the matrix is on a cluster already"
        )


def _check_threads(threads: int | None) -> None:
    if threads is not None and not isinstance(threads, int | np.integer):
        raise OptionError(f"threads must be an integer, not {threads!r}")
    if threads is not None and threads < 1:
        raise OptionError(f"threads must be at least 1, not {threads}")


def _ignore(phase: str, done: int, total: int | None) -> None:
    """Report progress to nobody."""
