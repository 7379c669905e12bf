"""Files that a source names, and how they are opened: local files, pipes, and URLs, which are read in pieces by fsspec.

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
import select
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, pairwise
from typing import IO, Any, cast

import numpy as np

import mgspmv.files
from mgspmv.errors import (
    MgspmvError,
    MissingDependencyError,
    OptionError,
    SourceError,
    SourceNotFoundError,
    hide_secrets,
    source_error,
)
from mgspmv.files import describe_error, find_inside, find_system, name_extra, reach

Path = str | os.PathLike[str]

HEAD_BYTES = 2**16
"""Bytes at the beginning of a file from which its format is detected."""

PATIENCE_MS = 500
"""Milliseconds within which a signal that came just before a read of a pipe is noticed."""

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
            if self != "-":
                file: Any = io.BufferedReader(_open_local(self, _PatientFile))
            elif isinstance(getattr(sys.stdin.buffer, "raw", None), io.FileIO):
                file = io.BufferedReader(_PatientFile(sys.stdin.fileno(), closefd=False))
            else:
                file = LentFile(sys.stdin.buffer)
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


class _PatientFile(io.FileIO):
    """File whose reads wait in Python: a signal that arrives just before a blocking read would go unnoticed."""

    def readinto(self, buffer: Any) -> int | None:
        waiting = select.poll()
        waiting.register(self, select.POLLIN)
        while not waiting.poll(PATIENCE_MS):
            pass
        return super().readinto(buffer)


class LentFile(io.RawIOBase):
    """Wrapper that leaves its file open when closed, as by pyarrow when a stream is released."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return int(self._file.readinto(buffer))  # type: ignore[attr-defined]  # all files read here have it


def find_state(file: Any) -> tuple[Any, ...] | None:
    """Return what changes with the content of an open file: size and time of a local one, metadata of one at a URL.

    None if it is a pipe, an answer without ranges, or fetched at once. The time is in whole seconds, as some file
    systems keep only these.
    """
    if isinstance(file, io.FileIO):
        found = os.fstat(file.fileno())
        return (found.st_size, int(found.st_mtime)) if stat.S_ISREG(found.st_mode) else None
    if getattr(file, "cache", None) is None or (file.size or 0) <= PIECE_BYTES:
        return None
    info = file.fs.info(file.path)
    return (info.get("size"), *_find_marks(info).items())


def _open_local(name: str, kind: type[io.FileIO] = io.FileIO) -> io.FileIO:
    try:
        return kind(name)
    except FileNotFoundError as error:
        raise SourceNotFoundError("there is no such file; check the path", source=name) from error
    except IsADirectoryError as error:
        raise SourceError("is a directory; name a file", source=name) from error
    except OSError as error:
        raise source_error(error, name, f"cannot be opened: {error}") from error


@contextmanager
def reading(name: str, said: str, *damage: type[Exception]) -> Iterator[None]:
    """Translate the errors of a file, and of the library that reads it, to SourceError.

    Parameters
    ----------
    said : message about a damaged file, with a placeholder for the library's message
    damage : errors of the library about damaged files, besides OSError
    """
    errors: tuple[type[Exception], ...] = (OSError, *damage)
    try:
        yield
    except MgspmvError:  # some are also OSErrors
        raise
    except FileNotFoundError as error:
        raise SourceNotFoundError("there is no such file; check the path", source=name) from error
    except errors as error:
        is_of_system = isinstance(error, OSError) and error.strerror
        text = ("cannot be read: {}" if is_of_system else said).format(describe_error(error))
        raise source_error(error, name, text) from error


def find_size(file: IO[bytes]) -> int | None:
    """Return the size of a file in bytes; None if it is not known, as for a pipe."""
    is_local = isinstance(file, io.FileIO)
    return (os.fstat(file.fileno()).st_size if is_local else getattr(file, "size", None)) or None  # fsspec's attribute


# --- web servers and object stores -----------------------------------------------------------------------------------

PIECE_BYTES = 4 * 2**20
"""Bytes of a file per request."""
WAITS_S = (0.5, 2.0)
"""Seconds to wait before each retry of a failed request."""

MARKS = ("ETag", "etag", "Last-Modified", "LastModified", "last_modified", "mtime", "created")
"""Keys of fsspec's file metadata that change with the content of the file."""


@contextmanager
def translating(url: str) -> Iterator[None]:
    """Translate the errors of fsspec, and of libraries behind it, by `translate_error`."""
    try:
        yield
    except MgspmvError:
        raise
    except Exception as error:  # libraries behind fsspec raise their own classes
        raise translate_error(url, error) from error


def open_anywhere(
    name: str, cache_type: str = "readahead", *, is_streamed: bool = False, **cache_options: Any
) -> IO[bytes]:
    """Open a file at a path or URL for reading from any position, or a pipe.

    Parameters
    ----------
    cache_type, cache_options : options of fsspec; type `none` disables reading ahead
    is_streamed : whether it is read from beginning to end, so that it may come from a web server that ignores ranges

    Raises
    ------
    SourceNotFoundError, SourceError : see `translate_error`; also raised while it is read
    OptionError, MissingDependencyError : see `find_system`
    """
    if "://" not in name:
        return name.open() if isinstance(name, Pipe) else cast(IO[bytes], _open_local(name))
    system, path = find_system(name, is_fresh=False)
    options = {"block_size": PIECE_BYTES, "cache_type": cache_type, "cache_options": cache_options}
    ask = partial(system.open, path, "rb", **(options if system.async_impl else {}))
    with translating(name):
        file: Any = ask() if name.startswith("http") else reach(ask)
        if (cache := getattr(file, "cache", None)) is None or not file.size:
            return cast(IO[bytes], file)
        if is_streamed and file.size > PIECE_BYTES:
            try:
                file._fetch_range(1, 2)
            except ValueError:  # the web server ignores ranges and sends the whole file
                return cast(IO[bytes], file.fs.open(file.path, "rb", block_size=0))
    cache.fetcher = partial(_fetch, file, name, cache.fetcher)
    return cast(IO[bytes], file)


