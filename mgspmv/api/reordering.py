"""Orders and transposes of stored matrices."""

from __future__ import annotations

import os
from dataclasses import replace

from mgspmv.api.matrix import Matrix
from mgspmv.api.stores import open_given, open_written, stamp
from mgspmv.ingest.budget import find_budget
from mgspmv.ingest.store_writing import reorder_rows, write_version
from mgspmv.ingest.stored import StoredRows
from mgspmv.model import OrderMethod, check_choice
from mgspmv.monitor.progress import ProgressOption, make_report, watched
from mgspmv.order import METHODS, check_square
from mgspmv.solvers.options import check_threads, parse_size
from mgspmv.store.locations import StoreLike
from mgspmv.store.versions import check_keep, check_target
from mgspmv.store.write import drop_versions


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
