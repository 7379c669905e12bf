"""Errors of the operating system that an operator can mend, in one line: the path, the bytes that are free, the remedy.

Each is translated once, where the place is known or, at the latest, where a call of the package or a command ends.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit
from typing import TypeGuard

from mgspmv.display.numbers import format_bytes
from mgspmv.errors import MgspmvError, SourceAccessError, SourceError, StoreError

Place = str | os.PathLike[str]

_ELSEWHERE = "or name a place on another disk"
_WRITING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})
"""Errors of writing alone."""
_OF_PROCESS = frozenset({errno.EMFILE, errno.ENFILE})
"""Errors whose cause is not the path."""


def is_operators(error: BaseException | None) -> TypeGuard[OSError]:
    """Tell whether an operator can mend this error of the operating system, and no class of the package says it yet."""
    return isinstance(error, OSError) and not isinstance(error, MgspmvError) and _find_number(error) in _EXPLAIN


def is_clear(error: BaseException) -> bool:
    """Tell whether an error that `is_operators` accepts says what it is about; those of sockets may not."""
    return isinstance(error, OSError) and (error.filename is not None or _find_number(error) in _WRITING | _OF_PROCESS)


def translate_os_error(error: OSError, place: Place | None = None, doing: str | None = None) -> StoreError:
    """Return a `StoreError` for an error of the operating system, with what is free now.

    Parameters
    ----------
    place : what was written or read, for errors that name no file, a folder that it is in, or what becomes it
    doing : such as `write` or `read`, with the place; else it is `write` for errors of writing alone, or `use`
    """
    where = _find_name(error)
    if place is not None and (where is None or _stands_for(where, place)):
        where = os.fspath(place)
    else:
        doing = None
    doing = doing or ("write" if _find_number(error) in _WRITING else "use")
    return StoreError(f"cannot {doing} {where or 'a file'}: {describe_os_error(error, where)}")


def describe_os_error(error: OSError, place: Place | None = None) -> str:
    """Return what is wrong and the remedy; for errors that no operator can mend what the system says."""
    if not is_operators(error):
        return str(error.strerror or error)
    number, named = _find_number(error), place or _find_name(error)
    if named is None and number not in _OF_PROCESS:
        return f"{os.strerror(number).lower()}; see that all that is written to has room"
    return f"{os.strerror(number).lower()}; {_EXPLAIN[number](Path(os.path.realpath(named or '.')))}"


def refuse_source(error: Exception, source: Place, otherwise: str) -> SourceError:
    """Return a `SourceAccessError` for an error that an operator can mend, else a `SourceError` that says otherwise."""
    if is_operators(error):
        return SourceAccessError(f"cannot be read: {describe_os_error(error, source)}", source=os.fspath(source))
    return SourceError(otherwise, source=os.fspath(source))


@contextmanager
def translating(place: Place | None = None, doing: str | None = None) -> Iterator[None]:
    """Raise errors that an operator can mend as `StoreError`; without a place those that say what they are about.

    Raises
    ------
    StoreError : such an error was raised
    """
    try:
        yield
    except OSError as error:
        is_known = is_clear(error) if place is None else error.filename is not None or "://" not in os.fspath(place)
        if not is_operators(error) or not is_known:
            raise
        raise translate_os_error(error, place, doing) from error


def _find_number(error: OSError) -> int:
    """The errno; NumPy does not tell that of a write which the disk took a part of."""
    is_short = error.errno is None and re.fullmatch(r"\d+ requested and \d+ written", str(error))
    return errno.ENOSPC if is_short else error.errno or 0


def _find_name(error: OSError) -> str | None:
    if not isinstance(error.filename, str | bytes):
        return None
    name = os.fsdecode(error.filename)
    return os.path.dirname(name) if name.endswith(".partial") else name  # beside an object of Zarr while it is written


def _stands_for(name: str, place: Place) -> bool:
    """Tell whether a name is a place, a folder on its path, or the hidden file or folder `.PLACE...` for it."""
    found, own = Path(os.path.abspath(name)), Path(os.path.abspath(place))
    return own.is_relative_to(found) or any(
        part.name.startswith(f".{own.name}.") and part.parent == own.parent for part in (found, *found.parents)
    )


# --- remedies by error -----------------------------------------------------------------------------------------------


def _explain_full(path: Path) -> str:
    if path.is_char_device():
        return "it is a device that takes nothing; name a file"
    folder = _find_existing(path)
    found = os.statvfs(folder)
    free, disk = found.f_bavail * found.f_frsize, _find_mount(folder)
    if found.f_files and not found.f_favail:
        return f"no inode of {disk} is free ({format_bytes(free)} are); remove files there, {_ELSEWHERE}"
    return f"{free:,} bytes of {disk} are free; make room there, {_ELSEWHERE}"


def _explain_permission(path: Path) -> str:
    found, folder = f"this process runs as uid {os.geteuid()}", _find_existing(path)
    try:
        known = folder.stat()
    except OSError:
        known = None
    if known is not None:
        found = f"{folder} is {stat.filemode(known.st_mode)} and of uid {known.st_uid}, {found}"
    return f"{found}; change its mode or owner, or name another place"


def _explain_name(path: Path) -> str:
    n_bytes = max(len(os.fsencode(part)) for part in path.parts)
    limit = os.pathconf(_find_mount(_find_existing(path.parent)), "PC_NAME_MAX")
    return f"its longest part has {n_bytes} bytes, and {limit} are allowed; choose a shorter name"


def _explain_open_files(path: Path) -> str:
    return f"this process may open {getrlimit(RLIMIT_NOFILE)[0]} files; allow more by `ulimit -n`, or use fewer threads"


_EXPLAIN: dict[int, Callable[[Path], str]] = {
    errno.ENOSPC: _explain_full,
    errno.EDQUOT: lambda path: f"remove files of yours there, have the quota raised, {_ELSEWHERE}",
    errno.EROFS: lambda path: f"mount {_find_mount(_find_existing(path))} for writing, {_ELSEWHERE}",
    errno.EACCES: _explain_permission,
    errno.EPERM: _explain_permission,
    errno.ENAMETOOLONG: _explain_name,
    errno.EMFILE: _explain_open_files,
    errno.ENFILE: lambda path: "end programs that have many files open, or allow more by `sysctl fs.file-max`",
    errno.EFBIG: lambda path: f"allow larger files by `ulimit -f`, {_ELSEWHERE}",
    errno.EIO: lambda path: f"see the log of the system for errors of its disk or connection, {_ELSEWHERE}",
    errno.ESTALE: lambda path: "its file server has it no more; mount the file system again, and run this again",
    errno.EEXIST: lambda path: "it, or a folder on its path, is a file already; name another place",
    errno.ENOTDIR: lambda path: "a part of its path is a file; name another place",
}


def _find_existing(path: Path) -> Path:
    """The path, or its nearest folder that is there and may be looked for."""
    return next((each for each in (path, *path.parents) if os.access(each, os.F_OK)), Path("/"))


def _find_mount(path: Path) -> Path:
    return next((each for each in (path, *path.parents) if os.path.ismount(each)), Path("/"))
