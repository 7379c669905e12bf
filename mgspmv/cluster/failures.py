"""Record of a worker that a run on a cluster lost, completed when the run resumes."""

from __future__ import annotations

import time
from collections.abc import Callable

from mgspmv.errors import MgspmvError, WorkerTimeoutError
from mgspmv.model import Recovery

End = Callable[[int, int], Recovery]
"""Function called when the run resumes, with the number of iterations made and of workers; returns the record."""


def record_failure(error: MgspmvError, iteration: int, n_workers: int) -> End:
    """Record the loss of a worker from its error; return a function that completes the record when the run resumes."""
    kind, began = "silent" if isinstance(error, WorkerTimeoutError) else "lost", time.perf_counter()
    worker, said = getattr(error, "worker", None), str(error)

    def end(resumed_after: int, n_left: int) -> Recovery:
        seconds = time.perf_counter() - began
        return Recovery(kind, iteration, resumed_after, worker, said, seconds, n_workers, n_left)

    return end
