"""What a run leaves of which nothing came: its record, and nothing else.

Locks, checksums and notes serve the next run only where something was made, or was being made, that it goes on with.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mgspmv.errors import MgspmvError
from mgspmv.pipeline.locks import list_locks, remove_lock
from mgspmv.pipeline.make_matrix import find_info
from mgspmv.pipeline.outputs import Results
from mgspmv.pipeline.records import Records
from mgspmv.pipeline.steps import Step


def has_made(lanes: dict[str, list[Step]], records: Records) -> bool:
    """Whether there is anything, of this run or of those before, that a later one keeps or goes on with."""
    if records.has_outputs or any((records.private / "checkpoints").glob("*")):
        return True
    if any(Results(records, step).is_waiting for _, *rest in lanes.values() for step in rest):
        return True
    targets = {first.name: first.target for first, *_ in lanes.values()}
    return any(name not in targets or _may_be_store(targets[name]) for name in records.list_begun())


@contextmanager
def remove_unused_locks(lanes: dict[str, list[Step]], records: Records) -> Iterator[None]:
    """Remove the locks that are made within, and folders that were made for them, if nothing was made.

    Those that were there before stay: of a run that was killed, they say whose its locks in object stores are.
    """
    locks = [path for path in list_locks(records.folder, lanes) if not path.exists()]
    missing = {parent for path in locks for parent in path.parents if not parent.exists()}
    try:
        yield
    finally:
        if not has_made(lanes, records):
            for path in locks:
                remove_lock(path)
            _remove_empty(missing)


def _remove_empty(folders: set[Path]) -> None:
    for folder in sorted(folders, key=lambda path: len(path.parts), reverse=True):
        with suppress(OSError):  # it is not there, or something is in it
            folder.rmdir()


def _may_be_store(target: str) -> bool:
    try:
        return find_info(target) is not None
    except MgspmvError:
        return True
