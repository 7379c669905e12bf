"""Files that a source names, and how they are opened: local files, which must not change meanwhile, pipes and URLs.

A source names one file, those that match a pattern, those of a folder, or several of these:

    "edges.csv"    "edges/*.csv.gz"    "edges"    "s3://bucket/edges/*.parquet"    ["2024.csv", "2025.csv"]

Names are sorted, character by character. Where a pattern or a folder finds them, those that begin with `_` or `.`, and
the contents of folders with such names, are left out, as programs that write folders put metadata there.
"""

from __future__ import annotations

import glob
import io
import os
import re
import stat
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain, pairwise
from typing import IO, Any, cast

from mgspmv.errors import OptionError, SourceError, SourceNotFoundError
from mgspmv.files import find_system, reach
from mgspmv.ingest.remote import open_url, translating
from mgspmv.os_errors import source_error

Path = str | os.PathLike[str]

HEAD_BYTES = 2**16
"""Bytes at the beginning of a file from which its format is detected."""

_LEFT_OUT = "files that begin with '_' or '.' are ignored"
_ZARR = {"zarr.json", ".zgroup", ".zattrs"}
_TABLE_LOGS = {"_delta_log": "a Delta", ".hoodie": "a Hudi"}


def is_path(source: Any) -> bool:
    """Return whether a source is a path or URL."""
    return isinstance(source, str | os.PathLike)


def list_paths(paths: Path | Sequence[Path]) -> tuple[str, ...]:
    """Return one path, or several, as a tuple."""
    return (os.fspath(paths),) if isinstance(paths, str | os.PathLike) else tuple(os.fspath(path) for path in paths)


def name_files(files: Sequence[str]) -> str:
    """Name one file or several in a message."""
    return files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"


