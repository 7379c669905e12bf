"""One Dask span for all tasks of mgspmv, in which its dashboard and its performance reports show them.

A scheduler keeps spans for as long as it lives, and makes a new one for each task outside of any. The id is derived
from names, so that a scheduler has one span for any number of runs and clients.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import dask

TAG = "mgspmv"
"""Name of the span."""


@contextmanager
def enter_span() -> Iterator[None]:
    """Put tasks that are submitted into the span, nested in the open spans of the user."""
    span = dask.get_annotations().get("span") or {"name": (), "ids": ()}
    if TAG not in span["name"]:
        own = str(uuid.uuid5(uuid.NAMESPACE_OID, "/".join([*span["ids"][-1:], TAG])))
        span = {"name": (*span["name"], TAG), "ids": (*span["ids"], own)}
    with dask.annotate(span=span):
        yield
