"""Parts of stores as stores of their own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np

from mgspmv.api.arguments import Progress, check_threads, ignore, parse_size
from mgspmv.api.stores import stamp
from mgspmv.errors import OptionError
from mgspmv.ingest.subgraph import check_bounds, write_subgraph
from mgspmv.ingest.write import find_room
from mgspmv.model import MatrixInfo
from mgspmv.results import to_json
from mgspmv.store import StoreLike, check_target, open_store


def subgraph(
    store: StoreLike,
    target: StoreLike,
    *,
    vertices: Sequence[Any] | np.ndarray | None = None,
    min_weight: float | None = None,
    max_weight: float | None = None,
    overwrite: bool = False,
    memory: str | int | None = None,
    threads: int | None = None,
    scratch: str | os.PathLike[str] | None = None,
    on_progress: Progress | None = None,
) -> MatrixInfo:
    """Write a part of a stored matrix as a store of its own: what is between some vertices, or has some weights.

    Vertices that stay keep their ids and their order, in a store whose ids are 0..n-1 too, and stay without edges. What
    is written is, to the bit, what ingesting the entries that stay makes; an order is that of the vertices that stay.
    Entries that a list names are left out by `update`.

    Parameters
    ----------
    store : where it is
    target : where the part goes
    vertices : which stay, of a graph: an (n,) mask of bool in the order of the store's vertices, or ids
    min_weight, max_weight : least and greatest value that stays, as numbers of the stored dtype; NaN does not
    overwrite : replace the matrix that is in `target`
    memory, threads, scratch : as for `ingest`. What must fit, into half, are 10 bytes for each vertex of `store` where
        some go (18 from 2^31 vertices on), and 32 more where it is renumbered
    on_progress : called with (phase, done, total or None)

    Returns
    -------
    What the new store says; the last of `provenance["subgraphs"]` has what was asked for, and the store that it is of.

    Raises
    ------
    OptionError : nothing is to be left out; an id that no vertex has; bounds that are none, or of a pattern
    ShapeError : a mask of another length
    KindError : vertices of a `matrix`
    SourceError : the columns of a `stochastic` matrix do not sum to 1 any more
    CapacityError : what must fit into the memory does not
    StoreExistsError : `target` is taken
    StoreError : `store` cannot be read
    """
    check_threads(threads)
    if vertices is None and min_weight is None and max_weight is None:
        raise OptionError(
            "nothing is to be left out; pass vertices (--vertices), min_weight (--min-weight) or max_weight "
            "(--max-weight)"
        )
    stored = open_store(store)
    info, bounds = stored.info, check_bounds(stored.info, min_weight, max_weight)
    check_target(target, overwrite=overwrite)
    room = find_room(target, parse_size(memory), threads, scratch)

    def describe(n_vertices: int | None) -> dict[str, Any]:
        asked = {"n_vertices": n_vertices, "min_weight": min_weight, "max_weight": max_weight}
        made = {name: _to_number(value) for name, value in asked.items() if value is not None}
        source = {"url": info.url, "digest": info.digest, "shape": list(info.shape), "nnz": info.nnz}
        before = info.provenance.get("subgraphs", [])
        return info.provenance | {"subgraphs": [*before, {**made, "source": source, **stamp()}]}

    write_subgraph(stored, target, vertices, bounds, describe, on_progress or ignore, room, overwrite=overwrite)
    return open_store(target).info


def _to_number(value: Any) -> Any:
    """A number as JSON holds it."""
    return to_json(int(value) if isinstance(value, Integral) else float(value))
