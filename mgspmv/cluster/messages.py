"""Messages between the client of a run and its workers: inputs, reports and results; and checks of reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import numpy as np

from mgspmv.errors import ClusterError, CorruptionError, WorkerCorruptionError
from mgspmv.exchange.peer_comm import Member, RunSpec
from mgspmv.kernels.select import StepLayout
from mgspmv.model import Event, RowCheck, Status, StepSums
from mgspmv.run_progress import BEGINNING, RunProgress
from mgspmv.solvers.batch import BatchTask, FinishedVectors
from mgspmv.solvers.inputs import RunInputs
from mgspmv.solvers.mass_check import ADVICE, MassCheck, check_rows, describe_off
from mgspmv.solvers.options import RankTask
from mgspmv.solvers.power import PowerTask, Step
from mgspmv.solvers.run import Collected
from mgspmv.solvers.vectors import Query

AnyTask = TypeVar("AnyTask", RankTask, BatchTask, PowerTask)

# --- inputs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskSpec(RunSpec, Generic[AnyTask]):
    """Description of a run, the same for all of its workers."""

    task: AnyTask
    """Options of the run."""
    transport: Literal["peer", "nccl"] = "peer"
    """Transport of slices between workers."""
    layout: StepLayout | None = None
    """Layout of the rows for steps of PageRank that devices enqueue several at a time; None for kernels over CSR."""
    steps_at_once: int = 1
    """Number of such steps between two checks for the end."""
    before: RunProgress = BEGINNING
    """Progress from which the run resumes."""
    balance: MassCheck | None = None
    """Predicted bounds of the sum of the first ranks; None if not predicted."""


@dataclass(frozen=True, eq=False)
class BatchPiece:
    """Inputs of a batch on one worker, cut to its rows."""

    start: RunInputs
    """Input vectors; only d, empty for the p of each vector, and the out-weights are used."""
    queries: list[Query]
    """All vectors, restricted to the entries in these rows."""
    order: np.ndarray | None
    """(n_rows,) source's number of each row; None if they ascend or are not needed."""


@dataclass(frozen=True, eq=False)
class VectorShare(BatchPiece):
    """Inputs of a batch on one worker that ranks some of the vectors, with all rows."""

    rank: int
    """Rank of the worker."""
    widest: int
    """Most vectors in a pass that fit in its memory."""


@dataclass(frozen=True, eq=False)
class PowerPiece:
    """Inputs of power iteration on one worker, cut to its rows and in the precision of the run."""

    step: Step
    """Applied to each product."""
    x: np.ndarray
    """Elements of the start vector."""


# --- reports and results ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankCheck:
    """Check of a worker's ranks between two steps."""

    rows: RowCheck
    """Sums over its rows."""
    slack: float
    """Maximum rounding error of their sum in a step."""
    mass: float = 0.0
    """Sum of the ranks of all dangling vertices, as used in the step; 0 if the client has it."""
    balance: MassCheck | None = None
    """Predicted bounds of the sum of the ranks of all workers; None if the client predicts them."""


@dataclass(frozen=True, eq=False)
class Report:
    """Result of a superstep on one worker."""

    events: list[Event]
    """Event of each iteration on this worker."""
    status: Status | None
    """Status of the run; None if it has not ended."""
    ranks: RankCheck | None = None
    """Check of the ranks; None if there are no ranks or they are not finite."""
    kept: Sequence[FinishedVectors] = ()
    """Kept values of this worker's rows of finished vectors of a batch."""
    n_ended: int = 0
    """Number of vectors that have ended."""
    collected: Collected | None = None
    """Result of a worker that iterates alone, after its end; None before that, and for others."""


@dataclass(frozen=True, eq=False)
class RoundReport:
    """Result of a round of tasks on one worker, in the executor `tasks`."""

    z: np.ndarray
    """(n_rows,): this worker's slice of the next z."""
    sums: StepSums
    product_s: float
    held_bytes: int
    """Bytes held for rows and vectors."""
    ranks: RankCheck


def check_reports(reports: Sequence[Report], members: Sequence[Member], phase: str) -> None:
    """Check that all workers made the same iterations of a superstep, and that their ranks are valid.

    Raises
    ------
    ClusterError : they did not make the same iterations with the same changes
    WorkerCorruptionError : ranks fail a check
    """
    # All add up the same sums.
    made = {
        (
            report.status,
            tuple((event.iteration, event.change) for event in report.events),
            tuple(kept.numbers for kept in report.kept),
            report.n_ended,
        )
        for report in reports
    }
    if len(made) > 1:
        raise ClusterError("the workers do not agree on the changes of this superstep; one of them computes wrongly")
    found = [report.ranks for report in reports if report.ranks is not None]
    if found:
        iteration = reports[0].events[-1].iteration
        check_ranks(found, found[0].mass, found[0].balance, members, iteration, phase)


def check_ranks(
    found: Sequence[RankCheck],
    mass: float,
    balance: MassCheck | None,
    members: Sequence[Member],
    iteration: int,
    phase: str,
) -> None:
    """Check the ranks of all workers.

    Parameters
    ----------
    mass, balance : as in `mgspmv.solvers.mass_check.check_rows`
    """
    for member, own in zip(members, found, strict=True):
        if own.rows.n_off:
            raise WorkerCorruptionError(
                f"after iteration {iteration} {describe_off(own.rows.n_off)} on worker {member}: {ADVICE}",
                worker=str(member.name),
                phase=phase,
            )
    try:
        rows, slack = sum((own.rows for own in found), RowCheck()), sum(own.slack for own in found)
        check_rows(rows, mass, balance, slack, iteration)
    except CorruptionError as error:
        raise WorkerCorruptionError(str(error), phase=phase) from error
