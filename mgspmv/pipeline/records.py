"""Records that a pipeline keeps in its folder, and the inputs of its steps: checksums and downloads.

FOLDER/.mgspmv/
  lock                held while a run works
  sources.json        checksums of files that were read
  steps/NAME.json     record of a completed step; written last, atomically
  begun/NAME.json     matrix being made, so that one that was made but not recorded is recognized
  runs/TIME.json      each run that made something, or failed to
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from mgspmv.errors import MgspmvError, PipelineBusyError, SourceNotFoundError, StoreError, hide_secrets
from mgspmv.files import create_file, find_system, is_url, write_beside
from mgspmv.ingest.files import describe_url, find_files, translate_error
from mgspmv.ingest.zarr_groups import is_group_path
from mgspmv.os_errors import source_error, translate_os_error
from mgspmv.report.record import RunRecord, StepRecord, read_record
from mgspmv.store.read import open_store
from mgspmv.validation import check_seal, digest_json, parse_json, seal

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
    """Write a record with its digest at a path or URL, atomically."""
    sealed = seal(json.loads(hide_secrets(json.dumps(described))))
    with create_file(path) as file:
        file.write(f"{hide_secrets(json.dumps(sealed, indent=1, allow_nan=False))}\n".encode())


# --- inputs ----------------------------------------------------------------------------------------------------------


class Checksums:
    """SHA-256 of the contents of paths and URLs.

    Parameters
    ----------
    path : JSON file that caches the checksums of files
    """

    def __init__(self, path: Path) -> None:
        self._path, self._is_new = path, False
        self._known: dict[str, list[Any]] = _read(path)

    def identify(self, names: str | list[str]) -> str:
        """Return a digest of the content: SHA-256 of a file; for a folder or several files, a digest of all of them;
        for a matrix store, its digest; for a URL, a digest of the server's metadata of the file.

        Parameters
        ----------
        names : patterns and folders stand for the files that `mgspmv.ingest` reads

        Raises
        ------
        SourceError, SourceNotFoundError : it is missing, or cannot be read
        OptionError : a server does not report whether a file changed
        """
        one = names if isinstance(names, str) else names[0] if len(names) == 1 else None
        if one is not None and is_group_path(one):
            return self._identify(one)
        digests = [self._identify(name) for name in find_files(names)]
        return digests[0] if len(digests) == 1 else digest_json(digests)

    def save(self) -> None:
        """Write the cache, if it has new checksums."""
        if self._is_new:
            with write_beside(self._path) as part:
                part.write_text(json.dumps(self._known, indent=1, sort_keys=True))
        self._is_new = False

    def _identify(self, name: str) -> str:
        if is_group_path(name) and (found := _find_matrix_digest(name)) is not None:
            return found
        if is_url(name):
            return digest_json({key: value for key, value in describe_url(name).items() if key != "name"})
        path = Path(name)
        if path.is_dir():
            inside = sorted(own for own in path.rglob("*") if own.is_file())
            return digest_json([[own.relative_to(path).as_posix(), self._read_file(own)] for own in inside])
        return self._read_file(path)

    def _read_file(self, path: Path) -> str:
        # Hashed, as paths may contain secret variables.
        place = hashlib.sha256(os.fsencode(os.path.abspath(path))).hexdigest()
        try:
            found = os.stat(path)  # before reading: a later write changes it, so the checksum is not used again
            stamp = [found.st_size, found.st_mtime_ns]
            known = self._known.get(place)
            if known is not None and known[:2] == stamp:
                return str(known[2])
            checksum = compute_checksum(path)
        except FileNotFoundError as error:
            raise SourceNotFoundError("there is no such file; check the path", source=str(path)) from error
        except OSError as error:
            raise source_error(error, path, f"cannot be read: {error.strerror}") from error
        self._known[place], self._is_new = [*stamp, checksum], True
        return checksum


def check_present(names: Iterable[str | list[str]]) -> None:
    """Check that local files and folders exist; URLs are not checked.

    Raises
    ------
    SourceNotFoundError : one is missing
    SourceAccessError : this user may not read it
    SourceError, OptionError : as in `mgspmv.ingest.files.find_files`
    """
    for own in names:
        paths = [name for name in ([own] if isinstance(own, str) else own) if not is_url(name)]
        for path in paths if len(paths) == 1 and is_group_path(paths[0]) else find_files(paths) if paths else []:
            if not os.path.exists(path):
                raise SourceNotFoundError("there is no such file; check the path", source=path or "''")
            if not os.access(path, os.R_OK):
                raise source_error(PermissionError(errno.EACCES, os.strerror(errno.EACCES)), path, "")


def compute_checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _find_matrix_digest(name: str) -> str | None:
    """Return the digest of a matrix store; None for another group, or if it is missing."""
    try:
        return open_store(name).info.digest
    except StoreError:
        return None


def _read(path: Path) -> dict[str, list[Any]]:
    try:
        found = parse_json(path.read_bytes())
    except (OSError, ValueError):  # without the cache all files are read again
        return {}
    items = found.items() if isinstance(found, dict) else ()
    return {name: own for name, own in items if isinstance(own, list) and len(own) == 3}


@contextmanager
def fetch(path: str) -> Iterator[Path]:
    """Yield a local path of a file or folder, downloaded if it is at a URL; errors in the context name the URL."""
    if not is_url(path):
        yield Path(path)
        return
    system, place = find_system(path)
    with tempfile.TemporaryDirectory() as folder:
        local = Path(folder) / path.rstrip("/").rpartition("/")[2]
        try:
            system.get(place, str(local), recursive=True)
        except Exception as error:
            raise translate_error(path, error) from error
        try:
            yield local
        except MgspmvError as error:
            error.args = tuple(str(said).replace(str(local), path) for said in error.args)
            raise
