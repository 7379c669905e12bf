"""Files that get their name once they are complete: an error leaves no partial file, and the previous file unchanged.

Also translates errors of URLs: their libraries raise errors of many types, and may block for long.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import platformdirs

from mgspmv.errors import MgspmvError, MissingDependencyError, OptionError, StoreError, translate_os_error

REACH_S = 60.0
"""Seconds to wait for the first answer from a URL; libraries wait much longer for credential servers."""
EXTRAS = {
    **dict.fromkeys(("http", "https", "s3", "s3a"), "remote"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(("az", "abfs", "abfss"), "azure"),
}
"""Extras of this package, by protocol."""

T = TypeVar("T")


def is_url(path: str | os.PathLike[str]) -> bool:
    """Return whether this is a URL rather than a local path."""
    return "://" in os.fspath(path)


@contextmanager
def write_beside(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path next to `path` to write to; its content then replaces `path`.

    The folder is created if it is missing. After an error nothing is left, and `path` is unchanged. If a process is
    killed, `path` is in its old or its new state, and the next write removes the leftovers:

        FOLDER/.NAME.0123abcd.part/   new    while it is written
                                      old    previous version, where the file system cannot exchange two folders

    Raises
    ------
    StoreError : it cannot be written
    """
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with hold_folder(target.parent, f".{target.name}.", _PART) as part:
            made = part.stat()
            yield part / _NEW
            if not (part.exists() and os.path.samestat(made, part.stat())):
                raise StoreError(f"cannot write {path}: {part} was removed while it was written; write it again")
            if not target.is_dir():
                os.replace(part / _NEW, target)
            elif not exchange(part / _NEW, target):  # a folder that is not empty cannot be replaced by renaming
                os.rename(target, part / _OLD)
                os.rename(part / _NEW, target)
    except MgspmvError:
        raise
    except OSError as error:
        raise translate_os_error(error, path, "write") from error


def settle(path: str | os.PathLike[str]) -> None:
    """Restore the previous content of `path` if a process was killed while replacing it, and remove leftovers."""
    target = Path(path)
    _remove_abandoned(target.parent, f".{target.name}.", _PART)


@contextmanager
def create_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file for writing, at a local path like `write_beside`, or at a URL in a transaction of fsspec.

    Raises
    ------
    StoreError : it cannot be written
    OptionError, MissingDependencyError : as in `exists`
    """
    if not is_url(path := strip_file_scheme(path)):
        with write_beside(path) as part, open(part, "wb") as file:
            yield file
        return
    system, name = find_system(path, is_shared=False)
    with translating_errors("write", path), system.transaction, system.open(name, "wb") as file:
        yield cast(IO[bytes], file)


def exists(path: str | os.PathLike[str]) -> bool:
    """Return whether a path or URL exists.

    Raises
    ------
    OptionError : fsspec does not know the protocol of the URL
    MissingDependencyError : fsspec lacks the library of the protocol
    StoreError : the check failed
    """
    if not is_url(path := strip_file_scheme(path)):
        return os.path.lexists(path)
    system, name = find_system(path)
    with translating_errors("look for", path):
        return bool(reach(partial(system.exists, name)))


def check_file(path: str | os.PathLike[str]) -> None:
    """Check that a local path, if it exists, is a file or folder, which can be opened without blocking.

    Raises
    ------
    StoreError : it is a pipe, a socket or a device
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # opening the file reports the error
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise StoreError(f"{path} is a pipe, a socket or a device, but a file is expected; replace it with a file")


@contextmanager
def translating_errors(doing: str, place: str) -> Iterator[None]:
    """Translate errors at a place, including errors of the libraries that access URLs.

    Parameters
    ----------
    doing : verb, such as `write to`

    Raises
    ------
    StoreError : the operation failed, with the reason
    """
    try:
        yield
    except (MgspmvError, MemoryError):
        raise
    except Exception as error:
        if is_url(place):
            raise StoreError(f"cannot {doing} {place}: {describe_error(error)}; {CHECK_WRITING}") from error
        if isinstance(error, OSError):
            raise translate_os_error(error, place, doing) from error
        raise


CHECK_WRITING = "check that the bucket exists, the connection, and the credentials and their permissions"


def reach(ask: Callable[[], T]) -> T:
    """Return the result of the first request to a place at a URL, made in a thread that is abandoned on a time-out.

    Raises
    ------
    TimeoutError : no answer within `REACH_S`
    others : as raised by `ask`
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="mgspmv-reach", daemon=True).start()
    try:
        return answer.result(REACH_S)
    except TimeoutError as error:
        if answer.done():
            raise
        raise TimeoutError(
            f"no answer within {REACH_S:g} seconds from the server, or from the service that provides credentials"
        ) from error


def find_web_options(url: str) -> dict[str, Any]:
    """Return options of fsspec for a URL: requests to a web server time out after `REACH_S` without data, slow ones do
    not. The library's defaults end each request after five minutes, and wait as long for silent servers, several times.

    Time-outs in the configuration of fsspec take precedence.
    """
    protocol = url.rpartition("::")[2].partition("://")[0]
    if protocol not in ("http", "https") or find_spec("aiohttp") is None:
        return {}
    from aiohttp import ClientTimeout
    from fsspec.config import conf

    limit = ClientTimeout(total=None, sock_connect=REACH_S, sock_read=REACH_S)
    return {protocol: {"client_kwargs": {"timeout": limit, **conf.get(protocol, {}).get("client_kwargs", {})}}}


def describe_error(error: BaseException) -> str:
    """Describe an error in one line; libraries of object stores append ids of requests and the bodies of answers."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    line = next(filter(None, map(str.strip, said.splitlines())), type(error).__name__).rstrip(".")
    is_name = isinstance(error, FileNotFoundError) and "://" in line and " " not in line
    return f"there is no {line}" if is_name else line


