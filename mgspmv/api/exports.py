"""Conversions of stores to files in other formats."""

from __future__ import annotations

import os

from mgspmv.api.matrix import Matrix
from mgspmv.api.stores import open_given
from mgspmv.export.export import Format, check_target, check_vertices, choose_format, export_matrix
from mgspmv.ingest.store_writing import find_budget
from mgspmv.model import MatrixInfo
from mgspmv.monitor.progress import ProgressOption, make_report, watched
from mgspmv.solvers.placing import check_threads, parse_size
from mgspmv.store.locations import StoreLike


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
    store : path or URL of the store, or an opened matrix
    target : local path, or URL that fsspec supports
    format : `matrix-market` (.mtx, .mtx.gz, .mtx.zst); `csv` (.csv, .csv.gz, .csv.zst) and `parquet` (.parquet, .pq),
        with the source's ids in columns src and dst, and values in weight; `npz` (.npz, SciPy's); `anndata` (.zarr, an
        AnnData whose X it is) or `binsparse` (.zarr); default by the suffix, where that leaves no choice
    vertices : file for the ids, one per line in the order of rows, as `ingest` takes them by `vertices`
    overwrite : replace the file, or the exported group, once the new one is complete
    memory, threads, scratch : as for `ingest`; entries are only sorted where a renumbered matrix becomes `npz`,
        `anndata` or `binsparse`
    progress : called with each `Phase`; True and False show and hide the progress, as does `show_progress`

    Returns
    -------
    Info of the store.

    Raises
    ------
    OptionError : an unknown format; a suffix that is not the format's; a matrix or ids that the format cannot hold
    StoreExistsError : the target exists and is not to be overwritten
    StoreError : `store` cannot be read, or `target` not be written; then nothing is left of it
    CapacityError : a renumbered matrix has more rows than there is memory for
    """
    check_threads(threads)
    chosen = choose_format(target, format)
    check_target(target, chosen, overwrite=overwrite)
    stored = open_given(store)
    if vertices is not None:
        check_vertices(stored, vertices, overwrite=overwrite)
    room = find_budget(target, parse_size(memory), threads, scratch)
    export_matrix(stored, target, chosen, room, make_report(progress), vertices)
    return stored.info
