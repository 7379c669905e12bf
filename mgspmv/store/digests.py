"""Digests of arrays and of matrices."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numcodecs.vlen import VLenUTF8

from mgspmv.store.chunks import is_string, map_pieces
from mgspmv.validation import digest_json


@dataclass(frozen=True, eq=False)
class WrittenArray:
    """Digest and checksums of a written array, as a version records them."""

    digest: str
    """SHA-256, as `digest_array` computes it."""
    checksums: np.ndarray
    """(n_chunks,) uint32: CRC-32C of each chunk."""


def encode_checksums(checksums: np.ndarray) -> str:
    """Encode the checksums of an array for the attributes: little endian, in base64."""
    return base64.b64encode(checksums.astype("<u4").tobytes()).decode()


def decode_checksums(text: Any, n_chunks: int) -> np.ndarray:
    """Decode the output of `encode_checksums`; raises ValueError or TypeError unless it has `n_chunks` checksums."""
    found = np.frombuffer(base64.b64decode(text, validate=True), "<u4")
    if len(found) != n_chunks:
        raise ValueError(f"{len(found)} checksums are recorded for {n_chunks} chunks")
    return found


def digest_array(array: Any, threads: int | None = None) -> str:
    """Return the SHA-256 over the SHA-256 of every `CHUNK_ELEMENTS` elements, which can be computed by pieces."""
    digests = map_pieces(lambda piece: digest_elements(array[piece]), 0, len(array), threads)
    return hashlib.sha256(b"".join(digests)).hexdigest()


def digest_elements(elements: np.ndarray) -> bytes:
    """Return the SHA-256 of elements in their stored encoding, which is independent of the machine."""
    return hashlib.sha256(_encode(elements)).digest()


def combine_digests(digests: Mapping[str, str], claims: Mapping[str, Any]) -> str:
    """Return the digest of a matrix, over its arrays' digests and the metadata needed to read them.

    Parameters
    ----------
    claims : kind, shape, dtype, index_dtype, vertex_ids and order as in `MatrixInfo`; other keys are ignored
    """
    own = {name: digest for name, digest in digests.items() if not name.startswith("transpose/")}
    claimed = {name: claims[name] for name in ("kind", "shape", "dtype", "index_dtype", "vertex_ids")}
    if claims.get("order") is not None:  # older stores have no order and keep their digest
        claimed["order"] = claims["order"]
    return digest_json(claimed | {"arrays": own})


def digest_attributes(attributes: Mapping[str, Any]) -> str:
    """Return the SHA-256 of all attributes of a version except this digest."""
    return digest_json({name: value for name, value in attributes.items() if name != "attributes_digest"})


def check_attributes(attributes: Mapping[str, Any]) -> None:
    """Raise ValueError if the attributes of a version do not match their recorded digests."""
    recorded = attributes.get("attributes_digest")  # missing in older versions
    if recorded is not None and recorded != digest_attributes(attributes):
        raise ValueError("their digest differs from the one that was recorded")
    if combine_digests(attributes["array_digests"], attributes) != attributes["digest"]:
        raise ValueError("the digest does not match kind, shape, dtypes, order and the arrays' digests")


def _encode(array: np.ndarray) -> Any:
    if is_string(array):
        # The length and the bytes of each string, without the number of strings in the first 4 bytes.
        return memoryview(VLenUTF8().encode(array.astype(object)))[4:]
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).view(np.uint8)
