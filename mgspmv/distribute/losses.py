"""What a run on a cluster knows of a worker that it lost, until it goes on."""

from __future__ import annotations

import time
from collections.abc import Callable

from mgspmv.errors import MgspmvError, WorkerTimeoutError
from mgspmv.model import Recovery

End = Callable[[int, int], Recovery]
"""The run goes on now, after so many iterations and with so many workers."""


def note_loss(error: MgspmvError, iteration: int, n_workers: int) -> End:
    """Note an error that says which of so many workers is gone or silent, when the run has ended on the others."""
    kind, began = "silent" if isinstance(error, WorkerTimeoutError) else "lost", time.perf_counter()
    worker, said = getattr(error, "worker", None), str(error)

    def end(resumed_after: int, n_left: int) -> Recovery:
        seconds = time.perf_counter() - began
        return Recovery(kind, iteration, resumed_after, worker, said, seconds, n_workers, n_left)

    return end
