"""Files of web servers and object stores, read in pieces through fsspec."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import IO, Any, cast

from mgspmv import files
from mgspmv.errors import (
    MgspmvError,
    MissingDependencyError,
    OptionError,
    SourceError,
    SourceNotFoundError,
    hide_secrets,
)
from mgspmv.files import describe_error, find_inside, find_system, name_extra, reach

PIECE_BYTES = 4 * 2**20
"""Bytes of a file per request."""
PIECES_KEPT = 12
"""Pieces cached per file with random access: Parquet reads one position per column in turn."""
WAITS_S = (0.5, 2.0)
"""Seconds to wait before each retry of a failed request."""

MARKS = ("ETag", "etag", "Last-Modified", "LastModified", "last_modified", "mtime", "created")
"""Keys of fsspec's file metadata that change with the content of the file."""
_DENIED, _MISSING = (401, 403), (404, 410)


@contextmanager
def translating(url: str) -> Iterator[None]:
    """Translate the errors of fsspec, and of libraries behind it, by `translate_error`."""
    try:
        yield
    except MgspmvError:
        raise
    except Exception as error:  # libraries behind fsspec raise their own classes
        raise translate_error(url, error) from error


def open_url(url: str, cache_type: str = "readahead", *, is_streamed: bool = False, **cache_options: Any) -> IO[bytes]:
    """Open a file at a URL for reading from any position.

    Parameters
    ----------
    cache_type, cache_options : options of fsspec; type `none` disables reading ahead
    is_streamed : whether it is read from beginning to end, so that it must not change meanwhile, and may come from a
        web server that ignores ranges

    Raises
    ------
    SourceNotFoundError, SourceError : see `translate_error`; also raised while it is read
    OptionError, MissingDependencyError : see `find_system`
    """
    system, path = find_system(url, is_fresh=False)
    options = {"block_size": PIECE_BYTES, "cache_type": cache_type, "cache_options": cache_options}
    ask = partial(system.open, path, "rb", **(options if system.async_impl else {}))
    with translating(url):
        file: Any = ask() if url.startswith("http") else reach(ask)
        if (cache := getattr(file, "cache", None)) is None or not file.size:
            return cast(IO[bytes], file)
        found = None
        if is_streamed and file.size > PIECE_BYTES:
            found = _describe(file)
            try:
                file._fetch_range(1, 2)
            except ValueError:  # the web server ignores ranges and sends the whole file
                return cast(IO[bytes], file.fs.open(file.path, "rb", block_size=0))
    cache.fetcher = partial(_fetch, file, url, cache.fetcher, found)
    return cast(IO[bytes], file)


def open_sought(url: str) -> IO[bytes]:
    """Open a file at a URL for random access, which Parquet needs.

    Raises
    ------
    SourceError : the server does not report the size of the file
    others : see `open_url`
    """
    file = open_url(url, "blockcache", maxblocks=PIECES_KEPT)
    if getattr(file, "cache", None) is not None and file.size is None:  # type: ignore[attr-defined]  # fsspec's
        raise SourceError("the server does not report the size, which is needed; download the file", source=url)
    return file


def _fetch(
    file: Any, url: str, fetch: Callable[[int, int], bytes], found: dict[str, str] | None, start: int, stop: int
) -> bytes:
    """Fetch bytes start .. stop - 1 of a file, up to its end, and retry if the connection breaks.

    Parameters
    ----------
    found : metadata that must be the same after the last byte; None if they are not compared

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
        if found is not None and stop == file.size and _describe(file) != found:
            raise OSError("it was changed while it was read")
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
    said, status = describe_error(error), _find_status(error)
    if isinstance(error, ImportError):
        return MissingDependencyError(f"{name}: {said}{name_extra(name)}")
    if "://" not in name:
        return SourceError(f"cannot be read: {said}", source=name)
    if name.startswith("http") and isinstance(error, TimeoutError):
        return SourceError(
            f"the server sent nothing for {files.REACH_S:g} seconds; read it again, or fetch the file first",
            source=name,
        )
    if status in _DENIED or isinstance(error, PermissionError):
        return SourceError(f"permission denied: {said}; check the credentials and their permissions", source=name)
    if status in _MISSING or isinstance(error, FileNotFoundError):
        return SourceNotFoundError("there is no such file; check the path", source=name)
    return SourceError(
        f"cannot be read: {said}; check the address, the connection and the credentials, and ingest again", source=name
    )


def _find_status(error: Exception) -> int | None:
    """Find the status of a server's response, which libraries name differently."""
    found = (getattr(error, name, None) for name in ("status", "status_code", "code"))
    return next((status for status in found if isinstance(status, int)), None)


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


def _describe(file: Any) -> dict[str, str]:
    info = file.fs.info(file.path)
    return {"size": str(info.get("size")), **_find_marks(info)}
