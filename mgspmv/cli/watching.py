"""Iterating while somebody watches, and writing what was reached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mgspmv.cli.mode import note_kept, open_progress
from mgspmv.cli.place import Place, open_client
from mgspmv.errors import ConvergenceError

if TYPE_CHECKING:
    from mgspmv.model import Event


def listen(
    compute: Callable[..., Any], place: Place, change: float | None = None, max_iter: int | None = None
) -> tuple[Any, ConvergenceError | None]:
    """Iterate where it is wanted, and show how it gets on; what was reached, and why that is no success.

    Parameters
    ----------
    compute : called with `client`, `on_event` and `on_progress`
    change : at which it stops; None where that is not known
    """
    last: Event | None = None

    def hear(event: Event) -> None:
        nonlocal last
        last = event
        progress.on_event(event)

    note_kept("nothing is written")
    with open_progress(tol=change, max_iter=max_iter) as progress, open_client(place, progress) as client:
        try:
            return compute(client=client, on_event=hear, on_progress=progress.on_progress), None
        except ConvergenceError as error:
            return error.solution, error
        except KeyboardInterrupt:
            if last is not None:
                note_kept(f"after {last.iteration} iterations, change {last.change:.3g}; nothing is written")
            raise


def save(result: Any, paths: Sequence[str], *, overwrite: bool) -> None:
    """Write ranks to each of `paths`, each whole or not at all."""
    for k, path in enumerate(paths):
        note_kept(f"{', '.join(paths[:k]) or 'nothing'} is written")
        result.save(path, overwrite=overwrite)
