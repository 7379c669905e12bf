"""Digests of arrays and of matrices."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numcodecs.vlen import VLenUTF8

from mgspmv.store.chunks import is_string, map_pieces


def digest_array(array: Any, threads: int | None = None) -> str:
    """SHA-256 over the SHA-256 of every `CHUNK_ELEMENTS` elements, so that pieces can be hashed apart."""
    digests = map_pieces(lambda piece: digest_elements(array[piece]), 0, len(array), threads)
    return hashlib.sha256(b"".join(digests)).hexdigest()


def digest_elements(elements: np.ndarray) -> bytes:
    """SHA-256 of elements as they are in files, whatever machine this is."""
    return hashlib.sha256(_encode(elements)).digest()


def combine_digests(digests: Mapping[str, str], claims: Mapping[str, Any]) -> str:
    """The digest of a matrix: of its arrays' digests and of what says how to read them.

    Parameters
    ----------
    claims : kind, shape, dtype, index_dtype, vertex_ids and order as in `MatrixInfo`; what else is there does not count
    """
    own = {name: digest for name, digest in digests.items() if not name.startswith("transpose/")}
    claimed = {name: claims[name] for name in ("kind", "shape", "dtype", "index_dtype", "vertex_ids")}
    if claims.get("order") is not None:  # so that stores of the time before there was one keep their digest
        claimed["order"] = claims["order"]
    return hashlib.sha256(json.dumps(claimed | {"arrays": own}, sort_keys=True).encode()).hexdigest()


def _encode(array: np.ndarray) -> Any:
    if is_string(array):
        # For each its length and bytes; what comes before them, how many there are, is left out.
        return memoryview(VLenUTF8().encode(array.astype(object)))[4:]
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).view(np.uint8)
