"""Checks of arguments that several calls share."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

from mgspmv.errors import OptionError
from mgspmv.kernels.device import free_device_memory
from mgspmv.model import free_memory
from mgspmv.partition import limit


def limit_to_free(*, device_memory: int | None = None, host_memory: int | None = None) -> dict[str, Any]:
    """Return the free memory of the device and of the host, capped by these limits."""
    return {
        "device_memory": limit(free_device_memory(), device_memory),
        "host_memory": limit(free_memory(), host_memory),
    }


def read_number(name: str, number: object) -> float:
    """Return a number as float; raise `OptionError` unless it is real and finite."""
    if not isinstance(number, Real) or not math.isfinite(float(number)):
        raise OptionError(f"{name} must be a finite number, not {number!r}")
    return float(number)
