"""What is at URLs, by way of fsspec: found, fetched, and what goes wrong there said in one line."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mgspmv.errors import MgspmvError, MissingDependencyError, OptionError, StoreError
from mgspmv.files import CHECK_WRITING, describe_error, find_web_options, is_url, name_extra
from mgspmv.ingest.remote import explain
from mgspmv.os_errors import translate_os_error


def find_system(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the name there.

    Raises
    ------
    OptionError : no protocol that fsspec knows
    MissingDependencyError : fsspec lacks the library of the protocol
    """
    from fsspec.core import url_to_fs

    try:
        system, name = url_to_fs(url, **find_web_options(url))
    except ImportError as error:
        raise MissingDependencyError(f"{url}: {error}{name_extra(url)}") from error
    except ValueError as error:
        raise OptionError(f"{url}: {error}; pass a local path or a URL of a protocol that fsspec knows") from error
    system.invalidate_cache()
    return system, name


@contextmanager
def explain_failures(doing: str, place: str) -> Iterator[None]:
    """Say what a failure at a place means, which at a URL is of a library with errors of its own.

    Parameters
    ----------
    doing : such as `write to`

    Raises
    ------
    StoreError : it cannot be done, and why
    """
    try:
        yield
    except MgspmvError:
        raise
    except OSError as error:
        remedy = _REMEDY if is_url(place) else ""
        if not remedy:
            raise translate_os_error(error, place, doing) from error
        raise StoreError(f"cannot {doing} {place}: {describe_error(error)}{remedy}") from error
    except Exception as error:
        if not is_url(place):
            raise
        raise StoreError(f"cannot {doing} {place}: {describe_error(error)}{_REMEDY}") from error


_REMEDY = f"; {CHECK_WRITING}"


@contextmanager
def fetch(path: str) -> Iterator[Path]:
    """A local path of a file or folder, which is fetched where it is at a URL.

    Raises
    ------
    SourceError, SourceNotFoundError : it cannot be fetched
    OptionError : as of `find_system`
    """
    if not is_url(path):
        yield Path(path)
        return
    system, place = find_system(path)
    with tempfile.TemporaryDirectory() as folder:
        local = Path(folder) / path.rstrip("/").rpartition("/")[2]
        try:
            system.get(place, str(local), recursive=True)
        except Exception as error:
            raise explain(path, error) from error
        yield local


@contextmanager
def fetch_input(path: str) -> Iterator[str]:
    """As `fetch`; what is then found to be wrong with it is said of where it came from."""
    with fetch(path) as local:
        try:
            yield str(local)
        except MgspmvError as error:
            error.args = tuple(str(said).replace(str(local), path) for said in error.args)
            raise
