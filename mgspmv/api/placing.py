"""Where a call computes: in this process, or on the cluster that holds its matrix."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Literal

from mgspmv.api.matrix import Matrix
from mgspmv.errors import OptionError
from mgspmv.kernels.catalogue import BACKENDS, Backend
from mgspmv.kernels.select import choose_backend
from mgspmv.model import check_choice

if TYPE_CHECKING:
    from mgspmv.distribute.matrix import DistributedMatrix

Drive = Literal["auto", "embedded", "scheduler", "superstep"]


def find_distributed(A: Any, client: Any) -> DistributedMatrix | None:
    """A itself where it is on a cluster; raises when it is no matrix at all."""
    if isinstance(A, Matrix):
        return None
    if "mgspmv.distribute.matrix" in sys.modules:  # else nothing was ever distributed, and Dask is not imported for it
        from mgspmv.distribute.matrix import DistributedMatrix

        if isinstance(A, DistributedMatrix):
            if client is not None:
                raise OptionError("the matrix is on a cluster already; leave out client=")
            return A
    what = repr(A) if isinstance(A, str | os.PathLike) else f"a {type(A).__name__}"
    raise OptionError(f"A must be a matrix opened by open_matrix, not {what}; pass open_matrix(store)")


def choose_computing(backend: str, A: Any, client: Any) -> Backend:
    """Where this process computes; on a cluster it does not, and this says whether the workers can."""
    if isinstance(A, Matrix) and client is None:
        return choose_backend(backend)
    check_choice("backend", backend, ("auto", *BACKENDS))
    there = None if isinstance(A, Matrix) else A.backend
    if client is None and backend != "auto" and backend != there:
        where = f"backend={there!r}" if there else "some workers on hosts and others on devices"
        raise OptionError(
            f"the matrix was distributed for {where}, and now backend={backend!r} is asked for; leave out backend=, "
            "or pass it to distribute()"
        )
    return "cpu"


def choose_drive(drive: Drive, is_on_cluster: bool) -> Drive:
    """How a run is driven; `auto` is the default of where it is.

    Raises
    ------
    OptionError : there is no such drive there
    """
    check_choice("drive", drive, ("auto", "embedded", "scheduler", "superstep"))
    if drive == "auto":
        return "superstep" if is_on_cluster else "embedded"
    if is_on_cluster and drive == "embedded":
        raise OptionError(
            "drive='embedded' computes in this process; leave out client=, and call it with a matrix of open_matrix()"
        )
    if not is_on_cluster and drive != "embedded":
        raise OptionError(f"drive={drive!r} needs a cluster; pass client=, or pass a matrix of distribute()")
    return drive
