"""Stores made from stores: orders, transposes and parts; and stores as files of other formats."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np
from zarr.storage import MemoryStore

from mgspmv.api.matrix import Matrix
from mgspmv.api.reading import stamp
from mgspmv.api.stores import open_given, open_written
from mgspmv.errors import OptionError
from mgspmv.export import Format, check_vertices, choose_format, export_matrix
from mgspmv.export import check_target as check_file
from mgspmv.ingest.budget import find_budget
from mgspmv.ingest.store_writing import reorder_rows, write_version
from mgspmv.ingest.stored import StoredRows
from mgspmv.ingest.subgraph import check_bounds, choose_edges, write_subgraph
from mgspmv.model import MatrixInfo, OrderMethod, check_choice
from mgspmv.monitor.progress import ProgressOption, make_report, watched
from mgspmv.order import METHODS, check_square
from mgspmv.solvers.options import check_threads, parse_size
from mgspmv.store.locations import StoreLike
from mgspmv.store.versions import check_keep, check_target
from mgspmv.store.write import drop_versions
from mgspmv.validation import to_json


@watched
def reorder(
    store: StoreLike | Matrix,
    target: StoreLike | None = None,
    *,
    method: OrderMethod = "rcm",
    overwrite: bool = False,
    memory: str | int | None = None,
    threads: int | None = None,
    scratch: str | os.PathLike[str] | None = None,
    progress: ProgressOption = None,
) -> Matrix:
    """Renumber the rows and columns of a stored matrix, so that products read nearby elements of x.

    Nothing else changes: vectors and results are in the order of the source, and ids are the source's. Ranks in
    `exact` are bit-identical; floating-point sums are added in another order.

    Parameters
    ----------
    store : path, Zarr store or Matrix
        Store of a square matrix, or that matrix, opened.
    target : path or Zarr store, optional
        Where to write the renumbered matrix. Default: it replaces the one in `store` once it is complete; until then
        `store` is unchanged.
    method : {"rcm", "degree", "dealt", "none"}, default "rcm"
        `rcm`, the reverse Cuthill-McKee order of the pattern of A + A^T, which makes the bandwidth small; `degree`, the
        longest rows first; `dealt`, the same dealt to 256 parts that are alike; or `none`, the order of the source. An
        order that the store has already does not matter.
    overwrite : bool, default False
        Replace the matrix that is in `target`.
    memory, threads, scratch
        As for `ingest`: entries spill to files where they do not fit. 32 bytes per row must fit in memory, and for
        `rcm` about 20 more per entry.
    progress : callable or bool, optional
        Called with each `Phase`; True and False show and hide the progress, as does `show_progress`.

    Returns
    -------
    The opened matrix; `info.provenance["reordering"]` has the bandwidth before and after.

    Raises
    ------
    ShapeError : the matrix is not square
    CapacityError : the memory does not suffice
    OptionError : an invalid option
    StoreExistsError : `target` exists
    StoreError : `store` cannot be read, or holds another version by now

    Examples
    --------
    >>> import mgspmv as mg
    >>> A = mg.ingest([(0, 3), (3, 1), (1, 2)], "path.zarr", symmetrize=True)
    >>> reordered = mg.reorder(A, "reordered.zarr")
    >>> [reordered.info.provenance["reordering"][f"bandwidth_{when}"] for when in ("before", "after")]
    [3, 1]
    """
    check_threads(threads)
    check_choice("method", method, (*METHODS, "none"))
    stored = open_given(store)
    info = stored.info
    check_square(info.shape, info.url)
    base = info.version if target is None else check_target(target, overwrite=overwrite)
    place = stored.place if target is None else target
    room = find_budget(place, parse_size("memory", memory), threads, scratch)
    own, report = replace(room, memory=room.memory // 2) if info.has_transpose else room, make_report(progress)
    with reorder_rows(StoredRows(stored, room.threads), method, report, own) as (rows, reordering):
        reordering |= {"source": {"url": info.url, "digest": info.digest}, **stamp()}
        provenance = info.provenance | {"reordering": reordering}
        order = None if method == "none" else method
        made = write_version(
            place, rows, lambda _: provenance, report, own, base=base, order=order, has_transpose=info.has_transpose
        )
    return open_written(place, made)


@watched
def transpose(
    store: StoreLike | Matrix,
    *,
    keep: int | None = None,
    memory: str | int | None = None,
    threads: int | None = None,
    scratch: str | os.PathLike[str] | None = None,
    progress: ProgressOption = None,
) -> Matrix:
    """Add the transpose to a store, which `A.T`, `hits` and others need, as `ingest` does with `transpose=True`.

    The store gets a new version, with the same matrix and the same digest; an open matrix keeps reading the
    version that it opened. Where the current version holds the transpose already, no new one is made.

    Parameters
    ----------
    store : path, Zarr store or Matrix
        Store of a matrix or graph of any kind, or that matrix, opened.
    keep : int, optional
        Number of versions to keep in the store, including the new one; default all.
    memory, threads, scratch
        As for `ingest`: entries spill to files where they do not fit.
    progress : callable or bool, optional
        Called with each `Phase`; True and False show and hide the progress, as does `show_progress`.

    Returns
    -------
    The current version, opened; `info.provenance["transposing"]` has the version that it was made from.

    Raises
    ------
    OptionError : an invalid option
    StoreError : the store cannot be read or written, or was changed meanwhile: nothing is lost, run it again

    Examples
    --------
    >>> import mgspmv as mg
    >>> web = mg.ingest(([0, 1, 2], [1, 2, 0]), "web.zarr")
    >>> web.info.has_transpose, mg.transpose(web).info.has_transpose
    (False, True)
    """
    check_threads(threads)
    check_keep(keep)
    stored = open_given(store)
    store, info = stored.place, stored.info
    if info.has_transpose:
        if keep is not None:
            drop_versions(store, keep=keep)
        return Matrix(stored)
    room = find_budget(store, parse_size("memory", memory), threads, scratch)
    source = {"version": info.version, "digest": info.digest}
    provenance = info.provenance | {"transposing": {"source": source, **stamp()}}
    rows, own, report = StoredRows(stored, room.threads), replace(room, memory=room.memory // 2), make_report(progress)
    made = write_version(
        store,
        rows,
        lambda _: provenance,
        report,
        own,
        base=info.version,
        keep=keep,
        order=info.order,
        has_transpose=True,
        phase="read and write",
    )
    return open_written(store, made)


@watched
def export(
    store: StoreLike | Matrix,
    target: str | os.PathLike[str],
    *,
    format: Format | None = None,
    vertices: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    memory: str | int | None = None,
    threads: int | None = None,
    scratch: str | os.PathLike[str] | None = None,
    progress: ProgressOption = None,
) -> MatrixInfo:
    """Write a stored matrix in the order and with the ids of its source; ingesting the result makes the same store.

    Entry (i, j) of a graph is the arc i -> j, and rows and columns have the numbers of the source, also where the store
    is renumbered. The matrix is never in memory as a whole.

    Parameters
    ----------
    store : path, Zarr store or Matrix
        Path or URL of the store, or an opened matrix.
    target : path
        Local path, or URL that fsspec supports.
    format : {"matrix-market", "csv", "parquet", "npz", "anndata", "binsparse"}, optional
        `matrix-market` (.mtx, .mtx.gz, .mtx.zst); `csv` (.csv, .csv.gz, .csv.zst) and `parquet` (.parquet, .pq), with
        the source's ids in columns src and dst, and values in weight; `npz` (.npz, SciPy's); `anndata` (.zarr, an
        AnnData whose X it is) or `binsparse` (.zarr); default by the suffix, where that leaves no choice.
    vertices : path, optional
        File for the ids, one per line in the order of rows, as `ingest` takes them by `vertices`.
    overwrite : bool, default False
        Replace the file, or the exported group, once the new one is complete.
    memory, threads, scratch
        As for `ingest`; entries are only sorted where a renumbered matrix becomes `npz`, `anndata` or `binsparse`.
    progress : callable or bool, optional
        Called with each `Phase`; True and False show and hide the progress, as does `show_progress`.

    Returns
    -------
    Info of the store.

    Raises
    ------
    OptionError : an unknown format; a suffix that is not the format's; a matrix or ids that the format cannot hold
    StoreExistsError : the target exists and is not to be overwritten
    StoreError : `store` cannot be read, or `target` not be written; then nothing is left of it
    CapacityError : a renumbered matrix has more rows than there is memory for

    Examples
    --------
    >>> import mgspmv as mg
    >>> web = mg.ingest([("home", "shop"), ("shop", "home"), ("blog", "home")])
    >>> _ = mg.export(web, "web.csv")
    >>> print(open("web.csv").read(), end="")
    src,dst
    blog,home
    shop,home
    home,shop
    """
    check_threads(threads)
    chosen = choose_format(target, format)
    check_file(target, chosen, overwrite=overwrite)
    stored = open_given(store)
    if vertices is not None:
        check_vertices(stored, vertices, overwrite=overwrite)
    room = find_budget(target, parse_size("memory", memory), threads, scratch)
    export_matrix(stored, target, chosen, room, make_report(progress), vertices)
    return stored.info


@watched
def subgraph(
    store: StoreLike | Matrix,
    target: StoreLike | None = None,
    *,
    vertices: Sequence[Any] | np.ndarray | None = None,
    min_weight: float | None = None,
    max_weight: float | None = None,
    edges: Any = None,
    without_edges: Any = None,
    symmetrize: bool = False,
    overwrite: bool = False,
    memory: str | int | None = None,
    threads: int | None = None,
    scratch: str | os.PathLike[str] | None = None,
    progress: ProgressOption = None,
) -> Matrix:
    """Write a part of a stored matrix as a separate store: the entries between some vertices, or some edges.

    Vertices that are kept have their ids and their order, in a store whose ids are 0..n-1 too, also those without
    edges. The new store is bit-identical to ingesting the kept entries; an order is that of the kept vertices.
    Conditions given together must all hold.

    Parameters
    ----------
    store : path, Zarr store or Matrix
        Path or URL of the store, or an opened matrix.
    target : path or Zarr store, optional
        Path or URL for the part; default the memory of this process.
    vertices : sequence, mapping, Series or array, optional
        Vertices of a graph to keep: an (n,) mask of bool in the order of the store's vertices, a mapping or pandas
        Series of ids to bool, or ids.
    min_weight, max_weight : float, optional
        Least and greatest value to keep, as numbers of the stored dtype; NaN is not kept.
    edges : pairs of ids, sparse matrix or source, optional
        Edges to keep, each from its source to its target (of a `matrix` or `stochastic` one, row and column): pairs of
        ids, such as NetworkX's `G.edges`, a tuple (src, dst) of arrays of ids, or another source of edges that `ingest`
        reads, all of which must exist; or a SciPy sparse matrix of the store's shape, in the order of its vertices,
        whose entries other than 0 are a mask.
    without_edges : pairs of ids, sparse matrix or source, optional
        Edges to leave out, likewise; missing ones are ignored.
    symmetrize : bool, default False
        With `edges` or `without_edges`: each (i, j) also selects (j, i).
    overwrite : bool, default False
        Replace the matrix that is in `target`.
    memory, threads, scratch
        As for `ingest`. Half of the memory must hold 10 bytes per vertex of `store` where some are left out (18 from
        2^31 vertices on), 32 more where it is renumbered, and 36 bytes per listed edge.
    progress : callable or bool, optional
        Called with each `Phase`; True and False show and hide the progress, as does `show_progress`.

    Returns
    -------
    The opened new store; the last of `info.provenance["subgraphs"]` has the conditions and the original store.

    Raises
    ------
    OptionError : no condition is given; an unknown id, or a missing one of `edges`; invalid bounds, or bounds of a
        pattern
    ShapeError : a mask of another length or shape
    KindError : vertices of a `matrix`
    SourceError : the columns of a `stochastic` matrix do not sum to 1 any more
    CapacityError : the memory does not suffice
    StoreExistsError : `target` exists
    StoreError : `store` cannot be read

    Examples
    --------
    >>> import mgspmv as mg
    >>> web = mg.ingest([("home", "shop", 5.0), ("shop", "home", 2.0), ("blog", "home", 1.0)])
    >>> mg.subgraph(web, vertices=["home", "shop"]).nnz
    2
    >>> mg.subgraph(web, min_weight=3.0).nnz
    1
    """
    check_threads(threads)
    if all(given is None for given in (vertices, min_weight, max_weight, edges, without_edges)):
        raise OptionError("nothing to leave out; pass vertices=, min_weight=, max_weight=, edges= or without_edges=")
    stored = open_given(store)
    target = MemoryStore() if target is None else target
    chosen = choose_edges(stored, edges, without_edges, symmetrize=symmetrize)
    info, bounds = stored.info, check_bounds(stored.info, min_weight, max_weight)
    base = check_target(target, overwrite=overwrite)
    room = find_budget(target, parse_size("memory", memory), threads, scratch)

    def describe(n_vertices: int | None, n_edges: int | None) -> dict[str, Any]:
        asked = {"n_vertices": n_vertices, "min_weight": min_weight, "max_weight": max_weight}
        made = {name: _to_number(value) for name, value in asked.items() if value is not None}
        if chosen is not None:
            made |= {chosen.name: n_edges} | ({"symmetrize": True} if symmetrize else {})
        source = {"url": info.url, "digest": info.digest, "shape": list(info.shape), "nnz": info.nnz}
        before = info.provenance.get("subgraphs", [])
        return info.provenance | {"subgraphs": [*before, {**made, "source": source, **stamp()}]}

    report = make_report(progress)
    made = write_subgraph(stored, target, vertices, bounds, describe, report, room, base=base, edges=chosen)
    return open_written(target, made)


def _to_number(value: Any) -> Any:
    """Convert a number to its JSON value."""
    return to_json(int(value) if isinstance(value, Integral) else float(value))
