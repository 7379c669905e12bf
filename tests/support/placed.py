"""Calls with a matrix whose placement is among the options of a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

HOW = ("kernel", "threads", "executor", "device_memory", "host_memory", "transport", "timeout", "recover")


def place(A: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The matrix on the `client`, or on the `backend`, of these options, and the options that are not of the place."""
    how = {name: options[name] for name in HOW if name in options}
    others = {name: value for name, value in options.items() if name not in (*HOW, "client", "backend")}
    if options.get("client") is not None:
        how |= {"backend": options["backend"]} if "backend" in options else {}
        return A.on(options["client"], **how), others
    if "backend" in options:
        return A.on(options["backend"], **how), others
    return (A.on(**how) if how else A), others


def call_placed(call: Callable[..., Any], A: Any, *args: Any, **options: Any) -> Any:
    """Calls a function with the matrix placed as the options say."""
    placed, others = place(A, options)
    return call(placed, *args, **others)
