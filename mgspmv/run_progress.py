"""Progress of a run, which a checkpoint holds and another run resumes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

EVERY_S = 30.0
"""Default seconds between checkpoints."""


@dataclass(frozen=True)
class RunProgress:
    """Progress of a run, without its vector."""

    iteration: int
    """Number of completed iterations."""
    changes: tuple[float, ...]
    """Change in each iteration, in the norm of the run."""
    epoch: int
    """Number of restarts from a checkpoint."""
    run: str
    """Id of the run in its events."""
    identity: dict[str, Any]
    """Options and inputs that determine the vector, as JSON values; runs with equal identities have equal vectors."""
    status: str | None = None
    """Value of `mgspmv.model.Status` at the end; None while the run was in progress."""


BEGINNING = RunProgress(0, (), -1, "", {})
"""Progress of a run that does not resume from a checkpoint."""
