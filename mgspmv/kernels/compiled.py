"""Functions compiled and cached by Numba, and recompiled when a file that they depend on is edited.

Numba caches compiled code under the time and size of the function's own file, which each upgrade changes: the contents
are taken instead. Functions and constants from other files are compiled in, and Numba does not notice edits there, so
each state of these files has a separate cache folder.

Numba also numbers the files of a function's compiled code: two processes that save code for different types at once
choose the same number, and from then on one type would run the code of the other. So names have a token of the process.
"""

from __future__ import annotations

import functools
import hashlib
import os
import secrets
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from mgspmv.kernels.modules import CACHE_VARIABLE, find_folder, report_compiling

_HERE = Path(__file__).parent
_NAMES = ("compiled", "machine_code", "cpu", "csr_cuts", "formats", "lanes", "column_sorted_tiles", "reference")
SOURCES = (_HERE.parent / "model.py", *(_HERE / f"{name}.py" for name in _NAMES))
"""Files whose functions and constants are compiled into functions of other files."""
_TOKEN = secrets.token_hex(4)


def compile_kernel(function: Callable[..., Any]) -> Any:
    """Compile as `njit(nogil=True, cache=True)` does; without a cache, after a warning, if no folder can be written."""
    load_numba()
    from numba import config, njit

    place = find_compiled(config.CACHE_DIR)
    if place is None:
        warn_once()
        return njit(nogil=True)(function)
    folder, config.CACHE_DIR = config.CACHE_DIR, str(place)
    try:
        compiled = njit(nogil=True, cache=True)(function)
    finally:
        config.CACHE_DIR = folder
    files = getattr(getattr(compiled, "_cache", None), "_cache_file", None)  # Numba has no public access
    if files is not None:
        files._source_stamp = digest_files(Path(function.__code__.co_filename))
        files._data_name_pattern = files._data_name_pattern.replace("{number", f"{_TOKEN}.{{number")
    return compiled


@functools.cache
def warn_once() -> None:
    """Warn that compiled functions are not kept."""
    warnings.warn(
        "compiled functions cannot be kept, so every process will compile them; set $NUMBA_CACHE_DIR or "
        f"${CACHE_VARIABLE} to a writable folder",
        stacklevel=4,
    )


@functools.cache
def digest_files(*paths: Path) -> str:
    """Return the SHA-256 of the contents of files."""
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in paths)).hexdigest()


@functools.cache
def find_compiled(folder: str) -> Path | None:
    """Return the cache folder for the current state of `SOURCES`; None if none can be written.

    Parameters
    ----------
    folder : $NUMBA_CACHE_DIR; empty if it is not set. The package's own folder and the user's cache follow
    """
    for place in (*([Path(folder)] if folder else []), _HERE / "__pycache__", find_folder() / "numba"):
        with suppress(OSError):
            place.mkdir(parents=True, exist_ok=True)
            if os.access(place, os.W_OK):
                return place / digest_files(*SOURCES)[:16]
    return None


def take(counter: Any) -> int:
    """Add 1 to counter[0] atomically and return the old value; only for functions that are compiled."""
    raise NotImplementedError("only compiled functions take a number from a counter")


@functools.cache
def load_numba() -> None:
    """Load Numba, so that it knows `take`, and what it compiles is reported."""
    from numba import types
    from numba.core import event
    from numba.extending import intrinsic, overload

    class Listener(event.Listener):  # type: ignore[misc]
        def on_start(self, event: Any) -> None:
            report_compiling()

        def on_end(self, event: Any) -> None:
            pass

    @intrinsic
    def add(typing_context, counter):
        def generate(context, builder, signature, args):
            array = context.make_array(signature.args[0])(context, builder, args[0])
            one = context.get_constant(types.int64, 1)
            return builder.atomic_rmw("add", array.data, one, "monotonic")

        return types.int64(counter), generate

    event.register("numba:compile", Listener())
    overload(take, inline="always")(lambda counter: lambda counter: add(counter))
