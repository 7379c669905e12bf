"""The user's cache: files that may be deleted at any time.

It is the folder `$MGSPMV_CACHE`, or the one that the system has for it (`~/.cache/mgspmv` on Linux). What cannot be
read or written is warned about once and treated as if nothing were kept.
"""

from __future__ import annotations

import functools
import os
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path

import platformdirs

CACHE_VARIABLE = "MGSPMV_CACHE"
"""Environment variable that names the folder."""


def find_folder() -> Path:
    """Where files are kept."""
    if folder := os.environ.get(CACHE_VARIABLE):
        return Path(folder)
    return platformdirs.user_cache_path("mgspmv", appauthor=False)


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file, if there is one, by one that is whole.

    Raises
    ------
    OSError : it cannot be written; what was there still is
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except BaseException:  # also of an interrupt nothing is left
        with suppress(OSError):
            os.unlink(name)
        raise


@functools.cache
def warn_once(message: str) -> None:
    """Warn, unless this was said before."""
    warnings.warn(message, stacklevel=2)
