"""Presentation: numbers for people, charts, and the tables that notebooks show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def read_number(value: Any) -> float:
    """Read a number of a record, in which non-finite ones are names; NaN for None."""
    return math.nan if value is None else float(value)


def format_number(value: float, digits: int = 3) -> str:
    """Format with a few digits, without leading zeros in an exponent: 0.0123, 8.92e-7."""
    if not math.isfinite(value):
        return "–" if math.isnan(value) else "∞" if value > 0 else "−∞"
    mantissa, e, exponent = f"{value:.{digits}g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if e else mantissa


def format_scaled(number: float, units: Sequence[str] = ("", " k", " M", " G", " T")) -> str:
    """Format in the largest unit, each a thousand of the one before, that leaves at least 1."""
    for unit in units[:-1]:
        if abs(number) < 999.5:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g}{units[-1]}"


def format_bytes(count: float) -> str:
    """Format in a decimal unit of bytes."""
    return format_scaled(count, (" B", " kB", " MB", " GB", " TB", " PB"))


def format_seconds(elapsed_s: float) -> str:
    """Format in µs, ms or s; from two minutes on in minutes and seconds, from two hours on in hours and minutes."""
    if not math.isfinite(elapsed_s):
        return "unknown"
    if elapsed_s >= 7200:
        return f"{int(elapsed_s // 3600)} h {int(elapsed_s % 3600 // 60)} min"
    if elapsed_s >= 120:
        return f"{int(elapsed_s // 60)} min {int(elapsed_s % 60)} s"
    if elapsed_s >= 0.9995 or elapsed_s == 0:
        return f"{elapsed_s:.3g} s"
    return f"{elapsed_s * 1e3:.3g} ms" if elapsed_s >= 1e-3 else f"{elapsed_s * 1e6:.3g} µs"


def format_phases(seconds: dict[str, float], limit: int = 4) -> str:
    """Format the sum of phases and the longest ones, in the unit of the sum, such as `86.2 ms: load 80.1 ms`.

    Parameters
    ----------
    seconds : of each phase
    limit : number of phases to name; those that round to 0 are left out
    """
    total = sum(seconds.values())
    factor, unit = (1, "s") if total >= 0.9995 else (1e3, "ms") if total >= 1e-3 else (1e6, "µs")
    longest = sorted(seconds.items(), key=lambda phase: -phase[1])[:limit]
    shown = {name: f"{elapsed_s * factor:.2f}" for name, elapsed_s in longest}
    phases = [f"{name} {elapsed} {unit}" for name, elapsed in shown.items() if elapsed != "0.00"]
    return ": ".join(filter(None, (f"{total * factor:.2f} {unit}", ", ".join(phases))))


def format_power(exponent: int) -> str:
    """Format ten to this power."""
    return f"10{str(exponent).translate(_SUPERSCRIPTS)}"


def shorten(text: str, limit: int) -> str:
    """Replace the middle of a text that is longer than `limit` by an ellipsis."""
    if len(text) <= limit:
        return text
    n_last = (limit - 1) // 2
    return f"{text[: limit - 1 - n_last]}…{text[len(text) - n_last :]}"
