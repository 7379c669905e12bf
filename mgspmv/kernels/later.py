"""Functions that Numba compiles when they pay for it: small inputs are served before, by slower code or NumPy's.

To load Numba takes 0.5 s and to compile a function 0.1 s or more, which is longer than all work on a small input. So a
caller that can do the same without a function asks first whether it is worth calling.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import Lock
from typing import Any, ClassVar


class CompiledLater:
    """A function that is compiled by `compile_kernel` when it is first called.

    Parameters
    ----------
    limit : items, in all calls of this process, that are left to other code before it is worth compiling
    """

    pays: ClassVar[bool] = False
    """Whether this process has an input so large that all functions are worth compiling."""

    def __init__(self, function: Callable[..., Any], limit: int) -> None:
        functools.update_wrapper(self, function)
        self._function, self._limit, self._n_items = function, limit, 0
        self._compiled: Callable[..., Any] | None = None
        self._lock = Lock()

    def __call__(self, *args: Any) -> Any:
        if self._compiled is None:  # asked without the lock, for which many threads would wait
            with self._lock:
                if self._compiled is None:
                    from mgspmv.kernels.compiled import compile_kernel

                    self._compiled = compile_kernel(self._function)
        return self._compiled(*args)

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
