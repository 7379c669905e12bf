"""Files of web servers and object stores, by way of fsspec, several pieces of which are fetched at a time."""

from __future__ import annotations

import io
import time
from collections import OrderedDict
from collections.abc import Generator, Iterator
from concurrent.futures import Future
from functools import partial
from typing import IO, Any, cast

from mgspmv.errors import (
    MgspmvError,
    MissingDependencyError,
    OptionError,
    SourceError,
    SourceNotFoundError,
    hide_secrets,
)
from mgspmv.files import describe_error, describe_silence, find_inside, find_web_options, name_extra, reach
from mgspmv.ingest.ahead import Readers, map_ahead

FIRST_BYTES = 2**18
"""Of the first piece, after which some files are not read on."""
PIECE_BYTES = 4 * 2**20
"""Of the pieces after it."""
PIECES_AHEAD = 4
"""That are fetched at a time."""
PIECES_KEPT = 12
"""Of a file that is read here and there, with those that are fetched ahead."""
SOUGHT_AHEAD = 2
"""Pieces that follow one of such a file, of which as many places are read in turn as it has columns."""
WAITS_S = (0.5, 2.0)
"""Before a piece that did not come is asked for again."""

MARKS = ("ETag", "etag", "Last-Modified", "LastModified", "last_modified", "mtime", "created")
"""What fsspec has of a file that is another when the file is."""
_REFUSED, _MISSING = (401, 403), (404, 410)


def open_url(url: str) -> IO[bytes]:
    """A file at a URL, for reading.

    Raises
    ------
    SourceNotFoundError, SourceError, MissingDependencyError : as of `explain`
    OptionError : fsspec does not know the protocol
    """
    import fsspec

    try:
        opened = fsspec.open(url, "rb", **find_web_options(url))
        return cast(IO[bytes], opened.open() if url.startswith("http") else reach(opened.open))
    except ValueError as error:
        raise refuse_protocol(url, error) from error
    except Exception as error:
        raise explain(url, error) from error


def open_sought(url: str) -> IO[bytes]:
    """A file at a URL, for reading here and there, as Parquet is: pieces are kept, and those after them fetched ahead.

    Raises
    ------
    SourceError : the server does not tell how large the file is
    others : as of `open_url`, and while it is read as of `explain`
    """
    file = open_url(url)
    system = getattr(file, "fs", None)
    if system is None or not system.async_impl:
        return file
    if file.size is None:  # type: ignore[attr-defined]  # of fsspec's
        raise SourceError("the server does not say how large it is, so it is read from its begin only", source=url)
    return cast(IO[bytes], _SoughtFile(url, file))


def refuse_protocol(url: str, error: ValueError) -> OptionError:
    """Give the error for a protocol that fsspec does not know."""
    return OptionError(f"{url}: {error}; pass a local path or a URL of a protocol that fsspec knows")


def explain(name: str, error: Exception) -> MgspmvError:
    """Give the error that says what a failure to open or read a file means, and what to do.

    Parameters
    ----------
    name : path or URL
    error : of the system, of fsspec, or of a library behind it, which has classes of its own
    """
    if name.startswith("http") and isinstance(error.__cause__, Exception):
        error = error.__cause__  # fsspec calls a web server's file missing whatever is the matter with it
    said, status = describe_error(error), _find_status(error)
    if isinstance(error, ImportError):
        return MissingDependencyError(f"{name}: {said}{name_extra(name)}")
    if "://" not in name:
        return SourceError(f"cannot be read: {said}", source=name)
    if name.startswith("http") and isinstance(error, TimeoutError):
        return SourceError(f"{describe_silence()}; read it again, or fetch the file first", source=name)
    if status in _REFUSED or isinstance(error, PermissionError):
        return SourceError(f"is not ours to read: {said}; check the credentials and what they allow", source=name)
    if status in _MISSING or isinstance(error, FileNotFoundError):
        return SourceNotFoundError("there is no such file; check the path", source=name)
    return SourceError(
        f"cannot be read: {said}; check the address, the connection and the credentials, and ingest again", source=name
    )


def _find_status(error: Exception) -> int | None:
    """Of the answer of a server, which libraries call by several names."""
    found = (getattr(error, name, None) for name in ("status", "status_code", "code"))
    return next((status for status in found if isinstance(status, int)), None)


def describe_url(url: str) -> dict[str, Any]:
    """What tells this content of a file at a URL from another; of a folder, that of all files in it.

    Raises
    ------
    OptionError : fsspec does not know the protocol; the server tells neither of an ETag nor of a date
    SourceNotFoundError, SourceError, MissingDependencyError : as of `explain`
    """
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(url, **find_web_options(url))
        system.invalidate_cache()
        info = system.info(path)
        inside = find_inside(system, path) if info.get("type") == "directory" else {}
    except ValueError as error:
        raise refuse_protocol(url, error) from error
    except Exception as error:
        raise explain(url, error) from error
    if inside:
        marks = {name.removeprefix(path): _find_marks(url, own) for name, own in sorted(inside.items())}
        return {
            "name": hide_secrets(url),
            "bytes": sum(own.get("size") or 0 for own in inside.values()),
            "files": marks,
        }
    return {"name": hide_secrets(url), "bytes": info.get("size"), **_find_marks(url, info)}