def describe_files(name: str, files: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Combine the provenance of files: that of a single one; or all of them, with the sum of their sizes."""
    if len(files) == 1:
        return files[0]
    total = {"bytes": sum(file["bytes"] for file in files)} if all("bytes" in file for file in files) else {}
    return {"name": name, **total, "files": list(files)}


def find_files(source: Path | Sequence[Path]) -> list[str]:
    """Find the files that a source names, at least one; a file named itself is not checked for existence.

    Parameters
    ----------
    source : path or URL of a file; pattern with `*`, `?`, `[...]` or `**` (any folders), unless there is a file of
        that name; folder, local or of an object store; or several of these, whose order is kept

    Raises
    ------
    SourceNotFoundError : nothing matches, or a folder has no files
    SourceError : a folder contains folders
    SourceError : a folder is a Zarr group or a Delta or Hudi table
    OptionError : a file is named twice, or no path is given
    """
    paths = list_paths(source)
    if not paths:
        raise OptionError("the list of files to ingest is empty; name at least one")
    files = list(chain.from_iterable(_find_remote(path) if "://" in path else _find_local(path) for path in paths))
    places = sorted((name if "://" in name else os.path.abspath(name), name) for name in files)
    for (place, one), (same, _) in pairwise(places):
        if place == same:
            raise OptionError(f"{one} is named more than once; name each file once")
    return files


def _find_local(path: str) -> list[str]:
    if os.path.isdir(path):
        with os.scandir(path) as entries:
            return _list_folder(path, ((entry.name, entry.is_dir()) for entry in entries))
    if os.path.lexists(path) or not glob.has_magic(path):
        return [path]
    return _match(path, (name for name in glob.glob(path, recursive=True) if not os.path.isdir(name)))


def _find_remote(url: str) -> list[str]:
    if "::" in url:
        return [url]
    is_web = url.startswith("http")
    system, path = find_system(url)
    with translating(url):
        if re.search(r"[*[]" if is_web else r"[*?[]", path):
            if reach(partial(system.isfile, path)):
                return [url]
            found = system.glob(path, detail=True)
            return _match(url, (system.unstrip_protocol(name) for name in found if found[name]["type"] == "file"))
        if is_web or reach(partial(system.info, path))["type"] != "directory":
            return [url]
        entries = ((info["name"].rstrip("/"), info["type"] == "directory") for info in system.ls(path, detail=True))
        return _list_folder(
            url, ((name.rpartition("/")[2], is_folder) for name, is_folder in entries if name != path.rstrip("/"))
        )


def _match(pattern: str, names: Iterable[str]) -> list[str]:
    # folders before the first wildcard were named by the user, so their names may begin with _ or .
    depth = pattern[: re.search(r"[*?[]", pattern).start()].count("/")  # type: ignore[union-attr]  # it is a pattern
    files = sorted(name for name in names if not any(part[:1] in ("_", ".") for part in name.split("/")[depth:]))
    if not files:
        raise SourceNotFoundError(f"no file matches this pattern; {_LEFT_OUT}", source=pattern)
    return files


def _list_folder(folder: str, entries: Iterable[tuple[str, bool]]) -> list[str]:
    """List the files of a folder, given the names in it, each with whether it is a folder."""
    found = dict(entries)
    if found.keys() & _ZARR:
        raise SourceError(
            "this folder is a Zarr group, not a folder of edge lists or Parquet files; pass format='anndata', "
            "'binsparse' or 'csr'",
            source=folder,
        )
    for log in found.keys() & _TABLE_LOGS.keys():
        raise SourceError(
            f"this folder is {_TABLE_LOGS[log]} table, which may contain outdated files; export its current rows to "
            "Parquet files, and ingest these",
            source=folder,
        )
    names = sorted(name for name in found if name[:1] not in ("_", "."))
    for name in names:
        if found[name]:
            inside = f"{folder.rstrip('/')}/**/*"
            raise SourceError(
                f"this folder contains folders ({name}); name the files by a pattern ({inside!r})", source=folder
            )
    if not names:
        raise SourceNotFoundError(f"there are no files in this folder; {_LEFT_OUT}", source=folder)
    return [f"{folder.rstrip('/')}/{name}" for name in names]


# --- opening ----------------------------------------------------------------------------------------------------------


class Pipe(str):
    """Name of a stream that can be read once: a pipe, a FIFO, a device, or `-` for standard input.

    Bytes that `peek` returned are read again by the one reader.
    """

    def __init__(self, name: str) -> None:
        self._reader: io.BufferedReader | None = None
        self._is_opened = False

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)  # a copy holds only the name

    def peek(self, n_bytes: int) -> bytes:
        """Return the first bytes, at most `n_bytes` or `HEAD_BYTES`, without consuming them."""
        return self._begin().peek()[:n_bytes]

    def open(self) -> IO[bytes]:
        """Open the stream for its reader.

        Raises
        ------
        SourceError : the stream was opened before
        """
        reader = self._begin()
        self._is_opened = True
        return reader

    def _begin(self) -> io.BufferedReader:
        if self._is_opened:
            raise SourceError("it is a pipe that was read already; save it as a file", source=self)
        if self._reader is None:
            # one read of a pipe returns only the bytes written so far; the inner reader fills the whole buffer
            file = LentFile(sys.stdin.buffer) if self == "-" else io.BufferedReader(_open_local(self))
            self._reader = io.BufferedReader(file, HEAD_BYTES)
        return self._reader


def take_name(path: str | os.PathLike[str]) -> str:
    """Return the name of a file: a `Pipe` if it can be read only once."""
    name = os.fspath(path)
    if isinstance(name, Pipe) or "://" in name:
        return name
    try:
        mode = os.stat(name).st_mode if name != "-" else stat.S_IFIFO
    except (OSError, ValueError):  # opening the file reports the error
        return name
    return name if stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISBLK(mode) else Pipe(name)


def open_anywhere(name: str, **options: Any) -> IO[bytes]:
    """Open a file at a path or URL for reading from any position; for errors see `TextStream`.

    Parameters
    ----------
    options : options of `open_url`
    """
    if isinstance(name, Pipe):
        return name.open()
    return open_url(name, **options) if "://" in name else cast(IO[bytes], _open_local(name))


class LentFile(io.RawIOBase):
    """Wrapper that leaves its file open when closed, as by pyarrow when a stream is released."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return int(self._file.readinto(buffer))  # type: ignore[attr-defined]  # all files read here have it


def find_state(file: Any) -> tuple[int, int] | None:
    """Return the size of an open local file and the time of its last change; None if it is not a regular file.

    The time is in whole seconds, as another machine that compares it may see only these.
    """
    found = os.fstat(file.fileno()) if isinstance(file, io.FileIO) else None
    return (found.st_size, int(found.st_mtime)) if found is not None and stat.S_ISREG(found.st_mode) else None


def check_state(name: str, before: tuple[int, int] | None, now: tuple[int, int] | None) -> None:
    """Raise SourceError if a file is in another state than before."""
    if now != before:
        raise SourceError(
            "was changed while it was read; copy it first, or read it when nothing writes to it", source=name
        )


def _open_local(name: str) -> io.FileIO:
    try:
        return io.FileIO(name)
    except FileNotFoundError as error:
        raise SourceNotFoundError("there is no such file; check the path", source=name) from error
    except IsADirectoryError as error:
        raise SourceError("is a directory; name a file", source=name) from error
    except OSError as error:
        raise source_error(error, name, f"cannot be opened: {error}") from error


def find_size(file: IO[bytes]) -> int | None:
    """Return the size of a file in bytes; None if it is not known, as for a pipe."""
    size: int | None = getattr(file, "size", None)  # files of fsspec have the attribute
    if size is None and isinstance(file, io.FileIO):
        size = os.fstat(file.fileno()).st_size
    return size or None
