"""Access to URLs through fsspec: finding and fetching files, with errors in one line."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mgspmv.errors import MgspmvError, StoreError
from mgspmv.files import CHECK_WRITING, describe_error, find_system, is_url
from mgspmv.ingest.remote import explain
from mgspmv.os_errors import translate_os_error


@contextmanager
def explain_failures(doing: str, place: str) -> Iterator[None]:
    """Translate errors at a place; at a URL, they come from libraries that raise other errors.

    Parameters
    ----------
    doing : verb, such as `write to`

    Raises
    ------
    StoreError : the operation failed, with the reason
    """
    try:
        yield
    except MgspmvError:
        raise
    except Exception as error:
        if is_url(place):
            raise StoreError(f"cannot {doing} {place}: {describe_error(error)}; {CHECK_WRITING}") from error
        if isinstance(error, OSError):
            raise translate_os_error(error, place, doing) from error
        raise


@contextmanager
def fetch(path: str) -> Iterator[Path]:
    """Yield a local path of a file or folder, downloaded if it is at a URL; errors in the context name the URL.

    Raises
    ------
    SourceError, SourceNotFoundError : it cannot be fetched
    OptionError : as in `find_system`
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
        try:
            yield local
        except MgspmvError as error:
            error.args = tuple(str(said).replace(str(local), path) for said in error.args)
            raise
