"""Progress of calls of the Python API, in a terminal or below a cell of a notebook, while somebody wants it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

from mgspmv.logs import log_call
from mgspmv.monitor.progress import open_progress
from mgspmv.os_errors import translating

P = ParamSpec("P")
R = TypeVar("R")

_IS_WANTED: ContextVar[bool] = ContextVar("_IS_WANTED", default=False)


@contextmanager
def show_progress() -> Iterator[None]:
    """Show how each call gets on while the context lasts: phase, change, iterations left, rate and time left.

        with mg.show_progress():
            mg.ingest("web.mtx.gz", "web.zarr", kind="graph")
            ranks = mg.pagerank(mg.open_matrix("web.zarr"))

    In a terminal it is on stderr, in a notebook below the cell; a line for what runs, which goes when that ends, and of
    a pipeline one for each step. Where stderr is no terminal, nothing is shown. `on_event` and `on_progress` of a call
    are called as well.
    """
    before = _IS_WANTED.set(True)
    try:
        yield
    finally:
        _IS_WANTED.reset(before)


@contextmanager
def take_turn() -> Iterator[bool]:
    """Whether the call that begins is to be shown; those that it makes are part of it, and are not."""
    before = _IS_WANTED.get()
    token = _IS_WANTED.set(False)
    try:
        yield before
    finally:
        _IS_WANTED.reset(token)


def watched(call: Callable[P, R]) -> Callable[P, R]:
    """Let `show_progress` show a call that takes `on_progress`, and maybe `on_event`; and log how it ends."""
    return _show(call, predicts=False)


def watched_to_converge(call: Callable[P, R]) -> Callable[P, R]:
    """As `watched`, of a call that iterates one vector: also how many iterations are left."""
    return _show(call, predicts=True)


def tell_all(*hearers: Callable[..., None] | None) -> Callable[..., None]:
    """Call each that is there with what is told."""

    def tell(*told: Any) -> None:
        for hear in hearers:
            if hear is not None:
                hear(*told)

    return tell


def find_change(tol: float | None, tol_mode: str, n: int | None = None, stop: str = "change") -> float | None:
    """The change at which an iteration over n vertices stops, for the prediction; None when it is not known."""
    from mgspmv.iterate.options import DEFAULT_TOL

    if tol_mode == "fixed" or stop != "change" or (tol_mode == "l1_per_node" and n is None):
        return None
    return (DEFAULT_TOL if tol is None else tol) * (n if tol_mode == "l1_per_node" and n is not None else 1)


def _show(call: Callable[P, R], *, predicts: bool) -> Callable[P, R]:
    takes = signature(call)
    names = ("on_progress", "on_event") if predicts or "on_event" in takes.parameters else ("on_progress",)

    @wraps(call)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with log_call(call.__name__), translating(), take_turn() as is_wanted:
            if not is_wanted:
                return call(*args, **kwargs)
            given = takes.bind(*args, **kwargs)
            given.apply_defaults()
            known = given.arguments | given.arguments.get("running", {})
            with open_progress(**_read_end(known) if predicts else {}) as progress:
                heard: dict[str, Any] = {n: tell_all(getattr(progress, n), known.get(n)) for n in names}
                told: Any = {**kwargs, **heard}
                return call(*args, **told)

    return run


def _read_end(known: Mapping[str, Any]) -> dict[str, Any]:
    """When an iteration ends, by the options that it was given."""
    n = getattr(known.get("A"), "shape", (None,))[0]
    change = find_change(known.get("tol"), known.get("tol_mode", "l1"), n, known.get("stop", "change"))
    return {"tol": change, "max_iter": known.get("max_iter")}
