"""Files that have their name once they are whole: after an error nothing is left, and what was there still is."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from mgspmv.errors import MissingDependencyError, OptionError, StoreError


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether this is a URL, and no local path."""
    return "://" in os.fspath(path)


@contextmanager
def write_beside(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a name beside `path` to write to; what was written there then takes the place of `path`.

    The folder is made when it is missing. After an error nothing is left, and what was at `path` is still there.

    Raises
    ------
    StoreError : it cannot be written
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield part
        _move_into_place(part, target)
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        _remove(part)


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
    system, name = _find_system(path)
    try:
        with system.transaction, system.open(name, "wb") as file:
            yield cast(IO[bytes], file)
    except StoreError:
        raise
    except (OSError, NotImplementedError) as error:
        raise StoreError(f"cannot write {path}: {str(error) or 'nothing can be written there'}") from error


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
    system, name = _find_system(path)
    try:
        return bool(system.exists(name))
    except OSError as error:
        raise StoreError(f"cannot look for {path}: {error}") from error


def strip_file_scheme(path: str | os.PathLike[str]) -> str:
    """A path or URL; of a URL of a local file its path."""
    return os.fspath(path).removeprefix("file://")


def _find_system(url: str) -> tuple[Any, str]:
    """The file system of a URL, which nobody else has transactions on, and the name there."""
    from fsspec.core import url_to_fs

    try:
        return cast(tuple[Any, str], url_to_fs(url, skip_instance_cache=True))
    except ImportError as error:
        raise MissingDependencyError(f"{url}: {error}") from error
    except ValueError as error:
        raise OptionError(f"{url}: {error}; pass a local path or a URL of a protocol that fsspec knows") from error


def _move_into_place(part: Path, target: Path) -> None:
    if not target.is_dir():
        os.replace(part, target)
        return
    old = part.with_suffix(".old")  # a folder that is not empty cannot be replaced
    os.rename(target, old)
    os.rename(part, target)
    shutil.rmtree(old)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    elif path.exists():
        path.unlink()