def _fetch(file: Any, url: str, fetch: Callable[[int, int], bytes], start: int, stop: int) -> bytes:
    """Fetch bytes start .. stop - 1 of a file, up to its end, and retry if the connection breaks.

    Raises
    ------
    SourceError, SourceNotFoundError : see `translate_error`
    """
    stop = min(stop, file.size)
    with translating(url):
        for wait_s in (*WAITS_S, None):
            try:
                piece = fetch(start, stop)
                break
            except (FileNotFoundError, PermissionError, TimeoutError, ValueError):
                raise
            except Exception:  # libraries differ in the class for broken connections
                if wait_s is None:
                    raise
                time.sleep(wait_s)
        if len(piece) != stop - start:
            raise OSError(f"received {len(piece)} of {stop - start} bytes from byte {start} on")
    return piece


def translate_error(name: str, error: Exception) -> MgspmvError:
    """Return an error that states why a file could not be opened or read, and what to do.

    Parameters
    ----------
    name : path or URL
    error : error of the system, of fsspec, or of a library behind it with its own classes
    """
    if name.startswith("http") and isinstance(error.__cause__, Exception):
        error = error.__cause__  # fsspec reports every error of a web server as a missing file
    said = describe_error(error)
    codes = (getattr(error, name, None) for name in ("status", "status_code", "code"))  # by library
    status = next((code for code in codes if isinstance(code, int)), None)
    if isinstance(error, ImportError):
        return MissingDependencyError(f"{name}: {said}{name_extra(name)}")
    if "://" not in name:
        return SourceError(f"cannot be read: {said}", source=name)
    if name.startswith("http") and isinstance(error, TimeoutError):
        return SourceError(
            f"the server sent nothing for {mgspmv.files.REACH_S:g} seconds; read it again, or fetch the file first",
            source=name,
        )
    if status in (401, 403) or isinstance(error, PermissionError):
        return SourceError(f"permission denied: {said}; check the credentials and their permissions", source=name)
    if status in (404, 410) or isinstance(error, FileNotFoundError):
        return SourceNotFoundError("there is no such file; check the path", source=name)
    return SourceError(
        f"cannot be read: {said}; check the address, the connection and the credentials, and ingest again", source=name
    )


def describe_url(url: str) -> dict[str, Any]:
    """Return the metadata that identify the content of a file at a URL, or of all files in a folder.

    Raises
    ------
    OptionError : fsspec does not support the protocol; the server reports neither an ETag nor a date
    SourceNotFoundError, SourceError, MissingDependencyError : see `translate_error`
    """
    system, path = find_system(url)
    with translating(url):
        info = system.info(path)
        inside = find_inside(system, path) if info.get("type") == "directory" else {}
    marks = {name.removeprefix(path): _find_marks(own) for name, own in sorted((inside or {path: info}).items())}
    if not all(marks.values()):
        raise OptionError(
            f"{url}: the server reports neither an ETag nor a date, so changes cannot be detected; download the file "
            "first"
        )
    told = {"files": marks} if inside else marks[""]
    n_bytes = sum(own.get("size") or 0 for own in inside.values()) if inside else info.get("size")
    return {"name": hide_secrets(url), "bytes": n_bytes, **told}


def _find_marks(info: dict[str, Any]) -> dict[str, str]:
    """Return the metadata of a file that change with its content, as far as the server reports them."""
    return {name: str(info[name]) for name in MARKS if info.get(name) is not None}


def check_unchanged(file: Any, state: tuple[Any, ...] | None, name: str) -> None:
    """Raise SourceError if an open file is in another state than before."""
    if find_state(file) != state:
        raise SourceError(
            "was changed while it was read; copy it first, or read it when nothing writes to it", source=name
        )


# --- parts that several processes read --------------------------------------------------------------------------------

MANY_FILES = 4
"""Number of files per process from which files are assigned whole, without opening and cutting them."""


def make_absolute(name: str) -> str:
    """Return a path or URL that means the same in other processes."""
    return name if "://" in name else os.path.abspath(name)


def cut_evenly(items: Sequence[Any], sizes: Sequence[int], n_parts: int) -> list[list[Any]]:
    """Cut consecutive items into at most `n_parts` parts of about the same size, none of which is empty."""
    ends = np.cumsum(sizes)
    owners = (ends - np.asarray(sizes) / 2) * n_parts // max(1, ends[-1])
    return [[items[k] for k in np.flatnonzero(owners == owner).tolist()] for owner in sorted(set(owners.tolist()))]


def measure_file(name: str) -> int:
    """Return the size of a file, to share files out; 1 for a URL or a missing file, which its reader reports."""
    try:
        return 1 + os.path.getsize(name)
    except OSError:
        return 1
