"""Checkpoints of PageRank: the identity of a run, and resuming a run from the last checkpoint of another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from mgspmv.api.arguments import read_number
from mgspmv.api.placing import Placement
from mgspmv.checkpoints import BEGINNING, Checkpoints, RunProgress
from mgspmv.errors import CapacityError, CheckpointError, ClosedError, ClusterError, OptionError, add_to_message
from mgspmv.logs import log_checkpoint
from mgspmv.solvers.checkpointing import EVERY_S, Checkpointer, CheckpointReport
from mgspmv.solvers.inputs import RunInputs
from mgspmv.solvers.options import PageRankOptions, RankTask, check_status
from mgspmv.solvers.pagerank import find_before
from mgspmv.store.digests import digest_array
from mgspmv.store.locations import StoreLike
from mgspmv.store.metadata import MatrixProperties

_VECTORS = {
    "personalization": "personalization",
    "dangling": "distribution of the rank of dangling vertices",
    "out_weight": "vector of out-weights",
    "nstart": "start vector",
}
"""Descriptions of the inputs that are compared by digest."""


_FORMER = {"norm": "tol_mode"}
"""Names of inputs when the format was made, under which they may still be written."""


def check_checkpoint(checkpoint: StoreLike | None, every: float | None, resume: bool, options: PageRankOptions) -> None:
    """Check the checkpoint options.

    Raises
    ------
    OptionError : `resume` or `every` without a place; invalid seconds; a `stop` whose state is more than the ranks
    """
    if checkpoint is None:
        if every is not None:
            raise OptionError("checkpoint_every= needs a place for checkpoints; pass checkpoint= too")
        if resume:
            raise OptionError("resume=True needs the place of the checkpoint; pass checkpoint= too")
        return
    if every is not None and read_number("checkpoint_every", every) < 0:
        raise OptionError(f"checkpoint_every must be 0 or more seconds, not {every!r}")
    if options.top is not None:
        raise OptionError(
            f"checkpoints have only ranks, but stop={options.stop!r} needs more state to resume; leave out checkpoint= "
            "or stop="
        )


def check_recover(recover: int) -> None:
    """Raise `OptionError` unless `recover` is an integer of 0 or more."""
    if not isinstance(recover, int | np.integer) or isinstance(recover, bool) or recover < 0:
        raise OptionError(f"recover must be an integer of 0 or more, not {recover!r}")


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
    place: Placement,
    task: RankTask,
    start: RunInputs,
    checkpoint: StoreLike,
    every: float | None,
    *,
    resume: bool,
    is_shared: bool,
) -> tuple[Checkpointer, RunInputs]:
    """Return the keeper of a run's checkpoints, and the vectors that the run begins with or resumes from.

    `on_progress` is called with `resume` and the number of iterations made before, and with each checkpoint.

    Parameters
    ----------
    every : seconds between checkpoints; None for `EVERY_S`
    is_shared : whether other processes write slices

    Raises
    ------
    CheckpointError : with `resume`, the checkpoint belongs to another run or is damaged; the place cannot be written
    StoreExistsError : the place holds data other than checkpoints
    OptionError : the place is in the memory of this process, and other processes are to write to it
    """
    A, options, report = place.A, task.options, place.on_progress
    identity = _describe_run(A, options, start, use_weights=task.dtype is not None)
    checkpoints = Checkpoints(checkpoint, identity["matrix"], A.shape[0])
    checkpoints.prepare(is_shared=is_shared)
    restored = checkpoints.restore() if resume else None
    before = BEGINNING if restored is None else restored.reached
    difference = None if restored is None else _compare(before, identity, options, task.threshold)
    if difference is not None:
        raise CheckpointError(
            f"the checkpoint in {checkpoints.url} is of another run: {difference}; pass the same arguments, or leave "
            "out resume=True to start from the beginning"
        )
    if resume and report is not None:
        report("resume", before.iteration, None)

    def notify(kept: CheckpointReport) -> None:
        log_checkpoint(kept)
        if report is not None and kept.error is None:
            report("checkpoint", kept.iteration, None)

    keeper = Checkpointer(checkpoints, identity, task.run, EVERY_S if every is None else every, before, notify)
    return keeper, start if restored is None else replace(start, x=restored.x)


def _describe_run(
    A: MatrixProperties, options: PageRankOptions, start: RunInputs, *, use_weights: bool
) -> dict[str, Any]:
    """Return the inputs that determine ranks and changes after each iteration, as JSON values.

    Where the run computes and when it ends are left out; in `exact` these do not change a bit.
    """
    vectors = {
        "personalization": start.personalization,
        "dangling": start.dangling,
        "out_weight": start.out_weight,
        "nstart": start.x,
    }
    digests = {name: None if vector is None else digest_array(vector) for name, vector in vectors.items()}
    asked = {name: getattr(options, name) for name in ("alpha", "precision", "norm", "stop")}
    return {"matrix": A.stored.name_entries(weights=use_weights), **asked, **digests}


def _compare(reached: RunProgress, identity: dict[str, Any], options: PageRankOptions, threshold: float) -> str | None:
    """Describe the difference between a run and that of a checkpoint; None if they are the same."""
    for name, asked in identity.items():
        found = reached.identity.get(name, reached.identity.get(_FORMER.get(name, name)))
        if found == asked:
            continue
        if name in _VECTORS:
            return f"it has another {_VECTORS[name]}"
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
        if check_status(options, threshold, iteration, change, False) is not None:
            return iteration
    return None
