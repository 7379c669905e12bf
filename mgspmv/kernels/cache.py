"""The user's cache: files that may be deleted at any time.

It is the folder `$MGSPMV_CACHE`, or the one that the system has for it (`~/.cache/mgspmv` on Linux).
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

CACHE_VARIABLE = "MGSPMV_CACHE"
"""Environment variable that names the folder."""


def find_folder() -> Path:
    """Where files are kept."""
    if folder := os.environ.get(CACHE_VARIABLE):
        return Path(folder)
    return platformdirs.user_cache_path("mgspmv", appauthor=False)
