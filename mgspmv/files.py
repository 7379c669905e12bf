"""Files that have their name once they are whole: after an error nothing is left, and what was there still is.

And what goes wrong with places at URLs, whose libraries have errors of their own and may wait for long.
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

from mgspmv.errors import MgspmvError, MissingDependencyError, OptionError, StoreError
from mgspmv.os_errors import translate_os_error

REACH_S = 60.0
"""Seconds for the first answer of a place at a URL; libraries wait for servers of credentials much longer."""
EXTRAS = {
    **dict.fromkeys(("http", "https", "s3", "s3a"), "remote"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(("az", "abfs", "abfss"), "azure"),
}
"""Of this package, with what protocols need."""

T = TypeVar("T")


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether this is a URL, and no local path."""
    return "://" in os.fspath(path)


@contextmanager
def write_beside(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a name beside `path` to write to; what was written there then takes the place of `path`.

    The folder is made when it is missing. After an error nothing is left, and what was at `path` is still there. Where
    this process is killed, `path` is as it was or as it is to be, and the next write removes what is left:

        FOLDER/.NAME.0123abcd.part/   new    while it is written
                                      old    what is replaced, where the file system cannot exchange two folders

    Raises
    ------
    StoreError : it cannot be written
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{name_own()}{_PART}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        settle(target)
        with hold_folder(part):
            made = part.stat()
            yield part / _NEW
            if not (part.exists() and os.path.samestat(made, part.stat())):
                raise StoreError(f"cannot write {path}: {part} was removed while it was written; write it again")
            move_into_place(part / _NEW, target, part / _OLD)
    except MgspmvError:
        raise
    except OSError as error:
        raise translate_os_error(error, path, "write") from error


def settle(path: str | os.PathLike[str]) -> None:
    """Put back what was at `path`, where a process was killed while it replaced that, and remove what it left."""
    target = Path(path)
    remove_abandoned(target.parent, f".{target.name}.", _PART)


def sweep(folder: Path) -> None:
    """Do as `settle` for all names in a folder."""
    remove_abandoned(folder, None, _PART)


@contextmanager
def create_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file for writing, at a local path as `write_beside` does, or at a URL in a transaction of fsspec.

    Raises
    ------
    StoreError : it cannot be written
    OptionError, MissingDependencyError : as for `exists`
    """
    if not is_url(path := strip_file_scheme(path)):
        with write_beside(path) as part, open(part, "wb") as file:
            yield file
        return
    system, name = find_system(path, is_shared=False)
    try:
        with system.transaction, system.open(name, "wb") as file:
            yield cast(IO[bytes], file)
    except (MgspmvError, MemoryError):
        raise
    except NotImplementedError as error:
        raise StoreError(f"cannot write {path}: {str(error) or 'nothing can be written there'}") from error
    except Exception as error:
        raise StoreError(f"cannot write {path}: {describe_error(error)}; {CHECK_WRITING}") from error


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether something is at a path or URL.

    Raises
    ------
    OptionError : a URL of a protocol that fsspec does not know
    MissingDependencyError : fsspec lacks the library of the protocol
    StoreError : it cannot be found out
    """
    if not is_url(path := strip_file_scheme(path)):
        return os.path.lexists(path)
    system, name = find_system(path)
    try:
        return bool(reach(partial(system.exists, name)))
    except Exception as error:
        raise StoreError(f"cannot look for {path}: {describe_error(error)}; {CHECK_WRITING}") from error


def check_file(path: str | os.PathLike[str]) -> None:
    """Check that a local path, where anything is there, is that of a file or folder, which can be opened at once.

    Raises
    ------
    StoreError : it is a pipe, a socket or a device
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # what opens it says what is wrong
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise StoreError(f"{path} is a pipe, a socket or a device, and a file is expected; put a file in its place")


CHECK_WRITING = "check that the bucket is there, the connection, and the credentials and what they allow"


def reach(ask: Callable[[], T]) -> T:
    """What is asked of a place at a URL first, in a thread that is left alone where no answer comes.

    Raises
    ------
    TimeoutError : none came within `REACH_S`
    others : as of `ask`
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
            f"no answer came within {REACH_S:g} seconds, of it or of where its library looks for credentials"
        ) from error


def find_web_options(url: str) -> dict[str, Any]:
    """Return options of fsspec for a URL: a web server that sends nothing for `REACH_S` is given up, and none that is
    slow. The library ends each request after five minutes, and waits for silent servers as long, several times.

    What the configuration of fsspec says of time-outs comes first.
    """
    protocol = url.rpartition("::")[2].partition("://")[0]
    if protocol not in ("http", "https") or find_spec("aiohttp") is None:
        return {}
    from aiohttp import ClientTimeout
    from fsspec.config import conf

    limit = ClientTimeout(total=None, sock_connect=REACH_S, sock_read=REACH_S)
    return {protocol: {"client_kwargs": {"timeout": limit, **conf.get(protocol, {}).get("client_kwargs", {})}}}


