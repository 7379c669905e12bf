"""What is to be thought of how a run ended, which faults had struck."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mgspmv import errors

INTERRUPTED = 130


class Verdict(StrEnum):
    """How a run ended. What is not `is_right` is a defect."""

    EXACT = "exact"
    ERROR = "clear error"
    INTERRUPTED = "interrupted"
    KILLED = "killed"
    WRONG = "WRONG RANKS"
    HANG = "HANG"
    UNEXPECTED = "UNEXPECTED ERROR"
    NEEDLESS = "NEEDLESS ERROR"
    LEFT = "PROCESSES LEFT"
    HALF = "HALF-WRITTEN RANKS"
    LOST = "CHECKPOINT LOST"

    @property
    def is_right(self) -> bool:
        return not self.isupper()


@dataclass(frozen=True)
class Wanted:
    """What a run without faults gives."""

    digest: str
    """Of the ranks."""
    changes: tuple[float, ...]
    """Of all iterations."""


@dataclass(frozen=True)
class Ending:
    """How a run of the program ended."""

    exit_code: int | None
    """Negative where a signal ended it; None where it had to be ended because it hung."""
    out: str
    err: str
    left: tuple[int, ...] = ()
    """Ids of processes that it started and did not end."""
    saved_digest: str | None = None
    """Of the ranks that it wrote; empty where they cannot be read, None where there are none."""
    kept: int = 0
    """The last iteration of which it said that there is a checkpoint."""
    restored: int = 0
    """The iteration of the checkpoint that is there; 0 for none."""

    @property
    def answer(self) -> dict[str, Any]:
        """What it printed; empty where that is no JSON."""
        try:
            found = json.loads(self.out)
        except json.JSONDecodeError:
            return {}
        return found if isinstance(found, dict) else {}

    def describe(self) -> str:
        """What it said in the end, in a line."""
        error = self.answer.get("error")
        if error:
            return f"{error['type']}: {error['message']}"
        if self.answer or (self.exit_code or 0) < 0:
            return ""
        lines = self.err.strip().splitlines()
        return lines[-1] if lines else ""


def judge(ending: Ending, wanted: Wanted, *, was_killed: bool = False, must_be_exact: bool = False) -> Verdict:
    """
    Parameters
    ----------
    was_killed : whether the program itself was
    must_be_exact : no fault had struck for which a run may end
    """
    if ending.exit_code is None:
        return Verdict.HANG
    if ending.left:
        return Verdict.LEFT
    if ending.restored < ending.kept:
        return Verdict.LOST
    if ending.exit_code == 0:
        return _judge_ranks(ending, wanted)
    if was_killed and ending.exit_code < 0:
        return Verdict.KILLED
    if ending.saved_digest is not None:
        return Verdict.HALF
    if ending.exit_code == INTERRUPTED and "interrupted" in ending.err and "Traceback" not in ending.err:
        return Verdict.INTERRUPTED
    if not _is_clear(ending):
        return Verdict.UNEXPECTED
    return Verdict.NEEDLESS if must_be_exact else Verdict.ERROR


def _judge_ranks(ending: Ending, wanted: Wanted) -> Verdict:
    answer = ending.answer
    if (answer.get("digest"), tuple(answer.get("changes", ()))) != (wanted.digest, wanted.changes):
        return Verdict.WRONG
    if ending.saved_digest != wanted.digest:
        return Verdict.HALF
    return Verdict.UNEXPECTED if "Traceback" in ending.err else Verdict.EXACT


def _is_clear(ending: Ending) -> bool:
    """Whether it ended with an error of mgspmv's own, which says what happened."""
    error = ending.answer.get("error", {})
    kind = getattr(errors, error.get("type", ""), None)
    is_own = isinstance(kind, type) and issubclass(kind, errors.MgspmvError)
    return (
        is_own and kind.exit_code == ending.exit_code and bool(error.get("message")) and "Traceback" not in ending.err
    )
