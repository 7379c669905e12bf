"""Graphs and matrices in any form, as opened matrices."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import numpy as np
from zarr import Group
from zarr.abc.store import Store

from mgspmv.api.matrix import Matrix
from mgspmv.errors import MgspmvError, OptionError, SourceError, StoreFormatError, StoreNotFoundError
from mgspmv.model import Kind
from mgspmv.monitor.progress import watched
from mgspmv.store.locations import StoreLike
from mgspmv.store.read import StoredMatrix, open_store

if TYPE_CHECKING:
    from mgspmv.cluster.matrix import DistributedMatrix

P = ParamSpec("P")
R = TypeVar("R")

MatrixLike: TypeAlias = "Matrix | DistributedMatrix | Any"
"""What calls take as a matrix or graph: opened, distributed, or in another form that the page "Inputs" names; see
`as_matrix`."""


def as_matrix(A: Any, kind: Kind = "graph", *, weight: bool | str | None = True, **options: Any) -> Any:
    """Return an object as a `Matrix`: opened, or read into the memory of this process by `ingest`.

    Parameters
    ----------
    A : `Matrix` or `DistributedMatrix`, returned unchanged; path, URL or Zarr store of a matrix, which is opened; or
        another source that `ingest` reads. In a sparse matrix or a dense one, entry (i, j) is the arc i -> j
    kind : kind of matrix that is made from a source. `matrix` applies only to sparse and dense matrices; other sources
        are graphs then
    weight : name of the column or attribute with the weights; True for the usual names; None or False for none
    options : others of `ingest`

    Raises
    ------
    OptionError : an object that is none of these; a name of weights where there are no names
    SourceError : a source that cannot be read; a graph that is not square
    StoreError : the store cannot be read
    """
    names_weight = isinstance(weight, str)
    if isinstance(A, Matrix) or is_distributed(A):
        opened = A
    elif (stored := _find_store(A)) is not None:
        opened = Matrix(stored)
    else:
        return _read(A, kind, weight, options)
    if names_weight:
        raise OptionError(
            f"weight={weight!r} names a column or an attribute, but the matrix is stored already, with its values; "
            "pass weight=True, or weight=False to count each entry as 1"
        )
    return opened


def reads_input(
    kind: Kind = "graph", *, predicts: bool = True, **options: Any
) -> Callable[[Callable[Concatenate[Any, P], R]], Callable[Concatenate[Any, P], R]]:
    """Decorate a call like `watched`, and so that its first argument may be whatever `as_matrix` takes, with options.

    Names of weights, passed as `weight=`, are for the reading; the call itself uses the values of the matrix.

    Parameters
    ----------
    predicts : as in `watched`
    """

    def decorate(call: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
        @wraps(call)
        def run(A: Any, *args: P.args, **kwargs: P.kwargs) -> R:
            given: dict[str, Any] = {**kwargs}
            weight = given.get("weight", True)
            reading: dict[str, Any] = {"progress": given.get("progress"), **options}
            try:
                matrix = as_matrix(A, kind, weight=weight, **reading)
            except MgspmvError as error:
                error.args = tuple(_name_weight(own) if isinstance(own, str) else own for own in error.args)
                raise
            if isinstance(weight, str):
                given["weight"] = True
            told: Any = given
            try:
                return call(matrix, *args, **told)
            finally:
                if matrix is not A:  # read or opened for this call
                    matrix.close()

        return watched(run, predicts=predicts)  # type: ignore[return-value]  # A may also be passed by name

    return decorate


def is_distributed(A: Any) -> bool:
    """Return whether an object is a matrix on a cluster."""
    if "mgspmv.cluster.matrix" not in sys.modules:  # otherwise nothing was distributed; avoids importing Dask
        return False
    from mgspmv.cluster.matrix import DistributedMatrix

    return isinstance(A, DistributedMatrix)


def _read(source: Any, kind: Kind, weight: bool | str | None, options: dict[str, Any]) -> Matrix:
    from mgspmv.api.stores import ingest
    from mgspmv.ingest.objects import is_sparse, to_host

    began = time.perf_counter()
    source = to_host(source)
    is_matrix = is_sparse(source) or isinstance(source, np.ndarray)
    if isinstance(weight, str):
        options = {"weights": weight, **options}
    elif not weight:
        options = {"weights": False, **options}
    if is_matrix and kind != "matrix":
        _check_square(source)
    matrix = ingest(source, kind=None if kind == "matrix" and not is_matrix else kind, **options)
    report = matrix.ingest_report
    if report is not None:
        for warning in report.warnings:
            warnings.warn(f"{report.name}: {_name_weight(warning)}", stacklevel=6)
    matrix.note_reading(time.perf_counter() - began)
    return matrix


def _name_weight(message: str) -> str:
    """Return a message of `ingest` with the argument of calls in place of its `weights=`."""
    return message.replace("weights=", "weight=")


def _check_square(matrix: Any) -> None:
    """Check that a matrix has a row and a column for each vertex; an edge index is none."""
    is_index = isinstance(matrix, np.ndarray) and matrix.dtype.kind in "iu" and 2 in matrix.shape
    if matrix.ndim != 2 or matrix.shape[0] == matrix.shape[1] or is_index:
        return
    hint = "; if its rows are the sources and targets of arcs, pass the tuple (edges[0], edges[1])"
    raise SourceError(
        "a graph needs a square matrix, with a row and a column for each vertex, but this one is of shape "
        f"{matrix.shape}; if it is the biadjacency matrix B of a bipartite graph, pass scipy.sparse.block_array("
        f"[[None, B], [B.T, None]]){hint if matrix.shape[0] == 2 else ''}"
    )


def _find_store(source: Any) -> StoredMatrix | None:
    """Open the matrix store at a place; None if it is a source in another format, or not a place."""
    if isinstance(source, str | os.PathLike) and os.path.isdir(source):
        with suppress(StoreNotFoundError, StoreFormatError):  # otherwise it is another kind of group
            return open_store(source)
    from mgspmv.ingest.detect import find_format_by_name
    from mgspmv.ingest.zarr_groups import find_matrix_store, is_group_path

    place: StoreLike | None = None
    if isinstance(source, Store | Group) or (isinstance(source, str | os.PathLike) and is_group_path(source)):
        try:
            place = find_matrix_store(source)
        except SourceError:
            if isinstance(source, Group) or str(source).endswith(".zip"):
                raise
            return open_store(source)  # raises the error of a store
    elif isinstance(source, str | os.PathLike) and "://" in os.fspath(source):
        if isinstance(find_format_by_name(os.fspath(source)), str):
            return None
        try:
            return open_store(source)
        except StoreNotFoundError:
            return None
    return None if place is None else open_store(place)
