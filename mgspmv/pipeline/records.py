"""Records that a pipeline keeps in its folder.

FOLDER/.mgspmv/
  lock                held while a run works
  sources.json        checksums of files that were read
  steps/NAME.json     record of a completed step; written last, atomically
  begun/NAME.json     matrix being made, so that one that was made but not recorded is recognized
  runs/TIME.json      each run that made something, or failed to
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from mgspmv.errors import PipelineBusyError, hide_secrets
from mgspmv.files import create_file
from mgspmv.os_errors import translate_os_error
from mgspmv.pipeline.sources import Checksums
from mgspmv.report.record import RunRecord, StepRecord, read_record
from mgspmv.validation import check_seal, parse_json, seal

PRIVATE = ".mgspmv"
"""Name of the folder with the private files of a pipeline."""


@dataclass(frozen=True)
class Records:
    """Records of a pipeline."""

    folder: Path
    """Folder of the pipeline."""
    base: str = ""
    """Folder of the definition, to which paths in records are relative: it can be moved."""

    @property
    def private(self) -> Path:
        """Folder of the records."""
        return self.folder / PRIVATE

    @cached_property
    def checksums(self) -> Checksums:
        """Checksums of the inputs of steps."""
        return Checksums(self.private / "sources.json")

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Lock the folder of the pipeline for this process.

        Raises
        ------
        PipelineBusyError : another process holds the lock
        StoreError : the folder cannot be written to, or its file system has no locks
        """
        path = self.private / "lock"
        # A soft lock, which is a plain file, would outlive a killed run.
        lock = FileLock(path, thread_local=False, fallback_to_soft=False)
        made = [folder for folder in (self.private, self.folder) if not folder.exists()]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
        except Timeout as error:
            raise PipelineBusyError(
                f"another run is using {self.folder}; wait until it ends, or set another folder"
            ) from error
        except OSError as error:
            for folder in made:
                with suppress(OSError):
                    folder.rmdir()
            raise translate_os_error(error, path, "lock") from error
        try:
            yield
        finally:
            lock.release()

    def read_step(self, name: str) -> StepRecord | None:
        """Read the record of a step; None if it is missing, damaged or of another format version."""
        path = self._locate("steps", name)
        with suppress(OSError, ValueError):
            return read_record(StepRecord, parse_json(path.read_bytes()), str(path))
        return None

    def read_kept(self, name: str, target: str) -> StepRecord | None:
        """Read the record of a step, with the paths of its outputs in a target, which may have been moved."""
        record = self.read_step(name)
        if record is None:
            return None
        if record.kind != "matrix":
            return _change_paths(record, lambda path: f"{target}/{path.rstrip('/').rpartition('/')[2]}")
        return replace(_change_paths(record, lambda _: target), matrix=record.matrix | {"url": target})

    def make_portable(self, record: StepRecord) -> StepRecord:
        """Return a record with paths relative to the folder of the definition, if they are in it."""
        prefix = os.path.join(self.base, "")
        url = record.matrix["url"].removeprefix(prefix)
        return replace(
            _change_paths(record, lambda path: path.removeprefix(prefix)), matrix=record.matrix | {"url": url}
        )

    def write_step(self, record: StepRecord) -> None:
        """Write the record of a step, and remove that of its start."""
        # In this order: a run killed in between finds the step completed.
        write_record(self._locate("steps", record.name), record.to_dict())
        with suppress(FileNotFoundError):
            self._locate("begun", record.name).unlink()

    def read_begun(self, name: str) -> dict[str, Any] | None:
        """Read the record of the stage of a matrix that was begun; None if it is missing or unreadable."""
        with suppress(OSError, ValueError):
            found = parse_json(self._locate("begun", name).read_bytes())
            if isinstance(found, dict) and found.keys() >= {"key", "before", "updates"}:
                check_seal(found)
                return found
        return None

    def write_begun(self, name: str, begun: dict[str, Any]) -> None:
        """Write the record of a stage that begins."""
        write_record(self._locate("begun", name), begun)

    def write_run(self, record: RunRecord) -> None:
        """Write the record of a run, named by the time of its start."""
        stem = record.began.replace(":", "").replace("+0000", "Z")
        write_record(self._locate("runs", stem), record.to_dict())

    def _locate(self, what: str, name: str) -> Path:
        return self.private / what / f"{name}.json"


def _change_paths(record: StepRecord, change: Callable[[str], str]) -> StepRecord:
    return replace(record, outputs=[replace(own, path=change(own.path)) for own in record.outputs])


def now() -> str:
    """Return the current time, UTC in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def write_record(path: Path | str, described: dict[str, Any]) -> None:
    """Write a record with its digest at a path or URL, atomically.

    Raises
    ------
    StoreError : it cannot be written
    """
    sealed = seal(json.loads(hide_secrets(json.dumps(described))))
    with create_file(path) as file:
        file.write(f"{hide_secrets(json.dumps(sealed, indent=1, allow_nan=False))}\n".encode())
