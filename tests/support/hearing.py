"""Functions for `progress` that hear of iterations, of phases, or of both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mgspmv.model import Event, Phase


def on_both(
    on_event: Callable[[Event], Any] | None, on_phase: Callable[[str, int, int | None], Any] | None
) -> Callable[[Event | Phase], None]:
    """Calls the first with each event, and the second with the name of a phase, units done and units in all."""

    def hear(news: Event | Phase) -> None:
        if isinstance(news, Event):
            if on_event is not None:
                on_event(news)
        elif on_phase is not None:
            on_phase(news.name, news.done, news.total)

    return hear


def on_events(on_event: Callable[[Event], Any]) -> Callable[[Event | Phase], None]:
    return on_both(on_event, None)


def on_phases(on_phase: Callable[[str, int, int | None], Any]) -> Callable[[Event | Phase], None]:
    return on_both(None, on_phase)
