"""Errors that mgspmv raises on purpose.

All derive from `MgspmvError` and from the built-in that a caller would expect. A message states what was expected and
found, and the remedy. `exit_code` is the exit code of the command line.

Errors of the operating system that an operator can fix become one line: the path, the free bytes, the remedy. Each is
translated once, where the place is known or, at the latest, where a call of the package or a command ends.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeGuard, TypeVar
from urllib.parse import quote

_SECRETS = re.compile(
    r"""
      (?:(?<=http://)|(?<=https://))(?P<token>[^/\s:'"?#]+)(?::(?:x-oauth-basic)?)?(?=@)
    | (?<=://)(?P<user>[^/@\s:'"]*):(?:
          (?!\d+[?#])(?:[^/\s'"]|'(?![\s,:;)\]}]|$))+
        | (?!\d*[/?#]|:)(?:(?!://|::)[^\s'"])+
      )(?=@)
    | (?P<name>
          (?<=[?&#;])(?:
              [\w.-]*(?:signature|credential|token|secret|password|passwd|passphrase|pwd|authorization|access_?key_?id
                       |(?:access|account|api|auth|secret|session|shared|storage)[_-]?key)
            | auth|code|key|pass|sig
          )
        | (?<![\w./-])(?:AccountKey|SharedAccessKey)
      )=(?:[^&#\s'"\\;]|\\u[0-9a-f]{4}|;(?![\w.-]+=))+(?<![:,;)])
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""Secrets in URLs: user names that grant access over HTTP without a password, passwords (with slashes only if these
cannot follow a port), and credentials in parameters, also of connection strings. A match never includes JSON that ends
a string; letters may be escaped in JSON."""

LEAST_HIDDEN, LEAST_MIXED = 16, 8
"""Least length of a hidden value: if it has lowercase letters only or no letters, and otherwise. Shorter values are
words, numbers and dates."""
_SHOWN: dict[str, str] = {}
"""Replacement texts, by each encoded form of a value."""
_HIDDEN: list[re.Pattern[str]] = []
"""Pattern of all hidden values; empty if there are none."""
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that may control a terminal: C0 except tabs and newlines, DEL, C1, line separators and marks of text
direction; and surrogates of paths that are not valid UTF-8."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+(?=>)")
"""Address in memory in Python's text of an object, in which its type is what a reader needs."""


class MgspmvError(Exception):
    """Base of all errors of mgspmv."""

    exit_code = 1

    def __str__(self) -> str:
        # Names that are not valid UTF-8, in JSON as in paths, contain surrogates, which cannot be printed.
        text = _ADDRESS.sub("", hide_secrets(super().__str__()))
        return text.encode("utf-8", "backslashreplace").decode("utf-8")

    def __repr__(self) -> str:
        return hide_secrets(super().__repr__())

    def __reduce__(self) -> tuple[Any, ...]:
        # As BaseException does. Otherwise tblib, with which Dask sends errors, creates some by `__new__` alone; Python
        # rejects that for CapacityError and others with two bases, and Dask sends a plain Exception instead.
        return type(self), self.args, self.__dict__


E = TypeVar("E", bound=MgspmvError)


def add_to_message(error: E, said: str) -> E:
    """Return the same error with a text appended to its message."""
    more = type(error)(f"{error}; {said}")
    more.__dict__.update(error.__dict__)
    return more


def hide_secrets(text: str) -> str:
    """Replace credentials in URLs by stars, and values given to `hide_value` by their substitutes."""
    if _HIDDEN:
        text = _HIDDEN[0].sub(lambda found: _SHOWN.get(found[0], found[0]), text)
    return _SECRETS.sub(_hide, text)


def hide_value(value: str, shown: str) -> None:
    """Make `hide_secrets` show a substitute for a value from now on, unless the value is an ordinary word."""
    is_word = re.fullmatch(r"[a-z]*|[^A-Za-z]*", value) is not None
    if len(value) < (LEAST_HIDDEN if is_word else LEAST_MIXED):
        return
    _SHOWN.update(dict.fromkeys((value, json.dumps(value)[1:-1], quote(value), quote(value, safe="")), shown))
    longest_first = sorted(_SHOWN, key=len, reverse=True)
    written = r"\$\{[^{}]*\}"  # replacements stay as they are in a second pass
    _HIDDEN[:] = [re.compile("|".join([written, *map(_bound, longest_first)]))]


def _bound(value: str) -> str:
    """Return a pattern of a value that is not part of a longer word; it may follow an escaped newline in JSON."""
    before = r"(?:(?<![^\W_])|(?<=\\[nrt]))" if value[0].isalnum() else ""
    return before + re.escape(value) + (r"(?![^\W_])" if value[-1].isalnum() else "")


def shorten(text: str, limit: int = 80) -> str:
    """Shorten a foreign text for use in a message."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def escape_controls(text: str) -> str:
    r"""Return the text with control characters as Python writes them, such as `\x1b`, so that none reach a terminal."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def _hide(found: re.Match[str]) -> str:
    if found["token"] is not None:
        return "***"
    return f"{found['user']}:***" if found["name"] is None else f"{found['name']}=***"


class OptionError(MgspmvError, ValueError):
    """An argument or option has a value that cannot be used."""

    exit_code = 2


class UnknownIdError(OptionError, KeyError):
    """An id that no vertex has, or a label that no vector of a batch has."""

    def __str__(self) -> str:
        return hide_secrets(str(self.args[0]))  # not in quotes, in which KeyError puts it


class ShapeError(OptionError):
    """An array does not fit the matrix it is used with."""


class FormatError(OptionError):
    """The requested kernel does not support the format of this matrix."""


class BackendError(OptionError):
    """The requested backend is not available here: no device, or none that can be used."""


class MissingDependencyError(MgspmvError, ImportError):
    """An option or a file needs an optional library that is not installed, such as CuPy, dask-cuda or matplotlib."""

    exit_code = 2


class SourceError(MgspmvError, ValueError):
    """A file or object to ingest is malformed.

    Attributes
    ----------
    source : name of the file or object
    line_number : 1-based line, None where there are no lines
    text : the offending line, shortened; None where there is none
    """

    exit_code = 3

    def __init__(
        self, message: str, *, source: str = "", line_number: int | None = None, text: str | None = None
    ) -> None:
        self.message, self.source, self.line_number, self.text = message, source, line_number, text
        where = source + (f", line {line_number}" if line_number is not None else "")
        what = f": {shorten(text)!r}" if text is not None else ""
        super().__init__(f"{where}{what}: {message}" if where else message)


class SourceNotFoundError(SourceError, FileNotFoundError):
    """The file or object to ingest does not exist."""


class SourceAccessError(SourceError, OSError):
    """A file to ingest cannot be read: permission is denied, or its disk fails."""

    exit_code = 4


class StoreError(MgspmvError, OSError):
    """A matrix or solution store cannot be used."""

    exit_code = 4


class StoreNotFoundError(StoreError, FileNotFoundError):
    """The store does not exist."""


class StoreExistsError(StoreError, FileExistsError):
    """The path exists, and overwriting was not requested."""


class StoreUnfinishedError(StoreError):
    """The store is unfinished: it has no current version."""


class StoreFormatError(StoreError):
    """The store has another format version, or is not a store of mgspmv."""


class StoreDamagedError(StoreError):
    """The store's arrays differ from what was written."""


class MissingChunkError(StoreDamagedError):
    """A chunk of an array is missing."""


class ChecksumError(StoreDamagedError):
    """A chunk or a whole array does not match its checksum."""


class CheckpointError(StoreError):
    """The checkpoints cannot be resumed from: they are of another run, or damaged."""


class KindError(MgspmvError, ValueError):
    """The operation does not suit the store's kind."""

    exit_code = 2


class CapacityError(MgspmvError, MemoryError):
    """The work does not fit into the available memory."""

    exit_code = 6


class DiskSpaceError(CapacityError, StoreError):
    """A store does not fit on the disk that it would be written to."""

    exit_code = 4


class DanglingError(MgspmvError, ValueError):
    """A vertex has no out-edges although dangling="error"."""

    exit_code = 3


class AcyclicError(MgspmvError, ValueError):
    """The graph has no cycle, and the operation needs one."""

    exit_code = 3


class CorruptionError(MgspmvError, RuntimeError):
    """Ranks are wrong: memory or a processor failed, or the program."""


class ConvergenceError(MgspmvError, RuntimeError):
    """The iteration ended without meeting the tolerance; `solution` holds the last state."""

    exit_code = 5

    def __init__(self, message: str, solution: Any = None) -> None:
        super().__init__(message)
        self.solution = solution


class ClusterError(MgspmvError):
    """A Dask cluster cannot be used, or failed during a run.

    Attributes
    ----------
    worker : name of the worker concerned, None if no single one is
    rank : its number among the workers of the matrix or run, None if no single one is concerned, or it has none yet
    phase : the operation under way, such as `load` or `step`
    """

    exit_code = 7

    def __init__(
        self, message: str, *, worker: str | None = None, rank: int | None = None, phase: str | None = None
    ) -> None:
        super().__init__(message)
        self.worker, self.rank, self.phase = worker, rank, phase


class SchedulerNotFoundError(ClusterError, ConnectionError):
    """No Dask scheduler answers at this address, or its connection was lost."""


class VersionMismatchError(ClusterError, RuntimeError):
    """A worker has other versions of mgspmv or its libraries than this process."""


class WorkerLostError(ClusterError, ConnectionError):
    """A worker died, left the cluster or was restarted, and its state is lost."""


class WorkerTimeoutError(ClusterError, TimeoutError):
    """A worker did not answer or made no progress within the time-out."""


class WorkerMemoryError(ClusterError, CapacityError):
    """A worker ran out of memory."""

    exit_code = 6


class WorkerCorruptionError(ClusterError, CorruptionError):
    """The ranks of a worker, or data sent between workers, are corrupt, detected at the end of a superstep."""


class RunAbortedError(ClusterError, RuntimeError):
    """The run was ended from outside: interrupted, or aborted because another worker failed."""


class ClosedError(MgspmvError, ValueError):
    """A distributed matrix was closed and no longer holds data."""

    exit_code = 2


class PipelineError(MgspmvError, ValueError):
    """A pipeline definition is wrong."""

    exit_code = 2


class PipelineBusyError(PipelineError):
    """Another run works in the folder of a pipeline."""

    exit_code = 4


class StepsFailedError(MgspmvError, RuntimeError):
    """Steps of a pipeline failed; `record` holds the outcome of all steps, and `exit_code` is that of the first one."""

    def __init__(self, message: str, record: Any = None, exit_code: int = 1) -> None:
        super().__init__(message)
        self.record, self.exit_code = record, exit_code


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
