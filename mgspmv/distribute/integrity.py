"""What workers tell of what they hold, so that the client sees that they hold the same, and what they must."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mgspmv.errors import ClusterError, CorruptionError, WorkerCorruptionError
from mgspmv.exchange.digests import find_difference
from mgspmv.exchange.links import Member
from mgspmv.iterate.balance import ADVICE, Balance, check_rows, describe_off
from mgspmv.model import Digests, Event, RowCheck, Status, StepSums


@dataclass(frozen=True)
class RankCheck:
    """What a worker found of its ranks between two steps."""

    rows: RowCheck
    """Of its rows."""
    slack: float
    """What rounding of a step may do to their sum."""
    mass: float = 0.0
    """Sum of the ranks of all dangling vertices, as the step had it; 0 where the client knows."""
    balance: Balance | None = None
    """What the ranks of all workers sum to, as it foresees; None where the client does."""


@dataclass(frozen=True, eq=False)
class Report:
    """What was done in a superstep, and how things were after it."""

    events: list[Event]
    """Of each iteration on this worker."""
    status: Status | None
    """How the run ended; None if it did not."""
    digests: tuple[Digests, ...] = ()
    """Of what was exchanged last, for each of the matrices that are multiplied; none where nothing was, or where
    elements are not finite."""
    ranks: RankCheck | None = None
    """None where there are none, likewise."""


@dataclass(frozen=True, eq=False)
class RoundReport:
    """What was done in a round of the scheduler."""

    z: np.ndarray
    """(n_rows,): this worker's slice of the next z."""
    sums: StepSums
    product_s: float
    held_bytes: int
    """For rows and vectors."""
    given: tuple[int, ...]
    """Digests of the slices of the z that it was given."""
    made: int
    """Digest of `z`."""
    ranks: RankCheck


def check_reports(reports: Sequence[Report], members: Sequence[Member], phase: str) -> None:
    """See that a superstep went well on all workers.

    Raises
    ------
    ClusterError : they did not make the same iterations with the same changes
    WorkerCorruptionError : one holds other slices than were sent; ranks are not what they must be
    """
    check_agreement(reports)
    for digests in zip(*(report.digests for report in reports), strict=True):
        check_slices(digests, members, f"iteration {_find_iteration(reports)}", phase)
    found = [report.ranks for report in reports if report.ranks is not None]
    if found:
        check_ranks(found, found[0].mass, found[0].balance, members, _find_iteration(reports), phase)


def check_slices(of_workers: Sequence[Digests], members: Sequence[Member], done: str, phase: str) -> None:
    """See that all workers hold the slices that were sent.

    Parameters
    ----------
    done : what they were sent after

    Raises
    ------
    WorkerCorruptionError : one holds others
    """
    difference = find_difference(of_workers)
    if difference is not None:
        sender, receiver = (members[rank] for rank in difference)
        _refuse(sender, receiver, done, phase)


def check_agreement(reports: Sequence[Report]) -> None:
    """See that all workers made the same iterations with the same changes, as their sums were the same.

    Raises
    ------
    ClusterError : they did not
    """
    seen = {(report.status, tuple((e.iteration, e.change) for e in report.events)) for report in reports}
    if len(seen) > 1:
        raise ClusterError("the workers do not agree on the changes of this superstep; one of them computes wrongly")


def check_given(
    reports: Sequence[RoundReport], given: Sequence[int], members: Sequence[Member], iteration: int, phase: str
) -> None:
    """See that all workers were given the z that this process sent.

    Parameters
    ----------
    given : digests of its slices, as they are here

    Raises
    ------
    WorkerCorruptionError : one was given another one
    """
    for receiver, report in zip(members, reports, strict=True):
        for sender, own, wanted in zip(members, report.given, given, strict=True):
            if own != wanted:
                _refuse(sender, receiver, f"iteration {iteration}", phase)


def check_made(
    reports: Sequence[RoundReport], made: Sequence[int], members: Sequence[Member], iteration: int, phase: str
) -> None:
    """See that the slices that came here are those that workers made; parameters and errors likewise."""
    for member, report, came in zip(members, reports, made, strict=True):
        if report.made != came:
            raise WorkerCorruptionError(
                f"the slice that came from worker {member} after iteration {iteration} is not what it sent: {ADVICE}",
                worker=str(member.name),
                phase=phase,
            )


def check_ranks(
    found: Sequence[RankCheck],
    mass: float,
    balance: Balance | None,
    members: Sequence[Member],
    iteration: int,
    phase: str,
) -> None:
    """See that the ranks of all workers are what they must be.

    Parameters
    ----------
    mass, balance : as of `mgspmv.iterate.balance.check_rows`

    Raises
    ------
    WorkerCorruptionError : they are not
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


def _find_iteration(reports: Sequence[Report]) -> int:
    return reports[0].events[-1].iteration if reports[0].events else 0


def _refuse(sender: Member, receiver: Member, done: str, phase: str) -> None:
    raise WorkerCorruptionError(
        f"after {done} worker {receiver} does not hold what "
        f"{'it made itself' if sender == receiver else f'worker {sender} sent it'}: {ADVICE}",
        worker=str(receiver.name),
        phase=phase,
    )
