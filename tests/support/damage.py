"""Files that were edited or damaged, and what calls make of them, in a process of its own that may crash."""

from __future__ import annotations

import json
import math
import multiprocessing
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from mgspmv.errors import MgspmvError

DEEP = "<deep>"
"""Stands for JSON too deep to be parsed, or written by Python."""
ODD: tuple[Any, ...] = (
    *(None, "", "x", "\0", "../..", "\ud800", True, False, 0, 1, -1, 2, 3, 4, 0.5, -0.0),
    *(2**31, 2**53, 2**63, 2**64, 10**400, 1e308, -1e308, math.nan, math.inf, -math.inf, "NaN", "Infinity"),
    *([], {}, [0], [1], [None], [[]], {"x": 1}, [-1], [2**64], [12, 12], [12, 12, 1, 1], [0, 0], DEEP, [[[[[[{}]]]]]]),
    *("graph", "matrix", "stochastic", "int32", "int64", "float32", "float64", "uint64", "float16", "string", "object"),
    *(
        "big",
        "little",
        "degree",
        "rcm",
        "dealt",
        "C",
        "bytes",
        "crc32c",
        "blosc",
        "lz4",
        "zstd",
        "vlen-utf8",
        "default",
    ),
    *("v2", "v000001-00000000", "regular", "array", "group", "converged", "power", "katz", "l1", "max", "sum", "keep"),
)
"""What a field may be replaced by: words of other fields, and numbers beyond all limits."""


@dataclass(frozen=True)
class Edit:
    """A change to a JSON file."""

    file: int
    """Which of the files, modulo their number."""
    field: int
    """Which of its fields, or of its bits, modulo their number."""
    how: str
    """`replace`, `delete`, `repeat`, or `flip` a single bit."""
    value: Any
    """What the field is replaced by."""

    def apply(self, text: bytes) -> tuple[bytes, str]:
        """The edited text, and what was done."""
        if self.how == "flip":
            place = self.field % (8 * len(text))
            flipped = bytearray(text)
            flipped[place // 8] ^= 1 << place % 8
            return bytes(flipped), f"bit {place}"
        document = json.loads(text)
        if not document:
            return text, "nothing"
        holder, key, path = _pick(document, self.field)
        was = holder[key]
        if self.how == "delete":
            del holder[key]
        elif self.how == "repeat" and isinstance(holder, list):
            holder.append(was)
        elif self.how == "repeat":
            holder[f"{key}2"] = was
        else:
            holder[key] = self.value
        said = f" by {self.value!r}" if self.how == "replace" else ""
        return _dump(document), f"{self.how} {path}, which was {json.dumps(was)[:60]},{said}"


def edit_all(text: bytes, values: Iterable[Any]) -> Iterator[tuple[bytes, str]]:
    """The text with each field in turn deleted and replaced by each value, and what was done; two of each list."""
    values = list(values)
    for path in _list_paths(json.loads(text)):
        for number in range(-1, len(values)):
            document = holder = json.loads(text)
            for key in path[:-1]:
                holder = holder[key]
            if number < 0:
                del holder[path[-1]]
            else:
                holder[path[-1]] = values[number]
            done = "delete" if number < 0 else f"replace by {values[number]!r}"
            yield _dump(document), f"{done} {'/'.join(map(str, path))}"


def _list_paths(document: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key in list(document) if isinstance(document, dict) else range(min(len(document), 2)):
        yield (*above, key)
        if isinstance(document[key], dict | list):
            yield from _list_paths(document[key], (*above, key))


def _dump(document: Any) -> bytes:
    return json.dumps(document).replace(json.dumps(DEEP), "[" * 100_000 + "]" * 100_000).encode()


def _pick(document: Any, number: int) -> tuple[Any, Any, str]:
    """A field: what holds it, its key and its path. Each has as good a chance as others of its level."""
    holder, path = document, ""
    while True:
        number, place = divmod(number, len(holder))
        key: Any = list(holder)[place] if isinstance(holder, dict) else place
        path = f"{path}/{key}"
        number, goes_on = divmod(number, 5)
        if not goes_on or not isinstance(holder[key], dict | list) or not holder[key]:
            return holder, key, path
        holder = holder[key]


edits = st.builds(
    Edit,
    file=st.integers(0, 99),
    field=st.integers(0, 2**40),
    how=st.sampled_from(["replace"] * 4 + ["delete", "repeat", "flip", "flip"]),
    value=st.sampled_from(ODD),
)


# --- calls in a process of their own ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """How a call ended."""

    kind: str
    """`value`; `error`, one of mgspmv's; `raw`, any other; `crash` of the process."""
    said: str
    """Digest of the value, the error with its class, or where the exception was raised."""
    code: int = 0
    """With which a command ends."""


class Apart:
    """A process that makes calls one after the other, and is started again after a crash."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def call(self, function: Callable[..., str], *args: Any) -> Outcome:
        """What becomes of a call that returns a digest."""
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        try:
            return self._pool.submit(observe, function, *args).result()
        except BrokenProcessPool:
            self.close()
            return Outcome("crash", "the process ended")

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def observe(function: Callable[..., str], *args: Any) -> Outcome:
    """What becomes of a call that returns a digest, in this process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return Outcome("value", function(*args))
        except MgspmvError as error:
            return Outcome("error", f"{type(error).__name__}: {error}", error.exit_code)
        except Exception:
            return Outcome("raw", traceback.format_exc(limit=-3))


def check_ending(found: Outcome, said: str) -> None:
    """Fail unless a call ended with a value, or with an error of mgspmv in one line that tells damage from bugs."""
    assert found.kind in ("value", "error"), f"{said}: {found.kind}: {found.said}"
    if found.kind == "error":
        assert "\n" not in found.said, f"{said}: {found.said}"
        assert 2 <= found.code <= 7, f"{said}: {found}"


def check_outcome(found: Outcome, sound: str, said: str) -> None:
    """Fail unless a call ended with such an error, or as it does with sound files."""
    check_ending(found, said)
    assert found.kind == "error" or found.said == sound, f"{said}: another result"
