"""Conversions of sources to stores, and of stores to other stores."""

from __future__ import annotations

import os
from functools import partial
from inspect import unwrap
from typing import Any, Literal

from zarr.storage import MemoryStore

from mgspmv.api.matrix import Matrix
from mgspmv.api.reading import describe_making, name_reading, sort_on_device
from mgspmv.errors import OptionError
from mgspmv.ingest.budget import ANY_ROOM, find_budget
from mgspmv.ingest.open import open_source, open_update
from mgspmv.ingest.store_writing import store_source
from mgspmv.ingest.update import Changes, update_store
from mgspmv.lookup import VertexLookup
from mgspmv.model import Duplicates, IngestOptions, Kind, MatrixInfo, OrderMethod, SelfLoops
from mgspmv.monitor.progress import ProgressOption, make_report, watched
from mgspmv.solvers.options import check_threads, parse_size
from mgspmv.store.locations import StoreLike
from mgspmv.store.read import open_store, verify_store
from mgspmv.store.stored_matrix import StoredMatrix
from mgspmv.store.versions import check_keep, check_target


@watched
def ingest(
    source: Any,
    store: StoreLike | None = None,
    *,
    kind: Kind | None = None,
    duplicates: Duplicates | None = None,
    self_loops: SelfLoops = "keep",
    symmetrize: bool = False,
    weights: bool | str | None = None,
    transpose: bool = False,
    dtype: Literal["int64", "float32", "float64"] | None = None,
    order: OrderMethod = "none",
    overwrite: bool = False,
    allow_hypersparse: bool = False,
    format: Literal["matrix-market", "edge-list", "parquet", "npz", "anndata", "binsparse", "csr"] | None = None,
    memory: str | int | None = None,
    threads: int | None = None,
    scratch: str | os.PathLike[str] | None = None,
    client: Any = None,
    timeout: float = 30.0,
    wait: bool = True,
    progress: ProgressOption = None,
    **edge_list_options: Any,
) -> Matrix:
    """Read a matrix or graph, store it, and open it.

    Parameters
    ----------
    source : path, graph, table, matrix or arrays
        Path or URL of a Matrix Market file or an edge list, plain or as `.gz .bz2 .xz .zst`, or `-` for standard input;
        of a Parquet table of edges, of a SciPy `.npz`, or of a Zarr group of anndata, of binsparse or of plain CSR
        arrays, also in a local `.zip`; several edge lists or Parquet tables that are one graph, as a list of paths, a
        folder, or a pattern such as `edges/*.csv.gz`; a Zarr store or group; a SciPy sparse or dense NumPy matrix; a
        graph of NetworkX; a table of edges of pandas, polars, cuDF, Dask, Arrow or another library with
        `__arrow_c_stream__`; a tuple (src, dst[, weight]) of arrays, an edge index, which is an integer array of shape
        (2, E), or a list of pairs or triples; or a matrix store, or a `Matrix`, whose ids are kept. Arrays may be of
        any library with `__cuda_array_interface__` or `__dlpack__`, and are copied to the host.
    store : path or Zarr store, optional
        Target: local path, fsspec URL or Zarr store; default the memory of this process.
    kind : {"graph", "matrix", "stochastic"}, optional
        `graph` stores the arc i -> j as entry (j, i), so that PageRank pulls; `matrix` stores rows as they are;
        `stochastic` is a left-stochastic matrix (columns sum to 1) used as it is. Default: `graph` for edge lists,
        tables and NetworkX, that of a matrix store, else `matrix`.
    duplicates : {"sum", "first", "keep", "error"}, optional
        Rule for entries at one place; default `sum` with values, `first` without.
    self_loops : {"keep", "drop", "error"}, default "keep"
        Rule for entries on the diagonal.
    symmetrize : bool, default False
        Add (j, i) for each (i, j), before duplicates are treated.
    weights : bool or str, optional
        False stores the pattern only; True requires weights in an edge list or table; a name chooses their column, or
        attribute in a graph. Default: weights if the source has them.
    transpose : bool, default False
        Also store the transpose, which `A.T` needs.
    dtype : {"int64", "float32", "float64"}, optional
        Type of the stored values; default as in the source, and float64 for text. Only `float64` takes integers beyond
        int64, which it rounds; `int64` takes whole numbers.
    order : {"rcm", "degree", "dealt", "none"}, default "none"
        Order of rows and columns: `rcm`, `degree` or `dealt` renumbers them as `reorder` does by that method, before
        they are written; `none` is the order of the source.
    overwrite : bool, default False
        Replace the existing matrix, once the new one is complete.
    allow_hypersparse : bool, default False
        Store as many rows and columns as a file or group states, also if they are more than 100 for each entry and more
        than 8,388,608.
    format : {"matrix-market", "edge-list", "parquet", "npz", "anndata", "binsparse", "csr"}, optional
        Format of the source; default by name and first bytes of a file, or by the attributes of a Zarr group.
    memory : str or int, optional
        Memory limit of this process, as `4GiB` or bytes, at least 1 GiB; default half of the free memory, in addition
        to its current use. Entries, and ids that occur in them, spill to files if they do not fit. The rest must fit in
        memory: a list of `vertices`, in a quarter of it; with `order`, 32 bytes per row, and for `rcm` about 20 more
        per entry, in half of it; and entries at one place.
    threads : int, optional
        Number of threads that parse, sort and write; default one per processor.
    scratch : path, optional
        Folder for these files, which are unnamed and removed with the process; default the folder of the store, or the
        system's where the store is not local.
    client : Client, cluster or address, optional
        Client of a Dask cluster, as for `Matrix.distribute`: each worker reads a part of the source, sorts a range of
        the rows and writes it. The source is edge lists, a Matrix Market file, Parquet files or a Dask DataFrame, which
        all workers must reach, as the store. `memory`, `threads` and `scratch` are of each worker; default half of what
        it may still take, its threads, and Dask's own folder. The store is the same for any number of workers, and
        without.
    timeout : float, default 30.0
        Seconds without heartbeats after which a worker is considered lost, with `client`.
    wait : bool, default True
        False returns as soon as the graph can be ranked, and writes the store meanwhile: `close()`, or the end of a
        `with`, waits for the writing and raises its errors, such as a full disk; so do `info` and calls that read the
        store. Only a graph that is built on a GPU can be ranked so early; others are written before the return. A
        process that ends before leaves no store, and warns.
    progress : callable or bool, optional
        Called with each `Phase` until the return; True and False show and hide the progress, as does `show_progress`.
    edge_list_options : keyword arguments
        `columns`, `n_vertices`, `vertices` of an edge list or a table; `delimiter`, `header`, `skip_rows`, `comment`,
        `ids` of an edge list; see the page "CSV and edge lists"; `n_vertices` of a tuple of arrays; `n_cols` of plain
        CSR arrays in a Zarr group.

    Returns
    -------
    The opened matrix, whose `ingest_report` says how the source was read: columns, skipped lines, merged duplicates.

    Raises
    ------
    SourceError : malformed input, with the line's number and text; far more rows or columns than entries
    ShapeError : an order, and the matrix is not square
    CapacityError : the memory or the disk does not suffice
    StoreExistsError : `store` exists
    OptionError : an option that is invalid or does not suit the source; a source that a cluster does not ingest
    ClusterError : a worker is lost, or silent for too long; nothing is left in the store

    Examples
    --------
    >>> import mgspmv as mg
    >>> web = mg.ingest([("home", "shop"), ("shop", "home"), ("blog", "home")], "web.zarr")
    >>> web
    <Matrix: graph of shape (3, 3), 3 entries, pattern, web.zarr>
    >>> web.vertex_ids
    array(['blog', 'home', 'shop'], dtype=object)
    >>> mg.ingest([("a", "b", 2.5), ("b", "a", 1.5)]).to_scipy().toarray()  # in memory: b -> a is entry (0, 1)
    array([[0. , 1.5],
           [2.5, 0. ]])
    >>> with mg.ingest([("a", "b"), ("b", "a")], "pair.zarr", wait=False) as pair:
    ...     print(mg.pagerank(pair)["a"])  # a large graph on a GPU is ranked while pair.zarr is written
    0.5
    """
    options = IngestOptions(kind, duplicates, self_loops, symmetrize, weights, transpose, dtype, order)
    asked = name_reading(format, weights, edge_list_options)
    check_threads(threads)
    target = MemoryStore() if store is None else store
    base = check_target(target, overwrite=overwrite)
    describe = partial(describe_making, options=options, reading=asked)
    report, n_bytes = make_report(progress), parse_size("memory", memory)
    opening = partial(open_source, source.stored.written if isinstance(source, Matrix) else source, kind=kind, **asked)
    if client is not None:
        from mgspmv.cluster.ingest import ingest_on_cluster

        folder = None if scratch is None else os.path.abspath(scratch)  # workers may run in another folder
        info = ingest_on_cluster(
            opening(),
            target,
            options,
            client,
            describe,
            memory=n_bytes,
            threads=threads,
            scratch=folder,
            timeout=timeout,
            base=base,
            allow_hypersparse=allow_hypersparse,
            report=report,
        )
    else:
        room = find_budget(target, n_bytes, threads, scratch)
        opened = opening(threads=room.threads, id_room=room.for_ids)
        stored = store_source(
            opened,
            target,
            options,
            describe,
            report,
            room,
            base=base,
            allow_hypersparse=allow_hypersparse,
            make_device_sorter=sort_on_device,
            wait=wait,
        )
        return Matrix(stored)
    return open_written(target, info)


