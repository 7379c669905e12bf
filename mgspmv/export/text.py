"""Parts of text formats: compressed pieces of a file, and floats in digits that restore them."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

GZIP_LEVEL = 1
"""Compression level, 1 to 9; level 6 took seven times as long for files a tenth smaller."""
ROUNDED_TWICE = np.float32(float.fromhex("0x1.5c87fap-84"))
"""Only float32, with its negative, that does not round-trip through its shortest digits, 7.038531e-26, if a reader
parses them as float64 and rounds the result. All float32 were tested."""


def widen(values: np.ndarray) -> np.ndarray:
    """Return values whose shortest digits restore them, also for readers that parse float64."""
    if values.dtype == np.float32 and (np.abs(values) == ROUNDED_TWICE).any():
        return values.astype(np.float64)
    return values


def find_compression(name: str) -> Callable[[Any], Any]:
    """Return the function that compresses a piece of a file of this name into a gzip member or a zstd frame."""
    if name.endswith(".gz"):
        return lambda data: gzip.compress(data, GZIP_LEVEL, mtime=0)
    if name.endswith(".zst"):
        codec = pa.Codec("zstd", 1)
        return lambda data: codec.compress(data)
    return lambda data: data
