"""Checkpoints of PageRank: the identity of a run, and resuming a run from the last checkpoint of another."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from zarr.abc.store import Store

from mgspmv.api.arguments import Call, read_number
from mgspmv.checkpoints import BEGINNING, Checkpoints, RunProgress
from mgspmv.errors import CapacityError, CheckpointError, ClosedError, ClusterError, OptionError, add_to_message
from mgspmv.logs import log_checkpoint
from mgspmv.solvers.checkpointing import EVERY_S, Checkpointer, CheckpointReport
from mgspmv.solvers.inputs import RunInputs
from mgspmv.solvers.options import PageRankOptions, RankTask
from mgspmv.solvers.pagerank import find_before
from mgspmv.store.chunks import digest_array
from mgspmv.store.locations import StoreLike
from mgspmv.store.metadata import MatrixProperties
from mgspmv.validation import rename_former

_VECTORS = ("personalization", "dangling", "out_weight", "nstart")
"""Inputs that are compared by digest."""


@dataclass(frozen=True)
class Checkpoint:
    """Place and interval at which a run writes its ranks, from which another one resumes.

        mg.pagerank(A, checkpoint=mg.Checkpoint("s3://bucket/run", every_s=30, resume=True))

    Raises
    ------
    OptionError : a place that is none; seconds that are not 0 or more
    """

    place: StoreLike
    """Local path, URL or Zarr store, which all workers of a cluster reach, to which the ranks are written periodically
    during the run, and once more at its end; the last two are kept. Other checkpoints there are removed once the first
    one is complete."""
    every_s: float = EVERY_S
    """Seconds between checkpoints; 0 begins one as soon as the previous one is written."""
    resume: bool = False
    """Resume from the last checkpoint, or begin where there is none. Graph, vectors, alpha, precision and norm must be
    the same, and tol and max_iter must not end the run earlier; workers, backend, executor, memory and threads may
    differ. In `exact` ranks, changes and iterations are those of an uninterrupted run."""

    def __post_init__(self) -> None:
        if not isinstance(self.place, str | os.PathLike | Store):
            raise OptionError(
                f"the place of a checkpoint must be a path, URL or Zarr store, not {self.place!r}; for none "
                "leave out checkpoint="
            )
        if read_number("every_s", self.every_s) < 0:
            raise OptionError(f"every_s must be 0 or more seconds, not {self.every_s!r}")


def read_checkpoint(checkpoint: StoreLike | Checkpoint | None, options: PageRankOptions) -> Checkpoint | None:
    """Return the checkpoint of a run, which may be given by its place alone.

    Raises
    ------
    OptionError : a `stop` whose state is more than the ranks
    """
    if checkpoint is None:
        return None
    if options.top is not None:
        raise OptionError(
            f"checkpoints have only ranks, but stop={options.stop!r} needs more state to resume; leave out checkpoint= "
            "or stop="
        )
    return checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)


@contextmanager
def add_resume_hint(keeper: Checkpointer | None) -> Iterator[None]:
    """Add to errors that end a run on a cluster which checkpoint exists, and how to resume from it."""
    before = find_before(keeper)
    try:
        yield
    except (CapacityError, ClosedError, ClusterError) as error:
        if keeper is None or not (kept := keeper.kept or before).iteration:
            raise
        said = f"the checkpoint of iteration {kept.iteration} in {keeper.checkpoints.url} is kept"
        raise add_to_message(error, f"{said}: resume from it with resume=True") from error


def begin_checkpointing(
    call: Call, task: RankTask, start: RunInputs, checkpoint: Checkpoint
) -> tuple[Checkpointer, RunInputs]:
    """Return the keeper of a run's checkpoints, and the vectors that the run begins with or resumes from.

    `progress` hears of `resume` with the number of iterations made before, and of each checkpoint.

    Raises
    ------
    CheckpointError : with `resume`, the checkpoint belongs to another run or is damaged; the place cannot be written
    StoreExistsError : the place holds data other than checkpoints
    OptionError : the place is in the memory of this process, and other processes are to write to it
    """
    A, options = call.A, task.options
    identity = _describe_run(A, options, start, use_weights=task.dtype is not None)
    checkpoints = Checkpoints(checkpoint.place, identity["matrix"], A.shape[0])
    checkpoints.prepare(is_shared=call.place.is_on_cluster)
    restored = checkpoints.restore() if checkpoint.resume else None
    before = BEGINNING if restored is None else restored.reached
    difference = None if restored is None else _compare(before, identity, options, task.threshold)
    if difference is not None:
        raise CheckpointError(
            f"the checkpoint in {checkpoints.url} is of another run: {difference}; pass the same arguments, or leave "
            "out resume=True to start from the beginning"
        )
    if checkpoint.resume:
        call.report("resume", before.iteration, None)

    def notify(kept: CheckpointReport) -> None:
        log_checkpoint(kept)
        if kept.error is None:
            call.report("checkpoint", kept.iteration, None)

    keeper = Checkpointer(checkpoints, identity, task.run, checkpoint.every_s, before, notify)
    return keeper, start if restored is None else replace(start, x=restored.x)


def _describe_run(
    A: MatrixProperties, options: PageRankOptions, start: RunInputs, *, use_weights: bool
) -> dict[str, Any]:
    """Return the inputs that determine ranks and changes after each iteration, as JSON values.

    Where the run computes and when it ends are left out; in `exact` these do not change a bit.
    """
    vectors = [start.personalization, start.dangling, start.out_weight, start.x]
    digests = [None if vector is None else digest_array(vector) for vector in vectors]
    asked = {name: getattr(options, name) for name in ("alpha", "precision", "norm", "stop")}
    return {"matrix": A.stored.name_entries(weights=use_weights), **asked, **dict(zip(_VECTORS, digests, strict=True))}


def _compare(reached: RunProgress, identity: dict[str, Any], options: PageRankOptions, threshold: float) -> str | None:
    """Describe the difference between a run and that of a checkpoint; None if they are the same."""
    written = rename_former(reached.identity)
    for name, asked in identity.items():
        found = written.get(name)
        if found == asked:
            continue
        if name in _VECTORS:
            return f"it has another {name}"
        if name == "matrix":
            return f"its matrix is {found}, not {asked}"
        return f"it has {name}={found!r}, not {name}={asked!r}"
    if (end := _find_end(options, threshold, reached.changes)) is not None:
        tol = "" if options.tol is None else f" with tol={options.tol:g}"
        return f"it has iteration {reached.iteration}, but this run{tol} ends after {end}"
    return None


def _find_end(options: PageRankOptions, threshold: float, changes: Sequence[float]) -> int | None:
    """Return the iteration after which a run would have ended before the last change; None if it would not."""
    for iteration, change in enumerate(changes[:-1], 1):
        if options.check_status(threshold, iteration, change) is not None:
            return iteration
    return None