def find_inside(system: Any, name: str) -> dict[str, dict[str, Any]]:
    """Return the infos of the files in a folder of an fsspec file system, by name; empty if there are none."""
    found = system.find(name, detail=True)
    if isinstance(found, list):  # adlfs returns a list if `name` is a file
        return {own: system.info(own) for own in found}
    return cast(dict[str, dict[str, Any]], found)


def name_extra(url: str) -> str:
    """Return a hint for error messages to install the packages of a URL's protocol; empty if these are unknown."""
    protocol = url.rpartition("::")[2].partition("://")[0]
    return f"; pip install 'mgspmv[{EXTRAS[protocol]}]'" if protocol in EXTRAS else ""


def strip_file_scheme(path: str | os.PathLike[str]) -> str:
    """Return the path or URL without the scheme `file://`."""
    return os.fspath(path).removeprefix("file://")


def find_system(url: str, *, is_shared: bool = True, is_fresh: bool = True) -> tuple[Any, str]:
    """Return the file system of a URL, and the name in it.

    Parameters
    ----------
    is_shared : whether others may have transactions on it
    is_fresh : whether listings that it has cached are dropped, as files may be newer

    Raises
    ------
    OptionError : no protocol that fsspec knows
    MissingDependencyError : fsspec lacks the library of the protocol
    """
    from fsspec.core import url_to_fs

    try:
        system, name = url_to_fs(url, skip_instance_cache=not is_shared, **find_web_options(url))
    except ImportError as error:
        raise MissingDependencyError(f"{url}: {error}{name_extra(url)}") from error
    except ValueError as error:
        raise OptionError(f"{url}: {error}; pass a local path or a URL of a protocol that fsspec knows") from error
    if is_fresh:
        system.invalidate_cache()
    return system, name


# --- replacing -------------------------------------------------------------------------------------------------------


def exchange(one: Path, other: Path) -> bool:
    """Exchange two files or folders atomically; return whether the file system supports it."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    sys.audit("os.rename", str(one), str(other), -1, -1)
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


# --- the user's folders ----------------------------------------------------------------------------------------------


def find_state_folder() -> Path:
    """Return the folder for the state of clusters: `$MGSPMV_STATE`, or the system's default."""
    if folder := os.environ.get("MGSPMV_STATE"):
        return Path(folder).absolute()
    return platformdirs.user_state_path("mgspmv", appauthor=False)


# --- folders of living processes -------------------------------------------------------------------------------------

_PART, _NEW, _OLD = ".part", "new", "old"


@contextmanager
def hold_folder(parent: Path, prefix: str, suffix: str = "") -> Iterator[Path]:
    """Create a folder that only its owner may enter, and remove it at the end; also remove those of killed processes.

    Parameters
    ----------
    prefix, suffix : of its name, which is unique
    """
    _remove_abandoned(parent, prefix, suffix)
    folder, held = parent / f"{prefix}{secrets.token_hex(4)}{suffix}", None
    try:
        held = _make_held(folder)
        yield folder
    finally:
        with suppress(OSError):  # the next call removes the rest
            _empty(folder)
        if held is not None:
            os.close(held)


def _remove_abandoned(parent: Path, prefix: str, suffix: str) -> None:
    """Remove folders of `hold_folder` whose processes were killed."""
    own = re.compile(re.escape(prefix) + "[0-9a-f]{8}" + re.escape(suffix))
    with suppress(OSError):  # the next call tries again
        for name in filter(own.fullmatch, os.listdir(parent)):
            with suppress(OSError):
                held = os.open(parent / name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    if os.fstat(held).st_uid == os.geteuid():
                        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        _empty(parent / name)
                finally:
                    os.close(held)


def _make_held(folder: Path) -> int:
    """Create a folder and lock it for as long as the descriptor is open."""
    while True:
        folder.mkdir(0o700)
        with suppress(FileNotFoundError):  # another process removed it as abandoned
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            with suppress(OSError):  # file systems without locks, where no other process can lock it either
                fcntl.flock(held, fcntl.LOCK_EX)
            if folder.exists():
                return held
            os.close(held)


def _empty(folder: Path) -> None:
    """Remove a folder; first restore a previous version from it if the replacement was interrupted."""
    if (folder / _OLD).exists():
        target = folder.with_name(folder.name[1:].rpartition(".")[0].rpartition(".")[0])
        if not os.path.lexists(target):
            os.rename(folder / _OLD, target)
    shutil.rmtree(folder)
