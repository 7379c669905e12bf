"""What a pipeline keeps in its folder of what it did.

FOLDER/.mgspmv/
  lock                held while a run works here; says who has it
  sources.json        checksums of files that were read
  steps/NAME.json     how each step ended that made what it was asked for; written last, as a whole
  begun/NAME.json     what is being made of a matrix, so that what was made and not written down is known again
  made/NAME/          results of a step that are not all in their place yet; with record.json they are whole
  runs/TIME.json      each run that made something, or failed to
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mgspmv.errors import PipelineBusyError, PipelineError, StoreError
from mgspmv.files import write_beside
from mgspmv.report.record import RunRecord, StepRecord, read_step

PRIVATE = ".mgspmv"


@dataclass(frozen=True)
class Records:
    """The records of a pipeline."""

    folder: Path
    """Of the pipeline."""

    @property
    def private(self) -> Path:
        """Where they are."""
        return self.folder / PRIVATE

    def read_step(self, name: str) -> StepRecord | None:
        """How a step ended; None where it never did, or where another version of the program wrote it down."""
        return read_record(self._locate("steps", name))

    def write_step(self, record: StepRecord) -> None:
        """Write down how a step ended."""
        write_json(self._locate("steps", record.name), record.to_dict())
        with suppress(FileNotFoundError):
            self._locate("begun", record.name).unlink()

    def read_begun(self, name: str) -> dict[str, Any] | None:
        """What is being made of a matrix, or was when it was broken off."""
        return _read_json(self._locate("begun", name))

    def write_begun(self, name: str, begun: dict[str, Any]) -> None:
        """Write down what is being made."""
        write_json(self._locate("begun", name), begun)

    def write_run(self, record: RunRecord) -> Path:
        """Write down a run, under the time when it began; where it is."""
        stem = record.began.replace(":", "").replace("+0000", "Z")
        taken = sum(1 for _ in (self.private / "runs").glob(f"{stem}*.json"))
        path = self.private / "runs" / f"{stem}{f'-{taken}' if taken else ''}.json"
        write_json(path, record.to_dict())
        return path

    def _locate(self, what: str, name: str) -> Path:
        return self.private / what / f"{name}.json"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Have the folder for this process alone.

        Raises
        ------
        PipelineBusyError : another process has it
        StoreError : nothing can be written there
        """
        path = self.private / "lock"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise StoreError(f"cannot write to {self.private}: {error.strerror}; name another folder") from error
        try:
            _take(opened, path)
            self._sweep()
            yield
        finally:
            os.close(opened)

    def _sweep(self) -> None:
        """Remove what writes left that were killed."""
        for part in self.private.rglob(".*.part"):
            shutil.rmtree(part) if part.is_dir() else part.unlink()


def _take(opened: int, path: Path) -> None:
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = _read_json(path) or dict.fromkeys(("pid", "host", "began"), "?")  # it may not have written it yet
        raise PipelineBusyError(
            f"another run works in {path.parent.parent}: process {holder['pid']} on {holder['host']}, since "
            f"{holder['began']}; wait for its end, or name another folder"
        ) from error
    except OSError as error:
        raise StoreError(f"cannot lock {path}: {error.strerror}; name a folder on a local file system") from error
    holder = {"pid": os.getpid(), "host": platform.node(), "began": now()}
    os.ftruncate(opened, 0)
    os.pwrite(opened, json.dumps(holder).encode(), 0)


def now() -> str:
    """The time, UTC in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def read_record(path: Path) -> StepRecord | None:
    """A step's record; None where there is none that this version of the program reads."""
    described = _read_json(path)
    with suppress(PipelineError):
        return None if described is None else read_step(described, str(path))
    return None


def write_json(path: Path, value: Any) -> None:
    """Write JSON, whole or not at all.

    Raises
    ------
    StoreError : it cannot be written
    """
    with write_beside(path) as part:
        part.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