def _find_marks(url: str, info: dict[str, Any]) -> dict[str, str]:
    found = {name: str(info[name]) for name in MARKS if info.get(name) is not None}
    if not found:
        raise OptionError(
            f"{url}: the server tells neither of an ETag nor of a date, so that changes go unnoticed; fetch the file "
            "first"
        )
    return found


def fetch_ahead(file: IO[bytes]) -> IO[bytes]:
    """Have the pieces of a file fetched ahead, if it comes piece by piece and tells how large it is.

    The file that is given is read from its begin to its end, and closes the other one.
    """
    system = getattr(file, "fs", None)
    if system is None or not system.async_impl or not file.size:  # type: ignore[attr-defined]  # of fsspec's
        return file
    return cast(IO[bytes], _FetchedFile(file))


def _fetch(file: Any, place: tuple[int, int]) -> bytes:
    """Bytes start .. stop of a file of fsspec's, asked for again where the connection breaks."""
    start, stop = place
    for wait_s in (*WAITS_S, None):
        try:
            piece: bytes = file._fetch_range(start, stop)
            break
        except (FileNotFoundError, PermissionError, TimeoutError, ValueError):
            raise
        except Exception:  # of whatever class the library has for a connection that broke
            if wait_s is None:
                raise
            time.sleep(wait_s)
    if len(piece) != stop - start:
        raise OSError(f"{len(piece)} bytes came of the {stop - start} from byte {start} on")
    return piece


class _SoughtFile(io.RawIOBase):
    """A file of fsspec's, read here and there."""

    def __init__(self, url: str, file: Any) -> None:
        self._url, self._file, self._at = url, file, 0
        self.size: int = file.size
        self._pool = Readers(PIECES_AHEAD, "mgspmv-fetch")
        self._pieces: OrderedDict[int, Future[bytes]] = OrderedDict()
        """By number, the one that was read last at the end."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, place: int, whence: int = io.SEEK_SET) -> int:
        self._at = place + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        n_read = 0
        while n_read < len(buffer) and self._at < self.size:
            number, begin = divmod(self._at, PIECE_BYTES)
            part = memoryview(self._get(number))[begin : begin + len(buffer) - n_read]
            buffer[n_read : n_read + len(part)] = part
            n_read, self._at = n_read + len(part), self._at + len(part)
        return n_read

    def close(self) -> None:
        for piece in self._pieces.values():
            piece.cancel()
        self._pool.close()
        self._file.close()
        super().close()

    def _get(self, number: int) -> bytes:
        n_pieces = -(-self.size // PIECE_BYTES)
        for k in range(number, min(number + 1 + SOUGHT_AHEAD, n_pieces)):
            if k not in self._pieces:
                place = k * PIECE_BYTES, min((k + 1) * PIECE_BYTES, self.size)
                self._pieces[k] = self._pool.submit(_fetch, self._file, place)
        self._pieces.move_to_end(number)
        while len(self._pieces) > PIECES_KEPT:
            self._pieces.popitem(last=False)[1].cancel()
        try:
            return self._pieces[number].result()
        except Exception as error:  # what is behind a URL has errors of its own
            raise explain(self._url, error) from error


class _FetchedFile(io.RawIOBase):
    """A file of fsspec's, read from its begin to its end."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._pieces = self._fetch_all()
        self._piece = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._piece:
            self._piece = memoryview(next(self._pieces, b""))
        n = min(len(buffer), len(self._piece))
        buffer[:n] = self._piece[:n]
        self._piece = self._piece[n:]
        return n

    def close(self) -> None:
        self._pieces.close()
        self._file.close()
        super().close()

    def _fetch_all(self) -> Generator[bytes, None, None]:
        size = self._file.size
        if size <= FIRST_BYTES:
            yield _fetch(self._file, (0, size))
        elif self._has_pieces():
            yield from self._fetch_pieces(size)
        else:
            yield from self._stream()

    def _has_pieces(self) -> bool:
        try:
            self._file._fetch_range(1, 2)
        except ValueError:  # the web server gives the whole file whatever is asked for
            return False
        return True

    def _fetch_pieces(self, size: int) -> Iterator[bytes]:
        found = self._describe()
        yield _fetch(self._file, (0, FIRST_BYTES))
        places = [(start, min(start + PIECE_BYTES, size)) for start in range(FIRST_BYTES, size, PIECE_BYTES)]
        with Readers(PIECES_AHEAD, "mgspmv-fetch") as pool:
            yield from map_ahead(pool, partial(_fetch, self._file), places, PIECES_AHEAD - 1)
        if self._describe() != found:
            raise OSError("it was changed while it was read")

    def _stream(self) -> Iterator[bytes]:
        with self._file.fs.open(self._file.path, "rb", block_size=0) as stream:
            while piece := stream.read(FIRST_BYTES):
                yield piece

    def _describe(self) -> dict[str, Any]:
        """What tells this content of the file from another, as far as the server says it."""
        info = self._file.fs.info(self._file.path)
        return {name: info.get(name) for name in ("size", "ETag", "Last-Modified", "LastModified")}
