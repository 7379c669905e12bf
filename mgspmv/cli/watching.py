"""Iterating while somebody watches."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mgspmv.cli.mode import note_kept, open_progress, say
from mgspmv.cli.place import Place, open_client
from mgspmv.errors import ConvergenceError

if TYPE_CHECKING:
    from mgspmv.model import Event


def listen(
    compute: Callable[..., Any],
    place: Place,
    change: float | None = None,
    max_iter: int | None = None,
    checkpoint: str | None = None,
) -> tuple[Any, ConvergenceError | None]:
    """Iterate where it is wanted, and show how it gets on; what was reached, and why that is no success.

    Parameters
    ----------
    compute : called with `client`, `on_event` and `on_progress`
    change : at which it stops; None where that is not known
    checkpoint : where the run is kept; None where it is not
    """
    last: Event | None = None
    kept = "nothing is written"

    def follow(phase: str, done: int, total: int | None) -> None:
        nonlocal kept
        progress.on_progress(phase, done, total)
        if phase == "resume" and not done:
            say(f"there is no checkpoint in {checkpoint}; begins with the first iteration")
        elif phase == "resume":
            say(f"goes on after iteration {done} of the checkpoint in {checkpoint}")
        if phase in ("checkpoint", "resume") and done:
            kept = f"{checkpoint} has iteration {done}, from which --resume goes on"
            note_kept(kept)

    def hear(event: Event) -> None:
        nonlocal last
        last = event
        progress.on_event(event)

    note_kept(kept)
    with open_progress(tol=change, max_iter=max_iter) as progress, open_client(place, progress) as client:
        try:
            return compute(client=client, on_event=hear, on_progress=follow), None
        except ConvergenceError as error:
            return error.solution, error
        except KeyboardInterrupt:
            if last is not None:
                note_kept(f"after {last.iteration} iterations, change {last.change:.3g}; {kept}")
            raise
