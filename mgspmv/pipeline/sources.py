"""Input files: cached checksums, by which a file with the same size and time of change is not read again; downloads."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mgspmv.errors import MgspmvError, SourceNotFoundError, StoreError
from mgspmv.files import find_system, is_url, write_beside
from mgspmv.ingest.files import describe_url, find_files, translate_error
from mgspmv.ingest.zarr_groups import is_group_path
from mgspmv.os_errors import source_error
from mgspmv.store.read import open_store
from mgspmv.validation import digest_json, parse_json


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
    """Yield a local path of a file or folder, downloaded if it is at a URL; errors in the context name the URL.

    Raises
    ------
    SourceError, SourceNotFoundError : it cannot be fetched
    OptionError : as in `find_system`
    """
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
