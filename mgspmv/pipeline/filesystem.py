"""Files at URLs, downloaded through fsspec, with errors in one line."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mgspmv.errors import MgspmvError
from mgspmv.files import find_system, is_url
from mgspmv.ingest.remote import translate_error


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
            raise translate_error(path, error) from error
        try:
            yield local
        except MgspmvError as error:
            error.args = tuple(str(said).replace(str(local), path) for said in error.args)
            raise