@watched
def generate(
    model: str,
    store: StoreLike | None = None,
    *,
    kind: Kind | None = None,
    duplicates: Duplicates | None = None,
    self_loops: SelfLoops = "keep",
    symmetrize: bool = False,
    transpose: bool = False,
    dtype: Literal["int64", "float32", "float64"] | None = None,
    order: OrderMethod = "none",
    overwrite: bool = False,
    client: Any = None,
    memory: str | int | None = None,
    threads: int | None = None,
    scratch: str | os.PathLike[str] | None = None,
    timeout: float = 30.0,
    progress: ProgressOption = None,
    **parameters: Any,
) -> Matrix:
    """Generate a matrix or graph, store it, and open it.

    Parameters
    ----------
    model : str
        `rmat` (scale, edge_factor=16, a, b, c, seed, scramble), `uniform` (n_vertices, n_edges, seed), `stencil2d` (nx,
        ny, points), `stencil3d` (nx, ny, nz, points) or `banded` (n, bandwidth, seed).
    store : path or Zarr store, optional
        As for `ingest`.
    parameters : keyword arguments
        Parameters of the model.
    kind, duplicates, self_loops, symmetrize, transpose, dtype, order, overwrite
        As for `ingest`.
    client, memory, threads, scratch, timeout
        As for `ingest`; with `client` each worker makes a range of the entries.
    progress : callable or bool, optional
        Called with each `Phase`; True and False show and hide the progress, as does `show_progress`.

    Returns
    -------
    The opened matrix.

    Raises
    ------
    OptionError : an unknown model or parameter, or one out of range; an order, on a cluster
    CapacityError : computing the order takes more memory than is available
    StoreExistsError : `store` exists
    ClusterError : a worker is lost, or silent for too long; nothing is left in the store

    Examples
    --------
    >>> import mgspmv as mg
    >>> mg.generate("stencil2d", "grid.zarr", nx=10, ny=10)
    <Matrix: matrix of shape (100, 100), 460 entries, float64, grid.zarr>
    >>> mg.generate("uniform", n_vertices=100, n_edges=500, kind="graph").nnz
    492
    """
    from mgspmv.ingest.generate import make_generator  # loads Numba

    source = make_generator(model, **parameters)
    source.prepare(threads, ANY_ROOM)
    matrix: Matrix = unwrap(ingest)(  # one call in logs and spans
        source,
        store,
        kind=kind,
        duplicates=duplicates,
        self_loops=self_loops,
        symmetrize=symmetrize,
        transpose=transpose,
        dtype=dtype,
        order=order,
        overwrite=overwrite,
        memory=memory,
        threads=threads,
        scratch=scratch,
        client=client,
        timeout=timeout,
        progress=progress,
    )
    return matrix


