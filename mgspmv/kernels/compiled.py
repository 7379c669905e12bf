"""Functions that Numba compiles and keeps, and compiles anew when another file is edited that they take something from.

Numba keeps what it compiled with the digest of the file that the function is in. Functions and constants of other files
are compiled in, and by itself it would not see edits there.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

from numba import njit

from mgspmv.kernels.cache import warn_once


def compile_with(*modules: str, constants: tuple[Any, ...] = ()) -> Callable[[Callable[..., Any]], Any]:
    """A decorator like `njit(nogil=True, cache=True)`.

    Parameters
    ----------
    modules : of which functions are compiled in, into what is decorated or into what that calls
    constants : numbers of other modules that are, likewise
    """
    taken = [*(inspect.getsource(import_module(name)) for name in modules), repr(constants)]
    digest = hashlib.sha256("\0".join(taken).encode()).hexdigest()

    def compile_kept(function: Callable[..., Any]) -> Any:
        compiled = njit(nogil=True, cache=True)(function)
        try:
            index = compiled._cache._cache_file
            index._source_stamp = (index._source_stamp, digest)
        except AttributeError:
            warn_once("this version of Numba keeps functions in another way; kernels are compiled in each process")
            return njit(nogil=True)(function)
        return compiled

    return compile_kept