def describe_silence() -> str:
    """Say that a server was given up; see `find_web_options`."""
    return f"the server sent nothing for {REACH_S:g} seconds"


def describe_error(error: BaseException) -> str:
    """What went wrong, in a line; libraries of object stores append ids of requests and the bodies of answers."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    line = next(filter(None, map(str.strip, said.splitlines())), type(error).__name__).rstrip(".")
    is_name = isinstance(error, FileNotFoundError) and "://" in line and " " not in line
    return f"there is no {line}" if is_name else line


def find_inside(system: Any, name: str) -> dict[str, dict[str, Any]]:
    """What a file system of fsspec says of the files in a folder, by name; none where there is nothing."""
    found = system.find(name, detail=True)
    if isinstance(found, list):  # adlfs does, of a file that is named itself
        return {own: system.info(own) for own in found}
    return cast(dict[str, dict[str, Any]], found)


def name_extra(url: str) -> str:
    """How to install what a URL's protocol needs, to be said after what is missing; empty where that is not known."""
    protocol = url.rpartition("::")[2].partition("://")[0]
    if protocol.startswith("obstore+"):
        return "; pip install obstore"
    return f"; pip install 'mgspmv[{EXTRAS[protocol]}]'" if protocol in EXTRAS else ""


def strip_file_scheme(path: str | os.PathLike[str]) -> str:
    """A path or URL; of a URL of a local file its path."""
    return os.fspath(path).removeprefix("file://")


def find_system(url: str, *, is_shared: bool = True) -> tuple[Any, str]:
    """The file system of a URL, which knows nothing of what was there before, and the name there.

    Parameters
    ----------
    is_shared : whether others may have transactions on it

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
    system.invalidate_cache()
    return system, name


# --- replacing -------------------------------------------------------------------------------------------------------


def exchange(one: Path, other: Path) -> bool:
    """Let two files or folders change places, in one step; whether the file system can."""
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


def move_into_place(new: Path, target: Path, old: Path) -> None:
    """Rename a file or folder; a folder that it replaces is then at `new`, or at `old` where it cannot be exchanged."""
    if not target.is_dir():
        os.replace(new, target)
    elif not exchange(new, target):  # a folder that is not empty cannot be replaced
        os.rename(target, old)
        os.rename(new, target)


# --- the user's folders ----------------------------------------------------------------------------------------------


def find_state_folder() -> Path:
    """Return the folder of what is kept of clusters: `$MGSPMV_STATE`, or the one that the system has for it."""
    if folder := os.environ.get("MGSPMV_STATE"):
        return Path(folder).absolute()
    return platformdirs.user_state_path("mgspmv", appauthor=False)


# --- folders of living processes -------------------------------------------------------------------------------------

_PART, _NEW, _OLD = ".part", "new", "old"


def name_own() -> str:
    """A part of a name that no other process takes, and that `remove_abandoned` knows."""
    return secrets.token_hex(4)


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Make a folder that only its owner may enter and that is gone with the context; see `remove_abandoned`."""
    held = None
    try:
        held = _make_held(folder)
        yield
    finally:
        with suppress(OSError):  # what cannot be removed is left to `remove_abandoned`
            _empty(folder)
        if held is not None:
            os.close(held)


def remove_abandoned(parent: Path, prefix: str | None, suffix: str = "") -> None:
    """Remove folders of `hold_folder` whose processes were killed.

    Parameters
    ----------
    prefix : of their names before `name_own`; None for any between two dots
    suffix : of their names after it
    """
    own = re.compile((r"\..*\." if prefix is None else re.escape(prefix)) + "[0-9a-f]{8}" + re.escape(suffix))
    with suppress(OSError):  # what cannot be read or removed is left to the next one
        for name in filter(own.fullmatch, os.listdir(parent)):
            with suppress(OSError):
                _remove_unless_held(parent / name)


def _make_held(folder: Path) -> int:
    """Make a folder and lock it, as long as the descriptor is open."""
    while True:
        folder.mkdir(0o700)
        with suppress(FileNotFoundError):  # another process took it for abandoned
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            with suppress(OSError):  # of file systems without locks, where others cannot lock it either
                fcntl.flock(held, fcntl.LOCK_EX)
            if folder.exists():
                return held
            os.close(held)


def _remove_unless_held(folder: Path) -> None:
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(held).st_uid == os.geteuid():
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _empty(folder)
    finally:
        os.close(held)


def _empty(folder: Path) -> None:
    """Remove a folder; what was to be replaced and is not goes back before."""
    if (folder / _OLD).exists():
        target = folder.with_name(folder.name[1:].rpartition(".")[0].rpartition(".")[0])
        if not os.path.lexists(target):
            os.rename(folder / _OLD, target)
    shutil.rmtree(folder)