def open_given(store: StoreLike | Matrix) -> StoredMatrix:
    """Open a store, unless it is opened already.

    Raises
    ------
    OptionError : a transpose
    """
    if not isinstance(store, Matrix):
        return open_store(store)
    if store.is_transpose:
        raise OptionError("a transpose belongs to the store of another matrix; pass that matrix, or its store")
    return store.stored.written


def open_written(store: StoreLike, info: MatrixInfo) -> Matrix:
    """Open the version of a store that was just written."""
    return Matrix(open_store(store, info.version))


@watched
def update(
    store: StoreLike | Matrix,
    *,
    insert: Any = None,
    delete: Any = None,
    self_loops: SelfLoops = "keep",
    symmetrize: bool = False,
    weights: bool | str | None = None,
    keep: int | None = None,
    allow_hypersparse: bool = False,
    format: Literal["matrix-market", "edge-list", "parquet", "npz", "anndata", "binsparse", "csr"] | None = None,
    memory: str | int | None = None,
    threads: int | None = None,
    scratch: str | os.PathLike[str] | None = None,
    progress: ProgressOption = None,
    **edge_list_options: Any,
) -> Matrix:
    """Create a version of a stored matrix or graph with entries inserted and deleted.

    Deletions come first: an entry that is deleted and inserted is replaced. The new version is bit-identical
    to ingesting the edited list of entries. An open matrix keeps reading the version that it opened.

    Parameters
    ----------
    store : path, Zarr store or Matrix
        Store to change, or its current matrix, opened.
    insert, delete : as source of `ingest`, optional
        Arcs i -> j between ids as those of the store, or, for a store without ids, rows and
        columns of a matrix. Weights in `delete` are ignored, and of several entries at one place (`keep`) all are
        deleted. An inserted entry at the place of another is added to it (`sum`), ignored (`first`), stored too
        (`keep`) or an error (`error`), by the rule of the store. New ids become vertices; in a store without ids,
        larger numbers make the matrix larger. Entries to delete that do not exist are counted.
    self_loops : {"keep", "drop", "error"}, default "keep"
        Rule for entries on the diagonal of `insert`.
    symmetrize : bool, default False
        Also insert or delete (j, i) for each (i, j).
    weights : bool or str, optional
        Weights of `insert`, as for `ingest`; False inserts entries into a store without weights.
    keep : int, optional
        Number of versions to keep in the store, including the new one; default all.
    allow_hypersparse : bool, default False
        Allow many more vertices than entries in `insert`, as for `ingest`.
    format, memory, threads, scratch, progress, edge_list_options
        As for `ingest`, and for both sources.

    Returns
    -------
    The opened new version; the last of `info.provenance["updates"]` has both sources, how many entries were inserted,
    deleted and missing, and the version before.

    Raises
    ------
    SourceError : malformed input; ids or weights that do not suit the store; an entry to insert that exists already
    OptionError : an option that is invalid or does not suit the sources; neither `insert` nor `delete`
    StoreError : the store cannot be read or written, or was changed meanwhile: nothing is lost, run it again
    CapacityError : the memory does not suffice

    Examples
    --------
    >>> import mgspmv as mg
    >>> mg.ingest(([0, 1, 2], [1, 2, 0]), "web.zarr").nnz
    3
    >>> changed = mg.update("web.zarr", insert=[(0, 2), (3, 0)], delete=[(1, 2)])
    >>> changed.shape, changed.nnz
    ((4, 4), 4)
    """
    check_threads(threads)
    check_keep(keep)
    if insert is None and delete is None:
        raise OptionError("nothing to insert or delete; pass insert=, delete= or both")
    options = IngestOptions(self_loops=self_loops, symmetrize=symmetrize, weights=weights)
    stored, asked = open_given(store), name_reading(format, weights, edge_list_options)
    store = stored.place
    room = find_budget(store, parse_size("memory", memory), threads, scratch)
    reading = {"kind": stored.info.kind, "threads": room.threads, "id_room": room.for_ids, **asked}
    is_name = VertexLookup(stored).has if stored.info.vertex_ids == "string" else None
    sources = open_update(insert, delete, is_name, **reading)

    def describe(sources: dict[str, Any], changes: Changes) -> dict[str, Any]:
        before = stored.info.provenance
        base = {"version": stored.info.version, "digest": stored.info.digest}
        made = describe_making(sources, options, asked) | vars(changes) | {"base": base}
        return before | {"updates": [*before.get("updates", []), made]}

    report = make_report(progress)
    made = update_store(
        stored, *sources, options, describe, report, room, keep=keep, allow_hypersparse=allow_hypersparse
    )
    return open_written(store, made)


@watched
def verify(store: StoreLike | Matrix, *, progress: ProgressOption = None) -> list[str]:
    """Check every invariant of the current version of a store: chunks, checksums, digests, CSR, degrees, ids.

    Parameters
    ----------
    store : path, Zarr store or Matrix
        As for `open`.
    progress : callable or bool, optional
        Called with each `Phase`; True and False show and hide the progress, as does `show_progress`.

    Returns
    -------
    Problems and their places; empty when the store is valid.

    Raises
    ------
    StoreNotFoundError, StoreFormatError, StoreUnfinishedError : no store to check was found

    Examples
    --------
    >>> import mgspmv as mg
    >>> _ = mg.ingest(([0, 1, 2], [1, 2, 0]), "web.zarr")
    >>> mg.verify("web.zarr")
    []
    """
    return verify_store(store.stored.written.place if isinstance(store, Matrix) else store, make_report(progress))
