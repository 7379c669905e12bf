"""Dask spans around phases, by which its dashboard and its performance reports group tasks.

A scheduler keeps spans for as long as it lives, and `distributed.span` makes a new one each time. The ids here are
derived from the names, so that a scheduler has one span per name for any number of runs and clients.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask

TAG = "mgspmv"
"""Outermost tag of all spans here."""
STARTING, ITERATING = ("connect", "start"), ("iteration", "iterations")
"""First words of the phases that belong to the spans `start` and `iterate`."""


@contextmanager
def enter_span(call: str, phase: str) -> Iterator[None]:
    """Put tasks that are submitted into the span of a phase of a call, nested in the open spans of the user."""
    with dask.annotate(span=_nest(_get_span(), TAG, call, name_span(phase))):
        yield


@contextmanager
def enter_default() -> Iterator[None]:
    """Put tasks submitted outside of any phase into one span; Dask would make a new one each time."""
    span = _get_span()
    with dask.annotate(span=span if TAG in span["name"] else _nest(span, TAG)):
        yield


def name_span(phase: str) -> str:
    """Return the name of a phase's span: `start`, `iterate`, or the phase itself, such as `residual` or `collect`."""
    first = phase.partition(" ")[0]
    return "start" if first in STARTING else "iterate" if first in ITERATING else phase


def _get_span() -> dict[str, Any]:
    """Return the open span, as a Dask annotation."""
    return dask.get_annotations().get("span") or {"name": (), "ids": ()}


def _nest(outer: dict[str, Any], *tags: str) -> dict[str, Any]:
    """Return the annotation of a span nested in another one, the same in every process."""
    ids = [*outer["ids"]]
    for tag in tags:
        ids.append(str(uuid.uuid5(uuid.NAMESPACE_OID, "/".join([*ids[-1:], tag]))))
    return {"name": (*outer["name"], *tags), "ids": tuple(ids)}
