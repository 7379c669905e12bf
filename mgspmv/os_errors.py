"""Errors of the operating system that an operator can fix, in one line: the path, the free bytes, the remedy.

Each is translated once, where the place is known or, at the latest, where a call of the package or a command ends.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeGuard

from mgspmv.errors import MgspmvError, SourceAccessError, SourceError, StoreError

Place = str | os.PathLike[str]

_ELSEWHERE = "or choose a path on another disk"
_OWNER = "change its mode or owner, or choose another path"
_REMEDIES = {
    errno.ENOSPC: f"free some space, {_ELSEWHERE}",
    errno.EDQUOT: f"delete files there, request a larger quota, {_ELSEWHERE}",
    errno.EROFS: f"mount its file system for writing, {_ELSEWHERE}",
    errno.EACCES: _OWNER,
    errno.EPERM: _OWNER,
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EMFILE: "raise the limit of open files with `ulimit -n`, or use fewer threads",
    errno.ENFILE: "close programs with many open files, or raise the limit with `sysctl fs.file-max`",
    errno.EFBIG: f"raise the file size limit with `ulimit -f`, {_ELSEWHERE}",
    errno.EIO: f"check the system log for errors of the disk or connection, {_ELSEWHERE}",
    errno.ESTALE: "mount the file system again and retry",
    errno.EEXIST: "it or a parent folder is an existing file; choose another path",
    errno.ENOTDIR: "a parent folder in the path is a file; choose another path",
}
_WRITING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})
"""Error numbers that only writing raises."""
_OF_PROCESS = frozenset({errno.EMFILE, errno.ENFILE})
"""Error numbers whose cause is not the path."""


def is_operators(error: BaseException | None) -> TypeGuard[OSError]:
    """Return whether this is an untranslated error of the operating system that an operator can fix."""
    return isinstance(error, OSError) and not isinstance(error, MgspmvError) and _find_number(error) in _REMEDIES


def translate_os_error(error: OSError, place: Place | None = None, doing: str | None = None) -> StoreError:
    """Return a `StoreError` for an error of the operating system, with the space that is free now.

    Parameters
    ----------
    place : accessed path or URL, used if the error names no file, a folder that contains it, or its temporary file
    doing : verb such as `write` or `read`, used with the place; otherwise `write` for errors of writing, or `use`
    """
    where = _find_name(error)
    if place is not None and (where is None or _stands_for(where, place)):
        where = os.fspath(place)
    else:
        doing = None
    doing = doing or ("write" if _find_number(error) in _WRITING else "use")
    return StoreError(f"cannot {doing} {where or 'a file'}: {describe_os_error(error, where)}")


def describe_os_error(error: OSError, place: Place | None = None) -> str:
    """Return the problem and its remedy; for errors that no operator can fix the system's message."""
    if not is_operators(error):
        return str(error.strerror or error)
    number, named, free = _find_number(error), place or _find_name(error), ""
    if named is not None and number == errno.ENOSPC:
        path = Path(os.path.realpath(named))
        found = os.statvfs(next(each for each in (path, *path.parents) if os.access(each, os.F_OK)))
        free = f"{found.f_bavail * found.f_frsize:,} bytes and {found.f_favail:,} inodes are free there; "
    return f"{os.strerror(number).lower()}; {free}{_REMEDIES[number]}"


def source_error(error: Exception, source: Place, otherwise: str) -> SourceError:
    """Return a `SourceAccessError` for an error that an operator can fix, else a `SourceError` with `otherwise`."""
    if is_operators(error):
        return SourceAccessError(f"cannot be read: {describe_os_error(error, source)}", source=os.fspath(source))
    return SourceError(otherwise, source=os.fspath(source))


@contextmanager
def translating(place: Place | None = None, doing: str | None = None) -> Iterator[None]:
    """Raise errors that an operator can fix as `StoreError`; without a place only those that state their subject."""
    try:
        yield
    except OSError as error:
        # Errors of sockets may not state their subject.
        is_known = "://" not in os.fspath(place) if place is not None else _find_number(error) in _WRITING | _OF_PROCESS
        if not is_operators(error) or not (is_known or error.filename is not None):
            raise
        raise translate_os_error(error, place, doing) from error


def _find_number(error: OSError) -> int:
    """Return the errno; NumPy omits it for a write that the disk took in part."""
    is_short = error.errno is None and re.fullmatch(r"\d+ requested and \d+ written", str(error))
    return errno.ENOSPC if is_short else error.errno or 0


def _find_name(error: OSError) -> str | None:
    if not isinstance(error.filename, str | bytes):
        return None
    name = os.fsdecode(error.filename)
    return os.path.dirname(name) if name.endswith(".partial") else name  # Zarr's temporary file of an object


def _stands_for(name: str, place: Place) -> bool:
    """Return whether a name is a place, a folder on its path, or its hidden file or folder `.PLACE...`."""
    found, own = Path(os.path.abspath(name)), Path(os.path.abspath(place))
    return own.is_relative_to(found) or any(
        part.name.startswith(f".{own.name}.") and part.parent == own.parent for part in (found, *found.parents)
    )
