"""What a run on a cluster knows of a worker that it lost, until it goes on."""

from __future__ import annotations

import time
from dataclasses import dataclass

from mgspmv.errors import MgspmvError, WorkerTimeoutError
from mgspmv.model import Recovery


@dataclass(frozen=True)
class Loss:
    """Why a run has to go on with other workers; fields as of `Recovery`, where nothing else is said."""

    kind: str
    iteration: int
    worker: str | None
    error: str
    workers_before: int
    began_s: float
    """When the run had ended on the others, by `time.perf_counter`."""

    @classmethod
    def of(cls, error: MgspmvError, iteration: int, n_workers: int) -> Loss:
        """Of an error that says which worker is gone or silent."""
        kind = "silent" if isinstance(error, WorkerTimeoutError) else "lost"
        return cls(kind, iteration, getattr(error, "worker", None), str(error), n_workers, time.perf_counter())

    def end(self, resumed_after: int, n_workers: int) -> Recovery:
        """The run goes on now, with so many workers."""
        seconds, before = time.perf_counter() - self.began_s, self.workers_before
        return Recovery(self.kind, self.iteration, resumed_after, self.worker, self.error, seconds, before, n_workers)
