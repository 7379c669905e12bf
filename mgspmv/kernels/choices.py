"""Kernels that were found to be the fastest, kept in a file in the user's cache and never in a store.

The file is `choices.json` in `$MGSPMV_CACHE`, else in `mgspmv` in `$XDG_CACHE_HOME` or `~/.cache`. It may be deleted at
any time. What cannot be read or written is warned about once and treated as if nothing were kept.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
import warnings
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

CACHE_VARIABLE = "MGSPMV_CACHE"
"""Environment variable that names the folder."""


@dataclass(frozen=True)
class Case:
    """What a choice holds for; for nothing else, and for no other version of this package."""

    digest: str
    """Of the store."""
    start: int
    """First of the block's rows."""
    stop: int
    """The row after its last one."""
    dtype: str
    """Of x."""
    device: str
    """What computes."""

    @property
    def key(self) -> str:
        """The name of its choice in the file."""
        rows = f"rows {self.start}-{self.stop}"
        return "; ".join((self.digest, rows, self.dtype, self.device, f"mgspmv {version('mgspmv')}"))


def find_file() -> Path:
    """Where choices are kept."""
    if folder := os.environ.get(CACHE_VARIABLE):
        return Path(folder) / "choices.json"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mgspmv" / "choices.json"


def read_choice(case: Case) -> str | None:
    """The kernel that was kept for this case; None where none was."""
    kept = _read_all(find_file()).get(case.key)
    return kept["kernel"] if isinstance(kept, dict) and isinstance(kept.get("kernel"), str) else None


def keep_choice(case: Case, seconds: dict[str, float]) -> str:
    """Keep the fastest kernel and the times of all; the name of that kernel. Of two processes that write at once, one
    may undo what the other kept: it is then timed again."""
    fastest = min(seconds, key=lambda name: seconds[name])
    path = find_file()
    kept = {"kernel": fastest, "milliseconds": {name: round(s * 1e3, 6) for name, s in seconds.items()}}
    try:
        _write_all(path, _read_all(path) | {case.key: kept})
    except OSError as error:
        _warn_once(
            f"the choice of a kernel cannot be kept in {path} ({error}), so kernels will be timed again; set "
            f"${CACHE_VARIABLE} to a folder that can be written"
        )
    return fastest


def _read_all(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        found = error
    if isinstance(found, dict):
        return found
    _warn_once(f"the choices of kernels in {path} cannot be read and are left out; delete the file")
    return {}


def _write_all(path: Path, choices: dict[str, Any]) -> None:
    """Replace the file by one that is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".choices-")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(choices, file, indent=1)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(message, stacklevel=2)
