"""The user's cache: files that may be deleted at any time.

It is the folder `$MGSPMV_CACHE`, by default the system's cache folder (`~/.cache/mgspmv` on Linux).
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

CACHE_VARIABLE = "MGSPMV_CACHE"
"""Environment variable that names the folder."""


def find_folder() -> Path:
    """Return the folder of cached files."""
    if folder := os.environ.get(CACHE_VARIABLE):
        return Path(folder)
    return platformdirs.user_cache_path("mgspmv", appauthor=False)
