"""Functions that Numba compiles when they pay for it: small inputs are served before, by slower code or NumPy's.

To load Numba takes 0.5 s and to compile a function 0.1 s or more, which is longer than all work on a small input. So a
caller that can do the same without a function asks first whether it is worth calling. Code that was compiled before is
loaded without Numba, see `mgspmv.kernels.compiled`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import Lock
from typing import Any, ClassVar

from mgspmv.kernels.compiled import Types, compile_kernel, find_code, find_types


class CompiledLater:
    """A function that is compiled when it is first called, once for all arguments of the same types.

    Parameters
    ----------
    limit : items, in all calls of this process, that are left to other code before it is worth compiling
    """

    pays: ClassVar[bool] = False
    """Whether this process has an input so large that all functions are worth compiling."""

    def __init__(self, function: Callable[..., Any], limit: int) -> None:
        functools.update_wrapper(self, function)
        self._function, self._limit, self._n_items = function, limit, 0
        self._codes: dict[Types | None, Callable[..., Any]] = {}
        self._lock = Lock()

    def __call__(self, *args: Any) -> Any:
        types = find_types(args)
        if types not in self._codes:  # asked without the lock, for which many threads would wait
            with self._lock:
                if types not in self._codes:
                    code = None if types is None else find_code(self._function, types)
                    self._codes[types] = code or self._by_numba
        return self._codes[types](*args)

    @functools.cached_property
    def _by_numba(self) -> Callable[..., Any]:
        compiled: Callable[..., Any] = compile_kernel(self._function)
        return compiled

    @property
    def signatures(self) -> tuple[Types | None, ...]:
        """Types of arguments for which there is code; None for all that are left to Numba."""
        return tuple(self._codes)

    def is_worth(self, n: int) -> bool:
        """Count n items more, and return whether to call this for them, rather than other code."""
        if CompiledLater.pays:
            return True
        with self._lock:
            self._n_items += n
            return self._n_items > self._limit


def compile_later(limit: int = 0) -> Callable[[Callable[..., Any]], CompiledLater]:
    """Decorate a function with `CompiledLater`."""
    return lambda function: CompiledLater(function, limit)
