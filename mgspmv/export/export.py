"""Export of a store to a file or group of another format, which gets its name once it is complete."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Literal, get_args

import zarr

from mgspmv.errors import OptionError, StoreExistsError
from mgspmv.export.arrays import open_arrays, write_anndata, write_binsparse, write_npz
from mgspmv.export.edges import write_csv, write_matrix_market, write_parquet, write_vertices
from mgspmv.files import create_file, exists, is_url
from mgspmv.ingest.scratch import MemoryBudget
from mgspmv.model import Progress, check_choice
from mgspmv.store.locations import check_links, create_group, locate_store
from mgspmv.store.read import StoredMatrix

Format = Literal["matrix-market", "csv", "parquet", "npz", "anndata", "binsparse"]
SUFFIXES: dict[Format, tuple[str, ...]] = {
    "matrix-market": (".mtx", ".mtx.gz", ".mtx.zst"),
    "csv": (".csv", ".csv.gz", ".csv.zst"),
    "parquet": (".parquet", ".pq"),
    "npz": (".npz",),
    "anndata": (".zarr",),
    "binsparse": (".zarr",),
}
GROUPS = ("anndata", "binsparse")
_MARK = "mgspmv_export"
"""Attribute of groups that mgspmv exported, which may be overwritten."""


def choose_format(target: str | os.PathLike[str], format: Format | None) -> Format:
    """Return the format of a target, by its suffix if `format` is None.

    Raises
    ------
    OptionError : an unknown format; a suffix that is not the format's, or that is ambiguous
    """
    check_choice("format", format, (*get_args(Format), None))
    name = os.fspath(target)
    suited = [each for each, suffixes in SUFFIXES.items() if name.endswith(suffixes)]
    if format is None and len(suited) == 1:
        return suited[0]
    if format is not None and format in suited:
        return format
    if format is None and suited:
        raise OptionError(f"{name} is ambiguous, {' or '.join(suited)}; pass format={suited[0]!r}")
    wanted = SUFFIXES if format is None else {format: SUFFIXES[format]}
    known = "; ".join(f"{', '.join(suffixes)} ({each})" for each, suffixes in wanted.items())
    raise OptionError(f"{name}: the name must end in {known}")


def check_target(target: str | os.PathLike[str], format: Format, *, overwrite: bool) -> None:
    """Check that a target may be written; to be called before the work.

    Raises
    ------
    StoreExistsError : it exists and `overwrite` is False, or it is a folder or group that was not exported
    OptionError, MissingDependencyError : a URL that cannot be opened
    """
    if not exists(target):
        return
    if not overwrite:
        raise StoreExistsError(f"{target} exists already; pass overwrite=True or choose another name")
    if format not in GROUPS and (is_url(target) or Path(target).is_file()):
        return
    if format not in GROUPS or not _is_export(os.fspath(target)):
        raise StoreExistsError(f"{target} was not written by an export and is not overwritten; choose another name")


def check_vertices(stored: StoredMatrix, path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Check that the ids of a stored matrix can be written to `path`; errors as in `check_target`."""
    n_rows, n_cols = stored.info.shape
    if n_rows != n_cols:
        raise OptionError(
            f"{stored.info.url} has {n_rows} rows and {n_cols} columns, and so no list of vertices; leave out vertices="
        )
    if exists(path) and (not overwrite or (not is_url(path) and not Path(path).is_file())):
        raise StoreExistsError(f"{path} exists already; choose another name by vertices=, or pass overwrite=True")


def export_matrix(
    stored: StoredMatrix,
    target: str | os.PathLike[str],
    format: Format,
    room: MemoryBudget,
    report: Progress,
    vertices: str | os.PathLike[str] | None = None,
) -> None:
    """Write a stored matrix as in its source.

    Parameters
    ----------
    room : threads that read and write; memory for sorting, if a renumbered matrix is written in a format that has
        rows in order
    report : called with (phase, done, total); phases `sort` and `export`
    vertices : path to write the ids to; None to leave them out

    Raises
    ------
    StoreError : the store cannot be read, or the target cannot be written and is removed
    OptionError : a matrix that may have duplicate entries, for binsparse; an id that cannot be written to CSV or a list
        of vertices
    CapacityError : as in `open_arrays`
    """
    info, name, threads = stored.info, os.fspath(target), room.threads
    if format == "binsparse" and info.duplicates == "keep":
        raise OptionError(
            f"{info.url} was made with duplicates='keep', but binsparse allows one entry at each position; choose "
            "another format, or ingest its source again with duplicates='sum' or 'first'"
        )
    with contextlib.ExitStack() as stack:
        if vertices is not None:
            write_vertices(stored, stack.enter_context(create_file(vertices)))
        if format in ("npz", *GROUPS):
            arrays = stack.enter_context(open_arrays(stored, room, report, has_ones=format != "binsparse"))
        if format in GROUPS:
            group = stack.enter_context(create_group(name, {_MARK: format}))
        else:
            file = stack.enter_context(create_file(name))
        match format:
            case "matrix-market":
                write_matrix_market(stored, file, name, threads, report)
            case "csv":
                write_csv(stored, file, name, threads, report)
            case "parquet":
                write_parquet(stored, file, threads, report)
            case "npz":
                write_npz(info, arrays, file)
            case "anndata":
                write_anndata(group, stored, arrays, threads)
            case "binsparse":
                write_binsparse(group, info, arrays, threads)


def _is_export(url: str) -> bool:
    check_links(locate_store(url), "zarr.json")
    try:
        return _MARK in zarr.open_group(url, mode="r", use_consolidated=False).attrs
    except (OSError, ValueError, KeyError, TypeError):
        return False
