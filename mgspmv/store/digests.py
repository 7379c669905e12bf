"""Digests of arrays and matrices, and the pieces of arrays by which they are computed, which end where chunks end."""

from __future__ import annotations

import functools
import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, TypeVar

import numpy as np

from mgspmv.heartbeat import find_heartbeat
from mgspmv.model import default_threads
from mgspmv.validation import digest_json

R = TypeVar("R")
T = TypeVar("T")

CHUNK_ELEMENTS = 1 << 20
_THREAD = threading.local()


def is_string(array: Any) -> bool:
    """Return whether the elements of a NumPy or Zarr array are strings."""
    return bool(array.dtype.kind in "OUT")


def cut_pieces(start: int, stop: int) -> Iterator[slice]:
    """Split a range into pieces that end where chunks end."""
    while start < stop:
        end = min(stop, (start // CHUNK_ELEMENTS + 1) * CHUNK_ELEMENTS)
        yield slice(start, end)
        start = end


def run_parts(work: Callable[[T], R], parts: Iterable[T], threads: int | None) -> list[R]:
    """Call a function for each part, on several threads, each of which takes the next part when it is done; return the
    results in the order of the parts.

    The threads stay for the next call, and so does what they keep: to start threads, and to give each part to them as a
    task, takes longer than to read parts from the cache of files.
    """
    parts, heartbeat, most, made = list(parts), find_heartbeat(), threads or default_threads(), dict[int, R]()
    threads, left = min(most, len(parts)), iter(enumerate(parts))  # threads share the iterator

    def run() -> None:
        try:
            for number, part in left:
                made[number] = work(part)
                heartbeat.beat()
        except BaseException:
            for _ in left:  # none is begun any more
                pass
            raise

    if threads <= 1 or getattr(_THREAD, "is_of_pool", False):  # most arrays are too small for threads
        run()
    else:
        pool = _make_pool(most, os.getpid())
        running = [pool.submit(run) for _ in range(threads)]
        try:
            wait(running)
        except BaseException:  # an interrupt: what threads write to is freed once they have ended
            for _ in left:
                pass
            wait(running)
            raise
        for ended in running:
            ended.result()
    return [made[number] for number in range(len(parts))]


@functools.cache
def _make_pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Return threads of a process: a forked one has others."""
    return ThreadPoolExecutor(threads, "mgspmv-parts", lambda: setattr(_THREAD, "is_of_pool", True))


# --- digests ---------------------------------------------------------------------------------------------------------


def digest_array(array: Any, threads: int | None = None) -> str:
    """Return the SHA-256 over the SHA-256 of every `CHUNK_ELEMENTS` elements, which can be computed by pieces."""
    digests = run_parts(lambda piece: digest_elements(array[piece]), cut_pieces(0, len(array)), threads)
    return hashlib.sha256(b"".join(digests)).hexdigest()


def digest_elements(elements: np.ndarray) -> bytes:
    """Return the SHA-256 of elements in their stored encoding, which is independent of the machine."""
    if is_string(elements):
        from numcodecs.vlen import VLenUTF8

        # The length and the bytes of each string, without the number of strings in the first 4 bytes.
        return hashlib.sha256(memoryview(VLenUTF8().encode(elements.astype(object)))[4:]).digest()
    little = np.ascontiguousarray(elements, dtype=elements.dtype.newbyteorder("<"))
    return hashlib.sha256(little.view(np.uint8).data).digest()


def combine_digests(digests: Mapping[str, str], claims: Mapping[str, Any]) -> str:
    """Return the digest of a matrix, over its arrays' digests and, of its attributes, those needed to read them."""
    own = {name: digest for name, digest in digests.items() if not name.startswith("transpose/")}
    claimed = {name: claims[name] for name in ("kind", "shape", "dtype", "index_dtype", "vertex_ids")}
    if claims.get("order") is not None:  # older stores have no order and keep their digest
        claimed["order"] = claims["order"]
    return digest_json(claimed | {"arrays": own})


def digest_attributes(attributes: Mapping[str, Any]) -> str:
    """Return the SHA-256 of all attributes of a version except this digest."""
    return digest_json({name: value for name, value in attributes.items() if name != "attributes_digest"})
