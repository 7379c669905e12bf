"""Dask's spans around phases, by which its dashboard and its performance reports group our tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask
from distributed import span

STARTING, ITERATING = ("connect", "start"), ("iteration", "iterations", "pass", "passes")
"""How phases are called, up to a number, that belong to one span."""


class Spans:
    """Spans below one of these tags, a single one for each phase however often it is entered.

    A span of Dask's own would be a new one each time, which the scheduler keeps for as long as it lives.

    Parameters
    ----------
    tags : from the outermost on; within the spans that the user has open
    """

    def __init__(self, *tags: str) -> None:
        with span(*tags):
            self._outer = _get_span()
        self._inner: dict[str, Any] = {}

    @contextmanager
    def enter(self, phase: str) -> Iterator[None]:
        """Put tasks that are submitted into the span of a phase."""
        name = name_span(phase)
        if name not in self._inner:
            with dask.annotate(span=self._outer), span(name):
                self._inner[name] = _get_span()
        with dask.annotate(span=self._inner[name]):
            yield


def name_span(phase: str) -> str:
    """The span of a phase: `start`, `iterate`, or the phase itself, such as `residual` or `collect`."""
    first = phase.partition(" ")[0]
    return "start" if first in STARTING else "iterate" if first in ITERATING else phase


def _get_span() -> Any:
    return dask.get_annotations()["span"]
